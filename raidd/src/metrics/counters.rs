//! The engine's counters under their public names, with what they count. Pure.

use super::sheet::{MetricsError, Sheet};

const SECTOR: u64 = 512;

/// One of the engine's counters under its public name. One that is not known here goes out under its own.
pub(super) fn from_counter(
    sheet: &mut Sheet,
    array: (&str, &str),
    counter: &str,
    value: u64,
) -> Result<(), MetricsError> {
    let requests = ("raidd_requests_total", "Requests to the block device.");
    let request_bytes = (
        "raidd_request_bytes_total",
        "Bytes that requests to the block device read and wrote.",
    );
    let member_bytes = (
        "raidd_member_bytes_total",
        "Bytes read from and written to members, parity included.",
    );
    let bands = (
        "raidd_band_writes_total",
        "Writes to a band of a stripe, by the way its parity was made.",
    );
    let kept = (
        "raidd_lane_kept_jobs_total",
        "Parity jobs that stayed on the CPU although a GPU lane was there, by reason.",
    );
    let mut count = |(name, help): (&str, &str), label: Option<(&str, &str)>, value: u64| {
        let labels: Vec<_> = std::iter::once(array).chain(label).collect();
        sheet.count(name, help, &labels, value as f64)
    };
    match counter {
        "read_requests" => count(requests, Some(("op", "read")), value),
        "write_requests" => count(requests, Some(("op", "write")), value),
        "flush_requests" => count(requests, Some(("op", "flush")), value),
        "read_sectors" => count(request_bytes, Some(("op", "read")), value * SECTOR),
        "write_sectors" => count(request_bytes, Some(("op", "write")), value * SECTOR),
        "full_bands" => count(bands, Some(("way", "full")), value),
        "encode_bands" => count(bands, Some(("way", "encode")), value),
        "update_bands" => count(bands, Some(("way", "update")), value),
        "recover_bands" => count(bands, Some(("way", "recover")), value),
        "decoded_bands" => count(
            (
                "raidd_band_decodes_total",
                "Bands restored from parity for reads.",
            ),
            None,
            value,
        ),
        "merged_pieces" => count(
            (
                "raidd_merged_pieces_total",
                "Parts of requests that joined a write that was under way to the same band.",
            ),
            None,
            value,
        ),
        "forwarded_pieces" => count(
            (
                "raidd_forwarded_pieces_total",
                "Parts of requests handed to another queue.",
            ),
            None,
            value,
        ),
        "member_ios" => count(
            ("raidd_member_ios_total", "I/Os to members begun."),
            None,
            value,
        ),
        "member_read_sectors" => count(member_bytes, Some(("op", "read")), value * SECTOR),
        "member_write_sectors" => count(member_bytes, Some(("op", "write")), value * SECTOR),
        "member_errors" => count(
            ("raidd_member_errors_total", "I/Os to members that failed."),
            None,
            value,
        ),
        "member_ios_in_flight" => sheet.gauge(
            "raidd_member_ios_in_flight",
            "I/Os to members under way.",
            &[array],
            value as f64,
        ),
        "parity_jobs" => count(
            (
                "raidd_parity_jobs_total",
                "Parity jobs, on the CPU and on GPUs.",
            ),
            None,
            value,
        ),
        "parity_merged_updates" => count(
            (
                "raidd_parity_merged_updates_total",
                "Updates of one parity that were done in one pass with another.",
            ),
            None,
            value,
        ),
        "lane_jobs" => count(
            ("raidd_lane_jobs_total", "Parity jobs that a GPU did."),
            None,
            value,
        ),
        "lane_bytes" => count(
            (
                "raidd_lane_bytes_total",
                "Bytes of data of parity jobs that a GPU did.",
            ),
            None,
            value,
        ),
        "lane_time_ns" => sheet.count(
            "raidd_lane_job_seconds_total",
            "Time from handing jobs to a GPU until they were done, added up.",
            &[array],
            value as f64 / 1e9,
        ),
        "lane_in_flight" => sheet.gauge(
            "raidd_lane_jobs_in_flight",
            "Parity jobs that GPUs have in hand.",
            &[array],
            value as f64,
        ),
        "lane_kept_small" => count(kept, Some(("reason", "small")), value),
        "lane_kept_late" => count(kept, Some(("reason", "late")), value),
        "lane_kept_asleep" => count(kept, Some(("reason", "asleep")), value),
        "lane_kept_dependent" => count(kept, Some(("reason", "dependent")), value),
        "lane_refused" => count(
            (
                "raidd_lane_refused_jobs_total",
                "Parity jobs that a GPU lane had no room for or does not do; the CPU did them.",
            ),
            None,
            value,
        ),
        "lane_redone" => count(
            (
                "raidd_lane_redone_jobs_total",
                "Parity jobs that the CPU did again because a GPU failed.",
            ),
            None,
            value,
        ),
        "lane_losses" => count(
            (
                "raidd_lane_losses_total",
                "Times that an open GPU lane failed; openings that failed are not among them.",
            ),
            None,
            value,
        ),
        "lane_opens" => count(
            (
                "raidd_lane_opens_total",
                "Times that a GPU lane was opened.",
            ),
            None,
            value,
        ),
        other => count(
            (
                &format!("raidd_{other}_total"),
                "A counter of the engine, under the engine's own name.",
            ),
            None,
            value,
        ),
    }
}
