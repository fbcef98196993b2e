//! Judges the ublk driver and io_uring.

use ublk_frontend::Features;

use super::facts::{Driver, Ublk};
use super::{Finding, Status};

pub(super) fn judge(ublk: &Ublk) -> Vec<Finding> {
    let mut findings = vec![driver(ublk)];
    if ublk.io_uring_disabled == Some(2) {
        findings.push(Finding::new(
            Status::Fail,
            "io_uring",
            "switched off by the sysctl kernel.io_uring_disabled",
            "sysctl kernel.io_uring_disabled=0, and in /etc/sysctl.d to keep it",
        ));
    }
    if let Driver::Features(bits) = ublk.driver {
        findings.push(zero_copy(ublk, Features::from_bits(bits)));
    }
    findings
}

fn driver(ublk: &Ublk) -> Finding {
    let check = "ublk driver";
    match &ublk.driver {
        Driver::Features(bits) => Finding::ok(check, Features::from_bits(*bits).names().join(" ")),
        Driver::Absent if ublk.module == Some(false) => Finding::new(
            Status::Fail,
            check,
            "this kernel has none",
            "install a kernel with CONFIG_BLK_DEV_UBLK, or the package of its extra modules (linux-modules-extra-* on Ubuntu)",
        ),
        Driver::Absent => Finding::new(
            Status::Fail,
            check,
            "not loaded",
            "modprobe ublk_drv, and 'ublk_drv' in /etc/modules-load.d to keep it",
        ),
        Driver::Forbidden => Finding::new(
            Status::Warn,
            check,
            "loaded, but only root may ask what it can do",
            "run raidctl doctor as root",
        ),
        Driver::TooOld => Finding::new(
            Status::Fail,
            check,
            "too old: it has no user copy",
            "use Linux 6.5 or newer",
        ),
        Driver::Broken(what) => Finding::new(Status::Fail, check, what, "see dmesg"),
    }
}

fn zero_copy(ublk: &Ublk, features: Features) -> Finding {
    let check = "zero-copy reads";
    if !ublk.zero_copy_wanted {
        return Finding::new(Status::None, check, "off in the configuration", "");
    }
    if features.zero_copy() && features.auto_buf_reg() {
        Finding::ok(check, "healthy reads go to the members without a copy")
    } else {
        let found = "this kernel cannot; each byte that is read is copied once";
        Finding::new(
            Status::None,
            check,
            found,
            "Linux 6.16 or newer reads without a copy",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(driver: Driver) -> Ublk {
        Ublk {
            driver,
            io_uring_disabled: Some(0),
            module: Some(true),
            zero_copy_wanted: true,
        }
    }

    fn statuses(ublk: &Ublk) -> Vec<Status> {
        judge(ublk).into_iter().map(|f| f.status).collect()
    }

    #[test]
    fn each_state_of_the_driver() {
        use Status::{Fail, None, Ok, Warn};
        assert_eq!(statuses(&facts(Driver::Features(0x1f_ffff))), [Ok, Ok]);
        assert_eq!(statuses(&facts(Driver::Features(1 << 7))), [Ok, None]);
        assert_eq!(statuses(&facts(Driver::Absent)), [Fail]);
        assert_eq!(statuses(&facts(Driver::Forbidden)), [Warn]);
        assert_eq!(statuses(&facts(Driver::TooOld)), [Fail]);
        assert_eq!(statuses(&facts(Driver::Broken("?".into()))), [Fail]);
        let mut ublk = facts(Driver::Features(0x1f_ffff));
        (ublk.io_uring_disabled, ublk.zero_copy_wanted) = (Some(2), false);
        assert_eq!(statuses(&ublk), [Ok, Fail, None]);
    }

    #[test]
    fn a_missing_driver_says_where_it_comes_from() {
        assert!(judge(&facts(Driver::Absent))[0].fix.contains("modprobe"));
        let mut ublk = facts(Driver::Absent);
        ublk.module = Some(false);
        assert!(judge(&ublk)[0].fix.contains("linux-modules-extra"));
    }
}
