//! How fast each engine of this machine is, in GB/s (10^9 bytes) of data, parity not counted.
//!
//! `cargo run --release -p parity-kernels --example bench [ENGINE...]`
//!
//! *Hot*: one stripe of 64 KiB chunks again and again, which stays in the second-level cache.
//! *Cold*: one stripe after the other from an arena far larger than most caches. The best of
//! several short runs is shown, as other work on the machine can only make a run slower.

use std::hint::black_box;
use std::time::{Duration, Instant};

use parity_kernels::{Arena, BufRange, Engine};

const CHUNK: usize = 64 << 10;
const COLD_BYTES: usize = 1 << 30;
const RUNS: usize = 7;
const RUN_TIME: Duration = Duration::from_millis(60);

/// One stripe in the arena: data with exponents, P, Q.
struct Stripe {
    data: Vec<(BufRange, u8)>,
    p: BufRange,
    q: BufRange,
}

fn stripes(arena: &Arena, data: usize) -> Vec<Stripe> {
    let stripe = |frame: usize| Stripe {
        data: (0..data)
            .map(|k| (arena.frame(frame + k), k as u8))
            .collect(),
        p: arena.frame(frame + data),
        q: arena.frame(frame + data + 1),
    };
    (0..arena.frames() / (data + 2))
        .map(|i| stripe(i * (data + 2)))
        .collect()
}

/// The best rate of `job`, which handles `bytes` bytes each time.
fn rate(bytes: usize, stripes: &[Stripe], mut job: impl FnMut(&Stripe)) -> f64 {
    let mut next = stripes.iter().cycle();
    let mut best = 0f64;
    for _ in 0..RUNS {
        let (start, mut times) = (Instant::now(), 0);
        while times == 0 || start.elapsed() < RUN_TIME {
            job(black_box(
                next.next().expect("there is at least one stripe"),
            ));
            times += 1;
        }
        best = best.max((bytes * times) as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}

fn main() -> std::io::Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut arena = Arena::new(COLD_BYTES / CHUNK, CHUNK)?;
    for (i, byte) in arena
        .bytes_mut(BufRange::new(0, COLD_BYTES))
        .iter_mut()
        .enumerate()
    {
        *byte = (i ^ (i >> 8) ^ (i >> 16)) as u8;
    }
    println!(
        "{:12} {:5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12}",
        "engine", "", "7+1", "6+2", "update 1", "1 from Q", "2 lost", "6+2 of 4 KiB"
    );
    for name in Engine::NAMES {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let Some(engine) = Engine::by_name(name) else {
            println!("{name:12} not on this machine");
            continue;
        };
        for (temperature, count) in [("hot", 1), ("cold", usize::MAX)] {
            let (seven, six) = (stripes(&arena, 7), stripes(&arena, 6));
            let (seven, six) = (
                &seven[..count.min(seven.len())],
                &six[..count.min(six.len())],
            );
            let single = rate(7 * CHUNK, seven, |s| {
                arena.encode(&engine, &s.data, Some(s.p), None)
            });
            let double = rate(6 * CHUNK, six, |s| {
                arena.encode(&engine, &s.data, Some(s.p), Some(s.q))
            });
            // The neighbour serves as the new content.
            let update = rate(CHUNK, six, |s| {
                let change = [(s.data[2].0, s.data[3].0, s.data[2].1)];
                arena.update(&engine, &change, Some(s.p), Some(s.q));
            });
            let from_q = rate(6 * CHUNK, six, |s| {
                let result = arena.recover(&engine, &s.data[1..], None, Some(s.q), &s.data[..1]);
                result.expect("Q is there");
            });
            let both = rate(6 * CHUNK, six, |s| {
                let (p, q) = (Some(s.p), Some(s.q));
                let result = arena.recover(&engine, &s.data[2..], p, q, &s.data[..2]);
                result.expect("P and Q are there");
            });
            let small = rate(6 * 4096, six, |s| {
                let part = |range: BufRange| range.slice(0, 4096);
                let mut data = [(BufRange::default(), 0); 6];
                for (to, (range, exp)) in data.iter_mut().zip(&s.data) {
                    *to = (part(*range), *exp);
                }
                arena.encode(&engine, &data, Some(part(s.p)), Some(part(s.q)));
            });
            println!(
                "{name:12} {temperature:5} {single:10.2} {double:10.2} {update:10.2} \
                 {from_q:10.2} {both:10.2} {small:12.2}"
            );
        }
    }
    println!("\nRecovered and updated bytes count as data; `update 1` counts the new chunk only.");
    Ok(())
}
