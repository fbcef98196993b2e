//! Cost per byte of the same load with different ways to do parity, measured in turns at one throughput.
//!
//! For each case every variant first runs flat out. Then all are held to the same rate, and run one after another, round by
//! round, in alternating order, each time as a new array on the same members. What is compared is processor time of the
//! whole process, kernel and helper threads included, per byte of the requests. Spinning counts as time; sleep does not.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parity_kernels::calibrate::Calibration;
use raid_core::geometry::{Geometry, Level};
use raid_core::path::types::BAND_SECTORS;
use serde::Serialize;

use crate::calibrate::{self, Work};
use crate::load::Kind;
use crate::members::{Backing, Members};
use crate::rig::{Rig, Setup, Variant, Window};
use crate::source::Source;

/// MD's layout with P and Q always on the last two members, so that they can be left out.
const PARITY_LAST: u32 = 5;

/// One load on one array.
#[derive(Clone, Debug)]
pub struct Case {
    /// For the table.
    pub name: String,
    /// Data members; P and Q come on top.
    pub data: u16,
    /// Chunk in sectors.
    pub chunk: u32,
    /// What members are made of.
    pub backing: Backing,
    /// Requests.
    pub kind: Kind,
    /// The bands are swept.
    pub sweep: bool,
    /// Writes take the same bytes again and again; none where the load writes nothing.
    pub hot: Option<bool>,
    /// Missing members.
    pub missing: Vec<u16>,
    /// What parity has to do.
    pub work: Work,
}

impl Case {
    /// Its array, with members of about that many bytes.
    pub fn geometry(&self, member_bytes: u64) -> Result<Geometry, String> {
        let chunk = u64::from(self.chunk);
        let sectors = (member_bytes / 512 / chunk).max(64) * chunk;
        Geometry::parity(
            Level::Raid6,
            PARITY_LAST,
            self.data + 2,
            self.chunk,
            sectors,
        )
        .map_err(|e| e.to_string())
    }
}

/// How to measure.
pub struct Method {
    /// Engines.
    pub queues: u16,
    /// Requests in flight in each.
    pub depth: u16,
    /// Buffer memory of each, in bytes.
    pub buffer: u64,
    /// Bytes of a member.
    pub member_bytes: u64,
    /// Length of one measurement, in s.
    pub seconds: f64,
    /// Rounds.
    pub rounds: usize,
    /// The rate in bytes a second, or this part of what the slowest variant can do.
    pub rate: Option<f64>,
    /// See `rate`.
    pub load_factor: f64,
    /// Ticks of the time stamp counter per ns.
    pub tsc: f64,
    /// Bytes to write.
    pub source: Arc<Source>,
    /// Instructions for parity.
    pub parity: Arc<Calibration>,
}

/// Median, least and most.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of some values.
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_unstable_by(f64::total_cmp);
        match values.as_slice() {
            [] => Spread::default(),
            all => Spread {
                median: (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0,
                least: all[0],
                most: all[all.len() - 1],
            },
        }
    }
}

/// A variant in a case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// What members are made of.
    pub members: &'static str,
    /// Where the bytes of writes are.
    pub data: &'static str,
    /// Who does parity.
    pub variant: String,
    /// Flat out, in GB of user data a second.
    pub most_gb_s: f64,
    /// Reference cycles per byte flat out, whole process.
    pub most_cycles_per_byte: f64,
    /// The rate that all variants were held to, in GB a second.
    pub rate_gb_s: f64,
    /// What it then did.
    pub gb_s: Spread,
    /// Reference cycles per byte of user data, whole process.
    pub cycles_per_byte: Spread,
    /// The same, engine threads only.
    pub engine_cycles_per_byte: Spread,
    /// This variant less processor parity, round by round, in cycles per byte.
    pub less_cpu: Option<Spread>,
    /// Latency of requests in us: half of them, 99 of 100.
    pub latency_us: (f64, f64),
    /// Bands of parity work per GB of user data.
    pub bands_per_gb: f64,
    /// Cycles per byte that the processor needs for that parity alone: in cache, just copied.
    pub parity_cycles_per_byte: (f64, f64),
    /// The part of that in this row's cycles, with processor parity only.
    pub parity_share: Option<(f64, f64)>,
    /// The same by the difference to the row without parity, if there is one.
    pub parity_share_by_difference: Option<f64>,
    /// Part of the parity jobs that the device did.
    pub on_device: f64,
    /// What the engines counted about their lanes, over all rounds.
    pub lane: BTreeMap<&'static str, u64>,
    /// Requests that failed in any run.
    pub errors: u64,
}

struct Seen {
    window: Window,
    errors: u64,
}

/// Measures one case with all variants that suit it.
///
/// # Errors
/// What went wrong, in words.
pub fn case(case: &Case, variants: &[(String, Variant)], how: &Method) -> Result<Vec<Row>, String> {
    let geometry = case.geometry(how.member_bytes)?;
    let text = |e: io::Error| format!("{}: {e}", case.name);
    let bytes = geometry.member_sectors() * 512;
    let members = Members::new(&case.backing, geometry.members(), bytes).map_err(text)?;
    let cost = calibrate::band_cost(
        &how.parity,
        &geometry,
        case.work,
        &how.source,
        case.hot.unwrap_or(true),
    )
    .map_err(text)?;
    let run = |variant: &Variant, rate: Option<f64>, seed: u64| -> Result<Seen, String> {
        let mut missing = case.missing.clone();
        if matches!(variant, Variant::Without) {
            missing.extend([case.data, case.data + 1]);
        }
        let setup = Setup {
            geometry: &geometry,
            members: &members,
            missing,
            synced: u64::MAX,
            queues: how.queues,
            depth: how.depth,
            buffer: how.buffer,
            kind: case.kind,
            sweep: case.sweep,
            source: &how.source,
            hot: case.hot.unwrap_or(true),
            rate,
            model: None,
            seed,
            variant,
            parity: &how.parity,
        };
        let rig = Rig::start(&setup).map_err(text)?;
        rig.lanes_open()?;
        std::thread::sleep(Duration::from_secs_f64((how.seconds / 4.0).clamp(0.1, 0.5)));
        let before = rig.read();
        std::thread::sleep(Duration::from_secs_f64(how.seconds));
        let window = rig.since(&before);
        let end = rig.stop()?;
        Ok(Seen {
            window,
            errors: end.errors,
        })
    };
    // Without parity nothing is left of a load that is made of it.
    let suits = |v: &Variant| case.work == Work::Encode || !matches!(v, Variant::Without);
    let variants: Vec<_> = variants.iter().filter(|(_, v)| suits(v)).collect();
    let mut most = Vec::new();
    for (_, variant) in &variants {
        most.push(run(variant, None, 1)?);
    }
    let slowest = most
        .iter()
        .map(|s| s.window.bytes as f64 / s.window.seconds);
    let rate = how
        .rate
        .unwrap_or(slowest.fold(f64::MAX, f64::min) * how.load_factor);
    let mut seen: Vec<Vec<Seen>> = variants.iter().map(|_| Vec::new()).collect();
    for round in 0..how.rounds {
        let mut order: Vec<usize> = (0..variants.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for i in order {
            seen[i].push(run(&variants[i].1, Some(rate), 2 + round as u64)?);
        }
    }
    let per_byte = |s: &Seen| s.window.process_ns as f64 * how.tsc / s.window.bytes.max(1) as f64;
    let cpu = variants
        .iter()
        .position(|(_, v)| matches!(v, Variant::Cpu))
        .map(|i| seen[i].iter().map(per_byte).collect::<Vec<f64>>());
    let rows = variants
        .iter()
        .zip(&most)
        .zip(&seen)
        .map(|((v, most), all)| {
            let spread = |of: &dyn Fn(&Seen) -> f64| Spread::of(all.iter().map(of).collect());
            let of_cpu = cpu.iter().flatten();
            let less = all.iter().zip(of_cpu).map(|(s, cpu)| per_byte(s) - cpu);
            let bytes: u64 = all.iter().map(|s| s.window.bytes).sum();
            let swept = u64::from(case.data) * u64::from(case.chunk.min(BAND_SECTORS)) * 512;
            let bands: u64 = all.iter().map(|s| bands(&s.window, case.work, swept)).sum();
            let bands_per_byte = bands as f64 / bytes.max(1) as f64;
            let middle = |part: f64| {
                let values = all
                    .iter()
                    .map(|s| s.window.latency.quantile(part) as f64 / 1e3);
                Spread::of(values.collect()).median
            };
            let sum = |name: &str| all.iter().map(|s| s.window.counter(name)).sum::<u64>();
            Row {
                case: case.name.clone(),
                members: case.backing.name(),
                data: match case.hot {
                    Some(true) => "hot",
                    Some(false) => "cold",
                    None => "-",
                },
                variant: v.0.clone(),
                most_gb_s: most.window.bytes as f64 / most.window.seconds / 1e9,
                most_cycles_per_byte: per_byte(most),
                rate_gb_s: rate / 1e9,
                gb_s: spread(&|s| s.window.bytes as f64 / s.window.seconds / 1e9),
                cycles_per_byte: spread(&per_byte),
                engine_cycles_per_byte: spread(&|s| {
                    s.window.engines_ns as f64 * how.tsc / s.window.bytes.max(1) as f64
                }),
                less_cpu: (cpu.is_some() && !matches!(v.1, Variant::Cpu))
                    .then(|| Spread::of(less.collect())),
                latency_us: (middle(0.5), middle(0.99)),
                bands_per_gb: bands_per_byte * 1e9,
                parity_share: None,
                parity_share_by_difference: None,
                parity_cycles_per_byte: match v.1 {
                    Variant::Without => (0.0, 0.0),
                    _ => (
                        bands_per_byte * cost.cached * how.tsc,
                        bands_per_byte * cost.copied * how.tsc,
                    ),
                },
                on_device: sum("lane_jobs") as f64 / sum("parity_jobs").max(1) as f64,
                lane: lane_counters(all),
                errors: all.iter().map(|s| s.errors).sum::<u64>() + most.errors,
            }
        });
    let mut rows: Vec<Row> = rows.collect();
    name_shares(&mut rows, &variants);
    Ok(rows)
}

/// The share of parity in the rows of processor parity.
fn name_shares(rows: &mut [Row], variants: &[&(String, Variant)]) {
    let without = variants
        .iter()
        .position(|(_, v)| matches!(v, Variant::Without));
    let without = without.map(|i| rows[i].cycles_per_byte.median);
    for (row, (_, variant)) in rows.iter_mut().zip(variants) {
        if !matches!(variant, Variant::Cpu) {
            continue;
        }
        let all = row.cycles_per_byte.median;
        let (a, b) = row.parity_cycles_per_byte;
        row.parity_share = Some((a.min(b) / all, a.max(b) / all));
        row.parity_share_by_difference = without.map(|rest| 1.0 - rest / all);
    }
}

/// What the engines say about parity jobs and lanes.
fn lane_counters(all: &[Seen]) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for (name, value) in all.iter().flat_map(|s| &s.window.counters) {
        if name.starts_with("lane_") || name.starts_with("parity_") {
            *sums.entry(*name).or_insert(0) += value;
        }
    }
    sums
}

/// How many jobs of that kind the engines did; `swept` is the data of a band in bytes.
fn bands(window: &Window, work: Work, swept: u64) -> u64 {
    match work {
        Work::Encode => window.counter("full_bands") + window.counter("encode_bands"),
        Work::Update { .. } => window.counter("update_bands"),
        Work::Recover { .. } => window.counter("decoded_bands"),
        // Of this the bytes tell.
        Work::Check => window.bytes / swept,
    }
}
