//! What an engine lets others see: copies of its counters, written by the engine alone. A pass costs one store each.

use std::sync::atomic::{AtomicU64, Ordering};

use raid_core::path::queue::QueueStats;

use super::workshop::Tally;

/// How many there are.
const COUNT: usize = 31;
const NAMES: [&str; COUNT] = [
    "read_requests",
    "write_requests",
    "flush_requests",
    "read_sectors",
    "write_sectors",
    "full_bands",
    "encode_bands",
    "update_bands",
    "recover_bands",
    "decoded_bands",
    "merged_pieces",
    "forwarded_pieces",
    "member_ios",
    "member_read_sectors",
    "member_write_sectors",
    "member_errors",
    "member_ios_in_flight",
    "parity_jobs",
    "parity_merged_updates",
    "lane_jobs",
    "lane_bytes",
    "lane_time_ns",
    "lane_in_flight",
    "lane_kept_small",
    "lane_kept_late",
    "lane_kept_asleep",
    "lane_kept_dependent",
    "lane_refused",
    "lane_redone",
    "lane_losses",
    "lane_opens",
];

/// See the module comment.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; COUNT]);

impl Counters {
    pub(super) fn publish(&self, s: &QueueStats, t: &Tally) {
        let values = [
            s.reads,
            s.writes,
            s.flushes,
            s.read_sectors,
            s.write_sectors,
            s.full,
            s.encodes,
            s.updates,
            s.recovers,
            s.decoded,
            s.merged,
            s.forwarded,
            s.member_ios,
            s.member_read_sectors,
            s.member_write_sectors,
            s.member_errors,
            s.inflight,
            t.jobs,
            t.merged,
            t.lane_jobs,
            t.lane_bytes,
            t.lane_ns,
            t.in_flight,
            t.kept_small,
            t.kept_late,
            t.kept_asleep,
            t.kept_dependent,
            t.refused,
            t.redone,
            t.losses,
            t.opens,
        ];
        for (to, from) in self.0.iter().zip(values) {
            to.store(from, Ordering::Relaxed);
        }
    }

    /// Names and values, in a fixed order. The last part of a name is its unit where it is not a plain number.
    pub fn read(&self) -> [(&'static str, u64); COUNT] {
        std::array::from_fn(|i| (NAMES[i], self.0[i].load(Ordering::Relaxed)))
    }
}
