//! One queue's share of an array: its requests, the bands it works on, and everything in flight.
//!
//! Loop of the owner: feed events with [`QueueCore::event`], then call [`QueueCore::end_of_pass`] once no more events are at
//! hand; carry out the actions in order; repeat. Requests that arrive in one pass are grouped by band before anything is
//! issued. All memory is taken in [`QueueCore::new`]; where a pool is empty, work waits in line.
//!
//! The code is spread by job: admission and bookkeeping here, member I/O without parity in `direct`, the grouping of writes in
//! `bands`, the life of a parity operation in `ops`, its writes in `write`, unreadable sectors in `recover`, the background
//! walk in `sweep`, what a scrub finds in `scrub`, the manager's word in `views`.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::bands::Band;
use super::direct::{Piece, RecoverJob};
use super::intent::Intent;
use super::intent_queue::Begun;
use super::layout::Layout;
use super::ops::OpState;
use super::owners::Owners;
#[cfg(feature = "planted-bugs")]
pub use super::planted::Bug;
use super::recover::{PIECE, SUSPECTS, Trouble};
use super::slab::Slab;
use super::sweep::Sweep;
use super::types::*;
use crate::geometry::Geometry;

/// Sizes of a queue, fixed at start.
#[derive(Clone, Debug, Default)]
pub struct QueueConfig {
    /// Number of this queue, from 0.
    pub queue: u16,
    /// Number of queues of the array.
    pub queues: u16,
    /// Requests in flight.
    pub depth: u16,
    /// Largest request in sectors.
    pub max_sectors: u32,
    /// Frames of buffer memory; each is one chunk row of every member.
    pub frames: u32,
    /// Passes that a partial band of a large request waits for its neighbour while other I/O is in flight.
    pub defer_passes: u64,
}

/// Counters of one queue; all grow only.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Sectors read by requests.
    pub read_sectors: u64,
    /// Sectors written by requests.
    pub write_sectors: u64,
    /// Bands written in full.
    pub full: u64,
    /// Partial bands written by encode.
    pub encodes: u64,
    /// Partial bands written by update.
    pub updates: u64,
    /// Partial bands written by recover.
    pub recovers: u64,
    /// Bands decoded for reads.
    pub decoded: u64,
    /// Pieces of requests that joined a band operation begun by another request.
    pub merged: u64,
    /// Pieces handed to another queue.
    pub forwarded: u64,
    /// Member I/Os started.
    pub member_ios: u64,
    /// Sectors read from members.
    pub member_read_sectors: u64,
    /// Sectors written to members.
    pub member_write_sectors: u64,
    /// Member I/Os that failed.
    pub member_errors: u64,
    /// Member I/Os in flight now (the one value that also shrinks).
    pub inflight: u64,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Req {
    pub active: bool,
    pub request: Request,
    /// Sectors already turned into work.
    pub cursor: u32,
    /// All of it has been turned into work (or never will be).
    pub admitted: bool,
    /// Pieces of work not finished.
    pub pending: u32,
    pub result: Result<(), RequestError>,
    /// Members whose flush failed.
    pub failed: SlotSet,
}

/// Who waits for a member I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IoOwner {
    Req(u16),
    Op(u32),
}

/// A member I/O in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Io {
    pub owner: IoOwner,
    pub kind: IoKind,
    pub slot: u16,
    pub sector: u64,
    pub sectors: u32,
    /// Of the view at its begin.
    pub epoch: u32,
}

/// Band numbers are spread well enough by one multiplication.
#[derive(Default)]
pub(crate) struct BandHasher(u64);

impl Hasher for BandHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

pub(crate) type BandIndex = HashMap<u64, u32, BuildHasherDefault<BandHasher>>;

/// The state of one queue. See the module comment.
pub struct QueueCore {
    pub(crate) cfg: QueueConfig,
    pub(crate) layout: Layout,
    pub(crate) owners: Arc<Owners>,
    pub(crate) view: View,
    pub(crate) stats: QueueStats,
    pub(crate) pass: u64,

    pub(crate) reqs: Vec<Req>,
    pub(crate) admit: VecDeque<u16>,
    pub(crate) parked: VecDeque<u16>,
    pub(crate) held_flushes: Vec<u16>,
    pub(crate) recover_jobs: VecDeque<RecoverJob>,
    pub(crate) foreign: VecDeque<(u64, Seg)>,
    pub(crate) forwarded: usize,
    pub(crate) forward_limit: usize,
    pub(crate) direct_ios: usize,
    pub(crate) direct_limit: usize,
    pub(crate) pieces: Vec<Piece>,

    pub(crate) ios: Slab<Io>,
    pub(crate) segs: Slab<(Seg, u32)>,
    pub(crate) bands: Slab<Band>,
    pub(crate) band_masks: Vec<u128>,
    pub(crate) band_index: BandIndex,
    pub(crate) ready_full: Vec<u32>,
    pub(crate) full_scratch: Vec<u32>,
    pub(crate) ready_partial: VecDeque<(u32, u64)>,
    pub(crate) ready_reads: VecDeque<(u32, u64)>,

    pub(crate) ops: Slab<OpState>,
    pub(crate) op_masks: Vec<u128>,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) frames: Vec<u32>,
    pub(crate) held_ops: Vec<u32>,

    pub(crate) sweep: Option<Sweep>,
    pub(crate) intent: Option<Arc<Intent>>,
    pub(crate) begun: Begun,
    /// Some band waits for its bit in the bitmap.
    pub(crate) bits_awaited: bool,
    /// [`View::doubtful`] of the view.
    pub(crate) doubtful: SlotSet,
    /// By slot: the epoch that brought the member which is there now.
    pub(crate) joined: Vec<u32>,
    pub(crate) need_dirty_sent: bool,
    pub(crate) wrote: bool,
    pub(crate) active: usize,
    pub(crate) active_writes: usize,
    pub(crate) foreground: u64,
    #[cfg(feature = "planted-bugs")]
    bug: Option<Bug>,
}

impl QueueCore {
    /// Takes all memory that the queue will ever need.
    pub fn new(cfg: QueueConfig, geometry: Geometry, owners: Arc<Owners>, view: View) -> QueueCore {
        let layout = Layout::new(geometry);
        let n = usize::from(layout.members);
        let d = usize::from(layout.data);
        let depth = usize::from(cfg.depth);
        let frames = cfg.frames as usize;
        assert!(frames >= 2 && depth >= 1, "a queue needs frames and depth");
        let pieces = (cfg.max_sectors / layout.geometry.chunk_sectors()) as usize + 2;
        let segs = (pieces * 4).max(frames * d * 2).max(4096);
        let direct_limit = (pieces + n).max(4096);
        let probes = SUSPECTS * (BAND_SECTORS / PIECE) as usize;
        let ops = frames * 2;
        let bands = segs + MAX_RUN * 8;
        let idle = Req {
            active: false,
            request: Request {
                op: Op::Flush,
                lba: 0,
                sectors: 0,
                direct: false,
            },
            cursor: 0,
            admitted: false,
            pending: 0,
            result: Ok(()),
            failed: SlotSet::EMPTY,
        };
        QueueCore {
            reqs: vec![idle; depth],
            admit: VecDeque::with_capacity(depth),
            parked: VecDeque::with_capacity(depth),
            held_flushes: Vec::with_capacity(depth),
            recover_jobs: VecDeque::with_capacity(direct_limit + frames * n * 2),
            foreign: VecDeque::with_capacity(segs),
            forwarded: 0,
            forward_limit: segs / usize::from(cfg.queues.max(1)),
            direct_ios: 0,
            direct_limit,
            pieces: Vec::with_capacity(pieces + n),
            ios: Slab::new(direct_limit + segs + frames * ((2 * n + 4) * 2 + probes)),
            segs: Slab::new(segs),
            bands: Slab::new(bands),
            band_masks: vec![0; bands * d],
            band_index: BandIndex::with_capacity_and_hasher(bands * 2, Default::default()),
            ready_full: Vec::with_capacity(bands),
            full_scratch: Vec::with_capacity(bands),
            ready_partial: VecDeque::with_capacity(bands * 2),
            ready_reads: VecDeque::with_capacity(bands * 2),
            ops: Slab::new(ops),
            op_masks: vec![0; ops * d],
            troubles: vec![Trouble::NONE; ops],
            frames: (0..cfg.frames).rev().collect(),
            held_ops: Vec::with_capacity(ops),
            sweep: None,
            intent: None,
            begun: Begun::default(),
            bits_awaited: false,
            doubtful: view.doubtful(),
            joined: vec![0; n],
            need_dirty_sent: false,
            wrote: false,
            active: 0,
            active_writes: 0,
            foreground: 0,
            #[cfg(feature = "planted-bugs")]
            bug: None,
            stats: QueueStats::default(),
            pass: 0,
            view,
            owners,
            layout,
            cfg,
        }
    }

    /// Bytes of buffer memory that the actions of this queue refer to.
    pub fn arena_bytes(&self) -> u64 {
        self.layout.frame_bytes() * u64::from(self.cfg.frames)
    }

    /// Messages that can be under way to this queue at once: what others forward, answers, and the manager's.
    pub fn mail_capacity(&self) -> usize {
        self.segs.capacity() * 2 + 1024
    }

    /// Member I/O numbers are below this.
    pub fn io_capacity(&self) -> usize {
        self.ios.capacity()
    }

    /// Counters so far.
    pub fn stats(&self) -> QueueStats {
        self.stats
    }

    /// What the queue believes about the array.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Nothing is in flight or waiting, for this queue's or other queues' requests.
    pub fn idle(&self) -> bool {
        self.active == 0
            && self.ops.in_use() == 0
            && self.ios.in_use() == 0
            && self.bands.in_use() == 0
            && self.segs.in_use() == 0
            && self.foreign.is_empty()
            && self.frames.len() == self.cfg.frames as usize
    }

    /// How many completions to wait for when it costs nothing: the member I/Os that an average request still needs. A wait
    /// for less would end before any request can.
    pub fn wait_hint(&self) -> u32 {
        (self.ios.in_use() / self.active.max(1)).clamp(1, 16) as u32
    }

    /// Work is waiting for something that no completion announces (a band that another queue owns): call
    /// [`QueueCore::end_of_pass`] again within a few milliseconds.
    pub fn wants_tick(&self) -> bool {
        self.sweep.is_some()
    }

    /// Plants a fault, so that the simulator can prove that it finds it.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, bug: Option<Bug>) {
        self.bug = bug;
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Takes one event in.
    pub fn event(&mut self, event: Event, out: &mut Actions) {
        match event {
            Event::Request { tag, request } => self.request(tag, request, out),
            Event::IoDone { io, result } => self.io_done(io, result, out),
            Event::Fenced { op, ok, mismatch } => self.fenced(op, ok, mismatch, out),
            Event::Located { op, lo, hi, wrong } => self.located(op, (lo, hi), wrong, out),
            Event::Msg(msg) => self.message(msg, out),
        }
    }

    /// All events of this pass are in: issue what can be issued.
    pub fn end_of_pass(&mut self, out: &mut Actions) {
        self.pass += 1;
        self.take_foreign(out);
        self.run_admission(out);
        // After admission: a request for nothing but lost chunks starts no member I/O that would bring another pass.
        self.run_recover_jobs(out);
        self.issue_reads(out);
        self.issue_full(out);
        self.issue_partial(out);
        self.run_sweep(out);
        self.stats.inflight = self.ios.in_use() as u64;
    }

    fn request(&mut self, tag: u16, request: Request, out: &mut Actions) {
        let req = &mut self.reqs[usize::from(tag)];
        assert!(!req.active, "tag {tag} is in flight already");
        *req = Req {
            active: true,
            request,
            cursor: 0,
            admitted: false,
            pending: 0,
            result: Ok(()),
            failed: SlotSet::EMPTY,
        };
        self.foreground += 1;
        self.active += 1;
        let write = matches!(request.op, Op::Write | Op::WriteZeroes | Op::Discard);
        if write {
            self.active_writes += 1;
        }
        let end = request.lba.checked_add(u64::from(request.sectors));
        let refused = match request.op {
            Op::Flush => None,
            _ if end.is_none_or(|e| e > self.layout.geometry.array_sectors()) => {
                Some(RequestError::Io)
            }
            _ if write && self.view.read_only => Some(RequestError::ReadOnly),
            Op::Discard if self.layout.parity => Some(RequestError::Unsupported),
            _ if self.view.failed && self.layout.parity => Some(RequestError::Io),
            _ => None,
        };
        if let Some(error) = refused {
            return self.refuse(tag, error, out);
        }
        match request.op {
            Op::Read => {
                self.stats.reads += 1;
                self.stats.read_sectors += u64::from(request.sectors);
            }
            Op::Flush => self.stats.flushes += 1,
            _ => {
                self.stats.writes += 1;
                self.stats.write_sectors += u64::from(request.sectors);
            }
        }
        if write && self.layout.parity && !self.may_write() {
            self.parked.push_back(tag);
            self.ask_dirty(out);
        } else {
            self.admit.push_back(tag);
        }
    }

    pub(crate) fn refuse(&mut self, tag: u16, error: RequestError, out: &mut Actions) {
        let req = &mut self.reqs[usize::from(tag)];
        req.result = Err(error);
        req.admitted = true;
        self.maybe_complete(tag, out);
    }

    fn may_write(&self) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(Bug::WriteWhileClean) {
            return true;
        }
        self.view.writable
    }

    fn ask_dirty(&mut self, out: &mut Actions) {
        if !self.need_dirty_sent {
            self.need_dirty_sent = true;
            let msg = Msg::NeedDirty {
                queue: self.cfg.queue,
            };
            out.list.push(Action::Send {
                to: Peer::Manager,
                msg,
            });
        }
    }

    /// Turns waiting requests into work, in order of arrival, as far as the pools allow.
    fn run_admission(&mut self, out: &mut Actions) {
        while let Some(&tag) = self.admit.front() {
            let Req {
                request, result, ..
            } = self.reqs[usize::from(tag)];
            let done = match request.op {
                _ if result.is_err() => true,
                Op::Flush => self.admit_flush(tag, out),
                Op::Write | Op::WriteZeroes if self.layout.parity => {
                    self.admit_parity_write(tag, out)
                }
                _ => self.admit_range(tag, out),
            };
            if !done {
                return;
            }
            self.admit.pop_front();
            self.reqs[usize::from(tag)].admitted = true;
            self.maybe_complete(tag, out);
        }
    }

    fn admit_flush(&mut self, tag: u16, out: &mut Actions) -> bool {
        let n = self.layout.members;
        if self.direct_ios + usize::from(n) > self.direct_limit {
            return false;
        }
        // A member that is being filled holds nothing yet that a flush could be about before its zone begins.
        let without = self.view.absent_at(0);
        for slot in (0..n).filter(|s| !without.contains(*s)) {
            #[cfg(feature = "planted-bugs")]
            if self.bug(Bug::FlushOne) && slot > 0 {
                break;
            }
            self.reqs[usize::from(tag)].pending += 1;
            self.direct_ios += 1;
            let mark = out.mark();
            self.member_io(IoOwner::Req(tag), IoKind::Flush, slot, 0, 0, mark, out);
        }
        true
    }

    /// Emits one member I/O over the buffers pushed since `mark`.
    pub(crate) fn member_io(
        &mut self,
        owner: IoOwner,
        kind: IoKind,
        slot: u16,
        sector: u64,
        sectors: u32,
        mark: u32,
        out: &mut Actions,
    ) {
        let io = self
            .ios
            .insert(Io {
                owner,
                kind,
                slot,
                sector,
                sectors,
                epoch: self.view.epoch,
            })
            .expect("the I/O pool covers all that frames and limits admit");
        self.stats.member_ios += 1;
        match kind {
            IoKind::Read => self.stats.member_read_sectors += u64::from(sectors),
            IoKind::Write => self.stats.member_write_sectors += u64::from(sectors),
            _ => {}
        }
        let bufs = out.since(mark);
        out.list.push(Action::Member {
            io,
            kind,
            slot,
            sector,
            sectors,
            bufs,
        });
    }

    fn io_done(&mut self, io: u32, result: Result<(), MemberError>, out: &mut Actions) {
        let io = self.ios.remove(io);
        if let Err(error) = result {
            self.stats.member_errors += 1;
            if error == MemberError::Gone && !self.late(&io) {
                self.report_failed(io.slot, error, out);
            }
        }
        match io.owner {
            IoOwner::Op(op) => self.op_io_done(op, io, result, out),
            IoOwner::Req(tag) => {
                self.direct_ios -= 1;
                if let Err(error) = result {
                    self.direct_failed(tag, io, error, out);
                }
                self.piece_done(tag, Ok(()), out);
            }
        }
    }

    /// The I/O went to the member that was in the slot before the one there now.
    pub(crate) fn late(&self, io: &Io) -> bool {
        io.epoch < self.joined[usize::from(io.slot)]
    }

    /// Tells the manager that a member has to leave the array.
    pub(crate) fn report_failed(&mut self, slot: u16, error: MemberError, out: &mut Actions) {
        if !self.view.missing.contains(slot) {
            out.list.push(Action::Send {
                to: Peer::Manager,
                msg: Msg::MemberFailed { slot, error },
            });
        }
    }

    /// One piece of a request of this queue is done.
    pub(crate) fn piece_done(
        &mut self,
        tag: u16,
        result: Result<(), RequestError>,
        out: &mut Actions,
    ) {
        let req = &mut self.reqs[usize::from(tag)];
        req.pending -= 1;
        if req.result.is_ok() {
            req.result = result;
        }
        self.maybe_complete(tag, out);
    }

    pub(crate) fn maybe_complete(&mut self, tag: u16, out: &mut Actions) {
        let req = &self.reqs[usize::from(tag)];
        if !req.active || req.pending > 0 || !req.admitted {
            return;
        }
        // A flush that a member did not take, or that left out one which the survivors do not name as missing yet: after
        // a power cut that member would count as fresh, without the writes in its cache.
        let flush = req.request.op == Op::Flush && self.layout.parity;
        #[cfg(feature = "planted-bugs")]
        let flush = flush && (!self.bug(Bug::FlushBeforeRecord) || !req.failed.is_empty());
        if flush && req.result.is_ok() && !self.recorded(&req.failed) {
            if !self.held_flushes.contains(&tag) {
                self.held_flushes.push(tag);
            }
            return;
        }
        let mut result = req.result;
        if req.request.op == Op::Flush && self.view.failed {
            result = Err(RequestError::Io);
        }
        if matches!(req.request.op, Op::Write | Op::WriteZeroes | Op::Discard) {
            self.active_writes -= 1;
            self.wrote = true;
        }
        self.reqs[usize::from(tag)].active = false;
        self.active -= 1;
        out.list.push(Action::Complete { tag, result });
    }

    /// Whether the loss of these members is durable on the survivors and known to every queue, so that a write which
    /// they missed may be acknowledged.
    pub(crate) fn recorded(&self, failed: &SlotSet) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(Bug::AckBeforeRecord) {
            return true;
        }
        // A read-only array records nothing, and misses nothing.
        self.view.failed
            || self.view.read_only
            || (self.view.missing.includes(failed) && self.view.recorded == self.view.epoch)
    }

    fn message(&mut self, msg: Msg, out: &mut Actions) {
        match msg {
            Msg::Seg { band, seg } => {
                if seg.origin == self.cfg.queue {
                    self.forwarded -= 1;
                }
                self.foreign.push_back((band, seg));
            }
            Msg::SegDone { tag, result } => {
                self.forwarded -= 1;
                self.piece_done(tag, result, out);
            }
            Msg::View(view) => self.new_view(view, out),
            Msg::Quiesce { round } => self.quiesce(round, out),
            Msg::Sweep { kind, first, end } => self.start_sweep(kind, first, end),
            Msg::SweepAbort => self.abort_sweep(),
            Msg::Bits => self.bits_changed(out),
            Msg::Begun { round } => self.asked_begun(round, out),
            Msg::NeedDirty { .. }
            | Msg::MemberFailed { .. }
            | Msg::ViewAck { .. }
            | Msg::Quiet { .. }
            | Msg::Mismatch { .. }
            | Msg::NeedBit { .. }
            | Msg::Ended { .. }
            | Msg::SweepDone { .. } => unreachable!("a message for the manager"),
        }
    }
}
