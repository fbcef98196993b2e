//! What is on a device already: MD superblocks by their names, everything else by the core's table, each with the
//! bytes to erase so that nobody takes the device for it any more. Reads one MiB at both ends of the device.

use std::fs::File;
use std::io;

use raid_core::foreign::{Finding, Kind, scan};
use raid_core::superblock::MAX_BYTES;
use raid_core::units::SECTOR_BYTES;

use crate::device::aligned;
use crate::discover::locate;

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// `ext4 (file system)`, `a superblock of the MD array data (raid6)`.
    pub what: String,
    /// What to do with it, where raidctl is not the tool; else empty.
    pub advice: &'static str,
    /// A superblock of metadata 1.x, good or not.
    pub is_md: bool,
    /// Bytes to erase: offset and length.
    pub ranges: Vec<(u64, u64)>,
}

/// Everything recognised on a device.
pub fn signatures(file: &File, size_sectors: u64) -> io::Result<Vec<Signature>> {
    let mut found = Vec::new();
    for located in locate(file, size_sectors)? {
        let what = match &located.block {
            Ok(block) => {
                let name = if block.short_name().is_empty() {
                    "without a name"
                } else {
                    block.short_name()
                };
                format!("a superblock of the MD array {name} (raid{})", block.level)
            }
            Err(error) => format!("an unusable MD superblock ({error})"),
        };
        let ranges = vec![(located.sector * SECTOR_BYTES, MAX_BYTES as u64)];
        found.push(Signature {
            what,
            advice: "",
            is_md: true,
            ranges,
        });
    }
    let size = size_sectors * SECTOR_BYTES;
    let mut first_error = None;
    let looked = scan(size, |offset, len| match aligned::read(file, offset, len) {
        Ok(bytes) => Some(bytes),
        Err(e) => {
            first_error.get_or_insert(e);
            None
        }
    });
    if let Some(error) = first_error {
        return Err(error);
    }
    if let Some(at) = looked.unreadable.first() {
        return Err(io::Error::other(format!(
            "only part of the bytes at {at} could be read"
        )));
    }
    for finding in looked.findings {
        // Those are the ones that `locate` has named already.
        if finding.name.starts_with("Linux MD 1.") {
            continue;
        }
        let (offset, len) = extent(&finding);
        found.push(Signature {
            what: format!("{} ({})", finding.name, finding.kind),
            advice: advice(&finding),
            is_md: false,
            ranges: vec![(offset, len.min(size.saturating_sub(offset)))],
        });
    }
    Ok(found)
}

/// Where the structure lies, as far as it must be erased to be forgotten.
fn extent(finding: &Finding) -> (u64, u64) {
    match (finding.kind, finding.name) {
        (_, "ZFS") => (finding.offset, 256 << 10),
        // The magic is at the end of the first page, whatever a page was.
        (Kind::Swap, _) => (0, 64 << 10),
        // A protective MBR goes with its GPT.
        (_, "GPT") => (0, finding.offset + 512),
        (_, "UDF" | "ISO 9660") => (finding.offset, 16 << 10),
        _ => (finding.offset, 4096),
    }
}

fn advice(finding: &Finding) -> &'static str {
    match (finding.kind, finding.name) {
        (_, "Linux MD 0.90") => {
            "metadata 0.90 is not read here: 'mdadm --assemble --update=metadata' converts it to 1.0, \
             which raidctl assembles"
        }
        (_, "DDF" | "Intel RAID (IMSM)") => {
            "this is the format of a RAID controller's firmware: use its own tools or mdadm, or copy the data to a new array"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn device(pieces: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        for (offset, bytes) in pieces {
            file.write_all_at(bytes, *offset).unwrap();
        }
        file
    }

    /// What is found, and that erasing the ranges makes it be found no more.
    fn found_then_erased(pieces: &[(u64, &[u8])]) -> Vec<String> {
        let file = device(pieces);
        let sectors = (4 << 20) / SECTOR_BYTES;
        let found = signatures(&file, sectors).unwrap();
        for (offset, len) in found.iter().flat_map(|s| s.ranges.iter()) {
            aligned::zero(&file, *offset, *len, 512).unwrap();
        }
        assert_eq!(signatures(&file, sectors).unwrap(), []);
        found.into_iter().map(|s| s.what).collect()
    }

    #[test]
    fn what_is_erased_is_gone() {
        assert_eq!(found_then_erased(&[(0, b"XFSB")]), ["XFS (file system)"]);
        assert_eq!(found_then_erased(&[(65536 - 10, b"SWAPSPACE2")]).len(), 1);
        let gpt = found_then_erased(&[(512, b"EFI PART"), ((4 << 20) - 512, b"EFI PART")]);
        assert_eq!(
            gpt,
            ["GPT (partition table)", "GPT (backup) (partition table)"]
        );
        assert_eq!(
            found_then_erased(&[(0x10040, b"_BHRfS_M")]),
            ["btrfs (file system)"]
        );
        let uberblock = 0x00ba_b10cu64.to_le_bytes();
        assert_eq!(
            found_then_erased(&[(128 << 10, &uberblock)]),
            ["ZFS (volume manager)"]
        );
    }

    #[test]
    fn superblocks_are_named_once() {
        let mut block = raid_core::superblock::Superblock::blank(128);
        block.name = "host:data".into();
        block.level = 6;
        block.data_size = 100;
        assert_eq!(
            found_then_erased(&[(4096, &block.encode())]),
            ["a superblock of the MD array data (raid6)"]
        );
    }

    #[test]
    fn a_blank_device_has_none() {
        assert_eq!(found_then_erased(&[]), Vec::<String>::new());
    }
}
