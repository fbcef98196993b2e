//! Lanes to a GPU as the daemon sees them: which device serves which engine, what a job may cost there, and what becomes of
//! a lane that fails. The engine's own end, which hands jobs over, is in [`crate::engine`].
//!
//! | module | what it owns |
//! |---|---|
//! | `cost` | the decision between this thread and the lane: a pure function |
//! | `supervisor` | a thread per lane that opens, closes and re-opens it |
//! | `status` | where a lane stands, for `detail` |
//! | `spread` | which engine gets which of several devices |
//! | `gpu` | the devices there are, by the configuration |
//! | `choice` | the `gpu:` key |
//!
//! Without a lane nothing here runs.

pub mod choice;
pub mod cost;
pub mod gpu;
pub mod spread;
pub mod status;
pub mod supervisor;

use std::sync::Arc;

use parity_kernels::offload::Opener;

use cost::{CpuCost, Policy};
use status::Shared;
use supervisor::Pauses;

/// What an engine needs in order to have a lane.
#[derive(Clone)]
pub struct LanePlan {
    /// The device.
    pub opener: Arc<dyn Opener>,
    /// What jobs cost on the engine's own thread.
    pub cpu: Arc<dyn CpuCost>,
    /// How to choose.
    pub policy: Policy,
    /// Where the lane says how it is.
    pub shared: Arc<Shared>,
    /// How often to try again.
    pub pauses: Pauses,
}

impl LanePlan {
    /// A lane to that device, not opened yet.
    pub fn new(opener: Arc<dyn Opener>, cpu: Arc<dyn CpuCost>, policy: Policy) -> LanePlan {
        let shared = Arc::new(Shared::new(opener.name()));
        LanePlan {
            opener,
            cpu,
            policy,
            shared,
            pauses: Pauses::default(),
        }
    }
}
