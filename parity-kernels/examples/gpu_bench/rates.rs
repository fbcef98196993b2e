//! Large launches: over host memory against the bus, over the card's own memory against a copy there.

use parity_kernels::cuda::yardstick::{Place, Timed, Yardstick};
use parity_kernels::cuda::{DeviceInfo, Gpu, GpuOptions};
use parity_kernels::offload::{ArenaJob, LaneError};
use parity_kernels::{BufRange, Engine};

use super::report::Report;
use super::{Stripes, median};

const CHUNK: usize = 64 << 10;

/// What a job of one stripe is made of.
struct Parts {
    data: Vec<(BufRange, u8)>,
    rest: Vec<(BufRange, u8)>,
    lost: Vec<(BufRange, u8)>,
    p: Option<BufRange>,
    q: Option<BufRange>,
}

fn parts(stripes: &Stripes) -> Vec<Parts> {
    (0..stripes.count)
        .map(|stripe| {
            let data = stripes.sources(stripe);
            let (x, y) = (stripe % stripes.data, (stripe + 1) % stripes.data);
            let is_lost =
                |(_, exp): &&(BufRange, u8)| usize::from(*exp) == x || usize::from(*exp) == y;
            Parts {
                rest: data.iter().filter(|d| !is_lost(d)).copied().collect(),
                lost: data.iter().filter(is_lost).copied().collect(),
                p: Some(stripes.p(stripe)),
                q: Some(stripes.q(stripe)),
                data,
            }
        })
        .collect()
}

impl Parts {
    fn encode(&self) -> ArenaJob<'_> {
        ArenaJob::Encode {
            data: &self.data,
            p: self.p,
            q: self.q,
        }
    }

    fn check(&self) -> ArenaJob<'_> {
        ArenaJob::Check {
            data: &self.data,
            p: self.p,
            q: self.q,
        }
    }

    fn recover(&self) -> ArenaJob<'_> {
        ArenaJob::Recover {
            data: &self.rest,
            p: self.p,
            q: self.q,
            lost: &self.lost,
        }
    }
}

/// Every stripe of the arena has the parity of its data. Samples, since the CPU is slower.
fn verify(stripes: &Stripes, all: &[Parts]) -> Result<(), LaneError> {
    for part in all.iter().step_by(all.len().div_ceil(200)) {
        let found = stripes
            .arena
            .check(&Engine::detect(), &part.data, part.p, part.q);
        if found.any() {
            return Err(LaneError::new(format!(
                "the card made wrong parity: {found:?}"
            )));
        }
    }
    Ok(())
}

fn no_mismatch(timed: &Timed) -> Result<(), LaneError> {
    match timed.mismatches.iter().any(|m| m.any()) {
        true => Err(LaneError::new("a check of right parity failed")),
        false => Ok(()),
    }
}

/// Answers the rate at which a trivial kernel reads host memory, bytes per second.
pub fn bulk(
    device: &DeviceInfo,
    options: GpuOptions,
    quick: bool,
    report: &mut Report,
) -> Result<f64, LaneError> {
    let gpu = Gpu::new(device.clone(), options);
    let yard = Yardstick::new(&gpu)?;
    let (rounds, bytes) = if quick { (2, 1 << 29) } else { (5, 1 << 30) };
    let most = device.multiprocessors * 4;
    report.heading("(a) encode P+Q over pinned host memory, in one launch");
    let mut links = Vec::new();
    for data in [4, 6, 22] {
        let mut stripes = Stripes::new(bytes, data, CHUNK);
        let all = parts(&stripes);
        let jobs: Vec<_> = all.iter().map(Parts::encode).collect();
        let (mut reads, mut brings, mut encodes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            reads.extend(yard.read(&stripes.arena, device.multiprocessors * 2, 3)?);
            brings.extend(yard.bring(&stripes.arena, 2)?);
            let timed = yard.jobs(&mut stripes.arena, Place::Host, &jobs, 16 << 10, most, 3)?;
            encodes.extend(timed.seconds);
        }
        verify(&stripes, &all)?;
        let link = stripes.arena.len() as f64 / median(reads);
        let copy = stripes.arena.len() as f64 / median(brings);
        let rate = stripes.data_bytes() / median(encodes);
        report.line(
            format!("{data}+2: trivial kernel reads"),
            link / 1e9,
            "GB/s",
        );
        report.line(format!("{data}+2: copy engine brings"), copy / 1e9, "GB/s");
        report.line(format!("{data}+2: encode"), rate / 1e9, "GB/s");
        report.goal(
            format!("{data}+2: encode / read"),
            rate / link,
            Some(0.95),
            None,
        );
        links.push(link);
    }
    report.heading("(b) in the card's memory; moved = read + written");
    let total: usize = if quick { 1 << 30 } else { 2 << 30 };
    for data in [4, 6, 22] {
        let mut stripes = Stripes::new(total, data, CHUNK);
        let all = parts(&stripes);
        let stripe = stripes.count as f64 * CHUNK as f64;
        let (mut copies, mut kernels) = (Vec::new(), Vec::new());
        let (mut encodes, mut checks, mut recovers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (copy, kernel) = yard.copy(total, 5)?;
            copies.extend(copy);
            kernels.extend(kernel);
            let mut run = |jobs: &[ArenaJob]| {
                yard.jobs(&mut stripes.arena, Place::Device, jobs, 16 << 10, most, 5)
            };
            let jobs: Vec<_> = all.iter().map(Parts::encode).collect();
            encodes.extend(run(&jobs)?.seconds);
            let jobs: Vec<_> = all.iter().map(Parts::check).collect();
            let timed = run(&jobs)?;
            no_mismatch(&timed)?;
            checks.extend(timed.seconds);
            let jobs: Vec<_> = all.iter().map(Parts::recover).collect();
            recovers.extend(run(&jobs)?.seconds);
        }
        verify(&stripes, &all)?;
        let copy = 2.0 * total as f64 / median(copies);
        let kernel = 2.0 * total as f64 / median(kernels);
        report.line(
            format!("{data}+2: driver's copy, moved"),
            copy / 1e9,
            "GB/s",
        );
        report.line(
            format!("{data}+2: trivial copy kernel, moved"),
            kernel / 1e9,
            "GB/s",
        );
        let d = data as f64;
        for (name, chunks, seconds) in [
            ("encode", d + 2.0, encodes),
            ("check", d + 2.0, checks),
            ("recover two", d + 2.0, recovers),
        ] {
            let moved = chunks * stripe / median(seconds);
            report.line(format!("{data}+2: {name}, moved"), moved / 1e9, "GB/s");
            report.goal(
                format!("{data}+2: {name} / copy"),
                moved / copy,
                Some(0.85),
                None,
            );
        }
    }
    Ok(median(links))
}

/// Encode over host memory and recover on the card with all sorts of launches, to find good ones.
pub fn tune(device: &DeviceInfo, options: GpuOptions) -> Result<(), LaneError> {
    let gpu = Gpu::new(device.clone(), options);
    let yard = Yardstick::new(&gpu)?;
    let mut stripes = Stripes::new(1 << 30, 4, CHUNK);
    let all = parts(&stripes);
    let encode: Vec<_> = all.iter().map(Parts::encode).collect();
    let recover: Vec<_> = all.iter().map(Parts::recover).collect();
    for blocks in [1, 2, 4, 8].map(|per| per * device.multiprocessors) {
        for unit in [4 << 10, 16 << 10, 64 << 10] {
            let timed = yard.jobs(&mut stripes.arena, Place::Host, &encode, unit, blocks, 5)?;
            let host = stripes.data_bytes() / median(timed.seconds) / 1e9;
            let timed = yard.jobs(&mut stripes.arena, Place::Device, &recover, unit, blocks, 5)?;
            let card = stripes.arena.len() as f64 / median(timed.seconds) / 1e9;
            println!(
                "  4+2 blocks {blocks} unit {unit}: host encode {host:.2} GB/s, recover two moved {card:.0} GB/s"
            );
        }
    }
    Ok(())
}
