//! Checks that several keys share: whole numbers and sizes within bounds.

use serde::de::Deserializer;

use crate::units::{Bytes, Scalar, scalar};

pub(super) fn in_range(
    name: &str,
    value: u64,
    low: u64,
    high: u64,
    show: impl Fn(u64) -> String,
) -> Result<u64, String> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(format!(
        "{} is out of range: {name} is from {} to {}",
        show(value),
        show(low),
        show(high)
    ))
}

pub(super) fn plain(n: u64) -> String {
    n.to_string()
}

pub(super) fn size(n: u64) -> String {
    Bytes(n).to_string()
}

pub(super) fn number<'de, D, T>(
    d: D,
    check: impl Fn(u64) -> Result<T, String>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    scalar(d, "a number", |s| match s {
        Scalar::Number(n) => Some(check(n)),
        Scalar::Word(_) => None,
    })
}
