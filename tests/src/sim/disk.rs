//! A simulated member: sectors of eight bytes, a volatile cache, latent medium errors, and a superblock. Owns the bytes;
//! costs a map entry for every sector that is not flushed.

use std::collections::{BTreeMap, BTreeSet};

use raid_core::path::manager::Record;
use raid_core::path::types::SlotSet;

use super::rng::Rng;

/// What a superblock says, as far as the data path is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Super {
    /// Event count.
    pub events: u64,
    /// MD's resync_offset: `u64::MAX` clean, 0 dirty.
    pub resync_offset: u64,
    /// Slots that are not in the array.
    pub missing: SlotSet,
    /// This member is being filled, and whole below this sector.
    pub recovery: Option<u64>,
}

impl Super {
    /// What a record makes of the superblock of a slot.
    pub fn of(record: &Record, slot: u16) -> Super {
        Super {
            events: record.events,
            resync_offset: record.resync_offset,
            missing: record.missing,
            recovery: record.filling.contains(slot).then_some(record.recovery),
        }
    }

    /// What all members of a record have in common.
    pub fn shared(&self) -> (u64, u64, SlotSet) {
        (self.events, self.resync_offset, self.missing)
    }
}

/// One member.
#[derive(Clone, Debug)]
pub struct SimDisk {
    /// What survives a power cut for sure.
    pub media: Vec<u64>,
    /// What has been written since the last flush, oldest first: after a power cut each sector holds any one of its
    /// versions.
    pub cache: BTreeMap<u64, Vec<u64>>,
    /// Sectors whose reading fails until they are written.
    pub bad: BTreeSet<u64>,
    /// Every I/O fails.
    pub gone: bool,
    /// The next write fails.
    pub fail_write: bool,
    /// The superblock.
    pub sb: Super,
    /// There is none.
    pub blank: bool,
    /// Which device it is: another one after each exchange.
    pub generation: u32,
}

impl SimDisk {
    /// A healthy member with this content.
    pub fn new(media: Vec<u64>, sb: Super) -> SimDisk {
        SimDisk {
            media,
            cache: BTreeMap::new(),
            bad: BTreeSet::new(),
            gone: false,
            fail_write: false,
            sb,
            blank: false,
            generation: 0,
        }
    }

    /// Another device takes its place: garbage, and no superblock or an old one.
    pub fn exchange(&mut self, rng: &mut Rng) {
        let media = (0..self.media.len()).map(|_| rng.next()).collect();
        let blank = self.blank || rng.chance(50);
        *self = SimDisk {
            blank,
            generation: self.generation + 1,
            ..SimDisk::new(media, self.sb)
        };
    }

    /// It answers, and says that it belongs to the array.
    pub fn present(&self) -> bool {
        !self.gone && !self.fail_write && !self.blank
    }

    /// The sector counts after a power cut: the member is not in the middle of being filled, or it lies below the place up to
    /// which it is whole.
    pub fn counts(&self, sector: u64) -> bool {
        !self.blank && self.sb.recovery.is_none_or(|r| sector < r)
    }

    /// A superblock arrives.
    pub fn write_super(&mut self, sb: Super) {
        (self.sb, self.blank) = (sb, false);
    }

    /// What a read returns.
    pub fn get(&self, sector: u64) -> u64 {
        match self.cache.get(&sector) {
            Some(versions) => *versions.last().expect("never empty"),
            None => self.media[sector as usize],
        }
    }

    /// A sector arrives in the cache. Its medium is replaced.
    pub fn put(&mut self, sector: u64, value: u64) {
        assert!(
            (sector as usize) < self.media.len(),
            "write past the end of a member"
        );
        self.bad.remove(&sector);
        self.cache.entry(sector).or_default().push(value);
    }

    /// Empties the cache.
    pub fn flush(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.cache) {
            self.media[sector as usize] = *versions.last().expect("never empty");
        }
    }

    /// Power is cut: of every unflushed sector any version survives.
    pub fn power_cut(&mut self, rng: &mut Rng) {
        for (sector, versions) in std::mem::take(&mut self.cache) {
            let at = rng.index(versions.len() + 1);
            if at > 0 {
                self.media[sector as usize] = versions[at - 1];
            }
        }
    }
}
