//! `scrub` and `set`: what they ask the daemon, and how what a scrub found is shown.

use super::args::{Cli, ScrubVerb, Set};
use super::exit;
use super::member_args::PolicyWord;
use super::show;
use super::status::{detail, progress};
use super::verbs::{ask_daemon, unexpected};
use crate::array_api::{Finding, ScrubPolicy, ScrubReport, SweepKind};
use crate::control::protocol::{Command, DetailView, Reply, ScrubAction, ScrubRequest, SetRequest};
use crate::units::{Bytes, human_seconds};

/// `raidctl scrub`
pub fn scrub(cli: &Cli, verb: &ScrubVerb, json: bool) -> exit::Outcome {
    let request = match verb {
        ScrubVerb::Start(args) => ScrubRequest {
            array: args.array.clone(),
            action: ScrubAction::Start,
            repair: args.repair,
            policy: Some(match args.policy {
                PolicyWord::Locate => ScrubPolicy::Locate,
                PolicyWord::Parity => ScrubPolicy::Parity,
            }),
        },
        ScrubVerb::Stop { array } => ScrubRequest {
            array: array.clone(),
            action: ScrubAction::Stop,
            repair: false,
            policy: None,
        },
        ScrubVerb::Status { array } => {
            let view = detail(cli, array)?;
            show_scrubs(&view, json);
            return Ok(exit::DONE);
        }
    };
    let starts = request.action == ScrubAction::Start;
    let view = send(cli, Command::Scrub(request))?;
    match (json, starts) {
        (true, _) => show_scrubs(&view, true),
        (false, true) => show::line(format_args!(
            "{}: a scrub runs; see 'raidctl scrub status {}'",
            view.array.name, view.array.name
        )),
        (false, false) => show_scrubs(&view, false),
    }
    Ok(exit::DONE)
}

/// `raidctl set`
pub fn set(cli: &Cli, args: &Set, json: bool) -> exit::Outcome {
    let request = SetRequest {
        array: args.array.clone(),
        settings: args.settings.clone(),
    };
    let view = send(cli, Command::Set(request))?;
    if json {
        show::json(&serde_json::json!({ "array": view.array.name, "limits": view.limits }));
    } else {
        show::line(format_args!("{}: {}", view.array.name, limits(&view)));
    }
    Ok(exit::DONE)
}

/// The limits of background walks in a sentence.
pub fn limits(view: &DetailView) -> String {
    let most = view
        .limits
        .ceiling
        .map_or("as fast as it goes".into(), |c| {
            format!("at most {}/s", Bytes(c))
        });
    let paused = match view.limits.paused {
        true => ", paused",
        false => "",
    };
    format!(
        "{}/s beside other load, {most}{paused}",
        Bytes(view.limits.floor)
    )
}

fn send(cli: &Cli, command: Command) -> Result<DetailView, exit::Failure> {
    match ask_daemon(cli, command)? {
        Reply::Detail(view) => Ok(*view),
        _ => Err(unexpected(cli)),
    }
}

fn show_scrubs(view: &DetailView, json: bool) {
    let runs = |kind| matches!(kind, SweepKind::Check | SweepKind::Repair);
    let sweep = view.resync.as_ref().filter(|s| runs(s.kind));
    if json {
        show::json(&serde_json::json!({
            "array": view.array.name, "progress": sweep, "scrubs": view.scrubs,
        }));
        return;
    }
    if view.scrubs.is_empty() {
        show::line(format_args!(
            "{}: no scrub since it was started",
            view.array.name
        ));
    }
    if let Some(sweep) = sweep {
        show::line(format_args!("{}: {}", view.array.name, progress(sweep)));
    }
    for report in view.scrubs.iter().rev() {
        lines(&view.array.name, report).iter().for_each(show::line);
    }
}

fn lines(name: &str, report: &ScrubReport) -> Vec<String> {
    let kind = match report.kind {
        SweepKind::Repair => "repair",
        _ => "check",
    };
    let when = match report.ended {
        None => "runs".to_string(),
        Some(ended) => {
            let took = human_seconds(ended.saturating_sub(report.began));
            let how = match report.complete {
                true => "complete",
                false => "stopped before the end",
            };
            format!("{how}, took {took}")
        }
    };
    let mut out = vec![format!(
        "{name}: {kind}, {when}: {} of each member compared, {} sectors differ, {} put right, {} places unreadable",
        Bytes(report.checked_bytes),
        report.mismatch_sectors,
        report.repaired_sectors,
        report.unreadable
    )];
    out.extend(report.findings.iter().map(finding));
    out
}

/// One place that differs.
fn finding(f: &Finding) -> String {
    let lba = f
        .array_sector
        .map_or(String::new(), |s| format!(", array sector {s}"));
    let end = match f.repaired {
        true => "put right",
        false => "left as it is",
    };
    let sectors = f.sectors;
    match (&f.path, &f.holds, f.device_sector) {
        (Some(path), Some(holds), Some(at)) => format!(
            "  {holds} on {} is wrong: {sectors} sectors from {at} on{lba}; {end}",
            path.display()
        ),
        _ => format!(
            "  parity and data differ, it cannot be told which is wrong: {sectors} sectors from {} on of each member's data{lba}; {end}",
            f.member_sector
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_name_device_and_place() {
        let mut f = Finding {
            slot: Some(2),
            path: Some("/dev/sdc".into()),
            holds: Some("data".into()),
            member_sector: 100,
            device_sector: Some(2148),
            sectors: 8,
            array_sector: Some(777),
            repaired: true,
        };
        assert_eq!(
            finding(&f),
            "  data on /dev/sdc is wrong: 8 sectors from 2148 on, array sector 777; put right"
        );
        (f.slot, f.path, f.holds, f.device_sector) = (None, None, None, None);
        f.repaired = false;
        let text = finding(&f);
        assert!(
            text.contains("cannot be told") && text.contains("from 100 on"),
            "{text}"
        );
        assert!(text.ends_with("left as it is"), "{text}");
    }
}
