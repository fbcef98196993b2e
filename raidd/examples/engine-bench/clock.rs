//! Time as this bench counts it: processor time of the process and of single threads, and reference cycles.
//!
//! A reference cycle is one tick of the time stamp counter, whose rate does not follow the core's. Times come from the
//! scheduler, so a thread that spins counts as busy, and one that sleeps does not. Reading them costs a few system calls.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Ticks of the time stamp counter per nanosecond, measured over 50 ms. 0 where there is no such counter.
pub fn tsc_per_ns() -> f64 {
    let (start, first) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(50));
    let (last, wall) = (ticks(), start.elapsed());
    last.wrapping_sub(first) as f64 / wall.as_nanos() as f64
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: the instruction reads a counter and touches no memory; every x86-64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Processor time of all threads of this process, user and system, in ns.
pub fn process_ns() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
        [usage.user_time(), usage.system_time()]
            .iter()
            .map(|t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_usec() as u64 * 1000)
            .sum()
    })
}

/// Processor time of one thread of this process in ns; none if the kernel does not say. A running thread's last 4 ms may
/// be missing.
pub fn thread_ns(tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Bytes of the last level cache, as Linux tells it for the first core.
pub fn last_level_cache() -> Option<u64> {
    let level = |i: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{i}/size");
        let text = std::fs::read_to_string(path).ok()?;
        let kib: u64 = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kib << 10)
    };
    (0..8).filter_map(level).max()
}

/// The processor's own name.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or_else(|| "unknown processor".into(), |(_, name)| name.to_owned())
}

/// Latencies in classes of an eighth of a power of two.
#[derive(Clone, Debug)]
pub struct Latencies(Vec<u64>);

impl Latencies {
    /// Number of classes.
    pub const CLASSES: usize = 8 * 40;

    /// Counts by class.
    pub fn new(counts: Vec<u64>) -> Latencies {
        Latencies(counts)
    }

    /// The class of a time.
    pub fn class(ns: u64) -> usize {
        let ns = ns.max(8);
        let power = ns.ilog2();
        let eighth = (ns >> (power - 3)) & 7;
        ((power as usize * 8) + eighth as usize).min(Latencies::CLASSES - 1)
    }

    /// The time below which `part` of all lie, in ns, to an eighth; 0 if there are none.
    pub fn quantile(&self, part: f64) -> u64 {
        let total: u64 = self.0.iter().sum();
        let mut below = (total as f64 * part) as u64;
        for (class, count) in self.0.iter().enumerate() {
            if *count > below {
                let (power, eighth) = (class / 8, class as u64 % 8);
                return ((8 + eighth) << power) >> 3;
            }
            below -= count;
        }
        0
    }
}
