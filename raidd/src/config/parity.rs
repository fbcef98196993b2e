//! The keys of `defaults:` that say who computes parity: engines of the CPU, and GPUs.

use serde::Deserialize;
use serde::de::Deserializer;

use super::value::{in_range, number, plain};

pub(super) fn blocks<'de, D: Deserializer<'de>>(d: D) -> Result<u16, D::Error> {
    number(d, |n| {
        in_range("gpu_blocks", n, 1, 1024, plain).map(|n| n as u16)
    })
}

pub(super) fn slack<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    number(d, |n| {
        in_range("gpu_slack", n, 1, 1000, plain).map(|n| n as u32)
    })
}

pub(super) fn engine<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(d)?;
    Ok((name != "auto").then_some(name))
}
