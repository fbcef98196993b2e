//! Engines on file members with requests from memory: the whole data path except ublk, on any machine.

mod rig;

use raid_core::geometry::{Geometry, Level};
use rig::{hammer, parity};

#[test]
fn raid5_small_chunks() {
    hammer(&parity(Level::Raid5, 2, 4, 8, 160), 1, 8, 1);
    hammer(&parity(Level::Raid5, 0, 3, 16, 160), 2, 16, 2);
}

#[test]
fn raid5_chunks_of_several_bands() {
    hammer(&parity(Level::Raid5, 2, 5, 256, 12), 2, 16, 3);
    hammer(&parity(Level::Raid5, 4, 4, 1024, 6), 1, 4, 4);
}

#[test]
fn raid6_left_symmetric_and_others() {
    hammer(&parity(Level::Raid6, 2, 8, 128, 16), 2, 8, 5);
    for (layout, seed) in [(1, 6), (9, 7), (18, 8)] {
        hammer(&parity(Level::Raid6, layout, 5, 16, 96), 2, 8, seed);
    }
    hammer(&parity(Level::Raid6, 2, 4, 128, 24), 2, 6, 9);
}

#[test]
fn raid0_with_unequal_members() {
    hammer(
        &Geometry::raid0(1, 16, &[1600; 4]).expect("a geometry"),
        2,
        4,
        10,
    );
}

/// Queues that share stripes must really have handed work to one another, or these tests prove less than they say.
#[test]
fn queues_forward_to_one_another() {
    let forwarded: u64 = (20..24)
        .map(|seed| hammer(&parity(Level::Raid5, 2, 4, 128, 4), 4, 8, seed).get("forwarded_pieces"))
        .sum();
    assert!(forwarded > 0);
}
