//! The way to the device for large jobs: what has been handed over since the last look becomes one batch, and batches
//! follow one another through three streams, copying in, computing and copying out.
//!
//! Owns the streams and, for each batch under way, memory of the device to stage in. Data that lies in few pieces is
//! brought in by the copy engines; what lies scattered is read in place by the kernel. To hand over a job costs its
//! description; to send a batch, a call of the driver (a microsecond or two) per piece, and a handful more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::driver::{Context, Event, Kernel, Stream, pointer};
use super::memory::{DeviceMemory, Registered, Shared};
use super::ring::job_end;
use super::shape::{self, BASE_UNIT, describe};
use super::shapes::Shapes;
use crate::buf::BufRange;
use crate::job::Mismatch;
use crate::offload::{ArenaJob, Done, LaneError, Refusal};

/// Batches under way at once: one copied in, one computed, one copied out.
const BATCHES: usize = 3;
/// Bytes of the arena that a batch stages at most.
const STAGE: usize = 16 << 20;
/// Most units of a batch.
const UNITS: usize = 4096;
/// Bytes of each range that one unit covers.
const UNIT: usize = 16 << 10;
/// A job in more pieces than this is read in place.
const PIECES: usize = 4;
/// Threads of a block, as in the kernel.
const THREADS: u32 = 256;

const UNITS_AT: usize = 0;
const ANSWERS_AT: usize = UNITS_AT + UNITS * 16;
const BATCH_SHARED: usize = ANSWERS_AT + UNITS * 8;

struct Flying {
    token: u32,
    first: usize,
    units: usize,
    bytes: u64,
}

/// One batch: being gathered, or under way.
struct Batch {
    stage: DeviceMemory,
    shared: Shared,
    arrived: Event,
    computed: Event,
    left: Event,
    jobs: Vec<Flying>,
    units: usize,
    staged: usize,
    /// Copies to make before, and after: byte of the arena, of the stage, and how many.
    inward: Vec<(usize, usize, usize)>,
    outward: Vec<(usize, usize, usize)>,
    /// Whether units count from the arena rather than from the stage.
    in_place: bool,
    under_way: bool,
}

/// See the module.
pub(crate) struct Bulk {
    context: Arc<Context>,
    inward: Stream,
    compute: Stream,
    outward: Stream,
    shapes: Shapes,
    arena: Arc<Registered>,
    batches: [Batch; BATCHES],
    /// The batch that is being gathered, and the oldest under way.
    gathering: usize,
    oldest: usize,
    blocks: u32,
    words: Vec<u32>,
    pieces: Vec<BufRange>,
    in_flight: usize,
    queued: u64,
    broken: Option<LaneError>,
}

impl Bulk {
    pub(crate) fn new(context: &Arc<Context>, arena: Arc<Registered>) -> Result<Bulk, LaneError> {
        let batch = || -> Result<Batch, LaneError> {
            Ok(Batch {
                stage: DeviceMemory::new(context, STAGE)?,
                shared: Shared::new(context, BATCH_SHARED)?,
                arrived: Event::new(context, false)?,
                computed: Event::new(context, false)?,
                left: Event::new(context, false)?,
                jobs: Vec::with_capacity(64),
                units: 0,
                staged: 0,
                inward: Vec::with_capacity(64),
                outward: Vec::with_capacity(64),
                in_place: false,
                under_way: false,
            })
        };
        Ok(Bulk {
            context: context.clone(),
            inward: Stream::new(context)?,
            compute: Stream::new(context)?,
            outward: Stream::new(context)?,
            shapes: Shapes::new(context)?,
            arena,
            batches: [batch()?, batch()?, batch()?],
            gathering: 0,
            oldest: 0,
            blocks: context.info.multiprocessors * 4,
            words: Vec::with_capacity(1024),
            pieces: Vec::with_capacity(300),
            in_flight: 0,
            queued: 0,
            broken: None,
        })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued
    }

    /// As [`crate::offload::Lane::submit`].
    pub(crate) fn submit(&mut self, token: u32, job: &ArenaJob) -> Result<(), Refusal> {
        if self.broken.is_some() || self.batches[self.gathering].under_way {
            return Err(Refusal::Full);
        }
        let placed = describe(job, &mut self.words)?;
        let units = placed.len.div_ceil(UNIT);
        if placed.aside || units > UNITS || job_end(job) / BASE_UNIT > u32::MAX as usize {
            return Err(Refusal::Unfit);
        }
        let shape = match self.shapes.number(&self.words) {
            Ok(shape) => shape?,
            Err(error) => {
                self.broken = Some(error);
                return Err(Refusal::Full);
            }
        };
        inputs(job, &mut self.pieces);
        let hull = job_end(job) - placed.base;
        let in_place = self.pieces.len() > PIECES || hull > STAGE;
        let batch = &mut self.batches[self.gathering];
        let mixed = !batch.jobs.is_empty() && batch.in_place != in_place;
        // So that what shapes call 512 bytes is 512 bytes on the stage, too.
        let at = batch.staged.next_multiple_of(BASE_UNIT);
        if mixed || batch.units + units > UNITS || (!in_place && at + hull > STAGE) {
            self.send();
            return Err(Refusal::Full);
        }
        batch.in_place = in_place;
        let mut base = placed.base;
        if !in_place {
            base = at;
            batch.staged = at + hull;
            for piece in &self.pieces {
                let to = at + piece.off - placed.base;
                batch.inward.push((piece.off, to, piece.len));
            }
            let mut out = |range: BufRange| {
                let from = at + range.off - placed.base;
                batch.outward.push((range.off, from, range.len));
            };
            match *job {
                ArenaJob::Encode { p, q, .. } => p.into_iter().chain(q).for_each(&mut out),
                ArenaJob::Recover { lost, .. } => lost.iter().for_each(|(range, _)| out(*range)),
                ArenaJob::Update { .. } | ArenaJob::Check { .. } => {}
            }
        }
        let words = batch.shared.words64(UNITS_AT, 2 * UNITS);
        let answers = batch.shared.words64(ANSWERS_AT, UNITS);
        for unit in 0..units {
            let at = unit * UNIT;
            let slot = batch.units + unit;
            let [low, high] = shape::unit(u32::from(shape), base + at, UNIT.min(placed.len - at));
            words[2 * slot].store(low, Ordering::Relaxed);
            words[2 * slot + 1].store(high, Ordering::Relaxed);
            answers[slot].store(0, Ordering::Relaxed);
        }
        let bytes = job.data_bytes() as u64;
        batch.jobs.push(Flying {
            token,
            first: batch.units,
            units,
            bytes,
        });
        batch.units += units;
        self.in_flight += 1;
        self.queued += bytes;
        Ok(())
    }

    /// Send what has been gathered, and report what is done.
    pub(crate) fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), LaneError> {
        if self.in_flight > 0 {
            self.send();
        }
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.in_flight == 0 {
            return Ok(());
        }
        let context = self.context.clone();
        let Some(_turn) = context.quiet.turn() else {
            return Ok(());
        };
        while self.batches[self.oldest].under_way {
            let batch = &mut self.batches[self.oldest];
            match batch.left.passed() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.broken = Some(error.clone());
                    return Err(error);
                }
            }
            let answers = batch.shared.words32(ANSWERS_AT, 2 * UNITS);
            for job in batch.jobs.drain(..) {
                let mut mismatch = Mismatch::default();
                for unit in job.first..job.first + job.units {
                    mismatch.p |= answers[2 * unit].load(Ordering::Acquire) != 0;
                    mismatch.q |= answers[2 * unit + 1].load(Ordering::Acquire) != 0;
                }
                self.in_flight -= 1;
                self.queued -= job.bytes;
                done.push(Done {
                    token: job.token,
                    mismatch,
                });
            }
            batch.units = 0;
            batch.staged = 0;
            batch.inward.clear();
            batch.outward.clear();
            batch.under_way = false;
            self.oldest = (self.oldest + 1) % BATCHES;
        }
        Ok(())
    }

    fn send(&mut self) {
        if self.batches[self.gathering].jobs.is_empty()
            || self.batches[self.gathering].under_way
            || self.broken.is_some()
        {
            return;
        }
        let context = self.context.clone();
        let Some(_turn) = context.quiet.turn() else {
            return;
        };
        match self.start() {
            Ok(()) => self.gathering = (self.gathering + 1) % BATCHES,
            Err(error) => self.broken = Some(error),
        }
    }

    fn start(&mut self) -> Result<(), LaneError> {
        let batch = &mut self.batches[self.gathering];
        batch.under_way = true;
        for &(arena, stage, bytes) in &batch.inward {
            let (to, from) = (
                batch.stage.address + stage as u64,
                self.arena.address + arena as u64,
            );
            // SAFETY: a range of the arena that is the lane's until the job is answered, and a place on the stage, which
            // is this batch's alone.
            unsafe { self.inward.copy(to, from, bytes)? };
        }
        batch.arrived.record(&self.inward)?;
        self.compute.after(&batch.arrived)?;
        let shared = batch.shared.address();
        let (mut units, mut answers) = (shared + UNITS_AT as u64, shared + ANSWERS_AT as u64);
        let mut count = batch.units as u32;
        let mut shapes = self.shapes.address();
        let mut base = match batch.in_place {
            true => self.arena.address,
            false => batch.stage.address,
        };
        let mut arguments = [
            pointer(&mut units),
            pointer(&mut count),
            pointer(&mut answers),
            pointer(&mut shapes),
            pointer(&mut base),
        ];
        // SAFETY: these are the parameters of `raidd_bulk`. All memory stays registered until the kernel has ended (see
        // `close`); units name ranges that are the lane's until they are answered, or places on this batch's stage.
        unsafe {
            self.compute.launch(
                Kernel::Bulk,
                count.min(self.blocks),
                THREADS,
                &mut arguments,
            )?;
        }
        batch.computed.record(&self.compute)?;
        self.outward.after(&batch.computed)?;
        for &(arena, stage, bytes) in &batch.outward {
            let (to, from) = (
                self.arena.address + arena as u64,
                batch.stage.address + stage as u64,
            );
            // SAFETY: as for the way in; outputs overlap no other range of a job in flight.
            unsafe { self.outward.copy(to, from, bytes)? };
        }
        batch.left.record(&self.outward)
    }

    /// Wait until a shape that was refused for being new is there. For measurements and tests.
    pub(crate) fn settle(&mut self) -> Result<(), LaneError> {
        self.shapes.settle()
    }

    /// Wait for all that is under way.
    pub(crate) fn close(&mut self) -> Result<(), LaneError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        self.inward.wait()?;
        self.compute.wait()?;
        self.outward.wait()
    }
}

/// What a job reads, neighbours joined to one piece, by rising offset.
fn inputs(job: &ArenaJob, pieces: &mut Vec<BufRange>) {
    pieces.clear();
    let (p, q) = job.parities();
    match *job {
        ArenaJob::Encode { data, .. } => pieces.extend(data.iter().map(|(range, _)| *range)),
        ArenaJob::Check { data, .. } | ArenaJob::Recover { data, .. } => {
            pieces.extend(data.iter().map(|(range, _)| *range).chain(p).chain(q));
        }
        ArenaJob::Update { changed, .. } => {
            pieces.extend(changed.iter().flat_map(|(old, new, _)| [*old, *new]));
            pieces.extend(p.into_iter().chain(q));
        }
    }
    pieces.sort_unstable_by_key(|piece| piece.off);
    pieces.dedup_by(|next, piece| {
        let joins = next.off <= piece.end();
        if joins {
            piece.len = piece.len.max(next.end() - piece.off);
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_piece() {
        let range = |i: usize| BufRange::new(i * 64, 64);
        let data: Vec<_> = [5, 0, 1, 4].map(|i| (range(i), i as u8)).to_vec();
        let mut pieces = Vec::new();
        let job = ArenaJob::Check {
            data: &data,
            p: Some(range(2)),
            q: None,
        };
        inputs(&job, &mut pieces);
        assert_eq!(pieces, [BufRange::new(0, 192), BufRange::new(256, 128)]);
        let job = ArenaJob::Encode {
            data: &data,
            p: Some(range(2)),
            q: Some(range(3)),
        };
        inputs(&job, &mut pieces);
        assert_eq!(pieces, [BufRange::new(0, 128), BufRange::new(256, 128)]);
    }
}
