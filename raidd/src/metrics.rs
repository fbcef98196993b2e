//! The daemon's figures as Prometheus text: plain functions from what `detail` answers to the exposition format. Nothing here
//! is kept between calls; counters count since the array was started.
//!
//! Names follow Prometheus' conventions: prefix, base units (bytes, seconds), `_total` for what only grows. `counters` names
//! those of the engine; a test holds it against what the engine publishes.

mod counters;
mod sheet;
#[cfg(test)]
mod tests;

use crate::array_api::{GpuStatus, Health, LaneState, LaneStatus};
use crate::control::protocol::DetailView;
use counters::from_counter;
pub use sheet::MetricsError;
use sheet::Sheet;

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
    sheet.text()
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
        "1 while the configuration allows GPUs for this array and no GPU lane takes jobs: there is no GPU, or each lane is being opened, lost or stuck.",
        &[array, ("setting", &d.gpu.setting)],
        f64::from(u8::from(no_gpu(&d.gpu))),
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
        sheet.count(
            "raidd_lane_failed_opens_total",
            "Times that opening a GPU lane failed.",
            &lane_of,
            lane.failed_opens as f64,
        )?;
    }
    Ok(())
}

/// Whether the CPU computes all parity although GPUs might.
fn no_gpu(gpu: &GpuStatus) -> bool {
    // What is not allowed leaves neither lanes nor a reason.
    let allowed = !gpu.lanes.is_empty() || gpu.unavailable.is_some();
    let takes_jobs = |lane: &LaneStatus| lane.state == LaneState::Active;
    allowed && !gpu.lanes.iter().any(takes_jobs)
}

/// A snake_case word of the protocol.
fn word(value: impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or("unknown").to_string()
}
