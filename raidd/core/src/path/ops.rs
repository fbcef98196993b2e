//! The life of one operation on a run of bands: read, recover, copy and encode, write, wait until it may be acknowledged.
//!
//! An operation owns its frames from the first read to the last write, and its bands until its result stands: while a
//! member failure that it met is not recorded, no other queue may work on these bands, because it might still trust the
//! failed member.

use super::bands::List;
use super::plan::{self, Strategy};
use super::queue::{Io, IoOwner, QueueCore};
use super::slab::NONE;
use super::types::*;
use crate::geometry::StripeMap;

/// What an operation is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpKind {
    /// Store the gathered writes of a run of bands.
    Write,
    /// Deliver chunks of one band whose member cannot be read.
    Recover,
    /// Bring the parity of a run of bands in sync.
    Sweep,
    /// Move a range of a request through a frame, without parity.
    Linear,
}

/// Where an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Member reads are in flight.
    Reading,
    /// Lost chunks are being computed.
    Recovering,
    /// Bytes are being copied, parity computed.
    Building,
    /// Bytes are on the way into the request.
    Delivering,
    /// Parity is being compared.
    Checking,
    /// Member writes are in flight.
    Writing,
    /// All is written, but a member failure is not recorded yet.
    Held,
}

/// A copy out of one request that may still grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyRun {
    queue: u16,
    tag: u16,
    off: u32,
    end: u32,
    /// First of its buffers in the actions' list; nothing else is pushed there while the copy is open.
    mark: u32,
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpState {
    pub kind: OpKind,
    pub phase: Phase,
    pub strategy: Strategy,
    /// Whole bands; the masks are all ones.
    pub full: bool,
    /// Rows concerned, in sectors of the band.
    pub lo: u32,
    pub hi: u32,
    /// First band and number of bands.
    pub first: u64,
    pub count: usize,
    pub frames: [u32; MAX_RUN],
    pub segs: List,
    /// Member I/Os in flight.
    pub pending: u32,
    /// Members not to be used, as known at planning.
    pub missing: SlotSet,
    /// Members that could not be read here, or that the reader found unreadable.
    pub bad: SlotSet,
    /// A read has failed since the plan was made.
    pub read_failed: bool,
    /// Members that failed a write here.
    pub failed: SlotSet,
    pub result: Result<(), RequestError>,
    /// Linear operations: the range of the request.
    pub tag: u16,
    pub req_off: u32,
    pub sectors: u32,
    pub write: bool,
}

impl OpState {
    pub fn new(kind: OpKind, first: u64, missing: SlotSet) -> OpState {
        OpState {
            kind,
            phase: Phase::Reading,
            strategy: Strategy::Plain,
            full: false,
            lo: 0,
            hi: 0,
            first,
            count: 0,
            frames: [NONE; MAX_RUN],
            segs: List::EMPTY,
            pending: 0,
            missing,
            bad: SlotSet::EMPTY,
            read_failed: false,
            failed: SlotSet::EMPTY,
            result: Ok(()),
            tag: 0,
            req_off: 0,
            sectors: 0,
            write: false,
        }
    }

    pub(crate) fn unreadable(&self) -> SlotSet {
        self.missing.union(&self.bad)
    }
}

impl QueueCore {
    pub(crate) fn map(&self, band: u64) -> StripeMap {
        self.layout.geometry.stripe_map(self.layout.stripe(band))
    }

    fn op_mask(&self, op: u32, k: u16) -> u128 {
        self.op_masks[op as usize * usize::from(self.layout.data) + usize::from(k)]
    }

    /// One member I/O of an operation over rows `lo..hi` of `slot`, in band `index` of the run; `buf_slot` names the place in
    /// the frame.
    pub(crate) fn op_io(
        &mut self,
        op: u32,
        index: usize,
        kind: IoKind,
        slot: u16,
        buf_slot: u16,
        rows: (u32, u32),
        out: &mut Actions,
    ) {
        let state = &mut self.ops[op];
        state.pending += 1;
        let frame = state.frames[index];
        let band = state.first + index as u64;
        let mark = out.mark();
        out.bufs
            .push(self.layout.slice(frame, buf_slot, rows.0, rows.1));
        let sector = self.layout.member_sector(band) + u64::from(rows.0);
        self.member_io(
            IoOwner::Op(op),
            kind,
            slot,
            sector,
            rows.1 - rows.0,
            mark,
            out,
        );
    }

    /// One member I/O over whole bands of a run.
    pub(crate) fn run_io(&mut self, op: u32, kind: IoKind, slot: u16, out: &mut Actions) {
        let state = &mut self.ops[op];
        state.pending += 1;
        let (first, count, frames) = (state.first, state.count, state.frames);
        let mark = out.mark();
        for frame in &frames[..count] {
            out.bufs
                .push(self.layout.slice(*frame, slot, 0, self.layout.rows));
        }
        let sectors = self.layout.rows * count as u32;
        let sector = self.layout.member_sector(first);
        self.member_io(IoOwner::Op(op), kind, slot, sector, sectors, mark, out);
    }

    /// Copies the bytes of segs into a frame. Neighbours in one request go in one copy, also across calls that pass `run` on;
    /// the last caller ends with [`QueueCore::end_copy`].
    pub(crate) fn copy_in(
        &mut self,
        list: List,
        band: u64,
        frame: u32,
        run: &mut Option<CopyRun>,
        out: &mut Actions,
    ) {
        let map = self.map(band);
        let mut at = list.head;
        while at != NONE {
            let (seg, next) = self.segs[at];
            let (lo, hi) = (
                u32::from(seg.first),
                u32::from(seg.first) + u32::from(seg.count),
            );
            let slice = self.layout.slice(frame, map.data_slot(seg.k), lo, hi);
            at = next;
            if seg.kind == SegKind::Zero {
                self.end_copy(run, out);
                out.list.push(Action::Zero(slice));
                continue;
            }
            if run.is_some_and(|r| (r.queue, r.tag, r.end) != (seg.origin, seg.tag, seg.req_off)) {
                self.end_copy(run, out);
            }
            let r = run.get_or_insert(CopyRun {
                queue: seg.origin,
                tag: seg.tag,
                off: seg.req_off,
                end: seg.req_off,
                mark: out.mark(),
            });
            r.end += slice.len;
            out.bufs.push(slice);
        }
    }

    /// Issues the copy that [`QueueCore::copy_in`] left open.
    pub(crate) fn end_copy(&self, run: &mut Option<CopyRun>, out: &mut Actions) {
        if let Some(CopyRun {
            queue,
            tag,
            off,
            mark,
            ..
        }) = run.take()
        {
            let bufs = out.since(mark);
            out.list.push(Action::CopyIn {
                queue,
                tag,
                off,
                bufs,
            });
        }
    }

    fn sources(
        &self,
        map: &StripeMap,
        frame: u32,
        lo: u32,
        hi: u32,
        skip: &SlotSet,
        out: &mut Actions,
    ) -> std::ops::Range<u32> {
        let start = out.srcs.len() as u32;
        for k in 0..self.layout.data {
            let slot = map.data_slot(k);
            if !skip.contains(slot) {
                let exp = map.q_exponent(k);
                #[cfg(feature = "planted-bugs")]
                let exp = match self.bug(super::queue::Bug::WrongExponent) {
                    true if k + 1 == self.layout.data => map.q_exponent(0),
                    _ => exp,
                };
                out.srcs.push((self.layout.slice(frame, slot, lo, hi), exp));
            }
        }
        start..out.srcs.len() as u32
    }

    /// A job that makes P and Q of rows `lo..hi` from the data in the frame.
    pub(crate) fn encode(&mut self, band: u64, frame: u32, lo: u32, hi: u32, out: &mut Actions) {
        let map = self.map(band);
        let srcs = self.sources(&map, frame, lo, hi, &SlotSet::EMPTY, out);
        let usable = |slot: &u16| !self.view.missing.contains(*slot);
        let p = Some(map.p_slot())
            .filter(usable)
            .map(|s| self.layout.slice(frame, s, lo, hi));
        let q = map
            .q_slot()
            .filter(usable)
            .map(|s| self.layout.slice(frame, s, lo, hi));
        if p.is_some() || q.is_some() {
            out.list.push(Action::Compute(Job::Encode { srcs, p, q }));
        }
    }

    /// A job that compares P and Q of a whole band with the data in the frame.
    pub(crate) fn check(&mut self, band: u64, frame: u32, skip: &SlotSet, out: &mut Actions) {
        let map = self.map(band);
        let rows = self.layout.rows;
        let srcs = self.sources(&map, frame, 0, rows, &SlotSet::EMPTY, out);
        let usable = |slot: &u16| !skip.contains(*slot);
        let p = Some(map.p_slot())
            .filter(usable)
            .map(|s| self.layout.slice(frame, s, 0, rows));
        let q = map
            .q_slot()
            .filter(usable)
            .map(|s| self.layout.slice(frame, s, 0, rows));
        if p.is_some() || q.is_some() {
            out.list.push(Action::Compute(Job::Check { srcs, p, q }));
        }
    }

    /// The unreadable data chunks of rows `lo..hi`: starts the reads that their recovery needs, or (`emit`) the job itself
    /// once these are done. All readable data is read, so that parity can be made afterwards. False if the parity left is
    /// not enough.
    pub(crate) fn recover_job(&mut self, op: u32, emit: bool, out: &mut Actions) -> bool {
        let OpState {
            first: band,
            lo,
            hi,
            ..
        } = self.ops[op];
        let frame = self.ops[op].frames[0];
        let gone = self.ops[op].unreadable();
        let map = self.map(band);
        let mut lost = [(0u16, 0u8); 2];
        let mut count = 0;
        for k in 0..self.layout.data {
            let slot = map.data_slot(k);
            if gone.contains(slot) {
                if count == 2 {
                    return false;
                }
                lost[count] = (slot, map.q_exponent(k));
                count += 1;
            }
        }
        let usable = |slot: &u16| !gone.contains(*slot);
        let p = Some(map.p_slot()).filter(usable);
        let q = map.q_slot().filter(usable);
        let (p, q) = match (count, p, q) {
            (0, ..) => (None, None),
            (1, Some(p), _) => (Some(p), None),
            (1, None, Some(q)) => (None, Some(q)),
            (2, Some(p), Some(q)) => (Some(p), Some(q)),
            _ => return false,
        };
        if emit && count > 0 {
            let srcs = self.sources(&map, frame, lo, hi, &gone, out);
            let slice = |slot: u16| self.layout.slice(frame, slot, lo, hi);
            out.list.push(Action::Compute(Job::Recover {
                srcs,
                p: p.map(slice),
                q: q.map(slice),
                first: (slice(lost[0].0), lost[0].1),
                second: (count == 2).then(|| (slice(lost[1].0), lost[1].1)),
            }));
        } else if !emit {
            for k in 0..self.layout.data {
                let slot = map.data_slot(k);
                if !gone.contains(slot) {
                    self.op_io(op, 0, IoKind::Read, slot, slot, (lo, hi), out);
                }
            }
            for slot in [p, q].into_iter().flatten() {
                self.op_io(op, 0, IoKind::Read, slot, slot, (lo, hi), out);
            }
        }
        true
    }

    /// Chooses a strategy for a partial write and starts its reads. Also called again when a read has failed.
    pub(crate) fn plan_write(&mut self, op: u32, out: &mut Actions) {
        self.ops[op].missing = self.view.missing;
        self.ops[op].read_failed = false;
        let state = &self.ops[op];
        let band = state.first;
        let gone = state.unreadable();
        let map = self.map(band);
        let d = usize::from(self.layout.data);
        let masks = &self.op_masks[op as usize * d..][..d];
        let q_slot = map.q_slot();
        let p_ok = !gone.contains(map.p_slot());
        let q_ok = q_slot.is_some_and(|q| !gone.contains(q));
        let mut trusted = band < self.view.synced;
        #[cfg(feature = "planted-bugs")]
        {
            trusted |= self.bug(super::queue::Bug::TrustStaleParity);
        }
        // A member that could not be read is written anyway, from rows that have to be whole.
        trusted &= state.bad.is_empty();
        let mut choice = plan::choose(
            masks,
            |k| !gone.contains(map.data_slot(k)),
            p_ok,
            q_ok,
            trusted,
        );
        if !state.bad.is_empty() && choice.strategy != Strategy::Impossible {
            choice.strategy = Strategy::Recover;
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
                if !self.recover_job(op, false, out) {
                    return self.op_fail(op, RequestError::Medium, out);
                }
            }
            Strategy::Impossible => {
                let error = if self.ops[op].bad.is_empty() {
                    RequestError::Io
                } else {
                    RequestError::Medium
                };
                return self.op_fail(op, error, out);
            }
        }
        if self.ops[op].pending == 0 {
            self.reads_done(op, out);
        }
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

    /// Starts the reads that deliver chunks of a band: of the chunks themselves first, unless their member is missing, and of
    /// all others if that fails. The member I/O that failed before may have covered other stripes too; if it alone counted,
    /// two requests (or two members of one request) with unreadable sectors in different stripes would be one loss too many
    /// in both.
    pub(crate) fn plan_decode(&mut self, op: u32, out: &mut Actions) {
        self.ops[op].missing = self.view.missing;
        self.ops[op].read_failed = false;
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
        let state = &mut self.ops[op];
        (state.lo, state.hi, state.phase) = (lo, hi, Phase::Reading);
        if !wanted.intersects(&state.unreadable()) {
            state.strategy = Strategy::Plain;
            for slot in wanted.iter() {
                self.op_io(op, 0, IoKind::Read, slot, slot, (lo, hi), out);
            }
            return;
        }
        state.strategy = Strategy::Recover;
        self.stats.decoded += 1;
        if !self.recover_job(op, false, out) {
            let error = if self.ops[op].bad.is_empty() {
                RequestError::Io
            } else {
                RequestError::Medium
            };
            return self.op_fail(op, error, out);
        }
        if self.ops[op].pending == 0 {
            self.reads_done(op, out);
        }
    }

    /// A member I/O of an operation ended.
    pub(crate) fn op_io_done(
        &mut self,
        op: u32,
        io: Io,
        result: Result<(), MemberError>,
        out: &mut Actions,
    ) {
        let state = &mut self.ops[op];
        state.pending -= 1;
        if let Err(error) = result {
            if io.kind == IoKind::Read {
                state.bad.insert(io.slot);
                state.read_failed = true;
                #[cfg(feature = "planted-bugs")]
                if self.bug(super::queue::Bug::IgnoreReadError) {
                    (self.ops[op].bad, self.ops[op].read_failed) = (SlotSet::EMPTY, false);
                }
            } else {
                state.failed.insert(io.slot);
                if state.kind != OpKind::Linear || error == MemberError::Gone {
                    self.report_failed(io.slot, error, out);
                }
            }
        }
        if self.ops[op].pending == 0 {
            match self.ops[op].phase {
                Phase::Reading => self.reads_done(op, out),
                Phase::Writing => self.writes_done(op, out),
                other => unreachable!("member I/O while {other:?}"),
            }
        }
    }

    fn reads_done(&mut self, op: u32, out: &mut Actions) {
        let state = &self.ops[op];
        match state.kind {
            OpKind::Linear => return self.linear_read_done(op, out),
            OpKind::Sweep => return self.sweep_read_done(op, out),
            OpKind::Write | OpKind::Recover => {}
        }
        if state.read_failed {
            return match state.kind {
                OpKind::Write => self.plan_write(op, out),
                _ => self.plan_decode(op, out),
            };
        }
        if self.ops[op].strategy == Strategy::Recover {
            self.ops[op].phase = Phase::Recovering;
            let possible = self.recover_job(op, true, out);
            debug_assert!(possible, "planned");
            out.list.push(Action::Fence { op });
        } else if self.ops[op].kind == OpKind::Recover {
            self.deliver(op, out);
        } else {
            self.build(op, out);
        }
    }

    /// Copies the new bytes in and makes the parity.
    fn build(&mut self, op: u32, out: &mut Actions) {
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
            Strategy::Encode | Strategy::Recover => self.encode(band, frame, lo, hi, out),
            Strategy::Plain | Strategy::Impossible => {}
        }
        out.list.push(Action::Fence { op });
    }

    /// Copies and jobs of an operation are done.
    pub(crate) fn fenced(&mut self, op: u32, ok: bool, mismatch: bool, out: &mut Actions) {
        let state = &self.ops[op];
        match (state.kind, state.phase) {
            (OpKind::Linear, _) => self.linear_fenced(op, ok, out),
            (OpKind::Sweep, _) => self.sweep_fenced(op, mismatch, out),
            (OpKind::Write, Phase::Recovering) => self.build(op, out),
            (OpKind::Write, Phase::Building) if !ok => self.op_fail(op, RequestError::Io, out),
            (OpKind::Write, Phase::Building) => self.write_out(op, out),
            (OpKind::Recover, Phase::Recovering) => self.deliver(op, out),
            (OpKind::Recover, Phase::Delivering) => {
                if !ok {
                    self.ops[op].result = Err(RequestError::Io);
                }
                self.heal(op, out);
            }
            (kind, phase) => unreachable!("fence of {kind:?} while {phase:?}"),
        }
    }

    fn write_out(&mut self, op: u32, out: &mut Actions) {
        let state = &mut self.ops[op];
        state.phase = Phase::Writing;
        let OpState {
            first: band,
            count,
            full,
            strategy,
            lo,
            hi,
            bad,
            ..
        } = *state;
        let gone = self.view.missing;
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
            for k in 0..self.layout.data {
                let slot = map.data_slot(k);
                if gone.contains(slot) {
                    continue;
                }
                if strategy == Strategy::Recover && bad.contains(slot) {
                    self.op_io(op, 0, IoKind::Write, slot, slot, (lo, hi), out);
                    continue;
                }
                for rows in plan::runs(self.op_mask(op, k)) {
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
                    // Parity that the plan did not read or make (a member lost since) is not written.
                    if !gone.contains(slot) && !self.ops[op].missing.contains(slot) {
                        self.op_io(op, 0, IoKind::Write, slot, slot, (lo, hi), out);
                    }
                }
            }
        }
        if self.ops[op].pending == 0 {
            self.writes_done(op, out);
        }
    }

    /// Hands decoded bytes to the requests.
    fn deliver(&mut self, op: u32, out: &mut Actions) {
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

    /// Rewrites sectors that could not be read, so that the member can replace them.
    fn heal(&mut self, op: u32, out: &mut Actions) {
        let state = &mut self.ops[op];
        state.phase = Phase::Writing;
        let OpState { lo, hi, bad, .. } = *state;
        if !self.view.read_only {
            let map = self.map(self.ops[op].first);
            for slot in bad.iter() {
                // Parity is not recovered by a decode; only data has been computed.
                let data = slot != map.p_slot() && Some(slot) != map.q_slot();
                if data && !self.view.missing.contains(slot) {
                    self.op_io(op, 0, IoKind::Write, slot, slot, (lo, hi), out);
                }
            }
        }
        if self.ops[op].pending == 0 {
            self.writes_done(op, out);
        }
    }

    pub(crate) fn writes_done(&mut self, op: u32, out: &mut Actions) {
        if self.ops[op].kind == OpKind::Linear {
            return self.linear_write_done(op, out);
        }
        self.free_frames(op);
        let state = &mut self.ops[op];
        state.phase = Phase::Held;
        let failed = state.failed;
        if self.recorded(&failed) {
            self.op_finish(op, out);
        } else {
            self.held_ops.push(op);
        }
    }

    /// The view has changed: acknowledge what was held back.
    pub(crate) fn release_held(&mut self, out: &mut Actions) {
        for i in (0..self.held_ops.len()).rev() {
            let op = self.held_ops[i];
            let failed = self.ops[op].failed;
            if self.recorded(&failed) {
                self.held_ops.swap_remove(i);
                self.op_finish(op, out);
            }
        }
    }

    pub(crate) fn op_fail(&mut self, op: u32, error: RequestError, out: &mut Actions) {
        self.ops[op].result = Err(error);
        self.op_finish(op, out);
    }

    pub(crate) fn free_frames(&mut self, op: u32) {
        let state = &mut self.ops[op];
        let count = state.count;
        for frame in &mut state.frames[..count] {
            if *frame != NONE {
                self.frames.push(*frame);
                *frame = NONE;
            }
        }
    }

    /// Ends an operation: answers its segs, frees its frames, lets go of its bands.
    pub(crate) fn op_finish(&mut self, op: u32, out: &mut Actions) {
        self.free_frames(op);
        let state = self.ops.remove(op);
        let mut result = state.result;
        if self.view.failed && state.kind == OpKind::Write {
            result = result.and(Err(RequestError::Io));
        }
        if state.kind == OpKind::Sweep {
            self.sweep_op_done(&state, out);
        }
        self.answer(state.segs, result, out);
        for i in 0..state.count {
            self.band_idle(state.first + i as u64);
        }
    }

    /// Answers the segs of a list.
    fn answer(&mut self, list: List, result: Result<(), RequestError>, out: &mut Actions) {
        let mut at = list.head;
        while at != NONE {
            let (seg, next) = self.segs.remove(at);
            if seg.origin == self.cfg.queue {
                self.piece_done(seg.tag, result, out);
            } else {
                let to = Peer::Queue(seg.origin);
                out.list.push(Action::Send {
                    to,
                    msg: Msg::SegDone {
                        tag: seg.tag,
                        result,
                    },
                });
            }
            at = next;
        }
    }
}
