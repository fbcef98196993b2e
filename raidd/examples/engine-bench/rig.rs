//! A running array: engines on threads of their own, their requests, and what is read off them.
//!
//! Set up as the daemon does it, except that requests come from [`BenchFrontend`] and that nobody manages members.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use parity_kernels::Arena;
use parity_kernels::calibrate::Calibration;
use raid_core::geometry::Geometry;
use raid_core::path::layout::Layout;
use raid_core::path::owners::Owners;
use raid_core::path::queue::{QueueConfig, QueueCore};
use raid_core::path::types::{Msg, SlotSet, SweepKind, View};
use raidd::engine::{Counters, Engine, Parts, Postbox, mailbox};
use raidd::lane::status::{LaneState, Shared as LaneShared};

use crate::clock;
use crate::devices::Lanes;
use crate::frontend::{BenchFrontend, Shared};
use crate::load::{Kind, Load};
use crate::members::Members;
use crate::source::{Model, Source};

/// Words of the table of owners, as many as the daemon has.
const OWNER_WORDS: usize = 1 << 14;
/// Bands that the sweep gets at a time.
const WINDOW: u64 = 64;
/// How long requests may take to be answered once no more are asked for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Who does the parity.
#[derive(Clone)]
pub enum Variant {
    /// The processor.
    Cpu,
    /// A device, as far as the engines choose it.
    Device(Lanes),
    /// Nobody: the members that hold P and Q are missing. The cost of everything else.
    Without,
}

/// What an array is made of and what it is told to do.
#[derive(Clone)]
pub struct Setup<'a> {
    /// Its shape.
    pub geometry: &'a Geometry,
    /// Its members.
    pub members: &'a Members,
    /// Slots that are missing.
    pub missing: Vec<u16>,
    /// Parity of this many bands can be trusted.
    pub synced: u64,
    /// Engines.
    pub queues: u16,
    /// Requests in flight in each.
    pub depth: u16,
    /// Buffer memory of each.
    pub buffer: u64,
    /// Requests.
    pub kind: Kind,
    /// Whether bands are swept all the time.
    pub sweep: bool,
    /// Bytes to write.
    pub source: &'a Arc<Source>,
    /// Writes take the same bytes again and again.
    pub hot: bool,
    /// Bytes a second over all queues, or as many as go.
    pub rate: Option<f64>,
    /// What reads must give.
    pub model: Option<&'a Arc<Model>>,
    /// Of what is random.
    pub seed: u64,
    /// Who does the parity.
    pub variant: &'a Variant,
    /// Instructions to do it with.
    pub parity: &'a Arc<Calibration>,
}

/// What has been seen up to a moment.
#[derive(Clone, Debug)]
pub struct Reading {
    at: Instant,
    process_ns: u64,
    engines_ns: u64,
    bytes: u64,
    latency: Vec<u64>,
    counters: Vec<(&'static str, u64)>,
}

/// The difference of two readings.
#[derive(Clone, Debug)]
pub struct Window {
    /// Time that passed, in s.
    pub seconds: f64,
    /// Bytes of requests, or of data swept.
    pub bytes: u64,
    /// Processor time of all threads, in ns.
    pub process_ns: u64,
    /// Processor time of the engine threads, in ns.
    pub engines_ns: u64,
    /// Latencies of the requests.
    pub latency: clock::Latencies,
    /// Counters of all engines.
    pub counters: Vec<(&'static str, u64)>,
}

impl Window {
    /// A counter.
    pub fn counter(&self, name: &str) -> u64 {
        let found = self.counters.iter().find(|(n, _)| *n == name);
        found.map_or(0, |(_, value)| *value)
    }
}

/// See the module comment.
pub struct Rig {
    /// What the frontends share.
    pub shared: Arc<Shared>,
    engines: Vec<JoinHandle<io::Result<()>>>,
    tids: Vec<i32>,
    queues: Vec<Postbox>,
    exit: Arc<AtomicBool>,
    counters: Vec<Arc<Counters>>,
    sweepers: Vec<JoinHandle<()>>,
    swept: Arc<AtomicU64>,
    sweeping: Arc<AtomicBool>,
    sweep_rounds: Vec<Arc<AtomicU64>>,
    lanes: Vec<Arc<LaneShared>>,
}

/// How an array ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    /// Requests handed to the engines.
    pub issued: u64,
    /// Requests answered.
    pub completed: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Pieces that one queue gave to another.
    pub forwarded: u64,
}

impl Rig {
    /// Starts an array and its load.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn start(setup: &Setup) -> io::Result<Rig> {
        let layout = Layout::new(setup.geometry.clone());
        let frames = (setup.buffer / layout.frame_bytes()).clamp(16, 4096) as u32;
        let stripe = u64::from(setup.geometry.chunk_sectors()) * u64::from(layout.data);
        let owners = Arc::new(Owners::new(OWNER_WORDS));
        let exit = Arc::new(AtomicBool::new(false));
        let model = setup.model.cloned();
        let shared = Shared::new(setup.source.clone(), model, setup.queues, setup.depth);
        let mut missing = SlotSet::EMPTY;
        for slot in &setup.missing {
            missing.insert(*slot);
        }
        let view = View {
            writable: true,
            synced: setup.synced,
            missing,
            ..View::default()
        };
        let (mut cores, mut queues, mut inboxes) = (Vec::new(), Vec::new(), Vec::new());
        for queue in 0..setup.queues {
            let cfg = QueueConfig {
                queue,
                queues: setup.queues,
                depth: setup.depth,
                max_sectors: (stripe * 4).max(8192) as u32,
                frames,
                defer_passes: 3,
            };
            let core = QueueCore::new(cfg, setup.geometry.clone(), owners.clone(), view);
            let (postbox, inbox) = mailbox(core.mail_capacity())?;
            queues.push(postbox);
            inboxes.push(inbox);
            cores.push(core);
        }
        let mut rig = Rig {
            shared,
            engines: Vec::new(),
            tids: Vec::new(),
            queues,
            exit,
            counters: Vec::new(),
            sweepers: Vec::new(),
            swept: Arc::new(AtomicU64::new(0)),
            sweeping: Arc::new(AtomicBool::new(setup.sweep)),
            sweep_rounds: Vec::new(),
            lanes: Vec::new(),
        };
        let (arrived, started) = bounded(usize::from(setup.queues));
        for ((queue, core), inbox) in (0u16..).zip(cores).zip(inboxes) {
            let counters = Arc::new(Counters::default());
            rig.counters.push(counters.clone());
            let (to_manager, for_manager) = unbounded();
            let load = Load::new(
                setup.kind,
                setup.geometry,
                (queue, setup.queues),
                &setup.missing,
                setup.source.len(),
                setup.hot,
                setup.seed,
            );
            let rate = setup.rate.map(|rate| rate / f64::from(setup.queues));
            let frontend = BenchFrontend::new(queue, rig.shared.clone(), load, rate);
            let members = setup.members.for_engines(&setup.missing);
            let (peers, exit) = (rig.queues.clone(), rig.exit.clone());
            let lane = match setup.variant {
                Variant::Device(lanes) => Some(lanes.plan(queue)),
                Variant::Cpu | Variant::Without => None,
            };
            rig.lanes
                .extend(lane.iter().map(|plan| plan.shared.clone()));
            let (parity, frame) = (setup.parity.clone(), layout.frame_bytes() as usize);
            let arrived: Sender<io::Result<i32>> = arrived.clone();
            rig.engines.push(std::thread::spawn(move || {
                pin(queue);
                let arena = Arena::new(frames as usize, frame);
                let engine = arena.and_then(|arena| {
                    let parts = Parts {
                        journal: None,
                        core,
                        members,
                        mailbox: inbox,
                        peers,
                        manager: to_manager,
                        parity,
                        lane,
                        arena,
                        counters,
                        exit,
                    };
                    Engine::new(frontend, parts)
                });
                match engine {
                    Ok(engine) => {
                        let _ = arrived.send(Ok(gettid().as_raw()));
                        engine.run()
                    }
                    Err(error) => {
                        let _ = arrived.send(Err(error));
                        Ok(())
                    }
                }
            }));
            rig.manage(queue, setup, &layout, for_manager);
        }
        for _ in 0..setup.queues {
            let tid = started.recv().map_err(io::Error::other)??;
            rig.tids.push(tid);
        }
        Ok(rig)
    }

    /// A thread that hears what an engine has to say, and hands it bands to sweep if there is a sweep.
    fn manage(&mut self, queue: u16, setup: &Setup, layout: &Layout, inbox: Receiver<Msg>) {
        let share = layout.bands() / u64::from(setup.queues);
        let first = u64::from(queue) * share;
        let end = match queue + 1 == setup.queues {
            true => layout.bands(),
            false => first + share,
        };
        let band_bytes = u64::from(layout.data) * u64::from(layout.rows) * 512;
        let rate = setup.rate.map(|rate| rate / f64::from(setup.queues));
        let (postbox, swept, sweeping, rounds) = (
            self.queues[usize::from(queue)].clone(),
            self.swept.clone(),
            self.sweeping.clone(),
            Arc::new(AtomicU64::new(0)),
        );
        self.sweep_rounds.push(rounds.clone());
        self.sweepers.push(std::thread::spawn(move || {
            let mut next = first;
            let mut due = Instant::now();
            while sweeping.load(Ordering::Relaxed) {
                let until = (next + WINDOW).min(end);
                postbox.send(Msg::Sweep {
                    kind: SweepKind::Resync,
                    first: next,
                    end: until,
                });
                loop {
                    match inbox.recv() {
                        Ok(Msg::SweepDone { .. }) => break,
                        Ok(_) => {}
                        Err(_) => return,
                    }
                }
                let bytes = (until - next) * band_bytes;
                swept.fetch_add(bytes, Ordering::Relaxed);
                next = until;
                if until == end {
                    next = first;
                    rounds.fetch_add(1, Ordering::Release);
                }
                if let Some(rate) = rate {
                    due += Duration::from_secs_f64(bytes as f64 / rate);
                    let late = Instant::now().saturating_duration_since(due);
                    due += late.saturating_sub(Duration::from_millis(20));
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
            }
            // Nothing fails here that a manager would have to act upon.
            while inbox.recv().is_ok() {}
        }));
    }

    /// Waits until every lane takes jobs.
    ///
    /// # Errors
    /// Why one does not.
    pub fn lanes_open(&self) -> Result<(), String> {
        let begun = Instant::now();
        for lane in &self.lanes {
            loop {
                let status = lane.read();
                if status.state == LaneState::Active {
                    break;
                }
                if begun.elapsed() > PATIENCE || status.state == LaneState::Stuck {
                    let reason = status.reason.unwrap_or_default();
                    let (device, state) = (status.device, status.state);
                    return Err(format!("a lane to {device} is {state:?}: {reason}"));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }

    /// How often every band has been swept.
    pub fn sweeps(&self) -> u64 {
        let rounds = self.sweep_rounds.iter().map(|r| r.load(Ordering::Acquire));
        rounds.min().unwrap_or(0)
    }

    /// What has been seen so far.
    pub fn read(&self) -> Reading {
        let mut counters: Vec<(&'static str, u64)> = Vec::new();
        for all in &self.counters {
            for (i, (name, value)) in all.read().into_iter().enumerate() {
                match counters.get_mut(i) {
                    Some((_, sum)) => *sum += value,
                    None => counters.push((name, value)),
                }
            }
        }
        let class = |i: usize| self.shared.sum(|t| &t.latency[i]);
        Reading {
            at: Instant::now(),
            process_ns: clock::process_ns(),
            engines_ns: self.tids.iter().filter_map(|t| clock::thread_ns(*t)).sum(),
            bytes: self.shared.sum(|t| &t.bytes) + self.swept.load(Ordering::Relaxed),
            latency: (0..clock::Latencies::CLASSES).map(class).collect(),
            counters,
        }
    }

    /// What has happened since a reading.
    pub fn since(&self, before: &Reading) -> Window {
        let now = self.read();
        let less = |now: &[u64], before: &[u64]| {
            let pairs = now.iter().zip(before);
            pairs.map(|(n, b)| n - b).collect::<Vec<u64>>()
        };
        let counters = now.counters.iter().zip(&before.counters);
        Window {
            seconds: (now.at - before.at).as_secs_f64(),
            bytes: now.bytes - before.bytes,
            process_ns: now.process_ns - before.process_ns,
            engines_ns: now.engines_ns.saturating_sub(before.engines_ns),
            latency: clock::Latencies::new(less(&now.latency, &before.latency)),
            counters: counters
                .map(|(n, b)| (n.0, n.1.wrapping_sub(b.1)))
                .collect(),
        }
    }

    /// Lets what is in flight end, and the threads.
    ///
    /// # Errors
    /// Requests that were never answered, or an engine that gave up, in words.
    pub fn stop(self) -> Result<End, String> {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.sweeping.store(false, Ordering::SeqCst);
        let end = || End {
            completed: self.shared.sum(|t| &t.completed),
            issued: self.shared.sum(|t| &t.issued),
            errors: self.shared.sum(|t| &t.errors),
            forwarded: 0,
        };
        let begun = Instant::now();
        // An engine that has just taken a request may not have seen the end yet, so look twice.
        std::thread::sleep(Duration::from_millis(5));
        while end().issued != end().completed {
            if begun.elapsed() > PATIENCE {
                let End {
                    issued, completed, ..
                } = end();
                return Err(format!(
                    "{} of {issued} requests have no answer after {PATIENCE:?}",
                    issued - completed
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.exit.store(true, Ordering::Release);
        self.queues.iter().for_each(Postbox::wake);
        for engine in self.engines {
            match engine.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(format!("an engine ended: {error}")),
                Err(_) => return Err("an engine panicked".into()),
            }
        }
        for sweeper in self.sweepers {
            sweeper.join().map_err(|_| "a sweeper panicked")?;
        }
        let forwarded = self.counters.iter().map(|c| {
            let all = c.read();
            all.iter()
                .find(|(n, _)| *n == "forwarded_pieces")
                .map_or(0, |(_, v)| *v)
        });
        let end = End {
            completed: self.shared.sum(|t| &t.completed),
            issued: self.shared.sum(|t| &t.issued),
            errors: self.shared.sum(|t| &t.errors),
            forwarded: forwarded.sum(),
        };
        Ok(end)
    }
}

/// One core for each engine, as far as there are any; the order is the kernel's.
fn pin(queue: u16) {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else {
        return;
    };
    let cpus: Vec<usize> = (0..CpuSet::count())
        .filter(|cpu| allowed.is_set(*cpu).unwrap_or(false))
        .collect();
    let mut one = CpuSet::new();
    if !cpus.is_empty() && one.set(cpus[usize::from(queue) % cpus.len()]).is_ok() {
        // Only steadier figures are lost without it.
        let _ = sched_setaffinity(Pid::from_raw(0), &one);
    }
}
