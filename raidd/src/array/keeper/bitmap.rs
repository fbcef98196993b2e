//! Bytes of the bitmap on their way to the members, by the same threads that write superblocks: a header is on a member before
//! the superblock that comes after it.

use std::io;
use std::time::Instant;

use raid_core::path::intent_manager::BitmapWrite;
use raid_core::path::manager::ManagerEvent;
use raid_core::units::SECTOR_BYTES;

use super::Keeper;
use super::record::WRITE_LIMIT;
use super::writer::Job;

/// A write of the bitmap that some members have not taken yet.
#[derive(Debug)]
pub struct BitmapFlight {
    /// Slot and write.
    pending: Vec<(u16, u64)>,
    since: Instant,
}

impl Keeper {
    pub(super) fn write_bitmap(&mut self, write: &BitmapWrite) {
        self.seats.follow(&self.manager.view());
        let mut pending = Vec::new();
        let mut absent = Vec::new();
        for slot in write.targets.iter() {
            self.ids += 1;
            let seat = self.seats.by_slot(slot);
            let place = seat.and_then(|s| s.device.superblock.bitmap_sector());
            let (Some(seat), Some(sector)) = (seat, place) else {
                absent.push(slot);
                continue;
            };
            let at = |run: &(u64, Vec<u8>)| (sector * SECTOR_BYTES + run.0, run.1.clone());
            seat.writer.write(Job {
                id: self.ids,
                flush_first: false,
                runs: write.runs.iter().map(at).collect(),
            });
            pending.push((slot, self.ids));
        }
        self.bitmap_flight = Some(BitmapFlight {
            pending,
            since: Instant::now(),
        });
        for slot in absent {
            self.event(ManagerEvent::BitmapDone { slot, ok: false });
        }
    }

    /// Whether this was a write of the bitmap.
    pub(super) fn bitmap_written(&mut self, id: u64, result: &io::Result<()>) -> bool {
        let slot = self.bitmap_flight.as_mut().and_then(|flight| {
            let at = flight.pending.iter().position(|(_, i)| *i == id)?;
            Some(flight.pending.swap_remove(at).0)
        });
        let Some(slot) = slot else { return false };
        if let Err(error) = result {
            tracing::error!(array = %self.name, member = %self.path_of(slot), %error, "bitmap not written");
        }
        let ok = result.is_ok();
        self.event(ManagerEvent::BitmapDone { slot, ok });
        true
    }

    /// Gives up on members that take too long.
    pub(super) fn overdue_bitmap(&mut self) {
        let Some(flight) = &mut self.bitmap_flight else {
            return;
        };
        if flight.pending.is_empty() || flight.since.elapsed() < WRITE_LIMIT {
            return;
        }
        for (slot, _) in std::mem::take(&mut flight.pending) {
            tracing::error!(
                array = %self.name, slot, member = %self.path_of(slot),
                "its bitmap is not written after {} s; it counts as failed", WRITE_LIMIT.as_secs()
            );
            self.event(ManagerEvent::BitmapDone { slot, ok: false });
        }
    }
}
