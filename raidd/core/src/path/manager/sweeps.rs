//! Everything that walks over the array: which sweep is due, its windows, how fast they follow one another, what they found.
//!
//! One window is swept at a time, by queue 0. Of several sweeps that are due, the order is:
//!
//! 1. **Resync, below the fill frontier.** After a crash a stripe there may have parity that does not match, while all its
//!    chunks can be read: nothing is lost yet, and would be if one more member went. So this comes first.
//! 2. **Rebuild**, from the frontier on, for all members that are being filled in one pass. Where parity is not in sync it is
//!    brought in sync by the same pass: the lost chunks are computed from P as a resync without the member would do, Q is made
//!    to agree, and both positions move on together. (With as many members lost as the level tolerates, parity beyond the
//!    frontier *is* the lost data, and there is nothing to bring in sync.)
//! 3. **Scrub**, over what is in sync and has redundancy.
//!
//! A member that is added while another is being filled waits until that one is whole, unless its pass has not got
//! anywhere yet: to begin anew for both would give up redundancy that has been won.
//!
//! **Rates.** A sweep gets a share of the time, measured by the time that its windows take: all of it as long as no requests arrive
//! meanwhile, half as much after each window beside requests, down to 1/16, and twice as much after each without. Within this,
//! it is not slowed below the floor nor let go above the ceiling.

use super::{
    MISMATCH_NOTES, Manager, ManagerAction, Note, Refused, Round, Scrub, SweepState, Wish,
};
use crate::path::types::{Msg, SlotSet, SweepKind};

/// A sweep that meets requests all the time gets one part in 2 to this of the time.
const LEAST_SHARE: u32 = 4;

/// A window in the hands of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    kind: SweepKind,
    first: u64,
    end: u64,
    started_ms: u64,
    /// Rows that differ, and those of them put right.
    mismatches: u64,
    repaired: u64,
}

/// A scrub under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scrubbing {
    kind: Scrub,
    first: u64,
    next: u64,
    end: u64,
    checked: u64,
    mismatches: u64,
    repaired: u64,
    unreadable: u64,
    notes: u64,
    stop: bool,
}

impl Scrubbing {
    fn sweep(&self) -> SweepKind {
        match self.kind {
            Scrub::Check => SweepKind::Check,
            Scrub::Repair { policy } => SweepKind::Repair { policy },
        }
    }
}

impl Manager {
    /// A sweep is under way or due.
    pub fn sweeping(&self) -> bool {
        !self.paused && self.due().is_some()
    }

    /// Bands swept so far, of all kinds: grows as long as something gets done.
    pub fn headway(&self) -> u64 {
        self.swept + self.view.filled + self.scrub.map_or(0, |s| s.next)
    }

    /// The sweep under way or due.
    pub fn sweep(&self) -> Option<SweepState> {
        let kind = self.due()?;
        let (done, total) = self.resync_progress();
        let mut state = SweepState {
            kind,
            slots: SlotSet::EMPTY,
            done,
            total,
            mismatches: 0,
            repaired: self.repaired,
            unreadable: 0,
            paused: self.paused,
        };
        if kind == SweepKind::Fill {
            state.slots = self.view.filling;
            (state.done, state.total) = (self.view.filled.min(self.cfg.bands), self.cfg.bands);
        } else if kind != SweepKind::Resync
            && let Some(scrub) = &self.scrub
        {
            state.done = scrub.next - scrub.first;
            state.total = scrub.end - scrub.first;
            state.mismatches = scrub.mismatches;
            state.repaired = scrub.repaired;
            state.unreadable = scrub.unreadable;
        }
        Some(state)
    }

    fn due(&self) -> Option<SweepKind> {
        if self.cfg.parities == 0 || self.view.read_only || self.view.failed || self.stopping {
            return None;
        }
        let filling = !self.view.filling.is_empty();
        if !self.stuck && self.losses_recorded() {
            let resync_to = match filling {
                true => self.view.filled.min(self.cfg.bands),
                false => self.cfg.bands,
            };
            if self.swept < resync_to && self.view.missing.len() < usize::from(self.cfg.parities) {
                return Some(SweepKind::Resync);
            }
            if filling && self.view.filled < self.cfg.bands {
                return Some(SweepKind::Fill);
            }
        }
        match filling {
            true => None,
            false => self.scrub.as_ref().map(Scrubbing::sweep),
        }
    }

    /// With as many members missing as the level tolerates there is no redundancy left that could disagree: parity *is* the
    /// missing data.
    pub(super) fn maybe_skip_sweep(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.cfg.parities > 0
            && self.lost().len() == usize::from(self.cfg.parities)
            && (self.view.filling.is_empty() || self.swept >= self.view.filled)
            && self.losses_recorded()
            && !self.view.read_only
            && self.swept < self.cfg.bands
            && self.window.is_none()
        {
            self.all_swept(now_ms, out);
        }
    }

    fn all_swept(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.all_swept();
        }
        self.swept = self.cfg.bands;
        self.view.synced = u64::MAX;
        self.publish(out);
        out.push(ManagerAction::Note(Note::InSync {
            repaired: self.repaired,
        }));
        self.last_round_ms = now_ms;
    }

    /// Whether the members that wait may be taken up as soon as no window is being swept.
    fn may_join(&self) -> bool {
        !self.joining.is_empty()
            && self.losses_recorded()
            && (self.view.filling.is_empty() || self.view.filled == 0)
            && self.finishing.is_empty()
    }

    /// Takes up the members that wait.
    pub(super) fn maybe_join(&mut self, out: &mut Vec<ManagerAction>) {
        if self.joining.is_empty() {
            return;
        }
        let why = if self.view.failed {
            Some(Refused::Failed)
        } else {
            self.stopping.then_some(Refused::Stopping)
        };
        if let Some(why) = why {
            for slot in std::mem::take(&mut self.joining).iter() {
                super::refuse(Wish::Join(slot), why, out);
            }
            return;
        }
        if !self.may_join() {
            return;
        }
        if self.window.is_some() {
            return self.abort_window(out);
        }
        self.joined = std::mem::take(&mut self.joining);
        for slot in self.joined.iter() {
            self.view.missing.remove(slot);
            self.view.filling.insert(slot);
            if let Some(bitmap) = &mut self.bitmap {
                bitmap.forget(slot);
            }
        }
        // Nothing may be read from it or written to it before every queue knows that it is another member.
        (self.view.filled, self.view.fill_end) = (0, 0);
        self.view.fill += 1;
        self.view.epoch += 1;
        self.join_epoch = self.view.epoch;
        (self.flushed, self.disk_recovery, self.granted) = (0, 0, 0);
        self.stuck = false;
        self.publish(out);
        let slots = self.view.filling;
        out.push(ManagerAction::Note(Note::RebuildStarted { slots }));
    }

    /// What is whole and durable on the members being filled becomes theirs: they are members like any other. The record that
    /// says so follows; it is told when that is durable and every queue goes by it.
    pub(super) fn maybe_finish_fill(&mut self, out: &mut Vec<ManagerAction>) {
        let known = self.fill_acks.iter().all(|a| *a >= self.finish_fill);
        if !self.finishing.is_empty() && self.finish_durable && known {
            let slots = std::mem::take(&mut self.finishing);
            out.push(ManagerAction::Note(Note::RebuildFinished { slots }));
        }
        if self.whole()
            && self.flushed >= self.cfg.bands
            && self.window.is_none()
            && self.finishing.is_empty()
            && !self.view.failed
        {
            self.finishing = std::mem::take(&mut self.view.filling);
            self.finish_durable = false;
            self.finish_fill = self.view.fill + 1;
            (self.view.filled, self.view.fill_end) = (0, 0);
            self.view.fill += 1;
            self.publish(out);
        }
    }

    pub(super) fn abort_window(&mut self, out: &mut Vec<ManagerAction>) {
        if self.window.is_some() {
            out.push(ManagerAction::Send {
                queue: 0,
                msg: Msg::SweepAbort,
            });
        }
    }

    pub(super) fn scrub(
        &mut self,
        kind: Scrub,
        first: u64,
        end: u64,
        out: &mut Vec<ManagerAction>,
    ) {
        let end = end.min(self.cfg.bands);
        let why = if let Some(why) = self.no_sweeps() {
            Some(why)
        } else if self.scrub.is_some() {
            Some(Refused::Busy)
        } else if first >= end {
            Some(Refused::Range)
        } else if self.lost().len() >= usize::from(self.cfg.parities) {
            Some(Refused::NoRedundancy)
        } else {
            None
        };
        if let Some(why) = why {
            return super::refuse(Wish::Scrub, why, out);
        }
        self.scrub = Some(Scrubbing {
            kind,
            first,
            next: first,
            end,
            checked: 0,
            mismatches: 0,
            repaired: 0,
            unreadable: 0,
            notes: 0,
            stop: false,
        });
    }

    pub(super) fn scrub_stop(&mut self, out: &mut Vec<ManagerAction>) {
        let Some(scrub) = &mut self.scrub else { return };
        scrub.stop = true;
        if self.window.is_some_and(|w| w.kind == scrub.sweep()) {
            self.abort_window(out);
        } else {
            self.end_scrub(out);
        }
    }

    fn end_scrub(&mut self, out: &mut Vec<ManagerAction>) {
        let Some(scrub) = self.scrub.take() else {
            return;
        };
        out.push(ManagerAction::Note(Note::ScrubFinished {
            kind: scrub.kind,
            complete: scrub.next >= scrub.end,
            checked: scrub.checked,
            mismatches: scrub.mismatches,
            repaired: scrub.repaired,
            unreadable: scrub.unreadable,
        }));
    }

    pub(super) fn mismatch(
        &mut self,
        band: u64,
        (lo, hi): (u8, u8),
        located: Option<u16>,
        repaired: bool,
        out: &mut Vec<ManagerAction>,
    ) {
        let (Some(window), Some(scrub)) = (&mut self.window, &mut self.scrub) else {
            return;
        };
        let rows = u64::from(hi - lo);
        window.mismatches += rows;
        window.repaired += if repaired { rows } else { 0 };
        scrub.notes += 1;
        if scrub.notes <= MISMATCH_NOTES {
            out.push(ManagerAction::Note(Note::Mismatch {
                band,
                located,
                rows: (u32::from(lo), u32::from(hi)),
                repaired,
            }));
        }
    }

    pub(super) fn maybe_sweep(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.window.is_some() {
            if self.stopping || (self.view.failed && self.cfg.parities > 0) {
                self.abort_window(out);
            }
            return;
        }
        // With nothing to compare with, and at the end, a scrub is over.
        let lost = self.lost().len() >= usize::from(self.cfg.parities);
        if self.scrub.is_some() && (lost || self.stopping || self.view.failed) {
            self.end_scrub(out);
        }
        let Some(kind) = self.due() else { return };
        if self.paused || self.may_join() || now_ms < self.next_window_ms {
            return;
        }
        let (first, most) = match kind {
            SweepKind::Resync if self.view.filling.is_empty() => (self.swept, self.cfg.bands),
            SweepKind::Resync => (self.swept, self.view.filled),
            SweepKind::Fill => {
                let first = self.view.filled;
                let ahead = (first + 2 * self.cfg.window).min(self.cfg.bands);
                if self.view.fill_end < ahead {
                    self.view.fill_end = ahead;
                    self.view.fill += 1;
                    self.publish(out);
                }
                if (first + self.cfg.window).min(self.cfg.bands) > self.granted {
                    return;
                }
                (first, self.cfg.bands)
            }
            SweepKind::Check | SweepKind::Repair { .. } => {
                let scrub = self.scrub.as_ref().expect("it is due");
                // Where parity is not in sync a difference says nothing.
                (scrub.next, scrub.end.min(self.swept))
            }
        };
        if first >= most {
            return self.end_scrub(out);
        }
        // Let a question for quiet be answered first: a queue that sweeps is not quiet.
        if self.round != Round::None && kind != SweepKind::Resync {
            return;
        }
        let (mut first, mut end) = (first, (first + self.cfg.window).min(most));
        let present = self.facts().present;
        if let Some(bitmap) = &mut self.bitmap {
            // A sweep writes, so the members agree on the bits first.
            if !bitmap.ahead(self.events, &present) {
                return;
            }
            if kind == SweepKind::Resync {
                // Bands that the bitmap does not name are in sync.
                let Some(needed) = bitmap.next_needed(self.swept) else {
                    return self.all_swept(now_ms, out);
                };
                first = needed.start.min(most);
                (self.swept, self.view.synced) = (first, first);
                if first == most {
                    return self.publish(out);
                }
                end = (first + self.cfg.window).min(needed.end).min(most);
            }
        }
        self.window = Some(Window {
            kind,
            first,
            end,
            started_ms: now_ms,
            mismatches: 0,
            repaired: 0,
        });
        #[cfg(feature = "planted-bugs")]
        if kind == SweepKind::Fill && self.bug(crate::path::queue::Bug::FrontierEarly) {
            self.view.filled = end;
            self.publish(out);
            self.view.filled = first;
        }
        out.push(ManagerAction::Send {
            queue: 0,
            msg: Msg::Sweep { kind, first, end },
        });
    }

    pub(super) fn sweep_done(
        &mut self,
        now_ms: u64,
        end: u64,
        repaired: u64,
        unreadable: u64,
        foreground: u64,
        out: &mut Vec<ManagerAction>,
    ) {
        let window = self.window.take().expect("a window is being swept");
        let Window { kind, first, .. } = window;
        debug_assert!(end == first || end == window.end);
        match kind {
            SweepKind::Resync | SweepKind::Fill => {
                self.repaired += repaired;
                if unreadable > 0 {
                    self.stuck = true;
                    out.push(ManagerAction::Note(Note::SweepStuck { band: first }));
                    return;
                }
                if end <= first {
                    return;
                }
                if kind == SweepKind::Fill {
                    self.view.filled = end;
                    self.view.fill_end = (end + 2 * self.cfg.window).min(self.cfg.bands);
                    self.view.fill += 1;
                }
                let moved = self.swept < end;
                if moved && end >= self.cfg.bands {
                    self.all_swept(now_ms, out);
                } else {
                    if moved {
                        if let Some(bitmap) = &mut self.bitmap {
                            bitmap.swept(first, end);
                        }
                        (self.swept, self.view.synced) = (end, end);
                    }
                    self.publish(out);
                }
            }
            SweepKind::Check | SweepKind::Repair { .. } => {
                let Some(scrub) = &mut self.scrub else { return };
                if end > first {
                    scrub.next = end;
                    scrub.checked += end - first;
                    scrub.mismatches += window.mismatches;
                    scrub.repaired += window.repaired;
                    scrub.unreadable += unreadable;
                }
                if scrub.stop || scrub.next >= scrub.end {
                    self.end_scrub(out);
                }
                if end <= first {
                    return;
                }
            }
        }
        self.pace(now_ms, &window, foreground);
    }

    /// When the next window may begin; see the module comment.
    fn pace(&mut self, now_ms: u64, window: &Window, foreground: u64) {
        self.share = match foreground {
            0 => self.share.saturating_sub(1),
            _ => (self.share + 1).min(LEAST_SHARE),
        };
        let bytes = (window.end - window.first) * u64::from(self.cfg.band_rows) * 512;
        let at_rate = |rate: u64| bytes.saturating_mul(1000) / rate.max(1);
        let took = now_ms.saturating_sub(window.started_ms).max(1);
        let mut wait = 0;
        if self.share > 0 {
            wait = (took << self.share).min(at_rate(self.cfg.sweep_floor));
        }
        if let Some(ceiling) = self.cfg.sweep_ceiling {
            wait = wait.max(at_rate(ceiling));
        }
        self.next_window_ms = window.started_ms + wait;
    }
}
