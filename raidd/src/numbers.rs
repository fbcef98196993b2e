//! Which device number each array had last, so that `/dev/ublkbN` stays the same across restarts. One line per array
//! in `state_dir`; nothing depends on it, and losing it costs nothing but the numbers.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use raid_core::superblock::{parse_uuid, uuid_text};

/// Most arrays remembered; the oldest are forgotten first.
const MOST: usize = 256;

/// The file, read whenever it is needed.
#[derive(Debug)]
pub struct Numbers {
    path: PathBuf,
    lock: Mutex<()>,
}

/// The file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}; arrays may get other device numbers after a restart")]
pub struct NumbersError {
    path: PathBuf,
    source: io::Error,
}

impl Numbers {
    /// The file in this folder, which need not exist yet.
    pub fn new(state_dir: &Path) -> Numbers {
        Numbers {
            path: state_dir.join("device-numbers"),
            lock: Mutex::new(()),
        }
    }

    fn read(&self) -> Vec<([u8; 16], u32)> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let line = |l: &str| {
            let (uuid, id) = l.split_once(' ')?;
            Some((parse_uuid(uuid)?, id.trim().parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    /// The number this array had, unless another array has had it since.
    pub fn of(&self, uuid: &[u8; 16]) -> Option<u32> {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.read()
            .into_iter()
            .find(|(u, _)| u == uuid)
            .map(|(_, id)| id)
    }

    /// Remembers it, and forgets it of any other array.
    pub fn set(&self, uuid: &[u8; 16], id: u32) -> Result<(), NumbersError> {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.read();
        if all.contains(&(*uuid, id)) {
            return Ok(());
        }
        all.retain(|(u, n)| u != uuid && *n != id);
        all.push((*uuid, id));
        let first = all.len().saturating_sub(MOST);
        let text: String = all[first..]
            .iter()
            .map(|(u, n)| format!("{} {n}\n", uuid_text(u)))
            .collect();
        self.write(&text).map_err(|source| NumbersError {
            path: self.path.clone(),
            source,
        })
    }

    fn write(&self, text: &str) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let new = self.path.with_extension("new");
        let written = self.replace(&new, text);
        if written.is_err() {
            // What a full disk left of it.
            let _ = fs::remove_file(&new);
        }
        written
    }

    fn replace(&self, new: &Path, text: &str) -> io::Result<()> {
        let mut file = fs::File::create(new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_across_instances_and_unique() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        let (a, b) = ([1; 16], [2; 16]);
        let numbers = Numbers::new(&dir);
        assert_eq!(numbers.of(&a), None);
        numbers.set(&a, 3).unwrap();
        numbers.set(&b, 5).unwrap();
        assert_eq!(Numbers::new(&dir).of(&a), Some(3));
        numbers.set(&b, 3).unwrap();
        assert_eq!((numbers.of(&a), numbers.of(&b)), (None, Some(3)));
    }

    #[test]
    fn a_damaged_file_is_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("device-numbers"), "garbage\n\n0 x\n").unwrap();
        let numbers = Numbers::new(folder.path());
        assert_eq!(numbers.of(&[0; 16]), None);
        numbers.set(&[1; 16], 0).unwrap();
        assert_eq!(numbers.of(&[1; 16]), Some(0));
    }
}
