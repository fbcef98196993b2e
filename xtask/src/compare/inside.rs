//! The measurement itself, where the members are: raw members, then for each level a sweep of MD's knobs and rounds in
//! which mdadm and raidd take turns on zeroed members.

use super::arrays::{self, Knobs, Md, Raidd};
use super::fio::{self, Job};
use super::report::{Key, Report, Side};
use super::{Plan, html, report, sweep};
use crate::sh;
use anyhow::{Context, Result, bail};

pub fn run(plan: &Plan) -> Result<i32> {
    if !sh::is_root() {
        bail!("measuring needs root");
    }
    let members = if plan.devices.is_empty() {
        arrays::members()?
    } else {
        plan.devices.clone()
    };
    println!("members: {}", members.join(" "));
    let mut report = Report::new(head(plan, &members));
    arrays::zero(&members)?;
    raw(plan, &members, &mut report)?;
    for level in &plan.levels {
        measure_level(plan, level, &members, &mut report)?;
    }
    raw(plan, &members, &mut report)?;
    report
        .head
        .push(("MD's RAID 6 routine".to_owned(), raid6_routine()));
    let markdown = report::markdown(plan, &report);
    std::fs::create_dir_all(&plan.out)?;
    std::fs::write(plan.out.join("README.md"), &markdown)?;
    std::fs::write(plan.out.join("results.csv"), report::csv(plan, &report))?;
    std::fs::write(plan.out.join("index.html"), html::page(plan, &report))?;
    println!("\n{markdown}");
    println!(
        "written: README.md, results.csv, index.html in {}",
        plan.out.display()
    );
    Ok(i32::from(report.failed))
}

/// All members at once, without any array: the ceiling.
fn raw(plan: &Plan, members: &[String], report: &mut Report) -> Result<()> {
    let all = members.join(":");
    for job in plan.jobs.iter().filter(|job| job.name != "dd") {
        let rate = fio::run(job, &all, &plan.scale)?;
        println!("  raw members, {}: {rate:.0} {}", job.name, job.unit.name());
        report.add(Key::new("raw", job, Side::Raw), rate);
    }
    Ok(())
}

fn measure_level(plan: &Plan, level: &str, members: &[String], report: &mut Report) -> Result<()> {
    println!("RAID {level}: sweep of md's knobs");
    arrays::zero(members)?;
    let best = {
        let md = Md::create(level, plan.chunk_kib, members)?;
        sweep::run(plan, level, &md)?
    };
    for (job, knobs) in &best {
        report
            .knobs
            .push((level.to_owned(), (*job).to_owned(), knobs.to_string()));
    }
    for round in 0..plan.rounds {
        // Each side goes first in every other round.
        let order = if round % 2 == 0 {
            [Side::MdBest, Side::Raidd]
        } else {
            [Side::Raidd, Side::MdBest]
        };
        for side in order {
            println!(
                "RAID {level}, round {} of {}: {}",
                round + 1,
                plan.rounds,
                side.name()
            );
            arrays::zero(members)?;
            match side {
                Side::Raidd => {
                    if let Err(error) =
                        raidd_round(plan, level, members, report, round + 1 == plan.rounds)
                    {
                        println!("  raidd: {error:#}");
                        report.fail(format!("RAID {level}, round {}: {error:#}", round + 1));
                    }
                }
                _ => md_round(plan, level, members, &best, report)?,
            }
        }
    }
    Ok(())
}

fn md_round(
    plan: &Plan,
    level: &str,
    members: &[String],
    best: &sweep::Best,
    report: &mut Report,
) -> Result<()> {
    let md = Md::create(level, plan.chunk_kib, members)?;
    // One pass that does not count, so that both sides start on warm memory.
    warm_up(plan, md.device())?;
    for job in &plan.jobs {
        let knobs = best.get(job.name).copied();
        // As it comes, for the parity levels and for those jobs where the knobs matter.
        if let Some(knobs) = knobs
            && job.writes
            && !plan.quick
            && knobs != Knobs::DEFAULT
        {
            md.tune(Knobs::DEFAULT)?;
            one(plan, level, job, Side::MdDefault, md.device(), report)?;
        }
        if let Some(knobs) = knobs {
            md.tune(knobs)?;
        }
        one(plan, level, job, Side::MdBest, md.device(), report)?;
    }
    Ok(())
}

fn raidd_round(
    plan: &Plan,
    level: &str,
    members: &[String],
    report: &mut Report,
    last: bool,
) -> Result<()> {
    let raidd = Raidd::create(level, plan.chunk_kib, members)?;
    let features = raidd.features.clone();
    if !report.head.iter().any(|(_, value)| *value == features) {
        report.head.push((format!("raidd RAID {level}"), features));
    }
    warm_up(plan, raidd.device())?;
    for job in &plan.jobs {
        one(plan, level, job, Side::Raidd, raidd.device(), report)?;
    }
    raidd.stop()?;
    if last && level != "0" {
        // The figures count only if the bytes do: md looks at every stripe that raidd wrote.
        let count = arrays::mismatches(members)?;
        println!("  md check after raidd: mismatch_cnt {count}");
        report.gates.push((level.to_owned(), count));
        if count != 0 {
            report.fail(format!("RAID {level}: md found {count} mismatched sectors"));
        }
    }
    Ok(())
}

fn warm_up(plan: &Plan, device: &str) -> Result<()> {
    let mut scale = plan.scale;
    scale.runtime = 1;
    fio::run(&fio::JOBS[0], device, &scale).map(|_| ())
}

fn one(
    plan: &Plan,
    level: &str,
    job: &Job,
    side: Side,
    device: &str,
    report: &mut Report,
) -> Result<()> {
    let rate =
        fio::run(job, device, &plan.scale).with_context(|| format!("{} on {device}", job.name))?;
    println!(
        "  RAID {level} {} {}: {rate:.0} {}",
        side.name(),
        job.name,
        job.unit.name()
    );
    report.add(Key::new(level, job, side), rate);
    Ok(())
}

/// What a reader needs to judge and to repeat the figures.
fn head(plan: &Plan, members: &[String]) -> Vec<(String, String)> {
    let first = |program: &str, args: &[&str]| match sh::cmd(program, args).output() {
        // mdadm prints its version to standard error.
        Ok(out) => {
            let text = if out.stdout.is_empty() {
                out.stderr
            } else {
                out.stdout
            };
            String::from_utf8_lossy(&text)
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        }
        Err(_) => "unknown".to_owned(),
    };
    let size = first("blockdev", &["--getsize64", &members[0]])
        .parse::<u64>()
        .unwrap_or(0)
        >> 20;
    let scale = &plan.scale;
    let entry = |name: &str, value: String| (name.to_owned(), value);
    vec![
        entry("place", plan.place.clone()),
        entry("kernel", first("uname", &["-r"])),
        entry(
            "processor",
            format!("{}, {} CPUs", cpu_model(), first("nproc", &[])),
        ),
        entry("members", format!("{} of {size} MiB", members.len())),
        entry(
            "array",
            format!(
                "chunk {} KiB, no bitmap, created with --assume-clean on zeroed members",
                plan.chunk_kib
            ),
        ),
        entry(
            "fio",
            format!(
                "{}; {} jobs x depth {}, direct, {} s after 1 s of ramp",
                first("fio", &["--version"]),
                scale.numjobs,
                scale.iodepth,
                scale.runtime
            ),
        ),
        entry(
            "dd",
            format!("{} MiB direct, mean of runs 2-3", scale.dd_bytes >> 20),
        ),
        entry(
            "rounds",
            format!(
                "{}, raidd and mdadm in turn; figures are medians",
                plan.rounds
            ),
        ),
        entry("mdadm", first("mdadm", &["--version"])),
        entry(
            "commit",
            std::env::var("XTASK_COMMIT").unwrap_or_else(|_| super::commit()),
        ),
    ]
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find(|line| line.starts_with("model name") || line.starts_with("host"));
    match model.and_then(|line| line.split_once(':')) {
        Some((_, name)) => name.trim().to_owned(),
        None => "unknown".to_owned(),
    }
}

fn raid6_routine() -> String {
    let log = sh::output(&mut sh::cmd("dmesg", [] as [&str; 0])).unwrap_or_default();
    let line = log
        .lines()
        .find(|line| line.contains("raid6: using algorithm"));
    match line.and_then(|line| line.split("raid6: ").nth(1)) {
        Some(text) => text.to_owned(),
        None => "not in the kernel log".to_owned(),
    }
}
