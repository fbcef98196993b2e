//! Finds members by reading superblocks from devices, without holding them. One read of 4 KiB per device and place
//! of the format; runs at assemble and examine.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use raid_core::assemble::{AssembleOptions, Candidate, assemble};
use raid_core::refusal::Refusal;
use raid_core::superblock::{MAX_BYTES, Placement, Superblock, SuperblockError, bitmap_version};
use raid_core::units::SECTOR_BYTES;

use crate::device::aligned;
use crate::device::node::{Node, candidates, inspect, sys_list};
use crate::device::open::look;
use crate::signature::signatures;

/// A superblock where it was found, good or not.
#[derive(Debug, Clone)]
pub struct Located {
    /// 1.0, 1.1 or 1.2.
    pub placement: Placement,
    /// Its sector.
    pub sector: u64,
    /// Decoded, or why not; never [`SuperblockError::NoMagic`].
    pub block: Result<Superblock, SuperblockError>,
}

/// Every 1.x superblock of a device, 1.2 first.
pub fn locate(file: &File, size_sectors: u64) -> io::Result<Vec<Located>> {
    let mut found = Vec::new();
    for placement in Placement::ALL {
        let Some(sector) = placement.sector(size_sectors) else {
            continue;
        };
        let bytes = aligned::read(file, sector * SECTOR_BYTES, MAX_BYTES)?;
        match Superblock::decode(&bytes, sector) {
            Err(SuperblockError::NoMagic) => {}
            block => found.push(Located {
                placement,
                sector,
                block,
            }),
        }
    }
    Ok(found)
}

/// The superblock that counts: the first good one.
pub fn best(found: Vec<Located>) -> Option<Superblock> {
    found.into_iter().find_map(|l| l.block.ok())
}

/// What the core's assembly wants to know of a device.
pub fn candidate(file: &File, size_sectors: u64, superblock: Superblock) -> Candidate {
    let bitmap = superblock.bitmap_sector().and_then(|sector| {
        let header = aligned::read(file, sector.checked_mul(SECTOR_BYTES)?, 256).ok()?;
        bitmap_version(&header)
    });
    Candidate {
        superblock,
        device_sectors: size_sectors,
        bitmap_version: bitmap,
    }
}

/// Why an array with this member would be refused whatever the others say; `None` if it would not. That other members
/// are missing from a list of one is no reason.
pub fn refusal_of_one(candidate: Candidate) -> Option<String> {
    let options = AssembleOptions {
        force: true,
        read_only: true,
    };
    let verdict = assemble(&[candidate], options).into_iter().next()?;
    match verdict.outcome {
        Ok(_) | Err(Refusal::TooFewMembers { .. } | Refusal::DirtyDegraded { .. }) => None,
        Err(refusal) => Some(refusal.text(&|_| "this device".into())),
    }
}

/// A device with a good superblock.
#[derive(Debug)]
pub struct Found {
    /// What sysfs says of it.
    pub node: Node,
    /// Decoded.
    pub superblock: Superblock,
}

/// What a look at one device gave, if it is no member: why not.
pub fn probe(path: &Path, allow_files: bool) -> Result<Found, String> {
    let node = inspect(path, allow_files).map_err(|e| match e.remedy(path) {
        remedy if remedy.is_empty() => e.to_string(),
        remedy => format!("{e}; {remedy}"),
    })?;
    let file = look(path).map_err(|e| format!("it cannot be opened: {e}"))?;
    let mut found =
        locate(&file, node.size_sectors).map_err(|e| format!("it cannot be read: {e}"))?;
    let first_bad = found
        .iter()
        .position(|l| l.block.is_err())
        .map(|at| found[at].block.clone());
    found.retain(|l| l.block.is_ok());
    match (best(found), first_bad) {
        (Some(superblock), _) => Ok(Found { node, superblock }),
        (None, Some(Err(error))) => Err(error.to_string()),
        (None, _) => Err(not_a_member(&file, node.size_sectors)),
    }
}

fn not_a_member(file: &File, size_sectors: u64) -> String {
    let mut text = "it carries no MD superblock of version 1".to_string();
    for other in signatures(file, size_sectors).unwrap_or_default() {
        text += &format!("; it carries {}", other.what);
        if !other.advice.is_empty() {
            text += &format!(": {}", other.advice);
        }
    }
    text
}

/// Looks at every device of the machine. Devices that are no members are passed over in silence, a superblock that
/// is damaged is not; the second list has those.
pub fn scan() -> (Vec<Found>, Vec<(PathBuf, String)>) {
    let mut members = Vec::new();
    let mut damaged = Vec::new();
    for path in candidates() {
        let Ok(node) = inspect(&path, false) else {
            continue;
        };
        let Ok(file) = look(&path) else { continue };
        let Ok(found) = locate(&file, node.size_sectors) else {
            continue;
        };
        let problem = found
            .iter()
            .find_map(|l| l.block.as_ref().err().map(SuperblockError::to_string));
        match (best(found), problem) {
            (Some(superblock), _) => members.push(Found { node, superblock }),
            (None, Some(problem)) => damaged.push((path, problem)),
            (None, None) => {}
        }
    }
    (without_lower_layers(members), damaged)
}

/// A member that is seen through several devices, such as the paths of a multipath device or the backing device of a
/// target on this machine, is taken once: from the device that has the fewest others on top of it, a RAM disk last.
/// Two that are alike in this stay both, and the assembly refuses them by name.
fn without_lower_layers(members: Vec<Found>) -> Vec<Found> {
    let rank = |f: &Found| {
        (
            sys_list(&f.node.name, "holders").len(),
            f.node.name.starts_with("ram"),
        )
    };
    let ranks: Vec<_> = members.iter().map(rank).collect();
    let id = |f: &Found| (f.superblock.uuid, f.superblock.device_uuid);
    let keep: Vec<bool> = members
        .iter()
        .zip(&ranks)
        .map(|(one, mine)| {
            !members
                .iter()
                .zip(&ranks)
                .any(|(other, its)| id(other) == id(one) && its < mine)
        })
        .collect();
    members
        .into_iter()
        .zip(keep)
        .filter_map(|(one, keep)| keep.then_some(one))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_short_and_empty_devices() {
        let folder = tempfile::tempdir().unwrap();
        for (len, byte) in [(0, 0), (1, 0xfc), (4096, 0xff), (12288, 0xa5), (65536, 0)] {
            let path = folder.path().join(format!("image{len}"));
            std::fs::write(&path, vec![byte; len]).unwrap();
            let error = probe(&path, true).unwrap_err();
            assert!(error.contains("no MD superblock"), "{error}");
        }
    }

    #[test]
    fn a_damaged_superblock_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut block = Superblock::blank(128);
        block.data_size = 100;
        let mut bytes = vec![0; 65536];
        bytes[4096..4608].copy_from_slice(&block.encode());
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(probe(&path, true).unwrap().superblock, block);
        bytes[4096 + 70] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(probe(&path, true).unwrap_err().contains("checksum"));
    }
}
