//! What the queues of one array share in the long run: which members are in, clean or dirty, how far parity is in sync.
//!
//! The manager publishes a [`View`] and writes the members' superblocks. Its promises:
//! - data is written only while the members say "dirty";
//! - a write that a failed member missed is acknowledged only when the failure is durable on the survivors *and* every
//!   queue has stopped using the member ([`View::recorded`]);
//! - "clean" is written only when every queue has said that it is without writes and will stay so until told otherwise.
//!
//! A lost member is recorded twice, each time with one more event. One record interrupted by a power cut leaves survivors one
//! event apart, which counts as equally fresh; two complete ones leave the lost member two events behind, which counts as
//! stale for MD of every age, even where a kernel believes a member's own role.
//!
//! One record (superblock write to all present members) is in flight at a time; what changes meanwhile goes into the next.
//!
//! The code is spread by job: members and messages here, superblocks and the way to "clean" in `record`, everything that walks
//! over the array in `sweeps`.

use super::intent_manager::IntentManager;
use super::types::{MemberError, Msg, SlotSet, View};
use record::{Batch, Round};
use sweeps::{Scrubbing, Window};

mod bitmap;
mod record;
mod sweeps;
mod words;

/// So many [`Note::Mismatch`] are sent for one scrub; the rest is only counted.
pub const MISMATCH_NOTES: u64 = 64;

pub use words::{
    ManagerAction, ManagerConfig, ManagerEvent, Note, Record, Refused, Scrub, SweepState, Wish,
};

/// See the module comment.
#[derive(Clone, Debug)]
pub struct Manager {
    cfg: ManagerConfig,
    view: View,
    events: u64,
    acks: Vec<u32>,
    durable_epoch: u32,
    half_epoch: u32,
    /// The first record brings all members to the event count found. If it had a new one, a power cut could leave some
    /// members two behind that have never failed: one behind from the power cut before, and one from this.
    level: bool,
    batch: Option<Batch>,
    /// What the members say now.
    disk_dirty: bool,
    disk_resync: u64,
    /// In bands: how far the members being filled are said to be whole.
    disk_recovery: u64,
    want_dirty: bool,
    /// All queues are quiet: the record after the next says clean.
    all_quiet: bool,
    /// A record begun while all were quiet is durable on all its targets, and with it all data written before.
    all_durable: bool,
    round: Round,
    rounds: u32,
    last_round_ms: u64,

    /// Bands whose parity is in sync.
    swept: u64,
    repaired: u64,
    window: Option<Window>,
    stuck: bool,
    paused: bool,
    next_window_ms: u64,
    /// The sweep gets one part in 2 to this of the time.
    share: u32,
    scrub: Option<Scrubbing>,
    /// Slots whose members wait to be filled.
    joining: SlotSet,
    /// Slots of the members that came last, and the epoch of the view that brought them.
    joined: SlotSet,
    join_epoch: u32,
    fill_acks: Vec<u32>,
    /// Bands below this one are known by all queues as in the fill zone or below it.
    granted: u64,
    /// Bands that are durable on the members being filled.
    flushed: u64,
    /// Whole, but the superblocks do not all say so yet.
    finishing: SlotSet,
    finish_durable: bool,
    /// [`View::fill`] of the view that brought it.
    finish_fill: u32,
    last_checkpoint_ms: u64,

    stopping: bool,
    stopped: bool,
    bitmap: Option<IntentManager>,
    #[cfg(feature = "planted-bugs")]
    bug: Option<super::queue::Bug>,
}

impl Manager {
    /// Takes over the state found on the members. Call [`Manager::start`] next.
    pub fn new(cfg: ManagerConfig) -> Manager {
        let parity = cfg.parities > 0;
        let band = |sectors: u64| (sectors / u64::from(cfg.band_rows.max(1))).min(cfg.bands);
        let bands_done = if !parity || cfg.resync_offset == u64::MAX {
            cfg.bands
        } else {
            band(cfg.resync_offset)
        };
        let filled = if cfg.filling.is_empty() {
            0
        } else {
            band(cfg.recovery)
        };
        let failed = cfg.missing.union(&cfg.filling).len() > usize::from(cfg.parities);
        let epoch = u32::from(cfg.unrecorded && !cfg.read_only && parity);
        Manager {
            view: View {
                epoch,
                recorded: 0,
                missing: cfg.missing,
                failed,
                writable: !parity && !cfg.read_only,
                read_only: cfg.read_only,
                synced: if bands_done == cfg.bands {
                    u64::MAX
                } else {
                    bands_done
                },
                filling: cfg.filling,
                filled,
                fill_end: filled,
                fill: 0,
            },
            events: cfg.events,
            acks: vec![epoch; usize::from(cfg.queues)],
            durable_epoch: 0,
            half_epoch: 0,
            level: epoch > 0,
            batch: None,
            disk_dirty: parity && cfg.resync_offset == 0 && !cfg.unrecorded,
            disk_resync: cfg.resync_offset,
            disk_recovery: filled,
            want_dirty: false,
            all_quiet: false,
            all_durable: false,
            round: Round::None,
            rounds: 0,
            last_round_ms: 0,
            swept: bands_done,
            repaired: 0,
            window: None,
            stuck: false,
            paused: false,
            next_window_ms: 0,
            share: 0,
            scrub: None,
            joining: SlotSet::EMPTY,
            joined: SlotSet::EMPTY,
            join_epoch: 0,
            fill_acks: vec![0; usize::from(cfg.queues)],
            granted: filled,
            flushed: filled,
            finishing: SlotSet::EMPTY,
            finish_durable: false,
            finish_fill: 0,
            last_checkpoint_ms: 0,
            stopping: false,
            stopped: false,
            bitmap: None,
            #[cfg(feature = "planted-bugs")]
            bug: None,
            cfg,
        }
    }

    /// Plants a fault, so that the simulator can prove that it finds it.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, bug: Option<super::queue::Bug>) {
        self.bug = bug;
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.bug = bug;
            if bug == Some(super::queue::Bug::ForgetNeeded) {
                bitmap.all_swept();
            }
        }
        if bug == Some(super::queue::Bug::WriteWhileUneven) {
            self.disk_dirty = self.cfg.parities > 0 && self.cfg.resync_offset == 0;
        }
    }

    #[cfg(feature = "planted-bugs")]
    fn bug(&self, bug: super::queue::Bug) -> bool {
        self.bug == Some(bug)
    }

    /// What queues must start from.
    pub fn view(&self) -> View {
        self.view
    }

    /// Event count of the last record begun.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Bands in sync, all bands.
    pub fn progress(&self) -> (u64, u64) {
        (self.swept, self.cfg.bands)
    }

    /// The members say that writes may be in flight.
    pub fn dirty(&self) -> bool {
        self.disk_dirty
    }

    /// Whether no superblock write is in flight or due, apart from checkpoints and "clean".
    pub fn settled(&self) -> bool {
        self.batch.is_none()
            && self.view.recorded == self.view.epoch
            && self.finishing.is_empty()
            && !self.whole()
    }

    /// Begins: records members that were found missing.
    pub fn start(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        self.last_round_ms = now_ms;
        self.last_checkpoint_ms = now_ms;
        if !self.view.filling.is_empty() && !self.view.failed {
            let slots = self.view.filling;
            out.push(ManagerAction::Note(Note::RebuildStarted { slots }));
        }
        self.maintain(now_ms, out);
    }

    /// Takes one event in.
    pub fn event(&mut self, now_ms: u64, event: ManagerEvent, out: &mut Vec<ManagerAction>) {
        match event {
            ManagerEvent::Msg(msg) => self.message(now_ms, msg, out),
            ManagerEvent::Recorded { slot, ok } => self.recorded(slot, ok, out),
            ManagerEvent::BitmapDone { slot, ok } => self.bitmap_done(slot, ok, out),
            ManagerEvent::Tick => {}
            ManagerEvent::Stop => self.stopping = true,
            ManagerEvent::Join { slot, .. } => self.join(slot, out),
            ManagerEvent::Leave { slot } => self.leave(slot, out),
            ManagerEvent::Scrub { kind, first, end } => self.scrub(kind, first, end, out),
            ManagerEvent::ScrubStop => self.scrub_stop(out),
            ManagerEvent::Pause(pause) => self.paused = pause,
            ManagerEvent::Rates { floor, ceiling } => {
                (self.cfg.sweep_floor, self.cfg.sweep_ceiling) = (floor, ceiling);
            }
        }
        self.maintain(now_ms, out);
    }

    fn message(&mut self, now_ms: u64, msg: Msg, out: &mut Vec<ManagerAction>) {
        match msg {
            Msg::NeedDirty { .. } => self.need_dirty(now_ms, out),
            Msg::MemberFailed { slot, error } => {
                // As long as a queue does not know the new member, this is about the one before it. Where it is about the
                // new one, whoever told it will meet it again.
                let old = self.joined.contains(slot)
                    && self.known() < self.join_epoch
                    && error != MemberError::Removed;
                if !old {
                    self.member_failed(slot, error, out);
                }
            }
            Msg::ViewAck { queue, epoch, fill } => {
                let queue = usize::from(queue);
                self.acks[queue] = self.acks[queue].max(epoch);
                self.fill_acks[queue] = self.fill_acks[queue].max(fill);
                if self.fill_acks.iter().all(|a| *a >= self.view.fill) {
                    self.granted = self.view.fill_end;
                }
                self.check_recorded(out);
            }
            Msg::Quiet { round, quiet, .. } => self.quiet(now_ms, round, quiet, out),
            Msg::SweepDone {
                end,
                repaired,
                unreadable,
                foreground,
            } => {
                self.sweep_done(now_ms, end, repaired, unreadable, foreground, out);
            }
            Msg::Mismatch {
                band,
                lo,
                hi,
                located,
                repaired,
            } => self.mismatch(band, (lo, hi), located, repaired, out),
            Msg::NeedBit { unit } => {
                if let Some(bitmap) = &mut self.bitmap {
                    bitmap.need(unit, self.cfg.queues, out);
                }
            }
            Msg::Ended { round } => {
                if let Some(bitmap) = &mut self.bitmap {
                    bitmap.ended(round);
                }
            }
            Msg::Bits
            | Msg::Begun { .. }
            | Msg::Seg { .. }
            | Msg::SegDone { .. }
            | Msg::View(_)
            | Msg::Quiesce { .. }
            | Msg::Sweep { .. }
            | Msg::SweepAbort => unreachable!("a message for a queue"),
        }
    }

    fn publish(&mut self, out: &mut Vec<ManagerAction>) {
        // A queue that has said "quiet" takes a view that says "writable" as leave to write again: what the round has
        // found so far is void.
        let void = self.view.writable && self.round != Round::None;
        #[cfg(feature = "planted-bugs")]
        let void = void && !self.bug(super::queue::Bug::KeepRound);
        if void {
            self.round = Round::None;
        }
        for queue in 0..self.cfg.queues {
            out.push(ManagerAction::Send {
                queue,
                msg: Msg::View(self.view),
            });
        }
    }

    /// The epoch that all queues know.
    fn known(&self) -> u32 {
        self.acks.iter().copied().min().unwrap_or(u32::MAX)
    }

    /// The members that are being filled hold everything.
    fn whole(&self) -> bool {
        !self.view.filling.is_empty() && self.view.filled >= self.cfg.bands
    }

    /// Slots whose members do not hold all that they should.
    fn lost(&self) -> SlotSet {
        match self.whole() {
            true => self.view.missing,
            false => self.view.doubtful(),
        }
    }

    fn member_failed(&mut self, slot: u16, error: MemberError, out: &mut Vec<ManagerAction>) {
        if self.view.missing.contains(slot) || (self.view.failed && self.cfg.parities > 0) {
            return;
        }
        out.push(ManagerAction::Note(Note::MemberFailed { slot, error }));
        self.view.missing.insert(slot);
        self.finishing.remove(slot);
        if self.view.filling.contains(slot) {
            self.view.filling.remove(slot);
            self.view.fill += 1;
            if self.view.filling.is_empty() {
                (self.view.filled, self.view.fill_end) = (0, 0);
            }
            let mut slots = SlotSet::EMPTY;
            slots.insert(slot);
            out.push(ManagerAction::Note(Note::RebuildAborted { slots }));
        }
        self.view.epoch += 1;
        if self.lost().len() > usize::from(self.cfg.parities) && !self.view.failed {
            // The members keep saying what they said when the array was last whole enough.
            self.view.failed = true;
            out.push(ManagerAction::Note(Note::ArrayFailed));
        }
        self.abort_window(out);
        self.publish(out);
    }

    fn leave(&mut self, slot: u16, out: &mut Vec<ManagerAction>) {
        let mut lost = self.lost();
        lost.insert(slot);
        let why = if self.cfg.parities == 0 {
            Some(Refused::NoParity)
        } else if self.view.failed {
            Some(Refused::Failed)
        } else if slot >= self.cfg.members || self.view.missing.contains(slot) {
            Some(Refused::Empty)
        } else if lost.len() > usize::from(self.cfg.parities) {
            Some(Refused::Needed)
        } else {
            None
        };
        match why {
            Some(why) => refuse(Wish::Leave(slot), why, out),
            None => self.member_failed(slot, MemberError::Removed, out),
        }
    }

    /// Why no background walk can begin on this array at all.
    fn no_sweeps(&self) -> Option<Refused> {
        if self.cfg.parities == 0 {
            Some(Refused::NoParity)
        } else if self.view.failed {
            Some(Refused::Failed)
        } else if self.view.read_only {
            Some(Refused::ReadOnly)
        } else if self.stopping {
            Some(Refused::Stopping)
        } else {
            None
        }
    }

    fn join(&mut self, slot: u16, out: &mut Vec<ManagerAction>) {
        let why = if let Some(why) = self.no_sweeps() {
            Some(why)
        } else if !self.view.missing.contains(slot) || self.joining.contains(slot) {
            Some(Refused::Occupied)
        } else {
            None
        };
        match why {
            Some(why) => refuse(Wish::Join(slot), why, out),
            None => {
                self.joining.insert(slot);
            }
        }
    }

    /// What the sweep does without a member counts only for members that do not come back. Before all survivors have said
    /// twice that the member is missing, a power cut can bring it back as a fresh one.
    fn losses_recorded(&self) -> bool {
        (self.view.missing.is_empty() && self.view.filling.is_empty())
            || self.view.recorded == self.view.epoch
    }

    fn check_recorded(&mut self, out: &mut Vec<ManagerAction>) {
        let recorded = self.known().min(self.durable_epoch).min(self.view.epoch);
        if recorded > self.view.recorded {
            self.view.recorded = recorded;
            self.publish(out);
            let mut slots = self.view.missing;
            for slot in self.joining.iter() {
                slots.remove(slot);
            }
            if recorded == self.view.epoch && !self.view.failed && !slots.is_empty() {
                out.push(ManagerAction::Note(Note::SpareWanted { slots }));
            }
        }
    }

    /// Starts whatever is due: members to be filled, records, rounds, windows, the end.
    fn maintain(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.stopped {
            return;
        }
        self.maybe_join(out);
        self.maybe_skip_sweep(now_ms, out);
        self.maybe_finish_fill(out);
        self.maybe_record(now_ms, out);
        self.run_bitmap(now_ms, out);
        self.maybe_ask(now_ms, out);
        self.maybe_sweep(now_ms, out);
        if self.stopping && self.window.is_none() && self.batch.is_none() {
            let at_rest = self.cfg.parities == 0 || self.view.read_only || self.view.failed;
            let clean = self.disk_resync == self.clean_offset() && !self.must_flush();
            let told = self.finishing.is_empty() && !self.behind() && self.bitmap_at_rest();
            if at_rest || (self.all_quiet && clean && told) {
                self.stopped = true;
                out.push(ManagerAction::Stopped);
            }
        }
    }
}

fn refuse(wish: Wish, why: Refused, out: &mut Vec<ManagerAction>) {
    out.push(ManagerAction::Note(Note::Refused { wish, why }));
}
