//! Builds the UML kernel from Debian's kernel source package: about ten minutes on two cores, 2 GB below `.bed`
//! while it runs, and one 12 MB file `.bed/linux.uml` afterwards.

use crate::apt::{self, Source};
use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// UML can use more than one CPU from this version on.
const OLDEST: [u32; 2] = [7, 0];

const FRAGMENT: &str = include_str!("../../uml/kernel.config");

/// Tools and headers that the build needs, as (program or file, Debian package).
const NEEDS: [(&str, &str); 8] = [
    ("make", "make"),
    ("gcc", "gcc"),
    ("bc", "bc"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("xz", "xz-utils"),
    ("strip", "binutils"),
    ("tar", "tar"),
];

/// Builds (or rebuilds with `force`) the kernel and returns its path.
pub fn build(force: bool, keep: bool) -> Result<PathBuf> {
    let kernel = paths::bed().join("linux.uml");
    if kernel.is_file() && !force {
        eprintln!(
            "bed: {} is there already (--force builds it anew)",
            kernel.display()
        );
        return Ok(kernel);
    }
    let missing: Vec<&str> = NEEDS
        .iter()
        .filter(|(program, _)| sh::which(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        crate::setup::install(&missing)?;
    }
    let work = paths::bed().join("uml-build");
    let tree = work.join("tree");
    if !tree.join("Makefile").is_file() {
        unpack_source(&work, &tree)?;
    }
    enable_simd(&tree)?;
    std::fs::write(tree.join(".config"), FRAGMENT)?;
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    let make = |targets: &[&str]| {
        let mut command = sh::cmd("nice", ["make", "-s", "ARCH=um"]);
        command
            .arg(format!("-j{jobs}"))
            .args(targets)
            .current_dir(&tree);
        // Flags meant for other programs must not reach the kernel's own build.
        for name in ["CFLAGS", "LDFLAGS", "MAKEFLAGS"] {
            command.env_remove(name);
        }
        command
    };
    sh::run(&mut make(&["olddefconfig"]))?;
    check_config(&tree)?;
    eprintln!("bed: building the UML kernel (about ten minutes on two cores)");
    sh::run(&mut make(&["linux"]))?;
    let partial = kernel.with_extension("new");
    sh::run(
        sh::cmd("strip", ["-o"])
            .arg(&partial)
            .arg(tree.join("linux")),
    )?;
    std::fs::rename(&partial, &kernel)?;
    if !keep {
        std::fs::remove_dir_all(&work)?;
    }
    eprintln!("bed: built {}", kernel.display());
    Ok(kernel)
}

/// Fetches the newest fitting kernel source package and unpacks its archive to `tree`.
fn unpack_source(work: &Path, tree: &Path) -> Result<()> {
    let pattern = "^linux-source-[0-9.]+$";
    let newest = |source| -> Result<Option<apt::Package>> {
        Ok(apt::search(source, pattern)?
            .into_iter()
            .filter(|package| apt::version_key(&package.name) >= OLDEST.to_vec())
            .max_by_key(|package| apt::version_key(&package.name)))
    };
    let package = match newest(Source::System)? {
        Some(package) => package,
        None => newest(Source::Newer)?.with_context(|| {
            format!(
                "no package linux-source-N with N >= {}.{}",
                OLDEST[0], OLDEST[1]
            )
        })?,
    };
    let deb = work.join("package");
    apt::unpack(&package, &deb)?;
    let archive = deb.join("usr/src").join(format!("{}.tar.xz", package.name));
    if !archive.is_file() {
        bail!(
            "the package {} holds no {}",
            package.name,
            archive.display()
        );
    }
    let partial = work.join("unpacking");
    std::fs::create_dir_all(&partial)?;
    sh::run(
        sh::cmd("tar", ["--strip-components=1", "-xf"])
            .arg(&archive)
            .arg("-C")
            .arg(&partial),
    )?;
    std::fs::rename(&partial, tree)?;
    std::fs::remove_dir_all(&deb)?;
    Ok(())
}

/// Lets MD's RAID 6 code use the processor's vector instructions under UML too, as it does on bare metal: without
/// them every comparison with MD would flatter us.
fn enable_simd(tree: &Path) -> Result<()> {
    edit(&tree.join("lib/raid/Kconfig"), |text| {
        let (head, tail) = text.split_once("config RAID6_PQ_ARCH\n")?;
        let tail = tail.replacen("\tdefault y if X86\n", "\tdefault y if X86 || UML_X86\n", 1);
        Some(format!("{head}config RAID6_PQ_ARCH\n{tail}"))
    })?;
    edit(&tree.join("lib/raid/raid6/Makefile"), |text| {
        Some(
            text.replacen(
                "-I$(src)/$(SRCARCH)",
                "-I$(src)/$(if $(CONFIG_UML_X86),x86,$(SRCARCH))",
                1,
            )
            .replacen(
                "raid6_pq-$(CONFIG_X86)\t",
                "raid6_pq-$(or $(CONFIG_X86),$(CONFIG_UML_X86))\t",
                1,
            ),
        )
    })
}

fn edit(path: &Path, change: impl Fn(&str) -> Option<String>) -> Result<()> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    if text.contains("UML_X86") {
        return Ok(());
    }
    match change(&text) {
        Some(new) if new.contains("UML_X86") => Ok(std::fs::write(path, new)?),
        _ => bail!(
            "{} looks different from what this program knows how to edit",
            path.display()
        ),
    }
}

/// olddefconfig drops what it does not know or cannot have without a word; the bed needs these.
fn check_config(tree: &Path) -> Result<()> {
    let config = std::fs::read_to_string(tree.join(".config"))?;
    let missing: Vec<&str> = FRAGMENT
        .lines()
        .filter(|line| line.starts_with("CONFIG_") && !config.lines().any(|have| have == *line))
        .collect();
    let vital = [
        "CONFIG_SMP=y",
        "CONFIG_BLK_DEV_UBLK=y",
        "CONFIG_MD_RAID456=y",
        "CONFIG_HOSTFS=y",
        "CONFIG_NVME_TARGET_LOOP=y",
    ];
    if let Some(line) = vital.iter().find(|line| missing.contains(line)) {
        bail!("this kernel cannot have {line}");
    }
    if !config.contains("CONFIG_RAID6_PQ_ARCH=y") {
        bail!("MD's RAID 6 vector code is not enabled in this kernel");
    }
    if !missing.is_empty() {
        eprintln!("bed: not in this kernel: {}", missing.join(" "));
    }
    Ok(())
}
