//! MD at its best: a small sweep of its knobs, for each job that writes. Costs runtime x combinations.

use super::Plan;
use super::arrays::{Knobs, Md};
use super::fio::{self, Job};
use anyhow::Result;
use std::collections::BTreeMap;

/// The best knobs for each job, by the job's name.
pub type Best = BTreeMap<&'static str, Knobs>;

/// All combinations that are tried on the sequential write; the other jobs try the best of these.
fn combinations(quick: bool) -> Vec<Knobs> {
    let cpus =
        std::thread::available_parallelism().map_or(2, |n| u32::try_from(n.get()).unwrap_or(2));
    let mut threads: Vec<u32> = if quick {
        vec![0, 2]
    } else {
        vec![0, 1, 2, 4, 8, 16]
    };
    threads.retain(|n| *n <= 2 * cpus);
    let caches: &[u32] = if quick {
        &[256, 4096]
    } else {
        &[256, 1024, 4096, 16384]
    };
    let mut all = Vec::new();
    for &group_thread_cnt in &threads {
        for &stripe_cache_size in caches {
            for skip_copy in [0, 1] {
                all.push(Knobs {
                    group_thread_cnt,
                    stripe_cache_size,
                    skip_copy,
                });
            }
        }
    }
    all
}

/// Measures an array that is running and says what suits each job best.
pub fn run(plan: &Plan, level: &str, md: &Md) -> Result<Best> {
    let mut best = Best::new();
    if level == "0" {
        return Ok(best);
    }
    let mut scale = plan.scale;
    scale.runtime = scale.runtime.min(2);
    let measure = |job: &Job, knobs: Knobs| -> Result<f64> {
        md.tune(knobs)?;
        fio::run(job, md.device(), &scale)
    };
    // The first job over new memory is slower than all others.
    measure(&fio::JOBS[0], Knobs::DEFAULT)?;
    let mut ranked = Vec::new();
    for knobs in combinations(plan.quick) {
        let rate = measure(&fio::JOBS[0], knobs)?;
        println!("  md RAID {level} sweep, {knobs}: {rate:.0} MB/s");
        ranked.push((rate, knobs));
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let Some(&(_, first)) = ranked.first() else {
        return Ok(best);
    };
    let mut candidates: Vec<Knobs> = ranked
        .iter()
        .take(if plan.quick { 2 } else { 4 })
        .map(|(_, knobs)| *knobs)
        .collect();
    // Small writes may want the threads and not the cache, or neither.
    for group_thread_cnt in [0, first.group_thread_cnt] {
        let plain = Knobs {
            group_thread_cnt,
            ..Knobs::DEFAULT
        };
        if !candidates.contains(&plain) {
            candidates.push(plain);
        }
    }
    for job in plan.jobs.iter().filter(|job| job.writes) {
        if job.name == fio::JOBS[0].name {
            best.insert(job.name, first);
            continue;
        }
        let mut top = (f64::MIN, first);
        for &knobs in &candidates {
            let rate = measure(job, knobs)?;
            if rate > top.0 {
                top = (rate, knobs);
            }
        }
        println!("  md RAID {level} {}: best with {}", job.name, top.1);
        best.insert(job.name, top.1);
    }
    for job in plan.jobs.iter().filter(|job| !job.writes) {
        best.insert(job.name, first);
    }
    Ok(best)
}
