//! The pure core of raidd.
#![forbid(unsafe_code)]
