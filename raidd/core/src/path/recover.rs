//! Sectors that cannot be read: which rows of which chunk are lost, what is computed from the others, what is written back.
//!
//! A failed read says that some of its sectors are bad, not which. So the member becomes a *suspect* of the operation and is
//! read again in pieces of [`PIECE`] sectors; only pieces that fail once more are lost. Rows are then recovered in runs that
//! lack the same chunks, and only lost rows are written back: where parity is not in sync, as after a power cut, a readable
//! sector must not be replaced by what parity says about it.
//!
//! Healthy operations pay one test of a flag. What is known about suspects lies beside the operations, in memory taken at
//! start.

use super::bands::List;
use super::ops::{OpKind, OpState, Phase};
use super::plan::{self, Strategy, span};
use super::queue::{Io, QueueCore};
use super::slab::NONE;
use super::types::*;
use crate::geometry::StripeMap;

/// Most members that may fail a read in one operation; members that are gone do not count.
pub(crate) const SUSPECTS: usize = 4;
/// Sectors that a suspect is read again by: 4 KiB, so that what is written back is a whole physical sector.
pub(crate) const PIECE: u32 = 8;

/// What an operation knows about members that failed a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    slots: [u16; SUSPECTS],
    /// Rows that failed again.
    rows: [u128; SUSPECTS],
    count: usize,
    /// More suspects than there is room for.
    pub too_many: bool,
    /// Rows in which more is lost than the parity can give back.
    pub hopeless: u128,
}

impl Trouble {
    pub const NONE: Trouble = Trouble {
        slots: [0; SUSPECTS],
        rows: [0; SUSPECTS],
        count: 0,
        too_many: false,
        hopeless: 0,
    };

    fn find(&self, slot: u16) -> Option<usize> {
        self.slots[..self.count].iter().position(|s| *s == slot)
    }

    fn add(&mut self, slot: u16) {
        if self.count == SUSPECTS {
            self.too_many = true;
        } else {
            self.slots[self.count] = slot;
            self.rows[self.count] = 0;
            self.count += 1;
        }
    }

    /// Forgets suspects that are gone altogether.
    fn forget(&mut self, gone: &SlotSet) {
        let mut kept = 0;
        for i in 0..self.count {
            if !gone.contains(self.slots[i]) {
                (self.slots[kept], self.rows[kept]) = (self.slots[i], self.rows[i]);
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// Suspects with the rows that they lack.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u128)> + use<> {
        let Trouble {
            slots, rows, count, ..
        } = *self;
        (0..count).map(move |i| (slots[i], rows[i]))
    }

    /// Rows that a suspect lacks; 0 for others.
    pub fn rows(&self, slot: u16) -> u128 {
        self.find(slot).map_or(0, |i| self.rows[i])
    }
}

impl QueueCore {
    /// What is known about suspects of an operation, if it has any.
    pub(crate) fn trouble(&self, op: u32) -> Option<&Trouble> {
        self.ops[op].troubled.then(|| &self.troubles[op as usize])
    }

    fn trouble_mut(&mut self, op: u32) -> &mut Trouble {
        let known = std::mem::replace(&mut self.ops[op].troubled, true);
        let trouble = &mut self.troubles[op as usize];
        if !known {
            *trouble = Trouble::NONE;
        }
        trouble
    }

    /// Rows of a suspect that are lost.
    pub(crate) fn bad_rows(&self, op: u32, slot: u16) -> u128 {
        self.trouble(op).map_or(0, |t| t.rows(slot))
    }

    /// Rows that are to be had: those of the operation that are not hopeless.
    pub(crate) fn good_rows(&self, op: u32) -> u128 {
        let OpState { lo, hi, .. } = self.ops[op];
        span(lo, hi) & !self.trouble(op).map_or(0, |t| t.hopeless)
    }

    /// Rows of a member that turned out wrong count as lost. False if too many members have lost rows here.
    pub(crate) fn blame(&mut self, op: u32, slot: u16, rows: u128) -> bool {
        let trouble = self.trouble_mut(op);
        if trouble.find(slot).is_none() {
            if trouble.count == SUSPECTS {
                return false;
            }
            trouble.add(slot);
        }
        let at = trouble.find(slot).expect("just added");
        trouble.rows[at] |= rows;
        true
    }

    /// A read of an operation has failed.
    pub(crate) fn read_failed(&mut self, op: u32, io: &Io, error: MemberError) {
        #[cfg(feature = "planted-bugs")]
        if self.bug(super::queue::Bug::IgnoreReadError) {
            return;
        }
        let state = &mut self.ops[op];
        if state.kind == OpKind::Linear || error == MemberError::Gone {
            state.bad.insert(io.slot);
            state.again = true;
            return;
        }
        if state.count > 1 {
            state.again = true;
            return;
        }
        let row = (io.sector - self.layout.member_sector(state.first)) as u32;
        let rows = span(row, row + io.sectors);
        #[cfg(feature = "planted-bugs")]
        let rows = match self.bug(super::queue::Bug::LoseAllRows) {
            true => span(self.ops[op].lo, self.ops[op].hi),
            false => rows,
        };
        let gone = self.ops[op].unreadable().union(&self.view.missing);
        let trouble = self.trouble_mut(op);
        match trouble.find(io.slot) {
            Some(i) => trouble.rows[i] |= rows,
            None => {
                trouble.forget(&gone);
                trouble.add(io.slot);
                self.ops[op].again = true;
            }
        }
    }

    /// Reads rows of a slot into its place in the frame; of a suspect in pieces, without those that are known to be bad.
    fn read_slot(&mut self, op: u32, slot: u16, rows: (u32, u32), out: &mut Actions) {
        let suspect = self
            .trouble(op)
            .and_then(|t| t.find(slot).map(|i| t.rows[i]));
        let Some(bad) = suspect else {
            return self.op_io(op, 0, IoKind::Read, slot, slot, rows, out);
        };
        let (mut at, hi) = rows;
        while at < hi {
            let end = ((at / PIECE + 1) * PIECE).min(hi);
            if bad & span(at, end) == 0 {
                self.op_io(op, 0, IoKind::Read, slot, slot, (at, end), out);
            }
            at = end;
        }
    }

    /// Rows `lo..hi`, with suspects those of whole pieces.
    pub(crate) fn whole_pieces(&self, op: u32, lo: u32, hi: u32) -> (u32, u32) {
        match self.ops[op].troubled {
            true => (
                lo / PIECE * PIECE,
                (hi.div_ceil(PIECE) * PIECE).min(self.layout.rows),
            ),
            false => (lo, hi),
        }
    }

    /// Starts the reads from which the operation's rows can be made whole: all data that is left, and the parity that may be
    /// needed, or (`all`) all parity. False if too many members are lost.
    pub(crate) fn read_to_recover(&mut self, op: u32, all: bool, out: &mut Actions) -> bool {
        let OpState {
            first: band,
            lo,
            hi,
            ..
        } = self.ops[op];
        let gone = self.ops[op].unreadable();
        let map = self.map(band);
        let suspect = |slot: u16| self.trouble(op).is_some_and(|t| t.find(slot).is_some());
        let (mut lost, mut doubtful) = (0, 0);
        for k in 0..self.layout.data {
            let slot = map.data_slot(k);
            lost += usize::from(gone.contains(slot));
            doubtful += usize::from(suspect(slot));
        }
        let present = |slot: &u16| !gone.contains(*slot);
        let p = Some(map.p_slot()).filter(present);
        let q = map.q_slot().filter(present);
        if lost > usize::from(p.is_some()) + usize::from(q.is_some()) {
            return false;
        }
        let most = lost + doubtful;
        let sure_of_p = p.is_some_and(|p| !suspect(p));
        let p = p.filter(|_| all || most > 0);
        let q = q.filter(|_| all || most > usize::from(sure_of_p));
        for k in 0..self.layout.data {
            let slot = map.data_slot(k);
            if !gone.contains(slot) {
                self.read_slot(op, slot, (lo, hi), out);
            }
        }
        for slot in [p, q].into_iter().flatten() {
            self.read_slot(op, slot, (lo, hi), out);
        }
        true
    }

    /// Computes the data chunks that are lost, run by run of rows that lack the same ones. Answers the rows that cannot be
    /// recovered; they are remembered in the operation's [`Trouble`]. `index`: of which band of the run.
    pub(crate) fn recover_rows(&mut self, op: u32, index: usize, out: &mut Actions) -> u128 {
        let OpState {
            first: band,
            lo,
            hi,
            kind,
            ..
        } = self.ops[op];
        let gone = self.ops[op].unreadable();
        let map = self.map(band + index as u64);
        let frame = self.ops[op].frames[index];
        // Rows at which something else is lost than in the row before.
        let mut edges = 0u128;
        if let Some(trouble) = self.trouble(op) {
            edges = trouble.iter().fold(0, |e, (_, rows)| e | rows ^ rows << 1);
        }
        if kind == OpKind::Write {
            for k in 0..self.layout.data {
                let slot = map.data_slot(k);
                if gone.contains(slot) || self.bad_rows(op, slot) != 0 {
                    let mask = self.op_mask(op, k);
                    edges |= mask ^ mask << 1;
                }
            }
        }
        let mut hopeless = 0;
        let mut at = lo;
        while at < hi {
            let end = match edges {
                0 => hi,
                _ => (at + 1..hi).find(|r| edges >> r & 1 == 1).unwrap_or(hi),
            };
            if !self.recover_run(op, &map, frame, &gone, (at, end), out) {
                hopeless |= span(at, end);
            }
            at = end;
        }
        if hopeless != 0 || self.ops[op].troubled {
            self.trouble_mut(op).hopeless = hopeless;
        }
        hopeless
    }

    /// Computes the data chunks that a run of rows lacks. False if the parity left is not enough.
    fn recover_run(
        &mut self,
        op: u32,
        map: &StripeMap,
        frame: u32,
        gone: &SlotSet,
        (lo, hi): (u32, u32),
        out: &mut Actions,
    ) -> bool {
        let lacks = |slot: u16| gone.contains(slot) || self.bad_rows(op, slot) >> lo & 1 == 1;
        let write = self.ops[op].kind == OpKind::Write;
        let mut lost = [(0u16, 0u8); 2];
        let mut skip = SlotSet::EMPTY;
        let (mut count, mut needed) = (0, false);
        for k in 0..self.layout.data {
            let slot = map.data_slot(k);
            if !lacks(slot) {
                continue;
            }
            if count < 2 {
                lost[count] = (slot, map.q_exponent(k));
            }
            count += 1;
            skip.insert(slot);
            needed |= !(write && self.op_mask(op, k) >> lo & 1 == 1);
        }
        // What is lost and about to be written need not be known.
        if !needed {
            return true;
        }
        let usable = |slot: &u16| !lacks(*slot);
        let p = Some(map.p_slot()).filter(usable);
        let q = map.q_slot().filter(usable);
        let (p, q) = match (count, p, q) {
            (1, Some(p), _) => (Some(p), None),
            (1, None, Some(q)) => (None, Some(q)),
            (2, Some(p), Some(q)) => (Some(p), Some(q)),
            _ => return false,
        };
        let srcs = self.sources(map, frame, lo, hi, &skip, out);
        let slice = |slot: u16| self.layout.slice(frame, slot, lo, hi);
        out.list.push(Action::Compute(Job::Recover {
            srcs,
            p: p.map(slice),
            q: q.map(slice),
            first: (slice(lost[0].0), lost[0].1),
            second: (count == 2).then(|| (slice(lost[1].0), lost[1].1)),
        }));
        true
    }

    /// Starts the reads that deliver chunks of a band: first of the chunks themselves, unless their member is missing; where
    /// that fails ([`Strategy::Recover`]) of the others. The member I/O that failed before may have covered other bands
    /// too, so it says little about this one.
    pub(crate) fn plan_decode(&mut self, op: u32, out: &mut Actions) {
        // Where a rebuild has passed the band meanwhile, rows that were to be computed have not been read from the member:
        // begin anew.
        let lost = self.view.lost_at(self.ops[op].first);
        if !lost.includes(&self.ops[op].missing) {
            self.ops[op].strategy = Strategy::Plain;
        }
        self.ops[op].missing = lost;
        self.ops[op].again = false;
        let map = self.map(self.ops[op].first);
        let (mut lo, mut hi) = (u32::MAX, 0);
        let mut wanted = SlotSet::EMPTY;
        let mut at = self.ops[op].segs.head;
        while at != NONE {
            let (seg, next) = self.segs[at];
            lo = lo.min(u32::from(seg.first));
            hi = hi.max(u32::from(seg.first) + u32::from(seg.count));
            wanted.insert(map.data_slot(seg.k));
            at = next;
        }
        let gone = self.ops[op].unreadable();
        let fresh = !self.ops[op].troubled && self.ops[op].bad.is_empty();
        // All have failed already; if they are many, most failed for the sake of other bands.
        if fresh && !gone.includes(&wanted) && wanted.len() <= SUSPECTS / 2 {
            for slot in wanted.iter().filter(|s| !gone.contains(*s)) {
                self.trouble_mut(op).add(slot);
            }
        }
        if self.trouble(op).is_some_and(|t| t.too_many) {
            return self.op_fail(op, RequestError::Medium, out);
        }
        (lo, hi) = self.whole_pieces(op, lo, hi);
        let probed = self.ops[op].strategy == Strategy::Recover;
        self.ops[op].phase = Phase::Reading;
        if !probed && !wanted.intersects(&gone) {
            (self.ops[op].lo, self.ops[op].hi) = (lo, hi);
            for slot in wanted.iter() {
                self.read_slot(op, slot, (lo, hi), out);
            }
            // Begun anew, where all that is wanted is known to be bad: nothing is read, and nothing would go on.
            if self.ops[op].pending == 0 {
                self.reads_done(op, out);
            }
            return;
        }
        if !wanted.intersects(&gone)
            && let Some(trouble) = self.trouble(op)
        {
            let mine = trouble.iter().filter(|(slot, _)| wanted.contains(*slot));
            let bad = mine.fold(0, |a, (_, rows)| a | rows);
            (lo, hi) = plan::hull(bad).unwrap_or((lo, hi));
        }
        let state = &mut self.ops[op];
        (state.lo, state.hi, state.strategy) = (lo, hi, Strategy::Recover);
        self.stats.decoded += 1;
        if !self.read_to_recover(op, false, out) {
            let error = match self.ops[op].bad.is_empty() {
                true => RequestError::Io,
                false => RequestError::Medium,
            };
            return self.op_fail(op, error, out);
        }
        if self.ops[op].pending == 0 {
            self.reads_done(op, out);
        }
    }

    /// The wanted chunks have been read, or all that is needed to compute them.
    pub(crate) fn decode_read_done(&mut self, op: u32, out: &mut Actions) {
        if self.ops[op].strategy == Strategy::Recover {
            self.ops[op].phase = Phase::Recovering;
            self.recover_rows(op, 0, out);
            out.list.push(Action::Fence { op });
        } else if self.any_bad(op) {
            self.ops[op].strategy = Strategy::Recover;
            self.plan_decode(op, out);
        } else {
            self.deliver(op, out);
        }
    }

    /// Some suspect lacks rows.
    pub(crate) fn any_bad(&self, op: u32) -> bool {
        self.trouble(op)
            .is_some_and(|t| t.iter().any(|(_, rows)| rows != 0))
    }

    /// Answers the segs whose rows could not be recovered.
    fn drop_hopeless(&mut self, op: u32, hopeless: u128, out: &mut Actions) {
        let map = self.map(self.ops[op].first);
        let gone = self.ops[op].unreadable();
        let (mut kept, mut failed) = (List::EMPTY, List::EMPTY);
        let mut at = self.ops[op].segs.head;
        while at != NONE {
            let (seg, next) = self.segs[at];
            let slot = map.data_slot(seg.k);
            let lost = match gone.contains(slot) {
                true => u128::MAX,
                false => self.bad_rows(op, slot),
            };
            let first = u32::from(seg.first);
            let rows = span(first, first + u32::from(seg.count));
            let one = List { head: at, tail: at };
            self.segs[at].1 = NONE;
            if rows & lost & hopeless != 0 {
                failed = self.append(failed, one);
            } else {
                kept = self.append(kept, one);
            }
            at = next;
        }
        self.ops[op].segs = kept;
        self.answer(failed, Err(RequestError::Medium), out);
    }

    /// Hands decoded bytes to the requests.
    pub(crate) fn deliver(&mut self, op: u32, out: &mut Actions) {
        let hopeless = self.trouble(op).map_or(0, |t| t.hopeless);
        if hopeless != 0 {
            self.drop_hopeless(op, hopeless, out);
        }
        let state = &mut self.ops[op];
        state.phase = Phase::Delivering;
        let (band, frame, mut at) = (state.first, state.frames[0], state.segs.head);
        let map = self.map(band);
        while at != NONE {
            let (seg, next) = self.segs[at];
            let (lo, hi) = (
                u32::from(seg.first),
                u32::from(seg.first) + u32::from(seg.count),
            );
            let mark = out.mark();
            out.bufs
                .push(self.layout.slice(frame, map.data_slot(seg.k), lo, hi));
            let bufs = out.since(mark);
            out.list.push(Action::CopyOut {
                queue: seg.origin,
                tag: seg.tag,
                off: seg.req_off,
                bufs,
            });
            at = next;
        }
        out.list.push(Action::Fence { op });
    }

    /// Writes decoded sectors back to where they could not be read, so that the member can replace them. Parity is not
    /// computed by a decode.
    pub(crate) fn heal(&mut self, op: u32, out: &mut Actions) {
        let state = &mut self.ops[op];
        state.phase = Phase::Writing;
        if state.strategy == Strategy::Recover && !self.view.read_only {
            let map = self.map(self.ops[op].first);
            self.write_bad_rows(
                op,
                |slot| slot != map.p_slot() && Some(slot) != map.q_slot(),
                out,
            );
        }
        if self.ops[op].pending == 0 {
            self.writes_done(op, out);
        }
    }

    /// Writes the lost and recovered rows of suspects.
    pub(crate) fn write_bad_rows(
        &mut self,
        op: u32,
        which: impl Fn(u16) -> bool,
        out: &mut Actions,
    ) {
        let Some(trouble) = self.trouble(op).copied() else {
            return;
        };
        let good = self.good_rows(op);
        for (slot, bad) in trouble.iter() {
            if which(slot) && !self.view.missing.contains(slot) {
                for rows in plan::runs(bad & good) {
                    self.op_io(op, 0, IoKind::Write, slot, slot, rows, out);
                }
            }
        }
    }
}
