//! What a scrub does where parity and data differ: find out who is wrong, tell it, put it right if asked to. Owns no state
//! beyond the operation's; costs nothing where nothing differs.
//!
//! With P and Q each row that differs names the wrong chunk, or says that there is more than one. A repair that goes by that
//! ([`Policy::Locate`]) treats these rows as if they could not be read: they are computed from the others and written,
//! and nothing else is.

use super::ops::Phase;
use super::plan::span;
use super::queue::QueueCore;
use super::types::*;

impl QueueCore {
    /// Parity of one of the bands does not match.
    pub(crate) fn scrub_differs(&mut self, op: u32, out: &mut Actions) {
        if self.ops[op].count > 1 {
            return self.sweep_singly(op, out);
        }
        self.ops[op].phase = Phase::Locating;
        self.locate(op, out);
    }

    /// Rows that differ in one way.
    pub(crate) fn located(
        &mut self,
        op: u32,
        (lo, hi): (u32, u32),
        wrong: Wrong,
        out: &mut Actions,
    ) {
        let band = self.ops[op].first;
        let map = self.map(band);
        let slot = match wrong {
            Wrong::Data(k) => Some(map.data_slot(k)),
            Wrong::P => Some(map.p_slot()),
            Wrong::Q => map.q_slot(),
            Wrong::Unknown => None,
        };
        let policy = match self.sweep_kind() {
            SweepKind::Repair { policy } => Some(policy),
            _ => None,
        };
        #[cfg(feature = "planted-bugs")]
        let policy = match self.bug(super::queue::Bug::RepairParityAlways) {
            true => policy.map(|_| Policy::Parity),
            false => policy,
        };
        let repaired = match (policy, slot) {
            (Some(Policy::Locate), Some(slot)) => self.blame(op, slot, span(lo, hi)),
            (Some(Policy::Parity), _) => {
                self.ops[op].strategy = super::plan::Strategy::Encode;
                true
            }
            _ => false,
        };
        out.list.push(Action::Send {
            to: Peer::Manager,
            msg: Msg::Mismatch {
                band,
                lo: lo as u8,
                hi: hi as u8,
                located: slot,
                repaired,
            },
        });
    }

    /// All differences of a band are known.
    pub(crate) fn scrub_located(&mut self, op: u32, out: &mut Actions) {
        if self.ops[op].strategy == super::plan::Strategy::Encode {
            return self.sweep_encode(op, out);
        }
        if !self.any_bad(op) {
            return self.op_finish(op, out);
        }
        // One member is wrong in each row, and the others are there: it can be computed.
        self.recover_rows(op, 0, out);
        self.sweep_make(op, out);
    }
}
