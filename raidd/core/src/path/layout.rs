//! Where bands are: array sector, member sector, buffer. Thin arithmetic over [`Geometry`], for parity levels.

use super::types::{BAND_SECTORS, Buf, BufSlice, SECTOR};
use crate::geometry::{Geometry, Level, Role};

/// Geometry seen as bands.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The array.
    pub geometry: Geometry,
    /// Rows of a band, in sectors: the chunk, at most [`BAND_SECTORS`].
    pub rows: u32,
    /// Bands in one stripe.
    pub per_stripe: u32,
    /// Members.
    pub members: u16,
    /// Data chunks in a stripe.
    pub data: u16,
    /// Whether bands exist at all (not RAID 0).
    pub parity: bool,
}

/// A place inside a band.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which band.
    pub band: u64,
    /// Data index.
    pub k: u16,
    /// First sector within the band.
    pub first: u32,
    /// Sectors to the end of the band in this chunk.
    pub left: u32,
}

impl Layout {
    /// Cuts the stripes of `geometry` into bands.
    pub fn new(geometry: Geometry) -> Layout {
        let parity = geometry.level() != Level::Raid0;
        let rows = geometry.chunk_sectors().min(BAND_SECTORS);
        Layout {
            rows,
            per_stripe: geometry.chunk_sectors() / rows,
            members: geometry.members(),
            data: geometry.data_members(),
            parity,
            geometry,
        }
    }

    /// All bands of the array.
    pub fn bands(&self) -> u64 {
        self.geometry.stripes() * u64::from(self.per_stripe)
    }

    /// The stripe of a band.
    #[inline]
    pub fn stripe(&self, band: u64) -> u64 {
        band / u64::from(self.per_stripe)
    }

    /// First sector of a band on every member, without data_offset.
    #[inline]
    pub fn member_sector(&self, band: u64) -> u64 {
        band * u64::from(self.rows)
    }

    /// Where an array sector is.
    #[inline]
    pub fn place(&self, lba: u64) -> Place {
        let chunk = u64::from(self.geometry.chunk_sectors());
        let number = lba / chunk;
        let within = (lba % chunk) as u32;
        let stripe = number / u64::from(self.data);
        Place {
            band: stripe * u64::from(self.per_stripe) + u64::from(within / self.rows),
            k: (number % u64::from(self.data)) as u16,
            first: within % self.rows,
            left: self.rows - within % self.rows,
        }
    }

    /// Where a sector of a member's data area is, if it holds data.
    pub fn place_on_member(&self, slot: u16, sector: u64) -> Option<Place> {
        let band = sector / u64::from(self.rows);
        match self.geometry.role(self.stripe(band), slot) {
            Role::Data(k) => Some(Place {
                band,
                k,
                first: (sector % u64::from(self.rows)) as u32,
                left: self.rows - (sector % u64::from(self.rows)) as u32,
            }),
            Role::P | Role::Q => None,
        }
    }

    /// Bytes of one frame: one chunk row of every member.
    pub fn frame_bytes(&self) -> u64 {
        u64::from(self.members) * u64::from(self.rows) * u64::from(SECTOR)
    }

    /// Sectors `lo..hi` of a slot in a frame.
    #[inline]
    pub fn slice(&self, frame: u32, slot: u16, lo: u32, hi: u32) -> BufSlice {
        let sectors =
            (u64::from(frame) * u64::from(self.members) + u64::from(slot)) * u64::from(self.rows);
        BufSlice {
            buf: Buf::Arena,
            off: (sectors + u64::from(lo)) * u64::from(SECTOR),
            len: (hi - lo) * SECTOR,
        }
    }
}
