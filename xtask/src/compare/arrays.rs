//! The two sides of the comparison: an mdadm array and a raidd array, made on the same members and taken away again.

use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Node of the mdadm array under measurement.
const MD: &str = "/dev/md127";

/// What MD lets one tune at a parity array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    pub group_thread_cnt: u32,
    pub stripe_cache_size: u32,
    pub skip_copy: u32,
}

impl Knobs {
    /// What a new array has.
    pub const DEFAULT: Knobs = Knobs {
        group_thread_cnt: 0,
        stripe_cache_size: 256,
        skip_copy: 0,
    };
}

impl std::fmt::Display for Knobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "group_thread_cnt {}, stripe_cache_size {}, skip_copy {}",
            self.group_thread_cnt, self.stripe_cache_size, self.skip_copy
        )
    }
}

/// Runs a line of shell with the helpers of the end-to-end scripts at hand.
pub fn with_lib(line: &str) -> Result<String> {
    let lib = paths::repo().join("tests/e2e/lib.sh");
    sh::output(&mut sh::cmd(
        "bash",
        [
            "-c",
            &format!(". {}; {line}", sh::quote(&lib.to_string_lossy())),
        ],
    ))
}

/// The bed's own eight members.
pub fn members() -> Result<Vec<String>> {
    let out = with_lib("members 8 >&2 && echo \"${MEMBERS[*]}\"")?;
    Ok(out.split_whitespace().map(str::to_owned).collect())
}

/// Zeroes on all members: parity of any layout is then right, and RAM disks have their memory.
pub fn zero(members: &[String]) -> Result<()> {
    with_lib(&format!("fill_zero {}", members.join(" "))).map(|_| ())
}

/// Lets MD check the members and returns its mismatch count, in sectors.
pub fn mismatches(members: &[String]) -> Result<u64> {
    let out = with_lib(&format!(
        "md_assemble {} && md_mismatches && md_stop",
        members.join(" ")
    ))?;
    out.trim().parse().context("md reported no mismatch count")
}

/// An mdadm array, stopped on drop.
pub struct Md {
    parity: bool,
}

impl Md {
    pub fn create(level: &str, chunk_kib: u32, members: &[String]) -> Result<Md> {
        let parity = level != "0";
        let mut command = sh::cmd("mdadm", ["--create", MD, "--run", "--metadata=1.2"]);
        command
            .arg(format!("--level={level}"))
            .arg(format!("--chunk={chunk_kib}"))
            .arg(format!("--raid-devices={}", members.len()));
        if parity {
            command.args(["--assume-clean", "--bitmap=none"]);
        }
        sh::output(command.args(members))?;
        Ok(Md { parity })
    }

    pub fn device(&self) -> &'static str {
        MD
    }

    pub fn tune(&self, knobs: Knobs) -> Result<()> {
        if !self.parity {
            return Ok(());
        }
        let set = |name: &str, value: u32| -> Result<()> {
            let path = PathBuf::from("/sys/block/md127/md").join(name);
            std::fs::write(&path, value.to_string())
                .with_context(|| format!("cannot set {}", path.display()))
        };
        set("stripe_cache_size", knobs.stripe_cache_size)?;
        set("skip_copy", knobs.skip_copy)?;
        set("group_thread_cnt", knobs.group_thread_cnt)
    }
}

impl Drop for Md {
    fn drop(&mut self) {
        for _ in 0..20 {
            if sh::output(&mut sh::cmd("mdadm", ["--stop", MD])).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        eprintln!("compare: cannot stop {MD}");
    }
}

/// A running raidd with one array. `stop` ends both; a drop without it kills the daemon.
pub struct Raidd {
    daemon: Child,
    socket: PathBuf,
    device: String,
    /// What `raidctl detail` says of the parity engine and the ublk features in use.
    pub features: String,
}

impl Raidd {
    pub fn create(level: &str, chunk_kib: u32, members: &[String]) -> Result<Raidd> {
        let socket =
            std::env::temp_dir().join(format!("raidd-compare-{}.sock", std::process::id()));
        let log = std::fs::File::create(socket.with_extension("log"))?;
        let daemon = sh::cmd(program("raidd"), ["--socket"])
            .arg(&socket)
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .spawn()
            .context("cannot start raidd")?;
        let mut raidd = Raidd {
            daemon,
            socket,
            device: String::new(),
            features: String::new(),
        };
        let start = Instant::now();
        while let Err(error) = sh::output(raidd.ctl().arg("list")) {
            if raidd.daemon.try_wait()?.is_some() || start.elapsed() > Duration::from_secs(10) {
                let log =
                    std::fs::read_to_string(raidd.socket.with_extension("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or("it said nothing");
                bail!("raidd did not come up: {error:#}; its log ends with: {last}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let text = sh::output(
            raidd
                .ctl()
                .args([
                    "create",
                    "--output",
                    "json",
                    "--yes",
                    "--assume-clean",
                    // As md is made here: without one.
                    "--bitmap=none",
                    "--level",
                    level,
                ])
                .arg(format!("--chunk={chunk_kib}K"))
                .args(members),
        )?;
        let value: serde_json::Value =
            serde_json::from_str(&text).context("raidctl's JSON does not parse")?;
        raidd.device = value["device"]
            .as_str()
            .context("raidctl create names no device")?
            .to_owned();
        let text = sh::output(
            raidd
                .ctl()
                .args(["detail", "--output", "json", &raidd.device]),
        )?;
        let value: serde_json::Value =
            serde_json::from_str(&text).context("raidctl's JSON does not parse")?;
        raidd.features = format!(
            "parity engine {}, ublk features {}",
            value["parity_engine"], value["ublk_features"]
        );
        Ok(raidd)
    }

    pub fn device(&self) -> &str {
        &self.device
    }

    pub fn stop(mut self) -> Result<()> {
        let device = self.device.clone();
        sh::output(self.ctl().args(["stop", &device]))?;
        sh::output(&mut sh::cmd(
            "kill",
            ["-TERM", &self.daemon.id().to_string()],
        ))?;
        let start = Instant::now();
        while self.daemon.try_wait()?.is_none() {
            if start.elapsed() > Duration::from_secs(20) {
                bail!("raidd does not end");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn ctl(&self) -> Command {
        let mut command = Command::new(program("raidctl"));
        command.env("RAIDD_SOCKET", &self.socket);
        command
    }
}

impl Drop for Raidd {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            // Only after an error: a stopped array has let its daemon end.
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn program(name: &str) -> PathBuf {
    match std::env::var_os("RAIDD_BIN_DIR") {
        Some(dir) => PathBuf::from(dir).join(name),
        None => paths::target().join("release").join(name),
    }
}
