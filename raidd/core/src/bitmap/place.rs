//! Where a bitmap lies on a member, how much room there is, and which chunk size follows from the room.
//! Pure arithmetic on a superblock's fields; costs nothing worth naming and runs at create and assembly.

use super::header::{HEADER_BYTES, Header};
use crate::create::bitmap_room;
use crate::superblock::{Placement, Superblock, feature};
use crate::units::{PAGE_SECTORS, round_up};
use std::fmt;

/// mdadm's smallest bitmap chunk, bytes.
pub const MIN_MDADM_CHUNK_BYTES: u32 = 4096;
/// The chunk that mdadm takes when the map has room for it, bytes.
pub const DEFAULT_CHUNK_BYTES: u32 = 64 << 20;
/// Largest power of two that the header's field holds, bytes.
const MAX_CHUNK_BYTES: u64 = 1 << 31;
/// Sectors that a map grows to when nobody asks for a chunk size (128 KiB).
const MAX_DEFAULT_ROOM: u64 = 256;

/// A piece of a member, in sectors of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub sector: u64,
    pub sectors: u64,
}

/// Why a bitmap cannot be where the superblock puts it, or does not belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// The superblock's feature bit is not set.
    NoBitmap,
    /// `bitmap_offset` leads out of the device.
    Outside(i32),
    OverSuperblock,
    OverData,
    OverBadBlockLog,
    /// The header has the uuid of another array.
    OtherArray,
    /// The map covers another size than the members have.
    SyncSize {
        says: u64,
        size: u64,
    },
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use PlaceError as E;
        match self {
            E::NoBitmap => write!(f, "the array has no bitmap"),
            E::Outside(offset) => write!(
                f,
                "the superblock puts the bitmap outside the device (offset {offset} sectors)"
            ),
            E::OverSuperblock => write!(f, "the bitmap lies over the superblock"),
            E::OverData => write!(f, "the bitmap reaches into the data"),
            E::OverBadBlockLog => write!(f, "the bitmap reaches into the bad-block log"),
            E::OtherArray => write!(f, "the bitmap belongs to another array"),
            E::SyncSize { says, size } => write!(
                f,
                "the bitmap covers {says} sectors, the members have {size}"
            ),
        }
    }
}

impl std::error::Error for PlaceError {}

/// Where the bitmap with this header lies on the member with this superblock. Checks that it is this array's
/// and that it covers neither superblock, data nor bad-block log. The length is what mdadm writes: whole
/// pages of 4 KiB, or whole sectors when the bitmap does not begin at a page's distance from the superblock.
pub fn locate(superblock: &Superblock, header: &Header) -> Result<Extent, PlaceError> {
    use PlaceError as E;
    if !superblock.has(feature::BITMAP) {
        return Err(E::NoBitmap);
    }
    let offset = superblock.bitmap_offset;
    let sector = superblock.bitmap_sector().ok_or(E::Outside(offset))?;
    if header.uuid != superblock.uuid {
        return Err(E::OtherArray);
    }
    if header.sync_size != superblock.size {
        return Err(E::SyncSize {
            says: header.sync_size,
            size: superblock.size,
        });
    }
    let need = header.bytes().div_ceil(512);
    let end = sector.checked_add(need).ok_or(E::Outside(offset))?;
    let over = |first: u64, sectors: u64| first < end && sector < first.saturating_add(sectors);
    let block = (superblock.encode().len() as u64).div_ceil(512);
    if over(superblock.super_offset, block) {
        return Err(E::OverSuperblock);
    }
    if over(superblock.data_offset, superblock.data_size) {
        return Err(E::OverData);
    }
    if let Some((first, sectors)) = superblock.bad_block_log()
        && over(first, u64::from(sectors))
    {
        return Err(E::OverBadBlockLog);
    }
    let unit = match offset % PAGE_SECTORS as i32 {
        0 => PAGE_SECTORS,
        _ => 1,
    };
    let sectors = round_up(need, unit).ok_or(E::Outside(offset))?;
    Ok(Extent { sector, sectors })
}

/// Sectors that a new array has for its map: mdadm judges by the size in use on a member, not by the device's.
pub fn room_of_new(size: u64) -> u64 {
    bitmap_room(size)
}

/// Sectors that an array without a bitmap has for one, from the page after the superblock to the bad-block log,
/// or to a page before the data when there is none. `None` for metadata 1.0, where it would lie elsewhere,
/// and when nothing is left.
pub fn room(superblock: &Superblock) -> Option<u64> {
    if superblock.placement() == Placement::End {
        return None;
    }
    let end = match superblock.bblog_size {
        0 => superblock
            .data_offset
            .checked_sub(superblock.super_offset)?
            .checked_sub(PAGE_SECTORS)?,
        _ => u64::try_from(superblock.bblog_offset).ok()?,
    };
    end.checked_sub(PAGE_SECTORS).filter(|&room| room > 1)
}

/// Why a chunk size cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    NoRoom,
    NotPowerOfTwo(u32),
    /// The map would not fit; `least` would.
    TooSmall {
        bytes: u32,
        least: u32,
    },
    /// No chunk size is large enough.
    MemberTooLarge,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkError::NoRoom => write!(f, "there is no room for a bitmap"),
            ChunkError::NotPowerOfTwo(bytes) => {
                write!(f, "a bitmap chunk of {bytes} bytes is not a power of two")
            }
            ChunkError::TooSmall { bytes, least } => write!(
                f,
                "with a bitmap chunk of {bytes} bytes the bitmap does not fit; at least {least} is needed"
            ),
            ChunkError::MemberTooLarge => {
                write!(
                    f,
                    "the members are too large for the room that a bitmap has"
                )
            }
        }
    }
}

impl std::error::Error for ChunkError {}

/// Smallest chunk whose map fits into so many sectors. mdadm counts one bit more than there are chunks and
/// halves with rounding up, so the answer can be twice what would just fit; kept, to choose as it does.
fn least_chunk(size: u64, room: u64) -> Result<u32, ChunkError> {
    if room <= 1 {
        return Err(ChunkError::NoRoom);
    }
    let fit = (room.saturating_mul(512) - HEADER_BYTES as u64).saturating_mul(8);
    let mut chunk = u64::from(MIN_MDADM_CHUNK_BYTES);
    let mut bits = size / (chunk / 512) + 1;
    while bits > fit {
        chunk *= 2;
        bits = bits.div_ceil(2);
    }
    match chunk {
        0..=MAX_CHUNK_BYTES => Ok(chunk as u32),
        _ => Err(ChunkError::MemberTooLarge),
    }
}

/// mdadm's chunk size in bytes when nobody asks for one: 64 MiB, or more when the map would not fit into the
/// room, of which at most 128 KiB are taken. `size` is that in use on a member, `room` as from `room`; sectors.
pub fn default_chunk(size: u64, room: u64) -> Result<u32, ChunkError> {
    Ok(least_chunk(size, room.min(MAX_DEFAULT_ROOM))?.max(DEFAULT_CHUNK_BYTES))
}

/// Checks a chunk size that was asked for, by mdadm's rule.
pub fn check_chunk(size: u64, room: u64, chunk_bytes: u32) -> Result<(), ChunkError> {
    if !chunk_bytes.is_power_of_two() {
        return Err(ChunkError::NotPowerOfTwo(chunk_bytes));
    }
    let least = least_chunk(size, room)?;
    match chunk_bytes < least {
        true => Err(ChunkError::TooSmall {
            bytes: chunk_bytes,
            least,
        }),
        false => Ok(()),
    }
}
