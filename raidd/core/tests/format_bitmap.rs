//! Bitmaps against real ones (`golden/bitmap`, made by mdadm and Linux md), against what mdadm -X says of them,
//! against the writes that dirtied them, and against damage of every kind.

use proptest::prelude::*;
use raid_core::bitmap::*;
use raid_core::geometry::{Geometry, Level};
use raid_core::superblock::{Superblock, feature, uuid_text};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/bitmap")
        .join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(golden(name)).unwrap()
}

/// One member: its superblock, and the first page of its bitmap.
struct Member {
    superblock: Superblock,
    area: Vec<u8>,
}

fn members(name: &str) -> Vec<Member> {
    let bytes = std::fs::read(golden(&format!("{name}.bin"))).unwrap();
    assert!(
        !bytes.is_empty() && bytes.len().is_multiple_of(8192),
        "{name}"
    );
    bytes
        .chunks(8192)
        .map(|member| Member {
            superblock: Superblock::decode(&member[..4096], 8).unwrap(),
            area: member[4096..].to_vec(),
        })
        .collect()
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(golden(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".bin").map(String::from))
        .collect();
    names.sort();
    assert!(names.len() >= 18, "{names:?}");
    names
}

/// Bitmaps of which the fixture has all bytes.
fn whole(header: &Header) -> bool {
    header.bytes() <= 4096
}

/// The values of one key in the text of `mdadm -X`, one for each member.
fn said(text: &str, key: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.split_once(" : "))
        .filter(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_string())
        .collect()
}

#[test]
fn real_bitmaps_come_back_byte_for_byte() {
    let mut compared = 0;
    for name in names() {
        for member in members(&name) {
            let header = Header::decode(&member.area).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(header.encode(), member.area[..HEADER_BYTES], "{name}");
            if !whole(&header) {
                continue;
            }
            let map = Map::decode(&header, &member.area).unwrap();
            for size in [512, 4096] {
                let mut image = Vec::new();
                for index in 0..4096 / size as u64 {
                    let mut block = vec![0xaa; size];
                    map.block(&header, index, &mut block);
                    image.extend(block);
                }
                assert!(image == member.area, "{name}: blocks of {size}");
            }
            compared += 1;
        }
    }
    assert!(compared >= 30, "{compared}");
}

#[test]
fn mdadm_says_the_same() {
    for name in names() {
        let text = text(&format!("{name}.txt"));
        let members = members(&name);
        let check = |key: &str, value: &dyn Fn(&Header, &Member) -> Option<String>| {
            let said = said(&text, key);
            assert_eq!(said.len(), members.len(), "{name}: {key}");
            for (said, member) in said.iter().zip(&members) {
                let header = Header::decode(&member.area).unwrap();
                if let Some(value) = value(&header, member) {
                    assert!(
                        *said == value || said.starts_with(&format!("{value} (")),
                        "{name}: {key}: {said} {value}"
                    );
                }
            }
        };
        let of = |value: String| Some(value);
        check("Magic", &|_, _| of(format!("{MAGIC:08x}")));
        check("Version", &|_, _| of(VERSION.to_string()));
        check("UUID", &|h, _| of(uuid_text(&h.uuid)));
        check("Events", &|h, _| of(h.events.to_string()));
        check("Events Cleared", &|h, _| of(h.events_cleared.to_string()));
        check("State", &|h, _| {
            of(if h.state == 0 { "OK" } else { "Out of date" }.to_string())
        });
        check("Chunksize", &|h, _| {
            of(match h.chunk_bytes {
                b if b < 1 << 20 => format!("{} KB", b >> 10),
                b => format!("{} MB", b >> 20),
            })
        });
        check("Daemon", &|h, _| {
            of(format!("{}s flush period", h.daemon_sleep))
        });
        check("Write Mode", &|h, _| {
            assert_eq!(h.write_behind, 0);
            of("Normal".to_string())
        });
        check("Sync Size", &|h, _| of((h.sync_size / 2).to_string()));
        check("Bitmap", &|h, m| {
            whole(h).then(|| {
                let map = Map::decode(h, &m.area).unwrap();
                format!("{} bits (chunks), {} dirty", map.chunks(), map.count())
            })
        });
        for (said, member) in said(&text, "Bitmap").iter().zip(&members) {
            let header = Header::decode(&member.area).unwrap();
            assert!(
                said.starts_with(&format!("{} bits", header.chunks())),
                "{name}"
            );
        }
    }
}

#[test]
fn every_real_one_is_where_it_belongs() {
    for name in names() {
        for Member { superblock, area } in members(&name) {
            let header = Header::decode(&area).unwrap();
            let place = locate(&superblock, &header).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(place.sector, 16, "{name}");
            assert!(place.sectors * 512 >= header.bytes() && place.sectors.is_multiple_of(8));
            // mdadm put the bad-block log right behind it.
            let (log, _) = superblock.bad_block_log().unwrap();
            assert_eq!(place.sector + place.sectors, log, "{name}");
        }
    }
}

#[test]
fn chunk_size_as_mdadm_chooses_it() {
    let mut seen = BTreeSet::new();
    for name in names() {
        let Member { superblock, area } = members(&name).remove(0);
        let header = Header::decode(&area).unwrap();
        let room = room_of_new(superblock.size);
        if name.starts_with("big-") || name.contains("default") {
            let chunk = default_chunk(superblock.size, room).unwrap();
            assert_eq!(chunk, header.chunk_bytes, "{name}");
            seen.insert(chunk);
        }
        assert_eq!(
            check_chunk(superblock.size, room, header.chunk_bytes),
            Ok(()),
            "{name}"
        );
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [64 << 20, 256 << 20]);
    let (mut taken, mut refused) = (0, 0);
    for line in text("chunks.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (size, kib): (u64, u32) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        let ours = check_chunk(size, room_of_new(size), kib << 10);
        match words[2] {
            "taken" => {
                assert_eq!(ours, Ok(()), "{line}");
                taken += 1;
            }
            _ => {
                assert!(matches!(ours, Err(ChunkError::TooSmall { .. })), "{line}");
                refused += 1;
            }
        }
    }
    assert!(taken > 30 && refused > 15, "{taken} {refused}");
    assert_eq!(default_chunk(1 << 20, 0), Err(ChunkError::NoRoom));
    assert_eq!(
        default_chunk(u64::MAX, 256),
        Err(ChunkError::MemberTooLarge)
    );
    assert_eq!(
        check_chunk(1 << 20, 256, 65537),
        Err(ChunkError::NotPowerOfTwo(65537))
    );
}

/// The unit of a bit: what Linux marked for known writes is what `member_range` gives.
#[test]
fn linux_marked_what_was_written() {
    for name in [
        "raid5-3-dirty",
        "raid6-5-4k-dirty",
        "raid6-4-default-dirty",
        "raid6-5-degraded",
    ] {
        let writes: Vec<(u64, u64)> = text(&format!("{name}.writes"))
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(first, sectors)| (first.parse().unwrap(), sectors.parse().unwrap()))
            .collect();
        assert!(writes.len() >= 2);
        for (index, Member { superblock, area }) in members(name).iter().enumerate() {
            if name == "raid6-5-degraded" && index == 2 {
                continue; // failed before the writes
            }
            let level = Level::from_md(superblock.level).unwrap();
            let geometry = Geometry::parity(
                level,
                superblock.layout,
                superblock.raid_disks as u16,
                superblock.chunk_sectors,
                superblock.size,
            )
            .unwrap();
            let header = Header::decode(area).unwrap();
            let mut expected = Map::clean(&header).unwrap();
            for &(first, sectors) in &writes {
                expected.mark(member_range(&geometry, first..first + sectors).unwrap());
            }
            let found = Map::decode(&header, area).unwrap();
            assert_eq!(
                found.dirty_bits().collect::<Vec<_>>(),
                expected.dirty_bits().collect::<Vec<_>>(),
                "{name} {index}"
            );
        }
    }
}

#[test]
fn when_to_believe_it() {
    let all = members("raid6-5-degraded");
    let freshest = all.iter().map(|m| m.superblock.events).max().unwrap();
    for (index, member) in all.iter().enumerate() {
        let header = Header::decode(&member.area).unwrap();
        let (map, stale) = Map::load(&header, &member.area, freshest).unwrap();
        assert_eq!(header.stale(member.superblock.events), None, "{index}");
        if index == 2 {
            let behind = Stale::Behind {
                bitmap: header.events,
                superblock: freshest,
            };
            assert_eq!(stale, Some(behind));
            assert_eq!(map.count(), map.chunks());
        } else {
            assert_eq!(stale, None, "{index}");
            assert!((1..map.chunks()).contains(&map.count()));
            // The failed member may come back with what the bits say, a far older one may not.
            assert!(header.may_rejoin(all[2].superblock.events));
        }
    }
    let mut header = Header::new([7; 16], 4096, 4096);
    header.events = 10;
    header.events_cleared = 8;
    assert_eq!(header.stale(10), None);
    assert_eq!(header.stale(9), None);
    assert!(header.stale(11).unwrap().to_string().contains("events 10"));
    assert!(header.may_rejoin(8) && !header.may_rejoin(7));
    header.state = state::STALE;
    assert_eq!(header.stale(0), Some(Stale::Flagged));
    header.state = state::WRITE_ERROR;
    assert_eq!(header.stale(0), Some(Stale::WriteError));
    let (map, _) = Map::load(&header, &[], 0).unwrap();
    assert_eq!(map.dirty().collect::<Vec<_>>(), vec![0..4096]);
}

#[test]
fn unsynced_is_all_dirty_and_clean_is_clean() {
    for member in members("raid6-4-unsynced") {
        let header = Header::decode(&member.area).unwrap();
        let map = Map::decode(&header, &member.area).unwrap();
        assert_eq!(map, Map::all_dirty(&header).unwrap());
    }
    for member in members("raid5-3-clean") {
        let header = Header::decode(&member.area).unwrap();
        let map = Map::decode(&header, &member.area).unwrap();
        assert_eq!(map, Map::clean(&header).unwrap());
        assert_eq!(map.dirty().next(), None);
    }
}

#[test]
fn every_bad_field_has_a_name() {
    use HeaderError as E;
    let good = Header::new([1; 16], 1 << 20, 65536).encode();
    assert!(Header::decode(&good).is_ok());
    let cases: &[(usize, &[u8], HeaderError)] = &[
        (0, &[0], E::NoMagic),
        (4, &[3], E::HostEndian),
        (4, &[5], E::Clustered),
        (4, &[6], E::Lockless),
        (4, &[7], E::Version(7)),
        (40, &[0; 8], E::SyncSizeZero),
        (47, &[1], E::TooManyChunks((1 << 56 | 1 << 20) / 128)),
        (48, &[1], E::State(1)),
        (48, &[0b1110], E::State(0b1000)),
        (52, &[0, 1, 0, 0], E::ChunkBytes(256)),
        (52, &[0, 0, 3, 0], E::ChunkBytes(0x30000)),
        (52, &[0; 4], E::ChunkBytes(0)),
        (56, &[0], E::DaemonSleepZero),
        (60, &[0, 0x40], E::WriteBehind(16384)),
        (64, &[2], E::SectorsReserved { says: 2, need: 3 }),
        (68, &[4], E::Nodes(4)),
        (72, b"x", E::ClusterName),
        (135, b"x", E::ClusterName),
        (136, &[1], E::Padding { offset: 136 }),
        (255, &[1], E::Padding { offset: 255 }),
    ];
    for &(at, bytes, error) in cases {
        let mut raw = good;
        raw[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(Header::decode(&raw), Err(error), "byte {at}");
        assert!(error.to_string().contains("bitmap"), "{error}");
    }
    assert_eq!(Header::decode(&[]), Err(E::NoMagic));
    assert_eq!(
        Header::decode(&good[..255]),
        Err(E::Truncated { have: 255 })
    );
    let header = Header::decode(&good).unwrap();
    assert_eq!(header.bytes(), 256 + 8192 / 8);
    let error = Map::decode(&header, &[0; 1279]).unwrap_err();
    assert_eq!(
        error,
        MapError::Truncated {
            have: 1279,
            need: 1280
        }
    );
}

#[test]
fn a_wrong_place_is_refused() {
    use PlaceError as E;
    let Member { superblock, area } = members("raid5-3-clean").remove(0);
    let header = Header::decode(&area).unwrap();
    let with = |change: &dyn Fn(&mut Superblock)| {
        let mut changed = superblock.clone();
        change(&mut changed);
        locate(&changed, &header)
    };
    assert_eq!(
        with(&|_| ()),
        Ok(Extent {
            sector: 16,
            sectors: 8
        })
    );
    assert_eq!(
        with(&|s| s.feature_map &= !feature::BITMAP),
        Err(E::NoBitmap)
    );
    assert_eq!(with(&|s| s.bitmap_offset = -9), Err(E::Outside(-9)));
    assert_eq!(with(&|s| s.bitmap_offset = 0), Err(E::OverSuperblock));
    assert_eq!(with(&|s| s.bitmap_offset = -1), Err(E::OverSuperblock));
    assert_eq!(
        with(&|s| s.bitmap_offset = s.data_offset as i32 - 9),
        Err(E::OverData)
    );
    assert_eq!(with(&|s| s.bblog_offset = 9), Err(E::OverBadBlockLog));
    assert_eq!(with(&|s| s.uuid[3] ^= 1), Err(E::OtherArray));
    assert!(matches!(with(&|s| s.size -= 128), Err(E::SyncSize { .. })));
    // Not at a page's distance: whole sectors, header and 512 bytes of bits.
    assert_eq!(
        with(&|s| s.bitmap_offset = 2),
        Ok(Extent {
            sector: 10,
            sectors: 2
        })
    );
    // Room that is left for a map in an array that has none.
    let (log, _) = superblock.bad_block_log().unwrap();
    assert_eq!(room(&superblock), Some(log - 16));
    let mut bare = superblock.clone();
    (bare.bblog_size, bare.bblog_offset) = (0, 0);
    assert_eq!(room(&bare), Some(bare.data_offset - 24));
    bare.data_offset = 24;
    assert_eq!(room(&bare), None);
}

fn ranges() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    prop::collection::vec((0..6000u64, 0..900u64, any::<bool>()), 0..30)
}

proptest! {
    #[test]
    fn headers_come_back(
        uuid: [u8; 16], events: u64, events_cleared: u64, size in 1..1u64 << 40,
        state in prop::sample::select(vec![0, 2, 4, 6]), shift in 24..31u32, sleep in 1..u32::MAX,
        behind in 0..=16383u32,
    ) {
        let header = Header {
            uuid, events, events_cleared, sync_size: size, state, chunk_bytes: 1 << shift,
            daemon_sleep: sleep, write_behind: behind, sectors_reserved: 0,
        };
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    /// Any bytes: an error or a header that gives these bytes again, never a panic.
    #[test]
    fn any_header_bytes(raw in prop::collection::vec(any::<u8>(), 0..300), good: bool, at in 4..256usize, byte: u8) {
        let mut raw = raw;
        if good {
            raw = Header::new([3; 16], 5000, 8192).encode().to_vec();
            raw[at] = byte;
        }
        if let Ok(header) = Header::decode(&raw) {
            prop_assert_eq!(&header.encode()[..], &raw[..HEADER_BYTES]);
        }
    }

    /// The map against a plain set of chunks.
    #[test]
    fn as_a_set(size in 1..6000u64, shift in 0..7u32, steps in ranges()) {
        let header = Header::new([0; 16], size, 512 << shift);
        let mut map = Map::clean(&header).unwrap();
        let mut set = BTreeSet::new();
        let chunk = 1 << shift;
        prop_assert_eq!(map.chunks(), size.div_ceil(chunk));
        for (start, len, mark) in steps {
            let range = start..start + len;
            let touched = |&bit: &u64| bit * chunk < range.end && range.start < ((bit + 1) * chunk).min(size) && len > 0;
            let inside = |&bit: &u64| range.start <= bit * chunk && ((bit + 1) * chunk).min(size) <= range.end;
            let chunks = 0..map.chunks();
            prop_assert_eq!(map.is_dirty(range.clone()), chunks.clone().filter(touched).all(|bit| set.contains(&bit)));
            let before = set.len() as u64;
            if mark {
                set.extend(chunks.filter(touched));
                prop_assert_eq!(map.mark(range.clone()), set.len() as u64 - before);
                prop_assert!(map.is_dirty(range));
            } else {
                set.retain(|bit| !inside(bit));
                prop_assert_eq!(map.clear(range), before - set.len() as u64);
            }
            prop_assert_eq!(map.count(), set.len() as u64);
            prop_assert_eq!(map.dirty_bits().flatten().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            let mut last = None;
            let mut sectors = 0;
            for range in map.dirty() {
                prop_assert!(range.start < range.end && range.end <= size);
                prop_assert!(last.is_none_or(|last| last < range.start), "neighbours are one range");
                prop_assert!(map.is_dirty(range.clone()));
                last = Some(range.end);
                sectors += range.end - range.start;
            }
            let want: u64 = set.iter().map(|bit| ((bit + 1) * chunk).min(size) - bit * chunk).sum();
            prop_assert_eq!(sectors, want);
        }
        map.clear(0..size);
        prop_assert_eq!(map, Map::clean(&header).unwrap());
    }

    /// Bytes on disk: they decode to the same map, and only the blocks named change with a mark.
    #[test]
    fn as_blocks(size in 1..40000u64, steps in ranges(), mark in (0..40000u64, 1..3000u64), small: bool) {
        let block = if small { 512 } else { 4096 };
        let header = Header::new([9; 16], size, 512);
        let mut map = Map::clean(&header).unwrap();
        for (start, len, _) in steps {
            map.mark(start * 7..start * 7 + len);
        }
        let count = header.bytes().div_ceil(block as u64);
        let image = |map: &Map| -> Vec<u8> {
            (0..count).flat_map(|index| { let mut out = vec![0; block]; map.block(&header, index, &mut out); out }).collect()
        };
        let before = image(&map);
        prop_assert_eq!(Header::decode(&before), Ok(header));
        prop_assert_eq!(&Map::decode(&header, &before).unwrap(), &map);
        for bit in 0..count * block as u64 * 8 - 2048 {
            let set = before[256 + bit as usize / 8] >> (bit % 8) & 1 == 1;
            prop_assert_eq!(set, bit >= map.chunks() || map.is_dirty(bit..bit + 1), "bit {}", bit);
        }
        let range = mark.0..mark.0 + mark.1;
        let blocks = Map::blocks(map.bits(range.clone()), block);
        map.mark(range);
        let after = image(&map);
        for index in 0..count {
            let bytes = index as usize * block..(index as usize + 1) * block;
            prop_assert!(before[bytes.clone()] == after[bytes] || blocks.contains(&index), "block {}", index);
        }
    }

    /// Stripes and member sectors: every sector of the array lies, on its member, in the range of its write.
    #[test]
    fn ranges_of_members(six: bool, n in 4..9u16, power in 0..4u32, first in 0..9000u64, len in 1..500u64) {
        let level = if six { Level::Raid6 } else { Level::Raid5 };
        let geometry = Geometry::parity(level, 2, n, 8 << power, 40 * (8 << power)).unwrap();
        let first = first % (geometry.array_sectors() - 1);
        let end = (first + len).min(geometry.array_sectors());
        let member = member_range(&geometry, first..end).unwrap();
        prop_assert!(member.end <= geometry.member_sectors());
        let mut seen = BTreeSet::new();
        for sector in first..end {
            let at = geometry.locate(sector).sector;
            prop_assert!(member.contains(&at));
            seen.insert(at / u64::from(geometry.chunk_sectors()));
        }
        // No stripe more than needed.
        prop_assert_eq!(seen.len() as u64 * u64::from(geometry.chunk_sectors()), member.end - member.start);
        let back = array_range(&geometry, member).unwrap();
        prop_assert!(back.start <= first && end <= back.end && back.end <= geometry.array_sectors());
        prop_assert_eq!(member_range(&geometry, 5..5), Some(0..0));
    }

    /// The chunk rule: the map fits the room, and half the chunk (a quarter, for mdadm's rounding) would not.
    #[test]
    fn default_chunk_fits(size in 1..1u64 << 36, room in 8..2100u64) {
        let chunk = default_chunk(size, room).unwrap();
        prop_assert!(bytes(chunks(size, chunk)) <= room * 512);
        if chunk > DEFAULT_CHUNK_BYTES {
            prop_assert!(bytes(chunks(size, chunk / 4)) > room.min(256) * 512);
        }
        prop_assert_eq!(check_chunk(size, room, chunk), Ok(()));
    }
}
