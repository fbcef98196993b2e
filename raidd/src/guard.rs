//! Keeps udev and mdadm from assembling our members behind our back: one `ARRAY <ignore> UUID=` line per array in a
//! file of our own for mdadm, and one rule per array for udev, ahead of the rule that runs `mdadm --incremental`.
//! Both files are ours alone, rewritten as a whole, and removed with their last line. Runs at create, assemble,
//! release and zero.
//!
//! The udev rule sets the property by which `64-md-raid-assembly.rules` knows that someone else assembles arrays
//! (`ANACONDA`), and only for events of members that carry the array's uuid. It changes nothing else of the device:
//! `SYSTEMD_READY=0` would do as well but hides the device from systemd.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use raid_core::superblock::uuid_text;

/// Where the two files are, if at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    /// mdadm's; `None` when mdadm is not installed or the files are not to be managed.
    pub mdadm: Option<PathBuf>,
    /// udev's.
    pub udev: Option<PathBuf>,
    /// Tell a running udev about changed rules; off where the files are a test's.
    pub reload: bool,
}

/// A file that could not be kept. The array works without it, so callers warn and go on.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path}: {source}; mdadm may assemble the members of this array on its own, see docs/failure-model.md"
)]
pub struct GuardError {
    path: PathBuf,
    source: io::Error,
}

const HEADER: &str = "# Written by raidd: arrays that raidd serves and that nobody else shall assemble.\n\
                      # 'raidctl stop --release NAME' takes a line away; removing this file by hand is harmless.\n";

fn mdadm_line(uuid: &[u8; 16]) -> String {
    format!("ARRAY <ignore> UUID={}", uuid_text(uuid))
}

fn udev_line(uuid: &[u8; 16]) -> String {
    format!(
        "SUBSYSTEM==\"block\", ENV{{ID_FS_TYPE}}==\"linux_raid_member\", ENV{{ID_FS_UUID}}==\"{}\", ENV{{ANACONDA}}=\"raidd\"",
        uuid::Uuid::from_bytes(*uuid)
    )
}

impl Guard {
    /// The files of this system. Debian keeps mdadm's in `/etc/mdadm`, others directly in `/etc`.
    pub fn system() -> Guard {
        Guard::below(Path::new("/"))
    }

    fn below(root: &Path) -> Guard {
        let mdadm = if root.join("etc/mdadm").is_dir() {
            Some(root.join("etc/mdadm/mdadm.conf.d/raidd.conf"))
        } else if root.join("etc/mdadm.conf").exists() || root.join("etc/mdadm.conf.d").is_dir() {
            Some(root.join("etc/mdadm.conf.d/raidd.conf"))
        } else {
            None
        };
        let udev = root
            .join("etc/udev")
            .is_dir()
            .then(|| root.join("etc/udev/rules.d/63-raidd-members.rules"));
        Guard {
            mdadm,
            udev,
            reload: root == Path::new("/"),
        }
    }

    /// Adds an array to both files; true if anything changed. Tries both before it reports an error.
    pub fn add(&self, uuid: &[u8; 16]) -> Result<bool, GuardError> {
        self.each(uuid, true)
    }

    /// Takes an array out of both files; true if anything changed.
    pub fn remove(&self, uuid: &[u8; 16]) -> Result<bool, GuardError> {
        self.each(uuid, false)
    }

    fn each(&self, uuid: &[u8; 16], present: bool) -> Result<bool, GuardError> {
        let files = [
            (&self.mdadm, mdadm_line(uuid)),
            (&self.udev, udev_line(uuid)),
        ];
        let mut result = Ok(false);
        for (path, line) in files {
            let Some(path) = path else { continue };
            match set_line(path, &line, present) {
                Ok(changed) => {
                    if changed && self.reload && self.udev.as_ref() == Some(path) {
                        reload_udev();
                    }
                    result = result.map(|before| before || changed);
                }
                Err(source) => {
                    result = Err(GuardError {
                        path: path.clone(),
                        source,
                    })
                }
            }
        }
        result
    }
}

/// udev would notice by itself, but only after some seconds. Where it does not run this fails, and need not be said.
fn reload_udev() {
    let quiet = || std::process::Stdio::null();
    let _ = std::process::Command::new("udevadm")
        .args(["control", "--reload"])
        .stdin(quiet())
        .stdout(quiet())
        .stderr(quiet())
        .status();
}

/// Makes the line present or absent; true if the file changed. The file is replaced in one step.
fn set_line(path: &Path, line: &str, present: bool) -> io::Result<bool> {
    let old = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(e),
    };
    let had = old.lines().any(|l| l.trim() == line);
    if had == present {
        return Ok(false);
    }
    let mut lines: Vec<&str> = old
        .lines()
        .filter(|l| l.trim() != line && !l.starts_with('#') && !l.trim().is_empty())
        .collect();
    if present {
        lines.push(line);
    }
    if lines.is_empty() {
        fs::remove_file(path)?;
        return Ok(true);
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Neither mdadm (*.conf) nor udev (*.rules) reads a file of this name.
    let new = path.with_extension("raidd-new");
    let mut file = fs::File::create(&new)?;
    file.write_all(format!("{HEADER}{}\n", lines.join("\n")).as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 16] = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
    const B: [u8; 16] = [0xb; 16];

    #[test]
    fn lines_come_and_go_and_the_last_takes_the_file() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/mdadm")).unwrap();
        fs::create_dir_all(root.path().join("etc/udev")).unwrap();
        let guard = Guard::below(root.path());
        assert!(guard.add(&A).unwrap());
        assert!(!guard.add(&A).unwrap(), "twice changes nothing");
        assert!(guard.add(&B).unwrap());
        let conf = fs::read_to_string(guard.mdadm.as_ref().unwrap()).unwrap();
        assert!(
            conf.contains("\nARRAY <ignore> UUID=01234567:89abcdef:01234567:89abcdef\n"),
            "{conf}"
        );
        assert_eq!(conf.lines().filter(|l| l.starts_with('#')).count(), 2);
        let rules = fs::read_to_string(guard.udev.as_ref().unwrap()).unwrap();
        assert!(
            rules.contains("\"01234567-89ab-cdef-0123-456789abcdef\""),
            "{rules}"
        );
        assert!(guard.remove(&A).unwrap());
        assert!(!guard.remove(&A).unwrap());
        assert!(guard.remove(&B).unwrap());
        assert!(!guard.mdadm.as_ref().unwrap().exists() && !guard.udev.as_ref().unwrap().exists());
    }

    #[test]
    fn systems_without_mdadm_are_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let guard = Guard::below(root.path());
        assert_eq!(guard, Guard::default());
        assert!(!guard.add(&A).unwrap());
        fs::create_dir_all(root.path().join("etc/mdadm.conf.d")).unwrap();
        assert_eq!(
            Guard::below(root.path()).mdadm,
            Some(root.path().join("etc/mdadm.conf.d/raidd.conf"))
        );
    }

    #[test]
    fn an_error_does_not_keep_the_other_file_from_being_written() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let guard = Guard {
            mdadm: Some(root.path().join("file/raidd.conf")),
            udev: Some(root.path().join("63.rules")),
            reload: false,
        };
        assert!(
            guard
                .add(&A)
                .unwrap_err()
                .to_string()
                .contains("raidd.conf")
        );
        assert!(guard.udev.unwrap().exists());
    }
}
