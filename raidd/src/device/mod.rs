//! What Linux knows about block devices: sysfs, mounts, swap, holders, openers, and exclusive opening. Used by
//! preflight, discovery and takeover; reads small files, never on the I/O path.

pub mod aligned;
pub mod node;
pub mod open;
pub mod usage;
