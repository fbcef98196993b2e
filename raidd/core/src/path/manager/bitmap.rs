//! Where the manager's course meets the bitmap ([`crate::path::intent_manager`]): what the bitmap has to know, when its bytes
//! have been taken, and what has to wait for it.

use super::Manager;
use super::words::ManagerAction;
use crate::path::intent_manager::{Facts, IntentManager};
use crate::path::types::{MemberError, SlotSet};

impl Manager {
    /// Gives the array its bitmap. Before [`Manager::start`].
    pub fn set_bitmap(&mut self, bitmap: IntentManager) {
        self.bitmap = Some(bitmap);
    }

    /// The array's bitmap, if it has one.
    pub fn bitmap(&self) -> Option<&IntentManager> {
        self.bitmap.as_ref()
    }

    /// Bands of the resync that are done, and all of them: with a bitmap only those that it names.
    pub(super) fn resync_progress(&self) -> (u64, u64) {
        match &self.bitmap {
            Some(bitmap) => bitmap.progress(self.swept),
            None => (self.swept, self.cfg.bands),
        }
    }

    /// What the bitmap has to know of the array.
    pub(super) fn facts(&self) -> Facts {
        let mut present = SlotSet::EMPTY;
        for slot in (0..self.cfg.members).filter(|s| !self.view.missing.contains(*s)) {
            present.insert(slot);
        }
        let under_way = self.batch.is_some_and(|b| !b.level);
        Facts {
            present,
            optimal: self.view.missing.is_empty() && self.view.filling.is_empty(),
            recorded: self.view.recorded == self.view.epoch,
            alive: !self.view.failed && !self.view.read_only,
            quiet: self.all_quiet && !self.must_flush(),
            stopping: self.stopping,
            events: self.events - u64::from(under_way),
            queues: self.cfg.queues,
        }
    }

    pub(super) fn run_bitmap(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        let facts = self.facts();
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.run(now_ms, &facts, out);
        }
    }

    pub(super) fn bitmap_done(&mut self, slot: u16, ok: bool, out: &mut Vec<ManagerAction>) {
        let bitmap = self
            .bitmap
            .as_mut()
            .expect("only arrays with a bitmap write it");
        let failed = bitmap.done(slot, ok, self.cfg.queues, out);
        for slot in failed.iter() {
            self.member_failed(slot, MemberError::Gone, out);
        }
        // The members said dirty already, and only their bitmaps had to be made equal.
        if self.disk_dirty && self.want_dirty && !self.cleaning() && self.bitmap_level() {
            self.want_dirty = false;
            self.view.writable = !self.view.failed;
            self.publish(out);
        }
    }

    /// All members have the same bits, so that what queues take for set is.
    pub(super) fn bitmap_level(&self) -> bool {
        let present = self.facts().present;
        self.bitmap.as_ref().is_none_or(|b| b.level(&present))
    }

    pub(super) fn bitmap_at_rest(&self) -> bool {
        let facts = self.facts();
        self.bitmap.as_ref().is_none_or(|b| b.at_rest(&facts))
    }

    /// The next record's events stand in the bitmaps already; if not, they are on their way.
    pub(super) fn bitmap_ahead(&mut self) -> bool {
        let present = self.facts().present;
        let events = self.events + u64::from(!self.level);
        let bitmap = self.bitmap.as_mut();
        bitmap.is_none_or(|b| b.ahead(events, &present))
    }
}
