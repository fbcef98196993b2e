//! Tables and JSON.

use std::path::Path;

use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

use parity_kernels::calibrate::{Calibration, Row};

use crate::compare::{Row as Measured, Spread};
use crate::verify::Findings;

/// Where and with what it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// Its name.
    pub processor: String,
    /// Cores that may be used.
    pub cores: usize,
    /// Of Linux.
    pub kernel: String,
    /// In MiB.
    pub last_level_cache_mib: Option<u64>,
    /// Rate of the time stamp counter; a reference cycle is one tick.
    pub tsc_ghz: f64,
    /// Instructions for parity, by operation and size.
    pub parity: String,
    /// Engines.
    pub queues: u16,
    /// Requests in flight in each.
    pub depth: u16,
    /// Buffer memory of each.
    pub buffer_mib: u64,
    /// Devices that do parity.
    pub devices: Vec<String>,
}

/// Who does parity on this processor, in one line.
pub fn engines(calibration: &Calibration) -> String {
    let row = |row: &Row| {
        let up_to = row
            .up_to
            .map_or(String::new(), |b| format!(" up to {} KiB", b >> 10));
        format!("{} {}{up_to}", row.op, row.engine.name())
    };
    let all: Vec<String> = calibration.rows().iter().map(row).collect();
    all.join(", ")
}

impl Facts {
    fn print(&self) {
        println!(
            "{}, {} cores, Linux {}, last level cache {} MiB, time stamp counter {:.3} GHz",
            self.processor,
            self.cores,
            self.kernel,
            self.last_level_cache_mib.unwrap_or(0),
            self.tsc_ghz
        );
        println!(
            "parity {}; {} engines, {} requests in flight and {} MiB of buffers each{}{}",
            self.parity,
            self.queues,
            self.depth,
            self.buffer_mib,
            if self.devices.is_empty() { "" } else { "; " },
            self.devices.join(", ")
        );
    }
}

/// Prints the comparison; writes it where told.
///
/// # Errors
/// The file cannot be written.
pub fn rows(facts: &Facts, rows: &[Measured], json: Option<&Path>) -> Result<(), String> {
    facts.print();
    println!(
        "Cycles are reference cycles of all threads of the process per byte of user data; median (least-most) of the rounds."
    );
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "case",
        "parity",
        "most GB/s",
        "held to",
        "did GB/s",
        "cycles/B",
        "engines only",
        "less cpu",
        "parity alone",
        "its share",
        "on device",
        "p50/p99 us",
        "errors",
    ]);
    for row in rows {
        table.add_row([
            row.case.clone(),
            row.variant.clone(),
            format!("{:.2}", row.most_gb_s),
            format!("{:.2}", row.rate_gb_s),
            format!("{:.2}", row.gb_s.median),
            spread(&row.cycles_per_byte),
            format!("{:.3}", row.engine_cycles_per_byte.median),
            row.less_cpu.as_ref().map_or("-".into(), signed),
            match row.parity_cycles_per_byte {
                (0.0, 0.0) => "-".into(),
                (hot, cold) => format!("{:.3}-{:.3}", hot.min(cold), hot.max(cold)),
            },
            share(row),
            on_device(row),
            format!("{:.0}/{:.0}", row.latency_us.0, row.latency_us.1),
            row.errors.to_string(),
        ]);
    }
    println!("{table}");
    println!(
        "\"less cpu\": this row less the row of processor parity, round by round. \"parity alone\": calibrated cost of the processor's parity for the same bands, with operands in a cache and just copied. \"its share\": of that in the row, and after the comma by the difference to the row without parity (P and Q members missing, so two writes of each band are left out as well). Null members read from /dev/zero, which reads short when something else wants the core: such a read is an error."
    );
    write(json, facts, "rows", rows)
}

fn share(row: &Measured) -> String {
    let Some((low, high)) = row.parity_share else {
        return "-".into();
    };
    let calibrated = format!("{:.0}-{:.0} %", low * 100.0, high * 100.0);
    match row.parity_share_by_difference {
        None => calibrated,
        Some(part) => format!("{calibrated}, {:.0} %", part * 100.0),
    }
}

fn on_device(row: &Measured) -> String {
    let part = format!("{:.0} %", row.on_device * 100.0);
    match row.lane.get("lane_losses").copied().unwrap_or(0) {
        0 => part,
        n => format!("{part}, LOST {n} times"),
    }
}

fn spread(s: &Spread) -> String {
    format!("{:.3} ({:.3}-{:.3})", s.median, s.least, s.most)
}

fn signed(s: &Spread) -> String {
    format!("{:+.3} ({:+.3} to {:+.3})", s.median, s.least, s.most)
}

/// Prints what a check found; writes it where told.
///
/// # Errors
/// The file cannot be written.
pub fn findings(facts: &Facts, all: &[Findings], json: Option<&Path>) -> Result<(), String> {
    facts.print();
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "load",
        "parity",
        "fault",
        "issued",
        "completed",
        "errors",
        "forwarded",
        "parity jobs",
        "sectors read",
        "compared",
        "wrong",
        "stripes checked",
        "wrong",
        "on device",
        "lost",
        "redone",
        "verdict",
    ]);
    for f in all {
        table.add_row([
            f.load.to_owned(),
            f.variant.clone(),
            f.fault.clone(),
            f.issued.to_string(),
            f.completed.to_string(),
            f.errors.to_string(),
            f.forwarded.to_string(),
            f.parity_jobs.to_string(),
            f.sectors_read.to_string(),
            f.sectors_compared.to_string(),
            f.sectors_wrong.to_string(),
            f.stripes_checked.to_string(),
            f.stripes_wrong.to_string(),
            f.lane_jobs.to_string(),
            f.lane_losses.to_string(),
            f.lane_redone.to_string(),
            f.verdict().to_owned(),
        ]);
    }
    println!("{table}");
    write(json, facts, "findings", all)
}

fn write<T: Serialize>(
    path: Option<&Path>,
    facts: &Facts,
    name: &str,
    content: &[T],
) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let all = serde_json::json!({ "facts": facts, name: content });
    let text = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
    std::fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.display()))
}
