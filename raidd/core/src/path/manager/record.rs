//! The manager's superblock writes: which are due and what they say, and the way from "dirty" to "clean". Owns no I/O; a record
//! costs one superblock write and one flush of every member.
//!
//! What a record says about data holds for what the record *before* it has flushed: "clean" follows a record that changed
//! nothing, and a checkpoint of a rebuild names the place up to which the last record emptied the new member's cache. So it does
//! not matter in which order the edge writes a superblock and flushes.

use super::{Manager, ManagerAction, Record};
use crate::path::types::{MemberError, Msg, SlotSet};

/// A record in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    record: Record,
    pending: SlotSet,
    failed: SlotSet,
    epoch: u32,
    /// An earlier record already named these missing members.
    confirms: bool,
    /// All queues were quiet when it began.
    quiet: bool,
    /// It repeats the event count found at start, see [`Manager::level`].
    pub(super) level: bool,
    /// Bands that the sweep had written to the members being filled when it began.
    filled: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    None,
    Asked { round: u32, quiet: u16 },
}

impl Manager {
    pub(super) fn need_dirty(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        self.want_dirty = true;
        self.all_quiet = false;
        self.all_durable = false;
        if self.round != Round::None {
            self.round = Round::None;
            self.last_round_ms = now_ms;
        }
        if self.disk_dirty && !self.cleaning() && self.bitmap_level() {
            self.view.writable = true;
            self.want_dirty = false;
            self.publish(out);
        }
    }

    pub(super) fn quiet(
        &mut self,
        now_ms: u64,
        round: u32,
        quiet: bool,
        out: &mut Vec<ManagerAction>,
    ) {
        let Round::Asked {
            round: asked,
            quiet: so_far,
        } = self.round
        else {
            return;
        };
        if asked != round {
            return;
        }
        if !quiet {
            self.round = Round::None;
            self.last_round_ms = now_ms;
            // Those that have stopped writing may go on.
            self.publish(out);
        } else if so_far + 1 == self.cfg.queues {
            self.round = Round::None;
            self.last_round_ms = now_ms;
            self.view.writable = false;
            self.all_quiet = true;
        } else {
            self.round = Round::Asked {
                round,
                quiet: so_far + 1,
            };
        }
    }

    pub(super) fn recorded(&mut self, slot: u16, ok: bool, out: &mut Vec<ManagerAction>) {
        let batch = self.batch.as_mut().expect("a record is in flight");
        batch.pending.remove(slot);
        if !ok {
            batch.failed.insert(slot);
        }
        if !batch.pending.is_empty() {
            return;
        }
        let batch = self.batch.take().expect("checked above");
        for slot in batch.failed.iter() {
            self.member_failed(slot, MemberError::Gone, out);
        }
        if batch.failed == batch.record.targets {
            return; // nothing was written anywhere
        }
        self.disk_dirty = batch.record.resync_offset == 0 && self.cfg.parities > 0;
        self.disk_resync = batch.record.resync_offset;
        if batch.epoch >= self.join_epoch && !batch.record.filling.is_empty() {
            self.flushed = self.flushed.max(batch.filled);
            self.disk_recovery = batch.record.recovery / u64::from(self.cfg.band_rows);
        }
        self.finish_durable |= !batch.record.filling.intersects(&self.finishing);
        if !batch.level {
            self.half_epoch = self.half_epoch.max(batch.epoch);
        }
        self.all_durable |= batch.quiet && batch.failed.is_empty() && self.all_quiet;
        if batch.confirms {
            self.durable_epoch = self.durable_epoch.max(batch.epoch);
        }
        if self.disk_dirty && self.want_dirty && !self.view.failed {
            self.want_dirty = false;
            self.view.writable = true;
            self.publish(out);
        }
        self.check_recorded(out);
    }

    /// A record that says clean is in flight.
    pub(super) fn cleaning(&self) -> bool {
        self.batch.is_some_and(|b| b.record.resync_offset != 0)
    }

    /// Data may have been written that no record has flushed. Where nothing is in sync yet, "clean" looks like "dirty".
    pub(super) fn must_flush(&self) -> bool {
        self.disk_dirty && !self.all_durable
    }

    /// The resync_offset of an array without writes.
    pub(super) fn clean_offset(&self) -> u64 {
        if self.cfg.parities == 0 || self.swept >= self.cfg.bands {
            u64::MAX
        } else {
            self.swept * u64::from(self.cfg.band_rows)
        }
    }

    /// The members being filled hold more than their superblocks say.
    pub(super) fn behind(&self) -> bool {
        !self.view.filling.is_empty() && self.view.filled > self.disk_recovery
    }

    pub(super) fn maybe_record(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.batch.is_some() || self.view.read_only || self.view.failed || self.cfg.parities == 0
        {
            return;
        }
        let membership = self.durable_epoch < self.view.epoch;
        let dirty = self.want_dirty && !(self.disk_dirty && self.bitmap_level());
        let finish = self.stopping || self.swept >= self.cfg.bands;
        let due = self.disk_resync != self.clean_offset() || (self.stopping && self.must_flush());
        let clean = self.all_quiet && !self.want_dirty && finish && due;
        let checkpoint = self.behind()
            && (self.whole()
                || (self.stopping && self.window.is_none())
                || now_ms >= self.last_checkpoint_ms + self.cfg.checkpoint_ms);
        let finished = !self.finishing.is_empty() && !self.finish_durable;
        if !(membership || dirty || clean || checkpoint || finished) {
            return;
        }
        // "Clean" on one member must not be durable while another still has data in its volatile cache, or a power cut
        // leaves an array that is clean by its freshest superblock and has parity that does not match. So one more
        // record goes first, which says what the members said already and flushes them all.
        if !self.bitmap_ahead() {
            return;
        }
        let level = std::mem::take(&mut self.level);
        let flushed = self.all_durable;
        #[cfg(feature = "planted-bugs")]
        let flushed = flushed || self.bug(crate::path::queue::Bug::CleanUnflushed);
        let resync_offset = if level {
            self.disk_resync
        } else if clean && flushed {
            self.clean_offset()
        } else if dirty || self.disk_dirty {
            0
        } else {
            self.disk_resync
        };
        let mut targets = SlotSet::EMPTY;
        for slot in (0..self.cfg.members).filter(|s| !self.view.missing.contains(*s)) {
            targets.insert(slot);
        }
        self.events += u64::from(!level);
        let recovery = if self.view.filling.is_empty() {
            0
        } else {
            self.flushed
        };
        #[cfg(feature = "planted-bugs")]
        let recovery = match self.bug(crate::path::queue::Bug::CheckpointUnflushed) {
            true => self.view.filled,
            false => recovery,
        };
        let record = Record {
            events: self.events,
            resync_offset,
            missing: self.view.missing,
            targets,
            filling: self.view.filling,
            recovery: recovery * u64::from(self.cfg.band_rows),
        };
        let confirms = self.half_epoch == self.view.epoch;
        #[cfg(feature = "planted-bugs")]
        let confirms = confirms || self.bug(crate::path::queue::Bug::RecordOnce);
        self.last_checkpoint_ms = now_ms;
        self.batch = Some(Batch {
            record,
            pending: targets,
            failed: SlotSet::EMPTY,
            epoch: self.view.epoch,
            confirms,
            quiet: self.all_quiet,
            level,
            filled: self.view.filled,
        });
        out.push(ManagerAction::Record(record));
    }

    pub(super) fn maybe_ask(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.cfg.parities == 0 || self.view.read_only || self.view.failed {
            return;
        }
        let idle_due = now_ms >= self.last_round_ms + self.cfg.safe_mode_delay_ms;
        let due =
            self.disk_resync != self.clean_offset() && self.swept >= self.cfg.bands && idle_due;
        let due = due || self.stopping;
        // A queue that sweeps is never quiet.
        if due
            && self.window.is_none()
            && self.round == Round::None
            && !self.all_quiet
            && self.batch.is_none()
            && !self.want_dirty
        {
            self.rounds += 1;
            self.round = Round::Asked {
                round: self.rounds,
                quiet: 0,
            };
            for queue in 0..self.cfg.queues {
                out.push(ManagerAction::Send {
                    queue,
                    msg: Msg::Quiesce { round: self.rounds },
                });
            }
        }
    }
}
