//! `cargo xtask compare`: raidd and mdadm on the same members, in one run, in turn; the table of the SupremeRAID
//! evaluation as markdown, CSV and a page with charts. Destroys what is on the members.

mod arrays;
mod fio;
mod html;
mod inside;
mod report;
mod sweep;

use crate::vm::{self, Bed, VmOptions};
use crate::{build, paths, setup, sh};
use anyhow::{Result, bail};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct CompareCommand {
    /// RAID levels.
    #[arg(long = "level", value_delimiter = ',', default_values = ["0", "5", "6"], value_parser = crate::demo::LEVELS)]
    levels: Vec<String>,
    /// Two short rounds and a smaller sweep: minutes instead of an hour.
    #[arg(long)]
    quick: bool,
    /// Only these jobs (default: all).
    #[arg(long = "job", value_delimiter = ',')]
    jobs: Vec<String>,
    /// Rounds; in each of them every configuration is measured once (default: 5, with --quick 2).
    #[arg(long)]
    rounds: Option<u32>,
    /// Seconds of each fio run (default: 5, with --quick 2).
    #[arg(long)]
    runtime: Option<u32>,
    /// fio jobs (threads).
    #[arg(long, default_value_t = 2)]
    numjobs: u32,
    /// Requests in flight for each fio job.
    #[arg(long, default_value_t = 32)]
    iodepth: u32,
    /// Chunk size in KiB.
    #[arg(long, default_value_t = 64)]
    chunk_kib: u32,
    /// Size of a member in a bed, in MiB.
    #[arg(long, default_value_t = 512)]
    member_mib: u64,
    /// Name of the output folder below docs/measurements.
    #[arg(long, default_value = "latest")]
    out: String,
    /// Run in this bed.
    #[arg(long, value_enum)]
    bed: Option<Bed>,
    /// Kernel of the bed: see `cargo xtask vm --help`.
    #[arg(long)]
    kernel: Option<String>,
    /// Guest memory (default: members and 3 GiB).
    #[arg(short = 'm', long = "memory")]
    memory: Option<String>,
    /// Guest CPUs.
    #[arg(short = 'c', long = "cpus")]
    cpus: Option<u32>,
    /// Time limit in seconds.
    #[arg(short = 't', long = "time", default_value_t = 7200)]
    seconds: u64,
    /// Measure here, not in a bed. Used in the guest, and on a real machine together with devices.
    #[arg(long)]
    here: bool,
    /// What the report calls the place of the measurement.
    #[arg(long, hide = true)]
    place: Option<String>,
    /// Members of a real machine, whose content is destroyed; only with --here.
    devices: Vec<String>,
}

impl CompareCommand {
    pub fn run(self) -> Result<i32> {
        if self.here {
            return inside::run(&self.plan()?);
        }
        if !self.devices.is_empty() {
            bail!("members can be given only together with --here");
        }
        let bed = self.bed.unwrap_or_else(Bed::default_here);
        setup::prepare(bed == Bed::Qemu);
        let binaries = build::binaries(build::Profile::Release)?;
        let mut command = vec![
            "env".to_owned(),
            format!("RAIDD_BIN_DIR={}", binaries.display()),
            format!("XTASK_COMMIT={}", commit()),
            std::env::current_exe()?.display().to_string(),
            "compare".to_owned(),
            "--here".to_owned(),
        ];
        command.extend(self.inside_arguments(bed));
        let mut options = VmOptions {
            bed: Some(bed),
            kernel: self.kernel.clone(),
            cpus: self.cpus,
            seconds: Some(self.seconds),
            drives: 8,
            drive_mib: self.member_mib,
            ..VmOptions::default()
        };
        options.memory = self.memory.clone();
        if bed == Bed::Uml {
            options
                .append
                .push(format!("brd.rd_size={}", self.member_mib << 10));
            let mib = self.member_mib * 8 + 3072;
            options.memory.get_or_insert(format!("{mib}M"));
        }
        vm::run(&options, &command)
    }

    fn inside_arguments(&self, bed: Bed) -> Vec<String> {
        let place = match bed {
            Bed::Uml => "UML guest, eight NVMe loop-target namespaces over RAM disks",
            Bed::Qemu => "QEMU guest, eight emulated NVMe drives over files",
        };
        let mut arguments: Vec<String> = self
            .levels
            .iter()
            .map(|level| format!("--level={level}"))
            .collect();
        arguments.extend(self.jobs.iter().map(|job| format!("--job={job}")));
        if self.quick {
            arguments.push("--quick".to_owned());
        }
        arguments.extend([
            format!("--rounds={}", self.rounds()),
            format!("--runtime={}", self.runtime()),
            format!("--numjobs={}", self.numjobs),
            format!("--iodepth={}", self.iodepth),
            format!("--chunk-kib={}", self.chunk_kib),
            format!("--member-mib={}", self.member_mib),
            format!("--out={}", self.out),
            format!("--place={place}"),
        ]);
        arguments
    }

    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { 5 }).max(1)
    }

    fn runtime(&self) -> u32 {
        self.runtime
            .unwrap_or(if self.quick { 2 } else { 5 })
            .max(1)
    }

    fn plan(&self) -> Result<Plan> {
        let mut jobs = Vec::new();
        for job in fio::JOBS {
            if self.jobs.is_empty() || self.jobs.iter().any(|name| name == job.name) {
                jobs.push(job);
            }
        }
        if let Some(name) = self
            .jobs
            .iter()
            .find(|name| fio::JOBS.iter().all(|job| job.name != **name))
        {
            let names: Vec<&str> = fio::JOBS.iter().map(|job| job.name).collect();
            bail!("no job {name}; there are {}", names.join(" "));
        }
        if self.out.contains('/') || self.out.starts_with('.') {
            bail!("--out is the name of a folder below docs/measurements");
        }
        Ok(Plan {
            levels: self.levels.clone(),
            jobs,
            rounds: self.rounds(),
            quick: self.quick,
            scale: fio::Scale {
                runtime: self.runtime(),
                numjobs: self.numjobs,
                iodepth: self.iodepth,
                dd_bytes: (self.member_mib << 20) * 2,
            },
            chunk_kib: self.chunk_kib,
            out: paths::repo().join("docs/measurements").join(&self.out),
            place: self
                .place
                .clone()
                .unwrap_or_else(|| "this machine".to_owned()),
            devices: self.devices.clone(),
        })
    }
}

/// What is measured, and how.
struct Plan {
    levels: Vec<String>,
    jobs: Vec<fio::Job>,
    rounds: u32,
    quick: bool,
    scale: fio::Scale,
    chunk_kib: u32,
    out: PathBuf,
    place: String,
    devices: Vec<String>,
}

/// The commit that is measured, with a mark if the tree differs from it.
fn commit() -> String {
    let git = |args: &[&str]| sh::output(sh::cmd("git", args).current_dir(paths::repo()));
    match git(&["describe", "--always", "--dirty", "--abbrev=12"]) {
        Ok(text) => text.trim().to_owned(),
        Err(_) => "unknown".to_owned(),
    }
}
