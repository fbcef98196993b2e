//! A deterministic simulator around the real data path.
//!
//! Real: every [`QueueCore`](raid_core::path::queue::QueueCore), the
//! [`Manager`](raid_core::path::manager::Manager), the owner words. Simulated: members, copies, parity jobs, fences,
//! mailboxes, superblock writes, clients, the clock. One seed decides everything, and a seed together with a commit is a
//! complete bug report. The fault model is described in `docs/failure-model.md`.
//!
//! A simulated sector has 8 bytes instead of 512; buffers are scaled by the same factor.

pub mod bitmap;
mod bitmap_planted;
pub mod check;
pub mod crash;
pub mod disk;
pub mod lane;
pub mod log;
mod losses;
pub mod oracle;
mod planted;
mod rig;
pub mod rng;
pub mod run;
mod scenarios;
mod scrub;
pub mod setup;
pub mod step;
pub mod world;
