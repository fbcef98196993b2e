//! Scrubs over members that lie: one chunk is corrupted, the scrub names it, and a repair puts exactly that right.

use raid_core::geometry::{Geometry, Level, Role};
use raid_core::path::manager::{ManagerEvent, Note, Scrub};
use raid_core::path::queue::Bug;
use raid_core::path::types::*;

use super::log::Log;
use super::setup::{Setup, Start};
use super::world::World;

/// A clean array at rest that has been written to.
fn at_rest(level: Level, seed: u64) -> World {
    let mut setup = Setup::from_seed(seed);
    let chunk = [8, 16, 256][seed as usize % 3];
    setup.geometry = Geometry::parity(level, 2, 5, chunk, u64::from(chunk) * 9).expect("valid");
    (setup.start, setup.losses, setup.medium) = (Start::Clean, 0, 0);
    (setup.crash, setup.read_only, setup.copy_errors) = (0, false, false);
    (setup.rejoin, setup.scrub, setup.longest) = (false, false, 64);
    let mut world = World::new(setup, Log::off());
    world.load(40, true).expect("nothing fails");
    for disk in &mut world.disks {
        disk.flush();
    }
    world
}

fn media(world: &World) -> Vec<Vec<u64>> {
    let disks = world.disks.iter();
    disks
        .map(|d| (0..d.media.len() as u64).map(|s| d.get(s)).collect())
        .collect()
}

/// Corrupts rows of one chunk of this role. The slot, band and rows.
fn corrupt(world: &mut World, role: impl Fn(Role) -> bool) -> (u16, u64, (u32, u32)) {
    let layout = world.layout.clone();
    world.corrupted = true;
    let band = world.rng.below(layout.bands());
    let slots: Vec<u16> = (0..layout.members)
        .filter(|s| role(layout.geometry.role(layout.stripe(band), *s)))
        .collect();
    let slot = slots[world.rng.index(slots.len())];
    let lo = world.rng.below(u64::from(layout.rows)) as u32;
    let hi = world.rng.range(u64::from(lo) + 1, u64::from(layout.rows)) as u32;
    for row in lo..hi {
        let at = layout.member_sector(band) + u64::from(row);
        world.disks[usize::from(slot)].media[at as usize] ^= world.rng.next() | 1;
    }
    (slot, band, (lo, hi))
}

fn scrub(world: &mut World, kind: Scrub) -> Vec<Note> {
    world.told.clear();
    let (first, end) = (0, u64::MAX);
    world
        .manager_event(ManagerEvent::Scrub { kind, first, end })
        .expect("nothing is wrong");
    world.drain().expect("it ends");
    std::mem::take(&mut world.told)
}

/// The rows of a band that were told, with whom they blame; the sum at the end has to agree.
fn rows_told(notes: &[Note]) -> (u64, Vec<(u64, Option<u16>, bool)>) {
    let Some(Note::ScrubFinished {
        complete: true,
        mismatches,
        ..
    }) = notes.last()
    else {
        panic!("it did not end: {notes:?}");
    };
    let mut sum = 0;
    let mut who = Vec::new();
    for note in &notes[..notes.len() - 1] {
        let Note::Mismatch {
            band,
            located,
            rows,
            repaired,
        } = note
        else {
            panic!("{note:?}");
        };
        sum += u64::from(rows.1 - rows.0);
        who.push((*band, *located, *repaired));
    }
    who.dedup();
    assert_eq!(sum, *mismatches);
    (sum, who)
}

const LOCATE: Scrub = Scrub::Repair {
    policy: Policy::Locate,
};
const PARITY: Scrub = Scrub::Repair {
    policy: Policy::Parity,
};

#[test]
fn a_scrub_of_raid_6_names_the_wrong_member_and_repairs_it() {
    for seed in 1..40 {
        for kind in 0..3 {
            let mut world = at_rest(Level::Raid6, seed);
            let before = media(&world);
            let (slot, band, (lo, hi)) = corrupt(&mut world, |role| match role {
                Role::Data(_) => kind == 0,
                Role::P => kind == 1,
                Role::Q => kind == 2,
            });
            let corrupted = media(&world);
            let rows = u64::from(hi - lo);

            let notes = scrub(&mut world, Scrub::Check);
            let wanted = vec![(band, Some(slot), false)];
            assert_eq!(rows_told(&notes), (rows, wanted), "seed {seed} kind {kind}");
            assert_eq!(media(&world), corrupted, "a check writes nothing");

            let notes = scrub(&mut world, LOCATE);
            assert_eq!(rows_told(&notes), (rows, vec![(band, Some(slot), true)]));
            assert_eq!(media(&world), before, "seed {seed} kind {kind}");
            assert_eq!(rows_told(&scrub(&mut world, Scrub::Check)), (0, vec![]));
            world.check_quiet().expect("all is right again");
        }
    }
}

/// Data that is believed blindly makes parity agree with garbage: nothing differs any more, and the content is lost.
#[test]
fn a_repair_that_believes_garbage_is_found_out() {
    let mut world = at_rest(Level::Raid6, 3);
    for queue in &mut world.queues {
        queue.core.plant(Some(Bug::RepairParityAlways));
    }
    corrupt(&mut world, |role| matches!(role, Role::Data(_)));
    scrub(&mut world, LOCATE);
    assert_eq!(rows_told(&scrub(&mut world, Scrub::Check)), (0, vec![]));
    assert!(world.check_quiet().is_err());
}

#[test]
fn two_wrong_members_in_one_row_are_nobody_to_blame() {
    let mut blamed = 0;
    for seed in 1..60 {
        let mut world = at_rest(Level::Raid6, seed);
        world.corrupted = true;
        let band = world.rng.below(world.layout.bands());
        let row = world.layout.member_sector(band) as usize;
        for slot in [0, 3] {
            world.disks[slot].media[row] ^= world.rng.next() | 0x0101_0101_0101_0101;
        }
        let before = media(&world);
        let notes = scrub(&mut world, LOCATE);
        let (rows, who) = rows_told(&notes);
        assert_eq!(rows, 1);
        // Eight bytes of one row must all tell the same wrong story for a third member to be blamed.
        if who[0].1.is_none() {
            assert_eq!(who, [(band, None, false)]);
            assert_eq!(media(&world), before, "what cannot be said is left alone");
        } else {
            blamed += 1;
        }
    }
    assert_eq!(blamed, 0);
}

#[test]
fn raid_5_reports_and_touches_nothing_unless_told() {
    for seed in 1..30 {
        let mut world = at_rest(Level::Raid5, seed);
        let (_, band, (lo, hi)) = corrupt(&mut world, |role| role == Role::P);
        let corrupted = media(&world);
        for kind in [Scrub::Check, LOCATE] {
            let notes = scrub(&mut world, kind);
            let told = (u64::from(hi - lo), vec![(band, None, false)]);
            assert_eq!(rows_told(&notes), told);
            assert_eq!(media(&world), corrupted, "{kind:?} writes nothing");
        }
        let notes = scrub(&mut world, PARITY);
        assert_eq!(rows_told(&notes).1, [(band, None, true)]);
        assert_eq!(rows_told(&scrub(&mut world, Scrub::Check)), (0, vec![]));
        world.check_quiet().expect("parity agrees with the data");
    }
}
