//! `cargo xtask test`: everything that can be checked on this machine. What it lacks is skipped, named and counted.
//! The last line is `N passed, N failed, N skipped`; the exit status is 1 if anything failed.

use crate::count::Count;
use crate::vm::{self, Bed};
use crate::{build, demo, e2e, paths, ptx, setup, sh, tidy};
use anyhow::{Context, Result};
use clap::Args;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

#[derive(Args, Debug)]
pub struct TestCommand {
    /// Leave out everything that needs a guest.
    #[arg(long)]
    fast: bool,
    /// Run the guest parts in this bed only.
    #[arg(long, value_enum)]
    bed: Option<Bed>,
}

/// Runs and reports the parts, keeping the sum.
struct Report {
    total: Count,
    start: Instant,
}

impl Report {
    fn part(&mut self, name: &str, run: impl FnOnce() -> Result<Count>) {
        println!(
            "=== {name} (at {:.0} s)",
            self.start.elapsed().as_secs_f64()
        );
        let start = Instant::now();
        let count = run().unwrap_or_else(|error| {
            println!("not ok {name} # {error:#}");
            Count::fail()
        });
        println!(
            "=== {name}: {count} ({:.1} s)",
            start.elapsed().as_secs_f64()
        );
        self.total += count;
    }
}

impl TestCommand {
    pub fn run(self) -> Result<i32> {
        setup::prepare(!self.fast);
        let mut report = Report {
            total: Count::default(),
            start: Instant::now(),
        };
        report.part("format", || cargo(&["fmt", "--all", "--check"]));
        report.part("tidy", || {
            let found = tidy::findings()?;
            for line in &found {
                println!("not ok tidy # {line}");
            }
            Ok(if found.is_empty() {
                Count::pass()
            } else {
                Count::fail()
            })
        });
        report.part("clippy", || {
            cargo(&[
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ])
        });
        report.part("dependencies", dependencies);
        report.part("PTX", ptx::check);
        report.part("cargo test", cargo_test);
        report.part("cargo test for 64-bit ARM", arm_test);
        if self.fast {
            println!("skip guests # --fast");
            report.total += Count::skip();
        } else {
            self.guests(&mut report);
        }
        println!("{}", report.total);
        Ok(i32::from(report.total.failed > 0))
    }

    fn guests(&self, report: &mut Report) {
        // Most end-to-end scripts need the UML bed. Where there is no kernel for it yet, ten minutes make one.
        if self.bed.is_none() && paths::uml_kernel().is_none() && sh::is_root() {
            report.part("UML kernel", || vm::build_uml().map(|_| Count::pass()));
        }
        let beds = match self.bed {
            Some(bed) => vec![bed],
            None => e2e::beds(),
        };
        for bed in [Bed::Uml, Bed::Qemu] {
            if !beds.contains(&bed) {
                let how = match bed {
                    Bed::Uml => "no UML kernel at hand: cargo xtask vm build-uml",
                    Bed::Qemu => "no qemu-system-x86_64: install qemu-system-x86",
                };
                println!("skip bed-{} # {how}", bed.name());
                report.total += Count::skip();
            }
        }
        if beds.is_empty() {
            return;
        }
        let mut binaries = None;
        report.part("build", || {
            binaries = Some(build::binaries(build::Profile::Dev)?);
            Ok(Count::pass())
        });
        let Some(binaries) = binaries else {
            return;
        };
        report.part("end-to-end", || {
            e2e::run(&e2e::all()?, self.bed, None, &binaries)
        });
        for bed in beds {
            for level in demo::LEVELS {
                let name = format!("demo level {level} in {}", bed.name());
                report.part(&name, || demo::checked(level, bed, &binaries));
            }
        }
    }
}

/// One cargo command that passes or fails as a whole.
fn cargo(args: &[&str]) -> Result<Count> {
    sh::run(sh::cmd("cargo", args).current_dir(paths::repo()))?;
    Ok(Count::pass())
}

/// Licences, banned crates and advisories, where cargo-deny is installed.
fn dependencies() -> Result<Count> {
    if sh::output(&mut sh::cmd("cargo", ["deny", "--version"])).is_err() {
        println!("skip cargo-deny # not installed: cargo install cargo-deny");
        return Ok(Count::skip());
    }
    cargo(&[
        "deny",
        "--log-level",
        "error",
        "check",
        "bans",
        "licenses",
        "sources",
    ])
}

/// All unit, property and document tests, counted.
fn cargo_test() -> Result<Count> {
    counted(&mut sh::cmd(
        "cargo",
        ["test", "--workspace", "--no-fail-fast"],
    ))
}

/// The parity kernels on the other processor they know, by user-mode emulation.
fn arm_test() -> Result<Count> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    const LINKER: &str = "aarch64-linux-gnu-gcc";
    const EMULATOR: &str = "qemu-aarch64";
    if std::env::consts::ARCH == "aarch64" {
        return Ok(Count::default());
    }
    for (program, package) in [(LINKER, "gcc-aarch64-linux-gnu"), (EMULATOR, "qemu-user")] {
        if sh::which(program).is_none() {
            println!("skip 64-bit ARM # no {program}: install {package}");
            return Ok(Count::skip());
        }
    }
    let libdir = ["--print", "target-libdir", "--target", TARGET];
    let libdir = sh::output(sh::cmd("rustc", libdir).current_dir(paths::repo()))?;
    if !std::path::Path::new(libdir.trim()).exists() {
        println!("skip 64-bit ARM # no standard library for it: rustup target add {TARGET}");
        return Ok(Count::skip());
    }
    let mut args = vec![
        "test",
        "-p",
        "parity-kernels",
        "--no-fail-fast",
        "--target",
        TARGET,
        "--lib",
    ];
    for test in [
        "arena",
        "calibrate",
        "conform",
        "engines",
        "field",
        "locate",
    ] {
        args.extend(["--test", test]);
    }
    counted(
        sh::cmd("cargo", args)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
                format!("{EMULATOR} -L /usr/aarch64-linux-gnu"),
            ),
    )
}

/// A run of `cargo test`, counted by what it prints.
fn counted(command: &mut std::process::Command) -> Result<Count> {
    let mut child = command
        .current_dir(paths::repo())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let mut count = Count::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            println!("{line}");
            if let Some(one) = Count::of_cargo_line(&line) {
                count += one;
            }
        }
    }
    if !child.wait()?.success() && count.failed == 0 {
        println!("not ok cargo-test # did not build, or a test program crashed");
        count += Count::fail();
    }
    Ok(count)
}
