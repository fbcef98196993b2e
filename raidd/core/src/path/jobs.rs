//! Copies and parity jobs over frames: which bytes go where, with which exponent. Owns no state; costs a few words an action.

use super::bands::List;
use super::ops::OpState;
use super::queue::QueueCore;
use super::slab::NONE;
use super::types::*;
use crate::geometry::StripeMap;

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

impl QueueCore {
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

    pub(crate) fn sources(
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
        let missing = self.view.missing;
        self.encode_only(band, frame, (lo, hi), |slot| !missing.contains(slot), out);
    }

    /// The same for these parity slots.
    pub(crate) fn encode_only(
        &mut self,
        band: u64,
        frame: u32,
        (lo, hi): (u32, u32),
        which: impl Fn(u16) -> bool,
        out: &mut Actions,
    ) {
        let map = self.map(band);
        let (p, q) = self.parity(&map, frame, (lo, hi), which);
        if p.is_some() || q.is_some() {
            let srcs = self.sources(&map, frame, lo, hi, &SlotSet::EMPTY, out);
            out.list.push(Action::Compute(Job::Encode { srcs, p, q }));
        }
    }

    /// Where P and Q of these slots are in the frame.
    pub(crate) fn parity(
        &self,
        map: &StripeMap,
        frame: u32,
        (lo, hi): (u32, u32),
        which: impl Fn(u16) -> bool,
    ) -> (Option<BufSlice>, Option<BufSlice>) {
        let slice = |slot: u16| self.layout.slice(frame, slot, lo, hi);
        (
            Some(map.p_slot()).filter(|s| which(*s)).map(slice),
            map.q_slot().filter(|s| which(*s)).map(slice),
        )
    }

    /// A job that compares P and Q of a whole band with the data in the frame.
    pub(crate) fn check(&mut self, band: u64, frame: u32, skip: &SlotSet, out: &mut Actions) {
        let map = self.map(band);
        let rows = self.layout.rows;
        let (p, q) = self.parity(&map, frame, (0, rows), |slot| !skip.contains(slot));
        if p.is_some() || q.is_some() {
            let srcs = self.sources(&map, frame, 0, rows, &SlotSet::EMPTY, out);
            out.list.push(Action::Compute(Job::Check { srcs, p, q }));
        }
    }

    /// Asks which member is wrong in which rows of a whole band whose parity does not match. Without all members there is one
    /// parity to judge by: a lost chunk was computed from P, which says nothing then.
    pub(crate) fn locate(&mut self, op: u32, out: &mut Actions) {
        let OpState {
            first: band,
            frames,
            missing,
            ..
        } = self.ops[op];
        let map = self.map(band);
        let rows = self.layout.rows;
        let decoded = (0..self.layout.data).any(|k| missing.contains(map.data_slot(k)));
        let told = |slot: u16| decoded && slot == map.p_slot();
        let usable = |slot: u16| !missing.contains(slot) && !told(slot);
        let (p, q) = self.parity(&map, frames[0], (0, rows), usable);
        let srcs = self.sources(&map, frames[0], 0, rows, &SlotSet::EMPTY, out);
        out.list.push(Action::Locate { op, srcs, p, q });
        out.list.push(Action::Fence { op });
    }
}
