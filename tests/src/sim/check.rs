//! What must always be true, and what must be true when nothing is in flight.

use parity_kernels::{LostData, Source};
use raid_core::path::manager::Record;
use raid_core::path::types::*;

use super::world::{BYTES, MemberIo, Outcome, World, exponent};

impl World {
    /// A request was answered.
    pub fn complete(&mut self, q: usize, tag: u16, result: Result<(), RequestError>) -> Outcome {
        let Some(active) = self.queues[q].tags[usize::from(tag)].take() else {
            return Err(format!("q{q} answers tag {tag}, which is not in flight"));
        };
        let now = self.tick();
        let Request {
            op, lba, sectors, ..
        } = active.request;
        let write = matches!(op, Op::Write | Op::WriteZeroes | Op::Discard);
        if let Err(error) = result {
            let fine = self.beyond || active.spoiled || (write && self.setup.read_only);
            if !fine {
                return Err(format!(
                    "q{q} tag {tag} {:?} failed: {error:?}",
                    active.request
                ));
            }
        } else if write && self.setup.read_only {
            return Err("a read-only array took a write".into());
        }
        let ok = result.is_ok();
        match op {
            Op::Read if ok => {
                for i in 0..u64::from(sectors) {
                    let at = i as usize * BYTES;
                    let value =
                        u64::from_ne_bytes(active.buf[at..at + BYTES].try_into().expect("sector"));
                    if !self.oracle.allows(lba + i, value, active.sent) {
                        return Err(format!(
                            "q{q} tag {tag} read {value:x} at sector {}, sent {}; allowed: {}",
                            lba + i,
                            active.sent,
                            self.oracle.describe(lba + i)
                        ));
                    }
                }
            }
            Op::Read => {}
            Op::Flush if ok => {
                self.oracle.flushed(active.sent);
                self.check_durable()?;
            }
            Op::Flush => {}
            _ => {
                let oldest = self.oldest().min(active.sent);
                // A discarded sector reads as zero or as before.
                let certain = ok && op != Op::Discard;
                for i in 0..u64::from(sectors) {
                    self.oracle
                        .answered(lba + i, active.id, certain, now, oldest);
                }
                if certain && self.layout.parity && !self.beyond {
                    self.check_missed(lba, sectors)?;
                    // Rows that were written have right parity, wherever the sweep is.
                    for i in 0..u64::from(sectors) {
                        let row = self.setup.geometry.locate(lba + i).sector;
                        self.holes[row as usize] = false;
                    }
                }
            }
        }
        Ok(())
    }

    /// A flush was acknowledged: whatever a member may lose with its cache now must not have been promised, unless the
    /// others know that it is out.
    fn check_durable(&self) -> Outcome {
        if self.beyond {
            return Ok(());
        }
        let others = (0..self.layout.members).filter(|s| !self.lost.contains(*s));
        let events = others.map(|s| self.disks[usize::from(s)].sb.events);
        let newest = events.max().unwrap_or(0);
        for slot in 0..self.layout.members {
            let disk = &self.disks[usize::from(slot)];
            if self.layout.parity && disk.sb.events + 1 < newest {
                continue;
            }
            for sector in disk.cache.keys().filter(|s| disk.counts(**s)) {
                let Some(lba) = self.setup.geometry.inverse(slot, *sector) else {
                    continue;
                };
                let value = disk.media[*sector as usize];
                if !self.oracle.survives(lba, value) {
                    return Err(format!(
                        "flush acknowledged, but slot {slot} says {:?} and has sector {sector} in its cache only",
                        disk.sb
                    ));
                }
            }
        }
        Ok(())
    }

    /// A write was acknowledged: a member that does not hold it must be known as missing, twice, to all others.
    fn check_missed(&mut self, lba: u64, sectors: u32) -> Outcome {
        let now = self.tick();
        let mut checked = SlotSet::EMPTY;
        for i in 0..u64::from(sectors) {
            let at = self.setup.geometry.locate(lba + i);
            let disk = &self.disks[usize::from(at.slot)];
            if checked.contains(at.slot) || self.oracle.allows(lba + i, disk.get(at.sector), now) {
                continue;
            }
            if !disk.counts(at.sector) {
                continue;
            }
            checked.insert(at.slot);
            let missing = self.manager.view().doubtful();
            for slot in (0..self.layout.members).filter(|s| !missing.contains(*s)) {
                let sb = &self.disks[usize::from(slot)].sb;
                // A new member that has the old superblock of the slot is stale, too.
                let out = sb.missing.contains(at.slot) || missing.contains(at.slot);
                let told = out && sb.events >= disk.sb.events + 2;
                if !told && !self.lost.contains(slot) {
                    return Err(format!(
                        "write of sector {} acknowledged, slot {} missed it and says {:?}, but slot {slot} says {sb:?}",
                        lba + i,
                        at.slot,
                        disk.sb
                    ));
                }
            }
        }
        Ok(())
    }

    /// The value that an I/O is about to write.
    fn buffer_value(&self, q: usize, io: &MemberIo, i: u32) -> u64 {
        let mut at = u64::from(i) * u64::from(SECTOR);
        for s in &io.bufs {
            if at < u64::from(s.len) {
                let byte = ((s.off + at) / u64::from(SECTOR)) as usize * BYTES;
                let arena = &self.queues[q].arena[byte..byte + BYTES];
                return u64::from_ne_bytes(arena.try_into().expect("a sector"));
            }
            at -= u64::from(s.len);
        }
        unreachable!("buffers cover the I/O")
    }

    /// A write that changes nothing: a sector that could not be read gets its content back.
    pub fn changes_nothing(&self, q: usize, io: &MemberIo) -> bool {
        let disk = &self.disks[usize::from(io.slot)];
        (0..io.sectors).all(|i| self.buffer_value(q, io, i) == disk.get(io.sector + u64::from(i)))
    }

    /// A member I/O begins.
    pub fn check_member_io(&self, q: usize, io: &MemberIo) -> Outcome {
        let covered: u64 = io.bufs.iter().map(|b| u64::from(b.len)).sum();
        let needs = matches!(io.kind, IoKind::Read | IoKind::Write);
        if needs && covered != u64::from(io.sectors) * u64::from(SECTOR) {
            return Err(format!("q{q} {io:?}: buffers do not fit"));
        }
        if !self.layout.parity || io.kind != IoKind::Write {
            return Ok(());
        }
        if self.setup.read_only {
            return Err(format!("q{q} writes to a read-only array: {io:?}"));
        }
        let end = |io: &MemberIo| io.sector + u64::from(io.sectors);
        for other in self.queues.iter().flat_map(|q| &q.ios) {
            if other.kind == IoKind::Write
                && other.slot == io.slot
                && other.sector < end(io)
                && io.sector < end(other)
            {
                return Err(format!("two writes at once: q{q} {io:?} and {other:?}"));
            }
        }
        let view = self.manager.view();
        let disk = &self.disks[usize::from(io.slot)];
        if self.beyond || self.corrupted || !disk.counts(io.sector) {
            return Ok(());
        }
        if !self.changes_nothing(q, io) {
            self.check_bit(q, io)?;
        }
        let missing = view.missing;
        for slot in (0..self.layout.members).filter(|s| !missing.contains(*s)) {
            let sb = &self.disks[usize::from(slot)].sb;
            if !self.lost.contains(slot)
                && sb.resync_offset > io.sector
                && !self.changes_nothing(q, io)
            {
                return Err(format!("q{q} writes while slot {slot} says {sb:?}: {io:?}"));
            }
        }
        Ok(())
    }

    /// Superblocks are about to be written.
    pub fn check_record(&self, record: &Record) -> Outcome {
        if !self.layout.parity || self.setup.read_only {
            return Err(format!("nothing may be recorded here: {record:?}"));
        }
        for slot in record.targets.iter() {
            let disk = &self.disks[usize::from(slot)];
            if record.missing.contains(slot) || record.events < disk.sb.events {
                return Err(format!(
                    "{record:?} to slot {slot}, which says {:?}",
                    disk.sb
                ));
            }
            if self.lost.contains(slot) || self.corrupted || self.setup.edge_bug.is_some() {
                continue;
            }
            let loose = disk.cache.iter().find(|(s, versions)| {
                **s < record.resync_offset
                    && versions.iter().any(|v| *v != disk.media[**s as usize])
            });
            if let Some((sector, _)) = loose {
                return Err(format!(
                    "{record:?}, but slot {slot} has not flushed sector {sector}"
                ));
            }
        }
        for slot in record.filling.iter() {
            if !self.beyond {
                self.check_checkpoint(record, slot)?;
            }
        }
        for (q, queue) in self.queues.iter().enumerate() {
            for io in &queue.ios {
                if io.kind == IoKind::Write
                    && !self.corrupted
                    && io.sector < record.resync_offset
                    && !self.lost.contains(io.slot)
                    && !self.changes_nothing(q, io)
                {
                    return Err(format!("{record:?}, but q{q} is writing: {io:?}"));
                }
            }
        }
        Ok(())
    }

    /// What a checkpoint says about a member that is being filled must hold for its medium by now.
    fn check_checkpoint(&self, record: &Record, slot: u16) -> Outcome {
        let disk = &self.disks[usize::from(slot)];
        for sector in 0..record.recovery.min(disk.media.len() as u64) {
            let Some(lba) = self.setup.geometry.inverse(slot, sector) else {
                continue;
            };
            if !self.oracle.survives(lba, disk.media[sector as usize]) {
                return Err(format!(
                    "{record:?}, but slot {slot} does not hold sector {sector} for good"
                ));
            }
        }
        Ok(())
    }

    /// Bytes of a band on one member.
    fn band_bytes(&self, band: u64, slot: u16) -> Vec<u8> {
        let first = self.layout.member_sector(band);
        (first..first + u64::from(self.layout.rows))
            .flat_map(|s| self.disks[usize::from(slot)].get(s).to_ne_bytes())
            .collect()
    }

    /// The data chunks of a band, read without these slots. None if that is too much.
    pub fn decode(&self, band: u64, without: &SlotSet) -> Option<Vec<Vec<u8>>> {
        let stripe = self.layout.stripe(band);
        let map = self.setup.geometry.stripe_map(stripe);
        let mut data: Vec<Vec<u8>> = (0..self.layout.data)
            .map(|k| self.band_bytes(band, map.data_slot(k)))
            .collect();
        let lost: Vec<u16> = (0..self.layout.data)
            .filter(|k| without.contains(map.data_slot(*k)))
            .collect();
        let parity = |slot: u16| (!without.contains(slot)).then(|| self.band_bytes(band, slot));
        let p = parity(map.p_slot());
        let q = map.q_slot().and_then(parity);
        let mut outs: Vec<Vec<u8>> = lost.iter().map(|_| vec![0; data[0].len()]).collect();
        {
            let sources: Vec<Source> = (0..self.layout.data)
                .filter(|k| !lost.contains(k))
                .map(|k| Source {
                    data: &data[usize::from(k)],
                    exp: exponent(&self.layout, stripe, k),
                })
                .collect();
            let mut wanted: Vec<LostData> = outs
                .iter_mut()
                .zip(&lost)
                .map(|(out, k)| LostData {
                    out,
                    exp: exponent(&self.layout, stripe, *k),
                })
                .collect();
            self.engine
                .recover(&sources, p.as_deref(), q.as_deref(), &mut wanted)
                .ok()?;
        }
        for (k, out) in lost.iter().zip(outs) {
            data[usize::from(*k)] = out;
        }
        Some(data)
    }

    /// Array sector of a row of a data chunk.
    pub fn lba_of(&self, band: u64, k: u16, row: u32) -> u64 {
        let g = &self.setup.geometry;
        let within = (band % u64::from(self.layout.per_stripe)) * u64::from(self.layout.rows);
        (self.layout.stripe(band) * u64::from(self.layout.data) + u64::from(k))
            * u64::from(g.chunk_sectors())
            + within
            + u64::from(row)
    }

    /// Nothing is in flight: every sector is right, with every tolerable loss, and parity matches.
    pub fn check_quiet(&mut self) -> Outcome {
        if self.beyond {
            return Ok(());
        }
        let now = self.tick();
        if !self.layout.parity {
            for lba in 0..self.setup.geometry.array_sectors() {
                let at = self.setup.geometry.locate(lba);
                let value = self.disks[usize::from(at.slot)].get(at.sector);
                if !self.oracle.allows(lba, value, now) {
                    return Err(self.wrong("at rest", lba, value));
                }
            }
            return Ok(());
        }
        let missing = self.manager.view().missing;
        let n = self.layout.members;
        for band in 0..self.layout.bands() {
            let first = self.layout.member_sector(band) as usize;
            let covered = !self.holes[first..first + self.layout.rows as usize].contains(&true);
            let mut without = missing;
            if covered {
                // One more loss, or two, drawn anew for every band.
                while without.len() < usize::from(self.parities) && self.rng.chance(80) {
                    without.insert(self.rng.below(u64::from(n)) as u16);
                }
                self.check_parity(band, &missing)?;
            }
            self.check_band(band, &missing, now)?;
            if without != missing {
                self.check_band(band, &without, now)?;
            }
        }
        Ok(())
    }

    fn check_band(&self, band: u64, without: &SlotSet, now: u64) -> Outcome {
        let Some(data) = self.decode(band, without) else {
            return Err(format!("band {band} cannot be read without {without:?}"));
        };
        for (k, bytes) in data.iter().enumerate() {
            for (row, sector) in bytes.chunks(BYTES).enumerate() {
                let value = u64::from_ne_bytes(sector.try_into().expect("a sector"));
                let lba = self.lba_of(band, k as u16, row as u32);
                if !self.oracle.allows(lba, value, now) {
                    let slots: Vec<u16> = without.iter().collect();
                    return Err(self.wrong(&format!("at rest without {slots:?}"), lba, value));
                }
            }
        }
        Ok(())
    }

    fn wrong(&self, when: &str, lba: u64, value: u64) -> String {
        let at = self.setup.geometry.locate(lba);
        format!(
            "{when}: sector {lba} (slot {} sector {}) is {value:x}; allowed: {}",
            at.slot,
            at.sector,
            self.oracle.describe(lba)
        )
    }

    /// P and Q of a band agree with its data.
    pub fn check_parity(&self, band: u64, missing: &SlotSet) -> Outcome {
        let stripe = self.layout.stripe(band);
        let map = self.setup.geometry.stripe_map(stripe);
        let Some(data) = self.decode(band, missing) else {
            return Err(format!("band {band} cannot be read"));
        };
        let sources: Vec<Source> = data
            .iter()
            .enumerate()
            .map(|(k, d)| Source {
                data: d,
                exp: exponent(&self.layout, stripe, k as u16),
            })
            .collect();
        let parity = |slot: u16| (!missing.contains(slot)).then(|| self.band_bytes(band, slot));
        let p = parity(map.p_slot());
        let q = map.q_slot().and_then(parity);
        let found = self.engine.check(&sources, p.as_deref(), q.as_deref());
        if found.any() {
            return Err(format!(
                "parity of band {band} (stripe {stripe}) is wrong: {found:?}"
            ));
        }
        Ok(())
    }
}
