//! What can be wrong with a superblock, in words for the operator.
//! Owns these texts; costs nothing until one is shown.

use super::{MAX_ROLES, feature};
use std::fmt;

/// Why bytes are not a usable superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperblockError {
    /// No MD magic: nothing to say about the device.
    NoMagic,
    Truncated {
        have: usize,
        need: usize,
    },
    MajorVersion(u32),
    TooManyRoles(u32),
    /// The block says that it belongs to another place.
    Misplaced {
        says: u64,
        at: u64,
    },
    Checksum {
        stored: u32,
        computed: u32,
    },
    UnknownFeatures(u32),
    /// Bytes that must be zero are not; `offset` is the first one's.
    Padding {
        offset: usize,
    },
    LogicalBlockSize(u32),
    DataTooSmall(u64),
    /// The RAID 0 layout bit on another level.
    LayoutBitOnLevel(i32),
}

impl fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use SuperblockError as E;
        match self {
            E::NoMagic => write!(f, "no MD superblock here"),
            E::Truncated { have, need } => {
                write!(
                    f,
                    "the superblock needs {need} bytes and only {have} could be read"
                )
            }
            E::MajorVersion(version) => {
                write!(
                    f,
                    "MD metadata version {version} is not known here (only 1.x is)"
                )
            }
            E::TooManyRoles(roles) => {
                write!(
                    f,
                    "the superblock lists {roles} devices; at most {MAX_ROLES} are possible"
                )
            }
            E::Misplaced { says, at } => write!(
                f,
                "the superblock at sector {at} says that it belongs at sector {says}: \
                 it is a copy, or the partition table changed"
            ),
            E::Checksum { stored, computed } => write!(
                f,
                "the superblock's checksum is {stored:08x} but its bytes give {computed:08x}: it is damaged"
            ),
            E::UnknownFeatures(bits) => write!(
                f,
                "the array uses features that are not known here ({}); use the system that made it",
                feature::names(*bits).join(", ")
            ),
            E::Padding { offset } => write!(
                f,
                "byte {offset} of the superblock must be zero and is not: \
                 a newer MD may have put something there"
            ),
            E::LogicalBlockSize(bytes) => write!(
                f,
                "the superblock's logical_block_size (byte 224) is {bytes}; 0, 512, 1024, 2048 and 4096 are possible"
            ),
            E::DataTooSmall(sectors) => {
                write!(f, "the superblock leaves only {sectors} sectors for data")
            }
            E::LayoutBitOnLevel(level) => {
                write!(
                    f,
                    "the RAID 0 layout bit is set on an array of level {level}"
                )
            }
        }
    }
}

impl std::error::Error for SuperblockError {}

/// Why a superblock does not fit its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// Sectors that the array needs, and those that the device has.
    TooSmall { need: u64, have: u64 },
    /// The data area covers the superblock.
    Overlap,
}
