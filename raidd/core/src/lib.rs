//! The pure core of raidd.
#![forbid(unsafe_code)]

pub mod assemble;
pub mod bitmap;
pub mod create;
pub mod foreign;
pub mod geometry;
pub mod path;
pub mod refusal;
pub mod spare;
pub mod superblock;
pub mod units;
