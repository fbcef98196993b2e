//! What stands beside a superblock: the bad-block log and the bitmap's header; and uuids as text.
//! Owns their decoding; costs a pass over the bytes given.

use super::bytes;

/// A range that the bad-block log lists, in absolute sectors of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange {
    pub sector: u64,
    pub sectors: u64,
}

/// Reads a bad-block log: 64-bit entries up to one of all ones. `shift` is the block's `bblog_shift`. An
/// entry of length 0 is skipped, as Linux did before it made it an error.
pub fn decode_bad_blocks(log: &[u8], shift: u8) -> Vec<BadRange> {
    let shift = u32::from(shift).min(53);
    log.chunks_exact(8)
        .map(|entry| u64::from_le_bytes(bytes(entry)))
        .take_while(|&entry| entry != u64::MAX)
        .map(|entry| BadRange {
            sector: (entry >> 10).checked_shl(shift).unwrap_or(u64::MAX),
            sectors: (entry & 0x3ff) << shift,
        })
        .filter(|range| range.sectors != 0)
        .collect()
}

/// Version of a write-intent bitmap given its first bytes: 3 and 4 plain, 5 clustered, 6 lockless; `None`
/// when there is no bitmap.
pub fn bitmap_version(header: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    (word(0)? == 0x6d74_6962).then(|| word(4))?
}

/// A uuid as mdadm writes it: four groups of eight digits.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let groups = uuid
        .chunks_exact(4)
        .map(|g| format!("{:02x}{:02x}{:02x}{:02x}", g[0], g[1], g[2], g[3]));
    groups.collect::<Vec<_>>().join(":")
}

/// Reads a uuid: 32 hexadecimal digits, with `:` or `-` anywhere between them.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .trim()
        .bytes()
        .filter(|byte| !matches!(byte, b':' | b'-'))
        .map(|byte| (byte as char).to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()?;
    if digits.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(uuid)
}
