//! raidctl: arguments, what each verb does on this side of the socket, and how answers are printed.

pub mod args;
pub mod bench;
mod bitmap;
pub mod doctor;
mod examine;
pub mod exit;
mod metrics;
pub mod show;
pub mod verbs;
mod zero;
