//! Tables for people. Everything goes through one function that does not die of a closed pipe.

use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use comfy_table::{Table, presets};

use crate::array::parity::sentence;
use crate::array_api::{GpuStatus, LaneStatus};
use crate::control::protocol::{ArrayView, DetailView, Problem};
use crate::units::{Bytes, human_seconds};

/// Names come from superblocks, which anybody may have written: control characters must not reach the terminal.
fn printable(text: impl std::fmt::Display) -> String {
    let safe = |c: char| {
        if c.is_control() && c != '\n' {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    text.to_string().chars().map(safe).collect()
}

/// Why standard output could not be written to, if that is so.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// Prints a line to standard output; a reader that went away (`| head`) is not an error worth a message. What else goes
/// wrong is kept for [`unwritten`].
pub fn line(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", printable(text)).and_then(|()| out.flush());
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = UNWRITTEN.set(error.to_string());
    }
}

/// Why something that was to be printed was not, a full disk mostly. The command has then not done all that it was asked.
pub fn unwritten() -> Option<&'static str> {
    UNWRITTEN.get().map(String::as_str)
}

/// Prints a line to standard error, in the same spirit.
pub fn say(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}

/// Prints a value as one pretty JSON document.
pub fn json(value: &impl serde::Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => line(text),
        Err(e) => say(format_args!("raidctl: printing JSON: {e}")),
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().map(|h| h.to_uppercase()));
    table
}

/// `a/b` of slots in sync, as in /proc/mdstat's `[8/7]`.
fn slots(array: &ArrayView) -> String {
    use crate::array_api::MemberState::InSync;
    let total = array
        .members
        .iter()
        .filter_map(|m| m.slot)
        .max()
        .map_or(0, |s| usize::from(s) + 1);
    let good = array
        .members
        .iter()
        .filter(|m| m.slot.is_some() && m.state == InSync)
        .count();
    format!("{good}/{total}")
}

/// `raidctl list`
pub fn list(arrays: &[ArrayView]) {
    if arrays.is_empty() {
        line("no arrays are running; 'raidctl assemble --scan' starts those that exist");
        return;
    }
    let mut t = table(&[
        "name", "device", "level", "size", "chunk", "members", "state",
    ]);
    for a in arrays {
        t.add_row([
            a.name.clone(),
            a.device
                .as_ref()
                .map_or("-".into(), |d| d.display().to_string()),
            format!("raid{}", a.level),
            Bytes(a.size_bytes).to_string(),
            Bytes(a.chunk_bytes).to_string(),
            slots(a),
            a.state.clone(),
        ]);
    }
    line(t);
}

/// A snake_case word of the protocol for people.
fn word(value: impl serde::Serialize) -> String {
    let text = serde_json::to_value(value)
        .ok()
        .and_then(|v| v.as_str().map(str::to_string))
        .unwrap_or_default();
    text.replace('_', " ")
}

fn members(array: &ArrayView) -> Table {
    let mut t = table(&["slot", "state", "device"]);
    for m in &array.members {
        t.add_row([
            m.slot.map_or("-".into(), |s| s.to_string()),
            word(m.state),
            m.path
                .as_ref()
                .map_or("-".into(), |p| p.display().to_string()),
        ]);
    }
    t
}

/// A line for each device and state, or one that says why there is none.
fn lanes(gpu: &GpuStatus) -> Vec<String> {
    if let Some(why) = &gpu.unavailable {
        return vec![format!("off: {why} (gpu: {})", gpu.setting)];
    }
    let mut groups: Vec<(&LaneStatus, Vec<String>)> = Vec::new();
    for (queue, lane) in gpu.lanes.iter().enumerate() {
        let key = |l: &LaneStatus| (l.device.clone(), l.state, l.reason.clone());
        match groups.iter_mut().find(|(l, _)| key(l) == key(lane)) {
            Some((_, queues)) => queues.push(queue.to_string()),
            None => groups.push((lane, vec![queue.to_string()])),
        }
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    groups
        .into_iter()
        .map(|(lane, queues)| {
            let since = human_seconds(now.saturating_sub(lane.since));
            let why = lane
                .reason
                .as_ref()
                .map_or(String::new(), |r| format!(": {r}"));
            let (device, state) = (&lane.device, word(lane.state));
            format!(
                "{device}, queues {}: {state} for {since}{why}",
                queues.join(" ")
            )
        })
        .collect()
}

/// `raidctl detail`
pub fn detail(d: &DetailView) {
    let device = d
        .array
        .device
        .as_ref()
        .map_or("-".into(), |p| p.display().to_string());
    line(format_args!("{device}:"));
    let mut rows: Vec<(&str, String)> = vec![
        ("Name", d.array.name.clone()),
        ("UUID", d.array.uuid.clone()),
        ("Level", format!("raid{}", d.array.level)),
        (
            "Size",
            format!(
                "{} ({} bytes)",
                Bytes(d.array.size_bytes),
                d.array.size_bytes
            ),
        ),
    ];
    if d.member_bytes > 0 {
        rows.push(("Used per member", Bytes(d.member_bytes).to_string()));
    }
    rows.push(("Chunk", Bytes(d.array.chunk_bytes).to_string()));
    rows.push(("Layout", d.layout.clone()));
    rows.push(("Logical block", format!("{} bytes", d.logical_block)));
    rows.push(("State", d.array.state.clone()));
    if let Some(sweep) = &d.resync {
        let eta = sweep
            .eta_seconds
            .map_or(String::new(), |s| format!(", {} left", human_seconds(s)));
        let rate = Bytes(sweep.rate_bytes_per_s);
        rows.push((
            "Progress",
            format!("{} {}%, {rate}/s{eta}", word(sweep.kind), sweep.percent),
        ));
    }
    if d.limits.paused {
        rows.push(("Walks", super::scrub::limits(d)));
    }
    if let Some(last) = d.scrubs.last().filter(|s| s.ended.is_some()) {
        let text = format!(
            "{} sectors differed, {} put right",
            last.mismatch_sectors, last.repaired_sectors
        );
        rows.push(("Last scrub", text));
    }
    if let Some(b) = &d.bitmap {
        let chunk = Bytes(b.chunk_bytes);
        rows.push((
            "Bitmap",
            format!(
                "internal, chunk {chunk}, {} of {} chunks dirty",
                b.dirty, b.chunks
            ),
        ));
    }
    rows.push((
        "Members",
        format!("{}, {} degraded", slots(&d.array), d.degraded),
    ));
    rows.push(("Events", d.events.to_string()));
    rows.push(("Parity engine", d.parity_engine.clone()));
    if d.parity.iter().any(|c| c.engine != d.parity_engine) {
        rows.push(("", sentence(&d.parity)));
    }
    rows.extend(lanes(&d.gpu).into_iter().map(|text| ("GPU", text)));
    rows.push(("ublk features", d.ublk_features.join(" ")));
    for (key, value) in rows {
        line(format_args!("{key:>16} : {value}"));
    }
    line("");
    line(members(&d.array));
}

/// The plan of a create or an assemble. A planned array has no uuid yet that it would keep.
pub fn plan(a: &ArrayView) {
    let uuid = if a.state == "planned" {
        String::new()
    } else {
        format!(", uuid {}", a.uuid)
    };
    line(format_args!(
        "raid{} of {} members, {} usable, chunk {}, name {}{uuid}",
        a.level,
        a.members.iter().filter(|m| m.slot.is_some()).count(),
        Bytes(a.size_bytes),
        Bytes(a.chunk_bytes),
        a.name,
    ));
    line(members(a));
}

/// Remarks, to standard error so that standard output stays what scripts expect.
pub fn remarks(kind: &str, problems: &[Problem]) {
    for problem in problems {
        say(format_args!("{kind}: {problem}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_alike_share_a_line() {
        use crate::array_api::LaneState;
        let lane = |state, reason: Option<&str>| LaneStatus {
            device: "GPU 0 (Card)".into(),
            state,
            reason: reason.map(str::to_string),
            since: u64::MAX,
            failed_opens: 0,
        };
        let gpu = GpuStatus {
            setting: "auto".into(),
            unavailable: None,
            lanes: vec![
                lane(LaneState::Active, None),
                lane(LaneState::Lost, Some("a kernel fault")),
                lane(LaneState::Active, None),
            ],
        };
        let text = lanes(&gpu);
        assert_eq!(text.len(), 2);
        assert!(
            text[0].starts_with("GPU 0 (Card), queues 0 2: active for 0"),
            "{text:?}"
        );
        assert!(text[1].contains("queues 1: lost for") && text[1].ends_with(": a kernel fault"));
        let none = GpuStatus {
            setting: "3".into(),
            unavailable: Some("there is no GPU 3".into()),
            lanes: vec![],
        };
        assert_eq!(lanes(&none), ["off: there is no GPU 3 (gpu: 3)"]);
        assert!(lanes(&GpuStatus::default()).is_empty());
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(
            printable("a\x1b[2Jb\r\tc\nd"),
            "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\nd"
        );
    }
}
