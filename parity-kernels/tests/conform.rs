//! Every engine, and the simulated lane, through the common cases; and that the cases would notice.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::conform::{Effort, MAX_SPAN, What, cases, one, one_by_one, plans, through_lane};
use common::with_every_engine;
use parity_kernels::offload::simulated::{Faults, SimulatedDevice};
use parity_kernels::offload::{ArenaJob, LaneCost, Opener};
use parity_kernels::{Arena, Engine, Mismatch};

fn arena(slots: usize) -> Arena {
    Arena::new(slots, MAX_SPAN).unwrap()
}

#[test]
fn every_engine_conforms() {
    // A case at 8 sectors from the start still fits.
    let mut arena = arena(2);
    let mut engines = Vec::new();
    with_every_engine(|engine| engines.push(*engine));
    for (i, case) in cases(Effort::Full).enumerate() {
        for engine in &engines {
            let tally = one(engine.name(), &mut arena, i, &case, |arena, job| {
                Some(job.run(engine, arena))
            });
            assert_eq!(tally.ran, 1);
        }
    }
}

#[test]
fn a_lane_conforms_with_many_jobs_in_flight() {
    let faults = Arc::new(Faults::default());
    faults.delay.store(3, Ordering::SeqCst);
    let cost = LaneCost {
        caller_ns: 1.0,
        latency_ns: 1.0,
        ns_per_byte: 1.0,
    };
    let device = SimulatedDevice {
        faults,
        cost,
        depth: 5,
    };
    let mut arena = arena(8);
    let mut lane = device.open(arena.memory()).unwrap();
    let tally = through_lane(
        "simulated",
        &mut *lane,
        &mut arena,
        cases(Effort::Quick),
        || {},
    );
    // An empty job is the only one that it does not take.
    let empty = plans(Effort::Quick).filter(|plan| plan.len == 0).count();
    assert_eq!(tally.unfit, empty);
    assert!(tally.ran > 300);
    lane.close().unwrap();
}

#[test]
fn the_cases_cover_what_they_promise() {
    let all: Vec<_> = plans(Effort::Full).collect();
    for members in 1..=255 {
        assert!(
            all.iter()
                .any(|plan| plan.exps.len() == members && plan.p && plan.q)
        );
    }
    let pairs = |members: usize| {
        let lost = all.iter().filter(|plan| plan.exps.len() == members);
        let mut sets: Vec<_> = lost
            .filter_map(|plan| match &plan.what {
                What::Recover(lost) if lost.len() == 2 => Some(lost.clone()),
                _ => None,
            })
            .collect();
        sets.sort();
        sets.dedup();
        sets.len()
    };
    for members in 2..=8 {
        assert_eq!(pairs(members), members * (members - 1));
    }
    assert!(plans(Effort::Quick).count() < all.len() / 4);
}

/// Runners that are wrong in one way each must all be found out.
#[test]
fn mistakes_are_noticed() {
    type Mistake = fn(&mut Arena, &ArenaJob) -> Mismatch;
    let mistakes: [(&str, Mistake); 5] = [
        ("does nothing", |_, _| Mismatch::default()),
        ("one bit of P", |arena, job| {
            let found = job.run(&Engine::detect(), arena);
            if let (ArenaJob::Encode { .. }, (Some(p), _)) = (job, job.parities()) {
                arena.bytes_mut(p)[p.len / 2] ^= 1;
            }
            found
        }),
        ("one byte too many", |arena, job| {
            let found = job.run(&Engine::detect(), arena);
            if let (_, (_, Some(mut q))) = (job, job.parities()) {
                q.len += 1;
                arena.bytes_mut(q)[q.len - 1] ^= 1;
            }
            found
        }),
        ("writes to data", |arena, job| {
            let found = job.run(&Engine::detect(), arena);
            if let ArenaJob::Recover {
                data: [(first, _), ..],
                ..
            } = job
            {
                arena.bytes_mut(*first)[0] ^= 1;
            }
            found
        }),
        ("sees no difference in Q", |arena, job| Mismatch {
            q: false,
            ..job.run(&Engine::detect(), arena)
        }),
    ];
    let mut arena = arena(2);
    for (name, mistake) in mistakes {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let sectors = cases(Effort::Quick).filter(|case| case.plan.len >= 512);
            one_by_one(name, &mut arena, sectors, |arena, job| {
                Some(mistake(arena, job))
            });
        }));
        assert!(result.is_err(), "{name} was not noticed");
    }
}
