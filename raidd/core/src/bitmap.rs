//! MD's write-intent bitmap, internal format version 4: one bit for each chunk of the members' data.
//!
//! Owns the header (`header`), its place and size on a member and the chunk size rule (`place`), and the set of
//! dirty chunks with its image on disk (`map`). Pure: it reads and writes nothing. A header costs 256 bytes and
//! one pass over them; a map costs one bit per chunk in memory, `mark` and `is_dirty` one step per 64 chunks.
//!
//! **Unit.** A bit stands for sectors of each member's data area, not of the array: for RAID 4, 5 and 6 Linux
//! compares the map with the size of one member (`sync_size`) and marks the sectors that a stripe has on every
//! member (md-bitmap.c, raid5.c). Since Linux 6.14 it marks whole stripes of chunks, as `member_range` does; before,
//! only the 4 KiB rows that were written, which is a difference only where a bitmap chunk is smaller than a chunk.

mod header;
mod map;
mod place;

pub use header::{FIELDS, HEADER_BYTES, Header, HeaderError, MAGIC, Stale, VERSION, state};
pub use map::{Map, MapError};
pub use place::{
    ChunkError, DEFAULT_CHUNK_BYTES, Extent, MIN_MDADM_CHUNK_BYTES, PlaceError, check_chunk,
    default_chunk, locate, room, room_of_new,
};

use crate::geometry::{Geometry, Level};
use std::ops::Range;

/// Most chunks that a map may have (its bits then take 128 MiB). MD has no such bound of its own; a header that
/// says more is damaged, since no member has room for it.
pub const MAX_CHUNKS: u64 = 1 << 30;

/// The bitmap chunks that so many sectors of a member make, the last one cut short. `chunk_bytes` below 512 counts as 512.
pub fn chunks(sync_size: u64, chunk_bytes: u32) -> u64 {
    sync_size.div_ceil(u64::from(chunk_bytes / 512).max(1))
}

/// Bytes of header and bits together, not rounded.
pub fn bytes(chunks: u64) -> u64 {
    HEADER_BYTES as u64 + chunks.div_ceil(8)
}

/// Sectors of each member's data area that a range of array sectors belongs to: those of all stripes that it
/// touches, parity included. `None` for RAID 0, which has no bitmap.
pub fn member_range(geometry: &Geometry, array: Range<u64>) -> Option<Range<u64>> {
    let (chunk, stripe) = units(geometry)?;
    if array.is_empty() {
        return Some(0..0);
    }
    Some(array.start / stripe * chunk..array.end.div_ceil(stripe) * chunk)
}

/// Array sectors of all stripes that a range of member sectors touches; the other way of `member_range`.
pub fn array_range(geometry: &Geometry, member: Range<u64>) -> Option<Range<u64>> {
    let (chunk, stripe) = units(geometry)?;
    if member.is_empty() {
        return Some(0..0);
    }
    Some(member.start / chunk * stripe..member.end.div_ceil(chunk) * stripe)
}

/// Sectors of a chunk, and array sectors of a stripe.
fn units(geometry: &Geometry) -> Option<(u64, u64)> {
    if geometry.level() == Level::Raid0 {
        return None;
    }
    let chunk = u64::from(geometry.chunk_sectors());
    Some((chunk, chunk * u64::from(geometry.data_members())))
}
