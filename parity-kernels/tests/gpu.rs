//! The CUDA lane on a real card: the common cases through both its ways in, and what happens when the card fails. Where
//! there is no card every test is counted as ignored, and the reason printed.
//!
//! `--quick` takes fewer cases, for a run under a checker; other words select tests by a part of their name.

mod common;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::conform::{Effort, MAX_SPAN, Tally, cases, through_lane};
use parity_kernels::cuda::{CudaLane, Gpu, GpuOptions, Selection, gpus};
use parity_kernels::offload::{ArenaJob, Done, Lane, LaneCost, LaneError, Opener, Refusal};
use parity_kernels::{Arena, BufRange, Engine, Mismatch};

/// One case, by its name.
type Test = (&'static str, fn(&Gpu, Effort));

const TESTS: &[Test] = &[
    ("the_ring_conforms", the_ring_conforms),
    ("a_ring_of_blocks_conforms", blocks_conform),
    ("a_ring_of_workers_conforms", workers_conform),
    ("batches_conform", batches_conform),
    ("a_parked_lane_wakes", a_parked_lane_wakes),
    ("load_goes_on_while_the_kernel_is_renewed", renewed),
    ("a_lane_closes_beside_a_busy_one", closes_beside_a_busy_one),
    (
        "lanes_come_and_go_beside_one_with_new_shapes",
        beside_new_shapes,
    ),
    ("a_card_without_memory_is_an_error", shortage),
    ("a_destroyed_context_loses_nothing", loss),
    // The last, since the driver does no more work in a process that it has seen a kernel fault in.
    ("a_fault_of_a_kernel_loses_nothing", fault),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|a| a == "--quick");
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(*f));
    let tests: Vec<&Test> = TESTS.iter().filter(|(name, _)| wanted(name)).collect();
    println!("\nrunning {} tests", tests.len());
    let gpu = match gpus(&Selection::Auto, GpuOptions::default()) {
        Ok(gpus) => gpus[0].info().clone(),
        Err(why) => {
            for (name, _) in &tests {
                println!("test {name} ... ignored, {why}");
            }
            println!(
                "\ntest result: ok. 0 passed; 0 failed; {} ignored; 0 measured; 0 filtered out",
                tests.len()
            );
            return ExitCode::SUCCESS;
        }
    };
    println!("on {} {}", gpu.name, gpu.uuid_text());
    let effort = if quick { Effort::Quick } else { Effort::Full };
    let mut failed = 0;
    for (name, test) in &tests {
        let begin = Instant::now();
        let device = Gpu::new(gpu.clone(), GpuOptions::default());
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&device, effort)));
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        failed += usize::from(result.is_err());
        println!("test {name} ... {verdict} ({:.1?})", begin.elapsed());
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out",
        tests.len() - failed
    );
    ExitCode::from(u8::from(failed > 0))
}

/// A lane that waits for the shapes of new jobs to arrive, since nearly every common case has one of its own.
struct Settling(CudaLane);

impl Lane for Settling {
    fn submit(&mut self, token: u32, job: &ArenaJob) -> Result<(), Refusal> {
        match self.0.submit(token, job) {
            Err(Refusal::Full) => {
                self.0.settle().expect("the card works");
                self.0.submit(token, job)
            }
            other => other,
        }
    }

    fn poll(&mut self, arena: &mut Arena, done: &mut Vec<Done>) -> Result<(), LaneError> {
        self.0.poll(arena, done)
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn queued_bytes(&self) -> u64 {
        self.0.queued_bytes()
    }

    fn cost(&self) -> LaneCost {
        self.0.cost()
    }

    fn park(&mut self) {
        self.0.park();
    }

    fn awake(&self) -> bool {
        self.0.awake()
    }

    fn close(self: Box<Self>) -> Result<(), LaneError> {
        Box::new(self.0).close()
    }
}

/// All cases through lanes with these options, a fresh lane for every few hundred: a table of shapes is not endless.
fn conform(name: &str, gpu: &Gpu, options: GpuOptions, effort: Effort) -> Tally {
    let gpu = Gpu::new(gpu.info().clone(), options);
    let mut arena = Arena::new(16, MAX_SPAN).expect("memory");
    let mut total = Tally::default();
    let mut cases = cases(effort).peekable();
    while cases.peek().is_some() {
        let mut lane = Settling(gpu.lane(arena.memory()).expect("a lane"));
        let tally = through_lane(name, &mut lane, &mut arena, cases.by_ref().take(300), || {});
        total.ran += tally.ran;
        total.unfit += tally.unfit;
        Box::new(lane).close().expect("closed");
    }
    total
}

/// The common cases through rings with so many blocks, workers in each and threads in each, and so many bytes to a unit.
fn rings_conform(gpu: &Gpu, effort: Effort, ways: &[(u32, u32, u32, usize)]) {
    let mut options = GpuOptions {
        bulk: Some(false),
        ..GpuOptions::default()
    };
    for &(blocks, workers, threads, unit) in ways {
        options.ring.blocks = blocks;
        options.ring.workers = workers;
        options.ring.threads = threads;
        options.ring.unit = unit;
        let tally = conform("ring", gpu, options, effort);
        println!("  {} ran, {} unfit", tally.ran, tally.unfit);
        assert!(tally.ran > tally.unfit, "most cases are for the card");
    }
}

fn the_ring_conforms(gpu: &Gpu, effort: Effort) {
    let ring = GpuOptions::default().ring;
    let usual = (ring.blocks, ring.workers, ring.threads, ring.unit);
    rings_conform(gpu, effort, &[usual]);
}

fn blocks_conform(gpu: &Gpu, effort: Effort) {
    rings_conform(gpu, effort, &[(4, 1, 512, 16384), (2, 1, 96, 512)]);
}

fn workers_conform(gpu: &Gpu, effort: Effort) {
    rings_conform(gpu, effort, &[(4, 4, 128, 4096), (2, 2, 96, 512)]);
}

fn batches_conform(gpu: &Gpu, effort: Effort) {
    let options = GpuOptions {
        bulk: Some(true),
        ..GpuOptions::default()
    };
    let tally = conform("batches", gpu, options, effort);
    println!("  {} ran, {} unfit", tally.ran, tally.unfit);
    assert!(tally.ran > 100, "many cases are for batches");
}

/// Stripes of 6 data, P and Q in an arena of their own, with a model of what they must hold.
struct Stripes {
    arena: Arena,
    chunk: usize,
    count: usize,
}

impl Stripes {
    fn new(count: usize, chunk: usize) -> Stripes {
        let mut arena = Arena::new(count, 8 * chunk).expect("memory");
        let mut random = common::Random::new(17);
        let all = BufRange::new(0, count * 8 * chunk);
        let bytes = random.bytes(all.len);
        arena.bytes_mut(all).copy_from_slice(&bytes);
        Stripes {
            arena,
            chunk,
            count,
        }
    }

    fn range(&self, stripe: usize, member: usize) -> BufRange {
        BufRange::new((stripe * 8 + member) * self.chunk, self.chunk)
    }

    fn data(&self, stripe: usize) -> Vec<(BufRange, u8)> {
        (0..6).map(|i| (self.range(stripe, i), i as u8)).collect()
    }

    fn submit(&self, lane: &mut dyn Lane, stripe: usize) -> Result<(), Refusal> {
        let data = self.data(stripe);
        lane.submit(
            stripe as u32,
            &ArenaJob::Encode {
                data: &data,
                p: Some(self.range(stripe, 6)),
                q: Some(self.range(stripe, 7)),
            },
        )
    }

    /// Encode a stripe here.
    fn redo(&mut self, stripe: usize) {
        let (data, p, q) = (
            self.data(stripe),
            self.range(stripe, 6),
            self.range(stripe, 7),
        );
        self.arena
            .encode(&Engine::detect(), &data, Some(p), Some(q));
    }

    /// Change some data of a stripe, so that its parity is wrong until it is encoded again.
    fn touch(&mut self, stripe: usize, with: u8) {
        let range = self.range(stripe, usize::from(with) % 6);
        self.arena.bytes_mut(range)[usize::from(with)] ^= with | 1;
    }

    fn verify(&self, stripe: usize) {
        let found = self.arena.check(
            &Engine::detect(),
            &self.data(stripe),
            Some(self.range(stripe, 6)),
            Some(self.range(stripe, 7)),
        );
        assert_eq!(found, Mismatch::default(), "stripe {stripe}");
    }

    fn verify_all(&self) {
        (0..self.count).for_each(|stripe| self.verify(stripe));
    }
}

/// Encode one stripe and wait for it.
fn one(lane: &mut CudaLane, stripes: &mut Stripes, stripe: usize) {
    while stripes.submit(lane, stripe).is_err() {
        lane.settle().expect("the card works");
    }
    let mut done = Vec::new();
    while done.is_empty() {
        lane.poll(&mut stripes.arena, &mut done).expect("works");
    }
    stripes.verify(stripe);
}

fn a_parked_lane_wakes(gpu: &Gpu, _: Effort) {
    let mut stripes = Stripes::new(16, 4096);
    let mut lane = gpu.lane(stripes.arena.memory()).expect("a lane");
    for round in 0..40 {
        let stripe = round % 16;
        stripes.touch(stripe, round as u8);
        one(&mut lane, &mut stripes, stripe);
        assert!(lane.awake());
        if round % 3 == 0 {
            lane.park();
            assert!(!lane.awake());
        }
    }
    Box::new(lane).close().expect("closed");
}

fn renewed(gpu: &Gpu, _: Effort) {
    let mut stripes = Stripes::new(64, 4096);
    let mut lane = gpu.lane(stripes.arena.memory()).expect("a lane");
    let start = Instant::now();
    let (mut done, mut flying, mut jobs) = (Vec::new(), [false; 64], 0u64);
    let mut next = 0;
    while start.elapsed() < Duration::from_millis(2500) {
        if !flying[next] {
            stripes.touch(next, jobs as u8);
            while stripes.submit(&mut lane, next).is_err() {
                lane.settle().expect("the card works");
                lane.poll(&mut stripes.arena, &mut done).expect("works");
            }
            flying[next] = true;
            jobs += 1;
        }
        next = (next + 1) % 64;
        lane.poll(&mut stripes.arena, &mut done).expect("works");
        for Done { token, .. } in done.drain(..) {
            flying[token as usize] = false;
            if jobs % 97 == 0 {
                stripes.verify(token as usize);
            }
        }
    }
    while lane.in_flight() > 0 {
        lane.poll(&mut stripes.arena, &mut done).expect("works");
    }
    stripes.verify_all();
    println!("  {jobs} jobs");
    let closing = Instant::now();
    Box::new(lane).close().expect("closed");
    assert!(
        closing.elapsed() < Duration::from_secs(1),
        "within a second"
    );
}

fn closes_beside_a_busy_one(gpu: &Gpu, _: Effort) {
    let mut busy = Stripes::new(16, 4096);
    let mut busy_lane = gpu.lane(busy.arena.memory()).expect("a lane");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut stripes = Stripes::new(16, 4096);
            let mut lane = gpu.lane(stripes.arena.memory()).expect("a second lane");
            one(&mut lane, &mut stripes, 3);
            let closing = Instant::now();
            Box::new(lane).close().expect("closed");
            closing.elapsed()
        });
        let mut stripe = 0;
        while !other.is_finished() {
            one(&mut busy_lane, &mut busy, stripe);
            stripe = (stripe + 1) % 16;
        }
        let took = other.join().expect("no panic");
        println!("  closed in {took:.1?}");
        assert!(took < Duration::from_secs(3), "{took:?}");
    });
    Box::new(busy_lane).close().expect("closed");
}

/// A lane that was closed while another was being opened hung, and so did the other, for good: the driver, asked to give
/// memory back, waits for all kernels of the context, and lets nobody else in meanwhile. The kernel that it waited for could
/// only be ended by the thread of the other lane, which was stopped in the driver, on its way to copy a new shape.
fn beside_new_shapes(gpu: &Gpu, _: Effort) {
    let over = Arc::new(AtomicBool::new(false));
    let seen = over.clone();
    std::thread::spawn(move || {
        for _ in 0..600 {
            std::thread::sleep(Duration::from_millis(100));
            if seen.load(Ordering::Acquire) {
                return;
            }
        }
        println!("test lanes_come_and_go_beside_one_with_new_shapes ... FAILED, it hangs");
        std::process::exit(101);
    });
    let mut stripes = Stripes::new(16, 4096);
    let mut lane = gpu.lane(stripes.arena.memory()).expect("a lane");
    let (mut jobs, mut first) = (0usize, 0);
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for stripe in 0..8 {
                        let mut stripes = Stripes::new(16, 4096);
                        let mut lane = gpu.lane(stripes.arena.memory()).expect("another lane");
                        one(&mut lane, &mut stripes, stripe);
                        Box::new(lane).close().expect("closed");
                    }
                })
            })
            .collect();
        let mut done = Vec::new();
        while !others.iter().all(|other| other.is_finished()) {
            // Other exponents, and so another shape, every few jobs.
            first = (first + usize::from(jobs % 8 == 0)) % 249;
            jobs += 1;
            let stripe = jobs % 16;
            let mut data = stripes.data(stripe);
            for (_, exponent) in &mut data {
                *exponent += first as u8;
            }
            let (p, q) = (stripes.range(stripe, 6), stripes.range(stripe, 7));
            let job = ArenaJob::Encode {
                data: &data,
                p: Some(p),
                q: Some(q),
            };
            while lane.submit(0, &job).is_err() {
                lane.poll(&mut stripes.arena, &mut done).expect("works");
            }
            done.clear();
            while done.is_empty() {
                lane.poll(&mut stripes.arena, &mut done).expect("works");
            }
            let found = stripes
                .arena
                .check(&Engine::detect(), &data, Some(p), Some(q));
            assert_eq!(found, Mismatch::default(), "stripe {stripe}");
        }
        for other in others {
            other.join().expect("no panic");
        }
    });
    over.store(true, Ordering::Release);
    println!("  {jobs} jobs meanwhile");
    Box::new(lane).close().expect("closed");
}

/// Break the card under a lane with jobs in flight; do them again here; open a new lane and use it.
fn breaks(gpu: &Gpu, harm: impl Fn(&Gpu), rounds: usize) {
    let mut stripes = Stripes::new(64, 16384);
    for round in 0..rounds {
        let mut lane = gpu.lane(stripes.arena.memory()).expect("a lane");
        let (mut done, mut flying) = (Vec::new(), [false; 64]);
        let mut error = None;
        'load: for pass in 0..200_000usize {
            for (stripe, flies) in flying.iter_mut().enumerate() {
                if !*flies && stripes.submit(&mut lane, stripe).is_ok() {
                    *flies = true;
                }
            }
            if pass == 50 + round * 7 {
                harm(gpu);
            }
            match lane.poll(&mut stripes.arena, &mut done) {
                Ok(()) => {}
                Err(e) => {
                    error = Some(e);
                    break 'load;
                }
            }
            for Done { token, .. } in done.drain(..) {
                flying[token as usize] = false;
                stripes.touch(token as usize, pass as u8);
            }
        }
        let error = error.expect("the lane fails");
        println!("  {error}; {} in flight", lane.in_flight());
        assert!(stripes.submit(&mut lane, 0).is_err(), "no more jobs");
        let closing = Instant::now();
        Box::new(lane).close().expect("the card has stopped");
        println!("  closed in {:.1?}", closing.elapsed());
        // Not only those in flight: others were touched since they were encoded.
        for stripe in 0..64 {
            stripes.redo(stripe);
        }
        stripes.verify_all();
        if round + 1 == rounds {
            break;
        }
        let mut lane = gpu.lane(stripes.arena.memory()).expect("a new lane");
        for stripe in 0..64 {
            stripes.touch(stripe, 9);
            one(&mut lane, &mut stripes, stripe);
        }
        Box::new(lane).close().expect("closed");
    }
}

fn fault(gpu: &Gpu, _: Effort) {
    breaks(gpu, |gpu| gpu.inject_fault().expect("a faulty kernel"), 1);
    let arena = Arena::new(16, MAX_SPAN).expect("memory");
    match gpu.open(arena.memory()) {
        Ok(lane) => {
            println!("  this driver opens lanes again");
            lane.close().expect("closed");
        }
        Err(error) => println!("  afterwards: {error}"),
    }
}

fn loss(gpu: &Gpu, _: Effort) {
    breaks(gpu, |gpu| gpu.inject_loss().expect("a lost context"), 4);
}

fn shortage(gpu: &Gpu, _: Effort) {
    let gpu = Arc::new(Gpu::new(gpu.info().clone(), GpuOptions::default()));
    let mut stripes = Stripes::new(16, 4096);
    let hold = gpu.inject_shortage().expect("memory to take");
    let error = match gpu.open(stripes.arena.memory()) {
        Ok(_) => panic!("a lane without memory"),
        Err(error) => error,
    };
    println!("  {error}");
    assert!(error.what.contains("MEMORY"), "{error}");
    drop(hold);
    let mut lane = gpu
        .lane(stripes.arena.memory())
        .expect("now there is memory");
    one(&mut lane, &mut stripes, 5);
    Box::new(lane).close().expect("closed");
}
