//! One engine thread: the loop between a queue's core and the world.
//!
//! A pass: take in completions, messages and requests, and what a lane has done; let the core issue what it can; carry out
//! its actions in order, copies inline, parity in the workshop; submit; wait. The thread owns its ring, buffer memory and
//! core; it shares nothing but the owner words and its mailbox, and allocates nothing once it runs.
//!
//! While a lane has jobs in flight the engine does not sleep for long: first it spins for the time that a job takes, then it
//! sleeps in the ring in short ticks. Without a lane, or with nothing in flight, it sleeps until something happens.

mod counters;
mod errno;
mod files;
pub mod journal;
mod locate;
mod mailbox;
mod offload;
mod ring;
mod work;
mod workshop;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parity_kernels::calibrate::Calibration;
use parity_kernels::{Arena, BufRange};
use raid_core::path::queue::QueueCore;
use raid_core::path::types::{
    Action, Actions, BufSlice, Event, IoKind, MemberError, Msg, Op, Peer, Request,
};
use ublk_frontend::{Event as Arrival, Fetched, Frontend, UBLK_KEY};

use crate::lane::LanePlan;
use files::Files;
use journal::Journal;
use offload::Rest;
use work::range;
use workshop::Workshop;

pub use counters::Counters;
pub use files::{EngineMember, MemberChange};
pub use mailbox::{Mailbox, Postbox, mailbox};
pub use ring::mark_io_flusher;
use ring::{Direction, FRONTEND_KEY, MemberRing, WAKE_KEY};

/// Everything an engine thread needs besides its frontend.
pub struct Parts {
    /// The queue's core.
    pub core: QueueCore,
    /// Members by slot; none where missing.
    pub members: Vec<Option<EngineMember>>,
    /// This engine's mailbox.
    pub mailbox: Mailbox,
    /// Mailboxes of all queues.
    pub peers: Vec<Postbox>,
    /// The manager's mailbox.
    pub manager: crossbeam_channel::Sender<Msg>,
    /// Who does the arithmetic on this thread, and what it costs.
    pub parity: Arc<Calibration>,
    /// A lane to a device, if this engine shall have one.
    pub lane: Option<LanePlan>,
    /// Buffer memory, as large as the core says.
    pub arena: Arena,
    /// Where writes in flight are noted for a successor; none where nobody could take over or no stripe can be torn.
    pub journal: Option<Journal>,
    /// Where counters go.
    pub counters: Arc<Counters>,
    /// Set when the engine shall end as soon as nothing is in flight.
    pub exit: Arc<AtomicBool>,
}

/// One engine; see the module comment.
pub struct Engine<F: Frontend> {
    ring: MemberRing,
    frontend: F,
    workshop: Workshop,
    parts: Parts,
    actions: Actions,
    completions: Vec<(u64, i32)>,
    fences: Vec<Event>,
    spans: Vec<BufRange>,
    files: Files,
    /// By I/O number: what was asked for, how many bytes, and of which file.
    expected: Vec<(IoKind, u32, u16)>,
    /// What to answer for a request that succeeds, by tag.
    success: Vec<i32>,
    wake_armed: bool,
    frontend_armed: bool,
}

impl<F: Frontend> Engine<F> {
    /// Builds the ring. Call on the thread that will run it.
    ///
    /// # Errors
    /// What io_uring says.
    pub fn new(frontend: F, mut parts: Parts) -> io::Result<Engine<F>> {
        mark_io_flusher();
        let ring = MemberRing::new(2048, frontend.depth(), &parts.arena)?;
        let workshop = Workshop::new(
            parts.parity.clone(),
            parts.members.len(),
            &parts.arena,
            parts.lane.take(),
            parts.mailbox.waker(),
        );
        Ok(Engine {
            ring,
            actions: Actions::with_capacity(4096, 8192),
            completions: Vec::with_capacity(1024),
            fences: Vec::with_capacity(512),
            workshop,
            spans: Vec::with_capacity(1024),
            files: Files::new(std::mem::take(&mut parts.members)),
            expected: vec![(IoKind::Flush, 0, 0); parts.core.io_capacity()],
            success: vec![0; usize::from(frontend.depth())],
            wake_armed: false,
            frontend_armed: false,
            frontend,
            parts,
        })
    }

    /// Serves until it is told to end and nothing is in flight.
    ///
    /// # Errors
    /// Only if the ring itself breaks.
    pub fn run(mut self) -> io::Result<()> {
        let mut sq = self.ring.sq();
        self.frontend.prime(&mut sq);
        drop(sq);
        loop {
            let busy = self.take_in();
            // What fences lead to may make more work ready, and nothing else might announce it.
            loop {
                self.parts.core.end_of_pass(&mut self.actions);
                if !self.carry_out() {
                    break;
                }
            }
            self.publish();
            if self.parts.exit.load(Ordering::Acquire) && self.at_rest() {
                self.workshop.close();
                return Ok(());
            }
            self.wait(busy)?;
        }
    }

    fn publish(&self) {
        let (stats, tally) = (self.parts.core.stats(), self.workshop.tally());
        self.parts.counters.publish(&stats, &tally);
    }

    /// Nothing is in flight, or nothing that will ever end.
    fn at_rest(&self) -> bool {
        if self.parts.core.idle() {
            return true;
        }
        let stuck = self.workshop.stuck() && self.parts.core.stats().inflight == 0;
        if stuck {
            tracing::error!("an engine ends with requests that a GPU did not let go of");
        }
        stuck
    }

    /// Submits, and sleeps until something happens unless there is more to do at once.
    fn wait(&mut self, busy: bool) -> io::Result<()> {
        if !self.wake_armed {
            self.ring.arm_wake(self.parts.mailbox.wake_fd());
            self.wake_armed = true;
        }
        if !self.frontend_armed
            && let Some(fd) = self.frontend.wake_fd()
        {
            self.ring.arm_frontend(fd);
            self.frontend_armed = true;
        }
        // What finds no room in the submission queue must not wait for somebody else's completion.
        while self.frontend.flush(&mut self.ring.sq()) > 0 {
            self.ring.submit()?;
        }
        if busy || !self.parts.mailbox.is_empty() {
            return self.ring.submit();
        }
        let mut rest = self.workshop.rest();
        if let Rest::Spin(until) = rest {
            self.ring.submit()?;
            if self.spin(until)? {
                return Ok(());
            }
            rest = self.workshop.rest();
        }
        if !self.parts.mailbox.may_sleep() {
            return self.ring.submit();
        }
        // Work that waits is always brought on by a completion or a message. Should a fault ever break that rule, a
        // request that takes a second is better than one that hangs for good.
        let limit = match (self.parts.core.wants_tick(), self.parts.core.idle()) {
            (true, _) => Some(Duration::from_millis(2)),
            (false, false) => Some(Duration::from_secs(1)),
            (false, true) => None,
        };
        let (want, limit) = match rest {
            Rest::Deep => (self.parts.core.wait_hint(), limit),
            Rest::Tick(time) => (1, Some(limit.map_or(time, |l| l.min(time)))),
            Rest::Spin(_) => (1, Some(Duration::ZERO)),
        };
        let done = self.ring.submit_and_wait(want, limit);
        self.parts.mailbox.awake();
        done
    }

    /// Looks at lane, ring and mailbox until one of them has something, or until then. True if one has.
    fn spin(&mut self, until: Instant) -> io::Result<bool> {
        loop {
            self.workshop.poll(&mut self.parts.arena, &mut self.fences);
            if !self.fences.is_empty() || self.ring.ready()? || !self.parts.mailbox.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Completions, messages and requests into the core. True if there may be more at once.
    fn take_in(&mut self) -> bool {
        let mut list = std::mem::take(&mut self.completions);
        self.ring.completions(&mut list);
        let more = list.len() == list.capacity();
        for (key, result) in list.drain(..) {
            if key & UBLK_KEY != 0 {
                if let Arrival::Request(fetched) = self.frontend.on_cqe(key, result) {
                    self.fetched(fetched);
                }
            } else if key == WAKE_KEY {
                self.wake_armed = false;
            } else if key == FRONTEND_KEY {
                self.frontend_armed = false;
            } else {
                let io = key as u32;
                let (kind, bytes, file) = self.expected[io as usize];
                self.files.ended(file);
                let result = errno::member_result(kind, bytes, result);
                if kind == IoKind::Write
                    && let Some(journal) = &self.parts.journal
                {
                    journal.ended(io, result.is_err());
                }
                self.parts
                    .core
                    .event(Event::IoDone { io, result }, &mut self.actions);
            }
            if self.actions.list.len() > 2048 {
                self.carry_out();
            }
        }
        self.completions = list;
        while let Some(change) = self.parts.mailbox.take_change() {
            self.files.change(change);
        }
        while let Some(msg) = self.parts.mailbox.take() {
            self.parts.core.event(Event::Msg(msg), &mut self.actions);
        }
        while let Some(fetched) = self.frontend.next_request() {
            self.fetched(fetched);
        }
        self.workshop.poll(&mut self.parts.arena, &mut self.fences);
        more
    }

    fn fetched(&mut self, fetched: Fetched) {
        let Fetched {
            tag,
            request,
            auto_buf,
        } = fetched;
        match request {
            Ok(r) => {
                let op = match r.op {
                    ublk_frontend::Op::Read => Op::Read,
                    ublk_frontend::Op::Write => Op::Write,
                    ublk_frontend::Op::Flush => Op::Flush,
                    ublk_frontend::Op::Discard => Op::Discard,
                    ublk_frontend::Op::WriteZeroes { .. } => Op::WriteZeroes,
                };
                self.success[usize::from(tag)] = r.success();
                let request = Request {
                    op,
                    lba: r.lba,
                    sectors: r.sectors,
                    direct: auto_buf,
                };
                self.parts
                    .core
                    .event(Event::Request { tag, request }, &mut self.actions);
            }
            Err(errno) => {
                let mut sq = self.ring.sq();
                self.frontend.commit(&mut sq, tag, errno);
            }
        }
    }

    /// Carries out the core's actions, and those that its fences lead to. True if there were any.
    fn carry_out(&mut self) -> bool {
        let mut fenced = false;
        loop {
            let actions = std::mem::take(&mut self.actions);
            if let Some(journal) = &mut self.parts.journal {
                note_writes(journal, &actions);
            }
            for action in &actions.list {
                self.one(action, &actions);
            }
            self.actions = actions;
            self.actions.clear();
            if self.fences.is_empty() {
                return fenced;
            }
            fenced = true;
            let mut fences = std::mem::take(&mut self.fences);
            for fence in fences.drain(..) {
                self.parts.core.event(fence, &mut self.actions);
            }
            self.fences = fences;
        }
    }

    fn one(&mut self, action: &Action, all: &Actions) {
        match action {
            Action::Member {
                io,
                kind,
                slot,
                sector,
                sectors,
                bufs,
            } => {
                let bufs = &all.bufs[bufs.start as usize..bufs.end as usize];
                self.member(*io, *kind, *slot, *sector, *sectors, bufs);
            }
            Action::CopyIn {
                queue,
                tag,
                off,
                bufs,
            } => {
                let bufs = &all.bufs[bufs.start as usize..bufs.end as usize];
                self.spans.clear();
                self.spans.extend(bufs.iter().map(range));
                let bytes = self.spans.iter().map(|s| s.len as u64).sum();
                let spans = self.parts.arena.spans_mut(&self.spans);
                let ok = self.frontend.copy_in(*queue, *tag, *off, spans).is_ok();
                self.workshop.copied(bytes, ok);
            }
            Action::CopyOut {
                queue,
                tag,
                off,
                bufs,
            } => {
                let bufs = &all.bufs[bufs.start as usize..bufs.end as usize];
                let spans = bufs.iter().map(|b| self.parts.arena.bytes(range(b)));
                let ok = self.frontend.copy_out(*queue, *tag, *off, spans).is_ok();
                self.workshop.copied(0, ok);
            }
            Action::Zero(slice) => self.parts.arena.bytes_mut(range(slice)).fill(0),
            Action::Compute(job) => self.workshop.gather(job, all, &mut self.parts.arena),
            Action::Locate { op, srcs, p, q } => {
                let srcs = &all.srcs[srcs.start as usize..srcs.end as usize];
                let arena = &self.parts.arena;
                locate::sectors(arena, srcs, *p, *q, |lo, hi, wrong| {
                    let op = *op;
                    self.fences.push(Event::Located { op, lo, hi, wrong });
                });
            }
            Action::Fence { op } => {
                self.workshop
                    .fence(*op, &mut self.parts.arena, &mut self.fences)
            }
            Action::Complete { tag, result } => {
                let value = match result {
                    Ok(()) => self.success[usize::from(*tag)],
                    Err(error) => errno::request_errno(*error),
                };
                let mut sq = self.ring.sq();
                self.frontend.commit(&mut sq, *tag, value);
            }
            Action::Send {
                to: Peer::Queue(queue),
                msg,
            } => self.parts.peers[usize::from(*queue)].send(*msg),
            Action::Send {
                to: Peer::Manager,
                msg,
            } => {
                if self.parts.manager.send(*msg).is_err() {
                    tracing::error!("the manager of this array is gone");
                }
            }
        }
    }

    fn member(
        &mut self,
        io: u32,
        kind: IoKind,
        slot: u16,
        sector: u64,
        sectors: u32,
        bufs: &[BufSlice],
    ) {
        let Some((place, member)) = self.files.begin(slot) else {
            if kind == IoKind::Write
                && let Some(journal) = &self.parts.journal
            {
                journal.ended(io, false);
            }
            let event = Event::IoDone {
                io,
                result: Err(MemberError::Gone),
            };
            self.fences.push(event);
            return;
        };
        let pos = member.data_offset + sector * 512;
        let len = u64::from(sectors) * 512;
        self.expected[io as usize] = (kind, len.min(u64::from(u32::MAX)) as u32, place);
        let ring = &mut self.ring;
        match kind {
            IoKind::Read => ring.transfer(
                io,
                Direction::Read,
                &member.file,
                pos,
                bufs,
                &self.parts.arena,
            ),
            IoKind::Write => ring.transfer(
                io,
                Direction::Write,
                &member.file,
                pos,
                bufs,
                &self.parts.arena,
            ),
            IoKind::Flush => ring.flush(io, &member.file),
            IoKind::Discard => ring.discard(io, &member.file, pos, len),
            IoKind::WriteZeroes => ring.write_zeroes(io, &member.file, pos, len),
        }
    }
}

/// Before any of them is submitted, also by a submission queue that is full.
fn note_writes(journal: &mut Journal, actions: &Actions) {
    for action in &actions.list {
        if let Action::Member {
            io,
            kind: IoKind::Write,
            slot,
            sector,
            sectors,
            bufs,
        } = action
        {
            let bufs = &actions.bufs[bufs.start as usize..bufs.end as usize];
            journal.note(*io, *slot, *sector, *sectors, bufs);
        }
    }
    journal.commit();
}
