//! Members of an array that need no devices: memory, files, or nothing at all.
//!
//! A null member takes writes and forgets them, and reads as zeroes: what is left is the cost of the engine itself. A member
//! in memory costs a copy by the processor for each transfer, which on real drives is the drive's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use raidd::engine::EngineMember;

/// What members are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// `/dev/zero`.
    Null,
    /// Anonymous files in memory.
    Memory,
    /// Files in this directory, with direct I/O where the file system has it.
    Directory(PathBuf),
}

impl Backing {
    /// From the command line: `null`, `memory` or a directory.
    pub fn parse(text: &str) -> Result<Backing, String> {
        match text {
            "null" => Ok(Backing::Null),
            "memory" => Ok(Backing::Memory),
            path if std::path::Path::new(path).is_dir() => Ok(Backing::Directory(path.into())),
            other => Err(format!(
                "{other}: neither \"null\" nor \"memory\" nor a directory"
            )),
        }
    }

    /// For tables.
    pub fn name(&self) -> &'static str {
        match self {
            Backing::Null => "null",
            Backing::Memory => "memory",
            Backing::Directory(_) => "files",
        }
    }
}

/// The members of one array, by slot.
pub struct Members {
    /// Their files; data begins at byte 0.
    pub files: Vec<Arc<File>>,
}

impl Members {
    /// `count` members of `bytes` each, full of zeroes, all space taken.
    ///
    /// # Errors
    /// What the file system says.
    pub fn new(backing: &Backing, count: u16, bytes: u64) -> io::Result<Members> {
        let make = |slot: u16| {
            let file = match backing {
                Backing::Null => {
                    return OpenOptions::new().read(true).write(true).open("/dev/zero");
                }
                Backing::Memory => File::from(memfd_create(c"member", MFdFlags::MFD_CLOEXEC)?),
                Backing::Directory(path) => in_directory(&path.join(format!("member-{slot}")))?,
            };
            file.set_len(bytes)?;
            fallocate(&file, FallocateFlags::empty(), 0, bytes as i64)?;
            Ok(file)
        };
        let files = (0..count).map(|slot| make(slot).map(Arc::new));
        Ok(Members {
            files: files.collect::<io::Result<_>>()?,
        })
    }

    /// As engines take them; none for a slot in `missing`.
    pub fn for_engines(&self, missing: &[u16]) -> Vec<Option<EngineMember>> {
        let member = |(slot, file): (u16, &Arc<File>)| {
            (!missing.contains(&slot)).then(|| EngineMember {
                file: file.clone(),
                data_offset: 0,
            })
        };
        (0u16..).zip(&self.files).map(member).collect()
    }

    /// Bytes of one member.
    ///
    /// # Errors
    /// What the file system says.
    pub fn read(&self, slot: u16, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.files[usize::from(slot)].read_exact_at(into, at)
    }

    /// Changes bytes of one member.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, slot: u16, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.files[usize::from(slot)].write_all_at(bytes, at)
    }
}

/// A new file that has no name any more.
fn in_directory(path: &std::path::Path) -> io::Result<File> {
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags)
            .open(path)
    };
    let file = open(libc::O_DIRECT).or_else(|_| open(0))?;
    std::fs::remove_file(path)?;
    Ok(file)
}
