//! Parity jobs that something other than the calling thread carries out: what a job is, and what a lane to a device must
//! keep to. [`crate::cuda`] has the real ones; [`simulated`] one without a device, for tests.
//!
//! Owns nothing. A job costs its description: a few words per chunk.

pub mod simulated;

use std::fmt;
use std::sync::Arc;

use crate::buf::{Arena, BufRange, Memory};
use crate::engine::Engine;
use crate::job::Mismatch;

/// One of the four operations over ranges of one [`Arena`]. All ranges of a job are equally long, and what it writes
/// overlaps nothing else of it. Exponents are as in [`crate::job`].
#[derive(Clone, Copy, Debug)]
pub enum ArenaJob<'a> {
    /// P and Q of the data, as [`Engine::encode`].
    Encode {
        /// Data and exponents.
        data: &'a [(BufRange, u8)],
        /// Where P goes.
        p: Option<BufRange>,
        /// Where Q goes.
        q: Option<BufRange>,
    },
    /// P and Q made from old data follow the new, as [`Engine::update`].
    Update {
        /// Old data, new data, exponent.
        changed: &'a [(BufRange, BufRange, u8)],
        /// P, adjusted in place.
        p: Option<BufRange>,
        /// Q, adjusted in place.
        q: Option<BufRange>,
    },
    /// One or two lost data chunks, as [`Engine::recover`]; the caller knows that P and Q suffice.
    Recover {
        /// Data that is left.
        data: &'a [(BufRange, u8)],
        /// P, if it is there.
        p: Option<BufRange>,
        /// Q, if it is there.
        q: Option<BufRange>,
        /// Where the lost data go, and their exponents.
        lost: &'a [(BufRange, u8)],
    },
    /// Whether P and Q agree with the data, as [`Engine::check`].
    Check {
        /// Data and exponents.
        data: &'a [(BufRange, u8)],
        /// Stored P.
        p: Option<BufRange>,
        /// Stored Q.
        q: Option<BufRange>,
    },
}

impl ArenaJob<'_> {
    /// Bytes of one range; 0 if the job has none.
    pub fn len(&self) -> usize {
        let (p, q) = self.parities();
        if let Some(range) = p.or(q) {
            return range.len;
        }
        match self {
            ArenaJob::Recover { lost, .. } => lost.first().map_or(0, |(range, _)| range.len),
            _ => 0,
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// P and Q, where the job has them.
    pub fn parities(&self) -> (Option<BufRange>, Option<BufRange>) {
        match *self {
            ArenaJob::Encode { p, q, .. }
            | ArenaJob::Update { p, q, .. }
            | ArenaJob::Recover { p, q, .. }
            | ArenaJob::Check { p, q, .. } => (p, q),
        }
    }

    /// Bytes of data that the job reads: what a rate in "bytes of data per second" counts. An update reads each chunk
    /// twice, old and new.
    pub fn data_bytes(&self) -> usize {
        let chunks = match self {
            ArenaJob::Encode { data, .. }
            | ArenaJob::Recover { data, .. }
            | ArenaJob::Check { data, .. } => data.len(),
            ArenaJob::Update { changed, .. } => 2 * changed.len(),
        };
        chunks * self.len()
    }

    /// Carry the job out here and now.
    ///
    /// # Panics
    /// As the method of [`Arena`] of the same name, and if P and Q do not suffice to recover what is lost.
    pub fn run(&self, engine: &Engine, arena: &mut Arena) -> Mismatch {
        match *self {
            ArenaJob::Encode { data, p, q } => arena.encode(engine, data, p, q),
            ArenaJob::Update { changed, p, q } => arena.update(engine, changed, p, q),
            ArenaJob::Recover { data, p, q, lost } => arena
                .recover(engine, data, p, q, lost)
                .expect("a job to recover has the parities for it"),
            ArenaJob::Check { data, p, q } => return arena.check(engine, data, p, q),
        }
        Mismatch::default()
    }
}

/// A job that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// As given to [`Lane::submit`].
    pub token: u32,
    /// What a check found; all false for other jobs.
    pub mismatch: Mismatch,
}

/// Why a lane does not take a job. Nothing has happened to it; do it elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too much is in flight.
    Full,
    /// This lane does not do such a job at all: too many chunks, an odd length, or a form it cannot describe.
    Unfit,
}

/// The device or its driver has failed. Text for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneError {
    /// What was being done, and what the driver said.
    pub what: String,
}

impl LaneError {
    /// With that text.
    pub fn new(what: impl Into<String>) -> LaneError {
        LaneError { what: what.into() }
    }
}

impl fmt::Display for LaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for LaneError {}

/// What a job on a lane costs, measured when the lane was opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneCost {
    /// Time of the calling thread for one job, to hand it over and to take it back, in ns.
    pub caller_ns: f64,
    /// From handing over to being done, for the smallest job on an idle lane that is awake, in ns.
    pub latency_ns: f64,
    /// Further time per byte of data, in ns, when the lane is busy.
    pub ns_per_byte: f64,
}

/// A way to a device for one thread and the arena it was opened for. Nothing here blocks but [`Lane::close`].
///
/// From `submit` until `poll` reports the job, the device may read and write the job's ranges at any time: nobody else may
/// touch them. A job of any kind leaves what it reads intact until it is reported (an update is computed elsewhere and put
/// in place by `poll`), so that it can be done again by other means if the lane fails. Jobs in flight at the same time may
/// be done in any order.
pub trait Lane: Send {
    /// Hand over a job under a token of the caller's. Wakes a parked lane.
    ///
    /// # Errors
    /// See [`Refusal`].
    fn submit(&mut self, token: u32, job: &ArenaJob) -> Result<(), Refusal>;

    /// Append what is done since the last call. `arena` is the one that the lane was opened for.
    ///
    /// # Errors
    /// The lane has failed, and will from now on say so at every call. The device may still be writing: only when
    /// [`Lane::close`] has returned may the jobs in flight be done again elsewhere.
    fn poll(&mut self, arena: &mut Arena, done: &mut Vec<Done>) -> Result<(), LaneError>;

    /// Jobs handed over and not yet reported.
    fn in_flight(&self) -> usize;

    /// Their bytes of data.
    fn queued_bytes(&self) -> u64;

    /// Measured costs.
    fn cost(&self) -> LaneCost;

    /// Occupy no processor of the device until the next job. Only while nothing is in flight; no effect otherwise.
    fn park(&mut self);

    /// Whether the next job finds the device waiting for it, rather than having to be woken.
    fn awake(&self) -> bool;

    /// End the lane, with whatever is in flight; may block for a second. Not on a thread that serves requests.
    ///
    /// # Errors
    /// It is not certain that the device has stopped. The memory must then stay as it is, for good.
    fn close(self: Box<Self>) -> Result<(), LaneError>;
}

/// Makes lanes to one device. Opening takes milliseconds to seconds and belongs on a thread of its own.
pub trait Opener: Send + Sync {
    /// The device, for an operator.
    fn name(&self) -> String;

    /// A lane for the arena over `memory`, which the lane keeps mapped as long as the device can reach it.
    ///
    /// # Errors
    /// What is wrong with the device, its driver, or its memory.
    fn open(&self, memory: Arc<Memory>) -> Result<Box<dyn Lane>, LaneError>;
}
