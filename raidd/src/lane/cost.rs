//! Whether a parity job is done by the thread that has it, or by a lane. Pure functions over measured costs; a decision
//! costs a few multiplications.

use parity_kernels::calibrate::{Calibration, Op};
use parity_kernels::offload::LaneCost;

/// What jobs cost on the CPU.
pub trait CpuCost: Send + Sync {
    /// Time in ns of a job over `data_bytes` bytes of data, as [`parity_kernels::offload::ArenaJob::data_bytes`] counts them.
    /// `cold`: they are in memory rather than in a cache.
    fn ns(&self, op: Op, data_bytes: usize, cold: bool) -> f64;
}

impl CpuCost for Calibration {
    fn ns(&self, op: Op, data_bytes: usize, cold: bool) -> f64 {
        self.cost_ns(op, data_bytes, cold)
    }
}

/// The same rate for everything, in bytes per ns. For tests and measurements.
#[derive(Clone, Copy, Debug)]
pub struct FlatRate(pub f64);

impl CpuCost for FlatRate {
    fn ns(&self, _: Op, data_bytes: usize, _: bool) -> f64 {
        data_bytes as f64 / self.0
    }
}

/// How to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// A job may end on the lane this many times later than it would on the CPU.
    pub slack: f64,
    /// CPU time that jobs in a short time must have in common before a parked lane is woken for them, in ns. A lane that is
    /// woken takes processors of the device until it is parked again, and its first job comes late.
    pub wake_ns: f64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            slack: 2.0,
            wake_ns: 100_000.0,
        }
    }
}

impl Policy {
    /// For jobs of one operation: a reader waits for what is recovered, so it may not end later on the lane at all.
    pub fn of(self, op: Op) -> Policy {
        match op {
            Op::Recover => Policy {
                slack: self.slack.min(1.0),
                ..self
            },
            Op::Encode | Op::Update | Op::Check => self,
        }
    }
}

/// What a decision is made from. Times in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// The job on this thread.
    pub cpu_ns: f64,
    /// What this thread does before it could begin the job.
    pub ahead_ns: f64,
    /// Bytes of data of the job.
    pub bytes: u64,
    /// Measured for the lane.
    pub cost: LaneCost,
    /// How many times later than that such jobs have ended of late, see [`Lag`].
    pub lag: f64,
    /// Bytes of data that the lane has in hand.
    pub queued: u64,
    /// The lane waits for jobs; it is not parked.
    pub awake: bool,
    /// CPU time of jobs that were lately kept back from a parked lane.
    pub missed_ns: f64,
}

/// Where a job goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// To the lane.
    Lane,
    /// Here: handing it over costs this thread as much as doing it.
    Small,
    /// Here: the lane would be done too late.
    Late,
    /// Here: it is not worth waking the lane. Counts as missed.
    Asleep,
}

/// Time from now at which the lane would have the job done, if it is awake.
pub fn lane_end_ns(i: &Inputs) -> f64 {
    i.cost.caller_ns + i.cost.latency_ns + (i.queued + i.bytes) as f64 * i.cost.ns_per_byte
}

/// How many times later than measured beforehand the lane's jobs have ended of late, by operation. A measurement of one kind
/// of job on an idle engine cannot know what the pieces of another cost, how late a busy engine looks, or what other lanes do
/// on the same device. Checks are left out: nobody waits for them but background walks, which hand over many at a time.
///
/// Where lag keeps jobs here it is forgotten bit by bit, so that one of some hundred is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lag([f64; 3]);

impl Default for Lag {
    fn default() -> Lag {
        Lag([1.0; 3])
    }
}

impl Lag {
    /// Highest factor: what one job that hung can do.
    const MOST: f64 = 64.0;

    fn index(op: Op) -> Option<usize> {
        match op {
            Op::Encode => Some(0),
            Op::Update => Some(1),
            Op::Recover => Some(2),
            Op::Check => None,
        }
    }

    /// The factor for an operation, at least 1.
    pub fn of(&self, op: Op) -> f64 {
        Lag::index(op).map_or(1.0, |i| self.0[i])
    }

    /// A job was expected after `expected_ns` and came after `took_ns`.
    pub fn seen(&mut self, op: Op, expected_ns: f64, took_ns: f64) {
        if let Some(i) = Lag::index(op)
            && expected_ns > 0.0
        {
            let ratio = (took_ns / expected_ns).clamp(1.0, Lag::MOST);
            self.0[i] += (ratio - self.0[i]) / 8.0;
        }
    }

    /// A job was kept here for being late.
    pub fn kept(&mut self, op: Op) {
        if let Some(i) = Lag::index(op) {
            self.0[i] -= (self.0[i] - 1.0) / 1024.0;
        }
    }
}

/// A job goes to the lane if that saves time of this thread, and if it is done there no later than `slack` times the time
/// after which it would be done here. A parked lane is woken only once there is enough work for it; the job that wakes it
/// is the one that pays for it with its own delay.
pub fn choose(i: &Inputs, policy: &Policy) -> Choice {
    if i.cpu_ns <= i.cost.caller_ns {
        return Choice::Small;
    }
    if i.lag * lane_end_ns(i) > policy.slack * (i.ahead_ns + i.cpu_ns) {
        return Choice::Late;
    }
    if !i.awake && i.cpu_ns + i.missed_ns < policy.wake_ns {
        return Choice::Asleep;
    }
    Choice::Lane
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 50 GB/s, 8 us, and half a microsecond of the caller: the shape of a persistent kernel behind PCIe.
    const LANE: LaneCost = LaneCost {
        caller_ns: 500.0,
        latency_ns: 8_000.0,
        ns_per_byte: 0.02,
    };

    fn inputs(bytes: u64, gb_per_s: f64) -> Inputs {
        Inputs {
            cpu_ns: bytes as f64 / gb_per_s,
            ahead_ns: 0.0,
            bytes,
            cost: LANE,
            lag: 1.0,
            queued: 0,
            awake: true,
            missed_ns: 0.0,
        }
    }

    fn chosen(i: Inputs) -> Choice {
        choose(&i, &Policy::default())
    }

    #[test]
    fn what_costs_no_more_here_stays_here() {
        // 4 KiB at 10 GB/s: 410 ns.
        assert_eq!(chosen(inputs(4096, 10.0)), Choice::Small);
        // However patient the policy is.
        let patient = Policy {
            slack: 1e9,
            ..Policy::default()
        };
        assert_eq!(choose(&inputs(4096, 10.0), &patient), Choice::Small);
        assert_eq!(choose(&inputs(8192, 10.0), &patient), Choice::Lane);
    }

    #[test]
    fn what_the_lane_delays_too_much_stays_here() {
        // 24 KiB: 2.5 us here, 9 us there.
        assert_eq!(chosen(inputs(6 * 4096, 10.0)), Choice::Late);
        // 96 KiB: 9.8 us here, 10.5 us there.
        assert_eq!(chosen(inputs(6 * 16384, 10.0)), Choice::Lane);
        // Nearly the same with hot data on a fast CPU.
        assert_eq!(chosen(inputs(6 * 16384, 60.0)), Choice::Late);
    }

    #[test]
    fn jobs_that_come_late_keep_others_here_but_for_a_try_now_and_then() {
        // Degraded reads went to a GPU that was measured to be as fast as the CPU, and took 115 us there instead of 25.
        let mut lag = Lag::default();
        let (mut lane, mut here) = (0, 0);
        for _ in 0..20_000 {
            let mut i = inputs(6 * 65536, 14.0);
            i.lag = lag.of(Op::Recover);
            match choose(&i, &Policy::default().of(Op::Recover)) {
                Choice::Lane => {
                    lane += 1;
                    lag.seen(Op::Recover, lane_end_ns(&i), 115_000.0);
                }
                Choice::Late => {
                    here += 1;
                    lag.kept(Op::Recover);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(lane > 10 && lane * 100 < here, "{lane} {here}");
        // Other operations are judged by themselves, and a lane that is in time again gets its jobs back.
        assert_eq!((lag.of(Op::Encode), lag.of(Op::Check)), (1.0, 1.0));
        lag.seen(Op::Check, 1.0, 1e9);
        assert_eq!(lag.of(Op::Check), 1.0);
        let mut went = 0;
        for _ in 0..20_000 {
            let mut i = inputs(6 * 65536, 14.0);
            i.lag = lag.of(Op::Recover);
            if choose(&i, &Policy::default().of(Op::Recover)) == Choice::Lane {
                went += 1;
                lag.seen(Op::Recover, lane_end_ns(&i), lane_end_ns(&i));
            } else {
                lag.kept(Op::Recover);
            }
        }
        assert!(went > 15_000, "{went}");
    }

    #[test]
    fn a_long_queue_sends_jobs_back() {
        let mut i = inputs(6 * 16384, 10.0);
        i.queued = 8 * i.bytes;
        assert_eq!(chosen(i), Choice::Late);
        i.queued = i.bytes / 2;
        assert_eq!(chosen(i), Choice::Lane);
        // With work ahead of it here, the same queue is bearable.
        i.queued = 8 * i.bytes;
        i.ahead_ns = 4.0 * i.cpu_ns;
        assert_eq!(chosen(i), Choice::Lane);
    }

    #[test]
    fn a_parked_lane_wakes_for_big_or_repeated_work() {
        let mut i = inputs(6 * 16384, 10.0);
        i.awake = false;
        assert_eq!(chosen(i), Choice::Asleep);
        i.missed_ns = 95_000.0;
        assert_eq!(chosen(i), Choice::Lane);
        let mut big = inputs(2 << 20, 10.0);
        big.awake = false;
        assert_eq!(chosen(big), Choice::Lane);
    }

    #[test]
    fn the_choice_is_monotonous() {
        // More queue never moves a job to the lane; more slack never moves one away.
        for bytes in [4096u64, 32768, 131_072, 1 << 20] {
            for rate in [2.0, 10.0, 40.0, 100.0] {
                let mut was = true;
                for queued in [0u64, 1 << 16, 1 << 18, 1 << 20, 1 << 24] {
                    let i = Inputs {
                        queued,
                        ..inputs(bytes, rate)
                    };
                    let goes = chosen(i) == Choice::Lane;
                    assert!(was || !goes, "{i:?}");
                    was = goes;
                    let policy = Policy {
                        slack: 4.0,
                        ..Policy::default()
                    };
                    let loose = choose(&i, &policy) == Choice::Lane;
                    assert!(loose || !goes, "{i:?}");
                }
            }
        }
    }
}
