//! The 256 bytes before the bits: layout, decoding with a name for everything that can be wrong, encoding, and
//! when the bits after it may be believed. Costs one pass over 256 bytes; runs at assembly and when events change.

use super::{MAX_CHUNKS, bytes, chunks};
use crate::superblock::Field;
use std::fmt;

const fn field(offset: usize, size: usize, name: &'static str) -> Field {
    Field { offset, size, name }
}

/// Every field, in order and without gaps. `docs/format.md` shows the same table, and a test compares the two.
pub const FIELDS: [Field; 13] = [
    field(0, 4, "magic"),
    field(4, 4, "version"),
    field(8, 16, "uuid"),
    field(24, 8, "events"),
    field(32, 8, "events_cleared"),
    field(40, 8, "sync_size"),
    field(48, 4, "state"),
    field(52, 4, "chunksize"),
    field(56, 4, "daemon_sleep"),
    field(60, 4, "write_behind"),
    field(64, 4, "sectors_reserved"),
    field(68, 4, "nodes"),
    field(72, 64, "cluster_name"),
];

/// First four bytes, `bitm`.
pub const MAGIC: u32 = 0x6d74_6962;
/// The version read and written here: little-endian, one map per member.
pub const VERSION: u32 = 4;
/// Bytes of the header; the bits follow at once.
pub const HEADER_BYTES: usize = 256;
/// First byte that no field has.
const PADDING: usize = FIELDS[FIELDS.len() - 1].offset + FIELDS[FIELDS.len() - 1].size;
/// Most writes that MD lets run behind.
const MAX_WRITE_BEHIND: u32 = 16383;
/// Smallest bitmap chunk that Linux accepts, bytes.
const MIN_CHUNK_BYTES: u32 = 512;

/// Bits of `state`.
pub mod state {
    /// The bits are not to be believed.
    pub const STALE: u32 = 1 << 1;
    /// A write of the map failed once.
    pub const WRITE_ERROR: u32 = 1 << 2;
    /// All that have a meaning in version 4.
    pub const KNOWN: u32 = STALE | WRITE_ERROR;
}

/// A decoded header. All sizes are sectors unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Uuid of the array.
    pub uuid: [u8; 16],
    /// Events of the superblock when the header was written last.
    pub events: u64,
    /// Events of the last moment when the array was whole and a bit could be cleared: a member that was
    /// in the array then or later lacks nothing but what the bits say.
    pub events_cleared: u64,
    /// Sectors that the map covers: the size in use on one member.
    pub sync_size: u64,
    /// See `state`.
    pub state: u32,
    /// Bytes of member data per bit; a power of two.
    pub chunk_bytes: u32,
    /// Seconds between two rounds of clearing.
    pub daemon_sleep: u32,
    /// Writes that may run behind on write-mostly members (RAID 1); 0 none.
    pub write_behind: u32,
    /// Sectors kept for the map; 0 when only its size counts.
    pub sectors_reserved: u32,
}

/// Why 256 bytes are not a header that can be used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    NoMagic,
    Truncated {
        have: usize,
    },
    /// Version 3: in the byte order of the machine that wrote it.
    HostEndian,
    /// Version 5: one map for each node of a cluster.
    Clustered,
    /// Version 6: another format altogether.
    Lockless,
    Version(u32),
    SyncSizeZero,
    /// Bits of `state` without a meaning.
    State(u32),
    ChunkBytes(u32),
    /// The chunks that the sizes give.
    TooManyChunks(u64),
    DaemonSleepZero,
    WriteBehind(u32),
    /// Fewer sectors kept than the map needs.
    SectorsReserved {
        says: u32,
        need: u64,
    },
    /// Nodes of a cluster in a plain bitmap.
    Nodes(u32),
    ClusterName,
    /// Offset of the first byte that should be zero.
    Padding {
        offset: usize,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use HeaderError as E;
        match self {
            E::NoMagic => write!(f, "no bitmap here"),
            E::Truncated { have } => {
                write!(
                    f,
                    "a bitmap begins with {HEADER_BYTES} bytes; only {have} could be read"
                )
            }
            E::HostEndian => write!(
                f,
                "the bitmap has version 3, whose byte order is that of the machine that made it"
            ),
            E::Clustered => write!(f, "the bitmap is a cluster's (version 5)"),
            E::Lockless => write!(f, "the bitmap is a lockless one (version 6)"),
            E::Version(version) => write!(f, "bitmap version {version} is not known here"),
            E::SyncSizeZero => write!(f, "the bitmap covers nothing (sync_size 0)"),
            E::State(bits) => write!(f, "the bitmap's state has unknown bits {bits:#x}"),
            E::ChunkBytes(bytes) => write!(
                f,
                "the bitmap's chunk size is {bytes} bytes; a power of two from {MIN_CHUNK_BYTES} on is possible"
            ),
            E::TooManyChunks(chunks) => write!(
                f,
                "the bitmap's sizes give {chunks} chunks; at most {MAX_CHUNKS} are possible"
            ),
            E::DaemonSleepZero => write!(f, "the bitmap's daemon_sleep is 0"),
            E::WriteBehind(writes) => write!(
                f,
                "the bitmap allows {writes} writes behind; at most {MAX_WRITE_BEHIND} are possible"
            ),
            E::SectorsReserved { says, need } => write!(
                f,
                "the bitmap has {says} sectors kept for it and needs {need}"
            ),
            E::Nodes(nodes) => write!(f, "a plain bitmap names {nodes} cluster nodes"),
            E::ClusterName => write!(f, "a plain bitmap names a cluster"),
            E::Padding { offset } => {
                write!(
                    f,
                    "byte {offset} of the bitmap's header must be zero and is not"
                )
            }
        }
    }
}

impl std::error::Error for HeaderError {}

/// Why the bits may lack something, so that every chunk counts as dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// `state` says so.
    Flagged,
    /// A write of the map failed.
    WriteError,
    /// The superblock went on without the bitmap.
    Behind { bitmap: u64, superblock: u64 },
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stale::Flagged => write!(f, "the bitmap is marked out of date"),
            Stale::WriteError => write!(f, "a write of the bitmap failed"),
            Stale::Behind { bitmap, superblock } => write!(
                f,
                "the bitmap is out of date (events {bitmap}, the superblock has {superblock})"
            ),
        }
    }
}

fn u32_at(raw: &[u8; HEADER_BYTES], index: usize) -> u32 {
    let at = FIELDS[index].offset;
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

fn u64_at(raw: &[u8; HEADER_BYTES], index: usize) -> u64 {
    let at = FIELDS[index].offset;
    let mut eight = [0; 8];
    eight.copy_from_slice(&raw[at..at + 8]);
    u64::from_le_bytes(eight)
}

impl Header {
    /// The header of a new bitmap: no events yet, MD's 5 seconds between rounds.
    pub fn new(uuid: [u8; 16], sync_size: u64, chunk_bytes: u32) -> Header {
        Header {
            uuid,
            events: 0,
            events_cleared: 0,
            sync_size,
            state: 0,
            chunk_bytes,
            daemon_sleep: 5,
            write_behind: 0,
            sectors_reserved: 0,
        }
    }

    /// Decodes the first bytes of a bitmap and checks all that can be checked without the superblock: what
    /// Linux checks, and that nothing is set which has no meaning in version 4.
    pub fn decode(area: &[u8]) -> Result<Header, HeaderError> {
        use HeaderError as E;
        if area.len() < 4 || area[..4] != MAGIC.to_le_bytes() {
            return Err(E::NoMagic);
        }
        let raw: &[u8; HEADER_BYTES] = area
            .first_chunk()
            .ok_or(E::Truncated { have: area.len() })?;
        match u32_at(raw, 1) {
            VERSION => {}
            3 => return Err(E::HostEndian),
            5 => return Err(E::Clustered),
            6 => return Err(E::Lockless),
            other => return Err(E::Version(other)),
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&raw[8..24]);
        let header = Header {
            uuid,
            events: u64_at(raw, 3),
            events_cleared: u64_at(raw, 4),
            sync_size: u64_at(raw, 5),
            state: u32_at(raw, 6),
            chunk_bytes: u32_at(raw, 7),
            daemon_sleep: u32_at(raw, 8),
            write_behind: u32_at(raw, 9),
            sectors_reserved: u32_at(raw, 10),
        };
        header.check()?;
        let nodes = u32_at(raw, 11);
        if nodes != 0 {
            return Err(E::Nodes(nodes));
        }
        if let Some(offset) = (FIELDS[12].offset..HEADER_BYTES).find(|&at| raw[at] != 0) {
            return Err(match offset {
                PADDING.. => E::Padding { offset },
                _ => E::ClusterName,
            });
        }
        Ok(header)
    }

    /// Checks the values of the fields, as `decode` does.
    pub fn check(&self) -> Result<(), HeaderError> {
        use HeaderError as E;
        if self.sync_size == 0 {
            return Err(E::SyncSizeZero);
        }
        if self.state & !state::KNOWN != 0 {
            return Err(E::State(self.state & !state::KNOWN));
        }
        if self.chunk_bytes < MIN_CHUNK_BYTES || !self.chunk_bytes.is_power_of_two() {
            return Err(E::ChunkBytes(self.chunk_bytes));
        }
        if self.chunks() > MAX_CHUNKS {
            return Err(E::TooManyChunks(self.chunks()));
        }
        if self.daemon_sleep == 0 {
            return Err(E::DaemonSleepZero);
        }
        if self.write_behind > MAX_WRITE_BEHIND {
            return Err(E::WriteBehind(self.write_behind));
        }
        let need = self.bytes().div_ceil(512);
        if self.sectors_reserved != 0 && u64::from(self.sectors_reserved) < need {
            return Err(E::SectorsReserved {
                says: self.sectors_reserved,
                need,
            });
        }
        Ok(())
    }

    /// The 256 bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut raw = [0; HEADER_BYTES];
        let mut put = |index: usize, value: &[u8]| {
            let at = FIELDS[index].offset;
            raw[at..at + value.len()].copy_from_slice(value);
        };
        put(0, &MAGIC.to_le_bytes());
        put(1, &VERSION.to_le_bytes());
        put(2, &self.uuid);
        put(3, &self.events.to_le_bytes());
        put(4, &self.events_cleared.to_le_bytes());
        put(5, &self.sync_size.to_le_bytes());
        put(6, &self.state.to_le_bytes());
        put(7, &self.chunk_bytes.to_le_bytes());
        put(8, &self.daemon_sleep.to_le_bytes());
        put(9, &self.write_behind.to_le_bytes());
        put(10, &self.sectors_reserved.to_le_bytes());
        raw
    }

    /// Chunks, which is bits, of the map.
    pub fn chunks(&self) -> u64 {
        chunks(self.sync_size, self.chunk_bytes)
    }

    /// Bytes of header and bits together, not rounded.
    pub fn bytes(&self) -> u64 {
        bytes(self.chunks())
    }

    /// Whether the bits may lack something, given the events of the array (the freshest superblock's). The
    /// bitmap is written before the superblock, so it may be ahead, but never behind, unless somebody used the
    /// array without it.
    pub fn stale(&self, superblock_events: u64) -> Option<Stale> {
        if self.state & state::STALE != 0 {
            return Some(Stale::Flagged);
        }
        if self.state & state::WRITE_ERROR != 0 {
            return Some(Stale::WriteError);
        }
        (self.events < superblock_events).then_some(Stale::Behind {
            bitmap: self.events,
            superblock: superblock_events,
        })
    }

    /// Whether a member that was away, and whose superblock stopped at these events, can come back with nothing
    /// but the dirty chunks copied: no bit was cleared since then. Uuid and slot must be the same too.
    pub fn may_rejoin(&self, member_events: u64) -> bool {
        member_events >= self.events_cleared
    }
}
