//! Members of an array that need no devices: memory, files, or nothing at all.
//!
//! A null member takes writes and forgets them, and reads as zeroes: what is left is the cost of the engine itself. A member
//! in memory costs a copy by the processor for each transfer, which on real drives is the drive's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
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
            path if Path::new(path).is_dir() => Ok(Backing::Directory(path.into())),
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
    /// As engines use them; data begins at byte 0.
    files: Vec<Arc<File>>,
    /// The same files without direct I/O.
    plain: Vec<Arc<File>>,
}

impl Members {
    /// `count` members of `bytes` each, full of zeroes, all space taken.
    ///
    /// # Errors
    /// What the file system says.
    pub fn new(backing: &Backing, count: u16, bytes: u64) -> io::Result<Members> {
        let make = |slot: u16| {
            let (file, plain) = match backing {
                Backing::Null => {
                    let file = OpenOptions::new()
                        .read(true)
                        .write(true)
                        .open("/dev/zero")?;
                    let file = Arc::new(file);
                    return Ok((file.clone(), file));
                }
                Backing::Memory => {
                    let file =
                        Arc::new(File::from(memfd_create(c"member", MFdFlags::MFD_CLOEXEC)?));
                    (file.clone(), file)
                }
                Backing::Directory(path) => in_directory(&path.join(format!("member-{slot}")))?,
            };
            file.set_len(bytes)?;
            fallocate(&file, FallocateFlags::empty(), 0, bytes as i64)?;
            Ok((file, plain))
        };
        let all = (0..count).map(make).collect::<io::Result<Vec<_>>>()?;
        let (files, plain) = all.into_iter().unzip();
        Ok(Members { files, plain })
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
        self.plain[usize::from(slot)].read_exact_at(into, at)
    }

    /// Changes bytes of one member.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, slot: u16, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.plain[usize::from(slot)].write_all_at(bytes, at)
    }
}

/// A new file that has no name any more, with direct I/O if possible and without.
fn in_directory(path: &Path) -> io::Result<(Arc<File>, Arc<File>)> {
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options
            .truncate(true)
            .custom_flags(flags)
            .open(path)
            .map(Arc::new)
    };
    let plain = open(0)?;
    let direct = open(libc::O_DIRECT).unwrap_or_else(|_| plain.clone());
    std::fs::remove_file(path)?;
    Ok((direct, plain))
}
