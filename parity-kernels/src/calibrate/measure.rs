//! The measuring part: every engine does every operation on one small stripe, timed.
//!
//! Owns 4 MiB while it runs. Other work on the machine can only make a job slower, so of several tries the fastest
//! counts.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::{Op, Sample};
use crate::buf::{Arena, BufRange};
use crate::engine::Engine;
use crate::job::Hints;
use crate::offload::ArenaJob;

/// No new sample is begun after this.
const BUDGET: Duration = Duration::from_millis(60);

/// Time for the tries of one sample together.
const PER_SAMPLE: Duration = Duration::from_micros(150);

/// Tries with operands out of memory; each costs a flush besides.
const COLD_TRIES: usize = 5;

/// Data members of the stripe.
const MEMBERS: usize = 6;

/// Bytes of a chunk, hot and cold: a sector, a page, a usual chunk.
const HOT_LENGTHS: [usize; 3] = [512, 4096, 65536];
const COLD_LENGTHS: [usize; 2] = [4096, 65536];

/// All engines that may win: not those without vectors, where there are others.
pub fn candidates() -> Vec<Engine> {
    let mut engines: Vec<Engine> = Engine::NAMES
        .iter()
        .filter(|name| !["scalar", "swar"].contains(name))
        .filter_map(|name| Engine::by_name(name))
        .collect();
    if engines.is_empty() {
        engines.extend(Engine::by_name("swar"));
    }
    engines
}

/// A stripe: data with exponents, P, Q, two spare chunks.
struct Stripe {
    data: Vec<(BufRange, u8)>,
    p: BufRange,
    q: BufRange,
    spare: [BufRange; 2],
}

impl Stripe {
    fn new(len: usize) -> Stripe {
        let chunk = |i: usize| BufRange::new(i * len, len);
        Stripe {
            data: (0..MEMBERS).map(|k| (chunk(k), k as u8)).collect(),
            p: chunk(MEMBERS),
            q: chunk(MEMBERS + 1),
            spare: [chunk(MEMBERS + 2), chunk(MEMBERS + 3)],
        }
    }

    fn with_job<T>(&self, op: Op, run: impl FnOnce(&ArenaJob) -> T) -> T {
        let (data, p, q) = (&self.data[..], Some(self.p), Some(self.q));
        let changed = [(data[1].0, self.spare[0], data[1].1)];
        let lost = [(self.spare[0], data[0].1), (self.spare[1], data[1].1)];
        run(&match op {
            Op::Encode => ArenaJob::Encode { data, p, q },
            Op::Update => ArenaJob::Update {
                changed: &changed,
                p,
                q,
            },
            Op::Recover => ArenaJob::Recover {
                data: &data[2..],
                p,
                q,
                lost: &lost,
            },
            Op::Check => ArenaJob::Check { data, p, q },
        })
    }
}

/// Samples of these engines, as many as fit the time: hot ones of all first, then cold ones of the first.
pub fn all(engines: &[Engine]) -> Vec<Sample> {
    let start = Instant::now();
    let largest = HOT_LENGTHS[HOT_LENGTHS.len() - 1];
    // Without memory there is nothing to choose for either.
    let Ok(mut arena) = Arena::new(MEMBERS + 4, largest) else {
        return Vec::new();
    };
    let all = BufRange::new(0, arena.len());
    for (i, byte) in arena.bytes_mut(all).iter_mut().enumerate() {
        *byte = (i ^ (i >> 8)) as u8;
    }
    let mut samples = Vec::new();
    let mut take = |arena: &mut Arena, engine: &Engine, op: Op, len: usize, cold: bool| {
        if start.elapsed() > BUDGET {
            return;
        }
        let stripe = Stripe::new(len);
        let ns = if cold {
            cold_ns(arena, engine, &stripe, op)
        } else {
            hot_ns(arena, engine, &stripe, op)
        };
        if let Some(ns) = ns {
            let bytes = stripe.with_job(op, |job| job.data_bytes());
            samples.push(Sample {
                engine: *engine,
                op,
                bytes,
                cold,
                ns,
            });
        }
    };
    for op in Op::ALL {
        for len in HOT_LENGTHS {
            for engine in engines {
                // A check must find everything right, or it would end early.
                Stripe::new(len).with_job(Op::Encode, |job| job.run(engine, &mut arena));
                take(&mut arena, engine, op, len, false);
            }
        }
    }
    // From memory all engines are about equally fast, so one stands for all.
    for op in Op::ALL {
        for len in COLD_LENGTHS {
            if let Some(engine) = engines.first() {
                Stripe::new(len).with_job(Op::Encode, |job| job.run(engine, &mut arena));
                take(&mut arena, engine, op, len, true);
            }
        }
    }
    samples
}

/// Time of a job on operands that were just used.
fn hot_ns(arena: &mut Arena, engine: &Engine, stripe: &Stripe, op: Op) -> Option<f64> {
    stripe.with_job(op, |job| {
        let once = Instant::now();
        black_box(job.run(engine, arena));
        let guess = once.elapsed().as_nanos().max(50) as f64;
        // Five tries, each long enough for the clock.
        let tries = 5;
        let calls = (PER_SAMPLE.as_nanos() as f64 / tries as f64 / guess)
            .ceil()
            .clamp(1.0, 1000.0);
        let mut best = f64::INFINITY;
        for _ in 0..tries {
            let start = Instant::now();
            for _ in 0..calls as usize {
                black_box(job.run(engine, arena));
            }
            best = best.min(start.elapsed().as_nanos() as f64 / calls);
        }
        Some(best)
    })
}

/// Time of a job on operands that no cache has; `None` where this machine cannot empty its caches.
fn cold_ns(arena: &mut Arena, engine: &Engine, stripe: &Stripe, op: Op) -> Option<f64> {
    let engine = engine.with(Hints {
        cold: true,
        streaming: false,
    });
    let used = BufRange::new(0, stripe.spare[1].end());
    stripe.with_job(op, |job| {
        let mut best = f64::INFINITY;
        for _ in 0..COLD_TRIES {
            if !crate::engine::flush(arena.bytes(used)) {
                return None;
            }
            let start = Instant::now();
            black_box(job.run(&engine, arena));
            best = best.min(start.elapsed().as_nanos() as f64);
        }
        Some(best)
    })
}
