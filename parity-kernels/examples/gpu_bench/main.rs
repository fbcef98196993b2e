//! What a CUDA card does with parity, against yardsticks taken in the same process.
//!
//! `cargo run --release -p parity-kernels --example gpu_bench [--quick] [--tune] [--json FILE]`
//!
//! Needs 3 GiB of memory and as much on the card, and a few minutes. Rates count bytes of *data* in 10^9 bytes per second
//! (parity comes on top), but where a line says "moved". Every figure is a median; pairs that are compared were run in
//! turn. All data is random and cold: the arena is larger than the caches and walked through from end to end.

mod latency;
mod rates;
mod report;

use std::process::ExitCode;

use parity_kernels::cuda::{DeviceInfo, GpuOptions, Selection, probe};
use parity_kernels::{Arena, BufRange};

use report::Report;

/// Stripes one behind the other in an arena: data, P, Q, each a chunk.
pub struct Stripes {
    pub arena: Arena,
    pub data: usize,
    pub chunk: usize,
    pub count: usize,
}

impl Stripes {
    /// As many as `bytes` hold, filled with noise.
    pub fn new(bytes: usize, data: usize, chunk: usize) -> Stripes {
        let count = bytes / ((data + 2) * chunk);
        let mut arena = Arena::new(count, (data + 2) * chunk).expect("memory for the stripes");
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for frame in 0..count {
            let all = arena.frame(frame);
            for word in arena.bytes_mut(all).chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
        }
        Stripes {
            arena,
            data,
            chunk,
            count,
        }
    }

    pub fn range(&self, stripe: usize, member: usize) -> BufRange {
        self.arena.slice(stripe, member * self.chunk, self.chunk)
    }

    pub fn sources(&self, stripe: usize) -> Vec<(BufRange, u8)> {
        (0..self.data)
            .map(|k| (self.range(stripe, k), k as u8))
            .collect()
    }

    pub fn p(&self, stripe: usize) -> BufRange {
        self.range(stripe, self.data)
    }

    pub fn q(&self, stripe: usize) -> BufRange {
        self.range(stripe, self.data + 1)
    }

    pub fn data_bytes(&self) -> f64 {
        (self.count * self.data * self.chunk) as f64
    }
}

/// The middle one.
pub fn median(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list[list.len() / 2]
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let json = arguments
        .iter()
        .position(|a| a == "--json")
        .and_then(|i| arguments.get(i + 1));
    let found = match probe() {
        Ok(found) => found,
        Err(why) => {
            eprintln!("gpu_bench: {why}");
            return ExitCode::FAILURE;
        }
    };
    let device: &DeviceInfo = match Selection::Auto.choose(&found.devices) {
        Ok(_) => &found.devices[0],
        Err(why) => {
            eprintln!("gpu_bench: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut report = Report::new(device, found.driver_version);
    let options = GpuOptions::default();
    let quick = has("--quick");
    let result = if has("--profile") {
        latency::profile(device, options)
    } else if has("--tune") {
        if has("--rates") {
            rates::tune(device, options)
        } else {
            latency::tune(device, options, &mut report)
        }
    } else {
        rates::bulk(device, options, quick, &mut report)
            .and_then(|link| latency::rings(device, options, quick, link, &mut report))
            .and_then(|()| latency::blocks(device, options, quick, &mut report))
    };
    if let Err(error) = &result {
        eprintln!("gpu_bench: {error}");
    }
    if let Some(path) = json
        && let Err(error) = std::fs::write(path, report.json())
    {
        eprintln!("gpu_bench: {path}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::from(result.is_err()))
}
