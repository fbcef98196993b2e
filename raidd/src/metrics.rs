//! The daemon's figures as Prometheus text: plain functions from what `detail` answers to the exposition format. Nothing here
//! is kept between calls; counters count since the array was started.
//!
//! Names follow Prometheus' conventions: prefix, base units (bytes, seconds), `_total` for what only grows. The list of
//! counters is in `from_counter`; a test holds it against the names that the engine publishes.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::{CounterVec, Encoder, GaugeVec, IntCounterVec, Opts, Registry, TextEncoder};

use crate::array_api::{Health, LaneState};
use crate::control::protocol::DetailView;

/// What went wrong in making the text; a fault in this program.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

const SECTOR: u64 = 512;

/// All states of a lane.
const STATES: [LaneState; 5] = [
    LaneState::Opening,
    LaneState::Active,
    LaneState::Lost,
    LaneState::Stuck,
    LaneState::Closed,
];

/// The text for a daemon of this version that runs these arrays.
///
/// # Errors
/// Only if two figures contradict each other in name or labels.
pub fn text(version: &str, arrays: &[DetailView]) -> Result<String, MetricsError> {
    let mut sheet = Sheet::default();
    sheet.gauge(
        "raidd_build_info",
        "Version of the daemon; always 1.",
        &[("version", version)],
        1.0,
    )?;
    sheet.gauge("raidd_arrays", "Arrays that run.", &[], arrays.len() as f64)?;
    for array in arrays {
        one(&mut sheet, array)?;
    }
    let mut bytes = Vec::new();
    TextEncoder::new().encode(&sheet.registry.gather(), &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn one(sheet: &mut Sheet, d: &DetailView) -> Result<(), MetricsError> {
    let name = d.array.name.as_str();
    let array = ("array", name);
    let device = d.array.device.as_ref().map(|p| p.display().to_string());
    sheet.gauge(
        "raidd_array_info",
        "What the array is; always 1.",
        &[
            array,
            ("uuid", &d.array.uuid),
            ("level", &format!("raid{}", d.array.level)),
            ("layout", &d.layout),
            ("device", device.as_deref().unwrap_or("")),
        ],
        1.0,
    )?;
    for (metric, help, value) in [
        (
            "raidd_array_size_bytes",
            "Size of the block device.",
            d.array.size_bytes as f64,
        ),
        (
            "raidd_array_chunk_bytes",
            "Chunk of the array.",
            d.array.chunk_bytes as f64,
        ),
        (
            "raidd_array_degraded_members",
            "Members missing or faulty.",
            f64::from(d.degraded),
        ),
        (
            "raidd_array_clean",
            "1 while the members are marked clean.",
            f64::from(u8::from(d.clean)),
        ),
        (
            "raidd_array_read_only",
            "1 if the array was started read only.",
            f64::from(u8::from(d.read_only)),
        ),
        (
            "raidd_array_events",
            "Event count of the superblocks.",
            d.events as f64,
        ),
    ] {
        sheet.gauge(metric, help, &[array], value)?;
    }
    for (health, word) in [
        (Health::Optimal, "optimal"),
        (Health::Degraded, "degraded"),
        (Health::Failed, "failed"),
    ] {
        sheet.gauge(
            "raidd_array_health",
            "1 for the health that the array has, 0 for the others.",
            &[array, ("health", word)],
            f64::from(u8::from(d.health == health)),
        )?;
    }
    for member in &d.array.members {
        let path = member.path.as_ref().map(|p| p.display().to_string());
        sheet.gauge(
            "raidd_member_info",
            "State of a member; always 1.",
            &[
                array,
                (
                    "slot",
                    &member.slot.map_or(String::new(), |s| s.to_string()),
                ),
                ("device", path.as_deref().unwrap_or("")),
                ("state", &word(member.state)),
            ],
            1.0,
        )?;
    }
    if let Some(sweep) = &d.resync {
        let labels = [array, ("kind", &word(sweep.kind))];
        for (metric, help, value) in [
            (
                "raidd_sweep_done_bytes",
                "Bytes of each member that a background walk has done.",
                sweep.done_bytes,
            ),
            (
                "raidd_sweep_size_bytes",
                "Bytes of each member that a background walk has to do in all.",
                sweep.total_bytes,
            ),
            (
                "raidd_sweep_bytes_per_second",
                "Recent rate of a background walk, for each member.",
                sweep.rate_bytes_per_s,
            ),
        ] {
            sheet.gauge(metric, help, &labels, value as f64)?;
        }
    }
    parity(sheet, d)?;
    for (counter, value) in &d.counters {
        from_counter(sheet, array, counter, *value)?;
    }
    Ok(())
}

/// Who computes parity: engines of the CPU by operation and size, GPUs by queue.
fn parity(sheet: &mut Sheet, d: &DetailView) -> Result<(), MetricsError> {
    let array = ("array", d.array.name.as_str());
    for choice in &d.parity {
        let up_to = choice.up_to_bytes.map(|bytes| bytes.to_string());
        sheet.gauge(
            "raidd_parity_engine_info",
            "Parity engine of the CPU by operation, for jobs of so many bytes of data at most; always 1.",
            &[
                array,
                ("operation", &choice.operation),
                ("up_to_bytes", up_to.as_deref().unwrap_or("+Inf")),
                ("engine", &choice.engine),
            ],
            1.0,
        )?;
    }
    sheet.gauge(
        "raidd_gpu_unavailable",
        "1 if the configuration allows GPUs and none can be used.",
        &[array, ("setting", &d.gpu.setting)],
        f64::from(u8::from(d.gpu.unavailable.is_some())),
    )?;
    for (queue, lane) in d.gpu.lanes.iter().enumerate() {
        let queue = queue.to_string();
        let lane_of = [array, ("queue", &queue), ("device", &lane.device)];
        for state in STATES {
            let word = word(state);
            let labels: Vec<_> = lane_of
                .into_iter()
                .chain([("state", word.as_str())])
                .collect();
            sheet.gauge(
                "raidd_lane_state",
                "1 for the state that the GPU lane of a queue is in, 0 for the others.",
                &labels,
                f64::from(u8::from(lane.state == state)),
            )?;
        }
        sheet.gauge(
            "raidd_lane_state_timestamp_seconds",
            "When the lane came into its state, in seconds since 1970.",
            &lane_of,
            lane.since as f64,
        )?;
    }
    Ok(())
}

/// One of the engine's counters under its public name. One that is not known here goes out under its own.
fn from_counter(
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
    let mut count = |(name, help): (&str, &str), label: Option<(&str, &str)>, value| {
        let labels: Vec<_> = std::iter::once(array).chain(label).collect();
        sheet.count(name, help, &labels, value)
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
        "lane_time_ns" => sheet.seconds(
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
            ("raidd_lane_losses_total", "Times that a GPU lane failed."),
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

/// A snake_case word of the protocol.
fn word(value: impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or("unknown").to_string()
}

/// Figures by name, registered as they first come up. Label names of a figure are the same each time.
#[derive(Default)]
struct Sheet {
    registry: Registry,
    counts: BTreeMap<String, IntCounterVec>,
    seconds: BTreeMap<String, CounterVec>,
    gauges: BTreeMap<String, GaugeVec>,
}

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Sheet {
    fn count(
        &mut self,
        name: &str,
        help: &str,
        labels: Labels,
        value: u64,
    ) -> Result<(), MetricsError> {
        let family = family(&self.registry, &mut self.counts, name, labels, |names| {
            IntCounterVec::new(Opts::new(name, help), names)
        })?;
        family
            .get_metric_with_label_values(&values(labels))?
            .inc_by(value);
        Ok(())
    }

    fn seconds(
        &mut self,
        name: &str,
        help: &str,
        labels: Labels,
        value: f64,
    ) -> Result<(), MetricsError> {
        let family = family(&self.registry, &mut self.seconds, name, labels, |names| {
            CounterVec::new(Opts::new(name, help), names)
        })?;
        family
            .get_metric_with_label_values(&values(labels))?
            .inc_by(value);
        Ok(())
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        labels: Labels,
        value: f64,
    ) -> Result<(), MetricsError> {
        let family = family(&self.registry, &mut self.gauges, name, labels, |names| {
            GaugeVec::new(Opts::new(name, help), names)
        })?;
        family
            .get_metric_with_label_values(&values(labels))?
            .set(value);
        Ok(())
    }
}

fn values<'a>(labels: Labels<'a>) -> Vec<&'a str> {
    labels.iter().map(|(_, value)| *value).collect()
}

/// The family of that name, made and registered if this is the first time.
fn family<'a, F: Collector + Clone + 'static>(
    registry: &Registry,
    families: &'a mut BTreeMap<String, F>,
    name: &str,
    labels: Labels,
    make: impl FnOnce(&[&str]) -> Result<F, prometheus::Error>,
) -> Result<&'a F, MetricsError> {
    use std::collections::btree_map::Entry;
    match families.entry(name.to_string()) {
        Entry::Occupied(entry) => Ok(entry.into_mut()),
        Entry::Vacant(entry) => {
            let names: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
            let family = make(&names)?;
            registry.register(Box::new(family.clone()))?;
            Ok(entry.insert(family))
        }
    }
}

#[cfg(test)]
mod tests;
