//! Where every sector of an array lies: RAID 0 zones and all MD layouts of levels 4, 5 and 6.
//!
//! Owns the mapping between array sectors and (slot, member sector), the places of P and Q, and the
//! exponent of each data chunk in Q. Pure arithmetic: one or two 64-bit divisions a call, no allocation
//! after construction. Formulas follow the layouts of Linux MD (`docs/format.md`, Layouts).

mod error;
mod names;

pub use error::GeometryError;
pub use names::{layout_name, layout_numbers, parse_layout};

use crate::units::{SECTOR_BYTES, round_down};
use std::fmt;

/// RAID level. Level 4 is only recognised, so that its arrays can be named and refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    Raid0,
    Raid4,
    Raid5,
    Raid6,
}

impl Level {
    /// From MD's number in the superblock; `None` for levels that raidd has no geometry for.
    pub fn from_md(level: i32) -> Option<Level> {
        match level {
            0 => Some(Level::Raid0),
            4 => Some(Level::Raid4),
            5 => Some(Level::Raid5),
            6 => Some(Level::Raid6),
            _ => None,
        }
    }

    /// MD's number.
    pub fn md(self) -> i32 {
        match self {
            Level::Raid0 => 0,
            Level::Raid4 => 4,
            Level::Raid5 => 5,
            Level::Raid6 => 6,
        }
    }

    /// Parity chunks in each stripe.
    #[inline]
    pub fn parities(self) -> u16 {
        match self {
            Level::Raid0 => 0,
            Level::Raid4 | Level::Raid5 => 1,
            Level::Raid6 => 2,
        }
    }

    /// Fewest members that MD accepts.
    pub fn min_members(self) -> u16 {
        match self {
            Level::Raid0 | Level::Raid4 | Level::Raid5 => 2,
            Level::Raid6 => 4,
        }
    }

    /// The layout a new array gets: left-symmetric, or RAID 0's original one.
    pub fn default_layout(self) -> u32 {
        match self {
            Level::Raid0 => LAYOUT_ORIGINAL,
            Level::Raid4 => 0,
            Level::Raid5 | Level::Raid6 => LAYOUT_LEFT_SYMMETRIC,
        }
    }
}

impl fmt::Display for Level {
    /// `raid5`, the spelling of mdadm.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "raid{}", self.md())
    }
}

/// Most members of one array.
pub const MAX_MEMBERS: u16 = 256;
/// Smallest chunk in sectors, and the unit of every chunk (4 KiB).
pub const MIN_CHUNK_SECTORS: u32 = 8;
/// Largest chunk in sectors (1 GiB).
pub const MAX_CHUNK_SECTORS: u32 = 1 << 21;
/// RAID 5/6 layout number of left-symmetric.
pub const LAYOUT_LEFT_SYMMETRIC: u32 = 2;
/// RAID 0: chunks are dealt out by their number in the array.
pub const LAYOUT_ORIGINAL: u32 = 1;
/// RAID 0: chunks are dealt out by their number in the zone.
pub const LAYOUT_ALTERNATE: u32 = 2;

/// What a slot holds in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The data chunk with this index in the stripe.
    Data(u16),
    P,
    Q,
}

/// The place of one array sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub slot: u16,
    /// Sector in the member's data area (the member's data_offset is not included).
    pub sector: u64,
    /// Sectors from here to the end of this chunk, this one included.
    pub left_in_chunk: u32,
}

/// How P moves from stripe to stripe, over a ring of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rotation {
    /// From the last member of the ring downwards.
    Left,
    /// As `Left`, one stripe ahead.
    LeftAhead,
    /// From the first member upwards.
    Right,
    /// Always here.
    Fixed(u16),
}

/// Where Q is, given P.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QRule {
    None,
    AfterP,
    BeforeP,
    Last,
}

/// Where data chunk k is, given P and Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataRule {
    /// The k-th member that is neither P nor Q.
    Skip,
    /// Member (P + base + k) of the ring.
    Follow(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    rotation: Rotation,
    q: QRule,
    data: DataRule,
    /// Members over which P and data rotate: all, or all but the last.
    ring: u16,
    /// Exponents of Q count members from 0 instead of data chunks from Q.
    ddf: bool,
}

fn rule(level: Level, layout: u32, n: u16) -> Option<Rule> {
    use DataRule::{Follow, Skip};
    use Rotation::{Fixed, Left, LeftAhead, Right};
    let of = |rotation, q, data, ring, ddf| {
        Some(Rule {
            rotation,
            q,
            data,
            ring,
            ddf,
        })
    };
    let five = |layout, q, ring: u16| match layout {
        0 => of(Left, q, Skip, ring, false),
        1 => of(Right, q, Skip, ring, false),
        2 => of(Left, q, Follow(1), ring, false),
        3 => of(Right, q, Follow(1), ring, false),
        4 => of(Fixed(0), q, Skip, ring, false),
        5 => of(Fixed(ring - 1), q, Skip, ring, false),
        _ => None,
    };
    match (level, layout) {
        (Level::Raid0, _) => None,
        (Level::Raid4, 0) => of(Fixed(n - 1), QRule::None, Skip, n, false),
        (Level::Raid4, _) => None,
        (Level::Raid5, _) => five(layout, QRule::None, n),
        (Level::Raid6, 0) => of(Left, QRule::AfterP, Skip, n, false),
        (Level::Raid6, 1) => of(Right, QRule::AfterP, Skip, n, false),
        (Level::Raid6, 2) => of(Left, QRule::AfterP, Follow(2), n, false),
        (Level::Raid6, 3) => of(Right, QRule::AfterP, Follow(2), n, false),
        (Level::Raid6, 4) => of(Fixed(0), QRule::AfterP, Skip, n, false),
        (Level::Raid6, 5) => of(Fixed(n - 2), QRule::AfterP, Skip, n, false),
        (Level::Raid6, 8) => of(Right, QRule::AfterP, Skip, n, true),
        (Level::Raid6, 9) => of(LeftAhead, QRule::AfterP, Skip, n, true),
        (Level::Raid6, 10) => of(Left, QRule::BeforeP, Follow(1), n, true),
        (Level::Raid6, 16..=20) => five(layout - 16, QRule::Last, n - 1),
        (Level::Raid6, _) => None,
    }
}

/// A run of RAID 0 rows over the same members. Unequal members give several zones: each next one spans
/// the members that are longer than the end of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// First array sector, and the one after the last.
    pub start: u64,
    pub end: u64,
    /// First member sector of the zone, and the one after the last; the same on all its members.
    pub member_start: u64,
    pub member_end: u64,
    /// Slots of the zone, ascending.
    pub slots: Vec<u16>,
}

/// The places inside one stripe, with the rotation already worked out; cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeMap {
    p: u16,
    /// `u16::MAX` when the level has no Q.
    q: u16,
    members: u16,
    ring: u16,
    data: DataRule,
    ddf: bool,
}

const NO_Q: u16 = u16::MAX;

impl StripeMap {
    /// Slot of P.
    #[inline]
    pub fn p_slot(&self) -> u16 {
        self.p
    }

    /// Slot of Q.
    #[inline]
    pub fn q_slot(&self) -> Option<u16> {
        (self.q != NO_Q).then_some(self.q)
    }

    /// Slot of data chunk `k`.
    #[inline]
    pub fn data_slot(&self, k: u16) -> u16 {
        match self.data {
            DataRule::Follow(base) => wrap(self.p + base + k, self.ring),
            DataRule::Skip => {
                let (low, high) = (self.p.min(self.q), self.p.max(self.q));
                let slot = k + u16::from(k >= low);
                slot + u16::from(slot >= high)
            }
        }
    }

    /// What `slot` holds.
    #[inline]
    pub fn role(&self, slot: u16) -> Role {
        if slot == self.p {
            Role::P
        } else if slot == self.q {
            Role::Q
        } else {
            Role::Data(match self.data {
                DataRule::Follow(base) => wrap(slot + 2 * self.ring - self.p - base, self.ring),
                DataRule::Skip => slot - u16::from(slot > self.p) - u16::from(slot > self.q),
            })
        }
    }

    /// Exponent e so that data chunk `k` enters Q with the coefficient 2^e. MD walks the members from the
    /// one after Q and counts data chunks only; the DDF layouts take the member's number instead.
    #[inline]
    pub fn q_exponent(&self, k: u16) -> u8 {
        let slot = self.data_slot(k);
        if self.ddf || self.q == NO_Q {
            return slot as u8;
        }
        let first = wrap(self.q + 1, self.members);
        let from_first = |slot: u16| wrap(slot + self.members - first, self.members);
        let steps = from_first(slot);
        (steps - u16::from(from_first(self.p) < steps)) as u8
    }
}

/// `value` modulo `n`, for values below 3 * n: no division.
#[inline]
fn wrap(mut value: u16, n: u16) -> u16 {
    while value >= n {
        value -= n;
    }
    value
}

/// The shape of an array; immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    level: Level,
    layout: u32,
    members: u16,
    data_members: u16,
    chunk_sectors: u32,
    member_sectors: u64,
    array_sectors: u64,
    rule: Rule,
    zones: Vec<Zone>,
}

/// Checks a chunk size, in sectors, for a level.
pub fn check_chunk(level: Level, chunk_sectors: u32) -> Result<(), GeometryError> {
    let form = match level {
        Level::Raid0 => chunk_sectors.is_multiple_of(MIN_CHUNK_SECTORS),
        _ => chunk_sectors.is_power_of_two(),
    };
    match form && (MIN_CHUNK_SECTORS..=MAX_CHUNK_SECTORS).contains(&chunk_sectors) {
        true => Ok(()),
        false => Err(GeometryError::Chunk {
            level,
            chunk_sectors,
        }),
    }
}

fn check_members(level: Level, members: usize) -> Result<u16, GeometryError> {
    match u16::try_from(members) {
        Ok(n) if (level.min_members()..=MAX_MEMBERS).contains(&n) => Ok(n),
        _ => Err(GeometryError::Members { level, members }),
    }
}

fn check_size(sectors: Option<u64>) -> Result<u64, GeometryError> {
    sectors
        .filter(|&sectors| sectors <= i64::MAX as u64 / SECTOR_BYTES)
        .ok_or(GeometryError::TooLarge)
}

impl Geometry {
    /// An array of level 4, 5 or 6. `member_sectors` is what each member gives to it; the part that does
    /// not fill a chunk is left out.
    pub fn parity(
        level: Level,
        layout: u32,
        members: u16,
        chunk_sectors: u32,
        member_sectors: u64,
    ) -> Result<Geometry, GeometryError> {
        if level == Level::Raid0 {
            return Err(GeometryError::WrongFamily { level });
        }
        let members = check_members(level, usize::from(members))?;
        check_chunk(level, chunk_sectors)?;
        let rule = rule(level, layout, members).ok_or(GeometryError::Layout { level, layout })?;
        // Exponents are member numbers here, and 2^255 = 2^0: member 255 would be confused with member 0.
        if rule.ddf && members > 255 {
            return Err(GeometryError::Members {
                level,
                members: usize::from(members),
            });
        }
        let size = round_down(member_sectors, u64::from(chunk_sectors));
        if size == 0 {
            return Err(GeometryError::MemberTooSmall {
                sectors: member_sectors,
                chunk_sectors,
            });
        }
        let data_members = members - level.parities();
        let array_sectors = check_size(size.checked_mul(u64::from(data_members)))?;
        Ok(Geometry {
            level,
            layout,
            members,
            data_members,
            chunk_sectors,
            member_sectors: size,
            array_sectors,
            rule,
            zones: Vec::new(),
        })
    }

    /// A RAID 0 array over members with these usable sectors, by slot; the part of each that does not fill
    /// a chunk is left out. `layout` is 1 (original) or 2 (alternate).
    pub fn raid0(
        layout: u32,
        chunk_sectors: u32,
        data_sizes: &[u64],
    ) -> Result<Geometry, GeometryError> {
        let level = Level::Raid0;
        let members = check_members(level, data_sizes.len())?;
        check_chunk(level, chunk_sectors)?;
        if !matches!(layout, LAYOUT_ORIGINAL | LAYOUT_ALTERNATE) {
            return Err(GeometryError::Layout { level, layout });
        }
        let chunk = u64::from(chunk_sectors);
        let mut zones = Vec::new();
        let (mut start, mut member_start) = (0u64, 0u64);
        loop {
            let slots: Vec<u16> = (0..members)
                .filter(|&slot| round_down(data_sizes[usize::from(slot)], chunk) > member_start)
                .collect();
            let shortest = slots
                .iter()
                .map(|&slot| data_sizes[usize::from(slot)])
                .min();
            let Some(shortest) = shortest else { break };
            let member_end = round_down(shortest, chunk);
            let size = (member_end - member_start).checked_mul(slots.len() as u64);
            let end = check_size(size.and_then(|size| size.checked_add(start)))?;
            if zones.is_empty() && slots.len() != usize::from(members) {
                break;
            }
            zones.push(Zone {
                start,
                end,
                member_start,
                member_end,
                slots,
            });
            (start, member_start) = (end, member_end);
        }
        if zones.is_empty() {
            let sectors = data_sizes.iter().copied().min().unwrap_or(0);
            return Err(GeometryError::MemberTooSmall {
                sectors,
                chunk_sectors,
            });
        }
        Ok(Geometry {
            level,
            layout,
            members,
            data_members: members,
            chunk_sectors,
            member_sectors: member_start,
            array_sectors: start,
            rule: Rule {
                rotation: Rotation::Fixed(0),
                q: QRule::None,
                data: DataRule::Skip,
                ring: members,
                ddf: false,
            },
            zones,
        })
    }

    #[inline]
    pub fn level(&self) -> Level {
        self.level
    }

    #[inline]
    pub fn layout(&self) -> u32 {
        self.layout
    }

    #[inline]
    pub fn members(&self) -> u16 {
        self.members
    }

    /// Parity chunks in a stripe: 0, 1 or 2.
    #[inline]
    pub fn parities(&self) -> u16 {
        self.level.parities()
    }

    /// Data chunks in a stripe (RAID 0: in a row of the first zone).
    #[inline]
    pub fn data_members(&self) -> u16 {
        self.data_members
    }

    #[inline]
    pub fn chunk_sectors(&self) -> u32 {
        self.chunk_sectors
    }

    /// Sectors in use on each member (RAID 0: on the longest one), whole chunks.
    #[inline]
    pub fn member_sectors(&self) -> u64 {
        self.member_sectors
    }

    /// Size of the array in sectors.
    #[inline]
    pub fn array_sectors(&self) -> u64 {
        self.array_sectors
    }

    /// Chunks on each member (RAID 0: on the longest one).
    #[inline]
    pub fn stripes(&self) -> u64 {
        self.member_sectors / u64::from(self.chunk_sectors)
    }

    /// RAID 0 zones in order; empty for parity levels.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// The places inside `stripe`. Parity levels only.
    #[inline]
    pub fn stripe_map(&self, stripe: u64) -> StripeMap {
        debug_assert!(self.level != Level::Raid0, "RAID 0 has no stripe map");
        let Rule {
            rotation,
            q,
            data,
            ring,
            ddf,
        } = self.rule;
        let p = match rotation {
            Rotation::Left => ring - 1 - (stripe % u64::from(ring)) as u16,
            Rotation::LeftAhead => {
                ring - 1 - ((stripe % u64::from(ring) + 1) % u64::from(ring)) as u16
            }
            Rotation::Right => (stripe % u64::from(ring)) as u16,
            Rotation::Fixed(slot) => slot,
        };
        let q = match q {
            QRule::None => NO_Q,
            QRule::AfterP => wrap(p + 1, self.members),
            QRule::BeforeP => wrap(p + self.members - 1, self.members),
            QRule::Last => self.members - 1,
        };
        StripeMap {
            p,
            q,
            members: self.members,
            ring,
            data,
            ddf,
        }
    }

    /// Slot of P in `stripe`. Parity levels only.
    #[inline]
    pub fn p_slot(&self, stripe: u64) -> u16 {
        self.stripe_map(stripe).p_slot()
    }

    /// Slot of Q in `stripe`, if the level has Q. Parity levels only.
    #[inline]
    pub fn q_slot(&self, stripe: u64) -> Option<u16> {
        self.stripe_map(stripe).q_slot()
    }

    /// Slot of data chunk `k` of `stripe`. Parity levels only.
    #[inline]
    pub fn data_slot(&self, stripe: u64, k: u16) -> u16 {
        debug_assert!(k < self.data_members);
        self.stripe_map(stripe).data_slot(k)
    }

    /// What `slot` holds in `stripe`. Parity levels only.
    #[inline]
    pub fn role(&self, stripe: u64, slot: u16) -> Role {
        debug_assert!(slot < self.members);
        self.stripe_map(stripe).role(slot)
    }

    /// Exponent of data chunk `k` of `stripe` in Q. Levels with Q only.
    #[inline]
    pub fn q_exponent(&self, stripe: u64, k: u16) -> u8 {
        self.stripe_map(stripe).q_exponent(k)
    }

    /// The place of an array sector; `lba` must be below `array_sectors()`.
    #[inline]
    pub fn locate(&self, lba: u64) -> Location {
        debug_assert!(lba < self.array_sectors, "{lba} is past the end");
        if self.level == Level::Raid0 {
            return self.locate_raid0(lba);
        }
        let shift = self.chunk_sectors.trailing_zeros();
        let chunk = lba >> shift;
        let within = (lba & (u64::from(self.chunk_sectors) - 1)) as u32;
        let (stripe, k) = divide(chunk, self.data_members);
        Location {
            slot: self.stripe_map(stripe).data_slot(k),
            sector: (stripe << shift) + u64::from(within),
            left_in_chunk: self.chunk_sectors - within,
        }
    }

    #[inline]
    fn locate_raid0(&self, lba: u64) -> Location {
        let chunk_sectors = u64::from(self.chunk_sectors);
        let zone = &self.zones[self.zones.partition_point(|zone| zone.end <= lba)];
        let members = zone.slots.len() as u16;
        let (chunk, within) = (lba / chunk_sectors, (lba % chunk_sectors) as u32);
        let (row, in_row) = divide(chunk - zone.start / chunk_sectors, members);
        let index = match self.layout {
            LAYOUT_ORIGINAL => divide(chunk, members).1,
            _ => in_row,
        };
        Location {
            slot: zone.slots[usize::from(index)],
            sector: zone.member_start + row * chunk_sectors + u64::from(within),
            left_in_chunk: self.chunk_sectors - within,
        }
    }

    /// The array sector kept at this sector of a member's data area; `None` where parity or nothing lies.
    #[inline]
    pub fn inverse(&self, slot: u16, sector: u64) -> Option<u64> {
        if slot >= self.members || sector >= self.member_sectors {
            return None;
        }
        let chunk_sectors = u64::from(self.chunk_sectors);
        let within = sector % chunk_sectors;
        let chunk = if self.level == Level::Raid0 {
            let zone = &self.zones[self.zones.partition_point(|zone| zone.member_end <= sector)];
            let index = zone.slots.binary_search(&slot).ok()? as u64;
            let members = zone.slots.len() as u64;
            let row_start =
                zone.start / chunk_sectors + (sector - zone.member_start) / chunk_sectors * members;
            match self.layout {
                LAYOUT_ORIGINAL => row_start + (index + members - row_start % members) % members,
                _ => row_start + index,
            }
        } else {
            let stripe = sector / chunk_sectors;
            match self.stripe_map(stripe).role(slot) {
                Role::Data(k) => stripe * u64::from(self.data_members) + u64::from(k),
                Role::P | Role::Q => return None,
            }
        };
        Some(chunk * chunk_sectors + within)
    }
}

#[inline]
fn divide(value: u64, by: u16) -> (u64, u16) {
    (value / u64::from(by), (value % u64::from(by)) as u16)
}
