//! A partial write of one band: its reads, the new bytes and their parity, its writes. Owns no state beyond the operation's;
//! costs one member I/O for each chunk that the strategy names.

#[cfg(feature = "planted-bugs")]
use super::bands::List;
use super::ops::{OpState, Phase};
use super::plan::{self, Strategy};
use super::queue::QueueCore;
use super::types::*;

impl QueueCore {
    /// Chooses a strategy for a partial write and starts its reads. Also called again when a read has failed: then all data is
    /// read that is left, the failed in pieces.
    pub(crate) fn plan_write(&mut self, op: u32, out: &mut Actions) {
        let band = self.ops[op].first;
        self.ops[op].missing = self.view.lost_at(band);
        self.ops[op].absent = self.view.absent_at(band);
        #[cfg(feature = "planted-bugs")]
        if self.bug(super::queue::Bug::SkipFilling) {
            self.ops[op].absent = self.ops[op].missing;
        }
        self.ops[op].again = false;
        let state = &self.ops[op];
        let OpState {
            missing, absent, ..
        } = *state;
        let failed = state.troubled || !state.bad.is_empty();
        if self.trouble(op).is_some_and(|t| t.too_many) {
            return self.op_fail(op, RequestError::Medium, out);
        }
        let map = self.map(band);
        let d = usize::from(self.layout.data);
        let masks = &self.op_masks[op as usize * d..][..d];
        let q_slot = map.q_slot();
        let p_ok = !missing.contains(map.p_slot());
        let q_ok = q_slot.is_some_and(|q| !missing.contains(q));
        // A parity member that is being filled cannot be read here, but has to be right in the rows that are touched.
        let filled = |slot: u16| missing.contains(slot) && !absent.contains(slot);
        let made = missing != absent && (filled(map.p_slot()) || q_slot.is_some_and(filled));
        let trusted = band < self.view.synced || self.never_needed(band);
        #[cfg(feature = "planted-bugs")]
        let trusted = trusted || self.bug(super::queue::Bug::TrustStaleParity);
        let mut choice = plan::choose(
            masks,
            |k| !missing.contains(map.data_slot(k)),
            p_ok,
            q_ok,
            made,
            trusted,
        );
        if failed && !matches!(choice.strategy, Strategy::Plain | Strategy::Impossible) {
            choice.strategy = Strategy::Recover;
            (choice.lo, choice.hi) = self.whole_pieces(op, choice.lo, choice.hi);
        }
        let state = &mut self.ops[op];
        state.strategy = choice.strategy;
        state.lo = choice.lo;
        state.hi = choice.hi;
        state.phase = Phase::Reading;
        let (lo, hi) = (choice.lo, choice.hi);
        match choice.strategy {
            Strategy::Plain => {}
            Strategy::Encode => {
                self.stats.encodes += 1;
                for k in 0..self.layout.data {
                    let need = plan::span(lo, hi) & !self.op_mask(op, k);
                    if let Some(rows) = plan::hull(need) {
                        let slot = map.data_slot(k);
                        self.op_io(op, 0, IoKind::Read, slot, slot, rows, out);
                    }
                }
            }
            Strategy::Update => {
                self.stats.updates += 1;
                for (k, spare) in self.touched(op) {
                    let rows = plan::hull(self.op_mask(op, k)).expect("touched");
                    self.op_io(
                        op,
                        0,
                        IoKind::Read,
                        map.data_slot(k),
                        map.data_slot(spare),
                        rows,
                        out,
                    );
                }
                if p_ok {
                    self.op_io(
                        op,
                        0,
                        IoKind::Read,
                        map.p_slot(),
                        map.p_slot(),
                        (lo, hi),
                        out,
                    );
                }
                if let Some(q) = q_slot.filter(|_| q_ok) {
                    self.op_io(op, 0, IoKind::Read, q, q, (lo, hi), out);
                }
            }
            Strategy::Recover => {
                self.stats.recovers += 1;
                if !self.read_to_recover(op, false, out) {
                    return self.op_fail(op, RequestError::Medium, out);
                }
            }
            Strategy::Impossible => return self.op_fail(op, RequestError::Io, out),
        }
        if self.ops[op].pending == 0 {
            self.reads_done(op, out);
        }
    }

    /// All is read: compute what is lost, or go on with the new bytes.
    pub(crate) fn write_read_done(&mut self, op: u32, out: &mut Actions) {
        if self.ops[op].strategy != Strategy::Recover {
            return self.build(op, out);
        }
        let jobs = out.list.len();
        let hopeless = self.recover_rows(op, 0, out);
        let touched = (0..self.layout.data).fold(0, |a, k| a | self.op_mask(op, k));
        if hopeless & touched != 0 {
            out.list.truncate(jobs);
            return self.op_fail(op, RequestError::Medium, out);
        }
        self.ops[op].phase = Phase::Recovering;
        out.list.push(Action::Fence { op });
    }

    /// Touched data chunks, each with an untouched one whose buffer takes the old data.
    fn touched(&self, op: u32) -> impl Iterator<Item = (u16, u16)> + use<> {
        let d = self.layout.data;
        let mut pairs = [(0u16, 0u16); 128];
        let (mut count, mut spare) = (0, 0);
        for k in 0..d {
            if self.op_mask(op, k) == 0 {
                continue;
            }
            while self.op_mask(op, spare) != 0 {
                spare += 1;
            }
            pairs[count] = (k, spare);
            count += 1;
            spare += 1;
        }
        pairs.into_iter().take(count)
    }

    /// Copies the new bytes in and makes the parity.
    pub(crate) fn build(&mut self, op: u32, out: &mut Actions) {
        let state = &mut self.ops[op];
        state.phase = Phase::Building;
        let OpState {
            first: band,
            strategy,
            lo,
            hi,
            segs,
            ..
        } = *state;
        let frame = state.frames[0];
        let mut run = None;
        self.copy_in(segs, band, frame, &mut run, out);
        self.end_copy(&mut run, out);
        match strategy {
            Strategy::Update => {
                let map = self.map(band);
                let gone = self.ops[op].unreadable().union(&self.view.missing);
                let usable = |slot: &u16| !gone.contains(*slot);
                let p = Some(map.p_slot()).filter(usable);
                let q = map.q_slot().filter(usable);
                for (k, spare) in self.touched(op) {
                    for (a, b) in plan::runs(self.op_mask(op, k)) {
                        let slice = |slot: u16| self.layout.slice(frame, slot, a, b);
                        let (p, q) = (p.map(slice), q.map(slice));
                        if p.is_some() || q.is_some() {
                            out.list.push(Action::Compute(Job::Update {
                                old: slice(map.data_slot(spare)),
                                new: slice(map.data_slot(k)),
                                exp: map.q_exponent(k),
                                p,
                                q,
                            }));
                        }
                    }
                }
            }
            Strategy::Encode => self.encode(band, frame, lo, hi, out),
            Strategy::Recover => {
                for (lo, hi) in plan::runs(self.good_rows(op)) {
                    self.encode(band, frame, lo, hi, out);
                }
            }
            Strategy::Plain | Strategy::Impossible => {}
        }
        out.list.push(Action::Fence { op });
    }

    pub(crate) fn write_out(&mut self, op: u32, out: &mut Actions) {
        let state = &mut self.ops[op];
        state.phase = Phase::Writing;
        let OpState {
            first: band,
            count,
            full,
            strategy,
            ..
        } = *state;
        let gone = self.view.missing.union(&state.absent);
        #[cfg(feature = "planted-bugs")]
        if !full && self.bug(super::queue::Bug::AckBeforeWrite) {
            let segs = std::mem::replace(&mut self.ops[op].segs, List::EMPTY);
            self.answer(segs, Ok(()), out);
        }
        if full {
            debug_assert!(count >= 1);
            for slot in (0..self.layout.members).filter(|s| !gone.contains(*s)) {
                self.run_io(op, IoKind::Write, slot, out);
            }
        } else {
            let map = self.map(band);
            let good = self.good_rows(op);
            for k in 0..self.layout.data {
                let slot = map.data_slot(k);
                if gone.contains(slot) {
                    continue;
                }
                let heal = match strategy {
                    Strategy::Recover => self.bad_rows(op, slot) & good,
                    _ => 0,
                };
                for rows in plan::runs(self.op_mask(op, k) | heal) {
                    self.op_io(op, 0, IoKind::Write, slot, slot, rows, out);
                }
            }
            if strategy != Strategy::Plain {
                for slot in [Some(map.p_slot()), map.q_slot()].into_iter().flatten() {
                    #[cfg(feature = "planted-bugs")]
                    if self.bug(super::queue::Bug::ForgetQ)
                        && strategy == Strategy::Update
                        && Some(slot) == map.q_slot()
                    {
                        continue;
                    }
                    if !gone.contains(slot) {
                        for rows in plan::runs(good) {
                            self.op_io(op, 0, IoKind::Write, slot, slot, rows, out);
                        }
                    }
                }
            }
        }
        if self.ops[op].pending == 0 {
            self.writes_done(op, out);
        }
    }
}
