//! Proof that the simulator bites: every planted fault is found within a number of seeds. Each test prints a row for the table of
//! `docs/failure-model.md`:
//!
//!     cargo test --release -p raid-tests --test sim_seeds planted -- --nocapture --test-threads 1 | grep '^|'

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
    row(&format!("{bug:?}"), seed, &error);
}

fn row(bug: &str, seed: u64, error: &str) {
    println!("| {bug} | {seed} | {error:.120} |");
}

/// Found by a fault of the edges in runs that favour it.
fn edge(bug: EdgeBug, most: u64, favour: impl Fn(&mut Setup)) {
    let result = hunt(most, |s| {
        s.edge_bug = Some(bug);
        favour(s);
    });
    let Some((seed, error)) = result else {
        panic!("{bug:?} is not found within {most} seeds");
    };
    row(&format!("{bug:?}"), seed, &error);
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
        row("LoseAllRows", seed, &error);
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
    edge(EdgeBug::RecordWithoutFlush, 1000, |_| {});
}

#[test]
fn a_superblock_written_to_one_member_only() {
    edge(EdgeBug::RecordOne, 300, |_| {});
}

#[test]
fn a_fence_reported_before_its_jobs_are_done() {
    edge(EdgeBug::EarlyFence, 300, |_| {});
}

#[test]
fn a_checkpoint_of_what_is_not_flushed() {
    found_in(Bug::CheckpointUnflushed, 300, Setup::favour_rebuilds);
}

#[test]
fn a_frontier_published_before_its_window_is_whole() {
    found_in(Bug::FrontierEarly, 300, Setup::favour_rebuilds);
}

#[test]
fn a_write_that_leaves_out_the_member_being_filled() {
    found_in(Bug::SkipFilling, 300, |s| {
        s.favour_rebuilds();
        s.reads = 10;
    });
}

#[test]
fn a_direct_read_beyond_the_frontier() {
    found_in(Bug::ReadBeyondFrontier, 300, Setup::favour_rebuilds);
}

#[test]
fn a_rebuild_that_lets_stale_parity_be() {
    found_in(Bug::FillTrustsParity, 300, |s| {
        s.favour_rebuilds();
        s.start = Start::Fresh;
    });
}

#[test]
fn a_stale_member_taken_for_a_fresh_one() {
    edge(EdgeBug::AcceptStale, 300, |s| {
        s.favour_rebuilds();
        s.crash = 100;
    });
}

#[test]
fn a_member_being_filled_taken_for_a_whole_one() {
    edge(EdgeBug::ForgetRecovery, 300, |s| {
        s.favour_rebuilds();
        s.crash = 100;
    });
}
