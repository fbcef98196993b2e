//! When MD got to our members first: an array nobody uses is stopped politely, a used one is a refusal that names
//! its user. Stops through sysfs (`array_state` = `clear` is the STOP_ARRAY ioctl), where the kernel itself refuses
//! if the array is open, so there is no window between looking and stopping.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use crate::device::node::{dev_no, dev_path, sys_list, sys_path, sys_read};
use crate::device::usage::{Use, explain_busy, uses};

/// Why an MD array keeps our members.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// Somebody uses it.
    #[error("the MD array {md} has these members and is {}", .uses.iter().map(|u| u.what.as_str()).collect::<Vec<_>>().join(", "))]
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

/// Whether an MD array could be stopped; changes nothing.
pub fn check_unused(md: &str) -> Result<(), TakeoverError> {
    let path = dev_path(md);
    let Ok(meta) = fs::metadata(&path) else {
        // No node to be opened by anyone; the kernel has the last word when it is stopped.
        return Ok(());
    };
    let dev = dev_no(meta.rdev());
    let used = uses(md, dev);
    if !used.is_empty() {
        return Err(TakeoverError::Used {
            md: md.into(),
            uses: used,
        });
    }
    match OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
        .open(&path)
    {
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Err(TakeoverError::Used {
            md: md.into(),
            uses: explain_busy(md, dev),
        }),
        _ => Ok(()),
    }
}

/// Stops an unused MD array and waits until it has let go of its members.
pub fn stop_unused(md: &str) -> Result<(), TakeoverError> {
    check_unused(md)?;
    let level = sys_read(md, "md/level").unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match fs::write(sys_path(md).join("md/array_state"), "clear") {
            Ok(()) => break,
            // udev looks at new arrays for a moment; give it time before calling that a user.
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(source) => {
                check_unused(md)?;
                return Err(TakeoverError::Stop {
                    md: md.into(),
                    source,
                });
            }
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
            "the MD array md127 has these members and is mounted on /data"
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
}
