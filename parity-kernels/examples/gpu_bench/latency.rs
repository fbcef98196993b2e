//! The ring: one job at a time against starting a kernel for it and against the CPU, and as many as go from one thread.

use std::time::Instant;

use parity_kernels::Engine;
use parity_kernels::cuda::yardstick::Yardstick;
use parity_kernels::cuda::{CudaLane, DeviceInfo, Gpu, GpuOptions};
use parity_kernels::offload::{ArenaJob, Done, Lane, LaneError, Refusal};

use super::report::Report;
use super::{Stripes, median};

fn submit(
    lane: &mut CudaLane,
    stripes: &Stripes,
    stripe: usize,
    token: u32,
) -> Result<(), Refusal> {
    let mut data = [Default::default(); 32];
    for (k, place) in data[..stripes.data].iter_mut().enumerate() {
        *place = (stripes.range(stripe, k), k as u8);
    }
    let job = ArenaJob::Encode {
        data: &data[..stripes.data],
        p: Some(stripes.p(stripe)),
        q: Some(stripes.q(stripe)),
    };
    lane.submit(token, &job)
}

fn one(
    lane: &mut CudaLane,
    stripes: &mut Stripes,
    stripe: usize,
    done: &mut Vec<Done>,
) -> Result<f64, LaneError> {
    let start = Instant::now();
    while submit(lane, stripes, stripe, 0).is_err() {
        lane.settle()?;
        lane.poll(&mut stripes.arena, done)?;
    }
    done.clear();
    while done.is_empty() {
        lane.poll(&mut stripes.arena, done)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

fn verify(stripes: &Stripes, touched: usize) -> Result<(), LaneError> {
    for stripe in (0..touched.min(stripes.count)).step_by(37) {
        let found = stripes.arena.check(
            &Engine::detect(),
            &stripes.sources(stripe),
            Some(stripes.p(stripe)),
            Some(stripes.q(stripe)),
        );
        if found.any() {
            return Err(LaneError::new(format!(
                "wrong parity in stripe {stripe}: {found:?}"
            )));
        }
    }
    Ok(())
}

/// Median microseconds of the ring, of launch and wait, of launch and asking, and of the CPU, for cold stripes of 6 data and two parities.
fn compare(gpu: &Gpu, stripes: &mut Stripes, rounds: usize) -> Result<[f64; 4], LaneError> {
    let yard = Yardstick::new(gpu)?;
    let mut lane = gpu.lane(stripes.arena.memory())?;
    let mut done = Vec::with_capacity(64);
    let (mut ring, mut launch) = (Vec::new(), Vec::new());
    let (mut ask, mut cpu) = (Vec::new(), Vec::new());
    let engine = Engine::detect();
    let batch = 200.min(stripes.count / 4);
    let mut next = 0;
    let mut stripe = || {
        // One behind the other, as a sequential write fills buffers.
        next = (next + 1) % stripes.count;
        next
    };
    let order: Vec<usize> = (0..rounds * batch * 3).map(|_| stripe()).collect();
    let mut order = order.into_iter();
    one(&mut lane, stripes, 0, &mut done)?;
    for _ in 0..rounds {
        for _ in 0..batch {
            let stripe = order.next().expect("enough");
            ring.push(one(&mut lane, stripes, stripe, &mut done)?);
            if stripe.is_multiple_of(16) {
                let found = stripes.arena.check(
                    &engine,
                    &stripes.sources(stripe),
                    Some(stripes.p(stripe)),
                    Some(stripes.q(stripe)),
                );
                if found.any() {
                    return Err(LaneError::new(format!("wrong parity: {found:?}")));
                }
            }
        }
        lane.park();
        let stripe = order.next().expect("enough");
        let data = stripes.sources(stripe);
        let job = ArenaJob::Encode {
            data: &data,
            p: Some(stripes.p(stripe)),
            q: Some(stripes.q(stripe)),
        };
        launch.extend(yard.launch_and_wait(&mut stripes.arena, &job, 4096, false, batch)?);
        ask.extend(yard.launch_and_wait(&mut stripes.arena, &job, 4096, true, batch)?);
        for _ in 0..batch {
            let stripe = order.next().expect("enough");
            let data = stripes.sources(stripe);
            let (p, q) = (stripes.p(stripe), stripes.q(stripe));
            let start = Instant::now();
            stripes.arena.encode(&engine, &data, Some(p), Some(q));
            cpu.push(start.elapsed().as_secs_f64());
        }
    }
    Box::new(lane).close()?;
    Ok([ring, launch, ask, cpu].map(|times| median(times) * 1e6))
}

/// Bytes of data per second from one producer with at most `depth` jobs in flight; and jobs per second.
fn stream(
    gpu: &Gpu,
    stripes: &mut Stripes,
    depth: usize,
    seconds: f64,
) -> Result<(f64, f64), LaneError> {
    let mut lane = gpu.lane(stripes.arena.memory())?;
    let mut done = Vec::with_capacity(1024);
    one(&mut lane, stripes, 0, &mut done)?;
    let (mut sent, mut finished) = (0usize, 0usize);
    let start = Instant::now();
    let mut elapsed = 0.0;
    while elapsed < seconds {
        for _ in 0..16 {
            if sent - finished >= depth
                || submit(&mut lane, stripes, sent % stripes.count, 0).is_err()
            {
                break;
            }
            sent += 1;
        }
        done.clear();
        lane.poll(&mut stripes.arena, &mut done)?;
        finished += done.len();
        elapsed = start.elapsed().as_secs_f64();
    }
    let (count, time) = (finished, elapsed);
    while finished < sent {
        done.clear();
        lane.poll(&mut stripes.arena, &mut done)?;
        finished += done.len();
    }
    Box::new(lane).close()?;
    verify(stripes, sent)?;
    let rate = (count * stripes.data * stripes.chunk) as f64 / time;
    Ok((rate, count as f64 / time))
}

/// Parts (c) and (d). `link`: what a trivial kernel reads, bytes per second.
pub fn rings(
    device: &DeviceInfo,
    options: GpuOptions,
    quick: bool,
    link: f64,
    report: &mut Report,
) -> Result<(), LaneError> {
    let bytes = if quick { 1 << 28 } else { 1 << 30 };
    let rounds = if quick { 3 } else { 9 };
    report.heading("(c) one stripe of 6+2 at a time, cold: ring, launch and wait, one core");
    for chunk in [4 << 10, 16 << 10, 64 << 10] {
        let gpu = Gpu::new(device.clone(), options);
        let mut stripes = Stripes::new(bytes, 6, chunk);
        let [ring, launch, ask, cpu] = compare(&gpu, &mut stripes, rounds)?;
        let size = format!("6 x {} KiB", chunk >> 10);
        report.line(format!("{size}: ring"), ring, "us");
        report.line(format!("{size}: launch and wait"), launch, "us");
        report.line(format!("{size}: launch and ask"), ask, "us");
        report.line(format!("{size}: CPU, cold"), cpu, "us");
        let goal = (chunk == 4 << 10).then_some(0.45);
        report.goal(format!("{size}: ring / launch"), ring / launch, None, goal);
        let goal = (chunk >= 16 << 10).then_some(1.0);
        report.goal(format!("{size}: ring / CPU"), ring / cpu, None, goal);
    }
    report.heading("(d) one producer, 16 blocks: fraction of the link");
    for (chunk, least) in [(4 << 10, 0.85), (16 << 10, 0.95), (64 << 10, 0.95)] {
        let mut options = options;
        options.ring.blocks = 16;
        options.ring.workers = 4;
        options.ring.threads = 128;
        let gpu = Gpu::new(device.clone(), options);
        let mut stripes = Stripes::new(bytes, 6, chunk);
        let (rate, jobs) = stream(&gpu, &mut stripes, 256, if quick { 0.5 } else { 2.0 })?;
        let size = format!("6 x {} KiB", chunk >> 10);
        report.line(format!("{size}: data"), rate / 1e9, "GB/s");
        report.line(format!("{size}: stripes"), jobs / 1e6, "M/s");
        report.goal(
            format!("{size}: data / link"),
            rate / link,
            Some(least),
            None,
        );
    }
    Ok(())
}

/// Median time of one job in microseconds, and of handing it over; `at` names the stripe of each round.
fn alone(
    lane: &mut CudaLane,
    stripes: &mut Stripes,
    rows: usize,
    write: bool,
    at: impl Fn(usize) -> usize,
) -> Result<(f64, f64), LaneError> {
    let (mut total, mut handing) = (Vec::new(), Vec::new());
    let mut done = Vec::with_capacity(16);
    for round in 0..1000 {
        let stripe = at(round) % stripes.count;
        let data: Vec<_> = (0..6)
            .map(|k| (stripes.range(stripe, k).slice(0, rows), k as u8))
            .collect();
        let (p, q) = (
            stripes.p(stripe).slice(0, rows),
            stripes.q(stripe).slice(0, rows),
        );
        let job = match write {
            true => ArenaJob::Encode {
                data: &data,
                p: Some(p),
                q: Some(q),
            },
            false => ArenaJob::Check {
                data: &data,
                p: Some(p),
                q: Some(q),
            },
        };
        let start = Instant::now();
        while lane.submit(0, &job).is_err() {
            lane.settle()?;
            lane.poll(&mut stripes.arena, &mut done)?;
        }
        handing.push(start.elapsed().as_secs_f64() * 1e6);
        done.clear();
        while done.is_empty() {
            lane.poll(&mut stripes.arena, &mut done)?;
        }
        total.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok((median(total), median(handing)))
}

/// What a lane gains and loses with more blocks than one: the time of one stripe, and the rate of many.
pub fn blocks(
    device: &DeviceInfo,
    options: GpuOptions,
    quick: bool,
    report: &mut Report,
) -> Result<(), LaneError> {
    report.heading("(e) a lane of one block and of several: encode 6+2");
    let bytes = if quick { 1 << 28 } else { 1 << 30 };
    for chunk in [4 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let mut stripes = Stripes::new(bytes, 6, chunk);
        for blocks in [1, 2, 4] {
            let mut options = options;
            options.ring.blocks = blocks;
            let gpu = Gpu::new(device.clone(), options);
            let mut lane = gpu.lane(stripes.arena.memory())?;
            let (time, _) = alone(&mut lane, &mut stripes, chunk, true, |i| i)?;
            Box::new(lane).close()?;
            let (rate, _) = stream(&gpu, &mut stripes, 64, if quick { 0.2 } else { 0.5 })?;
            let name = format!("6 x {} KiB, {blocks} block(s)", chunk >> 10);
            report.line(format!("{name}: one"), time, "us");
            report.line(format!("{name}: many"), rate / 1e9, "GB/s");
        }
    }
    Ok(())
}

/// Where the time of a unit goes inside the kernel, in clock cycles of the card; needs kernels made for it.
pub fn profile(device: &DeviceInfo, options: GpuOptions) -> Result<(), LaneError> {
    let mut stripes = Stripes::new(1 << 30, 6, 16 << 10);
    for threads in [256, 512] {
        for rows in [16, 4096, 16384] {
            let mut options = options;
            options.ring.threads = threads;
            let gpu = Gpu::new(device.clone(), options);
            let mut lane = gpu.lane(stripes.arena.memory())?;
            let mut stages: [Vec<f64>; 5] = Default::default();
            let mut done = Vec::new();
            for round in 0..1000 {
                let data: Vec<_> = (0..6)
                    .map(|k| (stripes.range(round, k).slice(0, rows), k as u8))
                    .collect();
                let job = ArenaJob::Encode {
                    data: &data,
                    p: Some(stripes.p(round).slice(0, rows)),
                    q: Some(stripes.q(round).slice(0, rows)),
                };
                while lane.submit(0, &job).is_err() {
                    lane.settle()?;
                }
                done.clear();
                while done.is_empty() {
                    lane.poll(&mut stripes.arena, &mut done)?;
                }
                // The readings follow the answer.
                std::thread::sleep(std::time::Duration::from_micros(20));
                let stamps = lane.profile();
                for (i, stage) in stages.iter_mut().enumerate() {
                    stage.push(f64::from(stamps[i + 1].wrapping_sub(stamps[i])));
                }
            }
            Box::new(lane).close()?;
            let [question, known, first, all, answer] = stages.map(median);
            println!(
                "  threads {threads} 6 x {rows} B: question {question}, known {known}, first column {first}, \
                 all {all}, answer {answer} cycles"
            );
        }
    }
    Ok(())
}

/// Where the time of one small job goes, and how fast many go with all sorts of options.
pub fn tune(
    device: &DeviceInfo,
    options: GpuOptions,
    report: &mut Report,
) -> Result<(), LaneError> {
    type Way = (&'static str, usize, bool, fn(usize) -> usize);
    let ways: [Way; 5] = [
        ("16 B, hot, check", 16, false, |_| 3),
        ("4 KiB, hot, encode", 4096, true, |_| 3),
        ("4 KiB, in order, encode", 4096, true, |i| i),
        ("4 KiB, anywhere, encode", 4096, true, |i| i * 7919),
        ("16 KiB, in order, encode", 16384, true, |i| i),
    ];
    let mut stripes = Stripes::new(1 << 30, 6, 16 << 10);
    for threads in [256, 512] {
        for spacing in [0, 800, 1000, 1200] {
            let mut options = options;
            options.ring.threads = threads;
            options.ring.spacing = spacing;
            let gpu = Gpu::new(device.clone(), options);
            let mut lane = gpu.lane(stripes.arena.memory())?;
            for (name, rows, write, at) in ways {
                let (total, handing) = alone(&mut lane, &mut stripes, rows, write, at)?;
                println!(
                    "  threads {threads} spacing {spacing} 6 x {name}: {total:.2} us, handing over {handing:.3} us"
                );
            }
            Box::new(lane).close()?;
        }
    }
    drop(stripes);
    for chunk in [4 << 10, 16 << 10] {
        let mut stripes = Stripes::new(1 << 29, 6, chunk);
        for (blocks, workers, threads) in [
            (16, 4, 128),
            (16, 2, 256),
            (16, 1, 512),
            (8, 4, 128),
            (1, 1, 512),
            (2, 1, 512),
            (1, 2, 256),
            (1, 4, 128),
        ] {
            for unit in [4 << 10, 16 << 10] {
                if unit > chunk {
                    continue;
                }
                let mut options = options;
                options.ring.unit = unit;
                options.ring.blocks = blocks;
                options.ring.workers = workers;
                options.ring.threads = threads;
                let gpu = Gpu::new(device.clone(), options);
                let (rate, jobs) = stream(&gpu, &mut stripes, 256, 0.3)?;
                println!(
                    "  chunk {chunk} blocks {blocks} workers {workers} threads {threads} unit {unit}: {:.2} GB/s {:.2} M/s",
                    rate / 1e9,
                    jobs / 1e6
                );
            }
        }
    }
    report.line("tuned", 1.0, "runs");
    Ok(())
}
