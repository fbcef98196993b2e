//! Proof that the simulator bites: every planted fault is found within a number of seeds.

use raid_core::path::queue::Bug;

use super::log::Log;
use super::run::run;
use super::setup::{EdgeBug, Setup, Start};

/// Seeds until the fault is found, and how it showed.
fn hunt(most: u64, plant: impl Fn(&mut Setup)) -> Option<(u64, String)> {
    hunt_for("", most, plant)
}

/// As [`hunt`], for a fault that shows in this way.
fn hunt_for(like: &str, most: u64, plant: impl Fn(&mut Setup)) -> Option<(u64, String)> {
    std::panic::set_hook(Box::new(|_| {}));
    (1..=most).find_map(|seed| {
        let mut setup = Setup::from_seed(seed);
        plant(&mut setup);
        let error = run(&setup, Log::off()).err();
        let found = error.filter(|e| e.contains(like));
        found.map(|error| (seed, error))
    })
}

fn found(bug: Bug, most: u64) {
    found_in(bug, most, |_| {});
}

/// As [`found`], where the circumstances are rare: in runs that favour them.
fn found_in(bug: Bug, most: u64, favour: impl Fn(&mut Setup)) {
    let result = hunt(most, |setup| {
        setup.bug = Some(bug);
        favour(setup);
    });
    let Some((seed, error)) = result else {
        panic!("{bug:?} is not found within {most} seeds");
    };
    eprintln!("{bug:?}: seed {seed}: {error:.200}");
}

#[test]
fn a_write_acknowledged_before_a_loss_is_recorded() {
    found(Bug::AckBeforeRecord, 300);
}

#[test]
fn a_flush_acknowledged_before_a_loss_is_recorded() {
    found(Bug::FlushBeforeRecord, 1000);
}

#[test]
fn a_write_while_the_members_say_clean() {
    found(Bug::WriteWhileClean, 100);
}

#[test]
fn parity_adjusted_that_was_never_in_sync() {
    found(Bug::TrustStaleParity, 300);
}

#[test]
fn two_queues_on_one_band() {
    found(Bug::NoOwner, 300);
}

#[test]
fn q_forgotten_in_an_update() {
    found(Bug::ForgetQ, 300);
}

#[test]
fn q_with_a_wrong_exponent() {
    found(Bug::WrongExponent, 100);
}

#[test]
fn a_flush_of_one_member_only() {
    found(Bug::FlushOne, 300);
}

#[test]
fn a_write_acknowledged_before_it_is_written() {
    found(Bug::AckBeforeWrite, 300);
}

#[test]
fn a_waiting_band_taken_by_the_sweep_and_forgotten() {
    found_in(Bug::KeepLine, 1000, |s| {
        s.defer_passes = 3;
        if s.geometry.parities() > 0 {
            s.start = Start::Fresh;
        }
    });
}

#[test]
fn a_failed_read_taken_for_a_good_one() {
    found(Bug::IgnoreReadError, 300);
}

/// It gives errors where rows could be recovered; and, which is worse, garbage for what was readable.
#[test]
fn readable_rows_replaced_by_what_stale_parity_says() {
    for like in ["failed: Medium", "allowed:"] {
        let result = hunt_for(like, 1000, |s| {
            s.bug = Some(Bug::LoseAllRows);
            s.medium = s.geometry.parities().min(1);
            s.losses = 0;
            s.crash = 100;
        });
        let Some((seed, error)) = result else {
            panic!("no {like:?} within 1000 seeds");
        };
        eprintln!("LoseAllRows: seed {seed}: {error:.200}");
    }
}

#[test]
fn one_record_of_a_loss_instead_of_two() {
    found(Bug::RecordOnce, 300);
}

#[test]
fn clean_recorded_over_unflushed_data() {
    found(Bug::CleanUnflushed, 100);
}

#[test]
fn writes_to_members_that_do_not_agree() {
    found_in(Bug::WriteWhileUneven, 1000, |s| {
        s.crash = 100;
        s.epochs = 6;
        s.requests = 15;
        s.safe_mode_delay_ms = 1;
    });
}

#[test]
fn a_superblock_write_that_does_not_flush() {
    let result = hunt(1000, |s| s.edge_bug = Some(EdgeBug::RecordWithoutFlush));
    assert!(result.is_some());
}

#[test]
fn a_superblock_written_to_one_member_only() {
    let result = hunt(300, |s| s.edge_bug = Some(EdgeBug::RecordOne));
    assert!(result.is_some());
}

#[test]
fn a_fence_reported_before_its_jobs_are_done() {
    let result = hunt(300, |s| s.edge_bug = Some(EdgeBug::EarlyFence));
    assert!(result.is_some());
}
