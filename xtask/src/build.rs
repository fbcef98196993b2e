//! Builds the product's programs with cargo and says where they are.

use crate::{paths, sh};
use anyhow::{Result, bail};
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    Dev,
    Release,
}

/// Builds `raidd`, `raidctl` and the tests' tool `pattern` and returns the folder that holds them.
pub fn binaries(profile: Profile) -> Result<PathBuf> {
    let mut command = sh::cmd(
        "cargo",
        [
            "build",
            "--quiet",
            "--package",
            "raidd",
            "--package",
            "raid-tests",
            "--bins",
        ],
    );
    command.current_dir(paths::repo());
    let folder = match profile {
        Profile::Dev => "debug",
        Profile::Release => {
            command.arg("--release");
            "release"
        }
    };
    sh::run(&mut command)?;
    let dir = paths::target().join(folder);
    for program in ["raidd", "raidctl", "pattern"] {
        if !dir.join(program).is_file() {
            bail!("cargo build left no {program} in {}", dir.display());
        }
    }
    Ok(dir)
}
