//! Requests and answers about the members of running arrays, a part of the protocol. Plain data with serde.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::protocol::{MemberView, Outcome, Problem};
use crate::array_api::ScrubPolicy;

/// Arguments of `fail` and `remove`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MembersRequest {
    /// Name, uuid or device path.
    pub array: String,
    /// Absolute device paths, or `failed` (also `faulty`) and `detached` for all that are so.
    pub members: Vec<String>,
    /// `fail`: also if the array fails with them.
    #[serde(default)]
    pub force: bool,
    /// `remove`: spares only.
    #[serde(default)]
    pub spares_only: bool,
    /// Say what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// Arguments of `add`. Members are absolute paths, ranges already expanded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddRequest {
    /// Name, uuid or device path.
    pub array: String,
    /// The new members.
    pub members: Vec<PathBuf>,
    /// They were members of this array before.
    #[serde(default)]
    pub again: bool,
    /// Overwrite what is on them.
    #[serde(default)]
    pub force: bool,
    /// Check everything, write nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// Answer to `fail`, `remove` and `add`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MembersReply {
    /// Name of the array.
    pub name: String,
    /// Its uuid.
    pub uuid: String,
    /// Changed, Unchanged or Planned.
    pub outcome: Outcome,
    /// The devices that were meant, as they are now; those that were removed as they were.
    pub members: Vec<MemberView>,
    /// What the operator should know.
    pub problems: Vec<Problem>,
}

/// What `scrub` is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubAction {
    /// Begin one.
    Start,
    /// End the one that runs.
    Stop,
}

/// Arguments of `scrub`. Answered as `detail` is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubRequest {
    /// Name, uuid or device path.
    pub array: String,
    /// What to do.
    pub action: ScrubAction,
    /// Put right what differs.
    #[serde(default)]
    pub repair: bool,
    /// Whom to believe then; locate without one.
    #[serde(default)]
    pub policy: Option<ScrubPolicy>,
}

/// Arguments of `set`. Answered as `detail` is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetRequest {
    /// Name, uuid or device path.
    pub array: String,
    /// `key=value`, each.
    pub settings: Vec<String>,
}
