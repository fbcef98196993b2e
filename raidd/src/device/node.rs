//! One block device as sysfs describes it, and the list of all of them.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A device's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevNo {
    /// Major.
    pub major: u64,
    /// Minor.
    pub minor: u64,
}

impl std::fmt::Display for DevNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// From `st_rdev`.
pub fn dev_no(rdev: u64) -> DevNo {
    DevNo {
        major: nix::sys::stat::major(rdev),
        minor: nix::sys::stat::minor(rdev),
    }
}

/// The number by which a path is told from other names of the same thing: the device's, or for a regular file its
/// file system and inode.
pub fn number_of(path: &Path) -> Option<DevNo> {
    let meta = fs::metadata(path).ok()?;
    Some(match meta.file_type().is_block_device() {
        true => dev_no(meta.rdev()),
        false => DevNo {
            major: meta.dev(),
            minor: meta.ino(),
        },
    })
}

/// What we know of one device without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The path given.
    pub path: PathBuf,
    /// The kernel's name, as in `/sys/class/block`.
    pub name: String,
    /// Device number; for a regular file (tests) its file system and inode.
    pub dev: DevNo,
    /// Sectors of 512 bytes.
    pub size_sectors: u64,
    /// Bytes.
    pub logical_block: u32,
    /// Write protected.
    pub read_only: bool,
    /// Kernel name of the whole disk, for a partition.
    pub partition_of: Option<String>,
    /// False for a regular file, which only tests allow.
    pub is_block: bool,
}

/// Why a path is no device we can use.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No such file.
    #[error("there is no such device")]
    NotFound,
    /// An image file.
    #[error("this is a regular file, not a block device")]
    RegularFile,
    /// A folder, a terminal, ...
    #[error("this is not a block device")]
    NotBlock,
    /// Something failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl NodeError {
    /// What the operator can do.
    pub fn remedy(&self, path: &Path) -> String {
        match self {
            NodeError::NotFound => "check the name with lsblk".into(),
            NodeError::RegularFile => {
                format!(
                    "attach it to a loop device first: losetup --direct-io=on --find --show {}",
                    path.display()
                )
            }
            NodeError::NotBlock => "name block devices, as lsblk -p shows them".into(),
            NodeError::Io(_) => String::new(),
        }
    }
}

const SYS_BLOCK: &str = "/sys/class/block";

/// sysfs folder of a device by kernel name.
pub fn sys_path(name: &str) -> PathBuf {
    Path::new(SYS_BLOCK).join(name)
}

/// One trimmed line of a sysfs file.
pub fn sys_read(name: &str, file: &str) -> io::Result<String> {
    Ok(fs::read_to_string(sys_path(name).join(file))?
        .trim()
        .to_string())
}

fn sys_number(name: &str, file: &str) -> io::Result<u64> {
    sys_read(name, file)?
        .parse()
        .map_err(|_| io::Error::other(format!("{name}/{file} in sysfs is no number")))
}

/// Names in a sysfs folder, sorted; none if it does not exist.
pub fn sys_list(name: &str, folder: &str) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(sys_path(name).join(folder))
        .into_iter()
        .flatten()
        .filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names
}

/// Looks a path up. `allow_files` lets tests use image files.
pub fn inspect(path: &Path, allow_files: bool) -> Result<Node, NodeError> {
    let meta = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => NodeError::NotFound,
        _ => NodeError::Io(e),
    })?;
    if meta.is_file() && allow_files {
        return Ok(Node {
            path: path.into(),
            name: path.display().to_string(),
            dev: DevNo {
                major: meta.dev(),
                minor: meta.ino(),
            },
            size_sectors: meta.len() / 512,
            logical_block: 512,
            read_only: meta.permissions().readonly(),
            partition_of: None,
            is_block: false,
        });
    }
    if meta.is_file() {
        return Err(NodeError::RegularFile);
    }
    if !meta.file_type().is_block_device() {
        return Err(NodeError::NotBlock);
    }
    let dev = dev_no(meta.rdev());
    let name = name_of(dev)?;
    let partition_of = parent_disk(&name);
    let disk = partition_of.as_deref().unwrap_or(&name);
    Ok(Node {
        path: path.into(),
        size_sectors: sys_number(&name, "size")?,
        logical_block: sys_number(disk, "queue/logical_block_size")? as u32,
        read_only: sys_number(&name, "ro")? != 0,
        dev,
        partition_of,
        name,
        is_block: true,
    })
}

/// Kernel name of a device number.
pub fn name_of(dev: DevNo) -> io::Result<String> {
    let link = fs::canonicalize(format!("/sys/dev/block/{dev}"))?;
    link.file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .ok_or_else(|| io::Error::other(format!("sysfs has no name for {dev}")))
}

/// The whole disk of a partition.
pub fn parent_disk(name: &str) -> Option<String> {
    if !sys_path(name).join("partition").exists() {
        return None;
    }
    let real = fs::canonicalize(sys_path(name)).ok()?;
    Some(real.parent()?.file_name()?.to_string_lossy().into_owned())
}

/// Partitions of a disk, by kernel name.
pub fn partitions(name: &str) -> Vec<String> {
    sys_list(name, "")
        .into_iter()
        .filter(|entry| sys_path(name).join(entry).join("partition").exists())
        .collect()
}

/// `/dev` path of a kernel name.
pub fn dev_path(name: &str) -> PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

/// Devices that can be members: everything with a size but our own, MD arrays, empty loops, zram and CD drives.
pub fn candidates() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::new();
    let Ok(entries) = fs::read_dir(SYS_BLOCK) else {
        return paths;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let skipped = ["ublkb", "zram", "sr", "fd", "mtdblock"]
            .iter()
            .any(|p| name.starts_with(p));
        if skipped
            || sys_path(&name).join("md").exists()
            || sys_number(&name, "size").unwrap_or(0) == 0
        {
            continue;
        }
        if name.starts_with("loop")
            && !name.contains('p')
            && !sys_path(&name).join("loop/backing_file").exists()
        {
            continue;
        }
        let path = dev_path(&name);
        if path.exists() {
            paths.push(path);
        }
    }
    paths.sort_by_cached_key(|p| natural_key(&p.to_string_lossy()));
    paths
}

/// Sorts nvme2n1 before nvme10n1.
pub fn natural_key(text: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (word, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (number, tail) = tail.split_at(end);
        key.push((word.to_string(), number.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_devices() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = inspect(file.path(), false).unwrap_err();
        assert!(matches!(error, NodeError::RegularFile));
        assert!(error.remedy(file.path()).contains("losetup"));
        assert!(!inspect(file.path(), true).unwrap().is_block);
        assert!(matches!(
            inspect(Path::new("/dev/null"), false),
            Err(NodeError::NotBlock)
        ));
        assert!(matches!(
            inspect(Path::new("/dev/nope"), false),
            Err(NodeError::NotFound)
        ));
        assert!(matches!(
            inspect(Path::new("/dev/null/nope"), false),
            Err(NodeError::NotFound)
        ));
    }

    #[test]
    fn names_sort_as_people_count() {
        let mut names = [
            "/dev/nvme10n1",
            "/dev/nvme2n1",
            "/dev/nvme2n1p1",
            "/dev/sda",
        ];
        names.sort_by_cached_key(|n| natural_key(n));
        assert_eq!(
            names,
            [
                "/dev/nvme2n1",
                "/dev/nvme2n1p1",
                "/dev/nvme10n1",
                "/dev/sda"
            ]
        );
    }
}
