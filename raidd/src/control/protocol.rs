//! What travels over the control socket: one JSON object a line, a request and then its response. Plain data with
//! serde; the shapes are the stable part of the program and are also what `--output json` prints.

use std::path::PathBuf;

use raid_core::superblock::uuid_text;
use serde::{Deserialize, Serialize};

pub use super::member_protocol::{
    AddRequest, MembersReply, MembersRequest, ScrubAction, ScrubRequest, SetRequest,
};
use crate::array_api::{
    ArrayStatus, BitmapStatus, GpuStatus, Health, MemberState, MemberStatus, ParityChoice,
    ScrubReport, SweepKind, SweepLimits,
};

/// Version of the protocol. A daemon answers other versions with an error that names its own.
pub const PROTOCOL: u32 = 1;
/// Longest line either side accepts, in bytes. The longest sensible request (1024 long paths) is far below.
pub const MAX_LINE: usize = 256 << 10;

/// One line from a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Repeated in the response.
    #[serde(default)]
    pub id: u64,
    /// What to do.
    pub command: Command,
}

/// The verbs that need the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase")]
pub enum Command {
    /// Are you there, and which version are you?
    Version,
    /// Make an array and start it.
    Create(CreateRequest),
    /// Start arrays that exist.
    Assemble(AssembleRequest),
    /// Stop one array.
    Stop(StopRequest),
    /// All running arrays.
    List,
    /// One running array.
    Detail(DetailRequest),
    /// Take members out of service.
    Fail(MembersRequest),
    /// Let failed devices and spares go.
    Remove(MembersRequest),
    /// Make devices spares of an array, and members where some are missing.
    Add(AddRequest),
    /// Begin or end a comparison of parity and data.
    Scrub(ScrubRequest),
    /// Change what may be changed while an array runs.
    Set(SetRequest),
}

impl Command {
    /// Whether it changes anything; such commands run one at a time.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Command::Create(_)
                | Command::Assemble(_)
                | Command::Stop(_)
                | Command::Fail(_)
                | Command::Remove(_)
                | Command::Add(_)
                | Command::Scrub(_)
                | Command::Set(_)
        )
    }
}

/// Arguments of `create`. Members are absolute paths, ranges already expanded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// 0, 5 or 6.
    pub level: u8,
    /// Members in slot order.
    pub members: Vec<PathBuf>,
    /// Name; the daemon picks `rN` without one.
    #[serde(default)]
    pub name: Option<String>,
    /// Chunk in bytes; the configured default without one.
    #[serde(default)]
    pub chunk_bytes: Option<u64>,
    /// MD's layout name; the configured default without one.
    #[serde(default)]
    pub layout: Option<String>,
    /// Trust the parity as it is.
    #[serde(default)]
    pub assume_clean: bool,
    /// The write-intent bitmap; internal for levels with parity without a wish.
    #[serde(default)]
    pub bitmap: Option<BitmapKind>,
    /// Bytes of each member for one bit; mdadm's choice without a wish.
    #[serde(default)]
    pub bitmap_chunk_bytes: Option<u64>,
    /// Overwrite what is on the members.
    #[serde(default)]
    pub force: bool,
    /// Go on in spite of warnings.
    #[serde(default)]
    pub accept_warnings: bool,
    /// Check everything, write nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Where an array keeps its write-intent bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum BitmapKind {
    /// On every member, beside the superblock.
    Internal,
    /// Nowhere: after a crash all of the array is resynced.
    None,
}

/// Arguments of `assemble`. Nothing given means scan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssembleRequest {
    /// Only these devices.
    #[serde(default)]
    pub members: Vec<PathBuf>,
    /// Only the array of this name.
    #[serde(default)]
    pub name: Option<String>,
    /// Only the array of this uuid, in any of the usual spellings.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Write nothing, not even superblocks.
    #[serde(default)]
    pub read_only: bool,
    /// Start even though members are stale or parity is in doubt.
    #[serde(default)]
    pub force: bool,
    /// Say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Arguments of `stop`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Name, uuid or device path.
    pub array: String,
    /// Give up what a dead raidd has left of it: its users get errors.
    #[serde(default)]
    pub abandon: bool,
    /// Also give the members back to mdadm and udev.
    #[serde(default)]
    pub release: bool,
    /// Say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Arguments of `detail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetailRequest {
    /// Name, uuid or device path.
    pub array: String,
}

/// One line from the daemon: exactly one of `ok` and `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The request's.
    pub id: u64,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ok: Option<Reply>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<Refusal>,
}

/// What a command answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "lowercase")]
pub enum Reply {
    /// To `version`.
    Version {
        /// The daemon's version.
        version: String,
        /// Its process id.
        pid: u32,
    },
    /// To `create`.
    Created(CreateReply),
    /// To `assemble`.
    Assembled {
        /// One entry per array found.
        arrays: Vec<AssembleReply>,
    },
    /// To `stop`.
    Stopped(StopReply),
    /// To `list`.
    List {
        /// By name.
        arrays: Vec<ArrayView>,
    },
    /// To `detail`, `scrub` and `set`.
    Detail(Box<DetailView>),
    /// To `fail`, `remove` and `add`.
    Members(MembersReply),
}

/// Whether a command changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It did.
    Changed,
    /// It was so already.
    Unchanged,
    /// It would have, without `--dry-run`.
    Planned,
    /// It was not done; the array's problems say why.
    Refused,
}

/// Something wrong, or worth knowing, about one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A member path or an array name.
    pub subject: String,
    /// What is the matter.
    pub message: String,
    /// What to do about it; empty where there is nothing to say.
    #[serde(default)]
    pub remedy: String,
}

/// Why a command was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Which kind, for programs.
    pub kind: RefusalKind,
    /// One sentence.
    pub message: String,
    /// Every single reason.
    #[serde(default)]
    pub problems: Vec<Problem>,
}

/// Kinds of refusal. New ones may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The line was no request of this protocol.
    BadRequest,
    /// The peer may not use the socket.
    Forbidden,
    /// Too many connections.
    TooMany,
    /// No array or device of that name.
    NotFound,
    /// Preflight found problems; nothing was written.
    Preflight,
    /// Only warnings stand in the way.
    NeedsConfirmation,
    /// The array is in use.
    Busy,
    /// Tried and failed; whatever was written was taken back.
    Failed,
}

/// One member in `create`, `list` and `detail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Role number, null for a spare.
    pub slot: Option<u16>,
    /// Device, null when missing.
    pub path: Option<PathBuf>,
    /// MD's device number, null when missing.
    #[serde(default)]
    pub number: Option<u32>,
    /// in_sync, rebuilding, spare, faulty, missing.
    pub state: MemberState,
}

impl From<&MemberStatus> for MemberView {
    fn from(m: &MemberStatus) -> MemberView {
        MemberView {
            slot: m.slot,
            path: m.path.clone(),
            number: m.number,
            state: m.state,
        }
    }
}

/// What every verb shows of an array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayView {
    /// Name without the host part.
    pub name: String,
    /// mdadm's spelling: four groups of eight digits.
    pub uuid: String,
    /// RAID level.
    pub level: u8,
    /// Chunk in bytes.
    pub chunk_bytes: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Block device, null when not running.
    pub device: Option<PathBuf>,
    /// By slot.
    pub members: Vec<MemberView>,
    /// mdadm's words, comma separated.
    pub state: String,
}

/// Answer to `create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateReply {
    /// The array.
    #[serde(flatten)]
    pub array: ArrayView,
    /// Changed or Planned.
    pub outcome: Outcome,
    /// What the operator should know.
    pub warnings: Vec<Problem>,
}

/// Answer to `assemble`, for one array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssembleReply {
    /// The array, as far as known.
    #[serde(flatten)]
    pub array: ArrayView,
    /// What was done.
    pub outcome: Outcome,
    /// Reasons of a refusal, or remarks.
    pub problems: Vec<Problem>,
}

/// Answer to `stop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReply {
    /// Name of the array.
    pub name: String,
    /// Its uuid.
    pub uuid: String,
    /// Changed or Planned.
    pub outcome: Outcome,
    /// Whether the members were given back to mdadm.
    pub released: bool,
    /// What the operator should know.
    #[serde(default)]
    pub problems: Vec<Problem>,
}

/// A background walk in `detail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepView {
    /// resync, recover, check or repair.
    pub kind: SweepKind,
    /// 0 to 100.
    pub percent: f64,
    /// Bytes of each member done.
    pub done_bytes: u64,
    /// Bytes of each member in all.
    pub total_bytes: u64,
    /// Recent rate.
    pub rate_bytes_per_s: u64,
    /// Estimate; null when the rate is unknown.
    pub eta_seconds: Option<u64>,
}

/// Answer to `detail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DetailView {
    /// What every verb shows.
    #[serde(flatten)]
    pub array: ArrayView,
    /// MD's name of the layout.
    pub layout: String,
    /// MD's number of the layout.
    pub layout_number: u32,
    /// Used bytes per member, 0 for RAID 0.
    pub member_bytes: u64,
    /// Logical block size of the device.
    pub logical_block: u32,
    /// Superblock events.
    pub events: u64,
    /// Members missing or faulty.
    pub degraded: u16,
    /// optimal, degraded or failed.
    pub health: Health,
    /// Whether the members are marked clean.
    pub clean: bool,
    /// Started read only.
    pub read_only: bool,
    /// Background walk, null when none.
    pub resync: Option<SweepView>,
    /// Limits of background walks.
    #[serde(default)]
    pub limits: SweepLimits,
    /// The last scrubs since the array was started, the newest last.
    #[serde(default)]
    pub scrubs: Vec<ScrubReport>,
    /// The write-intent bitmap, null when the array has none.
    #[serde(default)]
    pub bitmap: Option<BitmapStatus>,
    /// Parity engine in use; several with a plus between.
    pub parity_engine: String,
    /// Which engine does what.
    #[serde(default)]
    pub parity: Vec<ParityChoice>,
    /// GPUs that compute parity too.
    #[serde(default)]
    pub gpu: GpuStatus,
    /// ublk features in use.
    pub ublk_features: Vec<String>,
    /// Counters by name.
    pub counters: std::collections::BTreeMap<String, u64>,
}

/// mdadm's "State :" words.
pub fn state_words(status: &ArrayStatus) -> String {
    let mut words = vec![if status.health == Health::Failed {
        "FAILED"
    } else if status.clean {
        "clean"
    } else {
        "active"
    }];
    if status.health == Health::Degraded {
        words.push("degraded");
    }
    if let Some(sweep) = &status.sweep {
        words.push(match sweep.kind {
            SweepKind::Resync | SweepKind::Repair => "resyncing",
            SweepKind::Recover => "recovering",
            SweepKind::Check => "checking",
        });
    }
    if status.read_only {
        words.push("readonly");
    }
    words.join(", ")
}

impl From<&ArrayStatus> for ArrayView {
    fn from(s: &ArrayStatus) -> ArrayView {
        ArrayView {
            name: s.name.clone(),
            uuid: uuid_text(&s.uuid),
            level: s.level,
            chunk_bytes: s.chunk_bytes,
            size_bytes: s.size_bytes,
            device: Some(s.device.clone()),
            members: s.members.iter().map(MemberView::from).collect(),
            state: state_words(s),
        }
    }
}

impl DetailView {
    /// `layout` is MD's name of the layout number in `s`.
    pub fn new(s: &ArrayStatus, layout: String) -> DetailView {
        let lost = |state| {
            matches!(
                state,
                MemberState::Missing | MemberState::Faulty | MemberState::Rebuilding
            )
        };
        // A slot whose device failed is listed once; a faulty device has no slot of its own any more.
        let degraded = s
            .members
            .iter()
            .filter(|m| m.slot.is_some() && lost(m.state))
            .count() as u16;
        DetailView {
            array: ArrayView::from(s),
            layout,
            layout_number: s.layout,
            member_bytes: s.member_bytes,
            logical_block: s.logical_block,
            events: s.events,
            degraded,
            health: s.health,
            clean: s.clean,
            read_only: s.read_only,
            resync: s.sweep.map(|w| SweepView {
                kind: w.kind,
                percent: if w.total_bytes == 0 {
                    100.0
                } else {
                    (w.done_bytes as f64 * 1000.0 / w.total_bytes as f64).floor() / 10.0
                },
                done_bytes: w.done_bytes,
                total_bytes: w.total_bytes,
                rate_bytes_per_s: w.rate_bytes_per_s,
                eta_seconds: w
                    .total_bytes
                    .saturating_sub(w.done_bytes)
                    .checked_div(w.rate_bytes_per_s),
            }),
            limits: s.limits,
            scrubs: s.scrubs.clone(),
            bitmap: s.bitmap,
            parity_engine: s.parity_engine.clone(),
            parity: s.parity.clone(),
            gpu: s.gpu.clone(),
            ublk_features: s.ublk_features.clone(),
            counters: s.counters.clone(),
        }
    }
}

impl Response {
    /// An answer.
    pub fn ok(id: u64, reply: Reply) -> Response {
        Response {
            protocol: PROTOCOL,
            id,
            ok: Some(reply),
            error: None,
        }
    }
    /// A refusal.
    pub fn refused(id: u64, refusal: Refusal) -> Response {
        Response {
            protocol: PROTOCOL,
            id,
            ok: None,
            error: Some(refusal),
        }
    }
}

impl Refusal {
    /// A refusal with nothing but a sentence.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Refusal {
        Refusal {
            kind,
            message: message.into(),
            problems: Vec::new(),
        }
    }
}

impl Problem {
    /// A problem with its remedy.
    pub fn new(
        subject: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problem {
        Problem {
            subject: subject.into(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.subject, self.message)?;
        if self.remedy.is_empty() {
            Ok(())
        } else {
            write!(f, "; {}", self.remedy)
        }
    }
}

/// Reads one request line; the refusal is ready to be sent.
pub fn read_request(line: &[u8]) -> Result<Request, (u64, Refusal)> {
    let bad = |id, message: String| (id, Refusal::new(RefusalKind::BadRequest, message));
    // Version and id first, so that another version's request gets a sentence and not a parse error.
    #[derive(Deserialize)]
    struct Head {
        protocol: u32,
        #[serde(default)]
        id: u64,
    }
    let head: Head = serde_json::from_slice(line).map_err(|e| {
        bad(
            0,
            format!("this is no request: {e}; send one JSON object a line"),
        )
    })?;
    if head.protocol != PROTOCOL {
        let message = format!(
            "this daemon speaks protocol {PROTOCOL}, the request is of protocol {}; use raidctl and raidd of one version",
            head.protocol
        );
        return Err(bad(head.id, message));
    }
    serde_json::from_slice(line)
        .map_err(|e| bad(head.id, format!("this request cannot be read: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(command: Command) {
        let request = Request {
            protocol: PROTOCOL,
            id: 7,
            command,
        };
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(read_request(line.as_bytes()).unwrap(), request);
    }

    #[test]
    fn requests_round_trip() {
        round_trip(Command::Version);
        round_trip(Command::List);
        round_trip(Command::Detail(DetailRequest { array: "r0".into() }));
        round_trip(Command::Stop(StopRequest {
            array: "/dev/ublkb0".into(),
            abandon: false,
            release: true,
            dry_run: false,
        }));
        round_trip(Command::Assemble(AssembleRequest {
            uuid: Some("x".into()),
            ..Default::default()
        }));
        round_trip(Command::Create(CreateRequest {
            level: 6,
            members: vec!["/dev/nvme0n1".into()],
            name: Some("data".into()),
            chunk_bytes: Some(65536),
            layout: None,
            assume_clean: false,
            bitmap: Some(BitmapKind::None),
            bitmap_chunk_bytes: None,
            force: true,
            accept_warnings: false,
            dry_run: true,
        }));
    }

    #[test]
    fn other_lines_are_refused_with_a_sentence() {
        let refused = |line: &str| read_request(line.as_bytes()).unwrap_err();
        assert_eq!(refused("hello").0, 0);
        let (id, r) = refused(r#"{"protocol":9,"id":3,"command":{"verb":"levitate"}}"#);
        assert_eq!((id, r.kind), (3, RefusalKind::BadRequest));
        assert!(
            r.message.contains("protocol 1") && r.message.contains("protocol 9"),
            "{}",
            r.message
        );
        let (id, r) = refused(r#"{"protocol":1,"id":4,"command":{"verb":"levitate"}}"#);
        assert_eq!(id, 4);
        assert!(r.message.contains("levitate"), "{}", r.message);
        let (_, r) = refused(r#"{"protocol":1,"command":{"verb":"stop","array":"a","frce":true}}"#);
        assert!(r.message.contains("frce"), "{}", r.message);
    }
}
