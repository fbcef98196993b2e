//! `cargo xtask demo`: the main job from create to mdadm, on this machine where it has ublk and we are root, else in a bed.

use crate::count::Count;
use crate::vm::{self, Bed, VmOptions};
use crate::{build, paths, setup, sh};
use anyhow::{Result, bail};
use clap::Args;
use std::path::Path;

/// Levels that the demo knows.
pub const LEVELS: [&str; 3] = ["0", "5", "6"];

/// Size of a member in a bed: eight of them hold the tree and are resynced in seconds.
const MEMBER_MIB: u64 = 256;

#[derive(Args, Debug)]
pub struct DemoCommand {
    /// RAID level.
    #[arg(long, default_value = "6", value_parser = LEVELS)]
    level: String,
    /// File system.
    #[arg(long, default_value = "xfs", value_parser = ["xfs", "ext4"])]
    fs: String,
    /// Run in this bed, even where this machine could do it itself.
    #[arg(long, value_enum)]
    bed: Option<Bed>,
    /// Kernel of the bed: see `cargo xtask vm --help`.
    #[arg(long)]
    kernel: Option<String>,
    /// Build and use unoptimised programs.
    #[arg(long)]
    dev: bool,
    /// Members, whose content is destroyed (default on a real machine: eight loop devices). At least two for level 0,
    /// three for 5, four for 6.
    devices: Vec<String>,
}

impl DemoCommand {
    pub fn run(self) -> Result<i32> {
        setup::prepare(false);
        let profile = if self.dev {
            build::Profile::Dev
        } else {
            build::Profile::Release
        };
        let binaries = build::binaries(profile)?;
        if self.bed.is_none() && host_is_able() {
            return on_host(&self, &binaries);
        }
        if !self.devices.is_empty() {
            bail!(
                "devices can only be used on a machine with ublk (modprobe ublk_drv), as root and without --bed"
            );
        }
        let bed = self.bed.unwrap_or_else(Bed::default_here);
        println!(
            "No ublk here or not root, or a bed was asked for: running in the {} bed.",
            bed.name()
        );
        let command = script(&self.level, &self.fs, &binaries, &[]);
        vm::run(&options(bed, self.kernel), &command)
    }
}

/// Runs the demo in a bed as a test: each of its steps counts.
pub fn checked(level: &str, bed: Bed, binaries: &Path) -> Result<Count> {
    // Both file systems get their turn.
    let fs = if level == "5" { "ext4" } else { "xfs" };
    let mut counted = script(level, fs, binaries, &[]);
    counted.insert(1, "DEMO_COUNT=1".to_owned());
    let mut count = Count::default();
    let code = vm::run_lines(
        &options(bed, None),
        &script(level, fs, binaries, &[]),
        &mut |line| {
            println!("{line}");
            if let Some(one) = Count::of_script_line(line) {
                count += one;
            }
        },
    )?;
    if code != 0 && count.failed == 0 {
        println!("not ok demo-{level} # exit status {code}");
        count += Count::fail();
    }
    Ok(count)
}

fn options(bed: Bed, kernel: Option<String>) -> VmOptions {
    let mut options = VmOptions {
        bed: Some(bed),
        kernel,
        drives: 8,
        drive_mib: MEMBER_MIB,
        seconds: Some(if bed == Bed::Qemu { 900 } else { 300 }),
        ..VmOptions::default()
    };
    if bed == Bed::Uml {
        options
            .append
            .push(format!("brd.rd_size={}", MEMBER_MIB << 10));
        options.memory = Some("5G".to_owned());
    }
    options
}

/// The command that runs the demo's script.
fn script(level: &str, fs: &str, binaries: &Path, devices: &[String]) -> Vec<String> {
    vec![
        "env".to_owned(),
        format!("DEMO_LEVEL={level}"),
        format!("DEMO_FS={fs}"),
        format!("DEMO_MEMBERS={}", devices.join(" ")),
        format!("RAIDD_BIN_DIR={}", binaries.display()),
        "bash".to_owned(),
        paths::repo().join("xtask/demo.sh").display().to_string(),
    ]
}

fn on_host(demo: &DemoCommand, binaries: &Path) -> Result<i32> {
    let words = script(&demo.level, &demo.fs, binaries, &demo.devices);
    let status = sh::cmd(&words[0], &words[1..]).status()?;
    Ok(status.code().unwrap_or(1))
}

/// True where arrays can be made right here.
fn host_is_able() -> bool {
    let control = Path::new("/dev/ublk-control");
    if !sh::is_root() {
        return false;
    }
    if !control.exists()
        && let Some(modprobe) = sh::which("modprobe")
    {
        // Failing is an answer too: the node does not appear.
        let _ = sh::output(&mut sh::cmd(modprobe, ["-q", "ublk_drv"]));
    }
    control.exists()
}
