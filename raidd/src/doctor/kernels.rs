//! Kernels with known faults that raidd meets, and nothing else: faults of ublk features that raidd does not use (batches,
//! recovery by another server) are not listed. One table, each entry with its public source.

use super::{Finding, Status};

/// A fault of some kernels.
#[derive(Debug)]
pub struct Fault {
    /// Which kernels.
    pub affects: Kernels,
    /// In words.
    pub versions: &'static str,
    /// What goes wrong.
    pub what: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// Where it is described.
    pub source: &'static str,
    /// Whether raidd must not run there.
    pub fatal: bool,
}

/// A set of kernels.
#[derive(Debug)]
pub enum Kernels {
    /// Releases of kernel.org from the first to before the second.
    Between((u32, u32, u32), (u32, u32, u32)),
    /// A distribution's: the release begins and ends so, and the number after the dash is between the two, inclusive.
    Build(&'static str, &'static str, u32, u32),
}

/// The table.
pub const FAULTS: &[Fault] = &[
    Fault {
        affects: Kernels::Between((6, 18, 4), (6, 18, 6)),
        versions: "6.18.4 and 6.18.5",
        what: "making a ublk device dereferences a null pointer in the kernel and never returns",
        remedy: "use 6.18.6 or newer",
        source: "https://github.com/kvcache-ai/AgentENV/issues/20",
        fatal: true,
    },
    Fault {
        affects: Kernels::Build("6.17.0-", "-azure", 1015, 1018),
        versions: "Ubuntu's 6.17.0-1015-azure to 6.17.0-1018-azure",
        what: "making a ublk device dereferences a null pointer in the kernel and never returns",
        remedy: "use a newer kernel of the distribution, or 6.18.6 or newer",
        source: "https://bugs.launchpad.net/ubuntu/+source/linux-azure/+bug/2154635",
        fatal: true,
    },
    Fault {
        affects: Kernels::Between((6, 17, 0), (6, 18, 0)),
        versions: "some distributions' 6.17",
        what: "panics were seen when a ublk device was attached",
        remedy: "prefer 6.18.6 or newer",
        source: "https://github.com/longhorn/longhorn/issues/13509",
        fatal: false,
    },
    Fault {
        affects: Kernels::Between((6, 5, 0), (6, 19, 0)),
        versions: "before 6.19, unless the distribution has taken the repair over",
        what: "a raidd that dies while the partition table of a new device is read leaves a device that hangs, often \
               until a reboot",
        remedy: "use 6.19 or newer",
        source: "https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/commit/?id=60cf863720308ab89ce2fdafea7fcb2cefd9c144",
        fatal: false,
    },
];

/// The three numbers that a release begins with; a missing third one is 0.
pub fn version(release: &str) -> Option<(u32, u32, u32)> {
    let end = release
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(release.len());
    let mut numbers = release[..end].split('.').map(|n| n.parse().ok());
    Some((
        numbers.next()??,
        numbers.next()??,
        numbers.next().flatten().unwrap_or(0),
    ))
}

impl Kernels {
    fn include(&self, release: &str) -> bool {
        match self {
            Kernels::Between(from, before) => {
                version(release).is_some_and(|v| v >= *from && v < *before)
            }
            Kernels::Build(begin, end, from, to) => release
                .strip_prefix(begin)
                .and_then(|rest| rest.strip_suffix(end))
                .and_then(|build| build.parse().ok())
                .is_some_and(|build: u32| (*from..=*to).contains(&build)),
        }
    }
}

pub(super) fn judge(release: &str) -> Vec<Finding> {
    let check = "kernel";
    let Some(version) = version(release) else {
        let fix = "use Linux 6.5 or newer";
        return vec![Finding::new(
            Status::Warn,
            check,
            format!("{release}: not a version that is understood"),
            fix,
        )];
    };
    if version < (6, 5, 0) {
        return vec![Finding::new(
            Status::Fail,
            check,
            format!("{release} is too old"),
            "use Linux 6.5 or newer, 6.16 or newer for reads without a copy",
        )];
    }
    let faults: Vec<Finding> = FAULTS
        .iter()
        .filter(|fault| fault.affects.include(release))
        .map(|fault| {
            let status = match fault.fatal {
                true => Status::Fail,
                false => Status::Warn,
            };
            let found = format!("{release}: {} ({})", fault.what, fault.versions);
            let fix = format!("{}; see {}", fault.remedy, fault.source);
            Finding::new(status, check, found, fix)
        })
        .collect();
    if faults.is_empty() {
        vec![Finding::ok(check, format!("{release}, no known fault"))]
    } else {
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statuses(release: &str) -> Vec<Status> {
        judge(release).into_iter().map(|f| f.status).collect()
    }

    #[test]
    fn releases_are_understood() {
        assert_eq!(version("6.12.117+deb12-amd64"), Some((6, 12, 117)));
        assert_eq!(version("7.3-rc1"), Some((7, 3, 0)));
        assert_eq!(version("6.17.0-1015-azure"), Some((6, 17, 0)));
        assert_eq!(version("strange"), None);
    }

    #[test]
    fn bad_kernels_are_named_with_a_way_out() {
        use Status::{Fail, Ok, Warn};
        assert_eq!(statuses("7.3.4"), [Ok]);
        assert_eq!(statuses("6.19.0"), [Ok]);
        assert_eq!(statuses("6.18.6"), [Warn]);
        assert_eq!(statuses("6.18.4-arch1-1"), [Fail, Warn]);
        assert_eq!(statuses("6.17.0-1015-azure"), [Fail, Warn, Warn]);
        assert_eq!(statuses("6.17.0-1019-azure"), [Warn, Warn]);
        assert_eq!(statuses("6.1.0-44-amd64"), [Fail]);
        assert_eq!(statuses("strange"), [Warn]);
        for finding in judge("6.18.5") {
            assert!(finding.fix.contains("https://"), "{finding:?}");
        }
    }
}
