//! Proof that the simulator finds what can be wrong with a bitmap: each planted fault within a number of seeds. Faults of the
//! order of writes are hunted twice: by the check of every member write, and blind, by what a power cut leaves behind.

use raid_core::path::queue::Bug;

use super::bitmap::BitmapSetup;
use super::log::Log;
use super::run::run;
use super::setup::{EdgeBug, Setup, Start};

/// Seeds until the fault shows, and how. Only arrays with a bitmap count.
fn hunt(like: &str, most: u64, plant: impl Fn(&mut Setup, &mut BitmapSetup)) -> (u64, u64, String) {
    std::panic::set_hook(Box::new(|_| {}));
    let mut counted = 0;
    for seed in 1.. {
        let mut setup = Setup::from_seed(seed);
        let Some(mut bitmap) = setup.bitmap else {
            continue;
        };
        plant(&mut setup, &mut bitmap);
        setup.bitmap = Some(bitmap);
        counted += 1;
        if let Some(error) = run(&setup, Log::off()).err().filter(|e| e.contains(like)) {
            return (seed, counted, error);
        }
        if counted >= most {
            break;
        }
    }
    let _ = std::panic::take_hook();
    panic!("{like:?} does not show within {most} seeds of arrays with a bitmap");
}

fn found(what: &str, (seed, counted, error): (u64, u64, String)) {
    eprintln!("{what}: seed {seed}, the {counted}. with a bitmap: {error:.160}");
}

/// Many power cuts, short of time for bits.
fn cuts(setup: &mut Setup, bitmap: &mut BitmapSetup) {
    setup.crash = 100;
    setup.epochs = 6;
    setup.requests = 40;
    setup.losses = 0;
    setup.medium = 0;
    setup.read_only = false;
    setup.start = Start::Clean;
    bitmap.blind = true;
    bitmap.period_ms = 5;
    bitmap.chunk = bitmap.chunk.min(16);
}

#[test]
fn data_before_its_bit() {
    let bug = Some(Bug::BitAfterData);
    found(
        "BitAfterData",
        hunt("without a bit", 20, |s, _| s.bug = bug),
    );
    let blind = hunt("parity of band", 300, |s, b| {
        s.bug = bug;
        cuts(s, b);
    });
    found("BitAfterData, by a power cut", blind);
}

#[test]
fn data_while_its_bit_is_under_way() {
    let bug = Some(Bug::BitBeforeDurable);
    found(
        "BitBeforeDurable",
        hunt("without a bit", 20, |s, _| s.bug = bug),
    );
    let blind = hunt("parity of band", 1000, |s, b| {
        s.bug = bug;
        cuts(s, b);
    });
    found("BitBeforeDurable, by a power cut", blind);
}

#[test]
fn a_bit_cleared_early() {
    let bug = Some(Bug::ClearEarly);
    let blind = hunt("parity of band", 500, |s, b| {
        s.bug = bug;
        cuts(s, b);
    });
    found("ClearEarly, by a power cut", blind);
}

#[test]
fn bits_cleared_without_a_member() {
    let bug = Some(Bug::ClearWhileDegraded);
    let result = hunt("while a member is missing", 300, |s, b| {
        s.bug = bug;
        b.period_ms = 5;
    });
    found("ClearWhileDegraded", result);
}

/// The runs in which the others are found, without a fault.
#[test]
fn no_fault_shows_where_there_is_none() {
    for seed in 1..=400 {
        let mut setup = Setup::from_seed(seed);
        if let Some(mut bitmap) = setup.bitmap {
            cuts(&mut setup, &mut bitmap);
            setup.bitmap = Some(bitmap);
            run(&setup, Log::off()).unwrap();
        }
    }
}

#[test]
fn a_bitmap_behind_its_superblock() {
    let bug = Some(Bug::HeaderBehind);
    found("HeaderBehind", hunt("Header", 20, |s, _| s.bug = bug));
}

#[test]
fn what_the_bitmap_names_taken_for_swept() {
    let bug = Some(Bug::ForgetNeeded);
    let result = hunt("", 100, |s, _| s.bug = bug);
    found("ForgetNeeded", result);
}

#[test]
fn bits_that_are_not_flushed() {
    let bug = Some(EdgeBug::BitsWithoutFlush);
    let result = hunt("without a bit", 20, |s, _| s.edge_bug = bug);
    found("BitsWithoutFlush", result);
    let blind = hunt("parity of band", 2000, |s, b| {
        s.edge_bug = bug;
        cuts(s, b);
    });
    found("BitsWithoutFlush, by a power cut", blind);
}
