//! One engine thread: the loop between a queue's core and the world.
//!
//! A pass: take in completions, messages and requests; let the core issue what it can; carry out its actions in order,
//! copies and parity inline; submit; wait. The thread owns its ring, buffer memory and core; it shares nothing but the
//! owner words and its mailbox, and allocates nothing once it runs.

mod errno;
mod mailbox;
mod ring;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parity_kernels::{Arena, BufRange, Engine as Parity};
use raid_core::path::queue::{QueueCore, QueueStats};
use raid_core::path::types::{
    Action, Actions, BufSlice, Event, IoKind, Job, MemberError, Msg, Op, Peer, Request,
};
use ublk_frontend::{Event as Arrival, Fetched, Frontend, UBLK_KEY};

pub use mailbox::{Mailbox, Postbox, mailbox};
pub use ring::mark_io_flusher;
use ring::{Direction, FRONTEND_KEY, MemberRing, WAKE_KEY};

/// A member as an engine sees it.
#[derive(Clone, Debug)]
pub struct EngineMember {
    /// Open for direct I/O.
    pub file: Arc<File>,
    /// First byte of its data area.
    pub data_offset: u64,
}

/// What an engine lets others see: copies of the core's counters, written by the engine alone.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; 17]);

impl Counters {
    fn publish(&self, s: &QueueStats) {
        let values = [
            s.reads,
            s.writes,
            s.flushes,
            s.read_sectors,
            s.write_sectors,
            s.full,
            s.encodes,
            s.updates,
            s.recovers,
            s.decoded,
            s.merged,
            s.forwarded,
            s.member_ios,
            s.member_read_sectors,
            s.member_write_sectors,
            s.member_errors,
            s.inflight,
        ];
        for (to, from) in self.0.iter().zip(values) {
            to.store(from, Ordering::Relaxed);
        }
    }

    /// Names and values, in a fixed order.
    pub fn read(&self) -> [(&'static str, u64); 17] {
        const NAMES: [&str; 17] = [
            "read_requests",
            "write_requests",
            "flush_requests",
            "read_sectors",
            "write_sectors",
            "full_bands",
            "encode_bands",
            "update_bands",
            "recover_bands",
            "decoded_bands",
            "merged_pieces",
            "forwarded_pieces",
            "member_ios",
            "member_read_sectors",
            "member_write_sectors",
            "member_errors",
            "member_ios_in_flight",
        ];
        std::array::from_fn(|i| (NAMES[i], self.0[i].load(Ordering::Relaxed)))
    }
}

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
    /// Arithmetic.
    pub parity: Parity,
    /// Buffer memory, as large as the core says.
    pub arena: Arena,
    /// Where counters go.
    pub counters: Arc<Counters>,
    /// Set when the engine shall end as soon as nothing is in flight.
    pub exit: Arc<AtomicBool>,
}

/// One engine; see the module comment.
pub struct Engine<F: Frontend> {
    ring: MemberRing,
    frontend: F,
    parts: Parts,
    actions: Actions,
    completions: Vec<(u64, i32)>,
    fences: Vec<Event>,
    copies_ok: bool,
    mismatch: bool,
    sources: Vec<(BufRange, u8)>,
    spans: Vec<BufRange>,
    expected: Vec<(IoKind, u32)>,
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
    pub fn new(frontend: F, parts: Parts) -> io::Result<Engine<F>> {
        mark_io_flusher();
        let ring = MemberRing::new(2048, frontend.depth(), &parts.arena)?;
        Ok(Engine {
            ring,
            actions: Actions::with_capacity(4096, 8192),
            completions: Vec::with_capacity(1024),
            fences: Vec::with_capacity(512),
            copies_ok: true,
            mismatch: false,
            sources: Vec::with_capacity(256),
            spans: Vec::with_capacity(1024),
            expected: vec![(IoKind::Flush, 0); parts.core.io_capacity()],
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
            self.parts.counters.publish(&self.parts.core.stats());
            if self.parts.exit.load(Ordering::Acquire) && self.parts.core.idle() {
                return Ok(());
            }
            self.wait(busy)?;
        }
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
        if busy || !self.parts.mailbox.may_sleep() {
            return self.ring.submit();
        }
        // Work that waits is always brought on by a completion or a message. Should a fault ever break that rule, a
        // request that takes a second is better than one that hangs for good.
        let limit = match (self.parts.core.wants_tick(), self.parts.core.idle()) {
            (true, _) => Some(Duration::from_millis(2)),
            (false, false) => Some(Duration::from_secs(1)),
            (false, true) => None,
        };
        let done = self
            .ring
            .submit_and_wait(self.parts.core.wait_hint(), limit);
        self.parts.mailbox.awake();
        done
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
                let (kind, bytes) = self.expected[io as usize];
                let result = errno::member_result(kind, bytes, result);
                self.parts
                    .core
                    .event(Event::IoDone { io, result }, &mut self.actions);
            }
            if self.actions.list.len() > 2048 {
                self.carry_out();
            }
        }
        self.completions = list;
        while let Some(msg) = self.parts.mailbox.take() {
            self.parts.core.event(Event::Msg(msg), &mut self.actions);
        }
        while let Some(fetched) = self.frontend.next_request() {
            self.fetched(fetched);
        }
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
                let spans = self.parts.arena.spans_mut(&self.spans);
                self.copies_ok &= self.frontend.copy_in(*queue, *tag, *off, spans).is_ok();
            }
            Action::CopyOut {
                queue,
                tag,
                off,
                bufs,
            } => {
                let bufs = &all.bufs[bufs.start as usize..bufs.end as usize];
                let spans = bufs.iter().map(|b| self.parts.arena.bytes(range(b)));
                self.copies_ok &= self.frontend.copy_out(*queue, *tag, *off, spans).is_ok();
            }
            Action::Zero(slice) => self.parts.arena.bytes_mut(range(slice)).fill(0),
            Action::Compute(job) => self.compute(job, all),
            Action::Fence { op } => {
                let ok = std::mem::replace(&mut self.copies_ok, true);
                let mismatch = std::mem::replace(&mut self.mismatch, false);
                self.fences.push(Event::Fenced {
                    op: *op,
                    ok,
                    mismatch,
                });
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
        let Some(member) = &self.parts.members[usize::from(slot)] else {
            let event = Event::IoDone {
                io,
                result: Err(MemberError::Gone),
            };
            self.fences.push(event);
            return;
        };
        let pos = member.data_offset + sector * 512;
        let len = u64::from(sectors) * 512;
        self.expected[io as usize] = (kind, len.min(u64::from(u32::MAX)) as u32);
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

    fn compute(&mut self, job: &Job, all: &Actions) {
        let Parts { arena, parity, .. } = &mut self.parts;
        let opt = |s: &Option<BufSlice>| s.as_ref().map(range);
        self.sources.clear();
        if let Job::Encode { srcs, .. } | Job::Recover { srcs, .. } | Job::Check { srcs, .. } = job
        {
            let list = &all.srcs[srcs.start as usize..srcs.end as usize];
            self.sources
                .extend(list.iter().map(|(s, e)| (range(s), *e)));
        }
        match job {
            Job::Encode { p, q, .. } => arena.encode(parity, &self.sources, opt(p), opt(q)),
            Job::Update {
                old,
                new,
                exp,
                p,
                q,
            } => {
                arena.update(parity, &[(range(old), range(new), *exp)], opt(p), opt(q));
            }
            Job::Recover {
                p,
                q,
                first,
                second,
                ..
            } => {
                let lost = [
                    (range(&first.0), first.1),
                    second
                        .as_ref()
                        .map_or((BufRange::default(), 0), |s| (range(&s.0), s.1)),
                ];
                let count = 1 + usize::from(second.is_some());
                arena
                    .recover(parity, &self.sources, opt(p), opt(q), &lost[..count])
                    .expect("the core asks only for what P and Q can give");
            }
            Job::Check { p, q, .. } => {
                self.mismatch |= arena.check(parity, &self.sources, opt(p), opt(q)).any()
            }
        }
    }
}

fn range(slice: &BufSlice) -> BufRange {
    BufRange {
        off: slice.off as usize,
        len: slice.len as usize,
    }
}
