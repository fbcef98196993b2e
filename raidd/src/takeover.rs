//! When MD got to our members first: an array nobody uses is stopped politely, a used one is a refusal that names
//! its user. Stops with MD's own ioctl on an exclusively opened node, as mdadm does: the kernel refuses it if the array
//! is open elsewhere, so there is no window between looking and stopping. (Writing `clear` to `array_state` in sysfs
//! would need no ioctl, but stops a read-only array even while it is open.)

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use raid_core::superblock::parse_uuid;

use crate::device::node::{dev_no, dev_path, sys_list, sys_path, sys_read};
use crate::device::usage::{Use, explain_busy, uses};
use crate::discover::probe;

/// Why an MD array keeps our members.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// Somebody uses it.
    #[error("the MD array {md} has this array's members and is {}", .uses.iter().map(|u| u.what.as_str()).collect::<Vec<_>>().join(", "))]
    Used {
        /// Kernel name.
        md: String,
        /// By whom.
        uses: Vec<Use>,
    },
    /// The kernel would not stop it.
    #[error("stopping the unused MD array {md}: {source}")]
    Stop {
        /// Kernel name.
        md: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It was stopped and still holds members.
    #[error("the MD array {md} was stopped but still holds its members")]
    Lingers {
        /// Kernel name.
        md: String,
    },
}

impl TakeoverError {
    /// What the operator can do.
    pub fn remedy(&self) -> String {
        match self {
            TakeoverError::Used { md, uses } => {
                let mut steps: Vec<String> = uses.iter().map(|u| u.remedy.clone()).collect();
                steps.push(format!("mdadm --stop /dev/{md}"));
                steps.dedup();
                format!("{}, then assemble again", steps.join(", "))
            }
            TakeoverError::Stop { md, .. } | TakeoverError::Lingers { md } => {
                format!("try 'mdadm --stop /dev/{md}', then assemble again")
            }
        }
    }
}

/// MD arrays that hold any of these devices (kernel names).
pub fn md_holders<'a>(members: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    members
        .into_iter()
        .flat_map(|name| sys_list(name, "holders"))
        .filter(|holder| sys_path(holder).join("md").exists())
        .collect()
}

/// MD arrays that are this array, whatever nodes they hold it by: the same drives may be seen twice, and two that
/// write to one array destroy it.
pub fn md_of_array(uuid: &[u8; 16]) -> BTreeSet<String> {
    let on_member = |name: &str| Some(probe(&dev_path(name), false).ok()?.superblock.uuid);
    md_below(Path::new("/sys/class/block"), uuid, &on_member)
}

/// `on_member` reads a member's superblock, for kernels and states in which MD does not tell the uuid.
fn md_below(
    sys: &Path,
    uuid: &[u8; 16],
    on_member: &dyn Fn(&str) -> Option<[u8; 16]>,
) -> BTreeSet<String> {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned())
    };
    let told = |md: &str| {
        let text = fs::read_to_string(sys.join(md).join("md/uuid")).ok()?;
        parse_uuid(text.trim()).filter(|u| *u != [0; 16])
    };
    names(sys)
        .filter(|md| sys.join(md).join("md").is_dir())
        .filter(|md| {
            let read = || names(&sys.join(md).join("slaves")).find_map(|m| on_member(&m));
            told(md).or_else(read).as_ref() == Some(uuid)
        })
        .collect()
}

mod ioctl {
    nix::ioctl_none!(stop_array, 9, 0x32);
}

/// Whether an MD array could be stopped; changes nothing. The node stays exclusively open in the result.
pub fn check_unused(md: &str) -> Result<File, TakeoverError> {
    let path = dev_path(md);
    let dev = fs::metadata(&path)
        .map(|meta| dev_no(meta.rdev()))
        .map_err(|e| stop_error(md, e))?;
    let used = uses(md, dev);
    if !used.is_empty() {
        return Err(TakeoverError::Used {
            md: md.into(),
            uses: used,
        });
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
        .open(&path)
        .map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => TakeoverError::Used {
                md: md.into(),
                uses: explain_busy(md, dev),
            },
            _ => stop_error(md, e),
        })?;
    // An exclusive open does not mind others that merely look at the array; they mind its end.
    let looking: Vec<Use> = explain_busy(md, dev)
        .into_iter()
        .filter(|u| u.what.starts_with("open in"))
        .collect();
    if looking.is_empty() {
        Ok(file)
    } else {
        Err(TakeoverError::Used {
            md: md.into(),
            uses: looking,
        })
    }
}

fn stop_error(md: &str, source: io::Error) -> TakeoverError {
    TakeoverError::Stop {
        md: md.into(),
        source,
    }
}

/// Stops an unused MD array and waits until it has let go of its members.
pub fn stop_unused(md: &str) -> Result<(), TakeoverError> {
    let level = sys_read(md, "md/level").unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(2);
    // udev looks at new arrays for a moment; that is waited for before it is called a use.
    let retry = |e: TakeoverError| {
        if Instant::now() >= deadline
            || matches!(&e, TakeoverError::Used { uses, .. } if !brief(uses))
        {
            return Err(e);
        }
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    };
    loop {
        let file = match check_unused(md) {
            Ok(file) => file,
            Err(e) => {
                retry(e)?;
                continue;
            }
        };
        // SAFETY: the request takes no argument, so the kernel touches no memory of ours; the descriptor is open.
        match unsafe { ioctl::stop_array(file.as_raw_fd()) } {
            Ok(_) => break,
            Err(e) => retry(stop_error(md, e.into()))?,
        }
    }
    tracing::info!(
        md,
        level,
        "stopped an unused MD array that held members of an array to be assembled"
    );
    while sys_path(md).exists() && !sys_list(md, "slaves").is_empty() {
        if Instant::now() >= deadline {
            return Err(TakeoverError::Lingers { md: md.into() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Uses that end by themselves: the device manager's looks.
fn brief(uses: &[Use]) -> bool {
    uses.iter().all(|u| {
        ["udev", "mdadm", "blkid"]
            .iter()
            .any(|who| u.what.contains(who))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_array_is_named_with_its_user() {
        let uses = vec![Use {
            what: "mounted on /data".into(),
            remedy: "umount /data".into(),
        }];
        let error = TakeoverError::Used {
            md: "md127".into(),
            uses,
        };
        assert_eq!(
            error.to_string(),
            "the MD array md127 has this array's members and is mounted on /data"
        );
        assert_eq!(
            error.remedy(),
            "umount /data, mdadm --stop /dev/md127, then assemble again"
        );
    }

    #[test]
    fn devices_without_holders_have_none() {
        assert!(md_holders(["no-such-device"]).is_empty());
    }

    /// The drives of a mounted MD array were seen under other names too, which nobody held. Started over those, the
    /// array had two writers.
    #[test]
    fn a_running_array_is_known_by_its_uuid_and_not_by_the_nodes_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        fs::create_dir_all(sys.join("ram0")).unwrap();
        fs::create_dir_all(sys.join("md8/md")).unwrap();
        fs::create_dir_all(sys.join("md9/md")).unwrap();
        fs::write(
            sys.join("md9/md/uuid"),
            "01234567-89ab-cdef-0123-456789abcdef\n",
        )
        .unwrap();
        let uuid = parse_uuid("01234567:89abcdef:01234567:89abcdef").unwrap();
        let unread = |_: &str| None;
        assert_eq!(
            md_below(sys, &uuid, &unread)
                .into_iter()
                .collect::<Vec<_>>(),
            ["md9"]
        );
        assert!(md_below(sys, &[7; 16], &unread).is_empty());
        // An older kernel: the superblock of a member tells.
        fs::create_dir_all(sys.join("md8/slaves/nvme0n1")).unwrap();
        let read = |name: &str| (name == "nvme0n1").then_some([7; 16]);
        assert_eq!(
            md_below(sys, &[7; 16], &read)
                .into_iter()
                .collect::<Vec<_>>(),
            ["md8"]
        );
    }
}
