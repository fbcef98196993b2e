//! Recognising what is on a device: one synthetic image per signature, real images from mkfs and mdadm,
//! and devices too small, unreadable or full of noise.

use proptest::prelude::*;
use raid_core::foreign::*;
use std::process::Command;

const MIB: usize = 1 << 20;

fn look(image: &[u8]) -> Vec<(&'static str, u64)> {
    let scan = scan(image.len() as u64, |at, len| {
        image
            .get(at as usize..at as usize + len)
            .map(<[u8]>::to_vec)
    });
    assert!(scan.unreadable.is_empty());
    scan.findings
        .iter()
        .map(|finding| (finding.name, finding.offset))
        .collect()
}

fn image(size: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut image = vec![0; size];
    for &(at, bytes) in parts {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    image
}

#[test]
fn every_signature_is_found_alone() {
    let size = 8 * MIB + 4096;
    let md: &[u8] = b"\xfc\x4e\x2b\xa9\x01\0\0\0";
    let old: &[u8] = b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0";
    let old_be: &[u8] = b"\xa9\x2b\x4e\xfc\0\0\0\0\0\0\0\x5a";
    let boot: (usize, &[u8]) = (510, b"\x55\xaa");
    let bcache: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
    let bcachefs: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
    let last_64k = 8 * MIB - 65536;
    let uber: &[u8] = b"\x0c\xb1\xba\0\0\0\0\0";
    let uber_be: &[u8] = b"\0\0\0\0\0\xba\xb1\x0c";
    let ext: (usize, &[u8]) = (1024 + 56, b"\x53\xef");
    let journal: (usize, &[u8]) = (1024 + 92, b"\x04");
    let ro: (usize, &[u8]) = (1024 + 100, b"\x03");
    let extents: (usize, &[u8]) = (1024 + 96, b"\x42\x02");
    let partition: (usize, &[u8]) = (446, b"\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\x10\0\0");
    let protective: (usize, &[u8]) = (446, b"\0\0\0\0\xee\0\0\0\x01\0\0\0\xff\xff\xff\xff");
    type Case<'a> = (&'a str, usize, Vec<(usize, &'a [u8])>);
    let cases: Vec<Case> = vec![
        ("Linux MD 1.2", 4096, vec![(4096, md)]),
        ("Linux MD 1.1", 0, vec![(0, md)]),
        ("Linux MD 1.0", size - 8192, vec![(size - 8192, md)]),
        ("Linux MD 0.90", last_64k, vec![(last_64k, old)]),
        ("Linux MD 0.90", last_64k, vec![(last_64k, old_be)]),
        ("DDF", size - 512, vec![(size - 512, b"\xde\x11\xde\x11")]),
        (
            "Intel RAID (IMSM)",
            size - 1024,
            vec![(size - 1024, b"Intel Raid ISM Cfg Sig. 1.3.00")],
        ),
        (
            "LVM2 physical volume",
            512,
            vec![(536, b"LVM2 001"), (512, b"LABELONE")],
        ),
        ("DDF", size - 4096, vec![(size - 4096, b"\xde\x11\xde\x11")]),
        (
            "DDF",
            size - 257 * 512,
            vec![(size - 257 * 512, b"\xde\x11\xde\x11")],
        ),
        (
            "Intel RAID (IMSM)",
            size - 8192,
            vec![(size - 8192, b"Intel Raid ISM Cfg Sig. 1.3.00")],
        ),
        (
            "GPT (backup)",
            size - 4096,
            vec![(size - 4096, b"EFI PART")],
        ),
        ("LUKS1", 0, vec![(0, b"LUKS\xba\xbe\x00\x01")]),
        ("LUKS2", 0, vec![(0, b"LUKS\xba\xbe\x00\x02")]),
        (
            "LUKS2 (second header)",
            0x4000,
            vec![(0x4000, b"SKUL\xba\xbe\x00\x02")],
        ),
        ("ZFS", 0, vec![(128 << 10, uber)]),
        ("ZFS", 256 << 10, vec![(387 << 10, uber_be)]),
        (
            "ZFS",
            8 * MIB - (256 << 10),
            vec![(8 * MIB - (100 << 10), uber)],
        ),
        ("GPT", 512, vec![boot, protective, (512, b"EFI PART")]),
        ("GPT", 4096, vec![(4096, b"EFI PART")]),
        ("GPT (backup)", size - 512, vec![(size - 512, b"EFI PART")]),
        ("protective MBR", 0, vec![boot, protective]),
        ("MBR partition table", 0, vec![boot, partition]),
        ("ext2", 1024, vec![ro, ext]),
        ("ext3", 1024, vec![ro, journal, ext]),
        ("ext4", 1024, vec![extents, ro, journal, ext]),
        ("ext journal", 1024, vec![(1024 + 96, b"\x08"), ext]),
        ("XFS", 0, vec![(0, b"XFSB\0\0\x10\0")]),
        ("btrfs", 65536, vec![(65600, b"_BHRfS_M")]),
        ("FAT", 0, vec![boot, (54, b"FAT16   ")]),
        ("FAT", 0, vec![boot, (82, b"FAT32   ")]),
        ("exFAT", 0, vec![boot, (3, b"EXFAT   ")]),
        ("NTFS", 0, vec![boot, (3, b"NTFS    ")]),
        ("swap", 0, vec![(4086, b"SWAPSPACE2")]),
        ("swap", 0, vec![(65526, b"SWAPSPACE2")]),
        ("hibernation image", 0, vec![(4086, b"S1SUSPEND\0")]),
        ("bcache", 4096, vec![(4120, bcache)]),
        ("bcachefs", 4096, vec![(4120, bcachefs)]),
        ("f2fs", 1024, vec![(1024, b"\x10\x20\xf5\xf2")]),
        ("ISO 9660", 32768, vec![(32769, b"CD001")]),
        ("UDF", 32768, vec![(32769, b"BEA01")]),
        ("JFS", 32768, vec![(32768, b"JFS1")]),
        ("ReiserFS", 65536, vec![(65588, b"ReIsEr2Fs")]),
        ("GFS2", 65536, vec![(65536, b"\x01\x16\x19\x70")]),
        ("OCFS2", 8192, vec![(8192, b"OCFSV2")]),
        ("EROFS", 1024, vec![(1024, b"\xe2\xe1\xf5\xe0")]),
        ("APFS", 0, vec![(32, b"NXSB")]),
        ("swap (old)", 0, vec![(4086, b"SWAP-SPACE")]),
        ("NTFS", 0, vec![boot, partition, (3, b"NTFS    ")]),
        ("squashfs", 0, vec![(0, b"hsqs")]),
        ("VDO", 0, vec![(0, b"dmvdo001")]),
        ("Ceph BlueStore", 0, vec![(0, b"bluestore block device\n")]),
        (
            "Stratis pool member",
            512,
            vec![(516, b"!Stra0tis\x86\xff\x02^\x41rh")],
        ),
    ];
    for (name, offset, parts) in cases {
        let mut image = image(size, &parts);
        assert_eq!(look(&image), [(name, offset as u64)]);
        let &(at, bytes) = parts.last().unwrap();
        image[at + bytes.len() - 1] ^= 0xff;
        image[at] ^= 0xff;
        assert!(
            !look(&image).contains(&(name, offset as u64)),
            "{name} without its signature"
        );
    }
}

#[test]
fn several_findings_come_in_order() {
    let size = 4 * MIB;
    let image = image(
        size,
        &[
            (size - 512, b"EFI PART"),
            (512, b"EFI PART"),
            (4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
            (0x10040, b"_BHRfS_M"),
        ],
    );
    let expected = [
        ("GPT", 512),
        ("Linux MD 1.2", 4096),
        ("btrfs", 65536),
        ("GPT (backup)", size as u64 - 512),
    ];
    assert_eq!(look(&image), expected);
    let found = scan(size as u64, |at, len| {
        Some(image[at as usize..at as usize + len].to_vec())
    });
    assert_eq!(
        found.findings[1].to_string(),
        "Linux MD 1.2 (RAID member) at byte 4096"
    );
}

#[test]
fn empty_and_small_devices() {
    for size in [
        0,
        1,
        511,
        512,
        4096,
        12288,
        65536,
        65537,
        300_000,
        MIB,
        MIB + 512,
        2 * MIB,
        3 * MIB,
    ] {
        assert_eq!(look(&vec![0; size]), [], "{size}");
        let _ = look(&vec![0xff; size]);
    }
    assert_eq!(look(&image(12288, &[(0, b"XFSB")])), [("XFS", 0)]);
}

#[test]
fn unreadable_pieces_are_told() {
    let size = 4 * MIB as u64;
    let bad = scan(size, |at, len| (at != 65536).then(|| image(len, &[])));
    assert_eq!((bad.unreadable, bad.findings), (vec![65536], vec![]));
    let short = scan(size, |_, len| Some(vec![0; len - 1]));
    assert_eq!(short.unreadable.len(), 32);
    let mut reads = Vec::new();
    scan(size + 512, |at, len| {
        reads.push((at, len));
        None
    });
    assert!(reads.iter().all(|&(at, _)| at % 4096 == 0));
    assert_eq!(
        reads.iter().map(|&(_, len)| len).sum::<usize>(),
        2 * MIB + 512
    );
}

/// Makes a sparse image with a tool; `None` where the tool is not installed.
fn made_by(tool: &str, arguments: &[&str], size: u64) -> Option<Scan> {
    use std::io::{Read, Seek, SeekFrom};
    let name = format!(
        "raid-core-{}-{tool}-{}",
        std::process::id(),
        arguments.concat().replace('/', "_")
    );
    let path = std::env::temp_dir().join(name);
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let output = Command::new(tool)
        .args(arguments)
        .arg(&path)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output();
    let found = output.ok().map(|output| {
        assert!(
            output.status.success(),
            "{tool}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut file = std::fs::File::open(&path).unwrap();
        scan(size, |at, len| {
            let mut bytes = vec![0; len];
            file.seek(SeekFrom::Start(at)).ok()?;
            file.read_exact(&mut bytes).ok()?;
            Some(bytes)
        })
    });
    std::fs::remove_file(&path).unwrap();
    if found.is_none() {
        eprintln!("{tool} is not installed: its image is not tested");
    }
    found
}

#[test]
fn real_tools() {
    for (tool, arguments, size, name) in [
        ("mkfs.ext2", &["-q", "-F"][..], 64 * MIB, "ext2"),
        ("mkfs.ext3", &["-q", "-F"][..], 64 * MIB, "ext3"),
        ("mkfs.ext4", &["-q", "-F"][..], 64 * MIB, "ext4"),
        ("mkfs.xfs", &["-q", "-f"][..], 512 * MIB, "XFS"),
        ("mkfs.btrfs", &["-q", "-f"][..], 256 * MIB, "btrfs"),
        ("mkfs.vfat", &[][..], 64 * MIB, "FAT"),
        ("mkswap", &["-q"][..], 64 * MIB, "swap"),
    ] {
        let Some(found) = made_by(tool, arguments, size as u64) else {
            continue;
        };
        let names: Vec<_> = found.findings.iter().map(|finding| finding.name).collect();
        assert_eq!(names, [name], "{tool}");
    }
}

#[test]
fn real_members() {
    let golden = |name: &str| {
        std::fs::read(format!(
            "{}/tests/golden/{name}.bin",
            env!("CARGO_MANIFEST_DIR")
        ))
        .unwrap()
    };
    let size = 4 * MIB;
    for (name, at) in [
        ("raid6-4-clean", 4096),
        ("raid5-3-v1.1", 0),
        ("raid5-3-v1.0", size - 8192),
    ] {
        let found = look(&image(size, &[(at, &golden(name)[..4096])]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, at as u64);
        assert!(found[0].0.starts_with("Linux MD 1."));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn noise_never_panics(size in 0usize..3 << 20, seed in any::<u64>()) {
        let mut state = seed | 1;
        let image: Vec<u8> = (0..size).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        }).collect();
        let found = scan(size as u64, |at, len| image.get(at as usize..at as usize + len).map(<[u8]>::to_vec));
        for finding in found.findings {
            prop_assert!(finding.offset < size as u64);
        }
    }
}
