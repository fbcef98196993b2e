//! The UML bed: a Linux kernel built as an ordinary program, on the host's own root file system (hostfs).

use super::guest::Job;
use super::process::{self, End, Output};
use super::{GUEST_DIED, TIMED_OUT, VmOptions};
use crate::{paths, sh};
use anyhow::{Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// Each page of a guest process is a mapping of its own in the host: large buffers need more than the usual 65,530.
const MAX_MAP_COUNT: u64 = 4_194_304;

pub fn run(options: &VmOptions, job: &Job, out: Output<'_>) -> Result<i32> {
    let kernel = match &options.kernel {
        Some(path) => PathBuf::from(path),
        None => match paths::uml_kernel() {
            Some(path) => path,
            None => super::build_uml()?,
        },
    };
    raise_max_map_count();
    // A copy, since the file at hand may lack its executable bit or lie on a noexec mount.
    let program = job.dir().join("linux");
    std::fs::copy(&kernel, &program)
        .with_context(|| format!("cannot read the kernel {}", kernel.display()))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let init = job.script("init", &init_script(job)?)?;
    let limit = options.seconds.unwrap_or(600);
    let errors = std::fs::File::create(job.dir().join("err"))?;
    // `timeout` ends the guest even where this program is killed and cannot.
    let mut command = sh::cmd("timeout", ["-s", "KILL", &(limit + 30).to_string()]);
    command
        .arg(&program)
        .arg("seccomp=on")
        .arg(format!("mem={}", options.memory.as_deref().unwrap_or("6G")))
        .arg(format!("ncpus={}", options.cpus.unwrap_or(2)))
        .args([
            "root=none",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "loglevel=1",
            "panic=-1",
        ])
        .args([
            "raid=noautodetect",
            "con=null",
            "con0=null,fd:1",
            "con1=null",
        ])
        .arg(format!("init={}", init.display()))
        .arg(format!("umid=raidd-{}", std::process::id()))
        .arg(format!("uml_dir={}", job.dir().join("uml").display()))
        .args(&options.append)
        .stderr(Stdio::from(errors));
    let end = process::run(
        &mut command,
        job.dir(),
        Duration::from_secs(limit),
        out,
        noise,
    )?;
    if let Some(code) = job.exit_status() {
        return Ok(code);
    }
    if end == End::TimedOut {
        eprintln!("bed: the UML guest was stopped after {limit} s");
        return Ok(TIMED_OUT);
    }
    eprintln!("bed: the UML guest ended without an exit status");
    let errors = std::fs::read_to_string(job.dir().join("err")).unwrap_or_default();
    for line in errors
        .lines()
        .rev()
        .take(5)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
    {
        eprintln!("  {line}");
    }
    Ok(GUEST_DIED)
}

/// What the kernel and its start say on every run.
fn noise(line: &str) -> bool {
    // Kernel messages carry a time stamp in front.
    let text = line.trim_start();
    let text = match text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
    {
        Some((_, message)) => message,
        None => text,
    };
    [
        "Failed to initialize ubd device",
        "Core dump limits",
        "soft - ",
        "hard - ",
        "Checking ",
        "epollctl add err",
        "Using a channel type which is configured out",
        "setup_one_line failed for device",
        "sysrq: Power Off",
        "reboot: Power down",
    ]
    .iter()
    .any(|begin| text.starts_with(begin))
}

fn init_script(job: &Job) -> Result<String> {
    let root = job.build_root("/", |_, dir| {
        format!("-t hostfs none -o {}", sh::quote(&dir.to_string_lossy()))
    })?;
    let cmd = sh::quote(&job.dir().join("cmd").to_string_lossy());
    Ok(format!(
        "#!/bin/bash\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
         {root}\
         ip link set lo up 2>/dev/null\n\
         chroot /mnt/root {cmd} < /dev/null\n\
         sync\n\
         echo o > /mnt/root/proc/sysrq-trigger; sleep 10\n"
    ))
}

fn raise_max_map_count() {
    let path = "/proc/sys/vm/max_map_count";
    let now: u64 = std::fs::read_to_string(path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    if now < MAX_MAP_COUNT && std::fs::write(path, MAX_MAP_COUNT.to_string()).is_err() {
        eprintln!(
            "bed: {path} is {now}; large buffers in the guest need {MAX_MAP_COUNT} (set it as root)"
        );
    }
}
