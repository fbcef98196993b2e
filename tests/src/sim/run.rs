//! One seed from start to end, and many seeds with a report of the first that fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use raid_core::path::manager::ManagerEvent;

use super::log::Log;
use super::setup::Setup;
use super::world::{Outcome, Tally, World};

impl World {
    /// Adds the counters of the queues.
    pub fn tally_queues(&mut self) {
        for q in &self.queues {
            let s = q.core.stats();
            let t = &mut self.tally;
            t.full += s.full;
            t.encodes += s.encodes;
            t.updates += s.updates;
            t.recovers += s.recovers;
            t.decoded += s.decoded;
            t.merged += s.merged;
            t.forwarded += s.forwarded;
        }
    }

    fn story(&mut self) -> Outcome {
        for epoch in 0..self.setup.epochs {
            let crash = self.rng.chance(self.setup.crash) && !self.setup.read_only;
            let stop = epoch + 1 == self.setup.epochs;
            let requests = self.setup.requests;
            self.load(requests, !crash && !self.rng.clone().chance(20))?;
            if crash && !self.beyond {
                self.power_cut();
                self.restart()?;
                if self.rng.chance(50) {
                    self.drain()?;
                    self.check_quiet()?;
                }
            } else if !crash {
                self.drain()?;
                self.check_quiet()?;
            }
            if stop {
                self.drain()?;
                self.check_quiet()?;
                self.stop()?;
            }
        }
        self.tally_queues();
        Ok(())
    }

    /// A clean stop: everything is durable and the members say so.
    fn stop(&mut self) -> Outcome {
        self.log.add(|| "stop".into());
        let records = self.tally.records;
        self.manager_event(ManagerEvent::Stop)?;
        while !(self.stopped && self.quiet()) {
            self.step()?;
            self.check_progress()?;
        }
        if self.beyond || !self.layout.parity || self.setup.read_only {
            return Ok(());
        }
        let done = self.manager.progress().0 == self.layout.bands();
        let missing = self.manager.view().missing;
        for slot in (0..self.layout.members).filter(|s| !missing.contains(*s)) {
            let sb = self.disks[usize::from(slot)].sb;
            // A record cut short by a power cut leaves some members one event behind, until the next record.
            if sb.events + 1 == self.manager.events() && self.tally.records == records {
                continue;
            }
            if sb.missing != missing || (done && sb.resync_offset != u64::MAX) {
                return Err(format!("stopped, but slot {slot} says {sb:?}"));
            }
        }
        self.check_bits_stopped()?;
        let now = self.tick();
        self.oracle.flushed(now);
        self.power_cut();
        self.restart()?;
        Ok(())
    }
}

/// Runs one scenario; a panic is a finding too.
pub fn run(setup: &Setup, log: Log) -> Outcome<Tally> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(setup.clone(), log);
        world.story().map(|()| world.tally)
    }));
    result.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Runs a scenario again with its events on record, and describes how it failed.
pub fn report(setup: &Setup, error: &str, events: usize) -> String {
    let log = Log::on(false);
    let again = run(setup, log.clone()).map(|_| ());
    let same = again == Err(error.to_owned());
    format!(
        "seed {}: {error}\nlast events{}:\n{}{setup:?}\nseed {}: {error}\nreproduce: RAIDD_SIM_SEED={} cargo test -p raid-tests --test sim_seeds",
        setup.seed,
        if same {
            ""
        } else {
            " (of another failure: the run is not deterministic!)"
        },
        log.tail(events),
        setup.seed,
        setup.seed,
    )
}
