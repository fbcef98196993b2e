//! Plans of new arrays: mdadm's layout rules with the values seen from it, and every refusal.

use raid_core::assemble::{AssembleOptions, Candidate, assemble};
use raid_core::create::*;
use raid_core::geometry::{GeometryError, Level};
use raid_core::superblock::{RESYNC_DONE, SlotRole, Superblock, feature};

const MIB: u64 = 2048;
const GIB: u64 = 1024 * MIB;

fn members(sizes: &[u64]) -> Vec<NewMember> {
    let member = |(index, &sectors): (usize, &u64)| NewMember {
        device_uuid: (index as u128 + 1).to_le_bytes(),
        sectors,
    };
    sizes.iter().enumerate().map(member).collect()
}

fn array(level: Level, members: &[NewMember]) -> NewArray<'_> {
    NewArray {
        level,
        layout: None,
        chunk_sectors: DEFAULT_CHUNK_SECTORS,
        name: "data",
        host: "box",
        uuid: [7; 16],
        now: 1_800_000_000,
        assume_clean: false,
        bitmap: NewBitmap::None,
        members,
    }
}

#[test]
fn data_offsets_are_those_seen_from_mdadm() {
    for (sectors, chunk, seen) in [
        (200 * MIB, 1024, 4096),
        (GIB, 1024, 4096),
        (10 * GIB, 1024, 18432),
        (20 * GIB, 1024, 34816),
        (100 * GIB, 1024, 133_120),
        (300 * GIB, 1024, 264_192),
        (1024 * GIB, 1024, 264_192),
        (8192 * GIB, 1024, 264_192),
        (GIB, 2048, 6144),
        (GIB, 8192, 18432),
    ] {
        assert_eq!(
            data_offset(sectors, bitmap_room(sectors), chunk),
            seen,
            "{sectors} {chunk}"
        );
    }
    assert_eq!(
        data_offset(200 * MIB, 2048, 1024),
        6144,
        "with a partial parity log"
    );
    let rooms = [
        100,
        128,
        GIB,
        8 * GIB + 8,
        8 * GIB + 9,
        200 * GIB,
        200 * GIB + 128,
    ]
    .map(bitmap_room);
    assert_eq!(rooms, [0, 8, 8, 8, 128, 128, 256]);
}

#[test]
fn plans_are_the_arrays_that_mdadm_made() {
    for (fixture, level, host_name, chunk, count) in [
        ("raid5-3-clean", Level::Raid5, "r5", 128, 3),
        ("raid6-4-clean", Level::Raid6, "r6", 128, 4),
        ("raid6-8-clean", Level::Raid6, "r6", 128, 8),
        ("raid0-2", Level::Raid0, "r0", 128, 2),
        ("raid0-zones", Level::Raid0, "zones", 24, 4),
    ] {
        let path = format!("{}/tests/golden/{fixture}.bin", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).unwrap();
        let real: Vec<Superblock> = bytes
            .chunks(4096)
            .map(|block| Superblock::decode(block, 8).unwrap())
            .collect();
        assert_eq!(real.len(), count);
        let members: Vec<NewMember> = real
            .iter()
            .map(|b| NewMember {
                device_uuid: b.device_uuid,
                sectors: b.data_offset + b.data_size,
            })
            .collect();
        let new = NewArray {
            level,
            layout: None,
            chunk_sectors: chunk,
            name: host_name,
            host: "golden",
            uuid: real[0].uuid,
            now: real[0].ctime,
            assume_clean: true,
            bitmap: NewBitmap::None,
            members: &members,
        };
        let plan = plan(&new).unwrap();
        for (planned, real) in plan.superblocks.iter().zip(&real) {
            let mut planned = planned.clone();
            // mdadm starts counting at 0, and writes the layout bit only on newer kernels.
            planned.events = real.events;
            planned.feature_map = real.feature_map;
            planned.utime = real.utime;
            assert_eq!(&planned, real, "{fixture}");
            assert_eq!(planned.encode(), real.encode());
        }
    }
}

#[test]
fn a_parity_array_starts_dirty_and_in_sync() {
    let members = members(&[100 * GIB + 3, 100 * GIB, 100 * GIB + 900 * MIB, 120 * GIB]);
    for (clean, resync) in [(false, 0), (true, RESYNC_DONE)] {
        let new = NewArray {
            assume_clean: clean,
            ..array(Level::Raid6, &members)
        };
        let plan = plan(&new).unwrap();
        assert_eq!(plan.superblocks.len(), 4);
        for (slot, block) in plan.superblocks.iter().enumerate() {
            assert_eq!(
                (block.dev_number, block.slot()),
                (slot as u32, SlotRole::Slot(slot as u16))
            );
            assert_eq!(
                (block.data_offset, block.super_offset, block.resync_offset),
                (133_120, 8, resync)
            );
            assert_eq!(block.data_size, members[slot].sectors - 133_120);
            assert_eq!(block.size, (100 * GIB - 133_120) / 128 * 128);
            assert_eq!(
                (block.name.as_str(), block.roles.len(), block.events),
                ("box:data", 128, 1)
            );
            assert_eq!(
                (block.bblog_offset, block.bblog_size, block.feature_map),
                (136, 8, 0)
            );
            assert_eq!((block.layout, block.logical_block_size), (2, 0));
        }
        let sizes: Vec<_> = plan
            .warnings
            .iter()
            .map(|warning| format!("{warning:?}"))
            .collect();
        assert_eq!(sizes.len(), 1, "1 % is not worth a word: {sizes:?}");
        assert!(matches!(
            plan.warnings[0],
            CreateWarning::Wasted { slot: 3, .. }
        ));
        let candidates: Vec<Candidate> = (plan.superblocks.iter().zip(&members))
            .map(|(block, member)| Candidate {
                superblock: Superblock::decode(&block.encode(), 8).unwrap(),
                device_sectors: member.sectors,
                bitmap_version: None,
            })
            .collect();
        let verdict = assemble(&candidates, AssembleOptions::default()).remove(0);
        let array = verdict.outcome.unwrap();
        assert_eq!(
            (array.clean, array.degraded, array.geometry),
            (clean, 0, plan.geometry)
        );
    }
}

#[test]
fn more_than_one_percent_is_worth_a_word() {
    // What 100 GiB hold behind the data's offset, in whole chunks.
    let used = 100 * GIB - 133_120;
    for (extra, warned) in [(used / 100, false), (used / 100 + 1, true)] {
        let members = members(&[100 * GIB, 100 * GIB + extra, 100 * GIB]);
        let plan = plan(&array(Level::Raid5, &members)).unwrap();
        assert_eq!(plan.geometry.member_sectors(), used);
        let expected = CreateWarning::Wasted {
            slot: 1,
            sectors: extra,
        };
        assert_eq!(plan.warnings, if warned { vec![expected] } else { vec![] });
    }
}

#[test]
fn raid0_uses_all_of_unequal_members() {
    let members = members(&[10 * GIB, 20 * GIB, 20 * GIB + 77]);
    let plan = plan(&array(Level::Raid0, &members)).unwrap();
    assert!(plan.warnings.is_empty());
    let block = &plan.superblocks[2];
    assert_eq!(
        (block.feature_map, block.layout, block.size),
        (feature::RAID0_LAYOUT, 1, 0)
    );
    assert_eq!((block.bblog_offset, block.resync_offset), (8, RESYNC_DONE));
    let data: u64 = plan
        .superblocks
        .iter()
        .map(|block| block.data_size / 128 * 128)
        .sum();
    assert_eq!(plan.geometry.array_sectors(), data);
}

#[test]
fn many_members_get_a_longer_table() {
    for (count, roles) in [(2usize, 128), (128, 128), (129, 384), (256, 384)] {
        let sizes = vec![GIB; count];
        let members = members(&sizes);
        let plan = plan(&array(Level::Raid5, &members)).unwrap();
        let last = plan.superblocks.last().unwrap();
        assert_eq!(
            (last.roles.len(), last.slot()),
            (roles, SlotRole::Slot(count as u16 - 1))
        );
        assert_eq!(last.encode().len() % 512, 0);
        assert_eq!(
            plan.warnings.contains(&CreateWarning::TwoMembers),
            count == 2
        );
    }
}

#[test]
fn names_take_the_host_when_it_fits() {
    let members = members(&[GIB; 4]);
    let name_of = |name: &str, host: &str| {
        let plan = plan(&NewArray {
            name,
            host,
            ..array(Level::Raid5, &members)
        })?;
        Ok((
            plan.superblocks[0].name.clone(),
            plan.warnings.contains(&CreateWarning::NoHost),
        ))
    };
    let (n27, n28, n31, n32) = (
        "n".repeat(27),
        "n".repeat(28),
        "n".repeat(31),
        "n".repeat(32),
    );
    assert_eq!(name_of(&n27, "box"), Ok((format!("box:{n27}"), false)));
    assert_eq!(name_of(&n28, "box"), Ok((n28.clone(), true)));
    assert_eq!(name_of(&n31, ""), Ok((n31, false)));
    assert_eq!(
        name_of(&n32, "box"),
        Err(CreateError::NameTooLong { bytes: 32 })
    );
    assert_eq!(name_of("", "box"), Err(CreateError::NameEmpty));
    for c in [':', '/', ' ', '\n', '\0'] {
        assert_eq!(
            name_of(&format!("a{c}b"), "box"),
            Err(CreateError::NameCharacter(c))
        );
    }
    assert_eq!(name_of("data", "b:x"), Ok(("data".into(), false)));
}

#[test]
fn impossible_arrays_are_refused() {
    let four = members(&[GIB; 4]);
    let with = |level, layout, chunk_sectors| {
        plan(&NewArray {
            layout,
            chunk_sectors,
            ..array(level, &four)
        })
        .map(|plan| plan.geometry.layout())
    };
    assert_eq!(with(Level::Raid6, Some(18), 128), Ok(18));
    assert_eq!(
        with(Level::Raid4, None, 128),
        Err(CreateError::Level(Level::Raid4))
    );
    for (level, chunk) in [
        (Level::Raid5, 100),
        (Level::Raid6, 0),
        (Level::Raid0, 12),
        (Level::Raid6, 4),
    ] {
        let refused = with(level, None, chunk);
        assert!(
            matches!(
                refused,
                Err(CreateError::Geometry(GeometryError::Chunk { .. }))
            ),
            "{refused:?}"
        );
    }
    assert!(matches!(
        with(Level::Raid5, Some(8), 128),
        Err(CreateError::Geometry(GeometryError::Layout { .. }))
    ));
    for (level, count) in [
        (Level::Raid6, 3),
        (Level::Raid5, 1),
        (Level::Raid0, 1),
        (Level::Raid0, 0),
    ] {
        let refused = plan(&array(level, &four[..count])).unwrap_err();
        assert_eq!(
            refused,
            CreateError::TooFewMembers {
                level,
                members: count
            }
        );
        assert!(refused.to_string().contains("at least"));
    }
    let smallest = smallest_member(Level::Raid5, 128);
    let mut small = members(&[GIB, smallest, GIB]);
    let plan_small = plan(&array(Level::Raid5, &small)).unwrap();
    assert_eq!(plan_small.geometry.stripes(), 1);
    small[1].sectors -= 1;
    let refused = plan(&array(Level::Raid5, &small)).unwrap_err();
    assert_eq!(
        refused,
        CreateError::MemberTooSmall {
            slot: 1,
            sectors: smallest - 1,
            need: smallest
        }
    );
    small[1].sectors = 0;
    assert!(matches!(
        plan(&array(Level::Raid5, &small)),
        Err(CreateError::MemberTooSmall { slot: 1, .. })
    ));
    let mut same = four.clone();
    same[3].device_uuid = same[1].device_uuid;
    assert_eq!(
        plan(&array(Level::Raid5, &same)).unwrap_err(),
        CreateError::SameDeviceUuid { a: 1, b: 3 }
    );
    let huge = members(&[u64::MAX / 512; 200]);
    let refused = plan(&array(Level::Raid0, &huge)).unwrap_err();
    assert!(
        matches!(refused, CreateError::Geometry(GeometryError::TooLarge)),
        "{refused:?}"
    );
}

/// mdadm 4.2 in a bed, 8 TiB members and 1 GiB ones: the log of bad blocks stands behind the bitmap, and the bitmap begins a
/// page behind the superblock. `docs/format.md` has the rule.
#[test]
fn a_bitmap_and_what_stands_around_it() {
    use raid_core::bitmap::{Header, Map, locate};
    for (sectors, chunk, want_chunk, log) in [
        (GIB, None, 64 << 20, 16),
        (8192 * GIB, None, 64 << 20, 48),
        (GIB, Some(1 << 20), 1 << 20, 16),
    ] {
        let members = members(&[sectors; 4]);
        for clean in [false, true] {
            let plan = plan(&NewArray {
                assume_clean: clean,
                bitmap: NewBitmap::Internal { chunk_bytes: chunk },
                ..array(Level::Raid6, &members)
            })
            .unwrap();
            let bytes = plan.bitmap.expect("a bitmap");
            let header = Header::decode(&bytes).unwrap();
            assert_eq!(
                (header.chunk_bytes, header.events),
                (want_chunk, FIRST_EVENTS)
            );
            let map = Map::decode(&header, &bytes).unwrap();
            assert_eq!(map.count(), if clean { 0 } else { map.chunks() });
            for block in &plan.superblocks {
                assert!(block.has(feature::BITMAP));
                assert_eq!((block.bitmap_offset, block.bblog_offset), (8, log));
                assert_eq!(
                    locate(block, &header).unwrap().sectors * 512,
                    bytes.len() as u64
                );
                assert_eq!(Superblock::decode(&block.encode(), 8).as_ref(), Ok(block));
            }
        }
    }
}

#[test]
fn bitmaps_that_cannot_be_are_refused() {
    use raid_core::bitmap::ChunkError;
    let four = members(&[GIB; 4]);
    let with = |level, chunk_bytes| {
        let bitmap = NewBitmap::Internal { chunk_bytes };
        plan(&NewArray {
            bitmap,
            ..array(level, &four)
        })
        .map(|plan| plan.bitmap.is_some())
    };
    assert_eq!(with(Level::Raid5, None), Ok(true));
    assert_eq!(
        with(Level::Raid0, None),
        Err(CreateError::BitmapWithoutParity)
    );
    let small = with(Level::Raid5, Some(4096));
    assert!(
        matches!(small, Err(CreateError::Bitmap(ChunkError::TooSmall { .. }))),
        "{small:?}"
    );
    let odd = CreateError::Bitmap(ChunkError::NotPowerOfTwo(100_000));
    assert_eq!(with(Level::Raid5, Some(100_000)), Err(odd));
}
