//! The parity jobs of an engine: gathered up to their fence, then done here or handed to a lane; and the fences that wait.
//!
//! Jobs of one fence are looked at together. Changes of the same rows become one update, one pass over P and Q. A job whose
//! order relative to another of the fence matters stays here; the others go where the cost model says. A fence is reported when
//! its last job is. What a lane takes part in is in `offload`.
//!
//! All memory is taken at start: places for jobs in flight, and [`BATCH`] for those of the fence at hand. Without a lane the
//! cost is one copy of a job's ranges.

use std::sync::Arc;

use parity_kernels::calibrate::{Calibration, Op};
use parity_kernels::offload::Done;
use parity_kernels::{Arena, Hints, Mismatch};
use raid_core::path::types::{Actions, Event, Job};

use super::offload::Offload;
use super::work::{Kind, Work};
use crate::lane::LanePlan;

/// Jobs of one fence that are looked at together; where there are more, the first ones are done at once.
const BATCH: usize = 64;
/// Most jobs in flight on a lane.
pub(super) const FLYING: usize = 256;
/// How far back a change looks for an update that it can join.
const LOOK_BACK: usize = 16;

/// What was done where; grows only, but for `in_flight`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub jobs: u64,
    pub merged: u64,
    pub lane_jobs: u64,
    pub lane_bytes: u64,
    pub lane_ns: u64,
    pub in_flight: u64,
    pub kept_small: u64,
    pub kept_late: u64,
    pub kept_asleep: u64,
    pub kept_dependent: u64,
    pub refused: u64,
    pub redone: u64,
    pub losses: u64,
    pub opens: u64,
}

/// A fence with jobs in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub op: u32,
    pub ok: bool,
    pub mismatch: bool,
    pub left: u32,
}

impl Pending {
    pub const NONE: Pending = Pending {
        op: 0,
        ok: true,
        mismatch: false,
        left: 0,
    };
}

/// See the module comment.
pub(super) struct Workshop {
    pub(super) parity: Arc<Calibration>,
    pub(super) works: Vec<Work>,
    pub(super) free: Vec<u32>,
    pub(super) batch: Vec<u32>,
    pub(super) pending: Vec<Pending>,
    pub(super) free_pending: Vec<u32>,
    pub(super) done: Vec<Done>,
    pub(super) copies_ok: bool,
    pub(super) copied: u64,
    pub(super) mismatch: bool,
    pub(super) flying: usize,
    pub(super) offload: Option<Offload>,
    pub(super) tally: Tally,
}

impl Workshop {
    /// For an array of that many members. With a plan, a thread begins to open the lane; `wake` makes the engine look.
    pub fn new(
        parity: Arc<Calibration>,
        members: usize,
        arena: &Arena,
        plan: Option<LanePlan>,
        wake: impl Fn() + Send + 'static,
    ) -> Workshop {
        let offload = plan.and_then(|plan| Offload::start(plan, arena, wake));
        let flying = if offload.is_some() { FLYING } else { 0 };
        let places = flying + BATCH;
        Workshop {
            parity,
            works: (0..places).map(|_| Work::new(members)).collect(),
            free: (0..places as u32).rev().collect(),
            batch: Vec::with_capacity(BATCH),
            pending: Vec::with_capacity(flying),
            free_pending: Vec::with_capacity(flying),
            done: Vec::with_capacity(FLYING),
            copies_ok: true,
            copied: 0,
            mismatch: false,
            flying: 0,
            offload,
            tally: Tally::default(),
        }
    }

    /// Counters so far.
    pub fn tally(&self) -> Tally {
        Tally {
            in_flight: self.flying as u64,
            ..self.tally
        }
    }

    /// A copy before the next fence has been made, or has failed.
    pub fn copied(&mut self, bytes: u64, ok: bool) {
        self.copied += bytes;
        self.copies_ok &= ok;
    }

    /// Takes a job in; it is done no later than its fence is reported.
    pub fn gather(&mut self, job: &Job, all: &Actions, arena: &mut Arena) {
        self.tally.jobs += 1;
        if matches!(job, Job::Update { .. }) && self.join(job) {
            self.tally.merged += 1;
            return;
        }
        if self.batch.len() == BATCH {
            self.run_batch(arena);
        }
        let at = self.free.pop().expect("as many places as can be in use");
        self.works[at as usize].fill(job, all);
        self.batch.push(at);
    }

    /// Adds a change to an update at hand, if order allows.
    fn join(&mut self, job: &Job) -> bool {
        for at in self.batch.iter().rev().take(LOOK_BACK) {
            let work = &mut self.works[*at as usize];
            if work.join(job) {
                return true;
            }
            if !work.lets_pass(job) {
                return false;
            }
        }
        false
    }

    /// Whether what a job reads is in memory rather than in a cache: all but what was just copied in comes from members.
    pub(super) fn is_cold(&self, work: &Work) -> bool {
        work.kind != Kind::Encode || self.copied < work.job().data_bytes() as u64 / 2
    }

    /// Does a job here.
    pub(super) fn run(&mut self, at: u32, arena: &mut Arena) -> Mismatch {
        let work = &self.works[at as usize];
        let job = work.job();
        let hints = Hints {
            cold: self.is_cold(work),
            streaming: false,
        };
        let engine = self.parity.engine(Op::of(&job), job.data_bytes());
        job.run(&engine.with(hints), arena)
    }

    fn run_batch(&mut self, arena: &mut Arena) {
        for i in 0..self.batch.len() {
            let at = self.batch[i];
            self.mismatch |= self.run(at, arena).any();
            self.free.push(at);
        }
        self.batch.clear();
    }

    /// All before a fence is at hand: does it or hands it over, and reports the fence if nothing is left to wait for.
    pub fn fence(&mut self, op: u32, arena: &mut Arena, out: &mut Vec<Event>) {
        let fence = self.hand_over();
        self.run_batch(arena);
        let ok = std::mem::replace(&mut self.copies_ok, true);
        let mismatch = std::mem::replace(&mut self.mismatch, false);
        self.copied = 0;
        match fence {
            Some(fence) => {
                let pending = &mut self.pending[fence as usize];
                (pending.op, pending.ok, pending.mismatch) = (op, ok, mismatch);
            }
            None => out.push(Event::Fenced { op, ok, mismatch }),
        }
    }
}
