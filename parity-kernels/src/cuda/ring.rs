//! The way to the device for small and medium jobs: a kernel that stays, fed through a ring of 16-byte units.
//!
//! Owns the ring, the kernel's stream and the list of jobs in flight. To hand over a job costs its description, a hash
//! of that and a 16-byte store per unit of 4 KiB of each range; to take it back, a look at one word per unit. The driver
//! is called only to start the kernel and, once a millisecond while a job is overdue, to ask whether it still runs.
//!
//! The host alone decides when the kernel ends, by a last unit for each of its workers, so no job can meet a kernel that
//! is just leaving. It ends when the lane is parked and, so that calls of the driver which wait for the whole device
//! come through and other programs get their turn, twenty times a second for a moment under load.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::driver::{Context, Kernel, Stream, pointer};
use super::memory::{Registered, Shared};
use super::shape::{self, BASE_UNIT, COLUMN, EXIT_SHAPE, describe};
use super::shapes::Shapes;
use crate::buf::{Arena, BufRange};
use crate::job::Mismatch;
use crate::offload::{ArenaJob, Done, LaneError, Refusal};

/// Most units in flight.
const LOG2_SLOTS: u32 = 10;
const SLOTS: u32 = 1 << LOG2_SLOTS;
/// Most units of one job.
const MOST_UNITS: usize = 32;
/// Bytes that a unit can put aside, for two outputs.
const ASIDE: usize = 8192;
/// How long the kernel runs under load before it ends for a moment.
const RENEW: Duration = Duration::from_millis(50);
/// A job that takes longer has the kernel's health asked about.
const OVERDUE: Duration = Duration::from_millis(1);
/// A job that takes longer is taken for lost, and the device with it.
const LOST: Duration = Duration::from_secs(5);

const RING_AT: usize = 0;
const DONE_AT: usize = RING_AT + SLOTS as usize * 16;
const STOP_AT: usize = DONE_AT + SLOTS as usize * 4;
const ASIDE_AT: usize = STOP_AT + 128;

/// How much of the device a ring's kernel takes, and how it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Blocks of the kernel; each keeps a multiprocessor, or a good part of it, while the lane is awake. A power of two. The
    /// units of a job are shared out among them, so that more make large jobs faster; and small ones slower, since each
    /// asks for work of its own.
    pub blocks: u32,
    /// Workers in a block, at most 4 and a power of two. Several carry more jobs at once, and each is slower.
    pub workers: u32,
    /// Threads of a worker, a multiple of 32; at most 512 in a block. Each has two columns of 16 bytes on the way.
    pub threads: u32,
    /// Bytes of each range that one unit covers, unless that makes too many units; a multiple of 512.
    pub unit: usize,
    /// Looks for work without a pause before the kernel begins to nap between looks; a look takes over a microsecond.
    pub patience: u32,
    /// Clock cycles from an answer to the next look, unless more was on its way when the unit was posted.
    pub spacing: u32,
}

impl Default for RingOptions {
    fn default() -> RingOptions {
        RingOptions {
            blocks: 1,
            workers: 1,
            threads: 512,
            unit: 16384,
            patience: 100,
            spacing: 1200,
        }
    }
}

/// The kernel's `struct Ring`.
#[repr(C)]
struct Parameters {
    units: u64,
    done: u64,
    stop: u64,
    shapes: u64,
    arena: u64,
    aside: u64,
    aside_bytes: u32,
    log2_slots: u32,
    head: u32,
    worker: u32,
    patience: u32,
    spacing: u32,
}

#[derive(Debug)]
struct Flying {
    token: u32,
    /// Number of its first unit.
    first: u32,
    units: u32,
    /// Units known to be done, from the first on.
    done: u32,
    /// Reported, though units before it are not.
    finished: bool,
    answer: u32,
    unit_bytes: usize,
    bytes: u64,
    /// Where what was put aside belongs.
    outputs: [Option<BufRange>; 2],
    since: Instant,
}

/// See the module.
pub(crate) struct Ring {
    options: RingOptions,
    context: Arc<Context>,
    stream: Stream,
    shapes: Shapes,
    shared: Arc<Shared>,
    arena: Arc<Registered>,
    arena_bytes: usize,
    words: Vec<u32>,
    flying: VecDeque<Flying>,
    in_flight: usize,
    queued: u64,
    /// Number of the next unit.
    head: u32,
    /// When the kernel was started, if it runs.
    running: Option<Instant>,
    asked: Instant,
    broken: Option<LaneError>,
}

impl Ring {
    pub(crate) fn new(
        context: &Arc<Context>,
        arena: Arc<Registered>,
        arena_bytes: usize,
        options: RingOptions,
    ) -> Result<Ring, LaneError> {
        let workers = options.blocks * options.workers;
        assert!(
            workers.is_power_of_two()
                && workers <= SLOTS / 4
                && options.workers <= 4
                && options.threads.is_multiple_of(32)
                && options.threads * options.workers <= 512
                && options.unit > 0
                && options.unit.is_multiple_of(BASE_UNIT),
            "{options:?} does not divide the ring"
        );
        let shared = Arc::new(Shared::new(context, ASIDE_AT + SLOTS as usize * ASIDE)?);
        context.on_destroy(&shared, STOP_AT);
        Ok(Ring {
            options,
            context: context.clone(),
            stream: Stream::new(context)?,
            shapes: Shapes::new(context)?,
            shared,
            arena,
            arena_bytes,
            words: Vec::with_capacity(1024),
            flying: VecDeque::with_capacity(SLOTS as usize),
            in_flight: 0,
            queued: 0,
            head: 0,
            running: None,
            asked: Instant::now(),
            broken: None,
        })
    }

    fn workers(&self) -> u32 {
        self.options.blocks * self.options.workers
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued
    }

    pub(crate) fn awake(&self) -> bool {
        self.running.is_some()
    }

    /// As [`crate::offload::Lane::submit`].
    pub(crate) fn submit(&mut self, token: u32, job: &ArenaJob) -> Result<(), Refusal> {
        if self.broken.is_some() {
            return Err(Refusal::Full);
        }
        if self.context.quiet.is_wanted() {
            self.step_aside();
            return Err(Refusal::Full);
        }
        let placed = describe(job, &mut self.words)?;
        assert!(
            job_end(job) <= self.arena_bytes,
            "a job outside the arena of its lane"
        );
        let tail = self.flying.front().map_or(self.head, |job| job.first);
        let ahead = self.head.wrapping_sub(tail);
        let mut unit_bytes = self.options.unit;
        if placed.aside {
            unit_bytes = unit_bytes.min(ASIDE / 2);
        } else if placed.len > unit_bytes * MOST_UNITS {
            unit_bytes = placed.len.div_ceil(MOST_UNITS).next_multiple_of(BASE_UNIT);
        }
        if unit_bytes / COLUMN > usize::from(u16::MAX)
            || placed.len > unit_bytes * MOST_UNITS
            || (placed.base + placed.len) / BASE_UNIT > u32::MAX as usize
        {
            return Err(Refusal::Unfit);
        }
        let units = placed.len.div_ceil(unit_bytes) as u32;
        // Room for the units that end the kernel is always kept: now, to renew it, and at any time afterwards.
        if ahead + units + 2 * self.workers() > SLOTS {
            return Err(Refusal::Full);
        }
        let shape = match self.shapes.number(&self.words) {
            Ok(shape) => shape?,
            Err(error) => return Err(self.broke(error)),
        };
        let now = Instant::now();
        match self.keep_running(now) {
            Ok(true) => {}
            Ok(false) => return Err(Refusal::Full),
            Err(error) => return Err(self.broke(error)),
        }
        let first = self.head;
        for unit in 0..units as usize {
            let at = unit * unit_bytes;
            let len = unit_bytes.min(placed.len - at);
            // The worker has the next unit of this job, or one of an earlier job has still to be done by it.
            let more = ahead + units > self.workers();
            self.post(u32::from(shape), placed.base + at, len, more);
        }
        let outputs = match (placed.aside, job.parities()) {
            (true, (p, q)) => [p, q],
            (false, _) => [None, None],
        };
        let bytes = job.data_bytes() as u64;
        self.flying.push_back(Flying {
            token,
            first,
            units,
            done: 0,
            finished: false,
            answer: 0,
            unit_bytes,
            bytes,
            outputs,
            since: now,
        });
        self.in_flight += 1;
        self.queued += bytes;
        Ok(())
    }

    /// As [`crate::offload::Lane::poll`]; without the arena, only jobs may be in flight that put nothing aside.
    pub(crate) fn poll(
        &mut self,
        mut arena: Option<&mut Arena>,
        done: &mut Vec<Done>,
    ) -> Result<(), LaneError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.context.quiet.is_wanted() {
            self.step_aside();
        }
        let answers = self.shared.words32(DONE_AT, SLOTS as usize);
        for job in &mut self.flying {
            if job.finished {
                continue;
            }
            while job.done < job.units {
                let number = job.first.wrapping_add(job.done);
                let word = answers[(number & (SLOTS - 1)) as usize].load(Ordering::Acquire);
                if word & 0xffff != sequence(number) {
                    break;
                }
                job.answer |= word >> 16;
                job.done += 1;
            }
            if job.done < job.units {
                continue;
            }
            for (which, to) in job.outputs.iter().enumerate() {
                let Some(to) = to else { continue };
                let arena = arena.as_deref_mut().expect("who updates has the arena");
                for unit in 0..job.units {
                    let slot = job.first.wrapping_add(unit) & (SLOTS - 1);
                    let at = unit as usize * job.unit_bytes;
                    let part = to.slice(at, job.unit_bytes.min(to.len - at));
                    let from = ASIDE_AT + slot as usize * ASIDE + which * (ASIDE / 2);
                    self.shared.read(from, arena.bytes_mut(part));
                }
            }
            job.finished = true;
            self.in_flight -= 1;
            self.queued -= job.bytes;
            done.push(Done {
                token: job.token,
                mismatch: Mismatch {
                    p: job.answer & 1 != 0,
                    q: job.answer & 2 != 0,
                },
            });
        }
        while self.flying.front().is_some_and(|job| job.finished) {
            self.flying.pop_front();
        }
        self.watch()
    }

    /// Whether what is overdue is still being worked on.
    fn watch(&mut self) -> Result<(), LaneError> {
        let Some(oldest) = self.flying.iter().find(|job| !job.finished) else {
            return Ok(());
        };
        let waited = oldest.since.elapsed();
        if waited < OVERDUE || self.asked.elapsed() < OVERDUE {
            return Ok(());
        }
        let context = self.context.clone();
        let Some(_turn) = context.quiet.turn() else {
            return Ok(());
        };
        self.asked = Instant::now();
        let gone = match self.stream.idle() {
            // It may have ended between our look at the answers and now, but not with this job undone.
            Ok(true) => LaneError::new("the GPU program has ended with work undone"),
            Ok(false) if waited > LOST => {
                LaneError::new(format!("the device has not answered for {waited:.1?}"))
            }
            Ok(false) => return Ok(()),
            Err(error) => error,
        };
        self.broke(gone.clone());
        Err(gone)
    }

    fn broke(&mut self, error: LaneError) -> Refusal {
        self.broken.get_or_insert(error);
        Refusal::Full
    }

    /// Start the kernel if it does not run, and renew it if it has run for long. Answers whether it runs.
    fn keep_running(&mut self, now: Instant) -> Result<bool, LaneError> {
        if let Some(since) = self.running {
            if now - since < RENEW {
                return Ok(true);
            }
            // The new kernel is behind the old one in the stream, and the units behind the last ones in the ring.
            self.end_kernel();
        }
        let context = self.context.clone();
        let Some(_turn) = context.quiet.turn() else {
            return Ok(false);
        };
        self.start_kernel(now)?;
        Ok(true)
    }

    fn start_kernel(&mut self, now: Instant) -> Result<(), LaneError> {
        let shared = self.shared.address();
        let mut parameters = Parameters {
            units: shared + RING_AT as u64,
            done: shared + DONE_AT as u64,
            stop: shared + STOP_AT as u64,
            shapes: self.shapes.address(),
            arena: self.arena.address,
            aside: shared + ASIDE_AT as u64,
            aside_bytes: ASIDE as u32,
            log2_slots: LOG2_SLOTS,
            head: self.head,
            worker: self.options.threads,
            patience: self.options.patience,
            spacing: self.options.spacing,
        };
        let threads = self.options.workers * self.options.threads;
        let kernel = match self.options.workers {
            1 => Kernel::Serve,
            _ => Kernel::ServeShared,
        };
        // SAFETY: this is the parameter of both kernels. The shared memory, the shapes and the arena stay registered
        // until the kernel has ended (see `close`); it touches what units name, and units name ranges of the arena that
        // are the lane's until they are answered.
        unsafe {
            self.stream.launch(
                kernel,
                self.options.blocks,
                threads,
                &mut [pointer(&mut parameters)],
            )?;
        }
        self.running = Some(now);
        Ok(())
    }

    /// One unit for each worker that tells it to end. Does not wait.
    fn end_kernel(&mut self) {
        for _ in 0..self.workers() {
            self.post(EXIT_SHAPE, 0, 0, true);
        }
        self.running = None;
    }

    fn post(&mut self, shape: u32, base: usize, len: usize, more: bool) {
        let number = self.head;
        let sequence = u64::from(sequence(number));
        let slot = (number & (SLOTS - 1)) as usize;
        let unit = self.shared.words64(RING_AT + slot * 16, 2);
        // Either half alone is incomplete, and the kernel knows that by the sequence number in each. `Release`, so that
        // the data are there before the unit is.
        let [low, high] = shape::unit(shape, base, len);
        unit[1].store(
            high | sequence << 32 | u64::from(more) << 48,
            Ordering::Release,
        );
        unit[0].store(low | sequence, Ordering::Release);
        self.head = number.wrapping_add(1);
    }

    /// Have the kernel end once it has done what it has, for somebody who waits for that. The next job starts it again.
    pub(crate) fn step_aside(&mut self) {
        if self.running.is_some() && self.broken.is_none() {
            self.end_kernel();
        }
    }

    /// As [`crate::offload::Lane::park`].
    pub(crate) fn park(&mut self) {
        if self.in_flight == 0 && self.running.is_some() && self.broken.is_none() {
            self.end_kernel();
        }
    }

    /// Clock readings that a kernel compiled with RAIDD_PROFILE has left of the unit posted last.
    pub(crate) fn profile(&self) -> [u32; 6] {
        let slot = (self.head.wrapping_sub(1) & (SLOTS - 1)) as usize;
        let words = self.shared.words32(ASIDE_AT + slot * ASIDE, 6);
        std::array::from_fn(|i| words[i].load(Ordering::Acquire))
    }

    /// Wait until a shape that was refused for being new is there. For measurements and tests.
    pub(crate) fn settle(&mut self) -> Result<(), LaneError> {
        self.shapes.settle()
    }

    /// Have the kernel end, and wait for that.
    ///
    /// # Errors
    /// It has not, after a second, or cannot be asked.
    pub(crate) fn close(&mut self) -> Result<(), LaneError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.running.is_some() {
            self.end_kernel();
        }
        let start = Instant::now();
        while !self.stream.idle()? {
            if start.elapsed() > Duration::from_secs(1) {
                return Err(LaneError::new("the GPU program does not end"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

/// What a unit carries so that it is told from what was in its slot before.
fn sequence(number: u32) -> u32 {
    ((number >> LOG2_SLOTS).wrapping_add(1)) & 0xffff
}

/// One past the last byte that a job touches.
pub(crate) fn job_end(job: &ArenaJob) -> usize {
    let (p, q) = job.parities();
    let mut end = p.into_iter().chain(q).map(BufRange::end).max().unwrap_or(0);
    match *job {
        ArenaJob::Encode { data, .. } | ArenaJob::Check { data, .. } => {
            data.iter()
                .for_each(|(range, _)| end = end.max(range.end()));
        }
        ArenaJob::Recover { data, lost, .. } => data
            .iter()
            .chain(lost)
            .for_each(|(range, _)| end = end.max(range.end())),
        ArenaJob::Update { changed, .. } => changed
            .iter()
            .for_each(|(old, new, _)| end = end.max(old.end()).max(new.end())),
    }
    end
}
