//! Grouping of writes by band: who works on a band, what has gathered for it, and when it is issued.
//!
//! A band has an entry here while anything is gathered for it or an operation works on it; the entry goes with the owner
//! word. What arrives while an operation runs gathers for the next one, so a contended band is written in batches.

use super::ops::{OpKind, OpState, Phase};
use super::plan;
use super::queue::QueueCore;
use super::slab::NONE;
use super::types::*;

/// Where an entry waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    No,
    Partial,
    Full,
    /// For its bit in the bitmap.
    Parked,
}

/// A singly linked list of segs in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub head: u32,
    pub tail: u32,
}

impl List {
    pub const EMPTY: List = List {
        head: NONE,
        tail: NONE,
    };

    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// An active band.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Band {
    pub band: u64,
    /// The operation at work, or none.
    pub op: u32,
    pub writes: List,
    pub reads: List,
    /// Data chunks that are gathered in full.
    pub full: u16,
    pub ready: Ready,
    /// Pass in which the first write was gathered.
    pub born: u64,
    /// Some gathered write belongs to a request of at least a chunk.
    pub large: bool,
    /// The sweep waits for this band.
    pub sweep: bool,
    /// Taken although another queue owns it.
    #[cfg(feature = "planted-bugs")]
    pub stolen: bool,
}

impl QueueCore {
    pub(crate) fn full_mask(&self) -> u128 {
        plan::span(0, self.layout.rows)
    }

    pub(crate) fn push_seg(&mut self, list: List, seg: Seg) -> List {
        let key = self
            .segs
            .insert((seg, NONE))
            .expect("checked by the caller");
        if list.is_empty() {
            List {
                head: key,
                tail: key,
            }
        } else {
            self.segs[list.tail].1 = key;
            List {
                head: list.head,
                tail: key,
            }
        }
    }

    pub(crate) fn append(&mut self, a: List, b: List) -> List {
        if a.is_empty() {
            return b;
        }
        if b.is_empty() {
            return a;
        }
        self.segs[a.tail].1 = b.head;
        List {
            head: a.head,
            tail: b.tail,
        }
    }

    /// Room for one more seg and its band.
    pub(crate) fn seg_room(&self) -> bool {
        self.segs.available() > 0
            && self.bands.available() > 0
            && self.forwarded < self.forward_limit
    }

    /// Splits a write into segs, one for each chunk of each band. False if the pools are empty: go on later.
    pub(crate) fn admit_parity_write(&mut self, tag: u16, out: &mut Actions) -> bool {
        let Request {
            op, lba, sectors, ..
        } = self.reqs[usize::from(tag)].request;
        let kind = if op == Op::Write {
            SegKind::Write
        } else {
            SegKind::Zero
        };
        let large = sectors >= self.layout.geometry.chunk_sectors();
        loop {
            let cursor = self.reqs[usize::from(tag)].cursor;
            if cursor == sectors {
                return true;
            }
            if !self.seg_room() {
                return false;
            }
            let place = self.layout.place(lba + u64::from(cursor));
            let count = place.left.min(sectors - cursor);
            let seg = Seg {
                origin: self.cfg.queue,
                tag,
                kind,
                k: place.k,
                first: place.first as u8,
                count: count as u8,
                // Only requests that carry bytes use it, and those are far below 4 GiB.
                req_off: cursor.wrapping_mul(SECTOR),
                large,
            };
            let req = &mut self.reqs[usize::from(tag)];
            req.cursor += count;
            req.pending += 1;
            self.route(place.band, seg, out);
        }
    }

    /// Takes what other queues have sent, as far as there is room.
    pub(crate) fn take_foreign(&mut self, out: &mut Actions) {
        while self.segs.available() > 0 && self.bands.available() > 0 {
            let Some((band, seg)) = self.foreign.pop_front() else {
                return;
            };
            self.route(band, seg, out);
        }
    }

    /// Gathers a seg here, or sends it to the queue that owns the band.
    pub(crate) fn route(&mut self, band: u64, seg: Seg, out: &mut Actions) {
        match self.own(band) {
            Ok(entry) => self.gather(entry, seg),
            Err(owner) => {
                if seg.origin == self.cfg.queue {
                    self.forwarded += 1;
                }
                self.stats.forwarded += 1;
                out.list.push(Action::Send {
                    to: Peer::Queue(owner),
                    msg: Msg::Seg { band, seg },
                });
            }
        }
    }

    /// The entry of a band that this queue owns, taking it if it is free.
    pub(crate) fn own(&mut self, band: u64) -> Result<u32, u16> {
        if let Some(entry) = self.band_index.get(&band) {
            return Ok(*entry);
        }
        let taken = self.owners.take(band, self.cfg.queue);
        #[cfg(feature = "planted-bugs")]
        let stolen = taken.is_err() && self.bug(super::queue::Bug::NoOwner);
        #[cfg(feature = "planted-bugs")]
        let taken = if stolen { Ok(()) } else { taken };
        taken?;
        let entry = self
            .bands
            .insert(Band {
                band,
                op: NONE,
                writes: List::EMPTY,
                reads: List::EMPTY,
                full: 0,
                ready: Ready::No,
                born: self.pass,
                large: false,
                sweep: false,
                #[cfg(feature = "planted-bugs")]
                stolen,
            })
            .expect("checked by the caller");
        self.clear_masks(entry);
        self.band_index.insert(band, entry);
        Ok(entry)
    }

    fn clear_masks(&mut self, entry: u32) {
        let d = usize::from(self.layout.data);
        self.band_masks[entry as usize * d..][..d].fill(0);
    }

    fn gather(&mut self, entry: u32, seg: Seg) {
        if seg.kind == SegKind::Recover {
            let list = self.bands[entry].reads;
            self.bands[entry].reads = self.push_seg(list, seg);
            let e = &self.bands[entry];
            if e.op == NONE {
                self.ready_reads.push_back((entry, e.band));
            }
            return;
        }
        let full_mask = self.full_mask();
        let d = usize::from(self.layout.data);
        let mask = &mut self.band_masks[entry as usize * d + usize::from(seg.k)];
        let before = *mask;
        *mask |= plan::span(
            u32::from(seg.first),
            u32::from(seg.first) + u32::from(seg.count),
        );
        let filled = before != full_mask && *mask == full_mask;
        let list = self.bands[entry].writes;
        if !list.is_empty() {
            let last = &self.segs[list.tail].0;
            if (last.origin, last.tag) != (seg.origin, seg.tag) {
                self.stats.merged += 1;
            }
        }
        let list = self.push_seg(list, seg);
        let pass = self.pass;
        let e = &mut self.bands[entry];
        if e.writes.is_empty() {
            e.born = pass;
            e.large = false;
        }
        e.writes = list;
        e.full += u16::from(filled);
        e.large |= seg.large;
        self.schedule(entry);
    }

    /// Puts an entry without an operation into the line that it belongs to.
    pub(crate) fn schedule(&mut self, entry: u32) {
        let data = self.layout.data;
        let e = &mut self.bands[entry];
        // A band that the sweep waits for is let go to it first, or a busy band would never be swept.
        if e.op != NONE || e.writes.is_empty() || e.sweep || e.ready == Ready::Parked {
            return;
        }
        if e.full == data {
            if e.ready != Ready::Full {
                e.ready = Ready::Full;
                self.ready_full.push(entry);
            }
        } else if e.ready == Ready::No {
            e.ready = Ready::Partial;
            self.ready_partial.push_back((entry, e.band));
        }
    }

    /// After an operation: start what has gathered, or give the band back.
    pub(crate) fn band_idle(&mut self, band: u64) {
        let entry = self.band_index[&band];
        let e = &mut self.bands[entry];
        e.op = NONE;
        if !e.reads.is_empty() {
            self.ready_reads.push_back((entry, band));
        }
        if e.reads.is_empty() && e.writes.is_empty() && !e.sweep {
            let _gone = self.bands.remove(entry);
            self.band_index.remove(&band);
            #[cfg(feature = "planted-bugs")]
            if _gone.stolen {
                return;
            }
            self.owners.release(band, self.cfg.queue);
        } else {
            self.schedule(entry);
        }
    }

    /// Moves the gathered writes of an entry to an operation.
    fn hand_over(&mut self, entry: u32, op: u32) -> List {
        let e = &mut self.bands[entry];
        let list = std::mem::replace(&mut e.writes, List::EMPTY);
        e.op = op;
        e.full = 0;
        e.large = false;
        e.ready = Ready::No;
        list
    }

    /// A band that the sweep or a decode has taken or reserved leaves the line that it waits in; [`QueueCore::band_idle`]
    /// puts it into line again.
    fn leave_line(&mut self, entry: u32, line: Ready) {
        #[cfg(feature = "planted-bugs")]
        if self.bug(super::queue::Bug::KeepLine) {
            return;
        }
        if let Some(e) = self.bands.get_mut(entry)
            && e.ready == line
            && (e.op != NONE || e.sweep)
        {
            e.ready = Ready::No;
        }
    }

    /// Issues bands that are gathered in full, adjacent ones as one operation.
    pub(crate) fn issue_full(&mut self, out: &mut Actions) {
        if self.ready_full.is_empty() {
            return;
        }
        let mut ready =
            std::mem::replace(&mut self.ready_full, std::mem::take(&mut self.full_scratch));
        for entry in &ready {
            self.leave_line(*entry, Ready::Full);
            let waits = |e: &&Band| e.ready == Ready::Full;
            if let Some(band) = self.bands.get(*entry).filter(waits).map(|e| e.band) {
                self.wait_for_bit(*entry, band, out);
            }
        }
        ready.retain(|e| {
            let waits = |b: &Band| b.ready == Ready::Full && b.op == NONE && !b.sweep;
            self.bands.get(*e).is_some_and(waits)
        });
        ready.sort_unstable_by_key(|e| self.bands[*e].band);
        // An entry is in line twice if a decode took it from the line and ended at once.
        ready.dedup();
        let mut rest = ready.as_slice();
        while let Some(&first) = rest.first() {
            let start = self.bands[first].band;
            let mut run = 1;
            while run < rest.len()
                && run < MAX_RUN
                && self.bands[rest[run]].band == start + run as u64
            {
                run += 1;
            }
            run = run.min(self.frames.len());
            if !self.view.filling.is_empty() {
                // All bands of a run go to the same members.
                let zone = self.view.fill_end.saturating_sub(start);
                run = run.min(if zone == 0 { run } else { zone as usize });
            }
            if run == 0 || self.ops.available() == 0 {
                break;
            }
            self.start_full(start, &rest[..run], out);
            rest = &rest[run..];
        }
        self.ready_full.extend_from_slice(rest);
        ready.clear();
        self.full_scratch = ready;
    }

    fn start_full(&mut self, first: u64, entries: &[u32], out: &mut Actions) {
        let mut state = OpState::new(OpKind::Write, first, self.view.missing);
        state.absent = self.view.absent_at(first);
        state.strategy = plan::Strategy::Encode;
        state.hi = self.layout.rows;
        state.phase = Phase::Building;
        state.full = true;
        let op = self.ops.insert(state).expect("checked by the caller");
        self.write_begins(op);
        let d = usize::from(self.layout.data);
        let full_mask = self.full_mask();
        self.op_masks[op as usize * d..][..d].fill(full_mask);
        let mut run = None;
        for (i, entry) in entries.iter().enumerate() {
            let frame = self.frames.pop().expect("counted by the caller");
            let list = self.hand_over(*entry, op);
            self.clear_masks(*entry);
            let band = first + i as u64;
            self.copy_in(list, band, frame, &mut run, out);
            let joined = self.append(self.ops[op].segs, list);
            let state = &mut self.ops[op];
            state.segs = joined;
            state.frames[i] = frame;
            state.count = i + 1;
            self.stats.full += 1;
        }
        self.end_copy(&mut run, out);
        for i in 0..entries.len() {
            let frame = self.ops[op].frames[i];
            self.encode(first + i as u64, frame, 0, self.layout.rows, out);
        }
        out.list.push(Action::Fence { op });
    }

    /// Issues bands that are gathered in part, unless the rest is likely to follow in a moment.
    pub(crate) fn issue_partial(&mut self, out: &mut Actions) {
        for _ in 0..self.ready_partial.len() {
            let Some((entry, band)) = self.ready_partial.pop_front() else {
                return;
            };
            let Some(e) = self.bands.get(entry) else {
                continue;
            };
            if e.band != band || e.ready != Ready::Partial {
                continue;
            }
            if e.op != NONE || e.sweep {
                self.leave_line(entry, Ready::Partial);
                continue;
            }
            // Something is in flight, so the next pass comes soon by itself.
            let young = self.pass < e.born + self.cfg.defer_passes;
            if e.large && young && self.ios.in_use() > 0 {
                self.ready_partial.push_back((entry, band));
                continue;
            }
            if self.wait_for_bit(entry, band, out) {
                continue;
            }
            if self.frames.is_empty() || self.ops.available() == 0 {
                self.ready_partial.push_front((entry, band));
                return;
            }
            let mut state = OpState::new(OpKind::Write, band, self.view.missing);
            state.count = 1;
            state.frames[0] = self.frames.pop().expect("checked above");
            let op = self.ops.insert(state).expect("checked above");
            let d = usize::from(self.layout.data);
            for k in 0..d {
                self.op_masks[op as usize * d + k] = self.band_masks[entry as usize * d + k];
            }
            self.ops[op].segs = self.hand_over(entry, op);
            self.clear_masks(entry);
            self.write_begins(op);
            self.plan_write(op, out);
        }
    }

    /// Starts the decoding of chunks whose member cannot be read.
    pub(crate) fn issue_reads(&mut self, out: &mut Actions) {
        while let Some((entry, band)) = self.ready_reads.front().copied() {
            let stale = self
                .bands
                .get(entry)
                .is_none_or(|e| e.band != band || e.op != NONE || e.reads.is_empty() || e.sweep);
            if !stale {
                if self.frames.is_empty() || self.ops.available() == 0 {
                    return;
                }
                let mut state = OpState::new(OpKind::Recover, band, self.view.missing);
                state.count = 1;
                state.frames[0] = self.frames.pop().expect("checked above");
                state.segs = std::mem::replace(&mut self.bands[entry].reads, List::EMPTY);
                let op = self.ops.insert(state).expect("checked above");
                self.bands[entry].op = op;
                self.bands[entry].ready = Ready::No;
                self.plan_decode(op, out);
            }
            self.ready_reads.pop_front();
        }
    }
}
