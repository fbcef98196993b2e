//! Debian packages without touching the system: a private apt root below `.bed/apt` that knows the
//! distribution's own archive plus the newer Debian suites, from which kernels and kernel source are
//! downloaded and unpacked. Costs about 15 MB of package lists.

use crate::{paths, sh};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which package lists to look into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// What the machine itself is set up for.
    System,
    /// Debian's stable suites with newer kernels, in the private root.
    Newer,
}

/// Newer Debian suites that carry kernels the beds want.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];

fn root() -> PathBuf {
    paths::bed().join("apt")
}

/// Address of the Debian archive that this machine uses, from its own configuration.
fn mirror() -> Result<String> {
    if let Ok(uri) = std::env::var("RAIDD_DEBIAN_MIRROR") {
        return Ok(uri);
    }
    let targets = sh::output(&mut sh::cmd(
        "apt-get",
        [
            "indextargets",
            "--format",
            "$(ORIGIN) $(CODENAME) $(REPO_URI)",
            "Created-By: Packages",
        ],
    ))?;
    targets
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some("Debian"), Some(suite), Some(uri)) if !suite.contains('-') => Some(uri),
                _ => None,
            }
        })
        .next()
        .map(|uri| uri.trim_end_matches('/').to_owned())
        .context("apt knows no Debian archive here; set RAIDD_DEBIAN_MIRROR to one, or give a kernel with --kernel")
}

/// Options that point apt at the private root.
fn options() -> Vec<String> {
    let dir = root();
    let dir = dir.display();
    [
        format!("Dir::State::Lists={dir}/lists"),
        format!("Dir::State::status={dir}/status"),
        format!("Dir::Cache={dir}/cache"),
        format!("Dir::Etc::sourcelist={dir}/sources.list"),
        "Dir::Etc::sourceparts=-".to_owned(),
        "Dir::Etc::main=/dev/null".to_owned(),
        "Acquire::Languages=none".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .collect()
}

/// Sets the private root up and reads its package lists; done once per run of this program that needs it.
fn prepare() -> Result<()> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let dir = root();
    for sub in ["lists/partial", "cache/archives/partial"] {
        std::fs::create_dir_all(dir.join(sub))?;
    }
    std::fs::write(dir.join("status"), "")?;
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let mirror = mirror()?;
    let list: String = SUITES
        .iter()
        .map(|suite| format!("deb [signed-by={keys}] {mirror} {suite} main\n"))
        .collect();
    std::fs::write(dir.join("sources.list"), list)?;
    eprintln!("bed: reading the package lists of {}", SUITES.join(", "));
    sh::run(sh::cmd("apt-get", options()).args(["-qq", "update"]))
}

/// A package that exists in the lists.
#[derive(Clone, Debug)]
pub struct Package {
    pub name: String,
    pub source: Source,
}

fn apt(program: &str, source: Source) -> Command {
    match source {
        Source::System => Command::new(program),
        Source::Newer => sh::cmd(program, options()),
    }
}

/// Names of packages that match an extended regular expression.
pub fn search(source: Source, pattern: &str) -> Result<Vec<Package>> {
    if sh::which("apt-get").is_none() {
        bail!("this machine has no apt; the beds take kernels from Debian's or Ubuntu's packages");
    }
    if source == Source::Newer {
        prepare()?;
    }
    let found = sh::output(apt("apt-cache", source).args(["search", "--names-only", pattern]))?;
    Ok(found
        .lines()
        .filter_map(|line| line.split(" - ").next())
        .map(|name| Package {
            name: name.trim().to_owned(),
            source,
        })
        .collect())
}

/// Downloads a package and unpacks it below `into`, without installing it.
pub fn unpack(package: &Package, into: &Path) -> Result<()> {
    // A folder for each process: two beds may fetch at the same time.
    let download = root().join(format!("download-{}", std::process::id()));
    if download.exists() {
        std::fs::remove_dir_all(&download)?;
    }
    std::fs::create_dir_all(&download)?;
    eprintln!("bed: fetching the package {}", package.name);
    sh::run(
        apt("apt-get", package.source)
            .args([
                "-qq",
                "-o",
                "APT::Sandbox::User=root",
                "download",
                &package.name,
            ])
            .current_dir(&download),
    )?;
    let deb = std::fs::read_dir(&download)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .with_context(|| format!("apt-get download {} left no file", package.name))?;
    std::fs::create_dir_all(into)?;
    sh::run(&mut sh::cmd(
        "dpkg-deb",
        [OsArg::from("-x"), deb.into(), into.into()],
    ))?;
    std::fs::remove_dir_all(&download)?;
    Ok(())
}

type OsArg = std::ffi::OsString;

/// Numbers in a package name or version, for ordering: `linux-image-6.12.100+deb12-amd64` gives 6, 12, 100, 12.
pub fn version_key(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::version_key;

    #[test]
    fn versions_order_by_number() {
        assert!(
            version_key("linux-image-6.12.100+deb12") > version_key("linux-image-6.12.99+deb12")
        );
        assert!(version_key("linux-source-7.3") > version_key("linux-source-6.19"));
    }
}
