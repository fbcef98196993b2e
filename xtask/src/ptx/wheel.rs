//! The pinned CUDA compiler: NVRTC of CUDA 12.0 from its public Python wheel, fetched by pip (23 MB, once), checked
//! against its sha256 and kept below cargo's target folder. It is driven by `nvrtc.py`, so nothing here is unsafe.

use crate::{paths, setup, sh};
use anyhow::{Context, Result, anyhow, bail};
use std::path::{Path, PathBuf};

/// The version of NVRTC. A newer one writes PTX that older drivers refuse.
pub const VERSION: &str = "12.0.76";
const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12";
/// Of `nvidia_cuda_nvrtc_cu12-12.0.76-py3-none-manylinux1_x86_64.whl`.
const SHA256: &str = "8dd4458a7d8bf8fd2b01a34a9069856d53a9b4c0af2037b77c12b270daf9c828";
const SCRIPT: &str = "xtask/src/ptx/nvrtc.py";

/// NVRTC, ready to run.
pub struct Nvrtc {
    libraries: PathBuf,
}

/// Finds the compiler, or gets it. The inner error says why this machine cannot have it.
///
/// # Errors
/// What was fetched is not the pinned wheel, or cannot be unpacked.
pub fn nvrtc() -> Result<Result<Nvrtc>> {
    if cfg!(not(target_arch = "x86_64")) {
        return Ok(Err(anyhow!("the pinned NVRTC is for x86-64")));
    }
    let libraries = paths::target().join(format!("nvrtc-{VERSION}"));
    if libraries.is_dir() {
        return Ok(Ok(Nvrtc { libraries }));
    }
    // A folder of this process, renamed when all is there.
    let folder = libraries.with_extension(format!("tmp-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let got = match need_pip().and_then(|()| download(&folder)) {
        Ok(wheel) => unpack(&wheel, &folder).map(Ok),
        Err(error) => Ok(Err(error)),
    };
    if !matches!(got, Ok(Ok(()))) || std::fs::rename(&folder, &libraries).is_err() {
        std::fs::remove_dir_all(&folder)?;
    }
    // Another process may have been faster; then what this one got does not matter.
    if libraries.is_dir() {
        return Ok(Ok(Nvrtc { libraries }));
    }
    Ok(got?.and_then(|()| bail!("{} cannot be made", libraries.display())))
}

/// Gets the wheel into `folder` and says where it is.
fn download(folder: &Path) -> Result<PathBuf> {
    eprintln!("ptx: fetching {PACKAGE} {VERSION}");
    sh::output(
        sh::cmd("python3", ["-m", "pip", "download", "--quiet"])
            .args(["--disable-pip-version-check", "--retries", "1", "--no-deps"])
            .args([
                "--only-binary",
                ":all:",
                "--platform",
                "manylinux1_x86_64",
                "--dest",
            ])
            .arg(folder)
            .arg(format!("{PACKAGE}=={VERSION}")),
    )
    .map_err(|error| {
        // pip repeats itself; its last line is the reason.
        let text = error.to_string();
        let reason = text.lines().next_back().unwrap_or_default();
        anyhow!("the Python wheel of NVRTC cannot be had: {reason}")
    })?;
    std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .context("pip left no wheel")
}

/// Checks the wheel against [`SHA256`] and takes the libraries out.
fn unpack(wheel: &Path, folder: &Path) -> Result<()> {
    sh::run(
        sh::cmd("python3", [paths::repo().join(SCRIPT)])
            .arg("unpack")
            .arg(wheel)
            .arg(SHA256)
            .arg(folder),
    )
}

/// Python with pip, installed if it can be.
fn need_pip() -> Result<()> {
    if sh::which("python3").is_some()
        && sh::output(&mut sh::cmd("python3", ["-m", "pip", "--version"])).is_ok()
    {
        return Ok(());
    }
    setup::install(&["python3", "python3-pip"]).context("no Python with pip")
}

impl Nvrtc {
    /// Runs `nvrtc.py` on a source and returns what it wrote.
    ///
    /// # Errors
    /// The source does not compile; the error holds the compiler's messages.
    pub fn run(&self, what: &str, source: &Path, options: &[String]) -> Result<String> {
        sh::output(
            sh::cmd("python3", [paths::repo().join(SCRIPT)])
                .arg(what)
                .arg(&self.libraries)
                .arg(source)
                .args(options),
        )
        .with_context(|| format!("{} does not compile", source.display()))
    }
}
