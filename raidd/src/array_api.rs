//! The boundary between the control plane and the data path.
//!
//! The control plane opens members, decides what an array is and starts it through [`ArrayStarter`]; it then
//! holds a [`RunningArray`] until it is stopped. Both traits are the whole of what it knows of engines and ublk, so
//! that its tests run with a simulated array. Plain data and two traits; costs nothing on the I/O path.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use raid_core::superblock::Superblock;
use serde::{Deserialize, Serialize};

use crate::array::attach::Claim;
use crate::lane::choice::GpuChoice;
pub use crate::lane::status::{LaneState, LaneStatus};

mod scrub;
pub use scrub::{Finding, LimitsChange, ScrubPolicy, ScrubReport, SweepLimits};

/// One member, opened and held by this process.
#[derive(Debug, Clone)]
pub struct MemberDevice {
    /// Role number in the array (0..n), or `None` for a spare.
    pub slot: Option<u16>,
    /// The path the operator gave, or the kernel's name for a scanned device.
    pub path: PathBuf,
    /// Opened `O_RDWR | O_EXCL | O_DIRECT` (read only if the array is read only). Closing the last clone gives the
    /// member back to others, so whoever stops an array must drop every clone.
    pub file: Arc<File>,
    /// The superblock as read from this member; per-member fields (data offset, dev number) are its own.
    pub superblock: Superblock,
    /// Logical block size in bytes.
    pub logical_block: u32,
    /// Whole size of the device in sectors.
    pub size_sectors: u64,
}

/// Everything about a start that is configuration and not on the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayOptions {
    /// ublk queues, each with an engine thread.
    pub queues: u16,
    /// Requests in flight per queue.
    pub depth: u16,
    /// Largest request the block device takes, in bytes; the data path raises it to a full stripe.
    pub max_request_bytes: u32,
    /// Use automatic buffer registration where the kernel has it.
    pub zero_copy: bool,
    /// Serve reads only and write nothing to the members, superblocks included.
    pub read_only: bool,
    /// Idle time after which a dirty array is marked clean, in milliseconds.
    pub safe_mode_delay_ms: u64,
    /// Background rate kept up while the foreground is busy, bytes per second.
    pub resync_floor_bytes: u64,
    /// Background rate never exceeded, bytes per second.
    pub resync_ceiling_bytes: Option<u64>,
    /// Name of a parity engine; `None` lets the program choose.
    pub parity_engine: Option<String>,
    /// GPUs that may compute parity.
    pub gpu: GpuChoice,
    /// How many times later than on the CPU a job may end on a GPU.
    pub gpu_slack: u32,
    /// Most blocks, and so multiprocessors, of one GPU that the lanes of this array keep while they are awake. A queue's
    /// lane has as many as its share, four at most.
    pub gpu_blocks: u16,
    /// Fixed ublk device id; `None` takes the next free one.
    pub device_id: Option<u32>,
    /// Buffer memory per queue in bytes.
    pub frame_bytes: u64,
    /// The right to serve the array, and what the process before has left; without it nothing is left to a next one.
    pub claim: Option<Claim>,
}

/// Where one member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// Holds current data.
    InSync,
    /// Being filled.
    Rebuilding,
    /// Not part of the data yet.
    Spare,
    /// Failed while the array ran.
    Faulty,
    /// No device for this slot.
    Missing,
}

/// One row of `detail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Role number, `None` for a spare.
    pub slot: Option<u16>,
    /// Device path, `None` when missing.
    pub path: Option<PathBuf>,
    /// MD's number of the device, which it keeps while it is in the array; none when missing.
    pub number: Option<u32>,
    /// Uuid of the device as its superblock has it; none when missing.
    pub device_uuid: Option<[u8; 16]>,
    /// The device has left the system, though it is still held.
    pub gone: bool,
    /// State now.
    pub state: MemberState,
    /// Read and write errors seen since start.
    pub errors: u64,
}

/// What a background walk does; the words are mdadm's `sync_action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SweepKind {
    /// Restores parity after creation or an unclean stop.
    Resync,
    /// Fills a new member.
    Recover,
    /// Compares parity and counts differences.
    Check,
    /// Rewrites parity that differs.
    Repair,
}

/// Progress of a background walk, in bytes of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepStatus {
    /// What it does.
    pub kind: SweepKind,
    /// Bytes of each member done.
    pub done_bytes: u64,
    /// Bytes of each member in all.
    pub total_bytes: u64,
    /// Recent rate in bytes per second, 0 when unknown.
    pub rate_bytes_per_s: u64,
}

/// The write-intent bitmap of a running array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitmapStatus {
    /// Bytes of each member's data for one bit.
    pub chunk_bytes: u64,
    /// Bits.
    pub chunks: u64,
    /// Bits that are set on the members.
    pub dirty: u64,
}

/// Whether the array serves I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Every slot is in sync.
    Optimal,
    /// Serves I/O with slots missing.
    Degraded,
    /// More slots are lost than the level tolerates: I/O fails.
    Failed,
}

/// Which engine of the CPU does an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParityChoice {
    /// encode, update, recover or check.
    pub operation: String,
    /// Name of the engine.
    pub engine: String,
    /// For jobs of at most so many bytes of data; null: for all larger than those named before.
    pub up_to_bytes: Option<u64>,
}

/// GPUs that compute parity of an array.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// What the configuration says.
    pub setting: String,
    /// Why there is none, if the configuration wants one.
    pub unavailable: Option<String>,
    /// By queue; empty if there is none.
    pub lanes: Vec<LaneStatus>,
}

/// A snapshot of a running array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Name without the host part.
    pub name: String,
    /// Array uuid, raw superblock bytes.
    pub uuid: [u8; 16],
    /// RAID level as a number.
    pub level: u8,
    /// MD's layout number.
    pub layout: u32,
    /// Chunk in bytes.
    pub chunk_bytes: u64,
    /// Size of the block device in bytes.
    pub size_bytes: u64,
    /// Used bytes per member (parity levels), 0 for RAID 0.
    pub member_bytes: u64,
    /// Logical block size of the block device in bytes.
    pub logical_block: u32,
    /// Superblock event count.
    pub events: u64,
    /// Block device node.
    pub device: PathBuf,
    /// Serves I/O fully, degraded, or not at all.
    pub health: Health,
    /// False while writes make the members differ from a clean superblock (mdadm's `active`).
    pub clean: bool,
    /// Started read only.
    pub read_only: bool,
    /// One row per slot, then spares and faulty devices.
    pub members: Vec<MemberStatus>,
    /// Background walk in progress.
    pub sweep: Option<SweepStatus>,
    /// Limits of background walks.
    pub limits: SweepLimits,
    /// The last scrubs since the start, the newest last.
    pub scrubs: Vec<ScrubReport>,
    /// The write-intent bitmap.
    pub bitmap: Option<BitmapStatus>,
    /// Name of the parity engine in use; several with a plus between.
    pub parity_engine: String,
    /// Which engine does what.
    pub parity: Vec<ParityChoice>,
    /// GPUs that help.
    pub gpu: GpuStatus,
    /// ublk features in use, by name.
    pub ublk_features: Vec<String>,
    /// Counters by name; units are in the names.
    pub counters: std::collections::BTreeMap<String, u64>,
}

/// Why an array did not start. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// ublk is not there at all.
    #[error("the kernel's ublk driver is not available ({reason}); {remedy}")]
    NoUblk {
        /// What was tried and how it failed.
        reason: String,
        /// What the operator can do.
        remedy: String,
    },
    /// The kernel lacks something that cannot be done without.
    #[error("this kernel's ublk driver lacks {0}; Linux 6.5 or newer is needed")]
    MissingFeature(String),
    /// A request to the driver failed.
    #[error("{operation} failed: {source}")]
    Device {
        /// What was being done.
        operation: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A member could not be read or written at start.
    #[error("{path}: {source}")]
    Member {
        /// Which member.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The wish cannot be met (layout, engine name, memory).
    #[error("{0}")]
    Unsupported(String),
}

/// Why an array did not stop. It goes on running.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The block device is open or mounted.
    #[error("the device is in use")]
    Busy,
    /// The clean superblock could not be written or the device not removed.
    #[error("{operation} failed: {source}")]
    Failed {
        /// What was being done.
        operation: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// What an operator wants of a running array. Devices are meant by their number.
#[derive(Debug)]
pub enum Change {
    /// The superblock that a device would get as a new spare. Changes nothing.
    Plan {
        /// Size of the device in sectors.
        sectors: u64,
        /// Random and unlike any other.
        device_uuid: [u8; 16],
    },
    /// A device with a superblock that was planned, and that is on it already: it becomes a spare, and a member where one
    /// is missing.
    Add(Box<MemberDevice>),
    /// Take members out of service.
    Fail {
        /// Which.
        numbers: Vec<u32>,
        /// Also if the array fails with them.
        force: bool,
        /// Only say whether it would be done.
        dry_run: bool,
    },
    /// Let a spare or a failed device go: it is closed when this is answered.
    Remove {
        /// Which.
        number: u32,
        /// Only say whether it would be done.
        dry_run: bool,
    },
    /// Compare parity with the data; put right what differs, if a policy is given.
    Scrub {
        /// Whom to believe.
        repair: Option<ScrubPolicy>,
    },
    /// End the scrub that runs, if one does.
    ScrubStop,
    /// Other limits for background walks.
    Limits(LimitsChange),
}

/// What a change gives.
#[derive(Debug)]
pub enum Changed {
    /// It is done.
    Done,
    /// To [`Change::Plan`].
    Planned(Box<Superblock>),
}

/// Why a change is not made. Nothing has been changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ChangeError {
    /// A sentence.
    pub message: String,
    /// What the operator can do; empty where there is nothing to say.
    pub remedy: String,
}

impl ChangeError {
    /// An error with its remedy.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> ChangeError {
        ChangeError {
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

/// A running array. Dropping it without `stop` must leave the members as a crash would.
pub trait RunningArray: Send + Sync {
    /// A snapshot; never waits for I/O.
    fn status(&self) -> ArrayStatus;

    /// Finishes the requests that it has and takes no more, in some seconds at most, for this process to end and another to go
    /// on. Where that cannot be, or not in time, nothing is lost either.
    fn hand_over(&self) {}

    /// Marks the members clean, removes the block device, ends the threads and closes every member before it
    /// returns. On an error the array goes on as before. Called once at a time; not called again after `Ok`.
    fn stop(&self) -> Result<(), StopError>;

    /// Makes a change, or says why not. Waits for the members as far as the change needs it.
    ///
    /// # Errors
    /// See [`ChangeError`].
    fn change(&self, change: Change) -> Result<Changed, ChangeError>;
}

/// Starts arrays. One per daemon.
pub trait ArrayStarter: Send + Sync {
    /// Starts one array. On an error every member has been closed and no device is left.
    fn start(
        &self,
        verdict: raid_core::assemble::AssembledArray,
        members: Vec<MemberDevice>,
        options: ArrayOptions,
    ) -> Result<Arc<dyn RunningArray>, StartError>;

    /// Names of the ublk features that a start would use, for the log line at start-up; an error says why none can.
    fn probe(&self) -> Result<Vec<String>, StartError>;

    /// Removes devices that a daemon that died has left behind, and tells what was done, a sentence each. Asked once,
    /// at start-up, in a thread of its own: it returns only when nobody uses these devices any longer.
    fn remove_leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}
