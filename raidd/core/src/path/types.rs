//! The words that queues, the manager and the edges exchange. Plain data, no behaviour beyond [`SlotSet`] and
//! [`Actions`].

use std::ops::Range;

pub use super::view::{Policy, SweepKind, View, Wrong};

/// Highest number of sectors (512 bytes) of one member that one band covers: 64 KiB, so that a band's written sectors
/// fit one `u128` per chunk.
pub const BAND_SECTORS: u32 = 128;
/// Bytes per sector, on every device, 4Kn included.
pub const SECTOR: u32 = 512;
/// Most bands that one operation covers.
pub const MAX_RUN: usize = 8;

/// A set of member slots, 0..=255.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SlotSet([u64; 4]);

impl SlotSet {
    /// The empty set.
    pub const EMPTY: SlotSet = SlotSet([0; 4]);

    /// Adds a slot; true if it was new.
    pub fn insert(&mut self, slot: u16) -> bool {
        let word = &mut self.0[usize::from(slot >> 6)];
        let bit = 1u64 << (slot & 63);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes a slot.
    pub fn remove(&mut self, slot: u16) {
        self.0[usize::from(slot >> 6)] &= !(1u64 << (slot & 63));
    }

    /// Whether the slot is in the set.
    #[inline]
    pub fn contains(&self, slot: u16) -> bool {
        self.0[usize::from(slot >> 6)] >> (slot & 63) & 1 == 1
    }

    /// Number of slots in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether no slot is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Slots in either set.
    #[must_use]
    pub fn union(&self, other: &SlotSet) -> SlotSet {
        let mut out = *self;
        for (a, b) in out.0.iter_mut().zip(other.0) {
            *a |= b;
        }
        out
    }

    /// Whether every slot of `other` is in this set.
    pub fn includes(&self, other: &SlotSet) -> bool {
        self.0.iter().zip(other.0).all(|(a, b)| b & !a == 0)
    }

    /// Whether the sets have a slot in common.
    pub fn intersects(&self, other: &SlotSet) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }

    /// The slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..256u16).filter(|s| self.contains(*s))
    }
}

/// What the block layer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill the request with array data.
    Read,
    /// Store the request's bytes.
    Write,
    /// Make every completed write durable.
    Flush,
    /// The range is no longer needed.
    Discard,
    /// Store zeroes.
    WriteZeroes,
}

/// One block request: `lba` and `sectors` in units of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Kind of request.
    pub op: Op,
    /// First array sector.
    pub lba: u64,
    /// Length in sectors.
    pub sectors: u32,
    /// The request's own pages can be given to member I/O (a registered buffer).
    pub direct: bool,
}

/// How a request ends when it does not succeed. The edge maps it to an errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// Too many members are lost, or the bytes could not be moved.
    Io,
    /// A sector is unreadable on too many members.
    Medium,
    /// The array does not do this kind of request.
    Unsupported,
    /// The array is read-only.
    ReadOnly,
}

/// How member I/O fails. The edge maps errno to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberError {
    /// These sectors could not be read or written; the member still answers.
    Medium,
    /// The member is not there any more.
    Gone,
    /// The member does not know this command.
    Unsupported,
    /// The operator has taken the member out. Only from [`super::manager::ManagerEvent::Leave`].
    Removed,
}

/// Where bytes live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buf {
    /// The queue's own buffer memory.
    Arena,
    /// The pages of a request of this queue.
    Request(u16),
}

/// A byte range that the core names and the edges touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufSlice {
    /// Which memory.
    pub buf: Buf,
    /// First byte in it.
    pub off: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Kind of member I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoKind {
    /// Member sectors into buffers.
    Read,
    /// Buffers into member sectors.
    Write,
    /// Empty the member's volatile cache.
    Flush,
    /// Tell the member that sectors are unused.
    Discard,
    /// Let the member write zeroes.
    WriteZeroes,
}

/// A parity job over arena ranges; ranges of one job have one length.
#[derive(Clone, Debug)]
pub enum Job {
    /// P and Q from all data; `srcs` indexes [`Actions::srcs`].
    Encode {
        /// Data ranges and exponents.
        srcs: Range<u32>,
        /// Where P goes.
        p: Option<BufSlice>,
        /// Where Q goes.
        q: Option<BufSlice>,
    },
    /// P and Q adjusted in place by one changed chunk.
    Update {
        /// Bytes before.
        old: BufSlice,
        /// Bytes after.
        new: BufSlice,
        /// Exponent of the chunk.
        exp: u8,
        /// P to adjust.
        p: Option<BufSlice>,
        /// Q to adjust.
        q: Option<BufSlice>,
    },
    /// One or two lost data chunks from the others and P, Q.
    Recover {
        /// Surviving data.
        srcs: Range<u32>,
        /// P if it is used.
        p: Option<BufSlice>,
        /// Q if it is used.
        q: Option<BufSlice>,
        /// Lost chunk and exponent.
        first: (BufSlice, u8),
        /// Second lost chunk.
        second: Option<(BufSlice, u8)>,
    },
    /// Do P and Q agree with the data? A difference is reported by the fence.
    Check {
        /// Data ranges and exponents.
        srcs: Range<u32>,
        /// Stored P.
        p: Option<BufSlice>,
        /// Stored Q.
        q: Option<BufSlice>,
    },
}

/// What the edges must do, in this order.
#[derive(Clone, Debug)]
pub enum Action {
    /// Start member I/O; answered by [`Event::IoDone`].
    Member {
        /// Key of the answer.
        io: u32,
        /// What to do.
        kind: IoKind,
        /// Which member.
        slot: u16,
        /// First sector of the member's data area.
        sector: u64,
        /// Length in sectors; 0 for a flush.
        sectors: u32,
        /// Buffers, an index range of [`Actions::bufs`].
        bufs: Range<u32>,
    },
    /// Bytes of a write request into arena ranges. A failure is reported by the next fence.
    CopyIn {
        /// Queue that fetched the request.
        queue: u16,
        /// Its tag there.
        tag: u16,
        /// First byte of the request.
        off: u32,
        /// Arena ranges, an index range of [`Actions::bufs`].
        bufs: Range<u32>,
    },
    /// Arena ranges into a read request.
    CopyOut {
        /// Queue that fetched the request.
        queue: u16,
        /// Its tag there.
        tag: u16,
        /// First byte of the request.
        off: u32,
        /// Arena ranges, an index range of [`Actions::bufs`].
        bufs: Range<u32>,
    },
    /// Fill an arena range with zeroes.
    Zero(BufSlice),
    /// Run a parity job.
    Compute(Job),
    /// Compare P and Q with the data, sector by sector, and tell each run of sectors that differ in the same way by an
    /// [`Event::Located`], before the answer to the fence that follows. Nothing that it reads is being computed.
    Locate {
        /// Key of the answers.
        op: u32,
        /// All data of the stripe with exponents, by data index; an index range of [`Actions::srcs`].
        srcs: Range<u32>,
        /// Stored P.
        p: Option<BufSlice>,
        /// Stored Q.
        q: Option<BufSlice>,
    },
    /// Answer with [`Event::Fenced`] once all copies and jobs above are done.
    Fence {
        /// Key of the answer.
        op: u32,
    },
    /// The request of this queue is done.
    Complete {
        /// Its tag.
        tag: u16,
        /// How it ended.
        result: Result<(), RequestError>,
    },
    /// Hand a message to another queue or to the manager.
    Send {
        /// Receiver.
        to: Peer,
        /// Content.
        msg: Msg,
    },
}

/// Who a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Another queue.
    Queue(u16),
    /// The array's manager.
    Manager,
}

/// The actions of one pass, and the lists they point into. Reused, so that a pass allocates nothing once warm.
#[derive(Default, Debug)]
pub struct Actions {
    /// In order of execution.
    pub list: Vec<Action>,
    /// Buffers of member I/O and copies.
    pub bufs: Vec<BufSlice>,
    /// Sources of parity jobs with their exponents.
    pub srcs: Vec<(BufSlice, u8)>,
}

impl Actions {
    /// Room for a busy pass.
    pub fn with_capacity(actions: usize, bufs: usize) -> Actions {
        Actions {
            list: Vec::with_capacity(actions),
            bufs: Vec::with_capacity(bufs),
            srcs: Vec::with_capacity(bufs),
        }
    }

    /// Forgets what was executed.
    pub fn clear(&mut self) {
        self.list.clear();
        self.bufs.clear();
        self.srcs.clear();
    }

    pub(crate) fn mark(&self) -> u32 {
        self.bufs.len() as u32
    }

    pub(crate) fn since(&self, mark: u32) -> Range<u32> {
        mark..self.bufs.len() as u32
    }
}

/// What part of a request a [`Seg`] carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegKind {
    /// Store request bytes.
    Write,
    /// Store zeroes.
    Zero,
    /// Deliver bytes of a chunk whose member cannot be read.
    Recover,
}

/// The part of a request that falls into one chunk of one band.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seg {
    /// Queue that fetched the request.
    pub origin: u16,
    /// Its tag there.
    pub tag: u16,
    /// What to do.
    pub kind: SegKind,
    /// Data index in the stripe.
    pub k: u16,
    /// First sector within the band, 0..128.
    pub first: u8,
    /// Sectors, 1..=128.
    pub count: u8,
    /// First byte of the request.
    pub req_off: u32,
    /// The request is at least a chunk long, so its neighbour may follow soon.
    pub large: bool,
}

/// Messages between queues and the manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Msg {
    /// To the queue that owns the band: please carry this out.
    Seg {
        /// Which band.
        band: u64,
        /// What.
        seg: Seg,
    },
    /// Back to the queue that fetched the request.
    SegDone {
        /// Its tag.
        tag: u16,
        /// How it went.
        result: Result<(), RequestError>,
    },
    /// To the manager: writes are waiting for the array to be marked dirty.
    NeedDirty {
        /// Who waits.
        queue: u16,
    },
    /// To the manager: this member failed a write or is gone.
    MemberFailed {
        /// Which.
        slot: u16,
        /// How.
        error: MemberError,
    },
    /// To the manager: this queue goes by that epoch now.
    ViewAck {
        /// Who.
        queue: u16,
        /// Up to where.
        epoch: u32,
        /// [`View::fill`] of the view.
        fill: u32,
    },
    /// To the manager: answer to [`Msg::Quiesce`].
    Quiet {
        /// Who.
        queue: u16,
        /// Which question.
        round: u32,
        /// No write since the last question, and none until the view says writable again.
        quiet: bool,
    },
    /// To the manager: the window has been swept.
    SweepDone {
        /// First band after the window.
        end: u64,
        /// Bands whose parity was put right.
        repaired: u64,
        /// Bands that could not be read.
        unreadable: u64,
        /// Requests that arrived meanwhile.
        foreground: u64,
    },
    /// To the manager: parity and data differ in rows `lo..hi` (sectors) of a band.
    Mismatch {
        /// Which band.
        band: u64,
        /// First row.
        lo: u8,
        /// First row after, 1..=128.
        hi: u8,
        /// The slot whose member is wrong, if P and Q tell.
        located: Option<u16>,
        /// It is being put right.
        repaired: bool,
    },
    /// To a queue: the state of the array.
    View(View),
    /// To a queue: is it without writes? If so it must stop writing.
    Quiesce {
        /// Number of the question.
        round: u32,
    },
    /// To a queue: sweep these bands.
    Sweep {
        /// What for.
        kind: SweepKind,
        /// First band.
        first: u64,
        /// First band after the window.
        end: u64,
    },
    /// To a queue: drop the rest of the sweep window.
    SweepAbort,
    /// To the manager: writes wait for the bit of this unit of the bitmap.
    NeedBit {
        /// Which unit.
        unit: u64,
    },
    /// To a queue: bits of the bitmap have been set.
    Bits,
    /// To a queue: tell when all writes that have begun by now have ended.
    Begun {
        /// Number of the question.
        round: u32,
    },
    /// To the manager: answer to [`Msg::Begun`].
    Ended {
        /// Which question.
        round: u32,
    },
}

/// What happens to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request was fetched under this tag.
    Request {
        /// Its tag.
        tag: u16,
        /// What it asks for.
        request: Request,
    },
    /// Member I/O ended.
    IoDone {
        /// Key given by the action.
        io: u32,
        /// How.
        result: Result<(), MemberError>,
    },
    /// Copies and jobs up to the fence are done.
    Fenced {
        /// Key given by the action.
        op: u32,
        /// Every copy succeeded.
        ok: bool,
        /// Some check found a difference.
        mismatch: bool,
    },
    /// Sectors in which parity and data differ in one way, see [`Action::Locate`].
    Located {
        /// Key given by the action.
        op: u32,
        /// First sector, counted from the start of the ranges compared.
        lo: u32,
        /// First sector after.
        hi: u32,
        /// Who is wrong.
        wrong: Wrong,
    },
    /// A message arrived.
    Msg(Msg),
}
