//! Where a lane stands. Written by its supervisor, read by `detail`; nothing on the I/O path looks at it.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// State of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneState {
    /// Being opened for the first time.
    Opening,
    /// Takes jobs.
    Active,
    /// Has failed or could not be opened; the CPU does the work, and the lane is tried again from time to time.
    Lost,
    /// Has failed, and it is not certain that the device has stopped: operations that it had in hand wait for good, and it
    /// is not tried again. The CPU does all other work.
    Stuck,
    /// Closed, with its array.
    Closed,
}

/// One lane in `detail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    /// Name of the device.
    pub device: String,
    /// State now.
    pub state: LaneState,
    /// Why it is lost or stuck.
    pub reason: Option<String>,
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// How often opening it has failed.
    #[serde(default)]
    pub failed_opens: u64,
}

/// The status of one lane, shared between its supervisor and whoever asks.
#[derive(Debug)]
pub struct Shared(Mutex<LaneStatus>);

impl Shared {
    /// A lane that is being opened.
    pub fn new(device: String) -> Shared {
        Shared(Mutex::new(LaneStatus {
            device,
            state: LaneState::Opening,
            reason: None,
            since: now(),
            failed_opens: 0,
        }))
    }

    /// A copy.
    pub fn read(&self) -> LaneStatus {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Notes a state. `since` moves only when the state changes.
    pub(super) fn set(&self, state: LaneState, reason: Option<String>) {
        let mut status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if status.state != state {
            status.since = now();
        }
        status.state = state;
        status.reason = reason;
    }

    /// Notes that opening it has failed.
    pub(super) fn not_opened(&self, reason: String) {
        self.set(LaneState::Lost, Some(reason));
        let mut status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        status.failed_opens += 1;
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}
