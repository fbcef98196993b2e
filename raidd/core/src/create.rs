//! The plan of a new array: superblocks for all members, the geometry, and what is worth a warning.
//!
//! Owns the rules for data_offset, the sizes, the bad-block log's place, names and first states, as mdadm
//! lays arrays out (`docs/format.md`, New arrays). Pure; writes nothing. Costs a few kilobytes a member.

use crate::bitmap::{self, ChunkError, Header, Map};
use crate::geometry::{Geometry, GeometryError, Level, check_chunk};
use crate::superblock::{
    FIXED_BYTES, RESYNC_DONE, SUPER_SECTOR_1_2, SlotRole, Superblock, feature,
};
use crate::units::{human_sectors, round_down};
use std::fmt;

/// Chunk of a new array when none is asked for, in sectors (64 KiB).
pub const DEFAULT_CHUNK_SECTORS: u32 = 128;
/// Longest name on disk, host part included, in bytes.
pub const MAX_NAME_BYTES: usize = 31;

/// Events count of a new array. Not 0: kernels from 6.19 on take an array with 0 for their own new one and
/// fill in `logical_block_size`, after which older kernels refuse it.
pub const FIRST_EVENTS: u64 = 1;

/// A device that becomes a member; its place in the list is its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Random and unlike any other.
    pub device_uuid: [u8; 16],
    /// Size of the device in sectors.
    pub sectors: u64,
}

/// The write-intent bitmap of a new array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewBitmap {
    None,
    /// On every member, beside the superblock; chunk in bytes, mdadm's choice where none is asked for.
    Internal {
        chunk_bytes: Option<u32>,
    },
}

/// What the array shall be.
#[derive(Clone, Debug)]
pub struct NewArray<'a> {
    pub level: Level,
    /// MD's layout number; `None` takes the level's default.
    pub layout: Option<u32>,
    pub chunk_sectors: u32,
    /// Without the host part.
    pub name: &'a str,
    /// This machine's name; becomes the host part when it fits. Empty for none.
    pub host: &'a str,
    pub uuid: [u8; 16],
    /// Seconds since 1970.
    pub now: u64,
    /// Take the parity as right without computing it.
    pub assume_clean: bool,
    pub bitmap: NewBitmap,
    pub members: &'a [NewMember],
}

/// The plan: write `superblocks[slot]` at its `super_offset` on each member, then start.
#[derive(Clone, Debug)]
pub struct CreatePlan {
    pub geometry: Geometry,
    pub superblocks: Vec<Superblock>,
    /// The bitmap of every member, from its header on; whole pages. To be written before the superblocks.
    pub bitmap: Option<Vec<u8>>,
    pub warnings: Vec<CreateWarning>,
}

/// Something that is possible but perhaps not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateWarning {
    /// More than 1 % of this member stays unused, because the smallest one sets the size.
    Wasted { slot: u16, sectors: u64 },
    /// RAID 5 of two members keeps each byte twice: a mirror with parity's cost.
    TwoMembers,
    /// The name leaves no room for the host part; other hosts will not call the array foreign.
    NoHost,
}

impl fmt::Display for CreateWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreateWarning::Wasted { slot, sectors } => write!(
                f,
                "member {slot}: {} stay unused, because the smallest member sets the size",
                human_sectors(*sectors)
            ),
            CreateWarning::TwoMembers => {
                write!(
                    f,
                    "raid5 with two members is a mirror; three or more are recommended"
                )
            }
            CreateWarning::NoHost => {
                write!(
                    f,
                    "the name is too long to be stored together with this host's name"
                )
            }
        }
    }
}

/// Why there is no such array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// Level 4.
    Level(Level),
    Bitmap(ChunkError),
    /// A bitmap for an array without parity.
    BitmapWithoutParity,
    Geometry(GeometryError),
    TooFewMembers {
        level: Level,
        members: usize,
    },
    MemberTooSmall {
        slot: u16,
        sectors: u64,
        need: u64,
    },
    NameEmpty,
    NameTooLong {
        bytes: usize,
    },
    NameCharacter(char),
    /// Two members carry one device uuid.
    SameDeviceUuid {
        a: u16,
        b: u16,
    },
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreateError::Level(level) => {
                write!(f, "{level} arrays are not made; use level 0, 5 or 6")
            }
            CreateError::Geometry(error) => error.fmt(f),
            CreateError::Bitmap(error) => {
                write!(f, "{error}: choose another bitmap chunk, or no bitmap")
            }
            CreateError::BitmapWithoutParity => {
                write!(
                    f,
                    "raid0 has no parity that a bitmap could help: leave the bitmap out"
                )
            }
            CreateError::TooFewMembers { level, members } => write!(
                f,
                "{level} needs at least {} members and {members} were given: add members or use a lower level",
                level.min_members()
            ),
            CreateError::MemberTooSmall {
                slot,
                sectors,
                need,
            } => write!(
                f,
                "member {slot} has {} and must have at least {}: leave it out or use a smaller chunk",
                human_sectors(*sectors),
                human_sectors(*need)
            ),
            CreateError::NameEmpty => write!(f, "the name is empty: give one"),
            CreateError::NameTooLong { bytes } => write!(
                f,
                "the name has {bytes} bytes and the superblock holds {MAX_NAME_BYTES}: choose a shorter one"
            ),
            CreateError::NameCharacter(c) => {
                write!(
                    f,
                    "the name contains {c:?}: use letters, digits, '.', '_' and '-'"
                )
            }
            CreateError::SameDeviceUuid { a, b } => {
                write!(
                    f,
                    "members {a} and {b} have the same device uuid: each needs its own"
                )
            }
        }
    }
}

impl std::error::Error for CreateError {}

impl From<GeometryError> for CreateError {
    fn from(error: GeometryError) -> Self {
        CreateError::Geometry(error)
    }
}

/// Sectors that mdadm keeps free for a write-intent bitmap on a device of this size.
pub fn bitmap_room(device_sectors: u64) -> u64 {
    const GIB: u64 = 1 << 21;
    match device_sectors {
        0..128 => 0,
        s if s >= 200 * GIB + 128 => 256,
        s if s > 8 * GIB + 8 => 128,
        _ => 8,
    }
}

/// First data sector that mdadm chooses for metadata 1.2: room for the superblock and `room` sectors of
/// bitmap, then headroom for later reshapes, about 0.1 % of the device and at most 128 MiB.
pub fn data_offset(device_sectors: u64, room: u64, chunk_sectors: u32) -> u64 {
    let mut headroom = 262_144u64;
    while headroom << 10 > device_sectors && headroom / 2 >= 2 * u64::from(chunk_sectors) {
        headroom /= 2;
    }
    (24 + room + headroom).next_multiple_of(2048)
}

/// Role entries that mdadm makes room for: the block ends at a sector's end.
pub(crate) fn role_entries(members: usize) -> usize {
    ((FIXED_BYTES + 2 * members).next_multiple_of(512) - FIXED_BYTES) / 2
}

/// The name as it goes to disk: with the host part when that fits.
fn full_name(host: &str, name: &str) -> Result<(String, bool), CreateError> {
    if name.is_empty() {
        return Err(CreateError::NameEmpty);
    }
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | ':');
    if let Some(c) = name.chars().find(|&c| odd(c)) {
        return Err(CreateError::NameCharacter(c));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(CreateError::NameTooLong { bytes: name.len() });
    }
    let usable = !host.is_empty() && !host.chars().any(odd);
    if usable && host.len() + 1 + name.len() <= MAX_NAME_BYTES {
        return Ok((format!("{host}:{name}"), true));
    }
    Ok((name.to_string(), !usable))
}

/// Plans a new array. All members are in sync at once, device number = slot; parity arrays start a resync
/// from the beginning unless told that the parity is right.
pub fn plan(new: &NewArray<'_>) -> Result<CreatePlan, CreateError> {
    let &NewArray {
        level,
        chunk_sectors,
        members,
        ..
    } = new;
    if level == Level::Raid4 {
        return Err(CreateError::Level(level));
    }
    if members.len() < usize::from(level.min_members()) {
        return Err(CreateError::TooFewMembers {
            level,
            members: members.len(),
        });
    }
    check_chunk(level, chunk_sectors)?;
    let (name, with_host) = full_name(new.host, new.name)?;
    for (a, first) in members.iter().enumerate() {
        let twin = members[a + 1..]
            .iter()
            .position(|other| other.device_uuid == first.device_uuid);
        if let Some(step) = twin {
            return Err(CreateError::SameDeviceUuid {
                a: a as u16,
                b: (a + 1 + step) as u16,
            });
        }
    }
    let layout = new.layout.unwrap_or(level.default_layout());
    let smallest = members
        .iter()
        .map(|member| member.sectors)
        .min()
        .unwrap_or(0);
    let room = match level {
        Level::Raid0 => 0,
        _ => bitmap_room(smallest),
    };
    let first = data_offset(smallest, room, chunk_sectors);
    let need = first + u64::from(chunk_sectors);
    for (slot, member) in members.iter().enumerate() {
        if member.sectors < need {
            return Err(CreateError::MemberTooSmall {
                slot: slot as u16,
                sectors: member.sectors,
                need,
            });
        }
    }
    let usable: Vec<u64> = members
        .iter()
        .map(|member| member.sectors - first)
        .collect();
    let geometry = match level {
        Level::Raid0 => Geometry::raid0(layout, chunk_sectors, &usable)?,
        _ => {
            let size = round_down(smallest - first, u64::from(chunk_sectors));
            // More members than u16 holds are refused like any other excess.
            let count = u16::try_from(members.len()).unwrap_or(u16::MAX);
            Geometry::parity(level, layout, count, chunk_sectors, size)?
        }
    };
    let warnings = warnings(&geometry, &usable, with_host);
    let bitmap = new_bitmap(new, geometry.member_sectors())?;
    // The log of bad blocks stands behind the bitmap, or behind the room for one.
    let before_log = bitmap.as_ref().map_or(room, |b| b.len() as u64 / 512);
    let roles = role_entries(members.len());
    let superblocks =
        members
            .iter()
            .zip(&usable)
            .enumerate()
            .map(|(slot, (member, &data_size))| {
                let mut block = Superblock::blank(roles);
                for slot in 0..members.len() {
                    block.set_role(slot as u32, SlotRole::Slot(slot as u16));
                }
                block.feature_map = if level == Level::Raid0 {
                    feature::RAID0_LAYOUT
                } else {
                    0
                };
                block.uuid = new.uuid;
                block.name = name.clone();
                block.ctime = new.now & 0xff_ffff_ffff;
                block.utime = block.ctime;
                block.level = level.md();
                block.layout = layout;
                block.size = if level == Level::Raid0 {
                    0
                } else {
                    geometry.member_sectors()
                };
                block.chunk_sectors = chunk_sectors;
                block.raid_disks = members.len() as u32;
                block.data_offset = first;
                block.data_size = data_size;
                block.super_offset = SUPER_SECTOR_1_2;
                block.dev_number = slot as u32;
                block.device_uuid = member.device_uuid;
                block.bblog_size = 8;
                block.bblog_offset = 8 + before_log as i32;
                if bitmap.is_some() {
                    block.feature_map |= feature::BITMAP;
                    block.bitmap_offset = 8;
                }
                block.events = FIRST_EVENTS;
                block.resync_offset = if new.assume_clean || level == Level::Raid0 {
                    RESYNC_DONE
                } else {
                    0
                };
                block
            });
    let superblocks = superblocks.collect();
    Ok(CreatePlan {
        superblocks,
        bitmap,
        geometry,
        warnings,
    })
}

/// The bytes of the new array's bitmap: all chunks dirty as long as parity is not in sync, as mdadm has it.
fn new_bitmap(new: &NewArray<'_>, size: u64) -> Result<Option<Vec<u8>>, CreateError> {
    let NewBitmap::Internal { chunk_bytes } = new.bitmap else {
        return Ok(None);
    };
    if new.level == Level::Raid0 {
        return Err(CreateError::BitmapWithoutParity);
    }
    let room = bitmap::room_of_new(size);
    let chunk = match chunk_bytes {
        Some(chunk) => bitmap::check_chunk(size, room, chunk).map(|()| chunk),
        None => bitmap::default_chunk(size, room),
    };
    let mut header = Header::new(new.uuid, size, chunk.map_err(CreateError::Bitmap)?);
    header.events = FIRST_EVENTS;
    // Both fail only for sizes that no room is large enough for.
    let map = match new.assume_clean {
        true => Map::clean(&header),
        false => Map::all_dirty(&header),
    };
    let map = map.map_err(|_| CreateError::Bitmap(ChunkError::MemberTooLarge))?;
    let mut bytes = vec![0; header.bytes().next_multiple_of(4096) as usize];
    for (index, page) in bytes.chunks_mut(4096).enumerate() {
        map.block(&header, index as u64, page);
    }
    Ok(Some(bytes))
}

fn warnings(geometry: &Geometry, usable: &[u64], with_host: bool) -> Vec<CreateWarning> {
    let mut warnings = Vec::new();
    if geometry.level() != Level::Raid0 {
        let used = geometry.member_sectors();
        for (slot, &sectors) in usable.iter().enumerate() {
            let wasted = sectors - used;
            if wasted > used / 100 {
                warnings.push(CreateWarning::Wasted {
                    slot: slot as u16,
                    sectors: wasted,
                });
            }
        }
    }
    if geometry.level() == Level::Raid5 && geometry.members() == 2 {
        warnings.push(CreateWarning::TwoMembers);
    }
    if !with_host {
        warnings.push(CreateWarning::NoHost);
    }
    warnings
}

/// Smallest device, in sectors, that can be a member with this chunk.
pub fn smallest_member(level: Level, chunk_sectors: u32) -> u64 {
    let room = if level == Level::Raid0 { 0 } else { 8 };
    let offset = data_offset(0, room, chunk_sectors);
    offset + u64::from(chunk_sectors)
}
