//! What a scrub has found, and the limits of background walks: plain data of the boundary, which `detail` and JSON show as it is.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::SweepKind;

/// Whom a repair believes where parity and data differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubPolicy {
    /// RAID 6: the one wrong member is found out and put right. What cannot be told is left alone.
    Locate,
    /// The data; parity is made anew, as MD does.
    Parity,
}

/// Sectors in which parity and data differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Slot of the member that is wrong; null where that cannot be told.
    pub slot: Option<u16>,
    /// Its device.
    pub path: Option<PathBuf>,
    /// What it holds there: data, P or Q.
    pub holds: Option<String>,
    /// First sector, from the start of the members' data.
    pub member_sector: u64,
    /// The same from the start of the wrong member's device.
    pub device_sector: Option<u64>,
    /// How many, on each member.
    pub sectors: u32,
    /// Array sector of the wrong data; of the first data beside wrong parity, or beside what cannot be told.
    pub array_sector: Option<u64>,
    /// It has been put right.
    pub repaired: bool,
}

/// One scrub, under way or over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// check or repair.
    pub kind: SweepKind,
    /// Of a repair.
    pub policy: Option<ScrubPolicy>,
    /// Seconds since 1970.
    pub began: u64,
    /// Seconds since 1970; null while it runs.
    pub ended: Option<u64>,
    /// It has seen the whole array.
    pub complete: bool,
    /// Bytes of each member compared.
    pub checked_bytes: u64,
    /// Sectors of a member's height in which parity and data differed.
    pub mismatch_sectors: u64,
    /// Those that were put right.
    pub repaired_sectors: u64,
    /// Places (of at most 64 KiB of each member) that could not be read or computed.
    pub unreadable: u64,
    /// The first places that differed.
    pub findings: Vec<Finding>,
}

/// Limits of background walks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepLimits {
    /// Kept up while the foreground is busy, bytes of each member per second.
    pub floor: u64,
    /// Never exceeded, bytes of each member per second; null: as fast as it goes.
    pub ceiling: Option<u64>,
    /// No walk goes on.
    pub paused: bool,
}

/// A change of [`SweepLimits`]; what is `None` stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitsChange {
    /// New floor.
    pub floor: Option<u64>,
    /// New ceiling, or none.
    pub ceiling: Option<Option<u64>>,
    /// Pause or go on.
    pub paused: Option<bool>,
}
