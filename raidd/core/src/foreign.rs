//! What is on a device already: RAID members, partition tables, volume managers, encryption, file systems.
//!
//! Owns the signatures and their places. Looks only at the first and the last MiB, through a reader that
//! the caller gives: two MiB of reads and memory, once per device before anything is written to it.

use crate::superblock::{MAGIC, Placement};
use crate::units::{SECTOR_BYTES, round_down};
use std::fmt;

/// Bytes looked at on each end of a device.
pub const WINDOW_BYTES: u64 = 1 << 20;
/// Reads are of this size, or up to the device's end, and begin at a multiple of 4096.
pub const READ_BYTES: u64 = 64 << 10;

/// What a finding means for whoever wants the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    RaidMember,
    PartitionTable,
    VolumeManager,
    Encryption,
    FileSystem,
    Swap,
    Cache,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::RaidMember => "RAID member",
            Kind::PartitionTable => "partition table",
            Kind::VolumeManager => "volume manager",
            Kind::Encryption => "encrypted volume",
            Kind::FileSystem => "file system",
            Kind::Swap => "swap space",
            Kind::Cache => "cache device",
        })
    }
}

/// A signature that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    pub name: &'static str,
    /// Byte where the structure with the signature begins.
    pub offset: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) at byte {}", self.name, self.kind, self.offset)
    }
}

/// All findings in order of their place, and the pieces that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    pub findings: Vec<Finding>,
    /// First bytes of pieces of `READ_BYTES` that the reader refused; nothing is known about them.
    pub unreadable: Vec<u64>,
}

/// Looks at a device of `size` bytes. `read(offset, len)` gives exactly `len` bytes, or `None` when they
/// cannot be read.
pub fn scan(size: u64, mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>) -> Scan {
    let head = WINDOW_BYTES.min(size);
    let tail = round_down(size.saturating_sub(WINDOW_BYTES), 4096).max(head);
    let mut scan = Scan::default();
    let mut windows = [(0, Vec::new()), (tail, Vec::new())];
    for ((start, bytes), end) in windows.iter_mut().zip([head, size]) {
        let mut at = *start;
        while at < end {
            let len = READ_BYTES.min(end - at) as usize;
            match read(at, len).filter(|piece| piece.len() == len) {
                Some(piece) => bytes.extend_from_slice(&piece),
                None => {
                    scan.unreadable.push(at);
                    bytes.resize(bytes.len() + len, 0);
                }
            }
            at += len as u64;
        }
    }
    let view = View { size, windows };
    view.md(&mut scan.findings);
    view.other_raid(&mut scan.findings);
    view.tables(&mut scan.findings);
    view.zfs(&mut scan.findings);
    view.ext(&mut scan.findings);
    view.labels(&mut scan.findings);
    scan.findings.sort_by_key(|finding| finding.offset);
    scan
}

/// A signature at a fixed place: kind, name, where the structure begins, where in it the bytes are.
type Signature = (Kind, &'static str, u64, u64, &'static [u8]);

const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

const SIGNATURES: [Signature; 25] = [
    (Kind::Encryption, "LUKS1", 0, 0, b"LUKS\xba\xbe\x00\x01"),
    (Kind::Encryption, "LUKS2", 0, 0, b"LUKS\xba\xbe\x00\x02"),
    (
        Kind::VolumeManager,
        "Stratis pool member",
        512,
        4,
        b"!Stra0tis\x86\xff\x02^\x41rh",
    ),
    (Kind::VolumeManager, "VDO", 0, 0, b"dmvdo001"),
    (
        Kind::VolumeManager,
        "Ceph BlueStore",
        0,
        0,
        b"bluestore block device",
    ),
    (Kind::FileSystem, "XFS", 0, 0, b"XFSB"),
    (Kind::FileSystem, "btrfs", 0x10000, 0x40, b"_BHRfS_M"),
    (Kind::FileSystem, "exFAT", 0, 3, b"EXFAT   "),
    (Kind::FileSystem, "NTFS", 0, 3, b"NTFS    "),
    (Kind::FileSystem, "FAT", 0, 54, b"FAT12   "),
    (Kind::FileSystem, "FAT", 0, 54, b"FAT16   "),
    (Kind::FileSystem, "FAT", 0, 54, b"FAT     "),
    (Kind::FileSystem, "FAT", 0, 82, b"FAT32   "),
    (Kind::FileSystem, "f2fs", 1024, 0, b"\x10\x20\xf5\xf2"),
    (Kind::FileSystem, "EROFS", 1024, 0, b"\xe2\xe1\xf5\xe0"),
    (Kind::FileSystem, "ISO 9660", 32768, 1, b"CD001"),
    (Kind::FileSystem, "UDF", 32768, 1, b"BEA01"),
    (Kind::FileSystem, "JFS", 32768, 0, b"JFS1"),
    (Kind::FileSystem, "squashfs", 0, 0, b"hsqs"),
    (Kind::FileSystem, "ReiserFS", 65536, 52, b"ReIsEr"),
    (Kind::FileSystem, "bcachefs", 4096, 24, BCACHEFS),
    (Kind::Cache, "bcache", 4096, 24, BCACHE),
    (Kind::FileSystem, "GFS2", 65536, 0, b"\x01\x16\x19\x70"),
    (Kind::FileSystem, "OCFS2", 8192, 0, b"OCFSV2"),
    (Kind::FileSystem, "APFS", 0, 32, b"NXSB"),
];

/// Signatures that count only in a sector that ends like a boot sector.
fn is_boot_sector(name: &str) -> bool {
    matches!(name, "FAT" | "NTFS" | "exFAT")
}

struct View {
    size: u64,
    windows: [(u64, Vec<u8>); 2],
}

impl View {
    /// Bytes of the device; `None` outside it or outside what was read.
    fn get(&self, offset: u64, len: u64) -> Option<&[u8]> {
        self.windows.iter().find_map(|(start, bytes)| {
            let first = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(first..first.checked_add(len as usize)?)
        })
    }

    fn is(&self, offset: u64, bytes: &[u8]) -> bool {
        self.get(offset, bytes.len() as u64) == Some(bytes)
    }

    fn le32(&self, offset: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.get(offset, 4)?.try_into().ok()?))
    }

    fn before_end(&self, bytes: u64) -> Option<u64> {
        self.size.checked_sub(bytes)
    }

    fn md(&self, found: &mut Vec<Finding>) {
        for placement in Placement::ALL {
            let Some(sector) = placement.sector(self.size / SECTOR_BYTES) else {
                continue;
            };
            let offset = sector * SECTOR_BYTES;
            if self.le32(offset) == Some(MAGIC) && self.le32(offset + 4) == Some(1) {
                let name = match placement {
                    Placement::End => "Linux MD 1.0",
                    Placement::Start => "Linux MD 1.1",
                    Placement::FourK => "Linux MD 1.2",
                };
                found.push(Finding {
                    kind: Kind::RaidMember,
                    name,
                    offset,
                });
            }
        }
        // 0.90 keeps the byte order of its machine.
        if let Some(offset) = round_down(self.size, 65536).checked_sub(65536) {
            let magic = self.le32(offset);
            if (magic == Some(MAGIC) || magic == Some(MAGIC.swap_bytes()))
                && self.le32(offset + 4) == Some(0)
            {
                found.push(Finding {
                    kind: Kind::RaidMember,
                    name: "Linux MD 0.90",
                    offset,
                });
            }
        }
    }

    fn other_raid(&self, found: &mut Vec<Finding>) {
        let mut at_end = |name, back: u64, bytes: &[u8]| {
            if let Some(offset) = self
                .before_end(back)
                .filter(|&offset| self.is(offset, bytes))
            {
                found.push(Finding {
                    kind: Kind::RaidMember,
                    name,
                    offset,
                });
            }
        };
        for back in [512, 4096, 257 * 512] {
            at_end("DDF", back, b"\xde\x11\xde\x11");
        }
        for back in [1024, 8192] {
            at_end("Intel RAID (IMSM)", back, b"Intel Raid ISM Cfg Sig. ");
        }
    }

    fn tables(&self, found: &mut Vec<Finding>) {
        let mut gpt = false;
        let ends = [512, 4096]
            .into_iter()
            .filter_map(|block| self.before_end(block));
        for (offset, name) in [(512, "GPT"), (4096, "GPT")]
            .into_iter()
            .chain(ends.map(|end| (end, "GPT (backup)")))
        {
            if self.is(offset, b"EFI PART") {
                gpt = true;
                found.push(Finding {
                    kind: Kind::PartitionTable,
                    name,
                    offset,
                });
            }
        }
        // A file system's boot sector ends the same way, with code where the table would be.
        let boot_sector = |&(_, name, _, within, bytes): &Signature| {
            is_boot_sector(name) && self.is(within, bytes)
        };
        if !self.is(510, b"\x55\xaa") || SIGNATURES.iter().any(boot_sector) {
            return;
        }
        let entries: Vec<&[u8]> = (0..4)
            .filter_map(|entry| self.get(446 + 16 * entry, 16))
            .collect();
        let sound = entries.iter().all(|entry| entry[0] & 0x7f == 0);
        let used = |entry: &&[u8]| entry[4] != 0 && entry[12..16] != [0; 4];
        let name = match entries.iter().copied().find(used) {
            Some(entry) if entry[4] == 0xee && gpt => return,
            Some(entry) if entry[4] == 0xee => "protective MBR",
            Some(_) => "MBR partition table",
            None => return,
        };
        if sound {
            found.push(Finding {
                kind: Kind::PartitionTable,
                name,
                offset: 0,
            });
        }
    }

    /// Four labels, two at each end; each holds a ring of uberblocks from its middle on.
    fn zfs(&self, found: &mut Vec<Finding>) {
        const LABEL: u64 = 256 << 10;
        let whole = round_down(self.size, LABEL);
        let ends = [2, 1]
            .into_iter()
            .filter_map(|back| whole.checked_sub(back * LABEL));
        let mut labels: Vec<u64> = [0, LABEL].into_iter().chain(ends).collect();
        labels.dedup();
        for offset in labels {
            let Some(ring) = self.get(offset + LABEL / 2, LABEL / 2) else {
                continue;
            };
            let uberblock = |block: &[u8]| {
                let magic = u64::from_le_bytes(block[..8].try_into().unwrap_or_default());
                magic == 0x00ba_b10c || magic.swap_bytes() == 0x00ba_b10c
            };
            if ring.chunks_exact(1024).any(uberblock) {
                found.push(Finding {
                    kind: Kind::VolumeManager,
                    name: "ZFS",
                    offset,
                });
            }
        }
    }

    fn ext(&self, found: &mut Vec<Finding>) {
        const AT: u64 = 1024;
        if !self.is(AT + 56, b"\x53\xef") {
            return;
        }
        let flags = |at: u64| self.le32(AT + at).unwrap_or(0);
        let (compat, incompat, ro_compat) = (flags(92), flags(96), flags(100));
        // What ext3 does not know: extents, 64 bits, flexible groups and so on; huge files, checksums.
        let name = match () {
            () if incompat & 0x8 != 0 => "ext journal",
            () if incompat & !0x17 != 0 || ro_compat & !0x7 != 0 => "ext4",
            () if compat & 0x4 != 0 => "ext3",
            () => "ext2",
        };
        found.push(Finding {
            kind: Kind::FileSystem,
            name,
            offset: AT,
        });
    }

    fn labels(&self, found: &mut Vec<Finding>) {
        for (kind, name, offset, within, bytes) in SIGNATURES {
            if self.is(offset + within, bytes)
                && (!is_boot_sector(name) || self.is(510, b"\x55\xaa"))
            {
                found.push(Finding { kind, name, offset });
            }
        }
        for offset in (0..4).map(|sector| sector * 512) {
            if self.is(offset, b"LABELONE") && self.is(offset + 24, b"LVM2 001") {
                found.push(Finding {
                    kind: Kind::VolumeManager,
                    name: "LVM2 physical volume",
                    offset,
                });
            }
        }
        // The second LUKS2 header lies behind the first, whose size is a power of two from 16 KiB on.
        for offset in (14..20).map(|shift| 1u64 << shift) {
            if self.is(offset, b"SKUL\xba\xbe\x00\x02") {
                found.push(Finding {
                    kind: Kind::Encryption,
                    name: "LUKS2 (second header)",
                    offset,
                });
            }
        }
        for page in [4096, 8192, 16384, 32768, 65536u64] {
            for (name, bytes) in [
                ("swap", b"SWAPSPACE2"),
                ("swap (old)", b"SWAP-SPACE"),
                ("hibernation image", b"S1SUSPEND\0"),
            ] {
                if self.is(page - 10, bytes) {
                    found.push(Finding {
                        kind: Kind::Swap,
                        name,
                        offset: 0,
                    });
                }
            }
        }
    }
}
