//! Sizes and durations as people write them: `64K`, `2MiB`, `200ms`. Pure; used by the config file, the command
//! line and the tables. Suffixes are powers of 1024, as mdadm takes them.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A span of time, with millisecond resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Why a size or a duration could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a number followed by a known suffix.
    #[error("'{text}' is not a size: write bytes or a number with K, M, G or T, as in 64K or 2MiB")]
    Size {
        /// What was written.
        text: String,
    },
    /// Not a number followed by a known suffix.
    #[error("'{text}' is not a duration: write a number with ms, s, min or h, as in 200ms or 5s")]
    Duration {
        /// What was written.
        text: String,
    },
    /// The number does not fit.
    #[error("'{text}' is too large")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

/// Splits `12.5 KiB` into number and suffix; `None` when there is no number.
fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    if end == 0 {
        return None;
    }
    Some((&text[..end], text[end..].trim()))
}

/// `number * scale`, exact for whole numbers and for fractions such as `1.5` that give whole results.
fn scaled(number: &str, scale: u64) -> Option<Result<u64, ()>> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = match whole.parse() {
        Ok(n) => n,
        Err(_) if !whole.is_empty() && whole.bytes().all(|b| b.is_ascii_digit()) => {
            return Some(Err(()));
        }
        Err(_) => return None,
    };
    let Some(mut total) = whole.checked_mul(scale) else {
        return Some(Err(()));
    };
    if number.contains('.') {
        if fraction.is_empty()
            || fraction.len() > 9
            || !fraction.bytes().all(|b| b.is_ascii_digit())
        {
            return None;
        }
        let numerator: u128 = fraction.parse().ok()?;
        let denominator = 10u128.pow(fraction.len() as u32);
        let product = numerator * u128::from(scale);
        if !product.is_multiple_of(denominator) {
            return None;
        }
        total = match total.checked_add((product / denominator) as u64) {
            Some(t) => t,
            None => return Some(Err(())),
        };
    }
    Some(Ok(total))
}

/// Reads a size. `bare` is what a number without a suffix counts (1 in the config file, 1024 for `--chunk` as in
/// mdadm).
pub fn parse_size(text: &str, bare: u64) -> Result<Bytes, UnitError> {
    let bad = || UnitError::Size {
        text: text.to_string(),
    };
    let (number, suffix) = split(text).ok_or_else(bad)?;
    let scale = match suffix.to_ascii_lowercase().as_str() {
        "" => bare,
        "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1u64 << 40,
        "s" if bare == 1024 => 512,
        _ => return Err(bad()),
    };
    match scaled(number, scale) {
        Some(Ok(n)) => Ok(Bytes(n)),
        Some(Err(())) => Err(UnitError::TooLarge {
            text: text.to_string(),
        }),
        None => Err(bad()),
    }
}

/// Reads a duration; the suffix is required except for 0.
pub fn parse_span(text: &str) -> Result<Span, UnitError> {
    let bad = || UnitError::Duration {
        text: text.to_string(),
    };
    let (number, suffix) = split(text).ok_or_else(bad)?;
    let scale = match suffix {
        "ms" => 1,
        "s" | "sec" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "" if number == "0" => 1,
        _ => return Err(bad()),
    };
    match scaled(number, scale) {
        Some(Ok(ms)) => Ok(Span(Duration::from_millis(ms))),
        Some(Err(())) => Err(UnitError::TooLarge {
            text: text.to_string(),
        }),
        None => Err(bad()),
    }
}

/// The largest unit that gives a whole number, else one decimal: `64 KiB`, `7.3 TiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 5] = [
            ("PiB", 50),
            ("TiB", 40),
            ("GiB", 30),
            ("MiB", 20),
            ("KiB", 10),
        ];
        for (unit, shift) in UNITS {
            if self.0 >> shift == 0 {
                continue;
            }
            if self.0.trailing_zeros() >= shift {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
            let tenths = (u128::from(self.0) * 10) >> shift;
            return write!(f, "{}.{} {unit}", tenths / 10, tenths % 10);
        }
        write!(f, "{} B", self.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        if ms.is_multiple_of(1000) {
            write!(f, "{}s", ms / 1000)
        } else {
            write!(f, "{ms}ms")
        }
    }
}

/// Hours, minutes and seconds for an estimate: `2h05m`, `3m20s`, `12s`.
pub fn human_seconds(seconds: u64) -> String {
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (h, m) {
        (0, 0) => format!("{s}s"),
        (0, _) => format!("{m}m{s:02}s"),
        _ => format!("{h}h{m:02}m"),
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_suffixes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("64KiB", 65536),
            ("1.5M", 1_572_864),
            ("2 MiB", 2 << 20),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_size(text, 1), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!(parse_size("64", 1024), Ok(Bytes(65536)));
        for text in ["", "K", "64Q", "-1", "1.K", "1.0001K", "64K4", "1..5M"] {
            assert!(
                matches!(parse_size(text, 1), Err(UnitError::Size { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            parse_size("99999999999T", 1),
            Err(UnitError::TooLarge { .. })
        ));
        assert!(matches!(
            parse_size("99999999999999999999999", 1),
            Err(UnitError::TooLarge { .. })
        ));
    }

    #[test]
    fn durations_need_a_suffix() {
        assert_eq!(parse_span("200ms"), Ok(Span(Duration::from_millis(200))));
        assert_eq!(parse_span("1.5s"), Ok(Span(Duration::from_millis(1500))));
        assert_eq!(parse_span("2min"), Ok(Span(Duration::from_secs(120))));
        assert_eq!(parse_span("0"), Ok(Span(Duration::ZERO)));
        for text in ["5", "ms", "5 days", "s5"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shown_in_the_largest_unit() {
        assert_eq!(Bytes(65536).to_string(), "64 KiB");
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes(1_000_204_886_016).to_string(), "931.5 GiB");
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(human_seconds(7500), "2h05m");
        assert_eq!(human_seconds(200), "3m20s");
    }
}
