//! What one band of parity costs the processor when nothing else is done: the figures that name parity's share.
//!
//! Measured on one core: with all operands in cache, and as the engine finds them, a few bands after their bytes were copied
//! into buffers (by the frontend or by the kernel). Only the arithmetic is timed, not the copy.

use std::io;
use std::time::Instant;

use parity_kernels::calibrate::{Calibration, Op};
use parity_kernels::offload::ArenaJob;
use parity_kernels::{Arena, BufRange};
use raid_core::geometry::Geometry;
use raid_core::path::layout::Layout;

use crate::source::Source;

/// Which operation the bands of a load need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// P and Q of a whole band.
    Encode,
    /// P and Q follow the change of that many sectors of one chunk.
    Update { sectors: u32 },
    /// As many lost chunks of a whole band.
    Recover { lost: usize },
    /// Compare P and Q of a whole band.
    Check,
}

/// Time per band in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct BandCost {
    /// One band again and again.
    pub cached: f64,
    /// Bands whose bytes have just been copied.
    pub copied: f64,
}

/// Bands that the engine copies before it computes them.
const RUN: usize = 8;
/// Runs that take turns.
const RUNS: usize = 4;

/// Measures; takes a fraction of a second. `hot`: what is copied comes from the same bytes again and again.
///
/// # Errors
/// No memory.
pub fn band_cost(
    parity: &Calibration,
    geometry: &Geometry,
    work: Work,
    source: &Source,
    hot: bool,
) -> io::Result<BandCost> {
    let layout = Layout::new(geometry.clone());
    let mut arena = Arena::new(RUN * RUNS, layout.frame_bytes() as usize)?;
    let cached = median(|| {
        for _ in 0..RUN {
            one(parity, &layout, work, &mut arena, 0);
        }
    });
    // Parity that agrees with the data, or a check would end at the first difference.
    let agree = (work == Work::Check).then(|| agreeing(parity, &layout, &mut arena, source));
    let (mut run, mut at) = (0, 0);
    let mut copied: Vec<f64> = (0..64)
        .map(|_| {
            for frame in run * RUN..(run + 1) * RUN {
                let frame = arena.frame(frame);
                if at + frame.len > source.len() {
                    at = 0;
                }
                let bytes = agree.as_deref().unwrap_or(source.bytes(at, frame.len));
                arena.bytes_mut(frame).copy_from_slice(bytes);
                at += if hot { 0 } else { frame.len };
            }
            let start = Instant::now();
            for frame in run * RUN..(run + 1) * RUN {
                one(parity, &layout, work, &mut arena, frame);
            }
            run = (run + 1) % RUNS;
            start.elapsed().as_nanos() as f64 / RUN as f64
        })
        .collect();
    copied.sort_unstable_by(f64::total_cmp);
    Ok(BandCost {
        cached,
        copied: copied[copied.len() / 2],
    })
}

/// The bytes of a frame of random data with its P and Q.
fn agreeing(parity: &Calibration, layout: &Layout, arena: &mut Arena, source: &Source) -> Vec<u8> {
    let frame = arena.frame(0);
    let bytes = source.bytes(0, frame.len);
    arena.bytes_mut(frame).copy_from_slice(bytes);
    one(parity, layout, Work::Encode, arena, 0);
    arena.bytes(frame).to_vec()
}

/// The median of five stretches of at least 5 ms, per band.
fn median(mut run: impl FnMut()) -> f64 {
    let mut stretches: Vec<f64> = (0..5)
        .map(|_| {
            let (start, mut count) = (Instant::now(), 0);
            while start.elapsed().as_millis() < 5 {
                run();
                count += RUN;
            }
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    stretches.sort_unstable_by(f64::total_cmp);
    stretches[2]
}

fn one(parity: &Calibration, layout: &Layout, work: Work, arena: &mut Arena, frame: usize) {
    let rows = layout.rows as usize * 512;
    let d = usize::from(layout.data);
    let part = match work {
        Work::Update { sectors } => sectors as usize * 512,
        _ => rows,
    };
    let chunk = |slot: usize| arena.slice(frame, slot * rows, part);
    let data: Vec<(BufRange, u8)> = (0..d).map(|k| (chunk(k), k as u8)).collect();
    let p = Some(chunk(d));
    let q = (layout.members as usize > d + 1).then(|| chunk(d + 1));
    let job = match work {
        Work::Encode => ArenaJob::Encode { data: &data, p, q },
        Work::Check => ArenaJob::Check { data: &data, p, q },
        Work::Update { .. } => ArenaJob::Update {
            changed: &[(data[0].0, data[1].0, 0)],
            p,
            q,
        },
        Work::Recover { lost } => ArenaJob::Recover {
            data: &data[lost..],
            p,
            q: q.filter(|_| lost > 1),
            lost: &data[..lost],
        },
    };
    job.run(&parity.engine(Op::of(&job), job.data_bytes()), arena);
}
