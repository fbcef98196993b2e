//! Power cuts, and what the next start makes of the members.

use std::sync::Arc;

use raid_core::path::manager::{Manager, ManagerConfig};
use raid_core::path::owners::Owners;
use raid_core::path::types::*;

use super::disk::Super;
use super::setup::EdgeBug;
use super::world::{BYTES, Outcome, World, manager_config};

impl World {
    /// Drops everything volatile. Of I/O in flight and of unflushed sectors, any subset survives.
    pub fn power_cut(&mut self) {
        self.log.add(|| "power cut".into());
        self.tally.crashes += 1;
        let now = self.tick();
        for io in std::mem::take(&mut self.records) {
            // A superblock is written as a whole or not at all.
            if !io.written && !self.disks[usize::from(io.slot)].gone && self.rng.chance(50) {
                let sb = Super::of(&io.record, io.slot);
                self.disks[usize::from(io.slot)].write_super(sb);
            }
        }
        for q in 0..self.queues.len() {
            for mut io in std::mem::take(&mut self.queues[q].ios) {
                let disk = &self.disks[usize::from(io.slot)];
                if disk.gone || disk.generation != io.generation {
                    continue;
                }
                let matters = self.layout.parity && disk.counts(io.sector);
                if matters && io.kind == IoKind::Write && !self.changes_nothing(q, &io) {
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
                    let differs = versions.iter().any(|v| *v != disk.media[*sector as usize]);
                    if disk.counts(*sector) && differs {
                        self.holes[*sector as usize] = true;
                    }
                }
            }
            disk.power_cut(&mut rng);
        }
        self.rng = rng;
        self.cut_bits();
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
        let present = |w: &World, s: u16| w.disks[usize::from(s)].present();
        let accept_stale = self.setup.edge_bug == Some(EdgeBug::AcceptStale);
        let forget = self.setup.edge_bug == Some(EdgeBug::ForgetRecovery);
        let mut filling = SlotSet::EMPTY;
        let mut recovery = u64::MAX;
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
            let stale = d.sb.events + 1 < sb.events && !accept_stale;
            if self.layout.parity && stale && !self.lost.contains(slot) {
                return Err(format!(
                    "slot {slot} never failed, but is stale: {:?}",
                    d.sb
                ));
            }
            let told = believe_roles && sb.missing.contains(slot);
            if !present(self, slot) || (self.layout.parity && (stale || told)) {
                missing.insert(slot);
            } else if let Some(whole) = d.sb.recovery.filter(|_| !forget) {
                filling.insert(slot);
                recovery = recovery.min(whole);
            } else if self.lost.contains(slot) {
                self.lost.remove(slot);
                for (hole, missed) in self.holes.iter_mut().zip(&self.missed) {
                    *hole |= *missed;
                }
            }
        }
        if missing.is_empty() && filling.is_empty() {
            self.missed.fill(false);
        }
        let recovery = if filling.is_empty() { 0 } else { recovery };
        self.tally.resumed += u64::from(!filling.is_empty());
        self.tally.resumed_late += u64::from(recovery > 0);
        self.log.add(|| {
            let slots: Vec<u16> = missing.iter().collect();
            let all: Vec<_> = self.disks.iter().map(|d| d.sb).collect();
            let fill: Vec<u16> = filling.iter().collect();
            format!(
                "restart: {sb:?}, missing {slots:?}, filling {fill:?} from {recovery}, all {all:?}"
            )
        });
        self.lost = self.lost.union(&missing).union(&filling);
        if missing.union(&filling).len() > usize::from(self.parities) {
            return Err(format!("too many members are stale: {missing:?}"));
        }
        let degraded = !missing.is_empty();
        let cfg = ManagerConfig {
            missing,
            filling,
            recovery,
            ..manager_config(&self.setup, &self.layout, &sb)
        };
        let zones = View {
            missing,
            filling,
            filled: recovery / u64::from(self.layout.rows),
            ..View::default()
        };
        if sb.resync_offset == u64::MAX {
            self.holes.fill(false);
        }
        let uneven = (0..self.layout.members)
            .filter(|s| !missing.contains(*s))
            .any(|s| self.disks[usize::from(s)].sb.shared() != sb.shared());
        let mut manager = Manager::new(ManagerConfig {
            unrecorded: degraded || (uneven && self.layout.parity),
            ..cfg
        });
        self.load_bits(&mut manager, &sb, &missing);
        self.settle(&zones)?;
        if degraded || !filling.is_empty() {
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
    fn settle(&mut self, zones: &View) -> Outcome {
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
                .decode(band, &zones.lost_at(band))
                .ok_or_else(|| format!("band {band} cannot be read after a power cut"))?;
            let first = self.layout.member_sector(band);
            for (k, bytes) in data.iter().enumerate() {
                let slot = map.data_slot(k as u16);
                for (row, sector) in bytes.chunks(BYTES).enumerate() {
                    let value = u64::from_ne_bytes(sector.try_into().expect("a sector"));
                    let lba = self.lba_of(band, k as u16, row as u32);
                    // The write hole: a lost chunk beside a write in flight.
                    if zones.lost_at(band).contains(slot) && self.holes[first as usize + row] {
                        let now = self.tick();
                        self.oracle.settle(lba, value);
                        self.oracle.undefined(lba, now);
                    } else {
                        let own = self.disks[usize::from(slot)].get(first + row as u64);
                        let returns = zones.missing.contains(slot) && self.may_return(slot);
                        let also = returns && own != value && self.oracle.survives(lba, own);
                        self.survives(lba, value, slot)?;
                        if also {
                            self.oracle.also(lba, own);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A member that is left out now counts as fresh all the same, until its loss is recorded. What it holds of writes that
    /// were never answered may show then, instead of what the others say.
    fn may_return(&self, slot: u16) -> bool {
        let newest = self
            .disks
            .iter()
            .filter(|d| d.present())
            .map(|d| d.sb.events);
        let disk = &self.disks[usize::from(slot)];
        !disk.blank && disk.sb.events + 1 >= newest.max().unwrap_or(0)
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
