//! Named scenarios of unreadable sectors and lost members. Pictures as in `scenarios`.

use raid_core::geometry::Geometry;
use raid_core::geometry::Level::{Raid5, Raid6};
use raid_core::path::queue::Bug;
use raid_core::path::types::*;

use super::log::Log;
use super::rig::{DELAY, Rig};
use super::setup::{Setup, Start};
use super::world::World;

const GONE: Result<(), MemberError> = Err(MemberError::Gone);
const MEDIUM: Result<(), MemberError> = Err(MemberError::Medium);

/// ```text
///   d0   !!   d2   P        the read of d1 fails, twice
/// ```
#[test]
fn an_unreadable_chunk_is_decoded_and_written_back() {
    let mut r = Rig::dirty(Raid5, 4, 1);
    r.send(0, 1, Op::Read, 8, 8);
    r.pass(0);
    r.io("R1", MEDIUM);
    assert_eq!(r.take(), ["R1 0+8", "R1 0+8"], "tried once more by itself");
    r.io("R1", MEDIUM);
    assert_eq!(r.take(), ["R0 0+8", "R2 0+8", "R3 0+8"]);
    r.io("R", Ok(()));
    r.fences();
    assert_eq!(r.take(), ["recover", "out q0 1"]);
    r.fences();
    assert_eq!(r.take(), ["W1 0+8"]);
    r.io("W", Ok(()));
    assert_eq!(r.take(), ["ok 1"]);
}

/// One request over two stripes; member 0 is unreadable in stripe 0, member 3 in stripe 1. Each member I/O covers both
/// stripes and fails as a whole; counted as two lost chunks in each stripe, RAID 5 gave an error for data that it had.
///
/// ```text
///   !!   d1   d2   P
///   d1   d2   P    !!
/// ```
#[test]
fn unreadable_sectors_in_different_stripes_do_not_add_up() {
    let mut r = Rig::dirty(Raid5, 4, 1);
    r.send(0, 1, Op::Read, 0, 48);
    r.pass(0);
    r.take();
    r.io("R0 0+16", MEDIUM);
    r.io("R3", MEDIUM);
    // Alone, each chunk can be read but one in each stripe.
    r.io("R0 0+8", MEDIUM);
    r.io("R3 8+8", MEDIUM);
    r.settle();
    assert_eq!(r.only(&["ok", "err"]), ["ok 1"]);
}

/// A queue of a read-only array learned that a member was gone. It can never be recorded there, and the decoded read was
/// held back for ever.
#[test]
fn a_read_only_array_decodes_without_recording() {
    let mut r = Rig::new(Raid5, 4, 1, u64::MAX, true);
    r.send(0, 1, Op::Read, 8, 8);
    r.pass(0);
    r.io("R1", GONE);
    r.deliver();
    r.io("R1", GONE);
    r.settle();
    assert_eq!(r.only(&["ok", "err", "W"]), ["ok 1"]);
}

/// A RAID 5 that was never in sync loses a member. Parity is that member's data now, so that there is nothing left to do; but
/// not before the loss is recorded twice, or the member could come back as a fresh one.
#[test]
fn without_redundancy_nothing_is_out_of_sync() {
    let mut r = Rig::new(Raid5, 4, 1, 0, false);
    r.lose(3);
    r.settle();
    assert_eq!(r.manager.progress(), (0, 8));
    r.record();
    assert_eq!(r.manager.progress(), (0, 8));
    r.record();
    r.deliver();
    assert_eq!(r.manager.progress(), (8, 8));
    r.take();
    for _ in 0..3 {
        r.tick(DELAY);
        r.deliver();
    }
    assert_eq!(r.only(&["record"]), ["record 13 dirty -[3]"]);
    r.record();
    assert_eq!(r.only(&["record"]), ["record 14 clean -[3]"]);
}

/// A RAID 6 that was never in sync loses a member: its data is computed from P, band by band, and Q made to agree.
///
/// ```text
///        m0   m1   m2   m3   m4
///   0    Q    d0   d1   d2   P         m2 is missing
///   1    d0   d1   d2   P    Q
/// ```
#[test]
fn a_sweep_goes_on_with_one_member_of_two_missing() {
    let mut r = Rig::new(Raid6, 5, 1, 0, false);
    r.lose(2);
    r.settle();
    r.take();
    r.record();
    r.deliver();
    assert_eq!(r.take(), ["record 12 dirty -[2]"], "recorded once");
    r.record();
    r.deliver();
    let mut words = r.take();
    let reads = ["R0 0+32", "R1 0+32", "R3 0+32", "R4 0+32"];
    let at = words
        .iter()
        .position(|w| w.starts_with('R'))
        .expect("it sweeps on");
    assert_eq!(words[at..at + 4], reads);
    r.io("R", Ok(()));
    words = r.only(&["recover", "check"]);
    // In stripes 2 and 3 the missing member holds P and Q.
    assert_eq!(words[..2], ["recover"; 2]);
    assert_eq!(words[2..], ["check"; 4]);
    while r.manager.sweeping() {
        r.settle();
        r.tick(DELAY);
        r.deliver();
    }
    assert_eq!(r.manager.progress(), (8, 8));
    assert!(!r.only(&["R"]).iter().any(|w| w.starts_with("R2")));
}

/// A band of two pieces (rows 0..8, 8..16); a power cut has left rows 0..8 without matching parity, a sector of d1 in the
/// others is unreadable. The old answer was to decode and rewrite rows 0..16 of d1.
///
/// ```text
///   d0   d1   d2   P
///   d0   !!   d2   P
/// ```
#[test]
fn only_the_piece_that_cannot_be_read_is_decoded_and_written() {
    let mut r = Rig::chunk(Raid5, 4, 16);
    r.send(0, 1, Op::Read, 16, 16);
    r.pass(0);
    r.io("R1", MEDIUM);
    assert_eq!(r.take(), ["R1 0+16", "R1 0+8", "R1 8+8"]);
    r.io("R1 8", MEDIUM);
    r.io("R1 0", Ok(()));
    assert_eq!(r.take(), ["R0 8+8", "R2 8+8", "R3 8+8"]);
    r.io("R", Ok(()));
    r.fences();
    assert_eq!(r.take(), ["recover", "out q0 1"]);
    r.fences();
    assert_eq!(r.take(), ["W1 8+8"]);
    r.io("W", Ok(()));
    assert_eq!(r.take(), ["ok 1"]);
}

/// The same for a write beside it: parity is made anew for all rows, of d1 only the lost piece is written.
///
/// ```text
///   .w.. .... .... P
///   .... !!!! .... P
/// ```
#[test]
fn a_write_rewrites_the_unreadable_piece_only() {
    let mut r = Rig::chunk(Raid5, 4, 16);
    r.send(0, 1, Op::Write, 2, 12);
    r.pass(0);
    // Three chunks: reading the two others is as good as reading old data and parity.
    assert_eq!(r.take(), ["R0 0+16", "R1 2+12", "R2 2+12"][1..]);
    r.io("R1", MEDIUM);
    r.io("R2", Ok(()));
    assert_eq!(
        r.take(),
        ["R0 0+16", "R1 0+8", "R1 8+8", "R2 0+16", "R3 0+16"]
    );
    r.io("R1 8", MEDIUM);
    r.io("R", Ok(()));
    r.fences();
    assert_eq!(r.take(), ["recover", "in q0 1", "encode"]);
    r.fences();
    assert_eq!(r.take(), ["W0 2+12", "W1 8+8", "W3 0+16"]);
}

/// A failed read that succeeds piece by piece changes nothing.
#[test]
fn a_retry_that_succeeds_decodes_and_heals_nothing() {
    let mut r = Rig::chunk(Raid5, 4, 16);
    r.send(0, 1, Op::Read, 16, 16);
    r.pass(0);
    r.io("R1", MEDIUM);
    r.take();
    r.settle();
    assert_eq!(r.take(), ["out q0 1", "ok 1"]);
}

/// A write beside two members of a RAID 5 that are unreadable in different rows of one band. It counted as two losses.
///
/// ```text
///   !!!! .... .w.. P
///   .... !!!! .w.. P
/// ```
#[test]
fn unreadable_sectors_in_different_rows_are_all_healed() {
    let mut r = Rig::chunk(Raid5, 4, 16);
    r.send(0, 1, Op::Write, 34, 12);
    r.pass(0);
    r.io("R0", MEDIUM);
    r.io("R1", MEDIUM);
    r.take();
    r.io("R0 0", MEDIUM);
    r.io("R1 8", MEDIUM);
    r.io("R", Ok(()));
    r.fences();
    assert_eq!(r.take(), ["recover", "recover", "in q0 1", "encode"]);
    r.fences();
    assert_eq!(r.take(), ["W0 0+8", "W1 8+8", "W2 2+12", "W3 0+16"]);
    r.io("W", Ok(()));
    assert_eq!(r.take(), ["ok 1"]);
}

/// Two members of a RAID 5 are unreadable in the same rows: of two requests that are decoded together, only the one for these
/// rows fails.
#[test]
fn rows_that_are_lost_fail_only_the_requests_for_them() {
    let mut r = Rig::chunk(Raid5, 4, 16);
    r.send(0, 1, Op::Read, 0, 8);
    r.send(0, 2, Op::Read, 8, 8);
    r.send(0, 3, Op::Read, 0, 2);
    r.pass(0);
    r.io("R0", MEDIUM);
    // The first takes the band, the others wait for it together.
    r.take();
    r.io("R0 0", Ok(()));
    r.fences();
    assert_eq!(r.take(), ["out q0 1", "ok 1", "R0 0+8", "R0 8+8"]);
    r.io("R0 0", MEDIUM);
    r.io("R0 8", Ok(()));
    r.io("R1 0", MEDIUM);
    r.io("R", Ok(()));
    r.io("R1 0", MEDIUM);
    r.settle();
    let mut words = r.only(&["ok", "err", "W"]);
    words.sort();
    assert_eq!(words, ["err 3 Medium", "ok 2"]);
}

/// A power cut has left rows 0..8 of a chunk without matching parity; they are flushed and readable. A sector of the rows
/// after them is not. Reading the chunk computed all of it from parity and rewrote it: garbage over flushed data.
#[test]
fn flushed_sectors_beside_an_unreadable_one_survive() {
    assert_eq!(reads_beside_a_bad_sector(None), Ok(()));
    let planted = reads_beside_a_bad_sector(Some(Bug::LoseAllRows));
    assert!(planted.is_err(), "it rewrites what the member holds");
}

fn reads_beside_a_bad_sector(bug: Option<Bug>) -> Result<(), String> {
    let mut setup = Setup::from_seed(1);
    setup.geometry = Geometry::parity(Raid5, 2, 4, 16, 64).expect("valid");
    (setup.start, setup.queues, setup.depth, setup.bug) = (Start::Clean, 1, 1, bug);
    (
        setup.losses,
        setup.medium,
        setup.copy_errors,
        setup.read_only,
    ) = (0, 0, false, false);
    let mut world = World::new(setup, Log::off());
    for row in 0..8 {
        world.disks[3].media[row] ^= 1;
    }
    world.disks[1].bad.insert(12);
    let before: Vec<u64> = (0..16).map(|s| world.disks[1].get(s)).collect();
    let request = Request {
        op: Op::Read,
        lba: 16,
        sectors: 16,
        direct: true,
    };
    world.send(0, 0, request);
    world.drain()?;
    assert!(world.disks[1].bad.is_empty(), "the bad sector is healed");
    let after: Vec<u64> = (0..16).map(|s| world.disks[1].get(s)).collect();
    assert_eq!(before, after);
    Ok(())
}
