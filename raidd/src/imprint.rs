//! Writes superblocks to members, all or none. Every byte that is about to be overwritten is read first and put back
//! if anything fails, so that a failed create leaves the members as they were, signatures of their old life included.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use raid_core::superblock::Superblock;
use raid_core::units::SECTOR_BYTES;

use crate::device::aligned;

/// One member to be written.
#[derive(Debug)]
pub struct Target<'a> {
    /// For messages.
    pub path: &'a Path,
    /// Open for writing.
    pub file: &'a File,
    /// Its own superblock.
    pub superblock: &'a Superblock,
    /// Logical block in bytes.
    pub logical_block: u32,
    /// Old signatures to erase: byte offset and length.
    pub wipe: Vec<(u64, u64)>,
    /// A bitmap where the superblock says that it is, whole pages.
    pub bitmap: Option<&'a [u8]>,
}

/// Why the members were not written. Whatever had been written has been taken back unless `left` says otherwise.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {step} failed: {source}{}", left_text(.left))]
pub struct ImprintError {
    /// The member that failed.
    pub path: PathBuf,
    /// What was being done.
    pub step: &'static str,
    /// The kernel's answer.
    pub source: io::Error,
    /// Members that could not be put back.
    pub left: Vec<PathBuf>,
}

fn left_text(left: &[PathBuf]) -> String {
    if left.is_empty() {
        return "; every member is as it was before".into();
    }
    let names: Vec<String> = left.iter().map(|p| p.display().to_string()).collect();
    let names = names.join(" ");
    format!(
        "; what was written on {names} could not be taken back, erase it with 'raidctl zero --force {names}'"
    )
}

/// Bytes as they were, by target.
#[derive(Debug, Default)]
pub struct Undo(Vec<(usize, u64, Vec<u8>)>);

/// Erases, writes, flushes and reads back. The result takes it all back, should the start that follows fail.
pub fn write_all(targets: &[Target<'_>]) -> Result<Undo, ImprintError> {
    let mut undo = Undo::default();
    for (index, target) in targets.iter().enumerate() {
        if let Err((step, source)) = write_one(index, target, &mut undo) {
            let left = undo.take_back(targets);
            return Err(ImprintError {
                path: target.path.into(),
                step,
                source,
                left,
            });
        }
    }
    Ok(undo)
}

/// The superblock padded to whole logical blocks.
fn padded(target: &Target<'_>) -> Vec<u8> {
    let mut bytes = target.superblock.encode();
    bytes.resize(
        bytes
            .len()
            .next_multiple_of(target.logical_block.max(512) as usize),
        0,
    );
    bytes
}

fn write_one(
    index: usize,
    target: &Target<'_>,
    undo: &mut Undo,
) -> Result<(), (&'static str, io::Error)> {
    let at = target.superblock.super_offset * SECTOR_BYTES;
    let bytes = padded(target);
    // The whole 4 KiB of a 1.2 superblock, so that nothing of an older, longer one is left behind the new one.
    let room = (4096 - at % 4096).max(bytes.len() as u64);
    for (offset, len) in target.wipe.iter().copied().chain([(at, room)]) {
        undo.remember(index, target, offset, len)
            .map_err(|e| ("reading", e))?;
        aligned::zero(target.file, offset, len, target.logical_block)
            .map_err(|e| ("erasing", e))?;
    }
    if let (Some(bitmap), Some(sector)) = (target.bitmap, target.superblock.bitmap_sector()) {
        let place = sector * SECTOR_BYTES;
        undo.remember(index, target, place, bitmap.len() as u64)
            .map_err(|e| ("reading", e))?;
        aligned::write(target.file, place, bitmap).map_err(|e| ("writing the bitmap", e))?;
    }
    aligned::write(target.file, at, &bytes).map_err(|e| ("writing the superblock", e))?;
    target.file.sync_all().map_err(|e| ("flushing", e))?;
    let back = aligned::read(target.file, at, bytes.len()).map_err(|e| ("reading back", e))?;
    if back != bytes {
        return Err((
            "reading back",
            io::Error::other("the superblock reads back differently"),
        ));
    }
    Ok(())
}

impl Undo {
    fn remember(
        &mut self,
        index: usize,
        target: &Target<'_>,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        let block = u64::from(target.logical_block.max(512));
        let from = offset / block * block;
        let to = (offset + len).next_multiple_of(block);
        let mut old = aligned::read(target.file, from, (to - from) as usize)?;
        old.truncate(old.len() / block as usize * block as usize);
        self.0.push((index, from, old));
        Ok(())
    }

    /// Puts everything back, last first; the paths that could not be.
    pub fn take_back(self, targets: &[Target<'_>]) -> Vec<PathBuf> {
        let mut left: Vec<PathBuf> = Vec::new();
        for (index, offset, old) in self.0.into_iter().rev() {
            let target = &targets[index];
            let done =
                aligned::write(target.file, offset, &old).and_then(|()| target.file.sync_all());
            // A write that never reached the member needs no taking back.
            let as_before =
                || aligned::read(target.file, offset, old.len()).is_ok_and(|now| now == old);
            if done.is_err() && !as_before() && !left.iter().any(|p| p == target.path) {
                left.push(target.path.into());
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn image(folder: &Path, name: &str) -> (PathBuf, Vec<u8>) {
        let bytes: Vec<u8> = (0..65536u32).map(|n| (n % 253) as u8).collect();
        let path = folder.join(name);
        std::fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }

    fn target<'a>(path: &'a Path, file: &'a File, superblock: &'a Superblock) -> Target<'a> {
        Target {
            path,
            file,
            superblock,
            logical_block: 512,
            wipe: vec![(510, 2), (60_000, 100)],
            bitmap: None,
        }
    }

    #[test]
    fn writes_and_takes_back() {
        let folder = tempfile::tempdir().unwrap();
        let (path, before) = image(folder.path(), "a");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut block = Superblock::blank(128);
        block.data_size = 100;
        let targets = [target(&path, &file, &block)];
        let undo = write_all(&targets).unwrap();
        let now = std::fs::read(&path).unwrap();
        assert_eq!(Superblock::decode(&now[4096..8192], 8).unwrap(), block);
        assert!(now[4096 + 512..8192].iter().all(|b| *b == 0));
        assert_eq!(
            (now[509], now[510], now[511], now[512]),
            (before[509], 0, 0, before[512])
        );
        assert!(now[60_000..60_100].iter().all(|b| *b == 0));
        assert!(undo.take_back(&targets).is_empty());
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_failure_on_the_second_member_restores_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let (a, before) = image(folder.path(), "a");
        let (b, _) = image(folder.path(), "b");
        let writable = File::options().read(true).write(true).open(&a).unwrap();
        let read_only = File::open(&b).unwrap();
        let block = Superblock::blank(128);
        let error = write_all(&[
            target(&a, &writable, &block),
            target(&b, &read_only, &block),
        ])
        .unwrap_err();
        assert_eq!(error.path, b);
        assert!(
            error.left.is_empty() && error.to_string().contains("as it was before"),
            "{error}"
        );
        let mut now = vec![0; before.len()];
        writable.read_exact_at(&mut now, 0).unwrap();
        assert_eq!(now, before);
    }
}
