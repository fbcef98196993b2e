//! Engines with a lane to a simulated device that is late, overtakes itself, dies, hangs, does not come back, does not stop:
//! no request fails, every byte and all parity is right. [`rig::hammer_with`] says how it is checked.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parity_kernels::offload::LaneCost;
use raid_core::geometry::{Geometry, Level};
use raid_core::path::types::{Msg, SweepKind};
use raidd::lane::cost::Policy;
use raidd::lane::status::LaneState;
use rig::{Lanes, OFFSET, Random, Rig, Sums, files, hammer_with, parity, parity_matches, start};
use std::os::unix::fs::FileExt;
use ublk_frontend::{Op, Request};

const PATIENCE: Duration = Duration::from_secs(20);

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Hammers all shapes of parity array with lanes of which `trouble` is told every few milliseconds.
fn trouble(lanes: &Lanes, seed: u64, mut trouble: impl FnMut(&Lanes, &mut Random) + Send) -> Sums {
    let over = AtomicBool::new(false);
    let mut sums = Sums::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed);
            while !over.load(SeqCst) {
                trouble(lanes, &mut random);
                std::thread::sleep(Duration::from_millis(random.next(6)));
            }
        });
        // Lowered even if a check fails, so that the failure is told.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _over = Over(&over);
        let shapes = [
            (parity(Level::Raid5, 2, 4, 8, 160), 1, 8),
            (parity(Level::Raid5, 0, 5, 256, 8), 2, 16),
            (parity(Level::Raid6, 2, 6, 128, 12), 2, 8),
            (parity(Level::Raid6, 18, 5, 16, 96), 2, 8),
        ];
        for (i, (geometry, queues, frames)) in shapes.iter().enumerate() {
            let seed = seed + i as u64 * 10;
            sums.add(hammer_with(geometry, *queues, *frames, seed, Some(lanes)));
        }
    });
    let faults = lanes.faults();
    assert_eq!(
        faults.opened.load(SeqCst),
        faults.closed.load(SeqCst),
        "lanes left open"
    );
    assert_eq!(sums.get("lane_in_flight"), 0);
    sums
}

#[test]
fn late_and_out_of_order() {
    let lanes = Lanes::eager();
    let sums = trouble(&lanes, 100, |lanes, random| {
        lanes.faults().delay.store(random.next(4), SeqCst);
        lanes.faults().jitter.store(random.next(20), SeqCst);
    });
    let carried = lanes.faults().jobs.load(SeqCst);
    assert_eq!(sums.get("lane_jobs"), carried);
    assert!(
        carried * 2 > sums.get("parity_jobs") - sums.get("parity_merged_updates"),
        "{sums:?}"
    );
    assert_eq!(sums.get("lane_losses"), 0);
}

#[test]
fn dies_at_any_moment_and_comes_back() {
    let lanes = Lanes::eager();
    let sums = trouble(&lanes, 200, |lanes, random| {
        let faults = lanes.faults();
        faults.jitter.store(random.next(30), SeqCst);
        match random.next(3) {
            0 => {
                faults.dead.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                faults.dead.store(false, SeqCst);
            }
            _ => faults.dies_after.store(1 + random.next(60), SeqCst),
        }
    });
    let faults = lanes.faults();
    assert!(sums.get("lane_losses") >= 10, "{sums:?}");
    assert!(sums.get("lane_redone") >= 10, "{sums:?}");
    assert!(faults.opened.load(SeqCst) > 10);
    assert!(faults.deaths.load(SeqCst) >= sums.get("lane_losses"));
}

/// Two whole chunks of many: one update of both, one pass over P and Q.
#[test]
fn changes_of_the_same_rows_are_one_update() {
    let geometry = parity(Level::Raid6, 2, 12, 16, 32);
    let files = files(12, geometry.member_sectors());
    let lanes = Lanes::eager();
    for lanes in [None, Some(&lanes)] {
        let rig = start(&geometry, &files, 1, &[], 8, lanes);
        if lanes.is_some() {
            until("opening", || active(&rig));
        }
        for i in 0..20u8 {
            let (lba, data) = (u64::from(i) * 160 + 32, vec![i + 1; 32 * 512]);
            rig.client.write(lba, data.clone(), false).expect("write");
            assert_eq!(rig.client.read(lba, 32).expect("read"), data);
        }
        let sums = rig.stop();
        assert_eq!(sums.get("update_bands"), 20);
        assert_eq!(sums.get("parity_merged_updates"), 20, "{sums:?}");
        let handed = if lanes.is_some() { 20 } else { 0 };
        assert_eq!(sums.get("lane_jobs"), handed);
        parity_matches(&geometry, &files);
    }
}

#[test]
fn often_does_not_open() {
    let lanes = Lanes::eager();
    let sums = trouble(&lanes, 300, |lanes, random| {
        let faults = lanes.faults();
        faults.no_open.store(random.next(3) > 0, SeqCst);
        faults.dies_after.store(1 + random.next(20), SeqCst);
    });
    assert!(
        sums.get("lane_losses") > 0 && sums.get("lane_jobs") > 0,
        "{sums:?}"
    );
}

#[test]
fn refuses_half_of_the_time() {
    let mut lanes = Lanes::eager();
    lanes.device.depth = 1;
    let sums = trouble(&lanes, 400, |lanes, random| {
        lanes.faults().delay.store(random.next(40), SeqCst);
    });
    assert!(
        sums.get("lane_refused") > 0 && sums.get("lane_jobs") > 0,
        "{sums:?}"
    );
}

/// With costs like those of a real device both do some of the work, and the lane sleeps in between.
#[test]
fn the_cost_model_divides_the_work() {
    let mut lanes = Lanes::eager();
    lanes.device.cost = LaneCost {
        caller_ns: 500.0,
        latency_ns: 8_000.0,
        ns_per_byte: 0.02,
    };
    lanes.cpu = 2.0;
    lanes.policy = Policy {
        wake_ns: 20_000.0,
        ..Policy::default()
    };
    let sums = trouble(&lanes, 500, |_, _| {});
    assert!(sums.get("lane_jobs") > 0, "{sums:?}");
    assert!(
        sums.get("lane_kept_small") + sums.get("lane_kept_late") > 0,
        "{sums:?}"
    );
    assert!(sums.get("lane_kept_asleep") > 0, "{sums:?}");
    assert!(lanes.faults().parked.load(SeqCst) > 0);
}

fn small() -> (Geometry, Vec<Arc<std::fs::File>>) {
    let geometry = parity(Level::Raid6, 2, 6, 128, 24);
    let files = files(6, geometry.member_sectors());
    (geometry, files)
}

fn active(rig: &Rig) -> bool {
    rig.lanes().iter().all(|l| l.state == LaneState::Active)
}

#[test]
fn a_device_that_hangs_is_given_up() {
    let (geometry, files) = small();
    let lanes = Lanes::eager();
    let rig = start(&geometry, &files, 1, &[], 8, Some(&lanes));
    until("opening", || active(&rig));
    lanes.faults().hangs.store(true, SeqCst);
    let begin = Instant::now();
    rig.client
        .write(5, vec![7; 100 * 512], false)
        .expect("write");
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    assert!(
        begin.elapsed() > Duration::from_secs(1),
        "the lane was not used"
    );
    lanes.faults().hangs.store(false, SeqCst);
    assert_eq!(rig.client.read(5, 100).expect("read"), vec![7; 100 * 512]);
    until("coming back", || rig.sums().get("lane_opens") == 2);
    let sums = rig.stop();
    assert_eq!(sums.get("lane_losses"), 1);
    parity_matches(&geometry, &files);
}

#[test]
fn states_are_told_with_their_reasons() {
    let (geometry, files) = small();
    let mut lanes = Lanes::eager();
    // So that it stays lost until somebody has looked.
    (lanes.pauses.first, lanes.pauses.most) =
        (Duration::from_millis(400), Duration::from_millis(400));
    lanes.faults().no_open.store(true, SeqCst);
    let rig = start(&geometry, &files, 1, &[], 8, Some(&lanes));
    let state = |state| rig.lanes()[0].state == state;
    until("failing to open", || state(LaneState::Lost));
    let reason = rig.lanes()[0].reason.clone().expect("a reason");
    assert!(reason.contains("does not open"), "{reason}");
    assert_eq!(rig.lanes()[0].device, "simulated device");
    rig.client.write(0, vec![1; 4096], false).expect("write");
    lanes.faults().no_open.store(false, SeqCst);
    until("opening", || active(&rig));
    assert_eq!(rig.lanes()[0].reason, None);
    let failed = rig.lanes()[0].failed_opens;
    assert!(failed > 0, "each attempt is counted");
    lanes.faults().dead.store(true, SeqCst);
    rig.client.write(300, vec![2; 4096], false).expect("write");
    until("the loss", || state(LaneState::Lost));
    let reason = rig.lanes()[0].reason.clone().expect("a reason");
    assert!(reason.contains("dead"), "{reason}");
    lanes.faults().dead.store(false, SeqCst);
    until("coming back", || active(&rig));
    assert_eq!(rig.lanes()[0].failed_opens, failed, "a loss is none");
    rig.stop();
    parity_matches(&geometry, &files);
}

/// A device that may still write: what it had in hand waits for good, the rest of the array works.
#[test]
fn a_device_that_does_not_stop_keeps_what_it_has() {
    let (geometry, files) = small();
    let lanes = Lanes::eager();
    let rig = start(&geometry, &files, 1, &[], 8, Some(&lanes));
    until("opening", || active(&rig));
    lanes.faults().delay.store(u64::MAX / 2, SeqCst);
    let request = Request {
        op: Op::Write,
        lba: 0,
        sectors: 8,
        fua: false,
    };
    let held = rig.client.submit(request, vec![9; 4096]);
    until("the job", || rig.sums().get("lane_in_flight") > 0);
    lanes.faults().no_close.store(true, SeqCst);
    lanes.faults().dead.store(true, SeqCst);
    until("getting stuck", || rig.lanes()[0].state == LaneState::Stuck);
    let reason = rig.lanes()[0].reason.clone().expect("a reason");
    assert!(
        reason.contains("does not stop") && reason.contains("wait for good"),
        "{reason}"
    );
    let stripe = 128 * 4;
    for i in 1..20u64 {
        let data = vec![i as u8; 9 * 512];
        rig.client
            .write(i * stripe + 3, data.clone(), false)
            .expect("write");
        assert_eq!(rig.client.read(i * stripe + 3, 9).expect("read"), data);
    }
    assert!(!held.is_done());
    assert_eq!(rig.sums().get("lane_redone"), 0);
    // It can be ended all the same.
    let begin = Instant::now();
    let sums = rig.abandon();
    assert!(begin.elapsed() < Duration::from_secs(3));
    assert_eq!(sums.get("lane_in_flight"), 1);
    assert_eq!(lanes.faults().opened.load(SeqCst), 1, "it was opened again");
}

/// The walk over a window finds and repairs parity, whatever the lane does.
#[test]
fn sweeps_repair_parity_while_the_lane_comes_and_goes() {
    for (missing, seed) in [(None, 1), (Some(2u16), 2)] {
        let (geometry, files) = small();
        let mut random = Random(seed);
        for file in &files {
            let len = geometry.member_sectors() as usize * 512;
            let junk: Vec<u8> = (0..len).map(|_| random.next(256) as u8).collect();
            file.write_all_at(&junk, OFFSET).expect("junk");
        }
        let lanes = Lanes::eager();
        lanes.faults().jitter.store(9, SeqCst);
        let gone: Vec<u16> = missing.into_iter().collect();
        let rig = start(&geometry, &files, 1, &gone, 16, Some(&lanes));
        until("opening", || active(&rig));
        for round in 0..6 {
            if round % 2 == 0 {
                lanes.faults().dies_after.store(1 + random.next(12), SeqCst);
            }
            rig.queues[0].send(Msg::Sweep {
                kind: SweepKind::Resync,
                first: 0,
                end: 24,
            });
            let repaired = loop {
                match rig.manager.recv_timeout(PATIENCE).expect("an answer") {
                    Msg::SweepDone {
                        end,
                        repaired,
                        unreadable,
                        ..
                    } => {
                        assert_eq!((end, unreadable), (24, 0));
                        break repaired;
                    }
                    _ => continue,
                }
            };
            // All at first, then nothing.
            assert_eq!(repaired, if round == 0 { 24 } else { 0 }, "round {round}");
        }
        let sums = rig.stop();
        assert!(
            sums.get("lane_losses") > 0 && sums.get("lane_jobs") > 0,
            "{sums:?}"
        );
        if missing.is_none() {
            parity_matches(&geometry, &files);
        }
    }
}

#[test]
fn an_engine_ends_within_a_second_and_closes_its_lane() {
    let (geometry, files) = small();
    let lanes = Lanes::eager();
    for wait in [false, true, false, true] {
        let rig = start(&geometry, &files, 2, &[], 8, Some(&lanes));
        if wait {
            until("opening", || active(&rig));
            rig.client.write(0, vec![1; 4096], false).expect("write");
        }
        let begin = Instant::now();
        rig.stop();
        assert!(begin.elapsed() < Duration::from_secs(1));
        let faults = lanes.faults();
        assert_eq!(faults.opened.load(SeqCst), faults.closed.load(SeqCst));
    }
}

#[test]
fn an_idle_lane_is_parked() {
    let (geometry, files) = small();
    let lanes = Lanes::eager();
    let rig = start(&geometry, &files, 1, &[], 8, Some(&lanes));
    until("opening", || active(&rig));
    for i in 1..4 {
        rig.client
            .write(0, vec![i as u8; 4096], false)
            .expect("write");
        until("parking", || lanes.faults().parked.load(SeqCst) == i);
    }
    rig.stop();
}
