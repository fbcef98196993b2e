//! One record of the manager on its way to the members' superblocks.
//!
//! A member that has just got its slot is written first, alone: nobody may find others that call it a member while its own
//! superblock says nothing of the data that it lacks. Then all others, at once.

use std::io;
use std::time::{Duration, Instant, SystemTime};

use raid_core::path::manager::{ManagerEvent, Record};

use super::seats::State;
use super::{Keeper, Mark};

/// How long a superblock may take before it counts as not written. Longer than the block layer lets a command hang (30 s).
pub const WRITE_LIMIT: Duration = Duration::from_secs(60);

/// A record's superblocks that are not durable yet.
#[derive(Debug)]
pub struct Flight {
    /// Slot and write.
    pending: Vec<(u16, u64)>,
    /// Slots that come when none is pending.
    later: Vec<u16>,
    since: Instant,
}

impl Keeper {
    pub(super) fn record(&mut self, record: &Record) {
        let seconds = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        self.seats.follow(&self.manager.view());
        let spares = self.seats.imprint(record, seconds);
        if let Some(head) = &self.head {
            head.begin(Mark {
                events: record.events,
                utime: seconds & ((1 << 40) - 1),
            });
        }
        let announced = |slot: &u16| self.seats.by_slot(*slot).is_none_or(|seat| seat.announced);
        let (known, new): (Vec<u16>, Vec<u16>) = record.targets.iter().partition(announced);
        self.flight = Some(Flight {
            pending: Vec::new(),
            later: known,
            since: Instant::now(),
        });
        if new.is_empty() {
            self.rest_of_record();
        } else {
            self.write_slots(&new);
        }
        for number in spares {
            self.ids += 1;
            if let Some(seat) = self.seats.by_number(number) {
                seat.write(self.ids);
            }
        }
    }

    fn rest_of_record(&mut self) {
        let later = self
            .flight
            .as_mut()
            .map(|flight| std::mem::take(&mut flight.later));
        self.write_slots(&later.unwrap_or_default());
    }

    fn write_slots(&mut self, slots: &[u16]) {
        let mut pending = Vec::new();
        let mut absent = Vec::new();
        for slot in slots {
            self.ids += 1;
            match self.seats.by_slot(*slot) {
                Some(seat) => {
                    seat.write(self.ids);
                    pending.push((*slot, self.ids));
                }
                None => absent.push(*slot),
            }
        }
        if let Some(flight) = &mut self.flight {
            flight.pending = pending;
            flight.since = Instant::now();
        }
        for slot in absent {
            self.event(ManagerEvent::Recorded { slot, ok: false });
        }
        self.next_of_record();
    }

    /// Goes on with those that wait, or ends the record.
    fn next_of_record(&mut self) {
        let Some(flight) = &self.flight else { return };
        match (flight.pending.is_empty(), flight.later.is_empty()) {
            (true, true) => self.flight = None,
            (true, false) => self.rest_of_record(),
            (false, _) => {}
        }
    }

    /// A superblock has been written, or not.
    pub(super) fn written(&mut self, number: u32, id: u64, result: io::Result<()>) {
        let name = self.name.clone();
        let Some(seat) = self.seats.by_number_mut(number) else {
            return;
        };
        if let Err(error) = &result {
            tracing::error!(array = %name, member = %seat.device.path.display(), %error, "superblock not written");
        }
        let ok = result.is_ok();
        let is_spare = seat.state == State::Spare;
        let waits = self.flight.as_mut().and_then(|flight| {
            let at = flight.pending.iter().position(|(_, i)| *i == id)?;
            Some(flight.pending.swap_remove(at).0)
        });
        match waits {
            Some(slot) => {
                if ok && let Some(seat) = self.seats.by_number_mut(number) {
                    seat.announced = true;
                }
                self.event(ManagerEvent::Recorded { slot, ok });
                self.next_of_record();
            }
            None if is_spare && !ok => self.seats.fail_spare(number),
            None => {}
        }
    }

    /// Gives up on superblocks that take too long. What comes of them later is known to be stale by its events.
    pub(super) fn overdue(&mut self) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        if flight.since.elapsed() < WRITE_LIMIT {
            return;
        }
        for (slot, _) in std::mem::take(&mut flight.pending) {
            tracing::error!(
                array = %self.name, slot, member = %self.path_of(slot),
                "its superblock is not written after {} s; it counts as failed", WRITE_LIMIT.as_secs()
            );
            self.event(ManagerEvent::Recorded { slot, ok: false });
        }
        self.next_of_record();
    }
}
