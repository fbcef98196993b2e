//! A lane without a device: jobs are carried out in `poll`, late, out of order and with failures as told. A lane that dies
//! leaves what its device would have written half written.
//!
//! Owns copies of the job descriptions in flight. For tests of whoever uses a [`Lane`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{ArenaJob, Done, Lane, LaneCost, LaneError, Opener, Refusal};
use crate::buf::{Arena, BufRange, Memory};
use crate::engine::Engine;

/// What the simulated device does wrong; shared with the test, and changed at any time.
#[derive(Debug, Default)]
pub struct Faults {
    /// Every call from now on fails.
    pub dead: AtomicBool,
    /// Opening fails.
    pub no_open: AtomicBool,
    /// It cannot be made certain that the device has stopped.
    pub no_close: AtomicBool,
    /// Polls that a job waits before it is done.
    pub delay: AtomicU64,
    /// Up to that many polls more, drawn anew for each job, so that jobs overtake one another.
    pub jitter: AtomicU64,
    /// Non-zero: the lane that carries out this many jobs from now on dies, with whatever it has in flight half done.
    pub dies_after: AtomicU64,
    /// Jobs are taken and never done.
    pub hangs: AtomicBool,
    /// Lanes that have died so far.
    pub deaths: AtomicU64,
    /// Jobs carried out so far, by all lanes.
    pub jobs: AtomicU64,
    /// Lanes opened so far.
    pub opened: AtomicU64,
    /// Lanes closed so far, those included that could not be.
    pub closed: AtomicU64,
    /// Times that a lane was parked while awake.
    pub parked: AtomicU64,
}

/// Opens simulated lanes.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    /// See [`Faults`].
    pub faults: Arc<Faults>,
    /// What its lanes say that they cost.
    pub cost: LaneCost,
    /// Most jobs in flight on a lane.
    pub depth: usize,
}

impl Opener for SimulatedDevice {
    fn name(&self) -> String {
        "simulated device".into()
    }

    fn open(&self, memory: Arc<Memory>) -> Result<Box<dyn Lane>, LaneError> {
        if self.faults.no_open.load(Ordering::SeqCst) {
            return Err(LaneError::new("the simulated device does not open"));
        }
        self.faults.opened.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(SimulatedLane {
            device: self.clone(),
            memory,
            flying: Vec::new(),
            polls: 0,
            awake: false,
            died: false,
            draws: 0,
        }))
    }
}

#[derive(Debug)]
struct Flying {
    token: u32,
    due: u64,
    kind: Kind,
    data: Vec<(BufRange, u8)>,
    new: Vec<BufRange>,
    lost: Vec<(BufRange, u8)>,
    p: Option<BufRange>,
    q: Option<BufRange>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Encode,
    Update,
    Recover,
    Check,
}

struct SimulatedLane {
    device: SimulatedDevice,
    memory: Arc<Memory>,
    flying: Vec<Flying>,
    polls: u64,
    awake: bool,
    died: bool,
    draws: u64,
}

impl SimulatedLane {
    /// A number below `below`, from a sequence of the lane's own.
    fn draw(&mut self, below: u64) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.draws ^ self.draws >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 32) % below.max(1)
    }

    /// What a device that dies leaves behind: outputs half written.
    fn die(&mut self, arena: &mut Arena) {
        self.died = true;
        self.device.faults.deaths.fetch_add(1, Ordering::SeqCst);
        for i in 0..self.flying.len() {
            let junk = self.draw(256) as u8;
            for range in self.flying[i].writes().into_iter().flatten() {
                let half = range.slice(0, range.len / 2);
                arena.bytes_mut(half).fill(junk);
            }
        }
    }

    /// Whether one more job may be carried out.
    fn lives_on(&self) -> bool {
        let left = &self.device.faults.dies_after;
        let (order, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        match left.fetch_update(order, fetch, |n| n.checked_sub(1)) {
            Ok(was) => was != 1,
            Err(_) => true,
        }
    }
}

impl Flying {
    fn new(token: u32, due: u64, job: &ArenaJob) -> Flying {
        let (p, q) = job.parities();
        let mut flying = Flying {
            token,
            due,
            kind: Kind::Encode,
            data: Vec::new(),
            new: Vec::new(),
            lost: Vec::new(),
            p,
            q,
            bytes: job.data_bytes() as u64,
        };
        match *job {
            ArenaJob::Encode { data, .. } => flying.data = data.to_vec(),
            ArenaJob::Check { data, .. } => {
                flying.kind = Kind::Check;
                flying.data = data.to_vec();
            }
            ArenaJob::Recover { data, lost, .. } => {
                flying.kind = Kind::Recover;
                flying.data = data.to_vec();
                flying.lost = lost.to_vec();
            }
            ArenaJob::Update { changed, .. } => {
                flying.kind = Kind::Update;
                flying.data = changed.iter().map(|(old, _, exp)| (*old, *exp)).collect();
                flying.new = changed.iter().map(|(_, new, _)| *new).collect();
            }
        }
        flying
    }

    /// What the device itself writes. An update is put in place by `poll`.
    fn writes(&self) -> [Option<BufRange>; 2] {
        let lost = |i: usize| self.lost.get(i).map(|(range, _)| *range);
        match self.kind {
            Kind::Encode => [self.p, self.q],
            Kind::Recover => [lost(0), lost(1)],
            Kind::Update | Kind::Check => [None, None],
        }
    }

    fn run(&self, arena: &mut Arena) -> Done {
        let (data, p, q) = (&self.data[..], self.p, self.q);
        let changed: Vec<_> = data
            .iter()
            .zip(&self.new)
            .map(|((old, exp), new)| (*old, *new, *exp))
            .collect();
        let job = match self.kind {
            Kind::Encode => ArenaJob::Encode { data, p, q },
            Kind::Update => ArenaJob::Update {
                changed: &changed,
                p,
                q,
            },
            Kind::Recover => ArenaJob::Recover {
                data,
                p,
                q,
                lost: &self.lost,
            },
            Kind::Check => ArenaJob::Check { data, p, q },
        };
        let mismatch = job.run(&Engine::scalar(), arena);
        Done {
            token: self.token,
            mismatch,
        }
    }
}

impl Lane for SimulatedLane {
    fn submit(&mut self, token: u32, job: &ArenaJob) -> Result<(), Refusal> {
        if self.flying.len() >= self.device.depth {
            return Err(Refusal::Full);
        }
        if job.is_empty() {
            return Err(Refusal::Unfit);
        }
        let jitter = self.device.faults.jitter.load(Ordering::SeqCst);
        let delay = self.device.faults.delay.load(Ordering::SeqCst) + self.draw(jitter + 1);
        self.flying
            .push(Flying::new(token, self.polls + delay, job));
        self.awake = true;
        Ok(())
    }

    fn poll(&mut self, arena: &mut Arena, done: &mut Vec<Done>) -> Result<(), LaneError> {
        assert_eq!(
            arena.base_ptr(),
            self.memory.address(),
            "not the arena of this lane"
        );
        if self.device.faults.dead.load(Ordering::SeqCst) && !self.died {
            self.die(arena);
        }
        if self.died {
            return Err(LaneError::new("the simulated device is dead"));
        }
        if self.device.faults.hangs.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.polls += 1;
        // The youngest first, so that nobody relies on an order.
        for i in (0..self.flying.len()).rev() {
            if self.flying[i].due < self.polls {
                if !self.lives_on() {
                    self.die(arena);
                    return Err(LaneError::new("the simulated device has died"));
                }
                done.push(self.flying.remove(i).run(arena));
                self.device.faults.jobs.fetch_add(1, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.flying.len()
    }

    fn queued_bytes(&self) -> u64 {
        self.flying.iter().map(|f| f.bytes).sum()
    }

    fn cost(&self) -> LaneCost {
        self.device.cost
    }

    fn park(&mut self) {
        if self.awake && self.flying.is_empty() {
            self.awake = false;
            self.device.faults.parked.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn awake(&self) -> bool {
        self.awake
    }

    fn close(self: Box<Self>) -> Result<(), LaneError> {
        self.device.faults.closed.fetch_add(1, Ordering::SeqCst);
        if self.device.faults.no_close.load(Ordering::SeqCst) {
            return Err(LaneError::new("the simulated device does not stop"));
        }
        Ok(())
    }
}
