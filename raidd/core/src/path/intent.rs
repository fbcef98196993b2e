//! Where writes may be in flight, as far as the members' bitmap says so: one byte for each unit, shared by all queues of an
//! array. A write may begin only where its unit's bit is durable on all members; that is one load here. The rest (setting
//! bits, clearing them, what they say on disk) is the manager's, in [`super::intent_manager`].
//!
//! **Unit.** A bitmap chunk, or a stripe's chunk where that is larger: a band then lies in one unit, always.
//!
//! **Who changes what.** Queues set TOUCHED where DIRTY is, and WANTED. Only the manager sets and takes away DIRTY, CLEARING
//! and NEEDED. A unit loses DIRTY in three steps, so that no write can slip through: CLEARING is set (from now on no write
//! begins there), every queue answers that the writes it had begun before have ended, and only then the members are flushed
//! and the bit is cleared on them. A queue asks here and begins its write in one go, before it looks at its mail again: a
//! write that still saw DIRTY was in flight when the question came.
//!
//! Costs a byte per unit, one load per band that is written.

use std::sync::atomic::{AtomicU8, Ordering};

/// The bit is set on all members.
const DIRTY: u8 = 1;
/// A write has begun since the last round of clearing.
const TOUCHED: u8 = 2;
/// The bit is about to be cleared on the members: no write may begin.
const CLEARING: u8 = 4;
/// Parity may not match; the sweep has to pass first.
const NEEDED: u8 = 8;
/// Some queue has asked for the bit.
const WANTED: u8 = 16;

/// What a write finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// It may begin.
    Go,
    /// It may begin once this is stored in place of what was seen.
    Touch(u8),
    /// It must wait for the manager.
    Wait,
}

#[inline]
fn look(seen: u8) -> Found {
    match seen & (DIRTY | TOUCHED | CLEARING) {
        both if both == DIRTY | TOUCHED => Found::Go,
        DIRTY => Found::Touch(seen | TOUCHED),
        _ => Found::Wait,
    }
}

/// One round of clearing on one unit: what it becomes.
fn aged(seen: u8) -> u8 {
    match seen & (DIRTY | TOUCHED | CLEARING | NEEDED) {
        at if at & TOUCHED != 0 => seen & !TOUCHED,
        DIRTY => seen | CLEARING,
        _ => seen,
    }
}

/// The state of a unit whose bit is durable on all members.
fn set(seen: u8) -> u8 {
    (seen & NEEDED) | DIRTY | TOUCHED
}

/// See the module comment.
#[derive(Debug)]
pub struct Intent {
    units: Vec<AtomicU8>,
    /// Power of two of the bands of a unit.
    shift: u32,
}

impl Intent {
    /// All clean. `bands_per_unit` is a power of two.
    pub fn new(bands: u64, bands_per_unit: u64) -> Intent {
        assert!(bands_per_unit.is_power_of_two(), "a power of two");
        let units = bands.div_ceil(bands_per_unit);
        Intent {
            units: (0..units).map(|_| AtomicU8::new(0)).collect(),
            shift: bands_per_unit.trailing_zeros(),
        }
    }

    /// Units of the array.
    pub fn units(&self) -> u64 {
        self.units.len() as u64
    }

    /// The unit that a band lies in.
    #[inline]
    pub fn unit(&self, band: u64) -> u64 {
        band >> self.shift
    }

    /// First band of a unit.
    pub fn first_band(&self, unit: u64) -> u64 {
        unit << self.shift
    }

    fn at(&self, unit: u64) -> &AtomicU8 {
        &self.units[unit as usize]
    }

    /// Whether a write there may begin now. If so the unit is not cleared before the write has ended, provided that the
    /// queue begins it before it takes in another message.
    #[inline]
    pub fn begin(&self, unit: u64) -> bool {
        let at = self.at(unit);
        // Acquire: the bit was durable before this was stored.
        let mut seen = at.load(Ordering::Acquire);
        loop {
            match look(seen) {
                Found::Go => return true,
                Found::Wait => return false,
                Found::Touch(next) => {
                    match at.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => return true,
                        Err(now) => seen = now,
                    }
                }
            }
        }
    }

    /// After [`Intent::begin`] has said no: true if the manager has to be told, false if another has told it already.
    pub fn want(&self, unit: u64) -> bool {
        self.at(unit).fetch_or(WANTED, Ordering::AcqRel) & WANTED == 0
    }

    /// Parity there may not match.
    #[inline]
    pub fn needed(&self, unit: u64) -> bool {
        self.at(unit).load(Ordering::Acquire) & NEEDED != 0
    }

    /// The bit is set on the members.
    pub fn dirty(&self, unit: u64) -> bool {
        self.at(unit).load(Ordering::Acquire) & DIRTY != 0
    }

    /// Units that are dirty.
    pub fn count_dirty(&self) -> u64 {
        (0..self.units()).filter(|u| self.dirty(*u)).count() as u64
    }

    // What follows is the manager's alone.

    fn change(&self, unit: u64, f: impl Fn(u8) -> u8) -> (u8, u8) {
        let at = self.at(unit);
        let mut seen = at.load(Ordering::Acquire);
        loop {
            let next = f(seen);
            match at.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (seen, next),
                Err(now) => seen = now,
            }
        }
    }

    /// As found on the members.
    pub(super) fn load(&self, unit: u64, needed: bool) {
        self.change(unit, |s| s | DIRTY | if needed { NEEDED } else { 0 });
    }

    /// The bit is durable on all members, or still is: writes may begin, and none has asked for it any more.
    pub(super) fn publish(&self, unit: u64) {
        self.change(unit, set);
    }

    /// A round of clearing. True if no write may begin there from now on.
    pub(super) fn age(&self, unit: u64) -> bool {
        let (seen, next) = self.change(unit, aged);
        next & !seen & CLEARING != 0
    }

    /// Nothing is written any more: as [`Intent::age`], however late the last write was.
    pub(super) fn retire(&self, unit: u64) -> bool {
        let (seen, next) = self.change(unit, |s| aged(s & !TOUCHED));
        next & !seen & CLEARING != 0
    }

    /// No write may begin there, and the bit is on its way off the members.
    pub(super) fn clearing(&self, unit: u64) -> bool {
        self.at(unit).load(Ordering::Acquire) & CLEARING != 0
    }

    /// Clearing is given up before anything was cleared on a member.
    pub(super) fn keep(&self, unit: u64) {
        self.change(unit, |s| s & !CLEARING);
    }

    /// The bit is cleared on the members.
    pub(super) fn cleared(&self, unit: u64) {
        self.change(unit, |s| s & WANTED);
    }

    /// Parity is right there.
    pub(super) fn in_sync(&self, unit: u64) {
        self.change(unit, |s| s & !NEEDED);
    }
}

#[cfg(test)]
mod tests;
