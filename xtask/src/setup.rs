//! What the project needs of a machine beyond cargo: finds what is missing and installs it (apt, as root) or names it.

use crate::{paths, sh};
use anyhow::{Result, bail};

/// Installs Debian packages, or says which command would.
pub fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    let by_hand = format!("apt-get install {list}");
    if sh::which("apt-get").is_none() {
        bail!("missing; install what Debian calls: {list}");
    }
    if !sh::is_root() {
        bail!("missing; as root: {by_hand}");
    }
    eprintln!("setup: installing {list}");
    let apt = |args: &[&str]| {
        let mut command = sh::cmd("apt-get", args);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    sh::run(&mut apt(&["-qq", "update"]))?;
    sh::run(
        apt(&[
            "-qq",
            "-y",
            "-o",
            "Dpkg::Use-Pty=0",
            "--no-install-recommends",
            "install",
        ])
        .args(packages),
    )
}

/// Runs the repository's `setup` script, which knows all packages; a failure is told, not fatal: what is
/// missing is named again, and counted as skipped, where it is needed.
pub fn prepare(with_qemu: bool) {
    let mut command = sh::cmd(paths::repo().join("setup"), ["--quiet"]);
    if with_qemu {
        command.arg("--qemu");
    }
    if let Err(error) = sh::run(&mut command) {
        eprintln!("setup: {error}");
    }
}
