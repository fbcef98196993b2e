//! raidctl: arguments, what each verb does on this side of the socket, and how answers are printed.

pub mod args;
pub mod bench;
mod bitmap;
pub mod doctor;
mod examine;
pub mod exit;
mod member_args;
mod members;
mod metrics;
mod scrub;
pub mod show;
mod status;
pub mod verbs;
mod zero;
