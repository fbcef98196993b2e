//! `status`, `wait`, `rebuild status` and `resync status`: how far background walks are, for people and programs. Asks the
//! daemon once a look; nothing is kept between looks.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::args::{Cli, Status, Wait, WalkVerb};
use super::exit::{self, Failure};
use super::show;
use super::verbs::{ask_daemon, unexpected};
use crate::array_api::{Health, MemberState, SweepKind};
use crate::control::protocol::{Command, DetailRequest, DetailView, Reply, SweepView};
use crate::units::{Bytes, human_seconds};

/// Cells of a progress bar.
const BAR: usize = 30;
/// Time between two looks of `wait`.
const LOOK: Duration = Duration::from_millis(300);

/// `raidctl status`
pub fn status(cli: &Cli, args: &Status, json: bool) -> exit::Outcome {
    let pause = Duration::from_secs(args.interval);
    let redraw = args.watch && !json && std::io::stdout().is_terminal();
    let mut drawn = 0;
    loop {
        let details = look(cli, args.array.as_deref())?;
        if json && args.watch {
            // One line a look, for programs that read along.
            let text = serde_json::to_string(&serde_json::json!({ "arrays": details }));
            show::line(text.unwrap_or_default());
        } else if json {
            show::json(&serde_json::json!({ "arrays": details }));
        } else {
            let lines = lines(&details);
            if redraw && drawn > 0 {
                // Up to where the last picture began, and away with it.
                let mut out = std::io::stdout().lock();
                let _ = write!(out, "\x1b[{drawn}A\x1b[J");
            }
            drawn = lines.len();
            lines.iter().for_each(show::line);
        }
        if !args.watch || show::unwritten().is_some() {
            return Ok(exit::DONE);
        }
        std::thread::sleep(pause);
    }
}

/// `raidctl wait`: like `mdadm --wait`, 0 if there was something to wait for everywhere and it has ended, else 1.
pub fn wait(cli: &Cli, args: &Wait, json: bool) -> exit::Outcome {
    let mut waited = Vec::new();
    for array in &args.arrays {
        let mut any = false;
        let end = loop {
            let detail = detail(cli, array)?;
            if !busy(&detail) {
                break detail;
            }
            any = true;
            std::thread::sleep(LOOK);
        };
        if end.health == Health::Failed {
            let message = format!("{} has failed", end.array.name);
            return Err(Failure::new(exit::FAILED, "array_failed", message));
        }
        waited.push(any);
        if !json {
            let what = match any {
                true => "nothing runs any more",
                false => "nothing was to be waited for",
            };
            show::line(format_args!(
                "{}: {what}, {}",
                end.array.name, end.array.state
            ));
        }
    }
    let all = waited.iter().all(|any| *any);
    if json {
        show::json(&serde_json::json!({ "waited": all }));
    }
    Ok(if all { exit::DONE } else { exit::FAILED })
}

/// `raidctl rebuild status`, `raidctl resync status`
pub fn walk(cli: &Cli, verb: &WalkVerb, kind: SweepKind, json: bool) -> exit::Outcome {
    let WalkVerb::Status { array } = verb;
    let detail = detail(cli, array)?;
    let sweep = detail.resync.as_ref().filter(|s| s.kind == kind);
    let name = match kind {
        SweepKind::Recover => "rebuild",
        _ => "resync",
    };
    if json {
        show::json(&serde_json::json!({ "array": detail.array.name, name: sweep }));
        return Ok(exit::DONE);
    }
    match sweep {
        Some(sweep) => show::line(format_args!("{}: {}", detail.array.name, progress(sweep))),
        None => show::line(format_args!("{}: no {name} runs", detail.array.name)),
    }
    Ok(exit::DONE)
}

pub(super) fn detail(cli: &Cli, array: &str) -> Result<DetailView, Failure> {
    let request = DetailRequest {
        array: array.into(),
    };
    match ask_daemon(cli, Command::Detail(request))? {
        Reply::Detail(view) => Ok(*view),
        _ => Err(unexpected(cli)),
    }
}

fn look(cli: &Cli, array: Option<&str>) -> Result<Vec<DetailView>, Failure> {
    if let Some(array) = array {
        return Ok(vec![detail(cli, array)?]);
    }
    let Reply::List { arrays } = ask_daemon(cli, Command::List)? else {
        return Err(unexpected(cli));
    };
    let details = arrays.iter().map(|a| detail(cli, &a.uuid));
    // One that was stopped in between is no error.
    Ok(details.filter_map(Result::ok).collect())
}

/// A walk runs, or one is about to begin: a slot is free and a spare is there.
fn busy(detail: &DetailView) -> bool {
    let has = |state| detail.array.members.iter().any(|m| m.state == state);
    let lacks = detail.degraded > 0 && detail.health == Health::Degraded;
    detail.resync.is_some()
        || has(MemberState::Rebuilding)
        || (lacks && !detail.read_only && has(MemberState::Spare))
}

/// `[=====>....] 42.0%, 1.2 GiB/s, 3 min left`
pub(super) fn progress(sweep: &SweepView) -> String {
    let cells = (sweep.percent / 100.0 * BAR as f64) as usize;
    let cells = cells.min(BAR);
    let bar: String = (0..BAR)
        .map(|i| match i {
            i if i < cells => '=',
            i if i == cells => '>',
            _ => '.',
        })
        .collect();
    let kind = match sweep.kind {
        SweepKind::Resync => "resync",
        SweepKind::Recover => "rebuild",
        SweepKind::Check => "check",
        SweepKind::Repair => "repair",
    };
    let left = sweep
        .eta_seconds
        .map_or(String::new(), |s| format!(", {} left", human_seconds(s)));
    let rate = Bytes(sweep.rate_bytes_per_s);
    format!("{kind} [{bar}] {:.1}%, {rate}/s{left}", sweep.percent)
}

fn lines(details: &[DetailView]) -> Vec<String> {
    if details.is_empty() {
        return vec!["no arrays are running".into()];
    }
    let mut out = Vec::new();
    for d in details {
        let device = d
            .array
            .device
            .as_ref()
            .map_or("-".into(), |p| p.display().to_string());
        let slots = d
            .array
            .members
            .iter()
            .filter_map(|m| m.slot)
            .max()
            .map_or(0, |s| s + 1);
        let whole = slots - d.degraded.min(slots);
        out.push(format!(
            "{} ({device}): raid{} [{slots}/{whole}], {}",
            d.array.name, d.array.level, d.array.state
        ));
        if let Some(sweep) = &d.resync {
            out.push(format!("  {}", progress(sweep)));
        }
        for m in d
            .array
            .members
            .iter()
            .filter(|m| m.state != MemberState::InSync)
        {
            let slot = m.slot.map_or("-".into(), |s| s.to_string());
            let path = m
                .path
                .as_ref()
                .map_or("-".into(), |p| p.display().to_string());
            let state = match m.state {
                MemberState::InSync => "in sync",
                MemberState::Rebuilding => "rebuilding",
                MemberState::Spare => "spare",
                MemberState::Faulty => "failed",
                MemberState::Missing => "missing",
            };
            out.push(format!("  slot {slot}: {state} {path}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_from_begin_to_end() {
        let at = |percent, eta| SweepView {
            kind: SweepKind::Recover,
            percent,
            done_bytes: 0,
            total_bytes: 0,
            rate_bytes_per_s: 3 << 20,
            eta_seconds: eta,
        };
        let text = progress(&at(0.0, None));
        assert_eq!(text, format!("rebuild [>{}] 0.0%, 3 MiB/s", ".".repeat(29)));
        let text = progress(&at(50.0, Some(90)));
        assert!(
            text.contains(&format!("[{}>{}]", "=".repeat(15), ".".repeat(14))),
            "{text}"
        );
        assert!(text.ends_with(" left"), "{text}");
        assert!(progress(&at(100.0, None)).contains(&"=".repeat(BAR)));
    }
}
