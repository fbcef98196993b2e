//! The words between the manager and its edge: what happens, what is to be done, what an operator is told. Plain data.

use crate::path::intent_manager::BitmapWrite;
use crate::path::types::{MemberError, Msg, Policy, SlotSet, SweepKind};

/// What happens to the manager.
#[derive(Clone, Debug)]
pub enum ManagerEvent {
    /// A queue says something.
    Msg(Msg),
    /// A superblock of the record in flight is durable, or the member failed to take it.
    Recorded {
        /// Which member.
        slot: u16,
        /// Written and flushed.
        ok: bool,
    },
    /// A member has taken the bytes of the bitmap that are under way, durably, or failed to.
    BitmapDone {
        /// Which member.
        slot: u16,
        /// Written and flushed.
        ok: bool,
    },
    /// Time has passed.
    Tick,
    /// No requests come any more: leave the members clean.
    Stop,
    /// The edge has opened a member for a missing slot, and all queues have its file: fill it. The file may be exchanged from
    /// the [`Note::SpareWanted`] on that names the slot: before, a queue may still read and write what is there. Taken up once the loss of the
    /// slot's last member is recorded, and once a rebuild that has already made headway is done. Answered by
    /// [`Note::RebuildStarted`] or [`Note::Refused`].
    Join {
        /// Which slot, below the number of members.
        slot: u16,
        /// Sectors of the member's data area that held what they should when it was last written (MD's recovery_offset). A
        /// running array fills from the start all the same, since it may have been written meanwhile; what a member holds
        /// counts only where the array starts with it, see [`ManagerConfig::recovery`].
        from: u64,
    },
    /// The operator takes a member out. As its failure, with [`MemberError::Removed`]; refused if the array could not go on.
    Leave {
        /// Which slot, below the number of members.
        slot: u16,
    },
    /// Compare parity with the data. Waits for resync and rebuild, and goes on after them.
    Scrub {
        /// What to do with what is found.
        kind: Scrub,
        /// First band.
        first: u64,
        /// First band after; cut to the end of the array.
        end: u64,
    },
    /// End the scrub at once; answered by [`Note::ScrubFinished`] if there was one.
    ScrubStop,
    /// Start no more windows of any sweep, or go on.
    Pause(bool),
    /// New limits for sweeps, in bytes per second of each member.
    Rates {
        /// Least rate while requests arrive.
        floor: u64,
        /// Highest rate.
        ceiling: Option<u64>,
    },
}

/// What a scrub does with differences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scrub {
    /// Tell them.
    Check,
    /// Tell them and put them right.
    Repair {
        /// Whom to believe.
        policy: Policy,
    },
}

/// What an order was about that is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// [`ManagerEvent::Join`] of this slot.
    Join(u16),
    /// [`ManagerEvent::Leave`] of this slot.
    Leave(u16),
    /// [`ManagerEvent::Scrub`].
    Scrub,
}

/// Why an order is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The level has no parity.
    NoParity,
    /// The array has failed.
    Failed,
    /// The array is read-only.
    ReadOnly,
    /// The array is being stopped.
    Stopping,
    /// There is a member in the slot already, or it is being filled.
    Occupied,
    /// There is no member in the slot.
    Empty,
    /// The array could not go on without the member.
    Needed,
    /// A scrub is under way.
    Busy,
    /// As many members are lost as the level tolerates: there is nothing to compare with.
    NoRedundancy,
    /// There are no such bands.
    Range,
}

/// What the edge must do for the manager.
#[derive(Clone, Debug, PartialEq)]
pub enum ManagerAction {
    /// Hand a message to one queue.
    Send {
        /// Which.
        queue: u16,
        /// Content.
        msg: Msg,
    },
    /// Write superblocks, durably, and answer each with [`ManagerEvent::Recorded`].
    Record(Record),
    /// Write bytes of the bitmap, durably, and answer each target with [`ManagerEvent::BitmapDone`].
    Bitmap(BitmapWrite),
    /// Something an operator wants to know.
    Note(Note),
    /// All is recorded; the queues are idle.
    Stopped,
}

/// The content of a superblock write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// New event count.
    pub events: u64,
    /// MD's resync_offset: `u64::MAX` clean, 0 dirty, else a checkpoint in member sectors.
    pub resync_offset: u64,
    /// Slots whose members are not in the array (any more).
    pub missing: SlotSet,
    /// Slots to write to; those of `filling` are among them.
    pub targets: SlotSet,
    /// Slots whose members are being filled. In the role table they hold their slot, as in MD; their own superblock has
    /// feature bit 0x2 with `recovery`. All other targets are written without that bit.
    pub filling: SlotSet,
    /// MD's recovery_offset of the members being filled, member sectors: what an *earlier* record has flushed, so that it holds
    /// whatever order the edge writes and flushes in. 0 if `filling` is empty.
    pub recovery: u64,
}

/// Facts for logs and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A member left the array.
    MemberFailed {
        /// Which.
        slot: u16,
        /// Why.
        error: MemberError,
    },
    /// More members are lost than the level tolerates.
    ArrayFailed,
    /// The sweep has reached the end, or there is nothing left that could be out of sync.
    InSync {
        /// Bands whose parity was put right.
        repaired: u64,
    },
    /// The sweep met bands that cannot be read and has stopped.
    SweepStuck {
        /// First band of the window.
        band: u64,
    },
    /// These slots are being filled from now on.
    RebuildStarted {
        /// All slots that are being filled.
        slots: SlotSet,
    },
    /// They are whole, and all members' superblocks say so.
    RebuildFinished {
        /// Which.
        slots: SlotSet,
    },
    /// They are not being filled any more, because their members failed or were taken out; the slots are missing.
    RebuildAborted {
        /// Which.
        slots: SlotSet,
    },
    /// A scrub has ended.
    ScrubFinished {
        /// What it was.
        kind: Scrub,
        /// It has seen all bands that it was asked to.
        complete: bool,
        /// Bands compared.
        checked: u64,
        /// Sectors of a member's height (rows) in which parity and data differed.
        mismatches: u64,
        /// Those of them that were put right.
        repaired: u64,
        /// Bands with rows that no member can give back.
        unreadable: u64,
    },
    /// Parity and data differ. After [`super::MISMATCH_NOTES`] of these a scrub only counts.
    Mismatch {
        /// Which band.
        band: u64,
        /// The slot whose member is wrong; `None`: it cannot be said.
        located: Option<u16>,
        /// Rows of the band, in sectors: first, and first after.
        rows: (u32, u32),
        /// It is being put right.
        repaired: bool,
    },
    /// The loss of these slots is recorded; members to fill them are welcome.
    SpareWanted {
        /// Slots without a member.
        slots: SlotSet,
    },
    /// An order is not carried out.
    Refused {
        /// Which.
        wish: Wish,
        /// Why.
        why: Refused,
    },
}

/// How far a sweep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepState {
    /// What it is for.
    pub kind: SweepKind,
    /// Slots that are being filled.
    pub slots: SlotSet,
    /// Bands done.
    pub done: u64,
    /// Bands in all; `done` starts above 0 if it goes on from a checkpoint.
    pub total: u64,
    /// Scrubs: rows (sectors of a member's height) in which parity and data differ.
    pub mismatches: u64,
    /// Scrubs: rows put right. Else bands whose parity was put right.
    pub repaired: u64,
    /// Bands with rows that no member can give back.
    pub unreadable: u64,
    /// It waits for [`ManagerEvent::Pause`]`(false)`.
    pub paused: bool,
}

/// Facts that do not change, and the state found on the members.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// Members of the array.
    pub members: u16,
    /// How many may be missing.
    pub parities: u16,
    /// Queues.
    pub queues: u16,
    /// Bands of the array (0 for RAID 0).
    pub bands: u64,
    /// Sectors of a band on each member.
    pub band_rows: u32,
    /// Event count found.
    pub events: u64,
    /// resync_offset found.
    pub resync_offset: u64,
    /// Slots without a member.
    pub missing: SlotSet,
    /// Some missing member is not yet recorded as such, or the members differ in their events: a power cut came between
    /// the superblocks of one record. Nothing is written before all say the same; otherwise the loss of the one member that
    /// says "dirty" would make an array in the middle of its writes look clean.
    pub unrecorded: bool,
    /// Never write anything.
    pub read_only: bool,
    /// Idle time after which the array is marked clean, in ms.
    pub safe_mode_delay_ms: u64,
    /// Least sweep rate while requests arrive, bytes per second of each member.
    pub sweep_floor: u64,
    /// Highest sweep rate, bytes per second of each member.
    pub sweep_ceiling: Option<u64>,
    /// Bands of one sweep window.
    pub window: u64,
    /// Slots whose members are being filled; not among `missing`.
    pub filling: SlotSet,
    /// Smallest recovery_offset of these members, member sectors.
    pub recovery: u64,
    /// Time between checkpoints of a rebuild, in ms.
    pub checkpoint_ms: u64,
}
