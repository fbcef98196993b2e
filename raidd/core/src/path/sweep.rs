//! The background walk of one queue over a window of bands: read all members, compute what is lost, compare, write what is due.
//!
//! The manager hands out windows one at a time, each for one purpose ([`SweepKind`]); a window is done when every band in it
//! has been as it should be at some moment at which this queue owned it. Bands go in runs, so that members see large I/O; where
//! a read fails or parity does not match what it should, the run is taken apart and its bands go one by one. Foreground
//! work on the same bands goes through the same owner words.
//!
//! - *Resync*: parity that does not match is made new. With a member missing, its data is first computed from P (from Q where P is
//!   missing), so that the other parity agrees with it.
//! - *Fill*: the chunks of the members being filled are computed and written. Where parity is not in sync yet, it is brought in
//!   sync as above in the same step.
//! - *Check*, *Repair*: differences are told row by row, with the member to blame where P and Q tell, and put right on request.
//!   See `scrub`.
//!
//! Sectors that cannot be read are computed and written back whatever the purpose.

use super::bands::Band;
use super::ops::{OpKind, OpState, Phase};
use super::plan::Strategy;
use super::queue::QueueCore;
use super::slab::NONE;
use super::types::*;

/// Operations of the sweep in flight at once: of many bands each.
const OPS: usize = 2;
/// The same where bands go one by one.
const SINGLE_OPS: usize = 8;

/// A window being swept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub kind: SweepKind,
    first: u64,
    next: u64,
    end: u64,
    inflight: usize,
    /// Members that were missing or being filled when it began.
    missing: SlotSet,
    filling: SlotSet,
    /// Below this band go one by one, since a run has met trouble there.
    single_below: u64,
    repaired: u64,
    unreadable: u64,
    aborted: bool,
}

impl QueueCore {
    pub(crate) fn start_sweep(&mut self, kind: SweepKind, first: u64, end: u64) {
        assert!(self.sweep.is_none(), "one window at a time");
        self.foreground = 0;
        self.sweep = Some(Sweep {
            kind,
            first,
            next: first,
            end: end.min(self.layout.bands()),
            inflight: 0,
            missing: self.view.missing,
            filling: self.view.filling,
            single_below: 0,
            repaired: 0,
            unreadable: 0,
            aborted: false,
        });
    }

    pub(crate) fn abort_sweep(&mut self) {
        if let Some(sweep) = &mut self.sweep {
            sweep.aborted = true;
            sweep.end = sweep.next;
        }
    }

    /// Starts what can be started of the window.
    pub(crate) fn run_sweep(&mut self, out: &mut Actions) {
        while let Some(mut sweep) = self.sweep {
            let members = (self.view.missing, self.view.filling);
            if members != (sweep.missing, sweep.filling) && !sweep.aborted {
                self.abort_sweep();
                continue;
            }
            // Half of the frames are always left to requests.
            let spare = self
                .frames
                .len()
                .saturating_sub(self.cfg.frames as usize / 2);
            let single = sweep.next < sweep.single_below;
            if sweep.next >= sweep.end
                || sweep.inflight >= if single { SINGLE_OPS } else { OPS }
                || spare == 0
                || self.ops.available() == 0
            {
                break;
            }
            let most = if single { 1 } else { MAX_RUN.min(spare) };
            let mut run = [0u32; MAX_RUN];
            let mut count = 0;
            while count < most && sweep.next + (count as u64) < sweep.end {
                match self.take_for_sweep(sweep.next + count as u64) {
                    Some(entry) => run[count] = entry,
                    None => break,
                }
                count += 1;
            }
            if count == 0 {
                break;
            }
            let lost = self.view.lost_at(sweep.next);
            let mut state = OpState::new(OpKind::Sweep, sweep.next, lost);
            state.absent = self.view.absent_at(sweep.next);
            state.count = count;
            state.hi = self.layout.rows;
            for frame in &mut state.frames[..count] {
                *frame = self.frames.pop().expect("counted above");
            }
            let op = self.ops.insert(state).expect("checked above");
            for entry in &run[..count] {
                let e = &mut self.bands[*entry];
                e.op = op;
                e.sweep = false;
            }
            sweep.next += count as u64;
            sweep.inflight += 1;
            self.sweep = Some(sweep);
            if count == 1 {
                self.sweep_read(op, out);
            } else {
                for slot in (0..self.layout.members).filter(|s| !lost.contains(*s)) {
                    self.run_io(op, IoKind::Read, slot, out);
                }
            }
        }
        self.end_sweep(out);
    }

    /// The entry of a band that nobody works on. A busy band of this queue is reserved; one of another queue is tried again
    /// in a later pass.
    fn take_for_sweep(&mut self, band: u64) -> Option<u32> {
        if let Some(&entry) = self.band_index.get(&band) {
            let e: &mut Band = &mut self.bands[entry];
            e.sweep = true;
            return (e.op == NONE).then_some(entry);
        }
        if self.bands.available() == 0 {
            return None;
        }
        let entry = self.own(band).ok()?;
        self.bands[entry].sweep = true;
        Some(entry)
    }

    /// Reads a single band, suspects in pieces.
    fn sweep_read(&mut self, op: u32, out: &mut Actions) {
        self.ops[op].again = false;
        self.ops[op].phase = Phase::Reading;
        if !self.read_to_recover(op, true, out) {
            self.sweep_unreadable(op, out);
        }
    }

    fn sweep_unreadable(&mut self, op: u32, out: &mut Actions) {
        if let Some(sweep) = &mut self.sweep {
            sweep.unreadable += 1;
        }
        self.op_finish(op, out);
    }

    /// What the window of an operation is for.
    pub(crate) fn sweep_kind(&self) -> SweepKind {
        self.sweep
            .as_ref()
            .expect("the window of an operation")
            .kind
    }

    /// Gives up a run of bands; they go one by one now.
    pub(crate) fn sweep_singly(&mut self, op: u32, out: &mut Actions) {
        let OpState { first, count, .. } = self.ops[op];
        let sweep = self.sweep.as_mut().expect("the window of an operation");
        if !sweep.aborted {
            sweep.single_below = sweep.single_below.max(first + count as u64);
            sweep.next = sweep.next.min(first);
        }
        self.op_finish(op, out);
    }

    pub(crate) fn sweep_read_done(&mut self, op: u32, out: &mut Actions) {
        let OpState {
            first,
            count,
            bad,
            missing,
            again,
            troubled,
            ..
        } = self.ops[op];
        if !bad.is_empty() || !missing.includes(&self.view.missing) {
            // The manager knows by now, and will go on without that member. Nothing may be read from its slot any more:
            // there may be another one soon.
            self.abort_sweep();
            return self.op_finish(op, out);
        }
        if again && count > 1 {
            return self.sweep_singly(op, out);
        }
        if again {
            return match self.trouble(op).is_some_and(|t| t.too_many) {
                true => self.sweep_unreadable(op, out),
                false => self.sweep_read(op, out),
            };
        }
        if troubled || !missing.is_empty() {
            let jobs = out.list.len();
            let mut hopeless = 0;
            for i in 0..count {
                hopeless |= self.recover_rows(op, i, out);
            }
            if hopeless != 0 {
                out.list.truncate(jobs);
                return self.sweep_unreadable(op, out);
            }
        }
        let mut bands = first..first + count as u64;
        let trusted = bands.all(|b| b < self.view.synced || self.never_needed(b));
        #[cfg(feature = "planted-bugs")]
        let trusted = trusted || self.bug(super::queue::Bug::FillTrustsParity);
        match self.sweep_kind() {
            SweepKind::Fill if trusted => return self.sweep_make(op, out),
            SweepKind::Fill | SweepKind::Resync if self.any_bad(op) => {
                return self.sweep_encode(op, out);
            }
            SweepKind::Check | SweepKind::Repair { .. } if self.any_bad(op) => {
                return self.sweep_make(op, out);
            }
            _ => {}
        }
        self.ops[op].phase = Phase::Checking;
        for i in 0..count {
            let frame = self.ops[op].frames[i];
            self.check(first + i as u64, frame, &missing, out);
        }
        out.list.push(Action::Fence { op });
    }

    /// Makes all parity new.
    pub(crate) fn sweep_encode(&mut self, op: u32, out: &mut Actions) {
        let OpState { first, count, .. } = self.ops[op];
        self.ops[op].phase = Phase::Building;
        self.ops[op].strategy = Strategy::Encode;
        let sweep = self.sweep.as_mut().expect("the window of an operation");
        sweep.repaired += count as u64;
        for i in 0..count {
            let frame = self.ops[op].frames[i];
            self.encode(first + i as u64, frame, 0, self.layout.rows, out);
        }
        out.list.push(Action::Fence { op });
    }

    /// Makes parity that is to be written only: of members being filled, and where it cannot be read or is wrong.
    pub(crate) fn sweep_make(&mut self, op: u32, out: &mut Actions) {
        let OpState {
            first,
            count,
            missing,
            absent,
            ..
        } = self.ops[op];
        self.ops[op].phase = Phase::Building;
        let trouble = self.trouble(op).copied();
        for i in 0..count {
            let frame = self.ops[op].frames[i];
            let due = |slot: u16| {
                let filled = missing.contains(slot) && !absent.contains(slot);
                filled || trouble.is_some_and(|t| t.rows(slot) != 0)
            };
            self.encode_only(first + i as u64, frame, (0, self.layout.rows), due, out);
        }
        out.list.push(Action::Fence { op });
    }

    pub(crate) fn sweep_fenced(&mut self, op: u32, mismatch: bool, out: &mut Actions) {
        let phase = self.ops[op].phase;
        match (phase, self.sweep_kind()) {
            (Phase::Checking, SweepKind::Resync) if mismatch => self.sweep_encode(op, out),
            (Phase::Checking, SweepKind::Fill) if mismatch => self.sweep_encode(op, out),
            (Phase::Checking, SweepKind::Fill) => self.sweep_make(op, out),
            (Phase::Checking, _) if mismatch => self.scrub_differs(op, out),
            (Phase::Checking, _) => self.op_finish(op, out),
            (Phase::Locating, _) => self.scrub_located(op, out),
            (Phase::Building, _) => self.sweep_write(op, out),
            (other, _) => unreachable!("fence of a sweep while {other:?}"),
        }
    }

    fn sweep_write(&mut self, op: u32, out: &mut Actions) {
        self.ops[op].phase = Phase::Writing;
        let OpState {
            first,
            count,
            strategy,
            missing,
            absent,
            ..
        } = self.ops[op];
        let rows = (0, self.layout.rows);
        if missing != absent {
            for slot in missing.iter() {
                if !absent.contains(slot) && !self.view.missing.contains(slot) {
                    self.run_io(op, IoKind::Write, slot, out);
                }
            }
        }
        for i in 0..count {
            let map = self.map(first + i as u64);
            let mut parity = [Some(map.p_slot()), map.q_slot()];
            if strategy != Strategy::Encode {
                parity = [None, None];
            }
            for slot in parity.into_iter().flatten() {
                if !missing.contains(slot) && !self.view.missing.contains(slot) {
                    self.op_io(op, i, IoKind::Write, slot, slot, rows, out);
                }
            }
            self.write_bad_rows(op, |slot| !parity.contains(&Some(slot)), out);
        }
        if self.ops[op].pending == 0 {
            self.writes_done(op, out);
        }
    }

    pub(crate) fn sweep_op_done(&mut self, state: &OpState, out: &mut Actions) {
        debug_assert_eq!(state.kind, OpKind::Sweep);
        if let Some(sweep) = &mut self.sweep {
            sweep.inflight -= 1;
        }
        self.end_sweep(out);
    }

    fn end_sweep(&mut self, out: &mut Actions) {
        let Some(sweep) = self.sweep else { return };
        if sweep.inflight > 0 || sweep.next < sweep.end {
            return;
        }
        self.sweep = None;
        if sweep.aborted {
            // Bands that were reserved but never reached are given back to their writers.
            for entry in 0..self.bands.capacity() as u32 {
                if let Some(band) = self.bands.get(entry).filter(|e| e.sweep).map(|e| e.band) {
                    self.bands[entry].sweep = false;
                    if self.bands[entry].op == NONE {
                        self.band_idle(band);
                    }
                }
            }
        }
        out.list.push(Action::Send {
            to: Peer::Manager,
            msg: Msg::SweepDone {
                end: if sweep.aborted {
                    sweep.first
                } else {
                    sweep.end
                },
                repaired: sweep.repaired,
                unreadable: if sweep.aborted { 0 } else { sweep.unreadable },
                foreground: self.foreground,
            },
        });
    }
}
