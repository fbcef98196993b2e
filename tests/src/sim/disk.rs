//! A simulated member: sectors of eight bytes, a volatile cache, latent medium errors, and a superblock. Owns the bytes;
//! costs a map entry for every sector that is not flushed.

use std::collections::{BTreeMap, BTreeSet};

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
        }
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
