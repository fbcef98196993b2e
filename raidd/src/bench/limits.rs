//! What can be measured here at all: every wish of the command line is checked before memory is taken.

use std::io;

use super::Plan;
use super::job::{Job, Shape};
use super::report::{Report, Row};
use crate::units::Bytes;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A wish that cannot be met.
    #[error("{0}")]
    Usage(String),
    /// Something that was asked for by name gives no figure.
    #[error("{wish} gives no figure: {why}; {remedy}")]
    Nothing {
        /// Option and value.
        wish: String,
        /// Why not.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// The memory is not there.
    #[error("{}: {source}; choose less with --memory", Bytes(*memory))]
    Memory {
        /// Bytes wanted.
        memory: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A device failed on the way.
    #[error("{name}: {reason}")]
    Device {
        /// Which.
        name: String,
        /// What it said.
        reason: String,
    },
    /// A check of right parity found a difference.
    #[error("{name}: found right parity to be wrong; do not use this engine, and report it")]
    Wrong {
        /// Which engine.
        name: String,
    },
}

/// What this machine has.
#[derive(Debug, Clone, Copy)]
pub struct Resources {
    /// Bytes that can be taken without swapping.
    pub available: u64,
    /// CPUs of this process.
    pub cpus: u64,
}

impl Resources {
    /// Of this machine, now.
    pub fn here() -> Resources {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Resources {
            available: available(&meminfo).unwrap_or(u64::MAX),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        }
    }
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Memory in which most of what is visited is in no cache, within bounds.
pub fn cold_memory() -> u64 {
    let cache = super::report::Machine::here().cache_bytes.unwrap_or(0);
    cold_memory_for(cache, Resources::here().available)
}

fn cold_memory_for(cache: u64, available: u64) -> u64 {
    let enough = (4 * cache).clamp(1 << 30, 4 << 30);
    enough.min(available / 2) >> 20 << 20
}

/// Refuses what this machine cannot measure, with a sentence that says what it can.
///
/// # Errors
/// [`BenchError::Usage`].
pub fn check(plan: &Plan) -> Result<(), BenchError> {
    check_on(plan, Resources::here())
}

fn check_on(plan: &Plan, here: Resources) -> Result<(), BenchError> {
    let refuse = |text: String| Err(BenchError::Usage(text));
    for (option, list) in [
        ("--bytes", &plan.bytes),
        ("--data", &plan.data),
        ("--threads", &plan.threads),
    ] {
        if list.is_empty() {
            return refuse(format!("{option}: name at least one"));
        }
    }
    for &bytes in &plan.bytes {
        if bytes == 0 || bytes % 512 != 0 || bytes > 64 << 20 {
            return refuse(format!(
                "--bytes: {bytes} is no multiple of 512 from 512 to 64M"
            ));
        }
    }
    for &data in &plan.data {
        if !(1..=255).contains(&data) {
            return refuse(format!("--data: {data} members; choose 1 to 255"));
        }
    }
    for &threads in &plan.threads {
        if !(1..=here.cpus).contains(&threads) {
            return refuse(format!(
                "--threads: {threads}; choose 1 to {}, the CPUs that raidctl may use",
                here.cpus
            ));
        }
    }
    // Leave a fifth to everybody else: the pages are taken at once and stay.
    let most = here.available / 5 * 4;
    if plan.memory > most {
        return refuse(format!(
            "--memory: {} is too much; {} are available, choose {} at most",
            Bytes(plan.memory),
            Bytes(here.available),
            Bytes(most >> 20 << 20)
        ));
    }
    let biggest = |list: &[u64]| list.iter().copied().max().unwrap_or(1);
    let shape = Shape {
        data: biggest(&plan.data) as usize,
        bytes: biggest(&plan.bytes) as usize,
    };
    // Two stripes: one would be hot.
    let least = 2 * shape.stripe_bytes() as u64 * biggest(&plan.threads);
    if plan.memory < least {
        return refuse(format!(
            "--memory: {} is too little for {} data members of {} on {} threads; choose {} at least",
            Bytes(plan.memory),
            shape.data,
            Bytes(shape.bytes as u64),
            biggest(&plan.threads),
            Bytes(least.next_multiple_of(1 << 20))
        ));
    }
    for engine in &plan.engines {
        use parity_kernels::Engine;
        if engine == "gpu" || Engine::by_name(engine).is_some() {
            continue;
        }
        let here = Engine::names_here().join(", ");
        return refuse(match Engine::NAMES.contains(&engine.as_str()) {
            true => format!(
                "--engine: this CPU lacks the instructions of '{engine}'; choose from {here}, gpu"
            ),
            false => format!("--engine: there is no '{engine}'; choose from {here}, gpu"),
        });
    }
    check_jobs(plan)
}

/// Each job that is asked for by name has members enough somewhere, and each number of members a job.
fn check_jobs(plan: &Plan) -> Result<(), BenchError> {
    let possible = |job: &Job, data: u64| job.least_data() as u64 <= data;
    for job in &plan.jobs {
        if !plan.data.iter().any(|data| possible(job, *data)) {
            return Err(BenchError::Usage(format!(
                "--job: {} needs {} data members; choose that or more with --data, or another job",
                job.name(),
                job.least_data()
            )));
        }
    }
    for &data in &plan.data {
        if !plan.jobs.is_empty() && !plan.jobs.iter().any(|job| possible(job, data)) {
            let jobs: Vec<&str> = plan.jobs.iter().map(|job| job.name()).collect();
            return Err(BenchError::Usage(format!(
                "--data: {data} is too few for {}; leave it out, or choose another job",
                jobs.join(" and ")
            )));
        }
    }
    Ok(())
}

/// What was asked for by name and has no figure in a report of everything that was asked for: an engine at some number of
/// threads, or a job.
pub fn unmet(plan: &Plan, report: &Report) -> Option<BenchError> {
    if report.interrupted {
        return None;
    }
    let has = |row: &Row, job: Option<&str>| {
        let mut figures = row.figures.iter();
        figures.any(|f| f.gb_per_s.is_some() && job.is_none_or(|job| f.job == job))
    };
    for engine in &plan.engines {
        let is_it = |row: &&Row| match engine.as_str() {
            "gpu" => row.engine.starts_with("gpu"),
            name => row.engine == name,
        };
        for &threads in &plan.threads {
            let rows = || {
                let rows = report.rows.iter();
                rows.filter(is_it)
                    .filter(|row| row.threads as u64 == threads)
            };
            if rows().any(|row| has(row, None)) {
                continue;
            }
            let mut figures = rows().flat_map(|row| &row.figures);
            let why = figures.find_map(|f| f.reason.clone());
            return Some(BenchError::Nothing {
                wish: format!("--engine {engine} with --threads {threads}"),
                why: why
                    .or_else(|| report.no_gpu.clone())
                    .unwrap_or_else(|| "it does none of these jobs".into()),
                remedy: "leave it out, or choose other jobs, members or threads".into(),
            });
        }
    }
    let job = plan
        .jobs
        .iter()
        .find(|job| !report.rows.iter().any(|row| has(row, Some(job.name()))))?;
    Some(BenchError::Nothing {
        wish: format!("--job {}", job.name()),
        why: "none of these engines does it with these members and bytes".into(),
        remedy: "leave it out, or choose other engines".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HERE: Resources = Resources {
        available: 10 << 30,
        cpus: 4,
    };

    fn plan() -> Plan {
        Plan {
            engines: vec![],
            jobs: vec![],
            bytes: vec![4096, 65536],
            data: vec![6],
            threads: vec![1],
            rounds: 1,
            round: Duration::from_millis(1),
            memory: 64 << 20,
            streaming: false,
        }
    }

    fn refusal(change: impl FnOnce(&mut Plan)) -> String {
        let mut plan = plan();
        change(&mut plan);
        check_on(&plan, HERE).unwrap_err().to_string()
    }

    #[test]
    fn each_bad_wish_is_named() {
        check_on(&plan(), HERE).unwrap();
        assert!(refusal(|p| p.bytes = vec![1000]).starts_with("--bytes: 1000 is no multiple"));
        assert!(refusal(|p| p.bytes = vec![128 << 20]).starts_with("--bytes"));
        assert!(refusal(|p| p.bytes.clear()).starts_with("--bytes: name"));
        assert!(refusal(|p| p.data = vec![6, 256]).starts_with("--data: 256"));
        assert!(refusal(|p| p.data = vec![0]).starts_with("--data: 0"));
        assert!(refusal(|p| p.threads = vec![5]).contains("choose 1 to 4"));
        assert!(refusal(|p| p.memory = 9 << 30).contains("choose 8 GiB at most"));
        assert!(refusal(|p| p.memory = 1 << 20).contains("choose 2 MiB at least"));
        assert!(refusal(|p| p.engines = vec!["fast".into()]).contains("there is no 'fast'"));
    }

    /// A list of engines named those of other processors, too.
    #[test]
    fn engines_are_those_of_this_cpu() {
        use parity_kernels::Engine;
        let elsewhere = Engine::NAMES
            .iter()
            .filter(|n| Engine::by_name(n).is_none());
        for name in elsewhere.copied().chain(["", "fast"]) {
            let text = refusal(|p| p.engines = vec![name.into()]);
            let list = text.split("choose from ").nth(1).unwrap();
            assert_eq!(list, Engine::names_here().join(", ") + ", gpu");
        }
    }

    /// A table with rows and without a column of figures came out, and status 0.
    #[test]
    fn jobs_need_members_enough() {
        let two = |data: &[u64], jobs: &[Job]| {
            refusal(|p| (p.data, p.jobs) = (data.to_vec(), jobs.to_vec()))
        };
        assert!(two(&[1], &[Job::RecoverTwo]).starts_with("--job: recover-two needs 2"));
        assert!(two(&[1], &[Job::Check, Job::RecoverTwo]).starts_with("--job: recover-two"));
        assert!(two(&[6, 1], &[Job::RecoverTwo]).starts_with("--data: 1 is too few"));
        let mut fine = plan();
        (fine.data, fine.jobs) = (vec![1, 6], vec![Job::Check, Job::RecoverTwo]);
        check_on(&fine, HERE).unwrap();
        fine.jobs.clear();
        check_on(&fine, HERE).unwrap();
    }

    #[test]
    fn default_memory_is_bounded() {
        assert_eq!(cold_memory_for(32 << 20, 64 << 30), 1 << 30);
        assert_eq!(cold_memory_for(480 << 20, 64 << 30), 1920 << 20);
        assert_eq!(cold_memory_for(2 << 30, 64 << 30), 4 << 30);
        assert_eq!(cold_memory_for(2 << 30, 1 << 30), 512 << 20);
    }

    #[test]
    fn meminfo_is_read() {
        assert_eq!(
            available("MemTotal: 9 kB\nMemAvailable:   1024 kB\n"),
            Some(1 << 20)
        );
        assert_eq!(available(""), None);
    }
}
