//! Geometry against three witnesses: the worked tables of the layouts, its own inverse, and what Linux md
//! laid out and computed on real members (`golden/layouts.txt`, made by `golden/make.sh`).

use proptest::prelude::*;
use raid_core::geometry::*;

fn parity_levels() -> [Level; 3] {
    [Level::Raid4, Level::Raid5, Level::Raid6]
}

/// 2^exp times `value` in GF(2^8) over 0x11d, one doubling at a time.
fn times_power(value: u8, exp: u8) -> u8 {
    (0..exp).fold(value, |v, _| {
        (v << 1) ^ if v & 0x80 != 0 { 0x1d } else { 0 }
    })
}

#[test]
fn every_layout_maps_each_sector_once_and_back() {
    for level in parity_levels() {
        for layout in layout_numbers(level) {
            for members in level.min_members()..=9 {
                let g = Geometry::parity(level, layout, members, 8, 8 * 40).unwrap();
                assert_eq!(g.stripes(), 40);
                assert_eq!(
                    g.array_sectors(),
                    320 * u64::from(members - level.parities())
                );
                let mut seen = vec![false; usize::from(members) * 320];
                for lba in 0..g.array_sectors() {
                    let at = g.locate(lba);
                    let cell = &mut seen[usize::from(at.slot) * 320 + at.sector as usize];
                    assert!(!*cell, "{level} {layout} {members}: {lba} shares its place");
                    *cell = true;
                    assert_eq!(u64::from(at.left_in_chunk), 8 - lba % 8);
                    assert_eq!(
                        g.inverse(at.slot, at.sector),
                        Some(lba),
                        "{level} {layout} {members}"
                    );
                }
                for stripe in 0..40 {
                    let (mut p, mut q, mut data) = (0, 0, Vec::new());
                    for slot in 0..members {
                        match g.role(stripe, slot) {
                            Role::P => {
                                p += 1;
                                assert_eq!(g.p_slot(stripe), slot);
                                assert_eq!(g.inverse(slot, stripe * 8), None);
                            }
                            Role::Q => {
                                q += 1;
                                assert_eq!(g.q_slot(stripe), Some(slot));
                                assert_eq!(g.inverse(slot, stripe * 8), None);
                            }
                            Role::Data(k) => {
                                assert_eq!(g.data_slot(stripe, k), slot);
                                assert!(seen[usize::from(slot) * 320 + stripe as usize * 8]);
                                data.push(k);
                            }
                        }
                    }
                    data.sort_unstable();
                    assert_eq!(data, (0..g.data_members()).collect::<Vec<_>>());
                    assert_eq!((p, q), (1, g.parities() - 1));
                    if level == Level::Raid6 {
                        let mut exponents: Vec<u8> = (0..g.data_members())
                            .map(|k| g.q_exponent(stripe, k))
                            .collect();
                        if matches!(layout, 2 | 3) {
                            assert!(exponents.iter().copied().eq(0..g.data_members() as u8));
                        }
                        exponents.sort_unstable();
                        exponents.dedup();
                        assert_eq!(exponents.len(), usize::from(g.data_members()));
                    }
                }
                assert_eq!(g.inverse(members, 0), None);
                assert_eq!(g.inverse(0, 320), None);
            }
        }
    }
}

#[test]
fn raid6_left_symmetric_worked_tables() {
    let four =
        "Q D0 D1 P|D2 D3 P Q|D5 P Q D4|P Q D6 D7|Q D8 D9 P|D10 D11 P Q|D13 P Q D12|P Q D14 D15";
    let eight = "Q D0 D1 D2 D3 D4 D5 P|D6 D7 D8 D9 D10 D11 P Q|D13 D14 D15 D16 D17 P Q D12|\
        D20 D21 D22 D23 P Q D18 D19|D27 D28 D29 P Q D24 D25 D26|D34 D35 P Q D30 D31 D32 D33|\
        D41 P Q D36 D37 D38 D39 D40|P Q D42 D43 D44 D45 D46 D47";
    for (members, table) in [(4u16, four), (8, eight)] {
        let g = Geometry::parity(Level::Raid6, 2, members, 128, 128 * 8).unwrap();
        for (stripe, row) in table.split('|').enumerate() {
            for (slot, cell) in row.split_whitespace().enumerate() {
                let stripe = stripe as u64;
                let text = match g.role(stripe, slot as u16) {
                    Role::P => "P".to_string(),
                    Role::Q => "Q".to_string(),
                    Role::Data(k) => format!("D{}", stripe * u64::from(members - 2) + u64::from(k)),
                };
                assert_eq!(
                    text, cell,
                    "{members} members, stripe {stripe}, slot {slot}"
                );
            }
        }
    }
}

#[test]
fn q_test_vectors_of_eight_members() {
    for (layout, expected) in [
        (2, [0xb9; 8]),
        (3, [0xb9; 8]),
        (0, [0xb9, 0xb9, 0xf4, 0xad, 0x5e, 0x7f, 0x7c, 0xb9]),
        (1, [0xb9, 0x7c, 0x7f, 0x5e, 0xad, 0xf4, 0xb9, 0xb9]),
        (10, [0xb9, 0xdc, 0x72, 0x2b, 0xa3, 0xe9, 0xde, 0x6f]),
        (9, [0xb9, 0x5e, 0x53, 0xf3, 0xcf, 0xdb, 0xde, 0x6f]),
        (8, [0xde, 0xdb, 0xcf, 0xf3, 0x53, 0x5e, 0xb9, 0x6f]),
    ] {
        let g = Geometry::parity(Level::Raid6, layout, 8, 8, 64).unwrap();
        for stripe in 0..8u64 {
            let q = (0..6).fold(0, |q, k| {
                q ^ times_power(k as u8 + 1, g.q_exponent(stripe, k))
            });
            assert_eq!(
                q, expected[stripe as usize],
                "layout {layout}, stripe {stripe}"
            );
        }
    }
    let four = Geometry::parity(Level::Raid6, 2, 4, 8, 64).unwrap();
    for stripe in 0..8 {
        let q = (0..2).fold(0, |q, k| {
            q ^ times_power(k as u8 + 1, four.q_exponent(stripe, k))
        });
        assert_eq!(q, 5);
    }
}

fn bytes(hex: &str) -> [u8; 4] {
    u32::from_str_radix(hex, 16).unwrap().to_be_bytes()
}

/// The word that `golden/make.sh` wrote into array chunk `index`.
fn words(count: usize) -> Vec<[u8; 4]> {
    let mut state = 0x1234_5678u32;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
            (state ^ (state >> 13)).to_le_bytes()
        })
        .collect()
}

#[test]
fn linux_md_agrees_chunk_by_chunk() {
    let words = words(4096);
    let text = include_str!("golden/layouts.txt");
    let mut lines = text.lines();
    let mut arrays = 0;
    while let Some(head) = lines.next() {
        let value = |key: &str| {
            let found = head
                .split_whitespace()
                .find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("{key} in {head}"))
        };
        let number = |key: &str| value(key).parse::<u64>().unwrap();
        let level = Level::from_md(number("level") as i32).unwrap();
        let layout = number("layout") as u32;
        let members = number("members") as u16;
        let disks: Vec<Vec<[u8; 4]>> = (0..members)
            .map(|_| {
                lines
                    .next()
                    .unwrap()
                    .split_whitespace()
                    .map(bytes)
                    .collect()
            })
            .collect();
        arrays += 1;
        if level == Level::Raid0 {
            assert_eq!(layout_name(level, layout), Some(value("name")));
            let sizes: Vec<u64> = disks.iter().map(|disk| disk.len() as u64 * 8).collect();
            let g = Geometry::raid0(layout, 8, &sizes).unwrap();
            assert_eq!(g.array_sectors(), number("sectors"));
            assert!(g.zones().len() > 2, "the fixture has several zones");
            for chunk in 0..g.array_sectors() / 8 {
                let at = g.locate(chunk * 8);
                let found = disks[usize::from(at.slot)][(at.sector / 8) as usize];
                assert_eq!(found, words[chunk as usize], "{head}: chunk {chunk}");
            }
            continue;
        }
        if level != Level::Raid4 {
            assert_eq!(parse_layout(level, value("name")), Some(layout), "{head}");
        }
        let g = Geometry::parity(level, layout, members, 8, 512).unwrap();
        assert_eq!(g.array_sectors(), number("sectors"));
        for stripe in 0..64u64 {
            let (mut p, mut q) = ([0u8; 4], [0u8; 4]);
            for k in 0..g.data_members() {
                let word = words[(stripe * u64::from(g.data_members()) + u64::from(k)) as usize];
                let found = disks[usize::from(g.data_slot(stripe, k))][stripe as usize];
                assert_eq!(found, word, "{head}: stripe {stripe}, data {k}");
                for (i, &byte) in word.iter().enumerate() {
                    p[i] ^= byte;
                    q[i] ^= times_power(byte, g.q_exponent(stripe, k));
                }
            }
            assert_eq!(
                disks[usize::from(g.p_slot(stripe))][stripe as usize],
                p,
                "{head}: P of {stripe}"
            );
            if let Some(slot) = g.q_slot(stripe) {
                assert_eq!(
                    disks[usize::from(slot)][stripe as usize],
                    q,
                    "{head}: Q of {stripe}"
                );
            }
        }
    }
    assert!(arrays >= 64, "only {arrays} arrays in the fixture");
}

#[test]
fn raid0_zones_map_each_sector_once_and_back() {
    for sizes in [
        vec![80, 80],
        vec![81, 100, 240, 247],
        vec![240, 16, 100, 100, 16],
        vec![8, 16, 24, 32, 40, 48, 56, 64, 72],
        vec![1000, 8, 8],
    ] {
        for layout in [LAYOUT_ORIGINAL, LAYOUT_ALTERNATE] {
            for chunk in [8u32, 24] {
                let Ok(g) = Geometry::raid0(layout, chunk, &sizes) else {
                    assert!(sizes.iter().any(|&size| size < u64::from(chunk)));
                    continue;
                };
                let whole = |size: u64| size / u64::from(chunk) * u64::from(chunk);
                assert_eq!(
                    g.array_sectors(),
                    sizes.iter().map(|&size| whole(size)).sum::<u64>()
                );
                for lba in 0..g.array_sectors() {
                    let at = g.locate(lba);
                    assert!(at.sector < whole(sizes[usize::from(at.slot)]));
                    assert_eq!(
                        g.inverse(at.slot, at.sector),
                        Some(lba),
                        "{sizes:?} {layout} {chunk}"
                    );
                }
                let mapped: u64 = (0..g.members())
                    .map(|slot| {
                        (0..2000)
                            .filter(|&sector| g.inverse(slot, sector).is_some())
                            .count() as u64
                    })
                    .sum();
                assert_eq!(mapped, g.array_sectors());
            }
        }
    }
}

#[test]
fn raid0_layouts_differ_only_past_the_first_zone() {
    let sizes = [80, 80, 160, 240];
    let original = Geometry::raid0(LAYOUT_ORIGINAL, 8, &sizes).unwrap();
    let alternate = Geometry::raid0(LAYOUT_ALTERNATE, 8, &sizes).unwrap();
    assert_eq!(original.zones().len(), 3);
    let first = original.zones()[0].end;
    assert!((0..first).all(|lba| original.locate(lba) == alternate.locate(lba)));
    let five = [80, 160, 160, 160, 240];
    let original = Geometry::raid0(LAYOUT_ORIGINAL, 8, &five).unwrap();
    let alternate = Geometry::raid0(LAYOUT_ALTERNATE, 8, &five).unwrap();
    assert!((0..original.array_sectors()).any(|lba| original.locate(lba) != alternate.locate(lba)));
}

#[test]
fn addresses_past_16_tib_at_both_ends() {
    let member = (40u64 << 40) / 512 + 7;
    for members in [4u16, 32, 256] {
        let g = Geometry::parity(Level::Raid6, 2, members, 128, member).unwrap();
        assert_eq!(g.member_sectors(), member / 128 * 128);
        let last = g.array_sectors() - 1;
        assert!(g.array_sectors() * 512 > 16 << 40);
        let at = g.locate(last);
        assert_eq!((at.sector, at.left_in_chunk), (g.member_sectors() - 1, 1));
        for lba in [0, 1, last / 2, last - 127, last] {
            let at = g.locate(lba);
            assert_eq!(g.inverse(at.slot, at.sector), Some(lba));
        }
    }
    let g = Geometry::raid0(LAYOUT_ORIGINAL, 1024, &[member, member / 3, member]).unwrap();
    let at = g.locate(g.array_sectors() - 1);
    assert_eq!(at.sector, g.member_sectors() - 1);
    assert_eq!(g.inverse(at.slot, at.sector), Some(g.array_sectors() - 1));
}

#[test]
fn impossible_shapes_are_refused() {
    use GeometryError as E;
    let parity = Geometry::parity;
    for members in [0, 1, 257] {
        let error = parity(Level::Raid5, 2, members, 128, 4096).unwrap_err();
        assert_eq!(
            error,
            E::Members {
                level: Level::Raid5,
                members: members.into()
            }
        );
    }
    assert!(matches!(
        parity(Level::Raid6, 2, 3, 128, 4096),
        Err(E::Members { .. })
    ));
    assert!(parity(Level::Raid6, 8, 255, 128, 4096).is_ok());
    assert!(matches!(
        parity(Level::Raid6, 8, 256, 128, 4096),
        Err(E::Members { .. })
    ));
    for layout in [6, 7, 11, 12, 13, 14, 15, 21, u32::MAX] {
        assert!(matches!(
            parity(Level::Raid6, layout, 8, 128, 4096),
            Err(E::Layout { .. })
        ));
        assert!(matches!(
            parity(Level::Raid5, layout, 8, 128, 4096),
            Err(E::Layout { .. })
        ));
    }
    for chunk in [0, 1, 4, 7, 24, 129, 1 << 22, u32::MAX] {
        assert!(matches!(
            parity(Level::Raid5, 2, 4, chunk, 1 << 40),
            Err(E::Chunk { .. })
        ));
    }
    for chunk in [0, 4, 12, u32::MAX] {
        assert!(matches!(
            Geometry::raid0(1, chunk, &[4096, 4096]),
            Err(E::Chunk { .. })
        ));
    }
    assert!(matches!(
        Geometry::raid0(3, 24, &[4096, 4096]),
        Err(E::Layout { .. })
    ));
    assert!(matches!(
        Geometry::raid0(0, 24, &[4096, 4096]),
        Err(E::Layout { .. })
    ));
    assert!(matches!(
        Geometry::raid0(1, 128, &[4096, 100]),
        Err(E::MemberTooSmall { .. })
    ));
    assert!(matches!(
        Geometry::raid0(1, 8, &[u64::MAX, u64::MAX]),
        Err(E::TooLarge)
    ));
    assert!(matches!(
        parity(Level::Raid5, 2, 4, 128, 127),
        Err(E::MemberTooSmall { .. })
    ));
    assert!(matches!(
        parity(Level::Raid5, 2, 4, 128, u64::MAX),
        Err(E::TooLarge)
    ));
    assert!(matches!(
        parity(Level::Raid0, 1, 4, 128, 4096),
        Err(E::WrongFamily { .. })
    ));
}

#[test]
fn layout_names_and_numbers_agree() {
    for level in [Level::Raid0, Level::Raid5, Level::Raid6] {
        for number in layout_numbers(level) {
            let name = layout_name(level, number).unwrap();
            assert_eq!(parse_layout(level, name), Some(number));
            assert_eq!(parse_layout(level, &name.to_uppercase()), Some(number));
            assert_eq!(parse_layout(level, &number.to_string()), Some(number));
        }
        assert_eq!(parse_layout(level, "default"), Some(level.default_layout()));
    }
    assert_eq!(parse_layout(Level::Raid6, "ddf-N-restart"), Some(9));
    assert_eq!(parse_layout(Level::Raid5, "ddf-N-restart"), None);
    assert_eq!(
        ["la", "ra", "ls", "rs"].map(|a| parse_layout(Level::Raid5, a).unwrap()),
        [0, 1, 2, 3]
    );
    for bad in ["", "6", "left", "-1"] {
        assert_eq!(parse_layout(Level::Raid6, bad), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_parity_array_inverts(
        six in any::<bool>(), pick in 0usize..14, members in 4u16..=255, shift in 3u32..=12,
        stripes in 1u64..(1 << 40), at in any::<u64>(),
    ) {
        let level = if six { Level::Raid6 } else { Level::Raid5 };
        let layouts = layout_numbers(level);
        let g = Geometry::parity(level, layouts[pick % layouts.len()], members, 1 << shift, stripes << shift);
        prop_assume!(g.is_ok());
        let g = g.unwrap();
        let lba = at % g.array_sectors();
        let place = g.locate(lba);
        prop_assert!(place.slot < members && place.sector < g.member_sectors());
        prop_assert_eq!(g.inverse(place.slot, place.sector), Some(lba));
    }

    #[test]
    fn any_raid0_inverts(
        layout in 1u32..=2, chunk in 1u32..300, sizes in prop::collection::vec(2400u64..1 << 41, 2..20),
        at in any::<u64>(),
    ) {
        let g = Geometry::raid0(layout, chunk * 8, &sizes).unwrap();
        let lba = at % g.array_sectors();
        let place = g.locate(lba);
        prop_assert!(place.sector < sizes[usize::from(place.slot)]);
        prop_assert_eq!(g.inverse(place.slot, place.sector), Some(lba));
    }
}
