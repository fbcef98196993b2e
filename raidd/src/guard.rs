//! Keeps udev and mdadm from assembling our members behind our back: one `ARRAY <ignore> UUID=` line per array in a
//! file of our own for mdadm, and one rule per array for udev, ahead of the rule that runs `mdadm --incremental`.
//! A comment beside each note holds the array's name, so that it can be found when the array does not run.
//! Both files are ours alone, rewritten as a whole, and removed with their last line. Runs at create, assemble,
//! release and zero.
//!
//! The udev rule sets the property by which `64-md-raid-assembly.rules` knows that someone else assembles arrays
//! (`ANACONDA`), and only for events of members that carry the array's uuid. It changes nothing else of the device:
//! `SYSTEMD_READY=0` would do as well but hides the device from systemd.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use raid_core::superblock::{parse_uuid, uuid_text};

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
    "{path}: {source}; mdadm may assemble the members of this array on its own, see docs/mdadm.md"
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

const NAME: &str = "# array ";

/// The comment that names an array. Names come from superblocks, which anybody may have written: a line break in one
/// must not become a rule.
fn name_line(name: &str, uuid: &[u8; 16]) -> String {
    let safe = |c: char| if c.is_control() { '_' } else { c };
    let name: String = name.chars().map(safe).collect();
    format!("{NAME}{} {name}", uuid_text(uuid))
}

/// What a line is about.
fn uuid_of(line: &str) -> Option<[u8; 16]> {
    let line = line.trim();
    let text = if let Some(rest) = line.strip_prefix(NAME) {
        rest.split(' ').next()?
    } else if let Some(rest) = line.strip_prefix("ARRAY <ignore> UUID=") {
        rest
    } else {
        line.split_once("ENV{ID_FS_UUID}==\"")?
            .1
            .split('"')
            .next()?
    };
    parse_uuid(text)
}

impl Guard {
    /// The arrays that have a note and are meant by this uuid or name. Notes of before names were written have none.
    pub fn find(&self, wanted: &str) -> Vec<[u8; 16]> {
        let uuid = parse_uuid(wanted);
        let mut found = Vec::new();
        for path in [&self.mdadm, &self.udev].into_iter().flatten() {
            let text = fs::read_to_string(path).unwrap_or_default();
            for one in text.lines().filter_map(|l| {
                let of = uuid_of(l)?;
                let meant = uuid == Some(of) || l.trim() == name_line(wanted, &of);
                meant.then_some(of)
            }) {
                if !found.contains(&one) {
                    found.push(one);
                }
            }
        }
        found
    }

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
    pub fn add(&self, name: &str, uuid: &[u8; 16]) -> Result<bool, GuardError> {
        self.each(uuid, Some(name))
    }

    /// Takes an array out of both files; true if anything changed.
    pub fn remove(&self, uuid: &[u8; 16]) -> Result<bool, GuardError> {
        self.each(uuid, None)
    }

    fn each(&self, uuid: &[u8; 16], present_as: Option<&str>) -> Result<bool, GuardError> {
        let name = present_as.map(|name| name_line(name, uuid));
        let files = [
            (&self.mdadm, mdadm_line(uuid)),
            (&self.udev, udev_line(uuid)),
        ];
        let mut result = Ok(false);
        for (path, line) in files {
            let Some(path) = path else { continue };
            match set_note(path, uuid, name.as_ref().map(|n| [n.as_str(), &line])) {
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

/// Makes the lines of one array these, or none; true if the file changed. The file is replaced in one step.
fn set_note(path: &Path, uuid: &[u8; 16], note: Option<[&str; 2]>) -> io::Result<bool> {
    let old = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(e),
    };
    let note = note
        .as_ref()
        .map_or([].as_slice(), |lines| lines.as_slice());
    let is_its = |l: &&str| uuid_of(l).as_ref() == Some(uuid);
    if old
        .lines()
        .map(str::trim)
        .filter(is_its)
        .eq(note.iter().copied())
    {
        return Ok(false);
    }
    let is_kept =
        |l: &&str| !is_its(l) && !l.is_empty() && (!l.starts_with('#') || l.starts_with(NAME));
    let mut lines: Vec<&str> = old.lines().map(str::trim).filter(is_kept).collect();
    lines.extend(note);
    if lines.iter().all(|l| l.starts_with('#')) {
        fs::remove_file(path)?;
        return Ok(true);
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Neither mdadm (*.conf) nor udev (*.rules) reads a file of this name.
    let new = path.with_extension("raidd-new");
    let written = replace(&new, path, &format!("{HEADER}{}\n", lines.join("\n")));
    if written.is_err() {
        // What a full disk left of it.
        let _ = fs::remove_file(&new);
    }
    written.map(|()| true)
}

fn replace(new: &Path, path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::File::create(new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, path)
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
        assert!(guard.add("data", &A).unwrap());
        assert!(!guard.add("data", &A).unwrap(), "twice changes nothing");
        assert!(guard.add("other", &B).unwrap());
        let conf = fs::read_to_string(guard.mdadm.as_ref().unwrap()).unwrap();
        assert!(
            conf.contains("\nARRAY <ignore> UUID=01234567:89abcdef:01234567:89abcdef\n"),
            "{conf}"
        );
        assert_eq!(conf.lines().filter(|l| l.starts_with('#')).count(), 4);
        assert_eq!(guard.find("data"), [A]);
        assert_eq!(guard.find("01234567-89ab-cdef-0123-456789abcdef"), [A]);
        assert!(guard.find("dat").is_empty());
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
        assert!(!guard.add("data", &A).unwrap());
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
                .add("data", &A)
                .unwrap_err()
                .to_string()
                .contains("raidd.conf")
        );
        assert!(guard.udev.unwrap().exists());
    }

    /// A name is whatever a superblock says, and udev runs programs that its rules name.
    #[test]
    fn a_name_with_line_breaks_stays_a_comment() {
        let root = tempfile::tempdir().unwrap();
        let guard = Guard {
            mdadm: None,
            udev: Some(root.path().join("63.rules")),
            reload: false,
        };
        guard.add("a\nRUN+=\"/bin/evil\"", &A).unwrap();
        let rules = fs::read_to_string(guard.udev.as_ref().unwrap()).unwrap();
        assert!(rules.lines().all(|l| !l.starts_with("RUN")), "{rules}");
        assert!(guard.remove(&A).unwrap());
    }

    /// Notes of older versions have no name: the next assembly adds it.
    #[test]
    fn a_missing_name_is_added() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("raidd.conf");
        fs::write(&path, format!("{HEADER}{}\n", mdadm_line(&A))).unwrap();
        let guard = Guard {
            mdadm: Some(path.clone()),
            udev: None,
            reload: false,
        };
        assert!(guard.find("data").is_empty());
        assert!(guard.add("data", &A).unwrap());
        assert_eq!(guard.find("data"), [A]);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("ARRAY").count(), 1, "{text}");
        assert!(guard.remove(&A).unwrap() && !path.exists());
    }
}
