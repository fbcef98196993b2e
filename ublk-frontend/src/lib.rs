//! A ublk block device as a source of requests: fetch, copy bytes in or out, commit.
//!
//! What it owns: the control plane of one device ([`Device`]), one object per hardware queue ([`Queue`]) and the
//! translation between kernel words and ours ([`convert`]). The ring belongs to the engine: a queue only pushes its
//! commands into it and recognises its completions, so that one thread with one ring serves both the ublk commands
//! and the member I/O. [`Frontend`] is what an engine is written against; [`fake`] implements it in memory.
//!
//! What it costs: after [`Device::queue`] nothing here allocates. A fetched request costs one completion; a commit
//! costs one submission entry (it also arms the next fetch); the bytes of a request cost one `preadv` or `pwritev`
//! per [`Frontend::copy_in`] or [`Frontend::copy_out`] of up to 1024 spans.
//!
//! Key space: in the ring's `user_data`, values with bit 63 set belong to the frontend ([`UBLK_KEY`]); all others
//! belong to the engine.

pub mod control;
pub mod convert;
pub mod device;
mod error;
pub mod existing;
pub mod fake;
pub mod features;
pub mod frontend;
pub mod params;
pub mod queue;

pub use convert::{Op, Request, RequestError};
pub use device::Device;
pub use error::{StopError, UblkError};
pub use fake::{MemClient, MemFrontend};
pub use features::Features;
pub use frontend::{Event, Fetched, Frontend, UBLK_KEY};
pub use params::{DeviceSpec, DiscardLimits, SegmentLimits};
pub use queue::Queue;
