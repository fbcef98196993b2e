//! The part of the workshop that has to do with a lane: what is handed over, what comes back, what happens when it fails, and
//! how long the engine may rest while something is out.
//!
//! A lane that fails goes to its supervisor, which closes it. Only then its jobs are done here, from the bytes that are still
//! in place (a lane leaves what it reads intact); meanwhile all others are. A lane that cannot be closed may still write, so
//! its jobs stay as they are, and what waits for them waits for good.

use std::time::{Duration, Instant};

use parity_kernels::Arena;
use parity_kernels::calibrate::Op;
use parity_kernels::offload::{Done, Lane, LaneCost, LaneError, Refusal};
use raid_core::path::types::Event;

use super::workshop::{FLYING, Pending, Workshop};
use crate::lane::LanePlan;
use crate::lane::cost::{Choice, Inputs, Lag, choose, lane_end_ns};
use crate::lane::supervisor::{Link, Note};

/// An awake lane without work is parked after this time.
const PARK_AFTER: Duration = Duration::from_millis(2);
/// What was kept back from a parked lane is forgotten after this time.
const MISSED_FOR: Duration = Duration::from_millis(2);
/// Longest time to spin for a lane before sleeping in short ticks.
const LONGEST_SPIN: Duration = Duration::from_micros(50);
/// Length of such a tick.
const TICK: Duration = Duration::from_micros(75);
/// A lane with jobs in flight that ends none for this long has failed, whatever it says.
const STALL: Duration = Duration::from_secs(2);
/// How long the end of an engine waits for its lane to close.
const CLOSE_WITHIN: Duration = Duration::from_millis(1500);

/// Everything about the lane that an engine without one does without.
pub(super) struct Offload {
    plan: LanePlan,
    /// None only while it ends.
    link: Option<Link>,
    lane: Option<Box<dyn Lane>>,
    cost: LaneCost,
    lag: Lag,
    stuck: bool,
    /// The lane said that it is full, or worse.
    look: bool,
    /// The last time that a job was handed to an idle lane, or that one ended.
    moved: Instant,
    /// CPU time of jobs kept back from a parked lane, and since when.
    missed_ns: f64,
    missed_since: Instant,
}

/// How long an engine with nothing else to do may rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    /// Until something happens.
    Deep,
    /// Not longer than this.
    Tick(Duration),
    /// Not at all until then: something is about to come back.
    Spin(Instant),
}

impl Offload {
    /// Lets a thread begin to open the lane. None if there is no thread to be had.
    pub fn start(
        plan: LanePlan,
        arena: &Arena,
        wake: impl Fn() + Send + 'static,
    ) -> Option<Offload> {
        let (opener, shared) = (plan.opener.clone(), plan.shared.clone());
        let link = Link::start(opener, arena.memory(), shared, plan.pauses, wake)
            .inspect_err(|error| {
                tracing::warn!(%error, "no thread for a GPU lane; parity is computed on the CPU");
            })
            .ok()?;
        let now = Instant::now();
        Some(Offload {
            plan,
            link: Some(link),
            lane: None,
            cost: LaneCost {
                caller_ns: 0.0,
                latency_ns: 0.0,
                ns_per_byte: 0.0,
            },
            lag: Lag::default(),
            stuck: false,
            look: false,
            moved: now,
            missed_ns: 0.0,
            missed_since: now,
        })
    }
}

impl Workshop {
    /// Gives the lane what is for it, out of the batch. Answers the fence that these jobs wait for.
    pub(super) fn hand_over(&mut self) -> Option<u32> {
        let lane = self.offload.as_ref()?.lane.as_ref()?;
        if self.batch.is_empty() {
            return None;
        }
        let (mut queued, mut awake) = (lane.queued_bytes(), lane.awake());
        let now = Instant::now();
        let mut fence = None;
        let (mut ahead_ns, mut kept) = (0.0, 0);
        for i in 0..self.batch.len() {
            let at = self.batch[i];
            let bytes = self.works[at as usize].job().data_bytes() as u64;
            let cpu_ns = self.cpu_ns(at);
            let expected_ns = self.wanted(at, cpu_ns, ahead_ns, bytes, queued, awake, now);
            let mut goes = expected_ns.is_some();
            if goes && self.depends(kept, i) {
                self.tally.kept_dependent += 1;
                goes = false;
            }
            if goes && self.submit(at, bytes, &mut fence, now) {
                // What wakes a lane comes late, which says nothing of others.
                let expected_ns = expected_ns.filter(|_| awake);
                self.works[at as usize].expected_ns = expected_ns.unwrap_or(0.0);
                awake = true;
                queued += bytes;
            } else {
                ahead_ns += cpu_ns;
                self.batch[kept] = at;
                kept += 1;
            }
        }
        self.batch.truncate(kept);
        fence
    }

    /// Whether the order of job `i` of the batch and another matters. The first `kept` of the batch stay here; those that went
    /// before `i` were compared with it when they went.
    fn depends(&self, kept: usize, i: usize) -> bool {
        let work = &self.works[self.batch[i] as usize];
        let mut others = self.batch[..kept].iter().chain(&self.batch[i + 1..]);
        others.any(|other| work.conflicts(&self.works[*other as usize]))
    }

    /// What a job would cost here.
    fn cpu_ns(&self, at: u32) -> f64 {
        let Some(offload) = &self.offload else {
            return 0.0;
        };
        let work = &self.works[at as usize];
        let job = work.job();
        let cold = self.is_cold(work);
        offload.plan.cpu.ns(Op::of(&job), job.data_bytes(), cold)
    }

    /// When the job would be back if the lane is the place for it, in ns from now, as measured beforehand; counts why not.
    fn wanted(
        &mut self,
        at: u32,
        cpu_ns: f64,
        ahead_ns: f64,
        bytes: u64,
        queued: u64,
        awake: bool,
        now: Instant,
    ) -> Option<f64> {
        let op = Op::of(&self.works[at as usize].job());
        let offload = self.offload.as_mut()?;
        if now.duration_since(offload.missed_since) > MISSED_FOR {
            (offload.missed_ns, offload.missed_since) = (0.0, now);
        }
        let inputs = Inputs {
            cpu_ns,
            ahead_ns,
            bytes,
            cost: offload.cost,
            lag: offload.lag.of(op),
            queued,
            awake,
            missed_ns: offload.missed_ns,
        };
        match choose(&inputs, &offload.plan.policy.of(op)) {
            Choice::Lane => return Some(lane_end_ns(&inputs)),
            Choice::Small => self.tally.kept_small += 1,
            Choice::Late => {
                offload.lag.kept(op);
                self.tally.kept_late += 1;
            }
            Choice::Asleep => {
                offload.missed_ns += cpu_ns;
                self.tally.kept_asleep += 1;
            }
        }
        None
    }

    fn submit(&mut self, at: u32, bytes: u64, fence: &mut Option<u32>, now: Instant) -> bool {
        let Some(offload) = &mut self.offload else {
            return false;
        };
        let Some(lane) = &mut offload.lane else {
            return false;
        };
        let work = &mut self.works[at as usize];
        if self.flying == FLYING {
            self.tally.refused += 1;
            return false;
        }
        if let Err(why) = lane.submit(at, &work.job()) {
            // A lane that has failed may say so only when it is polled.
            offload.look |= why == Refusal::Full;
            self.tally.refused += 1;
            return false;
        }
        if self.flying == 0 {
            offload.moved = now;
        }
        let fence = *fence.get_or_insert_with(|| {
            self.free_pending.pop().unwrap_or_else(|| {
                self.pending.push(Pending::NONE);
                self.pending.len() as u32 - 1
            })
        });
        self.pending[fence as usize].left += 1;
        (work.fence, work.flying, work.since) = (fence, true, now);
        self.flying += 1;
        self.tally.lane_jobs += 1;
        self.tally.lane_bytes += bytes;
        true
    }

    /// Takes back what the lane has done, and in what the supervisor has to say. Fences that are complete go to `out`.
    pub fn poll(&mut self, arena: &mut Arena, out: &mut Vec<Event>) {
        while let Some(note) = self.note() {
            self.take_note(note, arena, out);
        }
        let Some(offload) = &mut self.offload else {
            return;
        };
        let Some(lane) = &mut offload.lane else {
            return;
        };
        if self.flying == 0 && !offload.look {
            return;
        }
        offload.look = false;
        let mut done = std::mem::take(&mut self.done);
        let mut result = lane.poll(arena, &mut done);
        if !done.is_empty() {
            let now = Instant::now();
            offload.moved = now;
            for one in &done {
                result = result.and(self.land(one, now, out));
            }
            done.clear();
        } else if self.flying > 0 && offload.moved.elapsed() > STALL {
            result = result.and(Err(LaneError::new(format!(
                "no job has ended for {STALL:?}"
            ))));
        }
        self.done = done;
        if let Err(error) = result {
            self.lose(error);
        }
    }

    fn note(&self) -> Option<Note> {
        self.offload.as_ref()?.link.as_ref()?.note()
    }

    fn take_note(&mut self, note: Note, arena: &mut Arena, out: &mut Vec<Event>) {
        let Some(offload) = &mut self.offload else {
            return;
        };
        match note {
            Note::Opened(lane) => {
                (offload.cost, offload.lag) = (lane.cost(), Lag::default());
                offload.moved = Instant::now();
                offload.lane = Some(lane);
                self.tally.opens += 1;
            }
            Note::Stuck => offload.stuck = true,
            Note::Closed => {
                for at in 0..self.works.len() as u32 {
                    if self.works[at as usize].flying {
                        let mismatch = self.run(at, arena).any();
                        self.settle(at, mismatch, out);
                        self.tally.redone += 1;
                    }
                }
            }
        }
    }

    /// A job has come back.
    fn land(&mut self, done: &Done, now: Instant, out: &mut Vec<Event>) -> Result<(), LaneError> {
        match self.works.get(done.token as usize) {
            Some(work) if work.flying => {
                let took = now.duration_since(work.since).as_nanos() as u64;
                self.tally.lane_ns += took;
                if let Some(offload) = &mut self.offload {
                    let op = Op::of(&work.job());
                    offload.lag.seen(op, work.expected_ns, took as f64);
                }
                self.settle(done.token, done.mismatch.any(), out);
                Ok(())
            }
            _ => Err(LaneError::new(format!(
                "job {} has ended that was not in flight",
                done.token
            ))),
        }
    }

    /// A job in flight is done; so may be its fence.
    fn settle(&mut self, at: u32, mismatch: bool, out: &mut Vec<Event>) {
        let work = &mut self.works[at as usize];
        work.flying = false;
        let fence = work.fence;
        self.free.push(at);
        self.flying -= 1;
        let pending = &mut self.pending[fence as usize];
        pending.mismatch |= mismatch;
        pending.left -= 1;
        if pending.left == 0 {
            let Pending {
                op, ok, mismatch, ..
            } = *pending;
            self.free_pending.push(fence);
            out.push(Event::Fenced { op, ok, mismatch });
        }
    }

    /// Gives a lane that has failed to the supervisor. Its jobs stay in flight until it is closed.
    fn lose(&mut self, error: LaneError) {
        if let Some(offload) = &mut self.offload
            && let (Some(lane), Some(link)) = (offload.lane.take(), &offload.link)
        {
            self.tally.losses += 1;
            link.lost(lane, error);
        }
    }

    /// How long the engine may rest, as far as the lane is concerned. Parks a lane that has had nothing to do.
    pub fn rest(&mut self) -> Rest {
        let Some(offload) = &mut self.offload else {
            return Rest::Deep;
        };
        let Some(lane) = &mut offload.lane else {
            return Rest::Deep;
        };
        if self.flying > 0 {
            let LaneCost {
                latency_ns,
                ns_per_byte,
                ..
            } = offload.cost;
            let expected = 2.0 * latency_ns + lane.queued_bytes() as f64 * ns_per_byte;
            let spin = Duration::from_nanos(expected as u64).min(LONGEST_SPIN);
            return match offload.moved.elapsed() < spin {
                true => Rest::Spin(offload.moved + spin),
                false => Rest::Tick(TICK),
            };
        }
        if !lane.awake() {
            return Rest::Deep;
        }
        match PARK_AFTER.checked_sub(offload.moved.elapsed()) {
            Some(left) => Rest::Tick(left.max(TICK)),
            None => {
                lane.park();
                Rest::Deep
            }
        }
    }

    /// Jobs are in flight that will never end.
    pub fn stuck(&self) -> bool {
        self.flying > 0 && self.offload.as_ref().is_some_and(|o| o.stuck)
    }

    /// Ends the lane; waits for that, but not for long.
    pub fn close(&mut self) {
        if let Some(offload) = &mut self.offload
            && let Some(link) = offload.link.take()
        {
            link.end(offload.lane.take(), CLOSE_WITHIN);
        }
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    use parity_kernels::calibrate::Calibration;
    use parity_kernels::offload::simulated::{Faults, SimulatedDevice};
    use parity_kernels::{BufRange, Engine};
    use raid_core::path::types::{Actions, Buf, BufSlice, Job};

    use super::*;
    use crate::lane::cost::{FlatRate, Policy};

    const CHUNK: u64 = 4096;

    fn slice(at: u64) -> BufSlice {
        BufSlice {
            buf: Buf::Arena,
            off: at * CHUNK,
            len: CHUNK as u32,
        }
    }

    fn bytes(arena: &Arena, at: u64) -> &[u8] {
        arena.bytes(BufRange::new((at * CHUNK) as usize, CHUNK as usize))
    }

    struct Bench {
        shop: Workshop,
        arena: Arena,
        actions: Actions,
        out: Vec<Event>,
        faults: Arc<Faults>,
    }

    impl Bench {
        /// A workshop whose lane is open, and an arena of 512 different chunks.
        fn new() -> Bench {
            let mut arena = Arena::new(512, CHUNK as usize).expect("memory");
            for at in 0..512usize {
                let range = arena.frame(at);
                let fill = |(i, b): (usize, &mut u8)| *b = (i * 7 + at * 13) as u8;
                arena.bytes_mut(range).iter_mut().enumerate().for_each(fill);
            }
            let device = SimulatedDevice {
                faults: Arc::new(Faults::default()),
                cost: LaneCost {
                    caller_ns: 0.0,
                    latency_ns: 0.0,
                    ns_per_byte: 0.0,
                },
                depth: 400,
            };
            let faults = device.faults.clone();
            let cpu = Arc::new(FlatRate(1e-6));
            let plan = LanePlan::new(Arc::new(device), cpu, Policy::default());
            let parity = Arc::new(Calibration::from_samples(&[], Engine::detect()));
            let mut bench = Bench {
                shop: Workshop::new(parity, 8, &arena, Some(plan), || {}),
                arena,
                actions: Actions::default(),
                out: Vec::new(),
                faults,
            };
            let begin = Instant::now();
            while bench.shop.tally().opens == 0 {
                assert!(
                    begin.elapsed() < Duration::from_secs(10),
                    "the lane does not open"
                );
                bench.shop.poll(&mut bench.arena, &mut bench.out);
            }
            bench
        }

        fn sources(&mut self, list: &[u64]) -> std::ops::Range<u32> {
            let start = self.actions.srcs.len() as u32;
            self.actions
                .srcs
                .extend(list.iter().map(|at| (slice(*at), 0)));
            start..self.actions.srcs.len() as u32
        }

        fn encode(&mut self, list: &[u64], p: u64) {
            let (srcs, p) = (self.sources(list), Some(slice(p)));
            self.gather(Job::Encode { srcs, p, q: None });
        }

        fn check(&mut self, list: &[u64], p: u64) {
            let (srcs, p) = (self.sources(list), Some(slice(p)));
            self.gather(Job::Check { srcs, p, q: None });
        }

        fn gather(&mut self, job: Job) {
            self.shop.gather(&job, &self.actions, &mut self.arena);
        }

        fn fence(&mut self, op: u32) {
            self.shop.fence(op, &mut self.arena, &mut self.out);
        }

        fn settle(&mut self) -> Vec<Event> {
            let begin = Instant::now();
            while self.shop.tally().in_flight > 0 {
                assert!(begin.elapsed() < Duration::from_secs(10), "jobs do not end");
                self.shop.poll(&mut self.arena, &mut self.out);
            }
            std::mem::take(&mut self.out)
        }
    }

    fn fenced(op: u32, mismatch: bool) -> Event {
        let ok = true;
        Event::Fenced { op, ok, mismatch }
    }

    #[test]
    fn a_fence_waits_for_all_its_jobs_and_only_for_them() {
        let mut b = Bench::new();
        b.faults.delay.store(3, SeqCst);
        b.encode(&[0, 1], 2);
        b.encode(&[4, 5], 6);
        b.fence(7);
        assert_eq!((b.out.len(), b.shop.tally().in_flight), (0, 2));
        // A fence without jobs does not wait, nor does it lose what a copy said.
        b.shop.copied(0, false);
        b.fence(8);
        let failed = Event::Fenced {
            op: 8,
            ok: false,
            mismatch: false,
        };
        assert_eq!(std::mem::take(&mut b.out), [failed]);
        assert_eq!(b.settle(), [fenced(7, false)]);
        for (x, y, p) in [(0, 1, 2), (4, 5, 6)] {
            let sum = bytes(&b.arena, x).iter().zip(bytes(&b.arena, y));
            assert!(
                sum.map(|(x, y)| x ^ y)
                    .eq(bytes(&b.arena, p).iter().copied())
            );
        }
        assert_eq!(b.shop.tally().lane_jobs, 2);
    }

    #[test]
    fn what_a_check_finds_belongs_to_its_fence() {
        let mut b = Bench::new();
        b.faults.jitter.store(5, SeqCst);
        b.check(&[0, 1], 2);
        b.check(&[4, 5], 5);
        b.fence(1);
        b.check(&[8], 8);
        b.fence(2);
        let mut events = b.settle();
        events.sort_by_key(|e| format!("{e:?}"));
        assert_eq!(events, [fenced(1, true), fenced(2, false)]);
    }

    #[test]
    fn jobs_in_order_stay_here_in_order() {
        let mut b = Bench::new();
        // P of two, then the second is lost, recovered and checked, all before one fence.
        b.encode(&[0, 1], 2);
        b.fence(1);
        b.settle();
        let was = bytes(&b.arena, 1).to_vec();
        b.arena
            .bytes_mut(BufRange::new(CHUNK as usize, CHUNK as usize))
            .fill(0);
        let srcs = b.sources(&[0]);
        b.gather(Job::Recover {
            srcs,
            p: Some(slice(2)),
            q: None,
            first: (slice(1), 0),
            second: None,
        });
        b.check(&[0, 1], 2);
        // Another of the same fence, which has nothing to do with them.
        b.encode(&[10, 11], 12);
        b.fence(2);
        assert_eq!(bytes(&b.arena, 1), was);
        assert_eq!(b.shop.tally().kept_dependent, 2);
        assert_eq!(b.shop.tally().in_flight, 1);
        assert_eq!(b.settle(), [fenced(2, false)]);
    }

    #[test]
    fn more_jobs_than_places() {
        let mut b = Bench::new();
        b.faults.delay.store(1, SeqCst);
        // The last 60 or so of each fence go to the lane, until it holds all that it may.
        for fence in 0..12 {
            for i in 0..100u64 {
                let at = i * 4;
                b.encode(&[at, at + 1], at + 2 + fence % 2);
            }
            b.fence(fence as u32);
        }
        assert_eq!(b.shop.tally().in_flight, 256);
        let events = b.settle();
        assert_eq!(events.len(), 12);
        assert_eq!(b.shop.tally().lane_jobs, 256);
        for at in (0..400).step_by(4) {
            let sum = bytes(&b.arena, at).iter().zip(bytes(&b.arena, at + 1));
            let sum: Vec<u8> = sum.map(|(x, y)| x ^ y).collect();
            assert!(sum == bytes(&b.arena, at + 2) && sum == bytes(&b.arena, at + 3));
        }
    }
}
