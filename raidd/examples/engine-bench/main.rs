//! The engine in this process, without ublk and without drives: what a byte costs with parity on the processor and on a
//! device, and whether every byte is right when the device fails.
//!
//!     engine-bench                              the suite: cost per byte, in turns, table and JSON
//!     engine-bench --only full/6+2/cold         part of it
//!     engine-bench --verify --fault simulated   correctness
//!
//! Owns nothing but memory: 2 GiB and more for data that no cache holds.

mod calibrate;
mod clock;
mod compare;
mod devices;
mod frontend;
mod load;
mod members;
mod report;
mod rig;
mod source;
mod suite;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use parity_kernels::Engine;
use parity_kernels::calibrate::Calibration;

use devices::{Devices, Strike};
use members::Backing;
use parity_kernels::cuda::GpuOptions;
use raidd::lane::cost::Policy;
use raidd::lane::spread::blocks_each;
use rig::Variant;
use tracing_subscriber::EnvFilter;

/// Who does the parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ParityArg {
    /// The processor.
    Cpu,
    /// A device that is simulated by the processor: no figures, only correctness.
    Simulated,
    /// A GPU, every job of it.
    Gpu,
    /// Whoever the daemon would choose for a job, the processor or a GPU.
    Auto,
    /// Nobody: what everything else costs (not with --verify).
    None,
}

/// How jobs get to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WayArg {
    /// As the lane has it.
    BySize,
    /// All through the kernel that stays.
    Ring,
    /// All in batches.
    Batches,
}

/// What happens to the device in mid-load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FaultArg {
    /// Nothing.
    None,
    /// The simulated device dies for a while.
    Simulated,
    /// A kernel runs into a fault. Once, in one load: the driver does no more work in a process where that was.
    Trap,
    /// The CUDA context is destroyed.
    Destroy,
}

/// What a byte costs, and whether it is right.
#[derive(Parser, Debug)]
#[command(name = "engine-bench")]
struct Args {
    /// Who does the parity; several are measured in turns.
    #[arg(long, value_delimiter = ',', value_enum, default_values = ["cpu", "none"])]
    parity: Vec<ParityArg>,
    /// Check contents and parity instead of measuring.
    #[arg(long)]
    verify: bool,
    /// What happens in the middle of each load of --verify.
    #[arg(long, value_enum, default_value = "none")]
    fault: FaultArg,
    /// The only load of --verify: 0 whole, 1 two members missing, 2 sweep over wrong parity.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..3))]
    load: Option<u8>,
    /// Length of one measurement or load, in seconds.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Rounds of measurements at one rate.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Engines [default: a quarter of the cores, at least 1].
    #[arg(long)]
    queues: Option<u16>,
    /// Requests in flight in each engine.
    #[arg(long, default_value_t = 16)]
    depth: u16,
    /// Buffer memory of each engine in MiB.
    #[arg(long, default_value_t = 64)]
    buffer: u64,
    /// Only cases with this many members, P and Q included; for --verify the members [there: 8].
    #[arg(long)]
    members: Option<u16>,
    /// Chunk in KiB.
    #[arg(long, default_value_t = 64)]
    chunk: u32,
    /// Only hot data: writes take the same bytes again and again.
    #[arg(long, conflicts_with = "cold")]
    hot: bool,
    /// Only cold data: writes walk through more bytes than the last level cache holds.
    #[arg(long)]
    cold: bool,
    /// MiB that cold writes walk through [default: twice the last level cache, at least 1024].
    #[arg(long)]
    cold_mib: Option<u64>,
    /// GB of user data a second that all are held to [default: --load-factor of what the slowest can do].
    #[arg(long)]
    rate: Option<f64>,
    /// See --rate.
    #[arg(long, default_value_t = 0.8)]
    load_factor: f64,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Only these members: null, memory or a directory for files.
    #[arg(long, value_parser = Backing::parse)]
    backing: Option<Backing>,
    /// GPUs: auto, or numbers and uuids with commas between.
    #[arg(long, default_value = "auto")]
    gpu: String,
    /// Blocks that a lane takes on a GPU, a power of two [default: what the daemon would give it of 16].
    #[arg(long)]
    blocks: Option<u32>,
    /// Who carries jobs out on a GPU.
    #[arg(long, value_enum, default_value = "by-size")]
    way: WayArg,
    /// Pin the instructions that the processor does parity with.
    #[arg(long)]
    engine: Option<String>,
    /// Write all figures there as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Args {
    fn queues(&self) -> u16 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.queues.unwrap_or((cores / 4).clamp(1, 64) as u16)
    }

    fn gpu_options(&self) -> GpuOptions {
        let mut options = GpuOptions::default();
        options.ring.blocks = self.blocks.unwrap_or(blocks_each(self.queues().into(), 16));
        options.bulk = match self.way {
            WayArg::BySize => None,
            WayArg::Ring => Some(false),
            WayArg::Batches => Some(true),
        };
        options
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(EnvFilter::from_default_env())
        .init();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("engine-bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<bool, String> {
    let parity = Arc::new(match &args.engine {
        None => Calibration::measure(),
        Some(name) => Calibration::pinned_by_name(name).ok_or_else(|| {
            let names = Engine::NAMES.join(", ");
            format!("--engine {name}: not on this machine, or none of {names}")
        })?,
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let queues = args.queues();
    if queues == 0 || args.depth == 0 || args.chunk == 0 || !args.chunk.is_multiple_of(4) {
        return Err("--queues, --depth and --chunk (a multiple of 4) must not be 0".into());
    }
    if args.seconds <= 0.0 || args.rounds == 0 {
        return Err("--seconds and --rounds must be above 0".into());
    }
    let tsc = clock::tsc_per_ns();
    let facts = report::Facts {
        processor: clock::processor(),
        cores,
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned()),
        last_level_cache_mib: clock::last_level_cache().map(|b| b >> 20),
        tsc_ghz: tsc,
        parity: report::engines(&parity),
        queues,
        depth: args.depth,
        buffer_mib: args.buffer,
        devices: Vec::new(),
    };
    let all = variants(args, &parity)?;
    let mut facts = facts;
    for device in all.iter().filter_map(|way| way.2.as_ref()) {
        facts.devices.extend(device.describe());
    }
    facts.devices.dedup();
    match args.verify {
        true => verify_all(args, &all, queues, parity, facts),
        false => compare_all(args, &all, queues, parity, facts),
    }
}

/// A way to do parity: its name, what engines are told, and the devices if there are any.
type Way = (String, Variant, Option<Devices>);

fn variants(args: &Args, parity: &Arc<Calibration>) -> Result<Vec<Way>, String> {
    let mut all = Vec::new();
    let mut gpus = None;
    for which in &args.parity {
        all.push(match which {
            ParityArg::Cpu => ("cpu".to_owned(), Variant::Cpu, None),
            ParityArg::None => ("none".to_owned(), Variant::Without, None),
            ParityArg::Simulated => {
                let devices = Devices::simulated();
                let lanes = Variant::Device(devices.lanes_for_all());
                ("simulated".to_owned(), lanes, Some(devices))
            }
            ParityArg::Gpu | ParityArg::Auto => {
                let devices = match &gpus {
                    Some(devices) => devices,
                    None => gpus.insert(Devices::gpus(&args.gpu, args.gpu_options())?),
                };
                let (name, lanes) = match which {
                    ParityArg::Gpu => ("gpu", devices.lanes_for_all()),
                    _ => ("auto", devices.lanes(parity.clone(), Policy::default())),
                };
                let lanes = Variant::Device(lanes);
                (name.to_owned(), lanes, Some(devices.clone()))
            }
        });
    }
    Ok(all)
}

fn verify_all(
    args: &Args,
    ways: &[Way],
    queues: u16,
    parity: Arc<Calibration>,
    facts: report::Facts,
) -> Result<bool, String> {
    let strike = match args.fault {
        FaultArg::None => None,
        FaultArg::Simulated => Some(Strike::Simulated),
        FaultArg::Trap => Some(Strike::Trap),
        FaultArg::Destroy => Some(Strike::Destroy),
    };
    let plan = verify::Plan {
        members: args.members.unwrap_or(8),
        chunk: args.chunk * 2,
        stripes: 128,
        queues: queues.max(2),
        depth: args.depth,
        buffer: args.buffer << 20,
        seconds: args.seconds,
        parity,
        backing: args.backing.clone().unwrap_or(Backing::Memory),
        only: match strike {
            Some(Strike::Trap) => Some(usize::from(args.load.unwrap_or(0))),
            _ => args.load.map(usize::from),
        },
    };
    if plan.backing == Backing::Null {
        return Err("--verify: null members keep nothing".into());
    }
    let mut all = Vec::new();
    for (name, variant, devices) in ways {
        if matches!(variant, Variant::Without) {
            continue;
        }
        let fault = devices.as_ref().zip(strike);
        eprintln!(
            "{name}, {}",
            fault.map_or("no fault".into(), |(_, s)| s.to_string())
        );
        all.extend(verify::run(&plan, (name, variant), fault)?);
    }
    if all.is_empty() {
        return Err("--verify: nothing left to check; name cpu, gpu, auto or simulated".into());
    }
    report::findings(&facts, &all, args.json.as_deref())?;
    Ok(all.iter().all(verify::Findings::good))
}

fn compare_all(
    args: &Args,
    ways: &[Way],
    queues: u16,
    parity: Arc<Calibration>,
    facts: report::Facts,
) -> Result<bool, String> {
    let hot = match (args.hot, args.cold) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let wanted = |case: &compare::Case| {
        args.only
            .as_ref()
            .is_none_or(|text| case.name.contains(text))
            && args.members.is_none_or(|n| case.data + 2 == n)
            && args.backing.as_ref().is_none_or(|b| case.backing == *b)
            && (hot.is_none() || case.hot.is_none() || case.hot == hot)
    };
    let mut cases = suite::cases(args.chunk * 2, args.backing.as_ref());
    cases.retain(wanted);
    if cases.is_empty() {
        return Err("no case is left; see --only, --members, --backing".into());
    }
    let cache = clock::last_level_cache().unwrap_or(0);
    let cold = args.cold_mib.map_or((cache * 2).max(1 << 30), |m| m << 20);
    let how = compare::Method {
        queues,
        depth: args.depth,
        buffer: args.buffer << 20,
        member_bytes: 64 << 20,
        seconds: args.seconds,
        rounds: args.rounds,
        rate: args.rate.map(|gb| gb * 1e9),
        load_factor: args.load_factor,
        tsc: facts.tsc_ghz,
        source: Arc::new(source::Source::new(cold as usize)),
        parity,
    };
    let variants: Vec<_> = ways.iter().map(|w| (w.0.clone(), w.1.clone())).collect();
    let mut rows = Vec::new();
    for case in &cases {
        eprintln!("{}", case.name);
        rows.extend(compare::case(case, &variants, &how)?);
    }
    report::rows(&facts, &rows, args.json.as_deref())?;
    // Null members have read errors of their own, see the report.
    let real = |r: &&compare::Row| r.members != Backing::Null.name();
    Ok(rows.iter().filter(real).all(|r| r.errors == 0))
}
