//! A queue's share of the write-intent bitmap: bands wait here until their bit is durable, and the manager is told when the
//! writes that had begun at some moment have ended. Costs one load per band that is written; a walk over the queue's bands
//! when bits were set for which some of them waited.

use std::sync::Arc;

use super::bands::{List, Ready};
use super::intent::Intent;
use super::queue::QueueCore;
use super::slab::NONE;
use super::types::*;

/// Write operations in flight, those begun before the manager's last question apart from those begun since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begun {
    /// By side of the question; the side of new operations is `now`.
    count: [usize; 2],
    now: u8,
    /// The question that the other side has to be empty for.
    owed: Option<u32>,
    /// One that came before the last was answered.
    next: Option<u32>,
}

impl Begun {
    /// An operation that is not counted.
    pub const NO: u8 = 2;

    fn begin(&mut self) -> u8 {
        self.count[usize::from(self.now)] += 1;
        self.now
    }

    fn end(&mut self, side: u8) {
        self.count[usize::from(side)] -= 1;
    }

    fn ask(&mut self, round: u32) {
        if self.owed.is_some() {
            self.next = Some(round);
            return;
        }
        self.owed = Some(round);
        self.now ^= 1;
    }

    /// The round that can be answered now. Call until there is none.
    fn answer(&mut self) -> Option<u32> {
        if self.owed.is_none() || self.count[usize::from(self.now ^ 1)] > 0 {
            return None;
        }
        let round = self.owed.take();
        if let Some(next) = self.next.take() {
            self.ask(next);
        }
        round
    }
}

impl QueueCore {
    /// Gives the queue the array's bitmap. Without one, writes need no bits.
    pub fn set_intent(&mut self, intent: Arc<Intent>) {
        self.intent = Some(intent);
    }

    /// Parity of this band is right, wherever the sweep is.
    #[inline]
    pub(crate) fn never_needed(&self, band: u64) -> bool {
        self.intent
            .as_ref()
            .is_some_and(|intent| !intent.needed(intent.unit(band)))
    }

    /// Whether the writes of this entry have to wait for their bit; if so they leave their line.
    pub(crate) fn wait_for_bit(&mut self, entry: u32, band: u64, out: &mut Actions) -> bool {
        let Some(intent) = &self.intent else {
            return false;
        };
        let unit = intent.unit(band);
        if intent.begin(unit) {
            return false;
        }
        if self.view.failed {
            self.drop_writes(entry, band, out);
            return true;
        }
        if intent.want(unit) {
            out.list.push(Action::Send {
                to: Peer::Manager,
                msg: Msg::NeedBit { unit },
            });
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug(super::queue::Bug::BitAfterData) {
            return false;
        }
        self.bands[entry].ready = Ready::Parked;
        self.bits_awaited = true;
        true
    }

    /// Writes that will never get their bit.
    fn drop_writes(&mut self, entry: u32, band: u64, out: &mut Actions) {
        let d = usize::from(self.layout.data);
        self.band_masks[entry as usize * d..][..d].fill(0);
        let e = &mut self.bands[entry];
        let list = std::mem::replace(&mut e.writes, List::EMPTY);
        e.full = 0;
        e.large = false;
        e.ready = Ready::No;
        let idle = e.op == NONE;
        self.answer(list, Err(RequestError::Io), out);
        if idle {
            self.band_idle(band);
        }
    }

    /// Bits have been set, or the array has failed: those who wait look again.
    pub(crate) fn bits_changed(&mut self, out: &mut Actions) {
        if !std::mem::take(&mut self.bits_awaited) {
            return;
        }
        for entry in 0..self.bands.capacity() as u32 {
            let Some(band) = self
                .bands
                .get(entry)
                .filter(|e| e.ready == Ready::Parked)
                .map(|e| e.band)
            else {
                continue;
            };
            if self.view.failed {
                self.drop_writes(entry, band, out);
            } else {
                self.bands[entry].ready = Ready::No;
                self.schedule(entry);
            }
        }
    }

    /// A write operation begins.
    pub(crate) fn write_begins(&mut self, op: u32) {
        self.ops[op].begun = self.begun.begin();
    }

    /// An operation has ended, with all that it wrote.
    pub(crate) fn write_ends(&mut self, begun: u8, out: &mut Actions) {
        if begun != Begun::NO {
            self.begun.end(begun);
            self.answer_begun(out);
        }
    }

    pub(crate) fn asked_begun(&mut self, round: u32, out: &mut Actions) {
        self.begun.ask(round);
        self.answer_begun(out);
    }

    fn answer_begun(&mut self, out: &mut Actions) {
        while let Some(round) = self.begun.answer() {
            out.list.push(Action::Send {
                to: Peer::Manager,
                msg: Msg::Ended { round },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_when_what_was_in_flight_has_ended() {
        let mut b = Begun::default();
        let (first, second) = (b.begin(), b.begin());
        b.ask(1);
        let later = b.begin();
        assert_eq!(b.answer(), None);
        b.end(first);
        b.end(later);
        assert_eq!(b.answer(), None);
        b.end(second);
        assert_eq!(b.answer(), Some(1));
        assert_eq!(b.answer(), None);
    }

    #[test]
    fn a_question_behind_another_waits_for_what_began_in_between() {
        let mut b = Begun::default();
        let first = b.begin();
        b.ask(1);
        let second = b.begin();
        b.ask(2);
        assert_eq!(b.answer(), None);
        b.end(first);
        assert_eq!(b.answer(), Some(1));
        assert_eq!(b.answer(), None, "the second write is in flight");
        b.end(second);
        assert_eq!(b.answer(), Some(2));
        b.ask(3);
        assert_eq!(b.answer(), Some(3), "nothing is in flight");
    }
}
