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

use super::intent_manager::IntentManager;
use super::types::{MemberError, Msg, SlotSet, SweepKind, View};

mod bitmap;
mod words;

/// So many [`Note::Mismatch`] are sent for one scrub; the rest is only counted.
pub const MISMATCH_NOTES: u64 = 64;

pub use words::{
    ManagerAction, ManagerConfig, ManagerEvent, Note, Record, Refused, Scrub, SweepState, Wish,
};

#[derive(Clone, Copy, Debug)]
struct Batch {
    record: Record,
    pending: SlotSet,
    failed: SlotSet,
    epoch: u32,
    /// An earlier record already named these missing members.
    confirms: bool,
    /// All queues were quiet when it began.
    quiet: bool,
    /// It repeats the event count found at start, see [`Manager::level`].
    level: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    None,
    Asked { round: u32, quiet: u16 },
}

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
    want_dirty: bool,
    /// All queues are quiet: the record after the next says clean.
    all_quiet: bool,
    /// A record begun while all were quiet is durable on all its targets, and with it all data written before.
    all_durable: bool,
    round: Round,
    rounds: u32,
    last_round_ms: u64,
    swept: u64,
    repaired: u64,
    window: Option<u64>,
    stuck: bool,
    next_window_ms: u64,
    window_started_ms: u64,
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
        let missing = cfg.missing.len();
        let bands_done = if !parity || cfg.resync_offset == u64::MAX {
            cfg.bands
        } else {
            (cfg.resync_offset / u64::from(cfg.band_rows)).min(cfg.bands)
        };
        let failed = missing > usize::from(cfg.parities);
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
                ..View::default()
            },
            events: cfg.events,
            acks: vec![epoch; usize::from(cfg.queues)],
            durable_epoch: 0,
            half_epoch: 0,
            level: epoch > 0,
            batch: None,
            disk_dirty: parity && cfg.resync_offset == 0 && !cfg.unrecorded,
            disk_resync: cfg.resync_offset,
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
            next_window_ms: 0,
            window_started_ms: 0,
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

    /// The sweep under way or due.
    pub fn sweep(&self) -> Option<SweepState> {
        let (done, total) = self.resync_progress();
        self.sweeping().then_some(SweepState {
            kind: SweepKind::Resync,
            slots: SlotSet::EMPTY,
            done,
            total,
            mismatches: 0,
            repaired: self.repaired,
            unreadable: 0,
            paused: false,
        })
    }

    /// A sweep is under way or due.
    pub fn sweeping(&self) -> bool {
        self.swept < self.cfg.bands && self.may_sweep()
    }

    /// The members say that writes may be in flight.
    pub fn dirty(&self) -> bool {
        self.disk_dirty
    }

    /// Whether no superblock write is in flight or due.
    pub fn settled(&self) -> bool {
        self.batch.is_none() && self.view.recorded == self.view.epoch
    }

    /// Begins: records members that were found missing.
    pub fn start(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        self.last_round_ms = now_ms;
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
            ManagerEvent::Join { slot, .. } => refuse(Wish::Join(slot), out),
            ManagerEvent::Leave { slot } => refuse(Wish::Leave(slot), out),
            ManagerEvent::Scrub { .. } => refuse(Wish::Scrub, out),
            ManagerEvent::ScrubStop | ManagerEvent::Pause(_) => {}
            ManagerEvent::Rates { floor, ceiling } => {
                (self.cfg.sweep_floor, self.cfg.sweep_ceiling) = (floor, ceiling);
            }
        }
        self.maintain(now_ms, out);
    }

    fn message(&mut self, now_ms: u64, msg: Msg, out: &mut Vec<ManagerAction>) {
        match msg {
            Msg::NeedDirty { .. } => {
                self.want_dirty = true;
                self.all_quiet = false;
                self.all_durable = false;
                if self.round != Round::None {
                    self.round = Round::None;
                    self.last_round_ms = now_ms;
                }
                if self.disk_dirty && !self.cleaning() && self.bitmap_level() {
                    self.view.writable = true;
                    self.want_dirty = false;
                    self.publish(out);
                }
            }
            Msg::MemberFailed { slot, error } => self.member_failed(slot, error, out),
            Msg::ViewAck { queue, epoch, .. } => {
                let ack = &mut self.acks[usize::from(queue)];
                *ack = (*ack).max(epoch);
                self.check_recorded(out);
            }
            Msg::Quiet { round, quiet, .. } => {
                let Round::Asked {
                    round: asked,
                    quiet: so_far,
                } = self.round
                else {
                    return;
                };
                if asked != round {
                    return;
                }
                if !quiet {
                    self.round = Round::None;
                    self.last_round_ms = now_ms;
                    // Those that have stopped writing may go on.
                    self.publish(out);
                } else if so_far + 1 == self.cfg.queues {
                    self.round = Round::None;
                    self.last_round_ms = now_ms;
                    self.view.writable = false;
                    self.all_quiet = true;
                } else {
                    self.round = Round::Asked {
                        round,
                        quiet: so_far + 1,
                    };
                }
            }
            Msg::SweepDone {
                end,
                repaired,
                unreadable,
                foreground,
            } => {
                self.sweep_done(now_ms, end, repaired, unreadable, foreground, out);
            }
            Msg::Mismatch { .. } => {}
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

    fn member_failed(&mut self, slot: u16, error: MemberError, out: &mut Vec<ManagerAction>) {
        if self.view.missing.contains(slot) || (self.view.failed && self.cfg.parities > 0) {
            return;
        }
        out.push(ManagerAction::Note(Note::MemberFailed { slot, error }));
        self.view.missing.insert(slot);
        self.view.epoch += 1;
        if self.view.missing.len() > usize::from(self.cfg.parities) && !self.view.failed {
            // The members keep saying what they said when the array was last whole enough.
            self.view.failed = true;
            out.push(ManagerAction::Note(Note::ArrayFailed));
        }
        if self.window.is_some() {
            out.push(ManagerAction::Send {
                queue: 0,
                msg: Msg::SweepAbort,
            });
        }
        self.publish(out);
    }

    fn recorded(&mut self, slot: u16, ok: bool, out: &mut Vec<ManagerAction>) {
        let batch = self.batch.as_mut().expect("a record is in flight");
        batch.pending.remove(slot);
        if !ok {
            batch.failed.insert(slot);
        }
        if !batch.pending.is_empty() {
            return;
        }
        let batch = self.batch.take().expect("checked above");
        for slot in batch.failed.iter() {
            self.member_failed(slot, MemberError::Gone, out);
        }
        if batch.failed == batch.record.targets {
            return; // nothing was written anywhere
        }
        self.disk_dirty = batch.record.resync_offset == 0 && self.cfg.parities > 0;
        self.disk_resync = batch.record.resync_offset;
        if !batch.level {
            self.half_epoch = self.half_epoch.max(batch.epoch);
        }
        self.all_durable |= batch.quiet && batch.failed.is_empty() && self.all_quiet;
        if batch.confirms {
            self.durable_epoch = self.durable_epoch.max(batch.epoch);
        }
        if self.disk_dirty && self.want_dirty && !self.view.failed {
            self.want_dirty = false;
            self.view.writable = true;
            self.publish(out);
        }
        self.check_recorded(out);
    }

    fn check_recorded(&mut self, out: &mut Vec<ManagerAction>) {
        let known = self.acks.iter().copied().min().unwrap_or(u32::MAX);
        let recorded = known.min(self.durable_epoch).min(self.view.epoch);
        if recorded > self.view.recorded {
            self.view.recorded = recorded;
            self.publish(out);
        }
    }

    /// A record that says clean is in flight.
    fn cleaning(&self) -> bool {
        self.batch.is_some_and(|b| b.record.resync_offset != 0)
    }

    /// Data may have been written that no record has flushed. Where nothing is in sync yet, "clean" looks like "dirty".
    fn must_flush(&self) -> bool {
        self.disk_dirty && !self.all_durable
    }

    /// What the sweep does without a member counts only for members that do not come back. Before all survivors have said
    /// twice that the member is missing, a power cut can bring it back as a fresh one.
    fn losses_recorded(&self) -> bool {
        self.view.missing.is_empty() || self.view.recorded == self.view.epoch
    }

    fn may_sweep(&self) -> bool {
        self.cfg.parities > 0
            && self.view.missing.len() < usize::from(self.cfg.parities)
            && self.losses_recorded()
            && !self.view.read_only
            && !self.stuck
            && !self.stopping
    }

    /// The resync_offset of an array without writes.
    fn clean_offset(&self) -> u64 {
        if self.cfg.parities == 0 || self.swept >= self.cfg.bands {
            u64::MAX
        } else {
            self.swept * u64::from(self.cfg.band_rows)
        }
    }

    /// With as many members missing as the level tolerates there is no redundancy left that could disagree: parity *is* the
    /// missing data.
    fn maybe_skip_sweep(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.cfg.parities > 0
            && self.view.missing.len() == usize::from(self.cfg.parities)
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

    /// Starts whatever is due: records, rounds, windows, the end.
    fn maintain(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.stopped {
            return;
        }
        self.maybe_skip_sweep(now_ms, out);
        self.maybe_record(out);
        self.run_bitmap(now_ms, out);
        self.maybe_ask(now_ms, out);
        self.maybe_sweep(now_ms, out);
        if self.stopping && self.window.is_none() && self.batch.is_none() {
            let at_rest = self.cfg.parities == 0 || self.view.read_only || self.view.failed;
            let clean = self.disk_resync == self.clean_offset() && !self.must_flush();
            if at_rest || (self.all_quiet && clean && self.bitmap_at_rest()) {
                self.stopped = true;
                out.push(ManagerAction::Stopped);
            }
        }
    }

    fn maybe_record(&mut self, out: &mut Vec<ManagerAction>) {
        if self.batch.is_some() || self.view.read_only || self.view.failed || self.cfg.parities == 0
        {
            return;
        }
        let membership = self.durable_epoch < self.view.epoch;
        let dirty = self.want_dirty && !(self.disk_dirty && self.bitmap_level());
        let finish = self.stopping || self.swept >= self.cfg.bands;
        let due = self.disk_resync != self.clean_offset() || (self.stopping && self.must_flush());
        let clean = self.all_quiet && !self.want_dirty && finish && due;
        if !(membership || dirty || clean) {
            return;
        }
        // "Clean" on one member must not be durable while another still has data in its volatile cache, or a power cut
        // leaves an array that is clean by its freshest superblock and has parity that does not match. So one more
        // record goes first, which says what the members said already and flushes them all.
        if !self.bitmap_ahead() {
            return;
        }
        let level = std::mem::take(&mut self.level);
        let flushed = self.all_durable;
        #[cfg(feature = "planted-bugs")]
        let flushed = flushed || self.bug(super::queue::Bug::CleanUnflushed);
        let resync_offset = if level {
            self.disk_resync
        } else if clean && flushed {
            self.clean_offset()
        } else if dirty || self.disk_dirty {
            0
        } else {
            self.disk_resync
        };
        let mut targets = SlotSet::EMPTY;
        for slot in (0..self.cfg.members).filter(|s| !self.view.missing.contains(*s)) {
            targets.insert(slot);
        }
        self.events += u64::from(!level);
        let record = Record {
            events: self.events,
            resync_offset,
            missing: self.view.missing,
            targets,
            filling: self.view.filling,
            recovery: 0,
        };
        let confirms = self.half_epoch == self.view.epoch;
        #[cfg(feature = "planted-bugs")]
        let confirms = confirms || self.bug(super::queue::Bug::RecordOnce);
        self.batch = Some(Batch {
            record,
            pending: targets,
            failed: SlotSet::EMPTY,
            epoch: self.view.epoch,
            confirms,
            quiet: self.all_quiet,
            level,
        });
        out.push(ManagerAction::Record(record));
    }

    fn maybe_ask(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.cfg.parities == 0 || self.view.read_only || self.view.failed {
            return;
        }
        let idle_due = now_ms >= self.last_round_ms + self.cfg.safe_mode_delay_ms;
        let due =
            self.disk_resync != self.clean_offset() && self.swept >= self.cfg.bands && idle_due;
        let due = due || (self.stopping && self.window.is_none());
        if due
            && self.round == Round::None
            && !self.all_quiet
            && self.batch.is_none()
            && !self.want_dirty
        {
            self.rounds += 1;
            self.round = Round::Asked {
                round: self.rounds,
                quiet: 0,
            };
            for queue in 0..self.cfg.queues {
                out.push(ManagerAction::Send {
                    queue,
                    msg: Msg::Quiesce { round: self.rounds },
                });
            }
        }
    }

    fn maybe_sweep(&mut self, now_ms: u64, out: &mut Vec<ManagerAction>) {
        if self.window.is_some() {
            if self.stopping {
                out.push(ManagerAction::Send {
                    queue: 0,
                    msg: Msg::SweepAbort,
                });
            }
            return;
        }
        if !self.sweeping() || now_ms < self.next_window_ms {
            return;
        }
        let mut end = (self.swept + self.cfg.window).min(self.cfg.bands);
        let present = self.facts().present;
        if let Some(bitmap) = &mut self.bitmap {
            // A sweep writes, so the members agree on the bits first.
            if !bitmap.ahead(self.events, &present) {
                return;
            }
            // Bands that the bitmap does not name are in sync.
            let Some(needed) = bitmap.next_needed(self.swept) else {
                return self.all_swept(now_ms, out);
            };
            self.swept = needed.start;
            end = (needed.start + self.cfg.window).min(needed.end);
        }
        self.window = Some(self.swept);
        self.window_started_ms = now_ms;
        out.push(ManagerAction::Send {
            queue: 0,
            msg: Msg::Sweep {
                kind: SweepKind::Resync,
                first: self.swept,
                end,
            },
        });
    }

    fn sweep_done(
        &mut self,
        now_ms: u64,
        end: u64,
        repaired: u64,
        unreadable: u64,
        foreground: u64,
        out: &mut Vec<ManagerAction>,
    ) {
        let first = self.window.take().expect("a window is being swept");
        self.repaired += repaired;
        if unreadable > 0 {
            self.stuck = true;
            out.push(ManagerAction::Note(Note::SweepStuck { band: first }));
            return;
        }
        if end <= first {
            return;
        }
        if end >= self.cfg.bands {
            return self.all_swept(now_ms, out);
        }
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.swept(first, end);
        }
        self.swept = end;
        self.view.synced = end;
        self.publish(out);
        let bytes = (end - first) * u64::from(self.cfg.band_rows) * 512;
        let rate = match self.cfg.sweep_ceiling {
            _ if foreground > 0 => Some(self.cfg.sweep_floor.max(1)),
            ceiling => ceiling,
        };
        if let Some(rate) = rate {
            self.next_window_ms = self.window_started_ms + bytes * 1000 / rate;
        }
    }
}

fn refuse(wish: Wish, out: &mut Vec<ManagerAction>) {
    let why = Refused::Unavailable;
    out.push(ManagerAction::Note(Note::Refused { wish, why }));
}
