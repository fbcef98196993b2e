//! Units and small arithmetic: sectors, rounding, sizes as people write them.
//! Costs nothing at run time; only `parse_bytes` and `human_bytes` touch strings.

/// Bytes of a sector. A sector is 512 bytes everywhere in raidd, whatever a member's logical block is.
pub const SECTOR_BYTES: u64 = 512;

/// Sectors of a MD metadata page (4 KiB).
pub const PAGE_SECTORS: u64 = 8;

/// `value` rounded down to a multiple of `unit` (any unit but 0).
#[inline]
pub const fn round_down(value: u64, unit: u64) -> u64 {
    value - value % unit
}

/// `value` rounded up to a multiple of `unit` (any unit but 0); `None` when that does not fit.
#[inline]
pub const fn round_up(value: u64, unit: u64) -> Option<u64> {
    match value % unit {
        0 => Some(value),
        rest => value.checked_add(unit - rest),
    }
}

/// Reads a size in bytes: digits, then nothing or one of `K M G T P` (powers of 1024), then
/// an optional `iB` or `B`. Upper and lower case are the same. `None` for anything else or for an overflow.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().ok()?;
    let suffix = text[digits..].trim_start().to_ascii_lowercase();
    let suffix = suffix
        .strip_suffix("ib")
        .filter(|rest| !rest.is_empty())
        .or_else(|| suffix.strip_suffix('b'))
        .unwrap_or(&suffix);
    let shift = match suffix {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// A size for people: the largest binary unit that leaves at least 1, two digits after the point
/// when it is not whole (`64 KiB`, `1.50 TiB`).
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = match bytes {
        0 => 0,
        _ => (bytes.ilog2() / 10) as usize,
    };
    let unit = 1u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        return format!("{} {}", bytes / unit, UNITS[power]);
    }
    format!("{:.2} {}", bytes as f64 / unit as f64, UNITS[power])
}

/// `human_bytes` of a number of sectors.
pub fn human_sectors(sectors: u64) -> String {
    human_bytes(sectors.saturating_mul(SECTOR_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64K", 65536),
            ("64k", 65536),
            ("64KiB", 65536),
            ("64 kb", 65536),
            ("1M", 1 << 20),
            ("3T", 3 << 40),
            ("7B", 7),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "1X",
            "-1",
            "1.5K",
            "64Ki",
            "ib",
            "1iB",
            "20000P",
            "99999999999999999999",
        ] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(65536), "64 KiB");
        assert_eq!(human_bytes(3 << 39), "1.50 TiB");
        assert_eq!(human_bytes(u64::MAX), "16.00 EiB");
    }

    #[test]
    fn rounding() {
        assert_eq!(round_down(1000, 24), 984);
        assert_eq!(round_up(984, 24), Some(984));
        assert_eq!(round_up(985, 24), Some(1008));
        assert_eq!(round_up(u64::MAX, 8), None);
    }
}
