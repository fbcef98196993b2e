//! What every queue believes about the array: which members may be read and written where, and how far parity is in sync.
//! Plain data with the arithmetic of zones. Costs a few words to copy; a healthy array has nothing in [`View::filling`].
//!
//! A member that is being filled (rebuilt) divides the array into three zones, by band:
//!
//! ```text
//!   0 ........ filled ........ fill_end ........ end
//!     member           fill zone        as missing
//! ```
//!
//! Below [`View::filled`] it is a member like any other. In the fill zone it is never read, but every write leaves the rows
//! that it touches right on it too, so that it does not matter whether the sweep has passed already. Beyond
//! [`View::fill_end`] it is treated as missing. The sweep enters bands only after every queue has acknowledged that they are
//! in the zone.

use super::types::SlotSet;

/// The state of the array, published by the manager. A change of members counts as in force once every queue has
/// acknowledged its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// Grows with every change of `missing`.
    pub epoch: u32,
    /// Highest epoch that is durable on the survivors and acknowledged by all queues.
    pub recorded: u32,
    /// Slots that must not be read or written.
    pub missing: SlotSet,
    /// More members are missing than the level tolerates.
    pub failed: bool,
    /// The members say "dirty", so data may be written.
    pub writable: bool,
    /// No write is ever accepted.
    pub read_only: bool,
    /// Parity of bands below this one can be trusted.
    pub synced: u64,
    /// Slots whose members are being filled; none of them is in `missing`.
    pub filling: SlotSet,
    /// Bands below this one are whole on the members that are being filled.
    pub filled: u64,
    /// Bands from `filled` to this one are in the fill zone.
    pub fill_end: u64,
    /// Grows with every change of `filling` and `fill_end`; acknowledged like the epoch.
    pub fill: u32,
}

impl View {
    /// Slots that must not be read at this band.
    #[inline]
    pub fn lost_at(&self, band: u64) -> SlotSet {
        self.without(band < self.filled)
    }

    /// Slots that must be neither read nor written at this band.
    #[inline]
    pub fn absent_at(&self, band: u64) -> SlotSet {
        self.without(band < self.fill_end)
    }

    #[inline]
    fn without(&self, part: bool) -> SlotSet {
        if part || self.filling.is_empty() {
            self.missing
        } else {
            self.missing.union(&self.filling)
        }
    }

    /// Slots that are not members everywhere: missing, or being filled.
    #[inline]
    pub fn doubtful(&self) -> SlotSet {
        self.without(false)
    }
}

/// What a sweep over a window of bands is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SweepKind {
    /// Bring parity in sync with the data.
    Resync,
    /// Make the members of [`View::filling`] whole (rebuild); where parity is not in sync, bring it in sync, too.
    Fill,
    /// Compare parity with the data and say where they differ; write nothing but sectors that cannot be read.
    Check,
    /// As [`SweepKind::Check`], and put right what differs.
    Repair {
        /// Whom to believe.
        policy: Policy,
    },
}

/// Whom a repair believes where parity and data differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// With P and Q: the one wrong member is found out, and its rows are computed from the others. Rows for which that cannot
    /// be said (always so with P alone, or with more than one wrong member) are reported and left as they are.
    #[default]
    Locate,
    /// The data: parity is made anew, as MD does.
    Parity,
}

/// Which chunk of a stripe is wrong, as P and Q tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The data chunk with this index in the stripe.
    Data(u16),
    /// P.
    P,
    /// Q.
    Q,
    /// More than one, or there is one parity only.
    Unknown,
}
