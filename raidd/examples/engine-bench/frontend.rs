//! A source of requests that makes them itself: the engine's thread asks, and no other thread takes part.
//!
//! A tag is offered as ublk offers it: a command in the engine's ring, here one that does nothing, and its completion
//! brings the request. What the driver and a client would do besides is left out. With a rate, a tag waits for its time
//! before its command goes out; one timer command wakes the ring. A write costs one copy out of the [`Source`], a read one
//! into a region of this queue; where there is a [`Model`], what a read has got is compared when it is answered.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use io_uring::squeue::{Entry, SubmissionQueue};
use io_uring::{opcode, types::Timespec};
use ublk_frontend::{Event, Fetched, Frontend, Op, UBLK_KEY};

use crate::clock::Latencies;
use crate::load::{Ask, Load};
use crate::source::{Model, Source};

const TIMER: u64 = UBLK_KEY | 0xffff;
/// Time that a queue may make up for, in ns.
const BURST_NS: u64 = 4_000_000;
/// How much a tag may be early, so that one timer serves several, in ns.
const EARLY_NS: u64 = 20_000;
/// Reads go round in this many bytes.
const SINK: usize = 8 << 20;

/// What one queue has done; written by its thread alone.
#[repr(align(128))]
pub struct Tally {
    /// Requests handed to the engine.
    pub issued: AtomicU64,
    /// Requests answered, however.
    pub completed: AtomicU64,
    /// Requests answered with an error or too short.
    pub errors: AtomicU64,
    /// Bytes of the requests that succeeded.
    pub bytes: AtomicU64,
    /// Answers by class of latency.
    pub latency: Vec<AtomicU64>,
}

/// What the frontends of one array share.
pub struct Shared {
    /// Bytes to write.
    pub source: Arc<Source>,
    /// What reads must give, if they are checked.
    pub model: Option<Arc<Model>>,
    /// No more requests.
    pub stop: AtomicBool,
    /// By queue.
    pub tallies: Vec<Tally>,
    /// Place in the source, by queue and tag.
    places: Vec<AtomicU64>,
    /// What has been delivered to a read, by queue and tag; used only with a model.
    reads: Vec<Mutex<Vec<u8>>>,
    depth: u16,
}

impl Shared {
    /// For that many queues of that many tags.
    pub fn new(
        source: Arc<Source>,
        model: Option<Arc<Model>>,
        queues: u16,
        depth: u16,
    ) -> Arc<Shared> {
        let zero = || AtomicU64::new(0);
        let tags = usize::from(queues) * usize::from(depth);
        let tally = |_| Tally {
            issued: zero(),
            completed: zero(),
            errors: zero(),
            bytes: zero(),
            latency: (0..Latencies::CLASSES).map(|_| zero()).collect(),
        };
        Arc::new(Shared {
            source,
            model,
            stop: AtomicBool::new(false),
            tallies: (0..queues).map(tally).collect(),
            places: (0..tags).map(|_| zero()).collect(),
            reads: (0..tags).map(|_| Mutex::default()).collect(),
            depth,
        })
    }

    fn index(&self, queue: u16, tag: u16) -> usize {
        usize::from(queue) * usize::from(self.depth) + usize::from(tag)
    }

    fn read(&self, queue: u16, tag: u16) -> MutexGuard<'_, Vec<u8>> {
        let read = self.reads[self.index(queue, tag)].lock();
        read.unwrap_or_else(PoisonError::into_inner)
    }

    /// A sum over all queues.
    pub fn sum(&self, of: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        let tallies = self.tallies.iter();
        tallies.map(|t| of(t).load(Ordering::Acquire)).sum()
    }
}

#[derive(Clone, Copy)]
struct Slot {
    ask: Ask,
    since: u64,
    with_engine: bool,
}

/// The frontend of one queue.
pub struct BenchFrontend {
    queue: u16,
    shared: Arc<Shared>,
    load: Load,
    slots: Vec<Option<Slot>>,
    /// Tags with a request whose time has not come or whose command found no room, with their time.
    waiting: VecDeque<(u64, u16)>,
    /// Tags for which the load had nothing.
    starved: Vec<u16>,
    timer: Box<Timespec>,
    timer_armed: bool,
    start: Instant,
    ns_per_byte: f64,
    next_due: u64,
    sink: Vec<u8>,
    sink_at: usize,
    in_engine: u16,
}

impl BenchFrontend {
    /// The frontend of `queue`, limited to that many bytes a second if at all.
    pub fn new(queue: u16, shared: Arc<Shared>, load: Load, rate: Option<f64>) -> BenchFrontend {
        BenchFrontend {
            queue,
            slots: vec![None; usize::from(shared.depth)],
            waiting: VecDeque::new(),
            starved: Vec::new(),
            timer: Box::new(Timespec::new()),
            timer_armed: false,
            start: Instant::now(),
            ns_per_byte: rate.map_or(0.0, |rate| 1e9 / rate),
            next_due: 0,
            sink: vec![0; SINK],
            sink_at: 0,
            in_engine: 0,
            shared,
            load,
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn tally(&self) -> &Tally {
        &self.shared.tallies[usize::from(self.queue)]
    }

    fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Gives a free tag its next request and the time of it.
    fn offer(&mut self, tag: u16) {
        if self.stopping() {
            return;
        }
        let Some(ask) = self.load.next() else {
            return self.starved.push(tag);
        };
        let now = self.now();
        let due = self.next_due.max(now.saturating_sub(BURST_NS));
        let bytes = f64::from(ask.request.sectors) * 512.0;
        self.next_due = due + (bytes * self.ns_per_byte) as u64;
        self.slots[usize::from(tag)] = Some(Slot {
            ask,
            since: 0,
            with_engine: false,
        });
        self.waiting.push_back((due, tag));
    }

    /// Commands of all tags whose time has come, and the timer for the next. Returns how many found no room.
    fn push_due(&mut self, sq: &mut SubmissionQueue<'_>) -> usize {
        if self.stopping() {
            self.waiting.clear();
            return 0;
        }
        for _ in 0..self.starved.len() {
            if let Some(tag) = self.starved.pop() {
                self.offer(tag);
            }
        }
        if self.waiting.is_empty() {
            return 0;
        }
        let now = match self.ns_per_byte > 0.0 {
            true => self.now(),
            false => u64::MAX - EARLY_NS,
        };
        while let Some((due, tag)) = self.waiting.front().copied() {
            if due > now + EARLY_NS {
                break;
            }
            let key = UBLK_KEY | u64::from(tag);
            if !push(sq, &opcode::Nop::new().build().user_data(key)) {
                return self.waiting.len();
            }
            self.waiting.pop_front();
        }
        if let Some((due, _)) = self.waiting.front()
            && !self.timer_armed
        {
            let ns = (due - now).min(1_000_000_000) as u32;
            *self.timer = Timespec::new().nsec(ns % 1_000_000_000);
            let entry = opcode::Timeout::new(&raw const *self.timer).build();
            if !push(sq, &entry.user_data(TIMER)) {
                return 1;
            }
            self.timer_armed = true;
        }
        0
    }
}

fn push(sq: &mut SubmissionQueue<'_>, entry: &Entry) -> bool {
    // SAFETY: a command that does nothing refers to no memory; a timer's time lives in a box of the frontend, which
    // outlives the engine's ring, and does not change while the timer is armed.
    unsafe { sq.push(entry) }.is_ok()
}

impl Frontend for BenchFrontend {
    fn depth(&self) -> u16 {
        self.shared.depth
    }

    fn auto_buf(&self) -> bool {
        false
    }

    fn prime(&mut self, sq: &mut SubmissionQueue<'_>) {
        self.start = Instant::now();
        for tag in 0..self.shared.depth {
            self.offer(tag);
        }
        self.push_due(sq);
    }

    fn flush(&mut self, sq: &mut SubmissionQueue<'_>) -> usize {
        self.push_due(sq)
    }

    fn on_cqe(&mut self, user_data: u64, _res: i32) -> Event {
        if user_data == TIMER {
            self.timer_armed = false;
            return Event::Ended;
        }
        let tag = user_data as u16;
        if self.stopping() {
            return Event::Ended;
        }
        let now = self.now();
        let slot = self.slots[usize::from(tag)]
            .as_mut()
            .expect("a tag that was offered");
        assert!(!slot.with_engine, "tag {tag} is with the engine");
        slot.with_engine = true;
        slot.since = now;
        let Slot { ask, .. } = *slot;
        let index = self.shared.index(self.queue, tag);
        self.shared.places[index].store(ask.at as u64, Ordering::Relaxed);
        if let Some(model) = &self.shared.model {
            let mut read = self.shared.read(self.queue, tag);
            read.clear();
            // Not zeroes, so that bytes which are not delivered are seen.
            read.resize(ask.request.data_bytes() as usize, 0xa5);
            let at = (ask.request.op == Op::Write).then_some(ask.at);
            if ask.request.op != Op::Read {
                model.write(ask.request.lba, ask.request.sectors, at);
            }
        }
        self.in_engine += 1;
        self.tally().issued.fetch_add(1, Ordering::Release);
        Event::Request(Fetched {
            tag,
            request: Ok(ask.request),
            auto_buf: false,
        })
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_request(&mut self) -> Option<Fetched> {
        None
    }

    fn commit(&mut self, sq: &mut SubmissionQueue<'_>, tag: u16, result: i32) {
        let slot = self.slots[usize::from(tag)].take();
        let Some(slot) = slot.filter(|s| s.with_engine) else {
            panic!("commit of tag {tag}, which is not with the engine");
        };
        self.in_engine -= 1;
        self.load.done(slot.ask.area);
        let latency = Latencies::class(self.now() - slot.since);
        let tally = self.tally();
        let request = slot.ask.request;
        if result == request.success() {
            if let Some(model) = self
                .shared
                .model
                .as_ref()
                .filter(|_| request.op == Op::Read)
            {
                let read = self.shared.read(self.queue, tag);
                model.compare(&self.shared.source, request.lba, &read);
            }
            let bytes = u64::from(request.sectors) * 512;
            tally.bytes.fetch_add(bytes, Ordering::Relaxed);
            tally.latency[latency].fetch_add(1, Ordering::Relaxed);
        } else {
            tally.errors.fetch_add(1, Ordering::Relaxed);
        }
        tally.completed.fetch_add(1, Ordering::Release);
        self.offer(tag);
        self.push_due(sq);
    }

    fn copy_in<'a>(
        &mut self,
        qid: u16,
        tag: u16,
        offset: u32,
        dst: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Result<(), i32> {
        let index = self.shared.index(qid, tag);
        let mut at = self.shared.places[index].load(Ordering::Relaxed) as usize;
        at += offset as usize;
        for span in dst {
            span.copy_from_slice(self.shared.source.bytes(at, span.len()));
            at += span.len();
        }
        Ok(())
    }

    fn copy_out<'a>(
        &mut self,
        qid: u16,
        tag: u16,
        offset: u32,
        src: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), i32> {
        let checked = self.shared.model.is_some();
        let mut read = checked.then(|| self.shared.read(qid, tag));
        let mut at = offset as usize;
        for span in src {
            if let Some(read) = &mut read {
                read[at..at + span.len()].copy_from_slice(span);
                at += span.len();
                continue;
            }
            if self.sink_at + span.len() > self.sink.len() {
                self.sink_at = 0;
            }
            self.sink[self.sink_at..][..span.len()].copy_from_slice(span);
            self.sink_at += span.len();
        }
        Ok(())
    }

    fn in_engine(&self) -> u16 {
        self.in_engine
    }

    fn stopped(&self) -> bool {
        self.stopping() && self.in_engine == 0
    }

    fn fault(&self) -> Option<i32> {
        None
    }
}
