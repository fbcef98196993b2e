//! The inner loops: one thread doing one job over and over for a given time, on the CPU or through a lane.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use parity_kernels::offload::{Done, Lane, Refusal};
use parity_kernels::{Arena, Engine};

use super::BenchError;
use super::job::{Job, Operands, Shape};

/// What one round gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Round {
    /// Data bytes per second.
    Rate(f64),
    /// This engine does not do such a job.
    Unfit(String),
}

/// One thread's work in one round.
#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    pub name: &'a str,
    pub job: Job,
    pub shape: Shape,
    /// Stripes to go round in.
    pub stripes: usize,
    pub time: Duration,
}

/// Looking at the clock costs tens of nanoseconds and much more in some virtual machines; jobs in between take this long.
const BETWEEN_LOOKS: Duration = Duration::from_micros(20);
/// A device that reports nothing for this long has failed.
const DEVICE_PATIENCE: Duration = Duration::from_secs(5);

/// Runs `work` on a thread of its own for each arena, all at the same time, and adds up their rates.
pub fn together<'a, T: Send>(
    parts: impl Iterator<Item = (&'a mut Arena, T)>,
    work: impl Fn(&mut Arena, T) -> Result<Round, BenchError> + Sync,
) -> Result<Round, BenchError> {
    let mut parts: Vec<_> = parts.collect();
    if parts.len() == 1
        && let Some((arena, extra)) = parts.pop()
    {
        return work(arena, extra);
    }
    let start = Barrier::new(parts.len());
    let rounds: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .into_iter()
            .map(|(arena, extra)| {
                scope.spawn(|| {
                    start.wait();
                    work(arena, extra)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|e| std::panic::resume_unwind(e))
            })
            .collect()
    });
    let mut sum = 0.0;
    for round in rounds {
        match round? {
            Round::Rate(rate) => sum += rate,
            unfit => return Ok(unfit),
        }
    }
    Ok(Round::Rate(sum))
}

/// P and Q of the first stripes.
pub fn encode_all(engine: &Engine, shape: Shape, stripes: usize, arena: &mut Arena) {
    let mut room = Operands::default();
    for stripe in 0..stripes {
        Job::EncodePq
            .on(shape, stripe, &mut room)
            .run(engine, arena);
    }
}

/// Goes round all stripes in leaps, so that the next one is not where a prefetcher looks for it.
#[derive(Debug)]
pub struct Leaps {
    at: usize,
    leap: usize,
    stripes: usize,
}

impl Leaps {
    pub fn new(stripes: usize) -> Leaps {
        // About the golden section; the next number that shares no factor visits every stripe before any one again.
        let mut leap = (stripes * 618 / 1000).max(1);
        while gcd(leap, stripes) != 1 {
            leap += 1;
        }
        Leaps {
            at: 0,
            leap,
            stripes,
        }
    }

    pub fn next(&mut self) -> usize {
        let here = self.at;
        self.at = (self.at + self.leap) % self.stripes;
        here
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Worker<'_> {
    /// Jobs inline, one after the other.
    pub fn on_cpu(&self, engine: &Engine, arena: &mut Arena) -> Result<Round, BenchError> {
        let (mut room, mut leaps) = (Operands::default(), Leaps::new(self.stripes));
        let mut job = || {
            let stripe = leaps.next();
            let mismatch = self
                .job
                .on(self.shape, stripe, &mut room)
                .run(engine, arena);
            black_box(mismatch).any()
        };
        // The first ones fill caches and wake the wide units of the CPU; how long they take says how often to look.
        let mut wrong = false;
        let (begin, mut tried) = (Instant::now(), 0u32);
        while tried < 1 || begin.elapsed() < BETWEEN_LOOKS * 10 {
            wrong |= job();
            tried += 1;
        }
        let each = begin.elapsed() / tried;
        let batch = (BETWEEN_LOOKS.as_nanos() / each.as_nanos().max(1)).clamp(1, 10_000) as u32;
        let (begin, mut jobs) = (Instant::now(), 0u64);
        let elapsed = loop {
            for _ in 0..batch {
                wrong |= job();
            }
            jobs += u64::from(batch);
            let elapsed = begin.elapsed();
            if elapsed >= self.time {
                break elapsed;
            }
        };
        self.result(jobs, elapsed, wrong)
    }

    /// As many jobs in flight as `depth` and the lane allow, each on a stripe of its own.
    pub fn on_lane(
        &self,
        lane: &mut dyn Lane,
        depth: usize,
        arena: &mut Arena,
    ) -> Result<Round, BenchError> {
        let (mut room, mut leaps) = (Operands::default(), Leaps::new(self.stripes));
        // Stripes that the lane has been through, to be used before one that it may still be at.
        let mut free: std::collections::VecDeque<usize> =
            (0..self.stripes).map(|_| leaps.next()).collect();
        let mut done: Vec<Done> = Vec::with_capacity(depth);
        let mut wrong = false;
        let (mut jobs, mut refused) = (0u64, None);
        let begin = Instant::now();
        let mut last = begin;
        let mut warm: Option<(Instant, u64)> = None;
        let elapsed = loop {
            let now = Instant::now();
            // A tenth of the time to wake the device and fill the pipe, then the time that counts.
            let over = match warm {
                None if now - begin >= self.time / 10 && jobs > 0 => {
                    warm = Some((now, jobs));
                    false
                }
                Some((since, _)) => now - since >= self.time,
                None => false,
            };
            let stop = over || refused.is_some();
            while !stop && lane.in_flight() < depth {
                let Some(stripe) = free.pop_front() else {
                    break;
                };
                let job = self.job.on(self.shape, stripe, &mut room);
                match lane.submit(stripe as u32, &job) {
                    Ok(()) => {}
                    Err(refusal) => {
                        free.push_front(stripe);
                        if refusal == Refusal::Unfit {
                            refused = Some("not done by this lane");
                        }
                        break;
                    }
                }
            }
            if stop && lane.in_flight() == 0 {
                break now;
            }
            lane.poll(arena, &mut done)
                .map_err(|e| BenchError::Device {
                    name: self.name.into(),
                    reason: e.to_string(),
                })?;
            if !done.is_empty() {
                last = now;
            } else if now - last > DEVICE_PATIENCE {
                return Err(BenchError::Device {
                    name: self.name.into(),
                    reason: format!("no answer for {} s", DEVICE_PATIENCE.as_secs()),
                });
            }
            for one in done.drain(..) {
                wrong |= one.mismatch.any();
                free.push_back(one.token as usize);
                jobs += 1;
            }
        };
        // The device must not poll for work while the others are measured.
        lane.park();
        match (refused, warm) {
            (Some(reason), _) => Ok(Round::Unfit(reason.into())),
            (None, Some((since, before))) => self.result(jobs - before, elapsed - since, wrong),
            (None, None) => Ok(Round::Unfit("no job was done".into())),
        }
    }

    fn result(&self, jobs: u64, elapsed: Duration, wrong: bool) -> Result<Round, BenchError> {
        if self.job == Job::Check && wrong {
            return Err(BenchError::Wrong {
                name: self.name.into(),
            });
        }
        let bytes = jobs as f64 * self.job.data_bytes(self.shape) as f64;
        Ok(Round::Rate(bytes / elapsed.as_secs_f64()))
    }
}
