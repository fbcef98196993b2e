//! `raidctl bench parity`: how fast each engine of this machine does each parity job, in this process, without a daemon.
//!
//! One region of memory per thread, all of it allocated before the first measurement; its size is what `--memory` says, shared
//! among the threads, and nothing else of note is allocated. Each figure is the median of several short rounds, and within
//! a round all engines do the same job one after the other, so that a change of the machine's mood hits them alike.

mod gpu;
pub mod job;
mod limits;
mod measure;
pub mod report;

use std::sync::Arc;
use std::time::Duration;

use parity_kernels::offload::{Lane, LaneError, Opener};
use parity_kernels::{Arena, BufRange, Engine, Hints};

use crate::doctor;
use crate::units::Bytes;
use gpu::Absence;
use job::{Job, Shape};
pub use limits::{BenchError, check, cold_memory, unmet};
use measure::{Round, Worker};
use report::{Machine, Report, Row};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Engines by name, one of [`Engine::NAMES`] or `gpu`; all there are if empty.
    pub engines: Vec<String>,
    /// Jobs; all if empty.
    pub jobs: Vec<Job>,
    /// Bytes of each chunk's range in a job.
    pub bytes: Vec<u64>,
    /// Data members.
    pub data: Vec<u64>,
    /// Threads at work at the same time, each with a stripe set of its own.
    pub threads: Vec<u64>,
    /// Rounds per figure.
    pub rounds: u32,
    /// Length of a round.
    pub round: Duration,
    /// Memory of all threads together, in bytes.
    pub memory: u64,
    /// CPU engines store their results past the caches.
    pub streaming: bool,
}

/// Whether the data of a job are in a cache of the CPU before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heat {
    /// The same few stripes again and again.
    Hot,
    /// Stripes from all over the memory, none twice before all others have been visited.
    Cold,
}

impl Heat {
    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Heat::Hot => "hot",
            Heat::Cold => "cold",
        }
    }
}

/// One contestant.
#[derive(Clone)]
enum Contestant {
    Cpu(Engine),
    /// Index into the openers, and the most jobs in flight.
    Gpu {
        name: String,
        device: usize,
        depth: usize,
    },
}

/// Stripes that a GPU has in flight at most, and so what "hot" means for one: 16 stripes in turn.
const GPU_DEPTH: usize = 16;

impl Contestant {
    fn name(&self) -> &str {
        match self {
            Contestant::Cpu(engine) => engine.name(),
            Contestant::Gpu { name, .. } => name,
        }
    }

    fn hot_stripes(&self) -> usize {
        match self {
            Contestant::Cpu(_) => 1,
            Contestant::Gpu { depth, .. } => *depth,
        }
    }
}

/// Measures everything of the plan. `stopped` is asked between rounds; once it is true, what has been measured so far is the
/// result. `progress` is told what comes next.
///
/// # Errors
/// The memory is not there, or an engine gave a wrong answer.
pub fn run(
    plan: &Plan,
    stopped: &dyn Fn() -> bool,
    progress: &dyn Fn(&str),
) -> Result<Report, BenchError> {
    let gpus = if plan.engines.is_empty() || plan.engines.iter().any(|e| e == "gpu") {
        gpu::openers()
    } else {
        Err(Absence {
            why: "not asked for (--engine)".into(),
            remedy: "",
        })
    };
    run_with(plan, gpus, stopped, progress)
}

/// As [`run`], with these GPUs, or the reason why there are none.
fn run_with(
    plan: &Plan,
    gpus: Result<Vec<Arc<dyn Opener>>, Absence>,
    stopped: &dyn Fn() -> bool,
    progress: &dyn Fn(&str),
) -> Result<Report, BenchError> {
    let mut report = Report {
        machine: Machine::here(),
        memory_bytes: plan.memory,
        streaming: plan.streaming,
        rounds: plan.rounds,
        round_ms: plan.round.as_secs_f64() * 1e3,
        gpus: Vec::new(),
        no_gpu: None,
        interrupted: false,
        rows: Vec::new(),
    };
    let by_name = plan.engines.iter().any(|engine| engine == "gpu");
    let openers = match gpus {
        Ok(openers) => openers,
        Err(absence) if by_name => return Err(no_gpu(absence.why, absence.remedy)),
        Err(absence) => {
            report.no_gpu = Some(absence.why);
            Vec::new()
        }
    };
    for &threads in &plan.threads {
        let mut arenas = arenas(plan.memory, threads)?;
        let (contestants, mut lanes) = line_up(plan, &openers, &arenas, &mut report);
        // Before time goes into figures that are not the ones asked for; later ones are told at the end, by `unmet`.
        if by_name && lanes.is_empty() && report.rows.is_empty() {
            let why = report.no_gpu.unwrap_or_else(|| "there is none".into());
            let remedy = doctor::lane_advice(&why);
            return Err(no_gpu(why, remedy));
        }
        for &data in &plan.data {
            for &bytes in &plan.bytes {
                let shape = Shape {
                    data: data as usize,
                    bytes: bytes as usize,
                };
                for heat in [Heat::Hot, Heat::Cold] {
                    progress(&format!(
                        "{data} data members, {} each, {}, {threads} threads",
                        Bytes(bytes),
                        heat.name()
                    ));
                    let mut cell = Cell {
                        plan,
                        shape,
                        heat,
                        arenas: &mut arenas,
                        lanes: &mut lanes,
                        contestants: &contestants,
                        stopped,
                    };
                    let done = cell.measure(&mut report.rows);
                    if !matches!(done, Ok(true)) {
                        close(lanes);
                        report.interrupted = true;
                        return done.map(|_| report);
                    }
                }
            }
        }
        close(lanes);
    }
    Ok(report)
}

fn no_gpu(why: String, remedy: &str) -> BenchError {
    BenchError::Nothing {
        wish: "--engine gpu".into(),
        why,
        remedy: format!("{remedy}; or name other engines"),
    }
}

/// Lanes by device and thread.
type Lanes = Vec<Vec<Box<dyn Lane>>>;

fn close(lanes: Lanes) {
    for lane in lanes.into_iter().flatten() {
        // The process ends soon; what a lane says now changes nothing.
        let _ = lane.close();
    }
}

/// One region per thread, filled with bytes that are no pattern.
fn arenas(memory: u64, threads: u64) -> Result<Vec<Arena>, BenchError> {
    const PAGE: usize = 4096;
    let pages = (memory / threads) as usize / PAGE;
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    (0..threads)
        .map(|_| {
            let mut arena =
                Arena::new(pages, PAGE).map_err(|source| BenchError::Memory { memory, source })?;
            let all = BufRange::new(0, arena.len());
            for word in arena.bytes_mut(all).chunks_exact_mut(8) {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                word.copy_from_slice(&seed.to_ne_bytes());
            }
            Ok(arena)
        })
        .collect()
}

/// Who takes part, and a lane to each GPU for each thread.
fn line_up(
    plan: &Plan,
    openers: &[Arc<dyn Opener>],
    arenas: &[Arena],
    report: &mut Report,
) -> (Vec<Contestant>, Lanes) {
    let wanted = |name: &str| plan.engines.is_empty() || plan.engines.iter().any(|e| e == name);
    let mut contestants: Vec<Contestant> = Engine::NAMES
        .iter()
        .filter(|name| wanted(name))
        .filter_map(|name| Engine::by_name(name))
        .map(Contestant::Cpu)
        .collect();
    let mut lanes = Lanes::new();
    report.gpus.clear();
    for (number, opener) in openers.iter().enumerate() {
        match open_all(opener.as_ref(), arenas) {
            Ok(opened) => {
                report.gpus.push(format!("gpu{number}: {}", opener.name()));
                let device = lanes.len();
                lanes.push(opened);
                for (name, depth) in [
                    (format!("gpu{number}"), GPU_DEPTH),
                    (format!("gpu{number}, one at a time"), 1),
                ] {
                    contestants.push(Contestant::Gpu {
                        name,
                        device,
                        depth,
                    });
                }
            }
            Err(error) => report.no_gpu = Some(format!("{}: {error}", opener.name())),
        }
    }
    (contestants, lanes)
}

/// A lane for each region, or none at all.
fn open_all(opener: &dyn Opener, arenas: &[Arena]) -> Result<Vec<Box<dyn Lane>>, LaneError> {
    let mut lanes = Vec::new();
    for arena in arenas {
        match opener.open(arena.memory()) {
            Ok(lane) => lanes.push(lane),
            Err(error) => {
                close(vec![lanes]);
                return Err(error);
            }
        }
    }
    Ok(lanes)
}

/// All jobs and engines for one shape and heat.
struct Cell<'a> {
    plan: &'a Plan,
    shape: Shape,
    heat: Heat,
    arenas: &'a mut [Arena],
    lanes: &'a mut Lanes,
    contestants: &'a [Contestant],
    stopped: &'a dyn Fn() -> bool,
}

impl Cell<'_> {
    /// Adds a row for each engine; false if it was stopped.
    fn measure(&mut self, rows: &mut Vec<Row>) -> Result<bool, BenchError> {
        let jobs: &[Job] = if self.plan.jobs.is_empty() {
            &Job::ALL
        } else {
            &self.plan.jobs
        };
        let mut cells: Vec<Row> = self
            .contestants
            .iter()
            .map(|c| Row {
                engine: c.name().to_string(),
                data: self.shape.data,
                bytes: self.shape.bytes,
                heat: self.heat.name(),
                threads: self.arenas.len(),
                figures: Vec::new(),
            })
            .collect();
        for &job in jobs {
            if self.shape.data < job.least_data() {
                continue;
            }
            if job == Job::Check {
                self.make_right();
            }
            let mut rates = vec![Vec::new(); self.contestants.len()];
            let mut unfit = vec![None; self.contestants.len()];
            for _ in 0..self.plan.rounds {
                for (i, contestant) in self.contestants.iter().enumerate() {
                    if (self.stopped)() {
                        return Ok(false);
                    }
                    if unfit[i].is_some() {
                        continue;
                    }
                    match self.round(contestant, job)? {
                        Round::Rate(rate) => rates[i].push(rate),
                        Round::Unfit(reason) => unfit[i] = Some(reason),
                    }
                }
            }
            for ((cell, rates), unfit) in cells.iter_mut().zip(rates).zip(unfit) {
                cell.figures.push(report::Figure::of(job, rates, unfit));
            }
        }
        rows.extend(cells);
        Ok(true)
    }

    /// P and Q of every stripe that this cell visits, so that a check has to read to the end.
    fn make_right(&mut self) {
        let engine = Engine::detect();
        let stripes = self.stripes(self.arenas[0].len(), GPU_DEPTH);
        for arena in self.arenas.iter_mut() {
            measure::encode_all(&engine, self.shape, stripes, arena);
        }
    }

    fn stripes(&self, arena_bytes: usize, hot: usize) -> usize {
        let all = self.shape.stripes_in(arena_bytes);
        match self.heat {
            Heat::Hot => hot.min(all),
            Heat::Cold => all,
        }
    }

    /// One round of one engine on all threads at the same time; their rates added up.
    fn round(&mut self, contestant: &Contestant, job: Job) -> Result<Round, BenchError> {
        let arena_bytes = self.arenas[0].len();
        let stripes = self.stripes(arena_bytes, contestant.hot_stripes());
        let worker = Worker {
            name: contestant.name(),
            job,
            shape: self.shape,
            stripes,
            time: self.plan.round,
        };
        match contestant {
            Contestant::Cpu(engine) => {
                // What the daemon knows of its operands, the engine is told here too.
                let engine = engine.with(Hints {
                    cold: self.heat == Heat::Cold,
                    streaming: self.plan.streaming,
                });
                let arenas = self.arenas.iter_mut().map(|arena| (arena, ()));
                measure::together(arenas, |arena, ()| worker.on_cpu(&engine, arena))
            }
            Contestant::Gpu { device, depth, .. } => measure::together(
                self.arenas.iter_mut().zip(self.lanes[*device].iter_mut()),
                |arena, lane| worker.on_lane(lane.as_mut(), *depth, arena),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
