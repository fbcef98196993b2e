//! `raidctl bench`: the command line of [`crate::bench`], and the way out at Ctrl-C.

use std::cell::Cell;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::time::Duration;

use clap::{Args, Subcommand};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::exit::{self, Failure};
use super::show;
use crate::bench::{self, BenchError, Plan, job::Job};
use crate::units::parse_size;

/// `raidctl bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure
    #[command(subcommand)]
    pub what: What,
}

/// What there is to measure.
#[derive(Debug, Subcommand)]
pub enum What {
    /// How fast each engine does each parity job, in GB/s of data bytes; needs no daemon and no drives
    Parity(Parity),
}

/// `raidctl bench parity`
#[derive(Debug, Args)]
pub struct Parity {
    /// Bytes of each chunk that a job covers
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = size, default_values = ["4K", "64K", "1M"])]
    pub bytes: Vec<u64>,
    /// Data members
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values = ["6"])]
    pub data: Vec<u64>,
    /// Threads at work at the same time
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values = ["1"])]
    pub threads: Vec<u64>,
    /// Engines; all that this machine has when absent, 'gpu' among them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub engine: Vec<String>,
    /// Jobs; all when absent
    #[arg(long, value_name = "JOB,...", value_delimiter = ',', value_enum)]
    pub job: Vec<Job>,
    /// Rounds per figure
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Memory for all threads together, and nothing else of note; when absent, four times the largest cache, but 1G to 4G and
    /// at most half of what is available
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Let CPU engines store their results past the caches
    #[arg(long)]
    pub streaming: bool,
    /// Few and short rounds in little memory: seconds instead of a minute, and figures that say little
    #[arg(long)]
    pub quick: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text, 1).map(|b| b.0).map_err(|e| e.to_string())
}

impl Parity {
    fn plan(&self) -> Plan {
        let (rounds, round_ms, memory) = match self.quick {
            true => (3, 2, 64 << 20),
            false => (7, 20, bench::cold_memory()),
        };
        Plan {
            engines: self.engine.iter().map(|e| e.to_ascii_lowercase()).collect(),
            jobs: self.job.clone(),
            bytes: self.bytes.clone(),
            data: self.data.clone(),
            threads: self.threads.clone(),
            rounds: self.rounds.unwrap_or(rounds),
            round: Duration::from_millis(round_ms),
            memory: self.memory.unwrap_or(memory),
            streaming: self.streaming,
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        let message = error.to_string();
        match error {
            BenchError::Usage(_) | BenchError::Nothing { .. } => Failure::usage(message),
            BenchError::Memory { .. } => Failure::new(exit::FAILED, "memory", message),
            BenchError::Device { .. } => Failure::new(exit::FAILED, "device", message),
            BenchError::Wrong { .. } => Failure::new(exit::FAILED, "wrong_parity", message),
        }
    }
}

/// Exit status of a program that Ctrl-C ended, as shells have it.
const INTERRUPTED: u8 = 130;
/// The same for one whose reader went away.
const UNREAD: u8 = 141;

/// Measures and prints.
pub fn run(args: &Bench, json: bool) -> exit::Outcome {
    let What::Parity(args) = &args.what;
    let plan = args.plan();
    bench::check(&plan)?;
    let interrupt = Interrupt::new()?;
    let terminal = std::io::stderr().is_terminal();
    let report = bench::run(&plan, &|| interrupt.came(), &|what| {
        if terminal {
            show::say(format_args!("measuring: {what}"));
        }
    })?;
    if interrupt.unread.get() {
        return Ok(UNREAD);
    }
    if json {
        let mut value = serde_json::to_value(&report)
            .map_err(|e| Failure::new(exit::FAILED, "json", e.to_string()))?;
        value["counted"] = bench::report::COUNTED.into();
        show::json(&value);
    } else {
        show::line(report.text().trim_end());
    }
    match bench::unmet(&plan, &report) {
        _ if report.interrupted => Ok(INTERRUPTED),
        Some(error) => Err(error.into()),
        None => Ok(exit::DONE),
    }
}

/// SIGINT and SIGTERM, looked for between rounds: a GPU is let go of in an orderly way, and what was measured is shown. And
/// whether anybody is left to be shown it: output comes at the end only, so that writing would tell too late.
struct Interrupt {
    signals: SignalFd,
    came: Cell<bool>,
    unread: Cell<bool>,
}

impl Interrupt {
    fn new() -> Result<Interrupt, Failure> {
        let broken = |e| {
            Failure::new(
                exit::FAILED,
                "signals",
                format!("watching for signals: {e}"),
            )
        };
        let set = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGPIPE]);
        // Before the first thread, so that all inherit it.
        set.thread_block().map_err(broken)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&set, flags).map_err(broken)?;
        Ok(Interrupt {
            signals,
            came: Cell::new(false),
            unread: Cell::new(false),
        })
    }

    fn came(&self) -> bool {
        match self.signals.read_signal() {
            Ok(Some(signal)) if signal.ssi_signo == Signal::SIGPIPE as u32 => self.unread.set(true),
            Ok(Some(_)) => self.came.set(true),
            _ if unread() => self.unread.set(true),
            _ => {}
        }
        self.came.get() || self.unread.get()
    }
}

/// Whether standard output is a pipe or socket that nobody can read from any more.
fn unread() -> bool {
    let stdout = std::io::stdout();
    let mut wanted = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let asked = poll(&mut wanted, PollTimeout::ZERO);
    let gone = |flags: PollFlags| flags.contains(PollFlags::POLLERR);
    asked.is_ok() && wanted[0].revents().is_some_and(gone)
}
