//! Packaged distribution kernels for the QEMU bed, unpacked below `.bed/kernels/VERSION` (about 0.5 GB each).

use crate::apt::{self, Package, Source};
use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The kernel series that the bed takes unless told otherwise: the oldest one that the tests are run on.
const DEFAULT: &str = "6.12";

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Release, as `uname -r` prints it.
    pub release: String,
    pub image: PathBuf,
    /// The folder with this release's modules and their dependency list.
    pub modules: PathBuf,
}

/// Finds an unpacked kernel of the wanted series, or fetches the newest one.
pub fn packaged(version: Option<&str>) -> Result<Kernel> {
    let version = version.unwrap_or(DEFAULT);
    let kernels = paths::bed().join("kernels");
    if let Some(kernel) = unpacked(&kernels, version)? {
        return Ok(kernel);
    }
    let package = find(version)?;
    let release = package
        .name
        .trim_start_matches("linux-image-")
        .trim_start_matches("unsigned-")
        .to_owned();
    let partial = kernels.join(format!(".unpacking-{}", std::process::id()));
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    apt::unpack(&package, &partial)?;
    // Ubuntu, and Debian since 7.x, keep image and modules in packages of their own; ublk may be among the extra ones.
    let escaped = release.replace('.', "\\.").replace('+', "\\+");
    let parts = format!("^linux-(binary|modules|modules-extra)-{escaped}$");
    for part in apt::search(package.source, &parts)? {
        apt::unpack(&part, &partial)?;
    }
    complete(&partial, &release)?;
    std::fs::rename(&partial, kernels.join(&release))?;
    unpacked(&kernels, version)?
        .with_context(|| format!("the package {} holds no usable kernel", package.name))
}

/// The newest package of the wanted series, from what the machine knows or else from newer Debian suites.
fn find(version: &str) -> Result<Package> {
    let pattern = format!(
        "^linux-image-(unsigned-)?{}[.-].*",
        version.replace('.', "\\.")
    );
    let usable = |package: &Package| {
        let name = &package.name;
        name.ends_with("-generic")
            || (name.ends_with("-amd64") && !name.contains("-cloud-") && !name.contains("-rt-"))
                // The name without a full version is an empty package that depends on the real one.
                && apt::version_key(name).len() > 3
    };
    for source in [Source::System, Source::Newer] {
        let newest = apt::search(source, &pattern)?
            .into_iter()
            .filter(usable)
            .max_by_key(|package| apt::version_key(&package.name));
        if let Some(package) = newest {
            return Ok(package);
        }
    }
    bail!("no packaged kernel {version} here, nor in Debian's newer suites")
}

fn unpacked(kernels: &Path, version: &str) -> Result<Option<Kernel>> {
    if !kernels.is_dir() {
        return Ok(None);
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir(kernels)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| {
                name.strip_prefix(version)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '+']))
            })
        })
        .collect();
    found.sort_by_key(|path| apt::version_key(&path.to_string_lossy()));
    let Some(dir) = found.pop() else {
        return Ok(None);
    };
    let release = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .context("a kernel folder without a name")?;
    let (image, modules) = complete(&dir, &release)?;
    if !modules.join("modules.dep").is_file() {
        sh::run(
            sh::cmd(
                sh::which("depmod").context("no depmod; install kmod")?,
                ["-b"],
            )
            .arg(&dir)
            .arg(&release),
        )?;
    }
    Ok(Some(Kernel {
        release,
        image,
        modules,
    }))
}

/// The image and the modules' folder of an unpacked kernel; an error where one of them is missing.
fn complete(dir: &Path, release: &str) -> Result<(PathBuf, PathBuf)> {
    // depmod looks below lib; newer packages keep modules below usr/lib.
    if !dir.join("lib").exists() && dir.join("usr/lib/modules").is_dir() {
        std::os::unix::fs::symlink("usr/lib", dir.join("lib"))?;
    }
    let modules = dir.join("lib/modules").join(release);
    let image = [
        dir.join("boot").join(format!("vmlinuz-{release}")),
        modules.join("vmlinuz"),
    ]
    .into_iter()
    .find(|path| path.is_file());
    match image {
        Some(image) if modules.is_dir() => Ok((image, modules)),
        _ => bail!("{} holds no kernel image with modules", dir.display()),
    }
}
