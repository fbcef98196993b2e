//! Checks that several keys share: whole numbers, sizes and times within bounds. The bounds are in the message.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::Deserializer;

use super::found::{Found, read};
use crate::units::{Bytes, Span, parse_size, parse_span};

/// A whole number within bounds.
pub(super) fn whole<'de, D: Deserializer<'de>>(
    d: D,
    within: RangeInclusive<u64>,
) -> Result<u64, D::Error> {
    read(d, |found| match found {
        Found::Number(n) if within.contains(&n) => Ok(n),
        other => Err(other.misfit(whole_numbers(&within))),
    })
}

/// What [`whole`] takes, in words.
pub(super) fn whole_numbers(within: &RangeInclusive<u64>) -> String {
    format!("a whole number from {} to {}", within.start(), within.end())
}

/// One of a few words, in any case.
pub(super) fn one_of<'de, D: Deserializer<'de>, T: Copy>(
    d: D,
    words: &[(&str, T)],
) -> Result<T, D::Error> {
    read(d, |found| {
        let same = |word: &str| matches!(&found, Found::Word(w) if w.eq_ignore_ascii_case(word));
        match words.iter().find(|(word, _)| same(word)) {
            Some((_, value)) => Ok(*value),
            None => {
                let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                Err(found.misfit(all.join(" or ")))
            }
        }
    })
}

/// A size with a check of its own. `wanted` says in words what fits.
pub(super) fn size<'de, D, T>(
    d: D,
    wanted: &str,
    check: impl FnOnce(u64) -> Result<T, String>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    read(d, |found| match found {
        Found::Number(n) => check(n),
        Found::Word(word) => {
            let bytes = parse_size(&word, 1).map_err(|e| e.to_string())?;
            check(bytes.0)
        }
        other => Err(other.misfit(wanted)),
    })
}

/// A size within bounds.
pub(super) fn size_within<'de, D: Deserializer<'de>>(
    d: D,
    within: RangeInclusive<u64>,
) -> Result<Bytes, D::Error> {
    let (low, high) = (Bytes(*within.start()), Bytes(*within.end()));
    let wanted = format!("a size from {low} to {high}");
    size(d, &wanted, |n| match within.contains(&n) {
        true => Ok(Bytes(n)),
        false => Err(format!("{} does not fit: write {wanted}", Bytes(n))),
    })
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        size(d, "a size such as 64K or 2MiB", |n| Ok(Bytes(n)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Span, D::Error> {
        read(d, |found| {
            let text = match &found {
                Found::Number(n) => n.to_string(),
                Found::Word(word) => word.clone(),
                other => return Err(other.misfit("a duration such as 200ms or 5s")),
            };
            parse_span(&text).map_err(|e| e.to_string())
        })
    }
}
