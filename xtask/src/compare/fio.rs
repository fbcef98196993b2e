//! Runs the jobs of `fio-jobs/` and reads one figure from each run.

use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 10^6 bytes per second.
    Megabytes,
    /// Requests per second.
    Iops,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Megabytes => "MB/s",
            Unit::Iops => "IOPS",
        }
    }
}

/// One job, and how the report names it.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub name: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    pub writes: bool,
}

const fn job(name: &'static str, title: &'static str, unit: Unit, writes: bool) -> Job {
    Job {
        name,
        title,
        unit,
        writes,
    }
}

/// All jobs, in the order of the report. Those that write come first, so that reads find written members.
pub const JOBS: [Job; 8] = [
    job("seq-write", "sequential write 2 MiB", Unit::Megabytes, true),
    job("rand-write", "random write 2 MiB", Unit::Megabytes, true),
    job("seq-read", "sequential read 2 MiB", Unit::Megabytes, false),
    job("rand-read", "random read 2 MiB", Unit::Megabytes, false),
    job("dd", "dd write (one stream)", Unit::Megabytes, true),
    job("4k-rand-write", "random write 4 KiB", Unit::Iops, true),
    job("4k-rand-read", "random read 4 KiB", Unit::Iops, false),
    job("4k-seq-write", "sequential write 4 KiB", Unit::Iops, true),
];

/// How far the jobs are scaled.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Seconds.
    pub runtime: u32,
    pub numjobs: u32,
    pub iodepth: u32,
    pub dd_bytes: u64,
}

/// Runs one job on a device (or several, separated by colons) and returns its figure in the job's unit.
pub fn run(job: &Job, device: &str, scale: &Scale) -> Result<f64> {
    let folder = paths::repo().join("fio-jobs");
    if job.name == "dd" {
        let text = sh::output(
            sh::cmd(folder.join("dd"), [device])
                .env("DD_BYTES", scale.dd_bytes.to_string())
                .env("DD_RUNS", "3"),
        )?;
        return dd_mean(&text).context("fio-jobs/dd printed no mean");
    }
    let text = sh::output(
        sh::cmd(
            folder.join("run"),
            [job.name, device, "--output-format=json"],
        )
        .env("RUNTIME", scale.runtime.to_string())
        .env("RAMP", "1")
        .env("NUMJOBS", scale.numjobs.to_string())
        .env("IODEPTH", scale.iodepth.to_string()),
    )?;
    parse(job, &text)
}

fn dd_mean(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("mean of runs"))?;
    line.split(": ").nth(1)?.split(' ').next()?.parse().ok()
}

fn parse(job: &Job, text: &str) -> Result<f64> {
    // fio may print notes before its JSON.
    let start = text.find('{').context("fio printed no JSON")?;
    let value: Value = serde_json::from_str(&text[start..]).context("fio's JSON does not parse")?;
    let mut sum = 0.0;
    for one in value["jobs"].as_array().context("fio's JSON has no jobs")? {
        if one["error"].as_i64() != Some(0) {
            bail!("fio job {} ended with error {}", job.name, one["error"]);
        }
        let side = if job.writes {
            &one["write"]
        } else {
            &one["read"]
        };
        sum += match job.unit {
            Unit::Megabytes => side["bw_bytes"].as_f64().context("no bw_bytes")? / 1e6,
            Unit::Iops => side["iops"].as_f64().context("no iops")?,
        };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::{JOBS, dd_mean, parse};

    #[test]
    fn reads_the_figures() {
        let text = "note\n{\"jobs\":[{\"error\":0,\"write\":{\"bw_bytes\":2500000,\"iops\":7.5},\"read\":{}}]}";
        let write = JOBS
            .iter()
            .find(|job| job.name == "seq-write")
            .expect("the job");
        assert_eq!(parse(write, text).expect("parses"), 2.5);
        assert!(parse(write, &text.replace("\"error\":0", "\"error\":5")).is_err());
        assert_eq!(
            dd_mean("run 1: 9 MB/s\nmean of runs 2-3: 12 MB/s\n"),
            Some(12.0)
        );
    }

    #[test]
    fn each_job_has_its_file() {
        for job in JOBS.iter().filter(|job| job.name != "dd") {
            let file = crate::paths::repo()
                .join("fio-jobs")
                .join(format!("{}.fio", job.name));
            assert!(file.is_file(), "{}", file.display());
        }
    }
}
