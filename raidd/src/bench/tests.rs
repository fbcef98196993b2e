//! The benchmark measures what it says: every engine and job, with right operands, within its memory; it stops when told.

use super::measure::Leaps;
use super::*;
use parity_kernels::offload::LaneCost;
use parity_kernels::offload::simulated::{Faults, SimulatedDevice};
use std::cell::Cell as Counter;
use std::sync::atomic::Ordering;

fn plan() -> Plan {
    Plan {
        engines: Vec::new(),
        jobs: Vec::new(),
        bytes: vec![512, 8192],
        data: vec![1, 3],
        threads: vec![1, 2],
        rounds: 2,
        round: Duration::from_micros(100),
        memory: 1 << 20,
        streaming: true,
    }
}

fn device() -> SimulatedDevice {
    SimulatedDevice {
        faults: Arc::new(Faults::default()),
        cost: LaneCost {
            caller_ns: 0.0,
            latency_ns: 0.0,
            ns_per_byte: 0.0,
        },
        depth: 4,
    }
}

#[test]
fn every_engine_does_every_job() {
    let device = device();
    let faults = device.faults.clone();
    let report = run_with(&plan(), Ok(vec![Arc::new(device)]), &|| false, &|_| {}).unwrap();
    let engines: Vec<_> = Engine::NAMES
        .iter()
        .filter(|name| Engine::by_name(name).is_some())
        .collect();
    // Two GPU rows, two shapes' bytes, two data counts, two thread counts, hot and cold.
    assert_eq!(report.rows.len(), (engines.len() + 2) * 2 * 2 * 2 * 2);
    for row in &report.rows {
        assert_eq!(
            row.figures.len(),
            if row.data == 1 { 6 } else { 7 },
            "{row:?}"
        );
        for figure in &row.figures {
            assert!(figure.gb_per_s.unwrap() > 0.0, "{row:?}");
            assert!(
                figure.min_gb_per_s <= figure.gb_per_s && figure.gb_per_s <= figure.max_gb_per_s
            );
        }
    }
    assert!(faults.jobs.load(Ordering::SeqCst) > 0);
    assert_eq!(report.gpus, ["gpu0: simulated device"]);
    let text = report.text();
    assert!(
        text.contains("bytes of data") && text.contains("2 threads together"),
        "{text}"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["rows"][0]["jobs"][1]["job"], "encode-pq");
    assert_eq!(json["rows"][0]["temperature"], "hot");
}

#[test]
fn a_gpu_that_is_not_there_is_one_line() {
    let mut plan = plan();
    (plan.threads, plan.data, plan.bytes) = (vec![1], vec![2], vec![4096]);
    let report = run_with(&plan, Err(absent()), &|| false, &|_| {}).unwrap();
    assert_eq!(report.text().matches("no GPU: no such driver\n").count(), 1);
    assert!(report.rows.iter().all(|row| !row.engine.starts_with("gpu")));
    let broken = device();
    broken.faults.no_open.store(true, Ordering::SeqCst);
    let report = run_with(&plan, Ok(vec![Arc::new(broken)]), &|| false, &|_| {}).unwrap();
    assert!(
        report.text().contains("no GPU: simulated device: "),
        "{}",
        report.text()
    );
}

fn absent() -> Absence {
    Absence {
        why: "no such driver".into(),
        remedy: "install one",
    }
}

/// The header of a table without rows came out, and status 0.
#[test]
fn a_gpu_that_was_asked_for_is_an_error_where_there_is_none() {
    for engines in [&["gpu"][..], &["scalar", "gpu"]] {
        let mut plan = plan();
        plan.engines = engines.iter().map(|e| e.to_string()).collect();
        let error = run_with(&plan, Err(absent()), &|| false, &|_| {}).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--engine gpu gives no figure: no such driver; install one; or name other engines"
        );
        let closed = device();
        closed.faults.no_open.store(true, Ordering::SeqCst);
        let none: [Result<Vec<Arc<dyn Opener>>, Absence>; 2] =
            [Ok(vec![]), Ok(vec![Arc::new(closed)])];
        for gpus in none {
            let error = run_with(&plan, gpus, &|| false, &|_| {}).unwrap_err();
            assert!(matches!(error, BenchError::Nothing { .. }), "{error}");
            assert!(
                error
                    .to_string()
                    .starts_with("--engine gpu gives no figure: ")
            );
        }
    }
}

#[test]
fn what_was_asked_for_by_name_and_has_no_figure_is_told() {
    let mut plan = plan();
    (plan.threads, plan.data, plan.bytes) = (vec![1], vec![3], vec![4096]);
    (plan.engines, plan.jobs) = (vec!["gpu".into(), "scalar".into()], vec![Job::Check]);
    let gpus: Vec<Arc<dyn Opener>> = vec![Arc::new(device())];
    let report = run_with(&plan, Ok(gpus), &|| false, &|_| {}).unwrap();
    assert!(unmet(&plan, &report).is_none());
    let mut cut = report;
    for row in cut.rows.iter_mut().filter(|row| row.engine != "scalar") {
        for figure in &mut row.figures {
            (figure.gb_per_s, figure.reason) = (None, Some("an odd length".into()));
        }
    }
    let text = unmet(&plan, &cut).unwrap().to_string();
    assert!(
        text.starts_with("--engine gpu with --threads 1 gives no figure: an odd length; "),
        "{text}"
    );
    plan.engines = vec!["scalar".into()];
    assert!(unmet(&plan, &cut).is_none());
    plan.jobs.push(Job::Update);
    let text = unmet(&plan, &cut).unwrap().to_string();
    assert!(text.starts_with("--job update gives no figure"), "{text}");
    cut.interrupted = true;
    assert!(unmet(&plan, &cut).is_none());
}

#[test]
fn a_dead_gpu_is_an_error_that_names_it() {
    let device = device();
    device.faults.dead.store(true, Ordering::SeqCst);
    let error = run_with(&plan(), Ok(vec![Arc::new(device)]), &|| false, &|_| {}).unwrap_err();
    assert!(error.to_string().starts_with("gpu0: "), "{error}");
}

#[test]
fn stopping_keeps_what_is_complete() {
    let mut plan = plan();
    (plan.threads, plan.engines) = (vec![1], vec!["scalar".into()]);
    let asked = Counter::new(0);
    let stopped = || {
        asked.set(asked.get() + 1);
        // Hot with one data member: 6 jobs of 2 rounds, then in the middle of cold.
        asked.get() > 14
    };
    let report = run_with(&plan, Err(absent()), &stopped, &|_| {}).unwrap();
    assert!(report.interrupted);
    assert_eq!(report.rows.len(), 1);
    assert!(report.text().contains("interrupted"));
}

#[test]
fn operands_lie_within_the_memory_and_do_not_overlap() {
    use parity_kernels::offload::ArenaJob;
    for (data, bytes) in [(1, 512), (6, 4096), (255, 4608)] {
        let shape = Shape { data, bytes };
        let memory = 3 * shape.stripe_bytes();
        assert_eq!(shape.stripes_in(memory), 3);
        for job in Job::ALL.into_iter().filter(|j| j.least_data() <= data) {
            let mut room = job::Operands::default();
            let job = job.on(shape, 2, &mut room);
            let (p, q) = job.parities();
            let mut ranges: Vec<BufRange> = p.into_iter().chain(q).collect();
            match job {
                ArenaJob::Encode { data, .. } | ArenaJob::Check { data, .. } => {
                    ranges.extend(data.iter().map(|d| d.0));
                }
                ArenaJob::Recover { data, lost, .. } => {
                    ranges.extend(data.iter().chain(lost).map(|d| d.0));
                }
                ArenaJob::Update { changed, .. } => {
                    ranges.extend(changed.iter().flat_map(|c| [c.0, c.1]));
                }
            }
            for (i, range) in ranges.iter().enumerate() {
                assert!(range.len == bytes && range.end() <= memory);
                assert!(ranges[..i].iter().all(|other| !other.overlaps(*range)));
            }
        }
    }
}

#[test]
fn leaps_visit_every_stripe_once() {
    for stripes in [1, 2, 3, 10, 4096, 29_127] {
        let mut leaps = Leaps::new(stripes);
        let mut seen = vec![false; stripes];
        for _ in 0..stripes {
            let stripe = leaps.next();
            assert!(!std::mem::replace(&mut seen[stripe], true), "{stripes}");
        }
        assert_eq!(leaps.next(), 0);
    }
}

#[test]
fn medians_and_spread() {
    let figure = report::Figure::of(Job::Check, vec![3e9, 1e9, 2e9], None);
    assert_eq!(figure.gb_per_s, Some(2.0));
    assert_eq!(figure.spread(), Some(0.5));
    let figure = report::Figure::of(Job::Check, vec![3e9, 1e9], None);
    assert_eq!(figure.gb_per_s, Some(2.0));
    assert_eq!(report::Figure::of(Job::Check, vec![], None).gb_per_s, None);
}
