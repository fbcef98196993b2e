//! `powercut`: power cuts of whole arrays, out of one recording of a real load. `record` serves members that record every
//! write and flush in one order; `write` is a load that notes in the same order what it was promised; `cut` makes from the
//! recording what a cut at any event may leave on the members; `check` holds an array against the promises before the cut.
//!
//! Owns the command line and the random numbers.

mod cut;
mod ledger;
mod log;
mod nbd;
mod record;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Record an array's members, and cut the power at any point of the recording")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve recorded members at network block devices until told to quit.
    Record {
        #[arg(long)]
        log: PathBuf,
        #[arg(long)]
        socket: PathBuf,
        /// MiB of each member.
        #[arg(long)]
        mib: usize,
        nodes: Vec<PathBuf>,
    },
    /// Say one line to the recorder: mark TEXT, fail MEMBER, heal MEMBER, quit.
    Say {
        #[arg(long)]
        socket: PathBuf,
        words: Vec<String>,
    },
    /// Write versions and note which of them are safe.
    Write {
        /// A block device or a folder.
        target: PathBuf,
        #[arg(long)]
        socket: PathBuf,
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[arg(long, default_value_t = 3)]
        jobs: usize,
        /// MiB of each job.
        #[arg(long, default_value_t = 16)]
        mib: usize,
        #[arg(long, default_value_t = 512)]
        unit: usize,
        #[arg(long, default_value_t = 20)]
        pause_ms: u64,
    },
    /// Check an array against promises.
    Check {
        target: PathBuf,
        #[arg(long)]
        promises: PathBuf,
        /// MiB of each job, as for the load.
        #[arg(long, default_value_t = 16)]
        mib: usize,
        /// What `cut` wrote there: sectors of these rows on a member that is missing may be lost.
        #[arg(long, requires = "missing")]
        risk: Option<PathBuf>,
        /// LEVEL:MEMBERS:CHUNK_SECTORS:DATA_OFFSET_SECTORS:SLOT of an array in MD's own layout, left-symmetric.
        #[arg(long)]
        missing: Option<ledger::Missing>,
    },
    /// Make images; for each of them print a line and wait for one.
    Cut {
        log: PathBuf,
        #[arg(long)]
        members: usize,
        /// MiB of each member.
        #[arg(long)]
        mib: usize,
        /// Gets the marks before the cut.
        #[arg(long)]
        promises: PathBuf,
        #[arg(long, default_value_t = usize::MAX)]
        flushes: usize,
        #[arg(long, default_value_t = 0)]
        random: usize,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[arg(long, default_value_t = 512)]
        tear: usize,
        /// Not before this mark.
        #[arg(long, default_value = "armed")]
        from: String,
        /// This event only; the same image as in a run with the same seed.
        #[arg(long)]
        only: Option<usize>,
        /// Gets the member sectors of writes that may or may not be there.
        #[arg(long)]
        risk: Option<PathBuf>,
        /// From the mark on no flush counts, as with members that lie: to show that a check finds it.
        #[arg(long)]
        forget: bool,
        /// A whole number of sets.
        devices: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("powercut: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Record {
            log,
            socket,
            mib,
            nodes,
        } => record::run(&log, &socket, (mib as u64) << 20, &nodes),
        Verb::Say { socket, words } => record::Speaker::connect(&socket)?.say(&words.join(" ")),
        Verb::Write {
            target,
            socket,
            seconds,
            seed,
            jobs,
            mib,
            unit,
            pause_ms,
        } => ledger::write(&ledger::Load {
            target,
            socket,
            time: Duration::from_secs_f64(seconds),
            seed,
            jobs,
            bytes: mib << 20,
            unit,
            pause: Duration::from_millis(pause_ms),
        }),
        Verb::Check {
            target,
            promises,
            mib,
            risk,
            missing,
        } => {
            let excuse = missing
                .zip(risk)
                .map(|(missing, risk)| missing.excuse(&risk))
                .transpose()?;
            println!(
                "{}",
                ledger::check(&target, &promises, mib << 20, excuse.as_ref())?
            );
            Ok(())
        }
        Verb::Cut {
            log,
            members,
            mib,
            promises,
            flushes,
            random,
            seed,
            tear,
            from,
            only,
            risk,
            forget,
            devices,
        } => {
            let choice = cut::Choice {
                flushes,
                random,
                seed,
                tear,
                from,
                only,
                forget,
            };
            cut::run(
                &log,
                members,
                mib << 20,
                &choice,
                &promises,
                risk.as_deref(),
                &devices,
            )
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    /// Its finaliser: every bit of the result depends on every bit of the input.
    fn mix(value: u64) -> u64 {
        let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Less than `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Random::mix(self.0) % end
    }
}
