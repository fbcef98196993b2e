//! The background walk of one queue over a window of bands: read all members, compare, put parity right where it is not.
//!
//! The manager hands out windows one at a time; a window is done when every band in it has been in sync at some moment at
//! which this queue owned it. With a member missing, its data is first computed from P (from Q where P is missing), so that
//! the other parity agrees with it. Foreground work on the same bands goes through the same owner words.

use super::bands::Band;
use super::ops::{OpKind, OpState, Phase};
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
    first: u64,
    next: u64,
    end: u64,
    inflight: usize,
    /// Members that were missing when it began; their data is computed, band by band.
    missing: SlotSet,
    /// Below this band go one by one, since a read has failed there.
    single_below: u64,
    repaired: u64,
    unreadable: u64,
    aborted: bool,
}

impl QueueCore {
    pub(crate) fn start_sweep(&mut self, first: u64, end: u64) {
        assert!(self.sweep.is_none(), "one window at a time");
        self.foreground = 0;
        self.sweep = Some(Sweep {
            first,
            next: first,
            end: end.min(self.layout.bands()),
            inflight: 0,
            missing: self.view.missing,
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
            if self.view.missing != sweep.missing && !sweep.aborted {
                self.abort_sweep();
                continue;
            }
            // Half of the frames are always left to requests.
            let spare = self
                .frames
                .len()
                .saturating_sub(self.cfg.frames as usize / 2);
            let single = sweep.next < sweep.single_below || !sweep.missing.is_empty();
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
            let mut state = OpState::new(OpKind::Sweep, sweep.next, sweep.missing);
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
                for slot in 0..self.layout.members {
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
        if !bad.is_empty() {
            // The manager knows by now, and will go on without that member.
            self.abort_sweep();
            return self.op_finish(op, out);
        }
        if again && count > 1 {
            let sweep = self.sweep.as_mut().expect("the window of this operation");
            if !sweep.aborted {
                sweep.single_below = sweep.single_below.max(first + count as u64);
                sweep.next = sweep.next.min(first);
            }
            return self.op_finish(op, out);
        }
        if again {
            return match self.trouble(op).is_some_and(|t| t.too_many) {
                true => self.sweep_unreadable(op, out),
                false => self.sweep_read(op, out),
            };
        }
        if troubled || !missing.is_empty() {
            let jobs = out.list.len();
            if self.recover_rows(op, out) != 0 {
                out.list.truncate(jobs);
                return self.sweep_unreadable(op, out);
            }
            if self.any_bad(op) {
                return self.sweep_encode(op, out);
            }
        }
        self.ops[op].phase = Phase::Checking;
        for i in 0..count {
            let frame = self.ops[op].frames[i];
            self.check(first + i as u64, frame, &missing, out);
        }
        out.list.push(Action::Fence { op });
    }

    fn sweep_encode(&mut self, op: u32, out: &mut Actions) {
        let OpState { first, count, .. } = self.ops[op];
        self.ops[op].phase = Phase::Building;
        self.sweep
            .as_mut()
            .expect("the window of this operation")
            .repaired += count as u64;
        for i in 0..count {
            let frame = self.ops[op].frames[i];
            self.encode(first + i as u64, frame, 0, self.layout.rows, out);
        }
        out.list.push(Action::Fence { op });
    }

    pub(crate) fn sweep_fenced(&mut self, op: u32, mismatch: bool, out: &mut Actions) {
        let OpState {
            first,
            count,
            phase,
            ..
        } = self.ops[op];
        match phase {
            Phase::Checking if mismatch => return self.sweep_encode(op, out),
            Phase::Checking => return self.op_finish(op, out),
            Phase::Building => {}
            other => unreachable!("fence of a sweep while {other:?}"),
        }
        self.ops[op].phase = Phase::Writing;
        let rows = (0, self.layout.rows);
        for i in 0..count {
            let map = self.map(first + i as u64);
            let parity = [Some(map.p_slot()), map.q_slot()];
            for slot in parity.into_iter().flatten() {
                if !self.view.missing.contains(slot) {
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
