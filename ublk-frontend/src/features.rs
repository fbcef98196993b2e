//! What the loaded ublk driver can do. One control command when probed, a mask afterwards.

use crate::control::ControlRing;
use crate::error::UblkError;
use libublk::sys;

/// Feature mask of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(u64);

/// Bit and name as in the kernel's header without prefix; bits above 19 are newer than our bindings.
const NAMES: [(u32, &str); 21] = [
    (0, "SUPPORT_ZERO_COPY"),
    (1, "URING_CMD_COMP_IN_TASK"),
    (2, "NEED_GET_DATA"),
    (3, "USER_RECOVERY"),
    (4, "USER_RECOVERY_REISSUE"),
    (5, "UNPRIVILEGED_DEV"),
    (6, "CMD_IOCTL_ENCODE"),
    (7, "USER_COPY"),
    (8, "ZONED"),
    (9, "USER_RECOVERY_FAIL_IO"),
    (10, "UPDATE_SIZE"),
    (11, "AUTO_BUF_REG"),
    (12, "QUIESCE"),
    (13, "PER_IO_DAEMON"),
    (14, "BUF_REG_OFF_DAEMON"),
    (15, "BATCH_IO"),
    (16, "INTEGRITY"),
    (17, "SAFE_STOP_DEV"),
    (18, "NO_AUTO_PART_SCAN"),
    (19, "SHMEM_ZC"),
    (20, "IO_DESC_SIZE"),
];

impl Features {
    /// Asks the driver.
    ///
    /// # Errors
    /// [`UblkError::NoDriver`], [`UblkError::NoPermission`], [`UblkError::Ring`], and
    /// [`UblkError::KernelTooOld`] below Linux 6.5 (no GET_FEATURES, no user copy).
    pub fn probe() -> Result<Features, UblkError> {
        let mut mask = [0; 8];
        match ControlRing::open()?.command(
            sys::UBLK_U_CMD_GET_FEATURES,
            u32::MAX,
            0,
            &mut mask,
            &|| false,
        ) {
            Ok(_) => {}
            Err(libc::EPERM | libc::EACCES) => return Err(UblkError::NoPermission),
            Err(_) => return Err(UblkError::KernelTooOld),
        }
        let features = Features(u64::from_ne_bytes(mask));
        if features.user_copy() {
            Ok(features)
        } else {
            Err(UblkError::KernelTooOld)
        }
    }

    /// From a known mask (for tests and reports).
    pub const fn from_bits(bits: u64) -> Features {
        Features(bits)
    }

    /// The mask as the driver gave it.
    pub const fn bits(self) -> u64 {
        self.0
    }

    const fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }

    /// Bytes of requests move by reads and writes of the char device (Linux 6.5).
    pub const fn user_copy(self) -> bool {
        self.has(7)
    }

    /// Request pages can be registered in a ring (works since Linux 6.15).
    pub const fn zero_copy(self) -> bool {
        self.has(0)
    }

    /// The driver registers request pages itself (Linux 6.16).
    pub const fn auto_buf_reg(self) -> bool {
        self.has(11)
    }

    /// The device survives its server, requests are issued again to the next one.
    pub const fn recovery(self) -> bool {
        self.has(3) && self.has(4)
    }

    /// The device can be detached from its server in an orderly way (Linux 6.16).
    pub const fn quiesce(self) -> bool {
        self.has(12)
    }

    /// Stopping can be refused while the device is open (Linux 7.0).
    pub const fn safe_stop(self) -> bool {
        self.has(17)
    }

    /// The partition scan at start can be left out (Linux 7.0).
    pub const fn no_part_scan(self) -> bool {
        self.has(18)
    }

    /// The size can change while the device is in use (Linux 6.16).
    pub const fn update_size(self) -> bool {
        self.has(10)
    }

    /// Names of all features of the driver that we know a name for.
    pub fn names(self) -> Vec<&'static str> {
        NAMES
            .iter()
            .filter(|(bit, _)| self.has(*bit))
            .map(|(_, name)| *name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_match_the_header() {
        let only = |bit: u32| Features::from_bits(u64::from(bit));
        assert!(only(sys::UBLK_F_SUPPORT_ZERO_COPY).zero_copy());
        assert!(only(sys::UBLK_F_USER_COPY).user_copy());
        assert!(only(sys::UBLK_F_AUTO_BUF_REG).auto_buf_reg());
        assert!(only(sys::UBLK_F_UPDATE_SIZE).update_size());
        assert!(only(sys::UBLK_F_QUIESCE).quiesce());
        assert!(only(sys::UBLK_F_SAFE_STOP_DEV).safe_stop());
        assert!(only(sys::UBLK_F_NO_AUTO_PART_SCAN).no_part_scan());
        assert!(!only(sys::UBLK_F_USER_RECOVERY).recovery());
        assert!(only(sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE).recovery());
    }

    #[test]
    fn names_are_complete_and_in_order() {
        let all = Features::from_bits(0x1f_ffff).names();
        assert_eq!(all.len(), 21);
        assert_eq!(all[7], "USER_COPY");
        assert_eq!(all[20], "IO_DESC_SIZE");
        assert!(Features::from_bits(0).names().is_empty());
        assert!(
            NAMES
                .iter()
                .enumerate()
                .all(|(i, (bit, _))| i as u32 == *bit)
        );
    }
}
