//! Verdicts: real arrays of every kind, then freshness, roles and refusals on sets made for the purpose.

use proptest::prelude::*;
use raid_core::assemble::*;
use raid_core::create::{NewArray, NewBitmap, NewMember, plan};
use raid_core::geometry::{GeometryError, Level};
use raid_core::refusal::Refusal;
use raid_core::superblock::*;

const GIB: u64 = 1 << 21;

fn golden(name: &str) -> Vec<Candidate> {
    let path = format!("{}/tests/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"));
    let placement = match name {
        _ if name.ends_with("v1.0") => Placement::End,
        _ if name.ends_with("v1.1") => Placement::Start,
        _ => Placement::FourK,
    };
    let bytes = std::fs::read(path).unwrap();
    let block = |block: &[u8]| Superblock::decode(block, placement.sector(GIB).unwrap()).unwrap();
    let candidate = |block| Candidate {
        superblock: block,
        device_sectors: GIB,
        bitmap_version: None,
    };
    bytes.chunks(4096).map(block).map(candidate).collect()
}

fn made(level: Level, members: u8, clean: bool) -> Vec<Candidate> {
    let sizes: Vec<NewMember> = (0..members)
        .map(|i| NewMember {
            device_uuid: [i + 1; 16],
            sectors: GIB,
        })
        .collect();
    let new = NewArray {
        level,
        layout: None,
        chunk_sectors: 128,
        name: "data",
        host: "box",
        uuid: [9; 16],
        now: 1_800_000_000,
        assume_clean: clean,
        bitmap: NewBitmap::None,
        members: &sizes,
    };
    let mut blocks = plan(&new).unwrap().superblocks;
    blocks.iter_mut().for_each(|block| block.events = 100);
    let candidate = |superblock| Candidate {
        superblock,
        device_sectors: GIB,
        bitmap_version: None,
    };
    blocks.into_iter().map(candidate).collect()
}

fn judge(candidates: &[Candidate]) -> Result<AssembledArray, Refusal> {
    judge_with(candidates, false)
}

fn judge_with(candidates: &[Candidate], force: bool) -> Result<AssembledArray, Refusal> {
    let mut verdicts = assemble(
        candidates,
        AssembleOptions {
            force,
            read_only: false,
        },
    );
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0).outcome
}

fn fail(candidates: &mut [Candidate], slot: usize, by: impl Fn(usize) -> bool) {
    for (index, candidate) in candidates.iter_mut().enumerate() {
        if by(index) {
            candidate.superblock.set_role(slot as u32, SlotRole::Faulty);
            candidate.superblock.events += 2;
        }
    }
}

#[test]
fn real_plain_arrays_start() {
    for (name, level, members, chunk) in [
        ("raid0-2", Level::Raid0, 2, 128),
        ("raid5-3-clean", Level::Raid5, 3, 128),
        ("raid5-4-rebuilt", Level::Raid5, 4, 1024),
        ("raid6-4-clean", Level::Raid6, 4, 128),
        ("raid6-4-fresh", Level::Raid6, 4, 128),
        ("raid6-8-clean", Level::Raid6, 8, 128),
        ("raid5-3-v1.0", Level::Raid5, 3, 128),
        ("raid5-3-v1.1", Level::Raid5, 3, 128),
    ] {
        let mut candidates = golden(name);
        candidates.reverse();
        let array = judge(&candidates).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        assert_eq!(
            (
                array.level,
                array.geometry.members(),
                array.geometry.chunk_sectors()
            ),
            (level, members, chunk)
        );
        assert!(array.clean && array.degraded == 0 && array.left_out.is_empty() && !array.forced);
        for (slot, &place) in array.members.iter().enumerate() {
            assert_eq!(
                place,
                Some(usize::from(members) - 1 - slot),
                "{name}: reversed order, found by role"
            );
            assert_eq!(
                array.superblocks[slot].as_ref(),
                Some(&candidates[place.unwrap()].superblock)
            );
        }
        assert!(array.name.starts_with("golden:"));
    }
    let mut zones = golden("raid0-zones");
    for candidate in &mut zones {
        candidate.device_sectors =
            candidate.superblock.data_offset + candidate.superblock.data_size;
    }
    let array = judge(&zones).unwrap();
    assert_eq!(array.geometry.zones().len(), 3);
    let dirty = judge(&golden("raid6-4-dirty")).unwrap();
    assert_eq!(
        (dirty.clean, dirty.resync_offset, dirty.logical_block_size),
        (false, 0, 512)
    );
    let failed = judge(&golden("raid6-5-faulty-spare")).unwrap();
    assert_eq!(
        (failed.degraded, failed.members[2], failed.clean),
        (1, None, true)
    );
    assert_eq!(failed.left_out, [(2, LeftOut::Faulty)]);
    assert_eq!(failed.spares, [5]);
    assert_eq!(failed.geometry.layout(), 0);
}

#[test]
fn real_arrays_of_other_kinds_are_refused() {
    use Refusal as R;
    for (name, expected, remedy) in [
        ("raid5-3-bitmap", R::Bitmap, "--bitmap=none"),
        ("raid5-3-ppl", R::Ppl, "--consistency-policy=resync"),
        ("raid5-3-journal", R::Journal, "journal device"),
        (
            "raid5-reshape",
            R::Reshape { position: 3072 },
            "let the reshape finish",
        ),
        (
            "raid5-replacement",
            R::Replacement { index: 3 },
            "let the replacement finish",
        ),
        ("raid4-3", R::Level(4), "mdadm --assemble"),
        ("raid1-2", R::Level(1), "mdadm --assemble"),
        ("raid10-4", R::Level(10), "raid10"),
        ("linear-2", R::Level(-1), "linear"),
    ] {
        let refusal = judge(&golden(name)).unwrap_err();
        assert_eq!(refusal, expected, "{name}");
        assert!(refusal.to_string().contains(remedy), "{refusal}");
        assert_eq!(
            judge_with(&golden(name), true).unwrap_err(),
            expected,
            "force does not help {name}"
        );
    }
    let mut bitmap = golden("raid5-3-bitmap");
    for (version, expected) in [
        (3, R::Bitmap),
        (4, R::Bitmap),
        (5, R::Clustered),
        (6, R::LocklessBitmap),
    ] {
        bitmap[1].bitmap_version = Some(version);
        assert_eq!(judge(&bitmap).unwrap_err(), expected);
    }
    // One that each member has, and that could be read, is taken.
    for one in &mut bitmap {
        one.bitmap_version = Some(4);
    }
    assert_eq!(judge(&bitmap).unwrap().degraded, 0);
    // Without the member that is being rebuilt the rest can do its work.
    let rest = &golden("raid5-4-recovery")[..3];
    assert_eq!(judge(rest).unwrap().degraded, 1);
}

#[test]
fn one_feature_on_one_member_is_enough_to_refuse() {
    use Refusal as R;
    for (bit, expected) in [
        (feature::BITMAP, R::Bitmap),
        (feature::RESHAPE, R::Reshape { position: 0 }),
        (feature::BAD_BLOCKS, R::BadBlocks { index: 2 }),
        (feature::REPLACEMENT, R::Replacement { index: 2 }),
        (feature::RESHAPE_BACKWARDS, R::Reshape { position: 0 }),
        (feature::NEW_OFFSET, R::Reshape { position: 0 }),
        (feature::CLUSTERED, R::Clustered),
        (feature::JOURNAL, R::Journal),
        (feature::PPL, R::Ppl),
        (feature::MULTIPLE_PPLS, R::Ppl),
    ] {
        let mut candidates = made(Level::Raid6, 5, true);
        candidates[2].superblock.feature_map |= bit;
        let refusal = judge(&candidates).unwrap_err();
        assert_eq!(refusal, expected);
        assert!(refusal.to_string().len() > 40);
    }
}

#[test]
fn a_member_that_md_was_rebuilding_goes_on_from_its_checkpoint() {
    let candidates = golden("raid5-4-recovery");
    let from = candidates[3].superblock.recovery_offset;
    assert!(from < candidates[3].superblock.size);
    let array = judge(&candidates).unwrap();
    assert_eq!(array.filling, [(3, from)]);
    assert_eq!((array.degraded, array.members[3]), (1, Some(3)));
    assert!(array.clean && array.left_out.is_empty());
    // Another one lost is one too many, whatever the new one holds already.
    let refusal = judge(&candidates[1..]).unwrap_err();
    let Refusal::TooFewMembers { missing, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!(missing, [0, 3]);
}

#[test]
fn what_a_new_member_holds() {
    let filling = |change: &dyn Fn(&mut Superblock)| {
        let mut candidates = made(Level::Raid6, 5, true);
        change(&mut candidates[2].superblock);
        let array = judge(&candidates).unwrap();
        assert_eq!(array.degraded as usize, array.filling.len());
        array.filling
    };
    assert_eq!(filling(&|_| {}), []);
    let from = |block: &mut Superblock, sectors| {
        block.feature_map |= feature::RECOVERY_OFFSET;
        block.recovery_offset = sectors;
    };
    assert_eq!(filling(&|b| from(b, 4096)), [(2, 4096)]);
    assert_eq!(filling(&|b| from(b, 0)), [(2, 0)]);
    // Without the bit the field means nothing.
    assert_eq!(filling(&|b| b.recovery_offset = 4096), []);
    let guided = |b: &mut Superblock| {
        from(b, 4096);
        b.feature_map |= feature::RECOVERY_BITMAP;
    };
    assert_eq!(filling(&guided), [(2, 0)]);
    // The others had recorded its slot when the power went, its own superblock had not been written: nothing of its data
    // is there, although it is only one event behind.
    let unwritten = |b: &mut Superblock| {
        b.events -= 1;
        b.set_role(2, SlotRole::Spare);
    };
    assert_eq!(filling(&unwritten), [(2, 0)]);
    // RAID 0 cannot be rebuilt.
    let mut candidates = made(Level::Raid0, 3, true);
    from(&mut candidates[1].superblock, 8);
    assert_eq!(
        judge(&candidates).unwrap_err(),
        Refusal::Recovery { index: 1 }
    );
}

#[test]
fn a_dirty_array_with_a_member_that_is_not_whole_needs_force() {
    let mut candidates = made(Level::Raid6, 5, false);
    candidates[4].superblock.feature_map |= feature::RECOVERY_OFFSET;
    candidates[4].superblock.recovery_offset = 1024;
    assert_eq!(
        judge(&candidates).unwrap_err(),
        Refusal::DirtyDegraded { missing: vec![4] }
    );
    let array = judge_with(&candidates, true).unwrap();
    assert_eq!((array.forced, array.filling), (true, vec![(4, 1024)]));
}

/// A device that was failed and removed carries its old superblock, which calls it a member; its number is nobody's in the
/// others. It must not be taken for a spare, whose content is nobody's loss.
#[test]
fn spares_are_told_from_members_that_were_removed() {
    let mut candidates = made(Level::Raid5, 5, true);
    let removed = &mut candidates[4];
    removed.superblock.events -= 7;
    for (index, candidate) in candidates.iter_mut().enumerate() {
        candidate.superblock.raid_disks = 4;
        if index < 4 {
            candidate.superblock.set_role(4, SlotRole::Spare);
        }
    }
    // (The role of its slot does not matter here: it says that it has one.)
    let array = judge(&candidates).unwrap();
    assert_eq!(array.left_out, [(4, LeftOut::Removed { behind: 7 })]);
    assert!(array.spares.is_empty());
    candidates[4].superblock.set_role(4, SlotRole::Spare);
    let array = judge(&candidates).unwrap();
    assert_eq!((array.spares, array.left_out), (vec![4], vec![]));
    // Spares need not have followed the events.
    candidates[4].superblock.events = 0;
    assert_eq!(judge(&candidates).unwrap().spares, [4]);
    // A second one with the same number, older: a spare of former days.
    let mut old = candidates[4].clone();
    old.superblock.device_uuid = [55; 16];
    candidates[4].superblock.events = 3;
    candidates.insert(0, old);
    let array = judge(&candidates).unwrap();
    assert_eq!(
        (array.spares, array.left_out),
        (vec![5], vec![(0, LeftOut::Spare)])
    );
    // One that is too small.
    candidates.remove(0);
    candidates[4].device_sectors = candidates[4].superblock.data_offset + 100;
    let array = judge(&candidates).unwrap();
    assert_eq!(
        (array.spares, array.left_out),
        (vec![], vec![(4, LeftOut::Spare)])
    );
    // In use apart from the others, removed by them at the same count.
    candidates[4].device_sectors = GIB;
    candidates[4].superblock.events = 100;
    candidates[4].superblock.set_role(4, SlotRole::Slot(1));
    assert!(matches!(
        judge(&candidates),
        Err(Refusal::SplitBrain { .. })
    ));
}

#[test]
fn freshness_goes_by_events() {
    for behind in 0..4u64 {
        let mut candidates = made(Level::Raid6, 5, true);
        candidates[1].superblock.events -= behind;
        // A member one event behind may not know its last role; the freshest one does.
        let array = judge(&candidates).unwrap();
        let stale = behind >= 2;
        assert_eq!(array.members[1].is_none(), stale);
        assert_eq!(array.degraded, u16::from(stale));
        assert_eq!(array.events, 100);
        // The superblocks handed over are level already, so whoever starts the array has to be told that the disks are not.
        assert_eq!(array.uneven, behind == 1, "{behind} behind");
        match stale {
            true => assert_eq!(array.left_out, [(1, LeftOut::Stale { behind })]),
            false => assert_eq!(array.superblocks[1].as_ref().unwrap().events, 100),
        }
    }
    let mut candidates = made(Level::Raid6, 5, true);
    candidates[0].superblock.events = 98;
    candidates[3].superblock.events = 90;
    candidates[4].superblock.events = 90;
    let refusal = judge(&candidates).unwrap_err();
    let expected = Refusal::TooFewMembers {
        level: Level::Raid6,
        members: 5,
        missing: vec![0, 3, 4],
        stale: vec![0, 3, 4],
    };
    assert_eq!(refusal, expected);
    assert!(refusal.to_string().contains("out of date"), "{refusal}");
}

#[test]
fn the_freshest_member_decides_roles() {
    let mut candidates = made(Level::Raid5, 4, true);
    fail(&mut candidates, 2, |index| index != 2);
    // One survivor missed the last update by one event, so it still lists member 2 as working.
    candidates[3].superblock.events -= 1;
    candidates[3].superblock.set_role(2, SlotRole::Slot(2));
    let array = judge(&candidates).unwrap();
    assert_eq!(
        (array.degraded, array.members[2], array.members[3]),
        (1, None, Some(3))
    );
    assert_eq!(array.left_out, [(2, LeftOut::Faulty)]);
    assert_eq!(
        array.superblocks[3].as_ref().unwrap().role_of(2),
        SlotRole::Faulty
    );
}

#[test]
fn the_most_doubtful_of_the_fresh_counts() {
    let mut candidates = made(Level::Raid5, 4, true);
    candidates[2].superblock.resync_offset = 4096;
    let array = judge(&candidates).unwrap();
    assert_eq!((array.clean, array.resync_offset), (false, 4096));
    assert!(
        array
            .superblocks
            .iter()
            .flatten()
            .all(|block| block.resync_offset == 4096)
    );
    candidates[2].superblock.events -= 1;
    assert!(
        judge(&candidates).unwrap().clean,
        "an older opinion does not count"
    );
    candidates[2].superblock.events += 2;
    assert!(!judge(&candidates).unwrap().clean, "a newer one does");
}

#[test]
fn dirty_and_degraded_needs_force() {
    for (level, count, lost) in [
        (Level::Raid5, 4, 1),
        (Level::Raid6, 6, 1),
        (Level::Raid6, 6, 2),
    ] {
        let candidates = &made(level, count, false)[lost..];
        let missing: Vec<u16> = (0..lost as u16).collect();
        let refusal = judge(candidates).unwrap_err();
        assert_eq!(refusal, Refusal::DirtyDegraded { missing });
        assert!(refusal.to_string().contains("--force"));
        let array = judge_with(candidates, true).unwrap();
        assert!(array.forced && !array.clean && usize::from(array.degraded) == lost);
        // Where no redundancy is left, nothing remains to be brought in sync, and no second force is needed.
        let used_up = lost == usize::from(level.parities());
        assert_eq!(array.resync_offset == u64::MAX, used_up);
        let clean = judge(&made(level, count, true)[lost..]).unwrap();
        assert!(clean.clean && !clean.forced);
        let too_few = judge_with(
            &made(level, count, true)[usize::from(level.parities()) + 1..],
            true,
        );
        assert!(matches!(too_few, Err(Refusal::TooFewMembers { .. })));
    }
    let one_short = judge(&made(Level::Raid0, 3, true)[1..]).unwrap_err();
    assert!(matches!(one_short, Refusal::TooFewMembers { .. }));
}

#[test]
fn disagreement_is_refused() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, Change); 6] = [
        ("layout", |b| b.layout = 3),
        ("chunk size", |b| b.chunk_sectors = 256),
        ("creation time", |b| b.ctime += 1),
        ("size", |b| b.size -= 128),
        ("number of members", |b| b.raid_disks = 6),
        ("level", |b| b.level = 6),
    ];
    for (field, change) in changes {
        let mut candidates = made(Level::Raid5, 4, true);
        change(&mut candidates[3].superblock);
        assert_eq!(
            judge(&candidates).unwrap_err(),
            Refusal::Inconsistent {
                index: 3,
                other: 0,
                field
            }
        );
        candidates[3].superblock.events -= 5;
        assert_eq!(
            judge(&candidates).unwrap().degraded,
            1,
            "a stale member may be from before a change"
        );
    }
    let mut apart = made(Level::Raid5, 4, true);
    fail(&mut apart, 0, |index| index == 1);
    fail(&mut apart, 1, |index| index == 0);
    let mut third = apart[0].superblock.clone();
    (third.dev_number, third.device_uuid) = (2, [3; 16]);
    apart[2].superblock = third;
    assert!(matches!(
        judge(&apart).unwrap_err(),
        Refusal::SplitBrain { .. }
    ));
    assert!(matches!(
        judge_with(&apart, true).unwrap_err(),
        Refusal::SplitBrain { .. }
    ));
}

#[test]
fn devices_that_do_not_fit_are_refused() {
    let good = made(Level::Raid5, 4, true);
    let mut short = good.clone();
    short[1].device_sectors -= 1;
    assert_eq!(
        judge(&short).unwrap_err(),
        Refusal::DeviceTooSmall {
            index: 1,
            need: GIB,
            have: GIB - 1
        }
    );
    let mut small = good.clone();
    small[1].superblock.data_size = 1000;
    assert!(matches!(
        judge(&small).unwrap_err(),
        Refusal::DeviceTooSmall { index: 1, .. }
    ));
    let mut overlap = good.clone();
    overlap[2].superblock.data_offset = 8;
    assert_eq!(
        judge(&overlap).unwrap_err(),
        Refusal::DataOverSuperblock { index: 2 }
    );
    let mut twice = good.clone();
    twice.push(good[0].clone());
    assert_eq!(
        judge(&twice).unwrap_err(),
        Refusal::SameDevice { a: 0, b: 4 }
    );
    twice[4].superblock.device_uuid = [99; 16];
    assert_eq!(
        judge(&twice).unwrap_err(),
        Refusal::SlotTwice {
            slot: 0,
            a: 0,
            b: 4
        }
    );
    let mut outside = good.clone();
    for candidate in &mut outside {
        candidate.superblock.set_role(1, SlotRole::Slot(4));
    }
    assert_eq!(
        judge(&outside).unwrap_err(),
        Refusal::SlotOutside {
            index: 1,
            slot: 4,
            members: 4
        }
    );
    for (chunk, layout) in [(100, 2), (128, 77)] {
        let mut odd = good.clone();
        for candidate in &mut odd {
            candidate.superblock.chunk_sectors = chunk;
            candidate.superblock.layout = layout;
        }
        assert!(matches!(judge(&odd).unwrap_err(), Refusal::Geometry(_)));
    }
    for raid_disks in [0, 1, 300, u32::MAX] {
        let mut odd = good.clone();
        for candidate in &mut odd {
            candidate.superblock.raid_disks = raid_disks;
            candidate.superblock.roles.clear();
        }
        let refusal = judge(&odd).unwrap_err();
        assert!(
            matches!(
                refusal,
                Refusal::TooFewMembers { .. } | Refusal::Geometry(_)
            ),
            "{refusal}"
        );
    }
    assert_eq!(judge(&good).unwrap().geometry.members(), 4);
}

#[test]
fn raid0_layout_must_be_known_when_it_matters() {
    let of = |sizes: &[u64], told: bool, layout: u32| {
        let mut candidates = made(Level::Raid0, sizes.len() as u8, true);
        for (candidate, &size) in candidates.iter_mut().zip(sizes) {
            candidate.superblock.data_size = size;
            candidate.superblock.feature_map = if told { feature::RAID0_LAYOUT } else { 0 };
            candidate.superblock.layout = layout;
        }
        judge(&candidates).map(|array| array.geometry.layout())
    };
    assert_eq!(of(&[1280, 1280, 1280], false, 0), Ok(1));
    assert_eq!(of(&[1280, 1280, 2560], false, 0), Ok(1));
    assert_eq!(
        of(&[1280, 2560, 2560], false, 0),
        Err(Refusal::LayoutUnknown)
    );
    assert_eq!(of(&[1280, 2560, 2560], true, 2), Ok(2));
    let unknown = of(&[1280, 2560, 2560], true, 3);
    assert!(matches!(
        unknown,
        Err(Refusal::Geometry(GeometryError::Layout { .. }))
    ));
}

#[test]
fn arrays_are_told_apart() {
    let mut all = made(Level::Raid5, 3, true);
    let other: Vec<Candidate> = golden("raid6-4-clean");
    all.splice(1..1, other);
    let verdicts = assemble(&all, AssembleOptions::default());
    assert_eq!(verdicts.len(), 2);
    assert_eq!(verdicts[0].candidates, [0, 5, 6]);
    assert_eq!(verdicts[1].candidates, [1, 2, 3, 4]);
    assert_eq!(
        (verdicts[0].name.as_str(), verdicts[1].name.as_str()),
        ("box:data", "golden:r6")
    );
    assert!(verdicts.iter().all(|verdict| verdict.outcome.is_ok()));
    assert_eq!(
        verdicts[0].outcome.as_ref().unwrap().members,
        [Some(0), Some(5), Some(6)]
    );
    assert!(assemble(&[], AssembleOptions::default()).is_empty());
}

#[test]
fn texts_name_devices_as_asked() {
    let refusal = Refusal::SameDevice { a: 0, b: 4 };
    let text = refusal.text(&|index| format!("/dev/nvme{index}n1"));
    assert!(text.starts_with("/dev/nvme0n1 and /dev/nvme4n1 are the same device"));
    assert!(refusal.to_string().starts_with("device 0 and device 4"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Whatever the blocks say, judging them does not panic, and an array that may start is sound.
    #[test]
    fn any_set_is_judged(
        changes in prop::collection::vec((0usize..6, 8usize..520, any::<u8>()), 0..10),
        events in prop::collection::vec(0u64..4, 6), drop in 0usize..6, force in any::<bool>(),
        six in any::<bool>(), clean in any::<bool>(),
    ) {
        let mut candidates = made(if six { Level::Raid6 } else { Level::Raid5 }, 6, clean);
        for (candidate, events) in candidates.iter_mut().zip(events) {
            candidate.superblock.events -= events.saturating_sub(1);
        }
        for (which, offset, value) in changes {
            let mut bytes = candidates[which].superblock.encode();
            if offset >= bytes.len() || (220..224).contains(&offset) {
                continue;
            }
            bytes[offset] = value;
            let sum = checksum(&bytes, candidates[which].superblock.roles.len());
            bytes[216..220].copy_from_slice(&sum.to_le_bytes());
            let at = u64::from_le_bytes(bytes[144..152].try_into().unwrap());
            if let Ok(block) = Superblock::decode(&bytes, at) {
                candidates[which].superblock = block;
            }
        }
        candidates.truncate(6 - drop / 2);
        for verdict in assemble(&candidates, AssembleOptions { force, read_only: false }) {
            match verdict.outcome {
                Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
                Ok(array) => {
                    let missing = array.members.iter().filter(|place| place.is_none()).count();
                    prop_assert_eq!(missing, usize::from(array.degraded));
                    prop_assert!(array.degraded <= array.level.parities());
                    prop_assert!(array.clean || array.degraded == 0 || force);
                    prop_assert_eq!(array.members.len(), usize::from(array.geometry.members()));
                    for (slot, place) in array.members.iter().enumerate() {
                        let block = array.superblocks[slot].as_ref();
                        prop_assert_eq!(place.is_some(), block.is_some());
                        if let (Some(index), Some(block)) = (*place, block) {
                            prop_assert_eq!(block.slot(), SlotRole::Slot(slot as u16));
                            let end = block.data_offset + array.geometry.member_sectors();
                            prop_assert!(end <= candidates[index].device_sectors);
                        }
                    }
                }
            }
        }
    }
}
