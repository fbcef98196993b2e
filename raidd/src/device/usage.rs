//! Who uses a block device: mounts, swap, holders (MD, device-mapper, LVM), its partitions' users, open files. Each
//! answer says who it is and how to end it. Reads /proc and /sys; `openers` walks every process and is only called
//! to explain a refusal.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::node::{DevNo, dev_no, dev_path, name_of, partitions, sys_list, sys_path, sys_read};

/// One use and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// `mounted on /data`, `held by md127 (raid5)`.
    pub what: String,
    /// `umount /data`.
    pub remedy: String,
}

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Of the file system; anonymous for btrfs and overlays.
    pub dev: DevNo,
    /// Where.
    pub point: PathBuf,
    /// What was mounted, often a path.
    pub source: String,
}

/// Reads the text of /proc/PID/mountinfo; lines that it cannot read are left out.
pub fn parse_mountinfo(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount_line).collect()
}

fn mount_line(line: &str) -> Option<Mount> {
    let mut words = line.split(' ');
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let point = words.nth(1)?;
    let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
    Some(Mount {
        dev: DevNo {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        },
        point: PathBuf::from(unescape(point)),
        source: unescape(source),
    })
}

/// `\040` is a blank, and so on.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).and_then(|d| {
            d.iter().try_fold(0u32, |n, b| {
                (b'0'..=b'7')
                    .contains(b)
                    .then(|| n * 8 + u32::from(b - b'0'))
            })
        });
        match octal.filter(|n| bytes[at] == b'\\' && *n < 256) {
            Some(n) => {
                out.push(n as u8);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Mounts in our name space, then those in the first process's (a service has its own name space).
fn mounts() -> [Vec<Mount>; 2] {
    ["/proc/self/mountinfo", "/proc/1/mountinfo"]
        .map(|file| parse_mountinfo(&fs::read_to_string(file).unwrap_or_default()))
}

/// Where file systems of one device are mounted. Works for a device whose node is gone and which lives on only as
/// long as these mounts do.
pub fn mount_points(dev: Option<DevNo>, node: &Path) -> Vec<PathBuf> {
    let of_it = |m: &Mount| Some(m.dev) == dev || Path::new(&m.source) == node;
    let points = |all: Vec<Mount>| -> Vec<PathBuf> {
        all.into_iter().filter(of_it).map(|m| m.point).collect()
    };
    let found = mounts().map(points);
    found
        .into_iter()
        .find(|p| !p.is_empty())
        .unwrap_or_default()
}

fn rdev_of(path: &Path) -> Option<DevNo> {
    let meta = fs::metadata(path).ok()?;
    meta.file_type()
        .is_block_device()
        .then(|| dev_no(meta.rdev()))
}

/// Block devices in use as swap.
fn swaps() -> Vec<(DevNo, PathBuf)> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    text.lines()
        .skip(1)
        .filter_map(|l| {
            let path = PathBuf::from(unescape(l.split_whitespace().next()?));
            Some((rdev_of(&path)?, path))
        })
        .collect()
}

/// Everything that uses the device or one of its partitions, without looking at other processes' open files.
pub fn uses(name: &str, dev: DevNo) -> Vec<Use> {
    let mounts = mounts();
    let swaps = swaps();
    let mut found = uses_of_one(name, dev, &mounts, &swaps);
    for partition in partitions(name) {
        let Some(dev) = rdev_of(&dev_path(&partition)) else {
            continue;
        };
        for mut one in uses_of_one(&partition, dev, &mounts, &swaps) {
            one.what = format!("its partition {partition} is {}", one.what);
            found.push(one);
        }
    }
    found
}

fn uses_of_one(
    name: &str,
    dev: DevNo,
    mounts: &[Vec<Mount>; 2],
    swaps: &[(DevNo, PathBuf)],
) -> Vec<Use> {
    let of_it = |mount: &&Mount| {
        mount.dev == dev
            || (mount.source.starts_with('/') && rdev_of(Path::new(&mount.source)) == Some(dev))
    };
    // The other name space counts only for what ours does not show; else most mounts would be named twice.
    let seen = mounts
        .iter()
        .map(|all| all.iter().filter(of_it).collect::<Vec<_>>())
        .find(|found| !found.is_empty());
    let mut found: Vec<Use> = seen
        .unwrap_or_default()
        .into_iter()
        .map(|mount| Use {
            what: format!("mounted on {}", mount.point.display()),
            remedy: format!("umount {}", mount.point.display()),
        })
        .collect();
    if let Some((_, path)) = swaps.iter().find(|(d, _)| *d == dev) {
        found.push(Use {
            what: "in use as swap".into(),
            remedy: format!("swapoff {}", path.display()),
        });
    }
    for holder in sys_list(name, "holders") {
        found.push(holder_use(&holder));
    }
    found
}

fn holder_use(holder: &str) -> Use {
    if sys_path(holder).join("md").exists() {
        let level = sys_read(holder, "md/level").unwrap_or_default();
        let level = if level.is_empty() {
            "inactive".to_string()
        } else {
            level
        };
        return Use {
            what: format!("a member of the MD array {holder} ({level})"),
            remedy: format!("mdadm --stop /dev/{holder}"),
        };
    }
    if let Ok(dm) = sys_read(holder, "dm/name") {
        let uuid = sys_read(holder, "dm/uuid").unwrap_or_default();
        let (kind, remedy) = if uuid.starts_with("LVM-") {
            (
                "the logical volume",
                format!("lvchange -an /dev/mapper/{dm}"),
            )
        } else if uuid.starts_with("CRYPT-") {
            ("the encrypted volume", format!("cryptsetup close {dm}"))
        } else if uuid.starts_with("mpath-") {
            (
                "the multipath device",
                format!("use /dev/mapper/{dm} instead"),
            )
        } else {
            ("the device-mapper device", format!("dmsetup remove {dm}"))
        };
        return Use {
            what: format!("held by {kind} {dm}"),
            remedy,
        };
    }
    Use {
        what: format!("held by {holder}"),
        remedy: format!("release {holder} first"),
    }
}

/// Processes that have the device open, as far as we may look, at most `limit`: `mkfs.xfs (process 4711)`.
pub fn openers(dev: DevNo, limit: usize) -> Vec<String> {
    let mut found = Vec::new();
    let own = std::process::id().to_string();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_string_lossy().into_owned();
        if pid == own || !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let files = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        if files
            .into_iter()
            .any(|file| rdev_of(&file.path()) == Some(dev))
        {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} (process {pid})", name.trim()));
            if found.len() == limit {
                break;
            }
        }
    }
    found
}

/// Uses, and if there are none the openers: the whole explanation of a busy device.
pub fn explain_busy(name: &str, dev: DevNo) -> Vec<Use> {
    let found = uses(name, dev);
    if !found.is_empty() {
        return found;
    }
    let open: Vec<Use> = openers(dev, 4).into_iter().map(opener_use).collect();
    if open.is_empty() {
        let what = "held exclusively by something in the kernel or another name space".into();
        return vec![Use {
            what,
            remedy: format!("see lsblk /dev/{name} and /proc/mdstat"),
        }];
    }
    open
}

fn opener_use(who: String) -> Use {
    if who.starts_with("raidd") {
        let remedy = "stop its array with 'raidctl stop', see 'raidctl list'".into();
        return Use {
            what: format!("held by {who}"),
            remedy,
        };
    }
    Use {
        what: format!("open in {who}"),
        remedy: "end that program".into(),
    }
}

/// Uses of a device by its path, for arrays of our own; empty if it is not there.
pub fn explain_busy_path(path: &Path) -> Vec<Use> {
    let Some(dev) = rdev_of(path) else {
        return Vec::new();
    };
    let Ok(name) = name_of(dev) else {
        return Vec::new();
    };
    let found = explain_busy(&name, dev);
    if found.iter().any(|u| u.what.starts_with("held exclusively")) {
        Vec::new()
    } else {
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_with_blanks_and_optional_fields() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
                    garbage\n\
                    37 35 0:45 / /data rw - btrfs /dev/sda1 rw,space_cache\n";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            mounts[0].dev,
            DevNo {
                major: 98,
                minor: 0
            }
        );
        assert_eq!(mounts[0].point, Path::new("/mnt 2"));
        assert_eq!(mounts[1].source, "/dev/sda1");
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape("a\\040b\\134c"), "a b\\c");
        assert_eq!(unescape("a\\04"), "a\\04");
        assert_eq!(unescape("\\777é"), "\\777é");
    }

    #[test]
    fn the_root_file_system_is_somewhere() {
        let root = mounts()[0]
            .iter()
            .rfind(|m| m.point == Path::new("/"))
            .cloned();
        let root = root.unwrap();
        let nowhere = Path::new("/dev/no-such-device");
        assert!(mount_points(Some(root.dev), nowhere).contains(&root.point));
        assert!(mount_points(None, nowhere).is_empty());
    }
}
