//! Why a geometry cannot be, in words for the operator. Owns these texts; costs nothing until one is shown.

use super::{Level, MAX_MEMBERS};
use crate::units::SECTOR_BYTES;
use std::fmt;

/// Why a geometry cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The constructor of the other family was called.
    WrongFamily {
        level: Level,
    },
    Members {
        level: Level,
        members: usize,
    },
    Layout {
        level: Level,
        layout: u32,
    },
    Chunk {
        level: Level,
        chunk_sectors: u32,
    },
    /// A member cannot hold one chunk.
    MemberTooSmall {
        sectors: u64,
        chunk_sectors: u32,
    },
    /// The array would not be addressable in 63 bits of bytes.
    TooLarge,
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeometryError::WrongFamily { level } => {
                write!(f, "level {level} is not of this family")
            }
            GeometryError::Members { level, members } => write!(
                f,
                "{level} takes {} to {MAX_MEMBERS} members, not {members}",
                level.min_members()
            ),
            GeometryError::Layout { level, layout } => {
                write!(f, "{level} has no layout {layout}")
            }
            GeometryError::Chunk {
                level,
                chunk_sectors,
            } => {
                let rule = match level {
                    Level::Raid0 => "a multiple of 4 KiB",
                    _ => "a power of two",
                };
                write!(
                    f,
                    "a chunk of {} bytes is not possible: {level} needs {rule} from 4 KiB to 1 GiB",
                    u64::from(*chunk_sectors) * SECTOR_BYTES
                )
            }
            GeometryError::MemberTooSmall {
                sectors,
                chunk_sectors,
            } => write!(
                f,
                "a member with {sectors} usable sectors cannot hold one chunk of {chunk_sectors} sectors"
            ),
            GeometryError::TooLarge => write!(f, "the array would be larger than 8 EiB"),
        }
    }
}

impl std::error::Error for GeometryError {}
