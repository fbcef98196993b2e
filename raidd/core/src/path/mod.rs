//! The data path as pure state machines.
//!
//! One [`queue::QueueCore`] per ublk queue turns requests into member I/O, copies and parity jobs; one
//! [`manager::Manager`] per array owns what all queues share in the long run: member states, clean/dirty, the sweep. They
//! speak only through [`types::Event`], [`types::Action`] and [`types::Msg`]; nothing here does I/O, reads a clock or
//! touches a byte of data, so a simulator can run any number of queues from a seed.
//!
//! The unit of parity work is the **band**: a row range of one stripe, at most [`types::BAND_SECTORS`] high. Parity is
//! computed column by column, so bands of one stripe are independent of each other. A chunk of 64 KiB or less has one
//! band per stripe. Bands are numbered so that consecutive bands are adjacent on every member.

pub mod bands;
pub mod direct;
pub mod intent;
pub mod intent_manager;
pub mod intent_queue;
pub mod jobs;
pub mod layout;
pub mod manager;
pub mod ops;
pub mod owners;
pub mod plan;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod queue;
pub mod recover;
pub mod scrub;
pub mod slab;
pub mod sweep;
pub mod types;
pub mod view;
mod views;
pub mod write;
