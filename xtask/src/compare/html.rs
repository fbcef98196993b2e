//! The report as one self-contained page: the table and a bar chart for each job, drawn as inline SVG.

use super::Plan;
use super::fio::Job;
use super::report::{self, Report, Side};
use std::fmt::Write as _;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1d2430; --soft: #667085; --line: #d5dae3; --page: #fff; --a: #b7bfcc; --b: #6b7a90; --c: #1f6feb; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ef; --soft: #98a2b3; --line: #344054; --page: #14181f; --a: #4b5565; --b: #8794a8; --c: #58a6ff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: var(--soft); } dd { margin: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; white-space: nowrap; font-size: 14px; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right; } th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; } tr.ratio td { font-weight: 600; border-bottom-width: 2px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(480px, 1fr)); gap: 1.5rem; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--text); } svg .soft { fill: var(--soft); }
.raw, .md { fill: var(--a); } .best { fill: var(--b); } .raidd { fill: var(--c); } .failed { color: #d92d20; }
";

pub fn page(plan: &Plan, report: &Report) -> String {
    let mut text = String::from("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
    text +=
        "<meta name=\"viewport\" content=\"width=device-width\">\n<title>raidd and mdadm</title>\n";
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<style>{STYLE}</style>\n<h1>raidd and mdadm on the same members, in turn</h1>\n<dl>"
    );
    for (name, value) in &report.head {
        let _ = writeln!(text, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    text += "</dl>\n<p>Read the ratios: members in memory and guest kernels make absolute figures worthless elsewhere.</p>\n";
    for failure in &report.failures {
        let _ = writeln!(text, "<p class=\"failed\">Failed: {}</p>", escape(failure));
    }
    text += "<div class=\"wide\"><table>\n<tr><th>configuration</th>";
    for column in report::columns(plan) {
        let _ = write!(text, "<th>{}</th>", escape(&column));
    }
    text += "</tr>\n";
    for (name, cells) in report::rows(plan, report) {
        let class = if name.contains('/') {
            " class=\"ratio\""
        } else {
            ""
        };
        let _ = write!(text, "<tr{class}><td>{}</td>", escape(&name));
        for cell in cells {
            let _ = write!(text, "<td>{}</td>", escape(&cell));
        }
        text += "</tr>\n";
    }
    text += "</table></div>\n<h2>Charts</h2>\n<p>Bars are medians, the thin line spans all runs.</p>\n<div class=\"charts\">\n";
    for job in &plan.jobs {
        text += &chart(plan, report, job);
    }
    text += "</div>\n";
    if !report.knobs.is_empty() {
        text += "<h2>MD's best knobs</h2>\n<ul>\n";
        for (level, job, knobs) in &report.knobs {
            let _ = writeln!(text, "<li>RAID {level}, {job}: {knobs}</li>");
        }
        text += "</ul>\n";
    }
    for (level, count) in &report.gates {
        let _ = writeln!(
            text,
            "<p>RAID {level}: md's check after raidd's last round: mismatch_cnt {count}</p>"
        );
    }
    text
}

/// One bar for each configuration.
fn chart(plan: &Plan, report: &Report, job: &Job) -> String {
    let mut bars = vec![("raw", Side::Raw)];
    for level in &plan.levels {
        bars.extend(
            [Side::MdDefault, Side::MdBest, Side::Raidd].map(|side| (level.as_str(), side)),
        );
    }
    bars.retain(|(level, side)| !report.all(level, job, *side).is_empty());
    let most = bars
        .iter()
        .flat_map(|(level, side)| report.all(level, job, *side))
        .copied()
        .fold(1.0_f64, f64::max);
    let (left, width, step) = (190.0, 230.0, 22.0);
    let height = 30.0 + step * bars.len() as f64;
    let mut text = format!(
        "<figure><svg viewBox=\"0 0 500 {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
        escape(job.title)
    );
    let _ = writeln!(
        text,
        "<text x=\"0\" y=\"14\">{}, {}</text>",
        escape(job.title),
        job.unit.name()
    );
    let mut y = 26.0;
    for (level, side) in bars {
        let all = report.all(level, job, side);
        let value = report::median(all).unwrap_or(0.0);
        let x = |rate: f64| left + width * rate / most;
        let (low, high) = all.iter().fold((f64::MAX, 0.0_f64), |(low, high), rate| {
            (low.min(*rate), high.max(*rate))
        });
        let class = match side {
            Side::Raw => "raw",
            Side::MdDefault => "md",
            Side::MdBest => "best",
            Side::Raidd => "raidd",
        };
        let name = if side == Side::Raw {
            "raw members".to_owned()
        } else {
            format!("RAID {level} {}", side.name())
        };
        let note = match (side, report.ratio(level, job)) {
            (Side::Raidd, Some(ratio)) => {
                format!("{} ({ratio:.2}x)", report::figure(Some(value), job.unit))
            }
            _ => report::figure(Some(value), job.unit),
        };
        let (base, middle) = (y + 12.0, y + 7.5);
        let (long, from, to, end) = (x(value) - left, x(low), x(high), x(value.max(high)) + 6.0);
        let _ = writeln!(
            text,
            "<text class=\"soft\" x=\"0\" y=\"{base:.1}\">{}</text>\
             <rect class=\"{class}\" x=\"{left}\" y=\"{y:.1}\" width=\"{long:.1}\" height=\"15\" rx=\"2\"/>\
             <line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"var(--text)\"/>\
             <text x=\"{end:.1}\" y=\"{base:.1}\">{note}</text>",
            escape(&name),
        );
        y += step;
    }
    text + "</svg></figure>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<b>\"&\""), "&lt;b&gt;&quot;&amp;&quot;");
    }
}
