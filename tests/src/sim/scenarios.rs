//! Named scenarios worth keeping, and a regression for every bug of the data path that the simulator has found.
//!
//! RAID 5 over 4 members, left-symmetric, chunk 8, drawn where it helps (stripe 0 first, one column a member):
//!
//! ```text
//!        m0   m1   m2   m3
//!   0    d0   d1   d2   P       array sectors 0..24
//!   1    d1   d2   P    d0      24..48
//!   2    d2   P    d0   d1      48..72
//! ```

use raid_core::geometry::Level::{Raid5, Raid6};
use raid_core::path::manager::ManagerEvent;
use raid_core::path::queue::Bug;
use raid_core::path::types::*;

use super::rig::{DELAY, Rig};

const GONE: Result<(), MemberError> = Err(MemberError::Gone);

/// ```text
///   wwww wwww wwww P
/// ```
#[test]
fn a_full_stripe_is_one_write_for_each_member_and_no_read() {
    let mut r = Rig::dirty(Raid5, 4, 1);
    r.send(0, 1, Op::Write, 0, 24);
    r.pass(0);
    assert_eq!(r.take(), ["in q0 1", "encode"]);
    r.fences();
    assert_eq!(r.take(), ["W0 0+8", "W1 0+8", "W2 0+8", "W3 0+8"]);
    r.io("W", Ok(()));
    assert_eq!(r.take(), ["ok 1"]);
    assert!(r.queues[0].idle());
}

/// Three full stripes are still one write for each member.
#[test]
fn adjacent_full_stripes_share_their_member_writes() {
    let mut r = Rig::dirty(Raid5, 4, 1);
    r.send(0, 1, Op::Write, 0, 72);
    r.pass(0);
    r.fences();
    assert_eq!(
        r.only(&["R", "W"]),
        ["W0 0+24", "W1 0+24", "W2 0+24", "W3 0+24"]
    );
}

/// ```text
///   1111 1122 2222 P        two requests of one pass
/// ```
#[test]
fn two_requests_that_fill_a_stripe_together_are_written_together() {
    let mut r = Rig::dirty(Raid5, 4, 1);
    r.send(0, 1, Op::Write, 0, 12);
    r.send(0, 2, Op::Write, 12, 12);
    r.pass(0);
    assert_eq!(r.take(), ["in q0 1", "in q0 2", "encode"]);
    r.fences();
    r.io("W", Ok(()));
    assert_eq!(
        r.take(),
        ["W0 0+8", "W1 0+8", "W2 0+8", "W3 0+8", "ok 1", "ok 2"]
    );
    assert_eq!(r.queues[0].stats().merged, 1);
}

/// ```text
///   .ww. .... .... .... .... P Q      one of five data chunks
/// ```
#[test]
fn a_small_write_reads_its_own_chunk_and_parity_only() {
    let mut r = Rig::dirty(Raid6, 8, 1);
    r.send(0, 1, Op::Write, 2, 4);
    r.pass(0);
    // Stripe 0: P on member 7, Q on member 0, data from member 1 on.
    assert_eq!(r.take(), ["R1 2+4", "R7 2+4", "R0 2+4"]);
    r.io("R", Ok(()));
    assert_eq!(r.take(), ["in q0 1", "update"]);
    r.fences();
    assert_eq!(r.take(), ["W1 2+4", "W7 2+4", "W0 2+4"]);
}

#[test]
fn beyond_the_sweep_parity_is_made_anew() {
    let mut r = Rig::new(Raid6, 8, 1, 0, false);
    r.manager_event(ManagerEvent::Msg(Msg::NeedDirty { queue: 0 }));
    r.deliver();
    r.take();
    // The first window is stripes 0 to 3. In stripe 5 all five other data chunks are read, and no parity.
    r.send(0, 1, Op::Write, 5 * 48 + 2, 4);
    r.pass(0);
    assert_eq!(
        r.take(),
        ["R5 42+4", "R6 42+4", "R7 42+4", "R0 42+4", "R1 42+4"]
    );
}

#[test]
fn a_second_queue_hands_its_part_to_the_owner_of_the_band() {
    let mut r = Rig::dirty(Raid5, 4, 2);
    r.send(0, 1, Op::Write, 0, 4);
    r.pass(0);
    r.send(1, 2, Op::Write, 8, 4);
    r.pass(1);
    assert_eq!(r.only(&["to"]), ["to q0 Seg"]);
    r.deliver_one(0);
    assert_eq!(
        r.take(),
        Vec::<String>::new(),
        "it waits for the first operation"
    );
    r.settle();
    let words = r.take();
    assert!(words.contains(&"in q1 2".to_owned()), "{words:?}");
    assert!(words.contains(&"to q1 SegDone".to_owned()), "{words:?}");
    assert!(words.contains(&"ok 2".to_owned()), "{words:?}");
    assert!(r.queues.iter().all(|q| q.idle()));
}

#[test]
fn writes_wait_until_the_members_say_dirty() {
    let mut r = Rig::new(Raid5, 4, 1, u64::MAX, false);
    r.send(0, 1, Op::Write, 0, 24);
    r.pass(0);
    assert_eq!(r.take(), ["to manager NeedDirty"]);
    r.deliver();
    assert_eq!(r.take(), ["record 11 dirty"]);
    r.record();
    r.deliver();
    assert_eq!(r.take(), ["in q0 1", "encode"]);
}

#[test]
fn one_queue_that_has_written_makes_the_round_fail() {
    let mut r = Rig::dirty(Raid5, 4, 2);
    r.send(1, 1, Op::Write, 0, 24);
    r.pass(1);
    r.settle();
    r.take();
    r.tick(DELAY);
    r.deliver();
    assert_eq!(
        r.only(&["record"]),
        Vec::<String>::new(),
        "queue 1 wrote since"
    );
    r.tick(DELAY);
    r.deliver();
    // First everything is flushed by a record that changes nothing, then it says clean.
    assert_eq!(r.only(&["record"]), ["record 12 dirty"]);
    r.record();
    assert_eq!(r.only(&["record"]), ["record 13 clean"]);
    r.record();
    assert!(!r.manager.dirty());
}

/// A power cut between the superblocks of a "clean" record: the first member says clean, durably, the second loses what is
/// in its cache, and no resync puts the parity right.
#[test]
fn clean_is_recorded_only_after_a_record_that_flushed_all() {
    let mut r = Rig::dirty(Raid5, 4, 1);
    r.manager_event(ManagerEvent::Stop);
    r.deliver();
    assert_eq!(r.take(), ["to manager Quiet", "record 12 dirty"]);
    r.record();
    assert_eq!(r.take(), ["record 13 clean"]);
    r.record();
    assert_eq!(r.take(), ["stopped"]);
}

/// Queue 0 had said "quiet"; then a member failed, and the view that was published for that also said "writable". Queue 0
/// wrote, queue 1 said "quiet", and the manager recorded "clean" over queue 0's write.
#[test]
fn a_published_view_ends_the_round() {
    assert!(!records_after_a_failure_in_a_round(None).contains(&"record 14 clean -[3]".to_owned()));
    let planted = records_after_a_failure_in_a_round(Some(Bug::KeepRound));
    assert!(planted.iter().any(|w| w.contains("clean")), "{planted:?}");
}

fn records_after_a_failure_in_a_round(bug: Option<Bug>) -> Vec<String> {
    let mut r = Rig::dirty(Raid5, 4, 2);
    r.manager.plant(bug);
    r.tick(DELAY);
    r.deliver_one(0);
    r.manager_one(); // queue 0 is quiet
    let failed = Msg::MemberFailed {
        slot: 3,
        error: MemberError::Gone,
    };
    r.manager_event(ManagerEvent::Msg(failed));
    r.deliver_one(0); // the view
    r.send(0, 1, Op::Write, 0, 4);
    r.pass(0);
    r.deliver();
    while !r.records.is_empty() {
        r.record();
        r.deliver();
    }
    r.only(&["record"])
}

#[test]
fn a_write_that_a_member_missed_waits_for_two_records() {
    let mut r = Rig::dirty(Raid5, 4, 2);
    r.send(0, 1, Op::Write, 0, 24);
    r.pass(0);
    r.fences();
    r.take();
    assert_eq!(r.io("W2", GONE), 1);
    r.io("W", Ok(()));
    assert_eq!(
        r.take(),
        ["to manager MemberFailed", "to manager MemberFailed"]
    );
    r.deliver();
    assert_eq!(r.take(), ["record 12 dirty -[2]"]);
    r.record();
    r.deliver();
    assert_eq!(r.take(), ["record 13 dirty -[2]"], "one is not enough");
    r.record();
    r.deliver();
    assert_eq!(r.take(), ["ok 1"]);
}

/// A flush skipped a member that had just been declared missing, and was acknowledged before any superblock said so. After
/// a power cut that member counted as fresh, without what had been in its cache.
#[test]
fn a_flush_that_left_out_a_member_waits_for_the_records() {
    let mut r = Rig::dirty(Raid5, 4, 1);
    r.lose(1);
    r.take();
    r.send(0, 1, Op::Flush, 0, 0);
    r.pass(0);
    r.io("F", Ok(()));
    assert_eq!(r.take(), ["F0", "F2", "F3"]);
    r.record();
    r.record();
    r.deliver();
    assert_eq!(r.only(&["ok"]), ["ok 1"]);
}

/// A band waited in line when the sweep took it. It stayed marked as waiting, was dropped from the line
/// by the next pass, and its writes were never issued.
#[test]
fn a_write_that_waits_when_the_sweep_takes_its_band_is_issued_afterwards() {
    assert_eq!(answers_beside_the_sweep(None), ["ok 1"]);
    assert_eq!(answers_beside_the_sweep(Some(Bug::KeepLine)), [""; 0]);
}

fn answers_beside_the_sweep(bug: Option<Bug>) -> Vec<String> {
    let mut r = Rig::deferring(Raid5, 4, 1, 0, false, 1000);
    r.queues[0].plant(bug);
    r.manager_event(ManagerEvent::Msg(Msg::NeedDirty { queue: 0 }));
    r.deliver();
    // The first window is bands 0 to 3. A large partial write of band 5 waits for its neighbour as long as something is in
    // flight; the second window takes the band from the line.
    r.send(0, 1, Op::Write, 5 * 24, 12);
    r.send(0, 2, Op::Read, 7 * 24, 8);
    r.pass(0);
    for slot in 0..4 {
        assert_eq!(r.io(&format!("R{slot} 0+32"), Ok(())), 1);
    }
    r.fences();
    r.deliver();
    r.pass(0);
    r.settle();
    r.pass(0);
    r.settle();
    r.only(&["ok 1"])
}

/// Nothing was in sync yet, so "clean at 0" looked like the "dirty" that the members said already, and a stop left data in
/// their caches.
#[test]
fn a_stop_flushes_where_nothing_is_in_sync() {
    let mut r = Rig::new(Raid5, 4, 1, 0, false);
    r.manager_event(ManagerEvent::Stop);
    r.deliver();
    r.settle();
    r.deliver();
    assert_eq!(r.only(&["record", "stopped"]), ["record 11 dirty"]);
    r.record();
    assert_eq!(r.only(&["record", "stopped"]), ["stopped"]);
}
