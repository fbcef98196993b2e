//! What both beds share: the job folder, the script that builds the guest's root out of the host's files, and the
//! script that runs the command there and leaves its exit status behind.

use super::{Bed, VmOptions};
use crate::{paths, sh};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Environment variables whose names begin so travel into the guest.
const PASSED: [&str; 12] = [
    "PATH=",
    "HOME=",
    "RUST",
    "CARGO",
    "RAIDD",
    "XTASK",
    "FIO_",
    "LANG=",
    "LC_",
    "TERM=",
    "CI=",
    "NO_COLOR=",
];

/// One run of a guest: a temporary folder, shared with the guest, removed on drop.
pub struct Job {
    dir: PathBuf,
    writable: Vec<PathBuf>,
}

impl Job {
    pub fn new(options: &VmOptions, command: &[String]) -> Result<Job> {
        let dir = sh::temp_dir("raidd-bed")?;
        let mut writable = Vec::new();
        for path in &options.writable {
            let full = path
                .canonicalize()
                .with_context(|| format!("no folder {}", path.display()))?;
            writable.push(full);
        }
        if writable.is_empty() {
            writable.push(paths::repo());
        }
        // A build folder elsewhere may lie below /tmp, which the guest has its own of.
        let target = paths::target();
        if !paths::in_repo(&target) && target.is_dir() {
            writable.push(target);
        }
        writable.push(dir.clone());
        let job = Job { dir, writable };
        job.script("cmd", &job.command_script(options.bed(), command)?)?;
        Ok(job)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Folders to mount for writing, in this order, the job folder last.
    pub fn writable(&self) -> &[PathBuf] {
        &self.writable
    }

    /// Writes an executable script into the job folder.
    pub fn script(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// The exit status that the command left, if it came to its end.
    pub fn exit_status(&self) -> Option<i32> {
        std::fs::read_to_string(self.dir.join("rc"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn command_script(&self, bed: Bed, command: &[String]) -> Result<String> {
        let mut text = String::from("#!/bin/bash\n");
        for (name, value) in std::env::vars() {
            let entry = format!("{name}=");
            if PASSED.iter().any(|prefix| entry.starts_with(prefix)) {
                writeln!(text, "export {name}={}", sh::quote(&value))?;
            }
        }
        text += "export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin\n";
        writeln!(text, "export RAIDD_BED={}", bed.name())?;
        let here = std::env::current_dir()?;
        writeln!(
            text,
            "cd {} || exit {}",
            sh::quote(&here.to_string_lossy()),
            super::GUEST_DIED
        )?;
        let words: Vec<String> = command.iter().map(|word| sh::quote(word)).collect();
        writeln!(text, "{}", words.join(" "))?;
        writeln!(
            text,
            "echo $? > {}",
            sh::quote(&self.dir.join("rc").to_string_lossy())
        )?;
        Ok(text)
    }

    /// Shell text that turns the folder `lower` (the host's files, read-only) into the guest's root `/mnt/root`,
    /// for a first process with `/mnt` still empty. `share` is called for each writable folder and gives the
    /// options of its mount.
    pub fn build_root(
        &self,
        lower: &str,
        share: impl Fn(usize, &Path) -> String,
    ) -> Result<String> {
        let mut text = format!(
            "mount -t tmpfs -o size=75% none /mnt\n\
             mkdir /mnt/upper /mnt/work /mnt/root\n\
             mount -t overlay overlay -o lowerdir={lower},upperdir=/mnt/upper,workdir=/mnt/work /mnt/root || exit 1\n"
        );
        text += MOUNTS;
        for (index, dir) in self.writable.iter().enumerate() {
            let path = sh::quote(&dir.to_string_lossy());
            writeln!(
                text,
                "mkdir -p /mnt/root{path}; mount {} /mnt/root{path}",
                share(index, dir)
            )?;
        }
        Ok(text)
    }
}

/// The guest's own file systems; what a kernel lacks is left out.
const MOUNTS: &str = "\
cd /mnt/root
mount -t proc proc proc; mount -t sysfs sysfs sys; mount -t devtmpfs dev dev; mkdir -p dev/pts dev/shm
mount -t devpts devpts dev/pts; mount -t tmpfs shm dev/shm; mount -t tmpfs run run; mount -t tmpfs tmp tmp
ln -s /proc/self/fd dev/fd; for n in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${n%:*} dev/${n#*:}; done
chmod 1777 tmp dev/shm; mkdir -p run/lock
mount -t debugfs none sys/kernel/debug 2>/dev/null; mount -t configfs none sys/kernel/config 2>/dev/null
mount -t cgroup2 none sys/fs/cgroup 2>/dev/null
";

impl Drop for Job {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("bed: cannot remove {}: {error}", self.dir.display());
        }
    }
}
