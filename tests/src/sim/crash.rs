//! Power cuts, and what the next start makes of the members.

use std::sync::Arc;

use raid_core::path::manager::Manager;
use raid_core::path::owners::Owners;
use raid_core::path::types::*;

use super::world::{BYTES, Outcome, World, manager_config};

impl World {
    /// Drops everything volatile. Of I/O in flight and of unflushed sectors, any subset survives.
    pub fn power_cut(&mut self) {
        self.log.add(|| "power cut".into());
        self.tally.crashes += 1;
        let now = self.tick();
        for q in 0..self.queues.len() {
            for mut io in std::mem::take(&mut self.queues[q].ios) {
                if self.disks[usize::from(io.slot)].gone {
                    continue;
                }
                if self.layout.parity && io.kind == IoKind::Write && !self.changes_nothing(q, &io) {
                    let rows = io.sector as usize..(io.sector + u64::from(io.sectors)) as usize;
                    self.holes[rows].fill(true);
                }
                self.transfer(q, &mut io, false);
            }
        }
        self.tally_queues();
        let mut rng = self.rng.clone();
        for disk in &mut self.disks {
            if self.layout.parity {
                for (sector, versions) in &disk.cache {
                    if versions.iter().any(|v| *v != disk.media[*sector as usize]) {
                        self.holes[*sector as usize] = true;
                    }
                }
            }
            disk.power_cut(&mut rng);
        }
        self.rng = rng;
        self.cut_bits();
        for io in std::mem::take(&mut self.records) {
            // A superblock is written as a whole or not at all.
            if !io.written && !self.disks[usize::from(io.slot)].gone && self.rng.chance(50) {
                self.disks[usize::from(io.slot)].sb = super::disk::Super {
                    events: io.record.events,
                    resync_offset: io.record.resync_offset,
                    missing: io.record.missing,
                };
            }
        }
        self.manager_mail.clear();
        self.queues.clear();
        self.oracle.all_answered(now);
    }

    /// Assembles what the members say, as MD does: one event behind is as good as fresh. An array that is dirty and degraded is
    /// started too, as if forced.
    pub fn restart(&mut self) -> Outcome {
        // A member that failed may be back: it has forgotten nothing but its cache.
        for slot in 0..self.layout.members {
            let back = self.rng.chance(50);
            let disk = &mut self.disks[usize::from(slot)];
            if self.lost.contains(slot) && back {
                (disk.gone, disk.fail_write) = (false, false);
            }
        }
        let present = |w: &World, s: u16| {
            let d = &w.disks[usize::from(s)];
            !d.gone && !d.fail_write
        };
        let fresh = (0..self.layout.members)
            .filter(|s| present(self, *s))
            .max_by_key(|s| self.disks[usize::from(*s)].sb.events)
            .expect("some member is left");
        let sb = self.disks[usize::from(fresh)].sb;
        // Both readings of MD occur: by events alone, or by what the freshest member says.
        let believe_roles = self.rng.chance(50);
        let mut missing = SlotSet::EMPTY;
        for slot in 0..self.layout.members {
            let d = &self.disks[usize::from(slot)];
            let stale = d.sb.events + 1 < sb.events;
            if self.layout.parity && stale && !self.lost.contains(slot) {
                return Err(format!(
                    "slot {slot} never failed, but is stale: {:?}",
                    d.sb
                ));
            }
            let told = believe_roles && sb.missing.contains(slot);
            if !present(self, slot) || (self.layout.parity && (stale || told)) {
                missing.insert(slot);
            } else if self.lost.contains(slot) {
                self.lost.remove(slot);
                for (hole, missed) in self.holes.iter_mut().zip(&self.missed) {
                    *hole |= *missed;
                }
            }
        }
        if missing.is_empty() {
            self.missed.fill(false);
        }
        self.log.add(|| {
            let slots: Vec<u16> = missing.iter().collect();
            let all: Vec<_> = self.disks.iter().map(|d| d.sb).collect();
            format!("restart: {sb:?}, missing {slots:?}, all {all:?}")
        });
        self.lost = self.lost.union(&missing);
        if missing.len() > usize::from(self.parities) {
            return Err(format!("too many members are stale: {missing:?}"));
        }
        let degraded = !missing.is_empty();
        if sb.resync_offset == u64::MAX {
            self.holes.fill(false);
        }
        let cfg = |unrecorded| manager_config(&self.setup, &self.layout, &sb, missing, unrecorded);
        let uneven = (0..self.layout.members)
            .filter(|s| !missing.contains(*s))
            .any(|s| self.disks[usize::from(s)].sb != sb);
        let unrecorded = degraded || (uneven && self.layout.parity);
        let mut manager = Manager::new(cfg(unrecorded));
        self.load_bits(&mut manager, &sb, &missing);
        self.settle(&missing)?;
        if degraded {
            self.miss_holes();
        }
        for slot in 0..self.layout.members {
            for sector in self.disks[usize::from(slot)].bad.clone() {
                self.blur(slot, sector);
            }
        }
        self.owners = Arc::new(Owners::new(1 << self.rng.below(7)));
        self.manager = manager;
        self.start();
        Ok(())
    }

    /// What the members hold after a power cut has to be allowed, and stays.
    fn settle(&mut self, missing: &SlotSet) -> Outcome {
        if !self.layout.parity {
            for lba in 0..self.setup.geometry.array_sectors() {
                let at = self.setup.geometry.locate(lba);
                let value = self.disks[usize::from(at.slot)].get(at.sector);
                self.survives(lba, value, at.slot)?;
            }
            return Ok(());
        }
        for band in 0..self.layout.bands() {
            let map = self.setup.geometry.stripe_map(self.layout.stripe(band));
            let data = self
                .decode(band, missing)
                .ok_or_else(|| format!("band {band} cannot be read after a power cut"))?;
            let first = self.layout.member_sector(band);
            for (k, bytes) in data.iter().enumerate() {
                let slot = map.data_slot(k as u16);
                for (row, sector) in bytes.chunks(BYTES).enumerate() {
                    let value = u64::from_ne_bytes(sector.try_into().expect("a sector"));
                    let lba = self.lba_of(band, k as u16, row as u32);
                    // The write hole: a lost chunk beside a write in flight.
                    if missing.contains(slot) && self.holes[first as usize + row] {
                        let now = self.tick();
                        self.oracle.settle(lba, value);
                        self.oracle.undefined(lba, now);
                    } else {
                        self.survives(lba, value, slot)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn survives(&mut self, lba: u64, value: u64, slot: u16) -> Outcome {
        if !self.oracle.survives(lba, value) {
            return Err(format!(
                "after a power cut sector {lba} (slot {slot}) is {value:x}; allowed: {}",
                self.oracle.describe(lba)
            ));
        }
        self.oracle.settle(lba, value);
        Ok(())
    }
}
