//! Superblocks against real ones (`golden/*.bin`, made by mdadm and Linux md), against what mdadm says of
//! them, and against damage of every kind.

use proptest::prelude::*;
use raid_core::superblock::*;
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// The 4 KiB blocks of one array.
fn blocks(name: &str) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(golden(&format!("{name}.bin"))).unwrap();
    assert!(
        !bytes.is_empty() && bytes.len().is_multiple_of(4096),
        "{name}"
    );
    bytes.chunks(4096).map(<[u8]>::to_vec).collect()
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(golden(""))
        .unwrap()
        .filter_map(|entry| {
            entry
                .unwrap()
                .file_name()
                .into_string()
                .unwrap()
                .strip_suffix(".bin")
                .map(String::from)
        })
        .collect();
    names.sort();
    assert!(names.len() >= 21, "{names:?}");
    names
}

/// Sector of the block: the fixtures' names say the version, the RAM disks have 1 GiB.
fn place(name: &str) -> u64 {
    let placement = match name {
        _ if name.ends_with("v1.0") => Placement::End,
        _ if name.ends_with("v1.1") => Placement::Start,
        _ => Placement::FourK,
    };
    placement.sector(1 << 21).unwrap()
}

fn decode(name: &str) -> Vec<Superblock> {
    blocks(name)
        .iter()
        .map(|block| Superblock::decode(block, place(name)).unwrap())
        .collect()
}

fn seal(block: &mut [u8]) {
    let roles = u32::from_le_bytes(block[220..224].try_into().unwrap()) as usize;
    let sum = checksum(block, roles);
    block[216..220].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn real_blocks_come_back_byte_for_byte() {
    for name in names() {
        for (index, block) in blocks(&name).iter().enumerate() {
            let decoded = Superblock::decode(block, place(&name))
                .unwrap_or_else(|e| panic!("{name} {index}: {e}"));
            let mut encoded = decoded.encode();
            assert_eq!(encoded.len(), 512, "{name}: 128 roles fill one sector");
            encoded.resize(4096, 0);
            assert_eq!(&encoded, block, "{name} {index}");
            assert_eq!(Superblock::decode(&encoded, place(&name)), Ok(decoded));
        }
    }
}

/// The values of one key in mdadm's text, one for each member.
fn said(text: &str, key: &str) -> Vec<String> {
    let lines = text
        .lines()
        .filter_map(|line| line.trim().split_once(" : "));
    lines
        .filter(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_string())
        .collect()
}

#[test]
fn mdadm_says_the_same() {
    for name in names() {
        let text = std::fs::read_to_string(golden(&format!("{name}.txt"))).unwrap();
        let blocks = decode(&name);
        let check = |key: &str, value: &dyn Fn(&Superblock) -> String| {
            let said = said(&text, key);
            assert_eq!(said.len(), blocks.len(), "{name}: {key}");
            for (said, block) in said.iter().zip(&blocks) {
                assert_eq!(said, &value(block), "{name}: {key}");
            }
        };
        check("Version", &|b| b.placement().version().to_string());
        check("Feature Map", &|b| format!("{:#x}", b.feature_map));
        check("Array UUID", &|b| uuid_text(&b.uuid));
        check("Device UUID", &|b| uuid_text(&b.device_uuid));
        check("Name", &|b| b.name.clone());
        check("Raid Devices", &|b| b.raid_disks.to_string());
        if !name.ends_with("v1.0") {
            // Not shown for 1.0, whose data starts at 0.
            check("Data Offset", &|b| format!("{} sectors", b.data_offset));
        }
        check("Super Offset", &|b| format!("{} sectors", b.super_offset));
        check("Events", &|b| b.events.to_string());
        check("State", &|b| {
            if b.resync_offset == RESYNC_DONE {
                "clean"
            } else {
                "active"
            }
            .to_string()
        });
        check("Raid Level", &|b| match b.level {
            -1 => "linear".to_string(),
            level => format!("raid{level}"),
        });
        check("Checksum", &|b| {
            let block = b.encode();
            format!(
                "{:x} - correct",
                u32::from_le_bytes(block[216..220].try_into().unwrap())
            )
        });
        check("Device Role", &|b| match b.slot() {
            SlotRole::Slot(slot) if b.has(feature::REPLACEMENT) => {
                format!("Replacement device {slot}")
            }
            SlotRole::Slot(slot) => format!("Active device {slot}"),
            SlotRole::Spare => "spare".to_string(),
            SlotRole::Journal => "Journal".to_string(),
            SlotRole::Faulty => "faulty".to_string(),
        });
        let sizes = said(&text, "Avail Dev Size");
        let said_sizes: Vec<&str> = sizes
            .iter()
            .map(|size| size.split(' ').next().unwrap())
            .collect();
        let data: Vec<String> = blocks.iter().map(|b| b.data_size.to_string()).collect();
        assert_eq!(said_sizes, data, "{name}");
    }
}

#[test]
fn values_that_mdadm_does_not_show() {
    let rebuilt = decode("raid5-4-rebuilt");
    assert_eq!(
        rebuilt.iter().map(|b| b.dev_number).collect::<Vec<_>>(),
        [0, 1, 2, 4]
    );
    assert_eq!(rebuilt[3].roles[..5], [0, 1, 2, 0xffff, 3]);
    assert_eq!(rebuilt[3].slot(), SlotRole::Slot(3));
    assert_eq!(rebuilt[0].role_of(3), SlotRole::Spare);
    assert_eq!(rebuilt[0].role_of(5000), SlotRole::Spare);
    assert_eq!(rebuilt[0].logical_block_size, 512);
    assert_eq!(rebuilt[0].bad_block_log(), Some((24, 8)));

    let recovery = decode("raid5-4-recovery");
    assert!(
        recovery[3].has(feature::RECOVERY_OFFSET) && !recovery[0].has(feature::RECOVERY_OFFSET)
    );

    let ppl = decode("raid5-3-ppl");
    assert_eq!(ppl[0].ppl(), Some((16, 2048)));
    assert_eq!(
        (ppl[0].bitmap_sector(), ppl[0].bad_block_log()),
        (None, Some((2064, 8)))
    );
    assert_eq!(decode("raid5-3-bitmap")[0].bitmap_sector(), Some(16));

    let faulty = decode("raid6-5-faulty-spare");
    assert_eq!(faulty[0].role_of(2), SlotRole::Faulty);
    assert_eq!(
        faulty[2].slot(),
        SlotRole::Slot(2),
        "a failed member keeps its old block"
    );
    assert_eq!((faulty[5].slot(), faulty[0].layout), (SlotRole::Spare, 0));

    let end = &decode("raid5-3-v1.0")[0];
    assert_eq!((end.data_offset, end.super_offset), (0, (1 << 21) - 16));
    assert_eq!(
        end.bad_block_log(),
        Some((end.super_offset - 8, 8)),
        "the offset is negative"
    );
    assert_eq!((end.host(), end.short_name()), (Some("golden"), "r5v10"));

    let reshape = &decode("raid5-reshape")[0];
    assert!(reshape.has(feature::RESHAPE) && reshape.has(feature::NEW_OFFSET));
    assert_eq!(
        (reshape.delta_disks, reshape.new_chunk, reshape.new_layout),
        (1, 128, 2)
    );
    assert_eq!(
        reshape.data_offset as i64 + i64::from(reshape.new_offset),
        3712
    );

    assert_eq!(decode("raid0-zones")[0].feature_map, feature::RAID0_LAYOUT);
    assert!(!decode("raid6-4-dirty")[0].is_clean() && decode("raid0-2")[0].is_clean());
    for (name, sectors) in [
        ("raid6-8-clean", 1 << 21),
        ("raid5-3-v1.0", 1 << 21),
        ("raid5-3-v1.1", 1 << 21),
    ] {
        for block in decode(name) {
            assert_eq!(block.check_device(sectors), Ok(()));
            assert!(matches!(
                block.check_device(sectors / 2),
                Err(DeviceError::TooSmall { .. })
            ));
        }
    }
}

#[test]
fn each_kind_of_damage_has_its_error() {
    use SuperblockError as E;
    let good = blocks("raid6-4-clean").remove(0);
    let with = |offset: usize, bytes: &[u8]| {
        let mut block = good.clone();
        block[offset..offset + bytes.len()].copy_from_slice(bytes);
        seal(&mut block);
        Superblock::decode(&block, 8)
    };
    let of = |name: &str| {
        FIELDS
            .iter()
            .find(|field| field.name == name)
            .unwrap()
            .offset
    };
    assert!(with(of("utime"), &[1]).is_ok());
    assert_eq!(with(of("magic"), &[0]), Err(E::NoMagic));
    assert_eq!(with(of("major_version"), &[2]), Err(E::MajorVersion(2)));
    assert_eq!(
        with(of("feature_map") + 1, &[0x30]),
        Err(E::UnknownFeatures(0x2000))
    );
    assert!(E::UnknownFeatures(0x2000).to_string().contains("0x2000"));
    assert_eq!(with(of("pad0") + 3, &[7]), Err(E::Padding { offset: 15 }));
    for offset in 228..256 {
        assert_eq!(with(offset, &[1]), Err(E::Padding { offset }));
    }
    for bytes in [512u32, 1024, 2048, 4096] {
        let block = with(of("logical_block_size"), &bytes.to_le_bytes()).unwrap();
        assert_eq!(block.logical_block_size, bytes);
        assert_eq!(block.encode()[224..228], bytes.to_le_bytes(), "kept");
    }
    for bytes in [1u32, 256, 513, 8192, u32::MAX] {
        assert_eq!(
            with(of("logical_block_size"), &bytes.to_le_bytes()),
            Err(E::LogicalBlockSize(bytes))
        );
    }
    assert_eq!(
        with(of("data_size"), &9u64.to_le_bytes()),
        Err(E::DataTooSmall(9))
    );
    assert_eq!(
        with(of("super_offset"), &[16]),
        Err(E::Misplaced { says: 16, at: 8 })
    );
    assert_eq!(
        Superblock::decode(&good, 0),
        Err(E::Misplaced { says: 8, at: 0 })
    );
    assert_eq!(
        with(of("feature_map") + 1, &[0x10]),
        Err(E::LayoutBitOnLevel(6))
    );

    let mut many = good.clone();
    many[220..224].copy_from_slice(&1921u32.to_le_bytes());
    assert_eq!(Superblock::decode(&many, 8), Err(E::TooManyRoles(1921)));
    many[220..224].copy_from_slice(&1920u32.to_le_bytes());
    seal(&mut many);
    let full = Superblock::decode(&many, 8).unwrap();
    assert_eq!((full.roles.len(), full.encode()), (MAX_ROLES, many.clone()));
    assert_eq!(
        Superblock::decode(&many[..4095], 8),
        Err(E::Truncated {
            have: 4095,
            need: 4096
        })
    );

    for len in 0..good.len() {
        let cut = Superblock::decode(&good[..len], 8);
        match len {
            0..4 => assert_eq!(cut, Err(E::NoMagic)),
            4..512 => assert!(matches!(cut, Err(E::Truncated { .. })), "{len}: {cut:?}"),
            _ => assert!(cut.is_ok()),
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let good = blocks("raid5-3-clean").remove(0);
    let mut block = good.clone();
    for bit in 0..512 * 8 {
        block[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&block, 8).is_err(), "bit {bit}");
        block[bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(block, good);
}

#[test]
fn checksum_of_an_odd_number_of_roles_counts_the_last() {
    let mut block = Superblock::blank(3);
    block.data_size = 1000;
    block.roles = vec![0, 1, 2];
    let bytes = block.encode();
    let mut sum: u64 = bytes[..260]
        .chunks(4)
        .map(|w| u64::from(u32::from_le_bytes(w.try_into().unwrap())))
        .sum();
    sum -= u64::from(u32::from_le_bytes(bytes[216..220].try_into().unwrap()));
    sum += 2;
    assert_eq!(
        checksum(&bytes, 3),
        (sum as u32).wrapping_add((sum >> 32) as u32)
    );
    assert_eq!(Superblock::decode(&bytes, 8), Ok(block));
}

#[test]
fn odd_names_survive() {
    let mut bytes = blocks("raid6-4-clean").remove(0);
    for raw in [
        &b"\xff\xfe\x80name\0after the end\0\0\0\0\0\0\0\0\0\0\0\0"[..32],
        &[b'x'; 32],
        &[0x80; 32],
    ] {
        bytes[32..64].copy_from_slice(raw);
        seal(&mut bytes);
        let mut block = Superblock::decode(&bytes, 8).unwrap();
        assert_eq!(block.encode(), bytes[..512]);
        block.events += 1;
        assert_eq!(block.encode()[32..64], *raw);
        block.name = "new".into();
        assert_eq!(
            block.encode()[32..64],
            *b"new\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
        );
    }
}

#[test]
fn fields_have_no_gap_and_no_overlap() {
    let mut next = 0;
    for field in FIELDS {
        assert_eq!(field.offset, next, "{}", field.name);
        next += field.size;
    }
    assert_eq!(next, MAX_BYTES);
    assert_eq!((FIXED_BYTES, MAX_BYTES, MAX_ROLES), (256, 4096, 1920));
}

#[test]
fn placements_uuids_bitmaps_and_bad_blocks() {
    assert_eq!(Placement::End.sector(1000), Some(984));
    assert_eq!(Placement::End.sector(1001), Some(984));
    assert_eq!(Placement::FourK.sector(23), None);
    let text = "6be9450b:0b930e33:1e188a3d:59619c70";
    let uuid = parse_uuid(text).unwrap();
    assert_eq!(uuid_text(&uuid), text);
    assert_eq!(
        parse_uuid("6BE9450B-0b93-0e33-1e18-8a3d59619c70"),
        Some(uuid)
    );
    for bad in [
        "",
        "6be9450b",
        "6be9450b:0b930e33:1e188a3d:59619c7g",
        "6be9450b:0b930e33:1e188a3d:59619c700",
    ] {
        assert_eq!(parse_uuid(bad), None);
    }
    assert_eq!(bitmap_version(b"bitm\x04\0\0\0more"), Some(4));
    assert_eq!(bitmap_version(b"bitm\x04\0\0"), None);
    assert_eq!(bitmap_version(&[0; 64]), None);
    let entries = [
        (5000u64 << 10) | 8,
        (77 << 10) | 1023,
        9 << 10,
        u64::MAX,
        (1 << 10) | 1,
    ];
    let log: Vec<u8> = entries
        .iter()
        .flat_map(|entry| entry.to_le_bytes())
        .collect();
    let found = decode_bad_blocks(&log, 0);
    assert_eq!(
        found
            .iter()
            .map(|r| (r.sector, r.sectors))
            .collect::<Vec<_>>(),
        [(5000, 8), (77, 1023)]
    );
    assert_eq!(
        decode_bad_blocks(&log, 3)[0],
        BadRange {
            sector: 40000,
            sectors: 64
        }
    );
}

fn mutations() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((0usize..560, any::<u8>()), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_decoded_or_refused(mut block in prop::collection::vec(any::<u8>(), 0..4200), magic in any::<bool>(), at in any::<u64>()) {
        if magic && block.len() >= 8 {
            block[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
        }
        prop_assert!(Superblock::decode(&block, at).is_err());
    }

    #[test]
    fn mutated_blocks_with_right_checksums_survive(changes in mutations(), which in 0usize..21, shift in any::<u8>()) {
        let names = ["raid5-reshape", "raid6-8-clean", "raid5-3-ppl", "raid0-zones", "raid5-3-bitmap"];
        let mut block = blocks(names[which % names.len()]).remove(0);
        for (offset, value) in changes {
            block[offset] = value;
        }
        block[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
        block[222..224].fill(0);
        block[221] &= 0x06;
        seal(&mut block);
        // Nothing panics, and whatever is accepted comes back as the same bytes.
        let at = u64::from_le_bytes(block[144..152].try_into().unwrap());
        if let Ok(decoded) = Superblock::decode(&block, at) {
            let encoded = decoded.encode();
            let counted = 256 + 2 * decoded.roles.len();
            prop_assert_eq!(&encoded[..counted], &block[..counted]);
            let _ = (decoded.slot(), decoded.ppl(), decoded.bitmap_sector(), decoded.bad_block_log());
            let _ = (decoded.check_device(1 << 21), decoded.is_clean(), decoded.short_name().len());
            let _ = decode_bad_blocks(&block, shift);
        }
    }
}
