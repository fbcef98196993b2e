//! The MD metadata 1.x superblock: one block of at most 4 KiB per member, little-endian.
//!
//! Owns the byte layout (`FIELDS`, the one table of offsets), decoding with every check that Linux makes
//! when it loads a member, encoding, the checksum, uuids and names. Costs one pass over at most 4 KiB and
//! two small allocations; it runs at assembly and at metadata writes, never for an I/O.

mod beside;
mod error;
pub mod feature;

pub use beside::{BadRange, bitmap_version, decode_bad_blocks, parse_uuid, uuid_text};
pub use error::{DeviceError, SuperblockError};

use crate::units::{PAGE_SECTORS, SECTOR_BYTES};

/// One field of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub offset: usize,
    pub size: usize,
    pub name: &'static str,
}

const fn field(offset: usize, size: usize, name: &'static str) -> Field {
    Field { offset, size, name }
}

/// Every field of the fixed part, in order and without gaps. `docs/format.md` shows the same table, and a
/// test compares the two.
pub const FIELDS: [Field; 41] = [
    field(0, 4, "magic"),
    field(4, 4, "major_version"),
    field(8, 4, "feature_map"),
    field(12, 4, "pad0"),
    field(16, 16, "set_uuid"),
    field(32, 32, "set_name"),
    field(64, 8, "ctime"),
    field(72, 4, "level"),
    field(76, 4, "layout"),
    field(80, 8, "size"),
    field(88, 4, "chunksize"),
    field(92, 4, "raid_disks"),
    field(96, 4, "bitmap_offset"),
    field(100, 4, "new_level"),
    field(104, 8, "reshape_position"),
    field(112, 4, "delta_disks"),
    field(116, 4, "new_layout"),
    field(120, 4, "new_chunk"),
    field(124, 4, "new_offset"),
    field(128, 8, "data_offset"),
    field(136, 8, "data_size"),
    field(144, 8, "super_offset"),
    field(152, 8, "recovery_offset"),
    field(160, 4, "dev_number"),
    field(164, 4, "cnt_corrected_read"),
    field(168, 16, "device_uuid"),
    field(184, 1, "devflags"),
    field(185, 1, "bblog_shift"),
    field(186, 2, "bblog_size"),
    field(188, 4, "bblog_offset"),
    field(192, 8, "utime"),
    field(200, 8, "events"),
    field(208, 8, "resync_offset"),
    field(216, 4, "sb_csum"),
    field(220, 4, "max_dev"),
    field(224, 4, "logical_block_size"),
    field(228, 4, "pad3_0"),
    field(232, 8, "pad3_1"),
    field(240, 8, "pad3_2"),
    field(248, 8, "pad3_3"),
    field(256, 3840, "dev_roles"),
];

/// Offset of a field, worked out at compile time; an unknown name does not compile.
const fn at(name: &str) -> usize {
    let mut i = 0;
    while i < FIELDS.len() {
        let (a, b) = (FIELDS[i].name.as_bytes(), name.as_bytes());
        let mut same = a.len() == b.len();
        let mut j = 0;
        while same && j < a.len() {
            same = a[j] == b[j];
            j += 1;
        }
        if same {
            return FIELDS[i].offset;
        }
        i += 1;
    }
    panic!("no such field")
}

/// First four bytes of every MD superblock.
pub const MAGIC: u32 = 0xa92b_4efc;
/// Bytes before the roles.
pub const FIXED_BYTES: usize = at("dev_roles");
/// Bytes of the largest block, and what to read to be sure to have all of one.
pub const MAX_BYTES: usize = FIXED_BYTES + 2 * MAX_ROLES;
/// Most role entries.
pub const MAX_ROLES: usize = FIELDS[FIELDS.len() - 1].size / 2;
/// Sector of a 1.2 superblock.
pub const SUPER_SECTOR_1_2: u64 = 8;
/// `resync_offset` of an array whose parity is right everywhere.
pub const RESYNC_DONE: u64 = u64::MAX;

const ROLE_SPARE: u16 = 0xffff;
const ROLE_FAULTY: u16 = 0xfffe;
const ROLE_JOURNAL: u16 = 0xfffd;
const ROLE_LAST_SLOT: u16 = 0xff00;

/// What a role entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotRole {
    Slot(u16),
    /// Spare, or an entry that no device has.
    Spare,
    Faulty,
    Journal,
}

impl SlotRole {
    /// From the number on disk. Numbers between the last slot and the special ones have no meaning and
    /// count as spare.
    pub fn from_raw(raw: u16) -> SlotRole {
        match raw {
            ROLE_FAULTY => SlotRole::Faulty,
            ROLE_JOURNAL => SlotRole::Journal,
            0..=ROLE_LAST_SLOT => SlotRole::Slot(raw),
            _ => SlotRole::Spare,
        }
    }

    /// The number on disk.
    pub fn raw(self) -> u16 {
        match self {
            SlotRole::Slot(slot) => slot,
            SlotRole::Spare => ROLE_SPARE,
            SlotRole::Faulty => ROLE_FAULTY,
            SlotRole::Journal => ROLE_JOURNAL,
        }
    }
}

/// Where on a member the block lies; the minor version of the format follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// 1.0: 8 to 12 KiB before the end.
    End,
    /// 1.1: at the start.
    Start,
    /// 1.2: 4 KiB from the start.
    FourK,
}

impl Placement {
    pub const ALL: [Placement; 3] = [Placement::FourK, Placement::Start, Placement::End];

    /// Sector of the block on a device with so many sectors; `None` when the device is too small.
    pub fn sector(self, device_sectors: u64) -> Option<u64> {
        (device_sectors >= 24).then(|| match self {
            Placement::End => (device_sectors - 16) & !7,
            Placement::Start => 0,
            Placement::FourK => SUPER_SECTOR_1_2,
        })
    }

    /// `1.0`, `1.1` or `1.2`.
    pub fn version(self) -> &'static str {
        match self {
            Placement::End => "1.0",
            Placement::Start => "1.1",
            Placement::FourK => "1.2",
        }
    }
}

/// A decoded block. Names are those of the on-disk fields (`docs/format.md`); sizes and offsets are sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub feature_map: u32,
    /// Uuid of the array.
    pub uuid: [u8; 16],
    /// Name of the array, `host:name` or `name`; at most 32 bytes.
    pub name: String,
    /// The name as found on disk when `name` alone would not give these bytes again.
    name_odd: Option<[u8; 32]>,
    /// Creation time: low 40 bits seconds, high 24 bits microseconds.
    pub ctime: u64,
    pub level: i32,
    pub layout: u32,
    /// Sectors in use on each member; 0 for RAID 0.
    pub size: u64,
    pub chunk_sectors: u32,
    pub raid_disks: u32,
    /// With the bitmap bit: sectors from the superblock to the bitmap. With a PPL bit: see `ppl`.
    pub bitmap_offset: i32,
    pub new_level: u32,
    pub reshape_position: u64,
    pub delta_disks: i32,
    pub new_layout: u32,
    pub new_chunk: u32,
    pub new_offset: i32,
    pub data_offset: u64,
    pub data_size: u64,
    pub super_offset: u64,
    pub recovery_offset: u64,
    /// Index into `roles`; not the slot.
    pub dev_number: u32,
    pub corrected_reads: u32,
    pub device_uuid: [u8; 16],
    pub devflags: u8,
    pub bblog_shift: u8,
    pub bblog_size: u16,
    pub bblog_offset: i32,
    /// Time of the last update, as `ctime`.
    pub utime: u64,
    pub events: u64,
    /// `RESYNC_DONE` when clean; else where trust in the parity ends.
    pub resync_offset: u64,
    /// Bytes; 0 unless kernel 6.19 or later wrote it.
    pub logical_block_size: u32,
    /// One entry per device number; its length is `max_dev`.
    pub roles: Vec<u16>,
}

/// The first `N` bytes.
fn bytes<const N: usize>(block: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&block[..N]);
    out
}

macro_rules! get {
    ($block:expr, $type:ty, $name:literal) => {{
        const AT: usize = at($name);
        <$type>::from_le_bytes(bytes(&$block[AT..]))
    }};
}

macro_rules! put {
    ($block:expr, $name:literal, $value:expr) => {{
        const AT: usize = at($name);
        let value = $value;
        $block[AT..AT + value.len()].copy_from_slice(&value);
    }};
}

/// Checksum of a block that counts `roles` role entries: the sum of its 32-bit words, the checksum's own
/// word taken as 0, folded once from 64 to 32 bits. `block` must hold `FIXED_BYTES + 2 * roles` bytes.
pub fn checksum(block: &[u8], roles: usize) -> u32 {
    let block = &block[..FIXED_BYTES + 2 * roles];
    let mut words = block.chunks_exact(4);
    let mut sum: u64 = words
        .by_ref()
        .map(|word| u64::from(u32::from_le_bytes(bytes(word))))
        .sum();
    sum -= u64::from(get!(block, u32, "sb_csum"));
    if let &[low, high] = words.remainder() {
        sum += u64::from(u16::from_le_bytes([low, high]));
    }
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

fn text_of(raw: &[u8; 32]) -> String {
    let end = raw.iter().position(|&byte| byte == 0).unwrap_or(raw.len());
    String::from_utf8_lossy(&raw[..end]).into_owned()
}

fn name_bytes(name: &str) -> Option<[u8; 32]> {
    let mut raw = [0; 32];
    raw.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    Some(raw)
}

impl Superblock {
    /// Decodes the block that was read at `at_sector`; give at least the whole block, best `MAX_BYTES`
    /// bytes. Makes the checks that need no knowledge of the device or of other members.
    pub fn decode(block: &[u8], at_sector: u64) -> Result<Superblock, SuperblockError> {
        use SuperblockError as E;
        if block.len() < 4 || get!(block, u32, "magic") != MAGIC {
            return Err(E::NoMagic);
        }
        if block.len() < FIXED_BYTES {
            return Err(E::Truncated {
                have: block.len(),
                need: FIXED_BYTES,
            });
        }
        let major = get!(block, u32, "major_version");
        if major != 1 {
            return Err(E::MajorVersion(major));
        }
        let max_dev = get!(block, u32, "max_dev");
        let roles = usize::try_from(max_dev).unwrap_or(usize::MAX);
        if roles > MAX_ROLES {
            return Err(E::TooManyRoles(max_dev));
        }
        let need = FIXED_BYTES + 2 * roles;
        if block.len() < need {
            return Err(E::Truncated {
                have: block.len(),
                need,
            });
        }
        let (stored, computed) = (get!(block, u32, "sb_csum"), checksum(block, roles));
        if stored != computed {
            return Err(E::Checksum { stored, computed });
        }
        let super_offset = get!(block, u64, "super_offset");
        if super_offset != at_sector {
            return Err(E::Misplaced {
                says: super_offset,
                at: at_sector,
            });
        }
        let feature_map = get!(block, u32, "feature_map");
        if feature_map & !feature::KNOWN != 0 {
            return Err(E::UnknownFeatures(feature_map & !feature::KNOWN));
        }
        let pads = [at("pad0")..at("pad0") + 4, at("pad3_0")..FIXED_BYTES];
        if let Some(offset) = pads
            .into_iter()
            .flatten()
            .find(|&offset| block[offset] != 0)
        {
            return Err(E::Padding { offset });
        }
        let logical_block_size = get!(block, u32, "logical_block_size");
        if !matches!(logical_block_size, 0 | 512 | 1024 | 2048 | 4096) {
            return Err(E::LogicalBlockSize(logical_block_size));
        }
        let data_size = get!(block, u64, "data_size");
        if data_size < 10 {
            return Err(E::DataTooSmall(data_size));
        }
        let level = get!(block, i32, "level");
        if feature_map & feature::RAID0_LAYOUT != 0 && level != 0 {
            return Err(E::LayoutBitOnLevel(level));
        }
        let name_raw = bytes(&block[at("set_name")..]);
        let name = text_of(&name_raw);
        Ok(Superblock {
            feature_map,
            uuid: bytes(&block[at("set_uuid")..]),
            name_odd: (name_bytes(&name) != Some(name_raw)).then_some(name_raw),
            name,
            ctime: get!(block, u64, "ctime"),
            level,
            layout: get!(block, u32, "layout"),
            size: get!(block, u64, "size"),
            chunk_sectors: get!(block, u32, "chunksize"),
            raid_disks: get!(block, u32, "raid_disks"),
            bitmap_offset: get!(block, i32, "bitmap_offset"),
            new_level: get!(block, u32, "new_level"),
            reshape_position: get!(block, u64, "reshape_position"),
            delta_disks: get!(block, i32, "delta_disks"),
            new_layout: get!(block, u32, "new_layout"),
            new_chunk: get!(block, u32, "new_chunk"),
            new_offset: get!(block, i32, "new_offset"),
            data_offset: get!(block, u64, "data_offset"),
            data_size,
            super_offset,
            recovery_offset: get!(block, u64, "recovery_offset"),
            dev_number: get!(block, u32, "dev_number"),
            corrected_reads: get!(block, u32, "cnt_corrected_read"),
            device_uuid: bytes(&block[at("device_uuid")..]),
            devflags: get!(block, u8, "devflags"),
            bblog_shift: get!(block, u8, "bblog_shift"),
            bblog_size: get!(block, u16, "bblog_size"),
            bblog_offset: get!(block, i32, "bblog_offset"),
            utime: get!(block, u64, "utime"),
            events: get!(block, u64, "events"),
            resync_offset: get!(block, u64, "resync_offset"),
            logical_block_size,
            roles: block[FIXED_BYTES..need]
                .chunks_exact(2)
                .map(|r| u16::from_le_bytes([r[0], r[1]]))
                .collect(),
        })
    }

    /// The bytes of the block with its checksum, zero-padded to a multiple of 512. Write them at
    /// `super_offset`, padded with zeros to the member's logical block.
    ///
    /// Panics when there are more than `MAX_ROLES` roles or the name is longer than 32 bytes: both are
    /// refused when a plan is made or a block is decoded.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.roles.len() <= MAX_ROLES, "{} roles", self.roles.len());
        let odd = self.name_odd.filter(|raw| text_of(raw) == self.name);
        let name = odd
            .or_else(|| name_bytes(&self.name))
            .expect("names are at most 32 bytes long");
        let used = FIXED_BYTES + 2 * self.roles.len();
        let mut block = vec![0u8; used.next_multiple_of(SECTOR_BYTES as usize)];
        put!(block, "magic", MAGIC.to_le_bytes());
        put!(block, "major_version", 1u32.to_le_bytes());
        put!(block, "feature_map", self.feature_map.to_le_bytes());
        put!(block, "set_uuid", self.uuid);
        put!(block, "set_name", name);
        put!(block, "ctime", self.ctime.to_le_bytes());
        put!(block, "level", self.level.to_le_bytes());
        put!(block, "layout", self.layout.to_le_bytes());
        put!(block, "size", self.size.to_le_bytes());
        put!(block, "chunksize", self.chunk_sectors.to_le_bytes());
        put!(block, "raid_disks", self.raid_disks.to_le_bytes());
        put!(block, "bitmap_offset", self.bitmap_offset.to_le_bytes());
        put!(block, "new_level", self.new_level.to_le_bytes());
        put!(
            block,
            "reshape_position",
            self.reshape_position.to_le_bytes()
        );
        put!(block, "delta_disks", self.delta_disks.to_le_bytes());
        put!(block, "new_layout", self.new_layout.to_le_bytes());
        put!(block, "new_chunk", self.new_chunk.to_le_bytes());
        put!(block, "new_offset", self.new_offset.to_le_bytes());
        put!(block, "data_offset", self.data_offset.to_le_bytes());
        put!(block, "data_size", self.data_size.to_le_bytes());
        put!(block, "super_offset", self.super_offset.to_le_bytes());
        put!(block, "recovery_offset", self.recovery_offset.to_le_bytes());
        put!(block, "dev_number", self.dev_number.to_le_bytes());
        put!(
            block,
            "cnt_corrected_read",
            self.corrected_reads.to_le_bytes()
        );
        put!(block, "device_uuid", self.device_uuid);
        put!(block, "devflags", [self.devflags]);
        put!(block, "bblog_shift", [self.bblog_shift]);
        put!(block, "bblog_size", self.bblog_size.to_le_bytes());
        put!(block, "bblog_offset", self.bblog_offset.to_le_bytes());
        put!(block, "utime", self.utime.to_le_bytes());
        put!(block, "events", self.events.to_le_bytes());
        put!(block, "resync_offset", self.resync_offset.to_le_bytes());
        put!(block, "max_dev", (self.roles.len() as u32).to_le_bytes());
        put!(
            block,
            "logical_block_size",
            self.logical_block_size.to_le_bytes()
        );
        for (role, cell) in self
            .roles
            .iter()
            .zip(block[FIXED_BYTES..].chunks_exact_mut(2))
        {
            cell.copy_from_slice(&role.to_le_bytes());
        }
        let sum = checksum(&block, self.roles.len());
        put!(block, "sb_csum", sum.to_le_bytes());
        block
    }

    /// A block with no array in it: everything 0 but clean, at the place of 1.2, `roles` empty entries.
    pub fn blank(roles: usize) -> Superblock {
        Superblock {
            feature_map: 0,
            uuid: [0; 16],
            name: String::new(),
            name_odd: None,
            ctime: 0,
            level: 0,
            layout: 0,
            size: 0,
            chunk_sectors: 0,
            raid_disks: 0,
            bitmap_offset: 0,
            new_level: 0,
            reshape_position: 0,
            delta_disks: 0,
            new_layout: 0,
            new_chunk: 0,
            new_offset: 0,
            data_offset: 0,
            data_size: 0,
            super_offset: SUPER_SECTOR_1_2,
            recovery_offset: 0,
            dev_number: 0,
            corrected_reads: 0,
            device_uuid: [0; 16],
            devflags: 0,
            bblog_shift: 0,
            bblog_size: 0,
            bblog_offset: 0,
            utime: 0,
            events: 0,
            resync_offset: RESYNC_DONE,
            logical_block_size: 0,
            roles: vec![ROLE_SPARE; roles],
        }
    }

    /// Does the feature map have any of these bits?
    pub fn has(&self, bits: u32) -> bool {
        self.feature_map & bits != 0
    }

    /// What the block says its own device is.
    pub fn slot(&self) -> SlotRole {
        self.role_of(self.dev_number)
    }

    /// What the block says the device with this number is; a number past the table is a spare.
    pub fn role_of(&self, dev_number: u32) -> SlotRole {
        let raw = self.roles.get(dev_number as usize).copied();
        SlotRole::from_raw(raw.unwrap_or(ROLE_SPARE))
    }

    /// Records the role of a device number. Returns false, and changes nothing, past the table's end.
    pub fn set_role(&mut self, dev_number: u32, role: SlotRole) -> bool {
        match self.roles.get_mut(dev_number as usize) {
            Some(entry) => {
                *entry = role.raw();
                true
            }
            None => false,
        }
    }

    /// Is all parity right? Always so without parity.
    pub fn is_clean(&self) -> bool {
        self.resync_offset == RESYNC_DONE || self.level == 0
    }

    /// Minor version by the block's place.
    pub fn placement(&self) -> Placement {
        match self.super_offset {
            0 => Placement::Start,
            SUPER_SECTOR_1_2 => Placement::FourK,
            _ => Placement::End,
        }
    }

    /// Host part of the name, if it has one.
    pub fn host(&self) -> Option<&str> {
        self.name.split_once(':').map(|(host, _)| host)
    }

    /// Name without the host part.
    pub fn short_name(&self) -> &str {
        self.name
            .split_once(':')
            .map_or(&self.name, |(_, name)| name)
    }

    /// Sector of the bitmap on this member, with the bitmap bit.
    pub fn bitmap_sector(&self) -> Option<u64> {
        self.has(feature::BITMAP)
            .then(|| self.relative(self.bitmap_offset))?
    }

    /// Sector and sectors of the partial parity log on this member, with a PPL bit.
    pub fn ppl(&self) -> Option<(u64, u16)> {
        if !self.has(feature::PPL | feature::MULTIPLE_PPLS) {
            return None;
        }
        let [a, b, c, d] = self.bitmap_offset.to_le_bytes();
        let sector = self.relative(i32::from(i16::from_le_bytes([a, b])))?;
        Some((sector, u16::from_le_bytes([c, d])))
    }

    /// Sector and sectors of the bad-block log on this member, if it has room for one. Only the
    /// bad-blocks bit gives its contents a meaning.
    pub fn bad_block_log(&self) -> Option<(u64, u16)> {
        let there = self.bblog_size != 0 && self.bblog_offset != 0;
        there.then(|| Some((self.relative(self.bblog_offset)?, self.bblog_size)))?
    }

    fn relative(&self, offset: i32) -> Option<u64> {
        self.super_offset.checked_add_signed(i64::from(offset))
    }

    /// Checks the block against its device: room for the data, and none of it over the superblock.
    pub fn check_device(&self, device_sectors: u64) -> Result<(), DeviceError> {
        let end = self.data_offset.checked_add(self.data_size);
        match end {
            Some(end) if end <= device_sectors => {}
            _ => {
                let need = end.unwrap_or(u64::MAX);
                return Err(DeviceError::TooSmall {
                    need,
                    have: device_sectors,
                });
            }
        }
        let size = PAGE_SECTORS.min((FIXED_BYTES + 2 * self.roles.len()).div_ceil(512) as u64);
        let apart = self.super_offset.saturating_add(size) <= self.data_offset
            || end.is_some_and(|end| end <= self.super_offset);
        match apart {
            true => Ok(()),
            false => Err(DeviceError::Overlap),
        }
    }
}
