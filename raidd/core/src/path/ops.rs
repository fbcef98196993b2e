//! The life of one operation on a run of bands: read, recover, copy and encode, write, wait until it may be acknowledged.
//!
//! An operation owns its frames from the first read to the last write, and its bands until its result stands: while a
//! member failure that it met is not recorded, no other queue may work on these bands, because it might still trust the
//! failed member.

use super::bands::List;
use super::intent_queue::Begun;
use super::plan::Strategy;
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
    /// Resync, fill or check a run of bands.
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
    /// It is being found out which member is wrong.
    Locating,
    /// Member writes are in flight.
    Writing,
    /// All is written, but a member failure is not recorded yet.
    Held,
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
    /// Members not to be read, as known at planning.
    pub missing: SlotSet,
    /// Members neither read nor written, as known at planning. Those that are in `missing` only are being filled: they are
    /// written.
    pub absent: SlotSet,
    /// Members that were gone when they were to be read; with [`OpKind::Linear`] all that failed.
    pub bad: SlotSet,
    /// A read has failed since the plan was made, so that it has to be made again.
    pub again: bool,
    /// There are suspects, see [`super::recover`].
    pub troubled: bool,
    /// Members that failed a write here.
    pub failed: SlotSet,
    pub result: Result<(), RequestError>,
    /// Linear operations: the range of the request.
    pub tag: u16,
    pub req_off: u32,
    pub sectors: u32,
    pub write: bool,
    /// On which side of the manager's question a write began, see [`super::intent_queue`].
    pub begun: u8,
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
            absent: missing,
            bad: SlotSet::EMPTY,
            again: false,
            troubled: false,
            failed: SlotSet::EMPTY,
            result: Ok(()),
            tag: 0,
            req_off: 0,
            sectors: 0,
            write: false,
            begun: Begun::NO,
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

    pub(crate) fn op_mask(&self, op: u32, k: u16) -> u128 {
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
                self.read_failed(op, &io, error);
            } else if !self.late(&io) {
                let state = &mut self.ops[op];
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

    pub(crate) fn reads_done(&mut self, op: u32, out: &mut Actions) {
        let OpState { kind, again, .. } = self.ops[op];
        match kind {
            OpKind::Linear => self.linear_read_done(op, out),
            OpKind::Sweep => self.sweep_read_done(op, out),
            OpKind::Write if again => self.plan_write(op, out),
            OpKind::Write => self.write_read_done(op, out),
            OpKind::Recover if again => self.plan_decode(op, out),
            OpKind::Recover => self.decode_read_done(op, out),
        }
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
        self.write_ends(state.begun, out);
    }

    /// Answers the segs of a list.
    pub(crate) fn answer(
        &mut self,
        list: List,
        result: Result<(), RequestError>,
        out: &mut Actions,
    ) {
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
