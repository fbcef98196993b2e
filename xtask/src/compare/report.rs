//! What was measured, and its shapes as markdown and CSV.

use super::Plan;
use super::fio::{Job, Unit};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Who was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Raw,
    MdDefault,
    MdBest,
    Raidd,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Raw => "raw members",
            Side::MdDefault => "mdadm as it comes",
            Side::MdBest => "mdadm tuned",
            Side::Raidd => "raidd",
        }
    }
}

/// One cell: level, job and side.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub level: String,
    pub job: &'static str,
    pub side: Side,
}

impl Key {
    pub fn new(level: &str, job: &Job, side: Side) -> Key {
        Key {
            level: level.to_owned(),
            job: job.name,
            side,
        }
    }
}

/// All results of one run.
pub struct Report {
    pub head: Vec<(String, String)>,
    cells: BTreeMap<Key, Vec<f64>>,
    /// Level, job, best knobs.
    pub knobs: Vec<(String, String, String)>,
    /// Level, md's mismatch count after raidd's last round.
    pub gates: Vec<(String, u64)>,
    pub failures: Vec<String>,
    pub failed: bool,
}

impl Report {
    pub fn new(head: Vec<(String, String)>) -> Report {
        Report {
            head,
            cells: BTreeMap::new(),
            knobs: Vec::new(),
            gates: Vec::new(),
            failures: Vec::new(),
            failed: false,
        }
    }

    pub fn add(&mut self, key: Key, rate: f64) {
        self.cells.entry(key).or_default().push(rate);
    }

    pub fn fail(&mut self, what: String) {
        self.failures.push(what);
        self.failed = true;
    }

    /// All figures of a cell, in the order they were taken.
    pub fn all(&self, level: &str, job: &Job, side: Side) -> &[f64] {
        self.cells
            .get(&Key::new(level, job, side))
            .map_or(&[], Vec::as_slice)
    }

    pub fn median(&self, level: &str, job: &Job, side: Side) -> Option<f64> {
        median(self.all(level, job, side))
    }

    /// raidd's median over tuned mdadm's.
    pub fn ratio(&self, level: &str, job: &Job) -> Option<f64> {
        let ours = self.median(level, job, Side::Raidd)?;
        let theirs = self.median(level, job, Side::MdBest)?;
        (theirs > 0.0).then_some(ours / theirs)
    }
}

pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// A figure for a table: MB/s whole, IOPS in thousands.
pub fn figure(value: Option<f64>, unit: Unit) -> String {
    match (value, unit) {
        (None, _) => "-".to_owned(),
        (Some(value), Unit::Megabytes) => format!("{value:.0}"),
        (Some(value), Unit::Iops) => format!("{:.1}k", value / 1000.0),
    }
}

/// The table's rows: configuration name, and a cell for each job.
pub fn rows(plan: &Plan, report: &Report) -> Vec<(String, Vec<String>)> {
    let line = |level: &str, side: Side| -> Vec<String> {
        plan.jobs
            .iter()
            .map(|job| figure(report.median(level, job, side), job.unit))
            .collect()
    };
    let mut rows = vec![("raw members".to_owned(), line("raw", Side::Raw))];
    for level in &plan.levels {
        for side in [Side::MdDefault, Side::MdBest, Side::Raidd] {
            let cells = line(level, side);
            if cells.iter().any(|cell| cell != "-") {
                rows.push((format!("RAID {level}, {}", side.name()), cells));
            }
        }
        let ratios = plan.jobs.iter().map(|job| match report.ratio(level, job) {
            Some(ratio) => format!("{ratio:.2}x"),
            None => "-".to_owned(),
        });
        rows.push((
            format!("RAID {level}, raidd / mdadm tuned"),
            ratios.collect(),
        ));
    }
    rows
}

/// Column titles of the table.
pub fn columns(plan: &Plan) -> Vec<String> {
    plan.jobs
        .iter()
        .map(|job| format!("{}, {}", job.title, job.unit.name()))
        .collect()
}

pub fn markdown(plan: &Plan, report: &Report) -> String {
    let mut text = String::from("# raidd and mdadm on the same members, in turn\n\n");
    // Writing to a String cannot fail.
    for (name, value) in &report.head {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text += "\nRead the ratios: members in memory and guest kernels make absolute figures worthless elsewhere.\n\n";
    let columns = columns(plan);
    let _ = writeln!(text, "| configuration | {} |", columns.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(columns.len()));
    for (name, cells) in rows(plan, report) {
        let name = if name.ends_with("mdadm tuned") && name.contains('/') {
            format!("**{name}**")
        } else {
            name
        };
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text += "\n## Spread\n\n| level | job | side | lowest | median | highest | runs |\n|---|---|---|---:|---:|---:|---:|\n";
    for level in std::iter::once("raw").chain(plan.levels.iter().map(String::as_str)) {
        for job in &plan.jobs {
            for side in [Side::Raw, Side::MdDefault, Side::MdBest, Side::Raidd] {
                let all = report.all(level, job, side);
                if !all.is_empty() {
                    let low = all.iter().copied().reduce(f64::min);
                    let high = all.iter().copied().reduce(f64::max);
                    let cell = |value| figure(value, job.unit);
                    let _ = writeln!(
                        text,
                        "| {level} | {} | {} | {} | {} | {} | {} |",
                        job.name,
                        side.name(),
                        cell(low),
                        cell(median(all)),
                        cell(high),
                        all.len()
                    );
                }
            }
        }
    }
    if !report.knobs.is_empty() {
        text += "\n## MD's best knobs\n\n";
        for (level, job, knobs) in &report.knobs {
            let _ = writeln!(text, "- RAID {level}, {job}: {knobs}");
        }
    }
    if !report.gates.is_empty() {
        text += "\n## Correctness in the same run\n\n";
        for (level, count) in &report.gates {
            let _ = writeln!(
                text,
                "- RAID {level}: md's check after raidd's last round: mismatch_cnt {count}"
            );
        }
    }
    if !report.failures.is_empty() {
        text += "\n## Failed\n\n";
        for failure in &report.failures {
            let _ = writeln!(text, "- {}", failure.replace('\n', " "));
        }
    }
    text
}

pub fn csv(plan: &Plan, report: &Report) -> String {
    let mut text = String::from("level,job,unit,side,run,value\n");
    for (key, values) in &report.cells {
        let Some(job) = plan.jobs.iter().find(|job| job.name == key.job) else {
            continue;
        };
        for (run, value) in values.iter().enumerate() {
            let _ = writeln!(
                text,
                "{},{},{},{},{},{value:.1}",
                key.level,
                key.job,
                job.unit.name(),
                key.side.name(),
                run + 1
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Key, Report, Side, figure, median};
    use crate::compare::fio::{JOBS, Unit};

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        let mut report = Report::new(Vec::new());
        let job = &JOBS[0];
        assert_eq!(report.ratio("6", job), None);
        report.add(Key::new("6", job, Side::MdBest), 100.0);
        report.add(Key::new("6", job, Side::Raidd), 150.0);
        assert_eq!(report.ratio("6", job), Some(1.5));
        assert_eq!(figure(Some(12_345.0), Unit::Iops), "12.3k");
    }
}
