//! The manager's thread: feeds the pure [`Manager`], has superblocks written, lets members come and go, keeps the snapshot that
//! `status` shows.
//!
//! It waits for messages of the queues, orders of the control plane and words of the superblock writers, and for none of
//! the members: each has a thread of its own for its superblock (`writer`), and engines answer when they have another
//! file. A superblock that is not written in time counts as not written. All of this is rare (clean to dirty and back,
//! members that come and go), so it may allocate.

mod bitmap;
mod orders;
mod record;
mod scrub;
mod seats;
mod watch;
mod writer;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select_biased, unbounded};
use raid_core::path::layout::Layout;
use raid_core::path::manager::{
    Manager, ManagerAction, ManagerEvent, Note, Refused, SweepState, Wish,
};
use raid_core::path::types::{Msg, SlotSet, SweepKind, View};

use super::journal::{Head, Mark};
use super::succession::synced;
use crate::array_api::{
    BitmapStatus, Change, ChangeError, Changed, MemberDevice, MemberStatus, ScrubReport,
    SweepLimits,
};
use crate::engine::{EngineMember, MemberChange, Postbox, mark_io_flusher};
use record::Flight;
use seats::{Seat, Seats, State};
use writer::Told;

/// How often to look whether the members are still there.
const LOOK: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(20);
/// How long to wait with the next spare after one was refused.
const JOIN_AGAIN: Duration = Duration::from_secs(30);
/// How long the writers may take to let go of the members at the end.
const PARTING: Duration = Duration::from_secs(5);

/// What the keeper is told besides the queues' messages.
#[derive(Debug)]
pub enum Order {
    /// No requests come any more: leave the members clean, answer, end.
    Stop(Sender<()>),
    /// Something an operator wants.
    Change {
        /// What.
        change: Change,
        /// Gets the answer.
        answer: Sender<Result<Changed, ChangeError>>,
    },
}

/// What `status` needs of the manager.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The published state.
    pub view: View,
    /// Event count.
    pub events: u64,
    /// The members say dirty.
    pub dirty: bool,
    /// The sweep under way.
    pub sweep: Option<SweepState>,
    /// Bands per second over the last seconds.
    pub rate: f64,
    /// Limits of background walks.
    pub limits: SweepLimits,
    /// The last scrubs.
    pub scrubs: Vec<ScrubReport>,
    /// The write-intent bitmap.
    pub bitmap: Option<BitmapStatus>,
    /// Every device.
    pub devices: Arc<Vec<MemberStatus>>,
}

/// What a keeper begins with.
pub struct Start {
    /// The pure part.
    pub manager: Manager,
    /// Members and spares, with the superblocks that are on them.
    pub devices: Vec<MemberDevice>,
    /// Shape of the array.
    pub layout: Layout,
    /// Limits of background walks to begin with.
    pub limits: SweepLimits,
    /// Mailboxes of the queues.
    pub queues: Vec<Postbox>,
    /// Messages of the queues.
    pub inbox: Receiver<Msg>,
    /// Orders of the control plane.
    pub orders: Receiver<Order>,
    /// Shared with `status`.
    pub snapshot: Arc<Mutex<Snapshot>>,
    /// For log lines.
    pub name: String,
    /// What a successor is told, if there may be one.
    pub head: Option<Head>,
}

type Answer = Sender<Result<Changed, ChangeError>>;

/// The thread's state. See the module comment.
pub struct Keeper {
    manager: Manager,
    seats: Seats,
    layout: Layout,
    limits: SweepLimits,
    /// The last scrubs, the newest last.
    scrubs: Vec<ScrubReport>,
    /// What the manager said to the last order.
    refused: Option<Refused>,
    queues: Vec<Postbox>,
    inbox: Receiver<Msg>,
    orders: Receiver<Order>,
    snapshot: Arc<Mutex<Snapshot>>,
    name: String,
    head: Option<Head>,
    begun: Instant,
    actions: Vec<ManagerAction>,
    flight: Option<Flight>,
    bitmap_flight: Option<bitmap::BitmapFlight>,
    /// Of superblock writes and changes of files.
    ids: u64,
    told: Receiver<Told>,
    /// Where engines answer to changes of files.
    done: Sender<u64>,
    tickets: Receiver<u64>,
    devices: Arc<Vec<MemberStatus>>,
    /// Sent once the snapshot shows what they are about.
    answers: Vec<(Answer, Result<Changed, ChangeError>)>,
    /// Devices that are being removed.
    parting: Vec<orders::Parting>,
    waiting: Option<Sender<()>>,
    /// When a spare was refused last.
    pause_joins: Option<Instant>,
    stopped: bool,
}

/// A snapshot of a manager that has just been made.
pub fn snapshot(manager: &Manager) -> Snapshot {
    Snapshot {
        view: manager.view(),
        events: manager.events(),
        dirty: manager.dirty(),
        sweep: manager.sweep(),
        bitmap: manager.bitmap().map(|bitmap| {
            let (dirty, chunks) = bitmap.dirty();
            BitmapStatus {
                chunk_bytes: bitmap.chunk_bytes(),
                chunks,
                dirty,
            }
        }),
        rate: 0.0,
        limits: SweepLimits::default(),
        scrubs: Vec::new(),
        devices: Arc::default(),
    }
}

impl Keeper {
    /// Starts the writers.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(start: Start) -> io::Result<Keeper> {
        let (to_keeper, told) = unbounded();
        let (done, tickets) = unbounded();
        let filling = start.manager.view().filling;
        let seats = Seats::new(start.devices, &filling, to_keeper)?;
        let mut keeper = Keeper {
            manager: start.manager,
            seats,
            layout: start.layout,
            limits: start.limits,
            scrubs: Vec::new(),
            refused: None,
            queues: start.queues,
            inbox: start.inbox,
            orders: start.orders,
            snapshot: start.snapshot,
            name: start.name,
            head: start.head,
            begun: Instant::now(),
            actions: Vec::new(),
            flight: None,
            bitmap_flight: None,
            ids: 0,
            told,
            done,
            tickets,
            devices: Arc::default(),
            answers: Vec::new(),
            parting: Vec::new(),
            waiting: None,
            pause_joins: None,
            stopped: false,
        };
        keeper.publish(0.0);
        Ok(keeper)
    }

    /// Serves until it is told to stop.
    pub fn run(mut self) {
        mark_io_flusher();
        let mut rate = Rate::default();
        let mut looked = self.begun;
        self.manager.start(0, &mut self.actions);
        loop {
            self.carry_out();
            self.follow();
            self.carry_out();
            self.see_off();
            rate.update(self.manager.sweep());
            if let Some(head) = &self.head {
                head.synced(synced(&self.manager, self.layout.rows));
            }
            self.publish(rate.value);
            for (answer, result) in self.answers.drain(..) {
                // Whoever asked may have gone.
                let _ = answer.send(result);
            }
            if self.stopped {
                break;
            }
            select_biased! {
                recv(self.inbox) -> msg => match msg {
                    Ok(msg) => self.event(ManagerEvent::Msg(msg)),
                    // All engines are gone without a stop: nothing is left to keep.
                    Err(_) => break,
                },
                recv(self.told) -> told => if let Ok(told) = told { self.hear(told) },
                recv(self.tickets) -> ticket => if let Ok(ticket) = ticket { self.changed(ticket) },
                recv(self.orders) -> order => match order {
                    Ok(order) => self.obey(order),
                    Err(_) => self.orders = crossbeam_channel::never(),
                },
                default(TICK) => self.event(ManagerEvent::Tick),
            }
            self.overdue();
            self.overdue_bitmap();
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look();
            }
        }
        self.part();
    }

    /// Waits for the writers to let go of the devices, as long as they can be expected to.
    fn part(self) {
        let Keeper {
            seats,
            told,
            waiting,
            parting,
            ..
        } = self;
        let mut left = seats.list.len() + parting.iter().filter(|p| p.closing).count();
        drop(seats);
        let until = Instant::now() + PARTING;
        while left > 0 {
            match told.recv_deadline(until) {
                Ok(Told::Closed { .. }) => left -= 1,
                Ok(Told::Written { .. }) => {}
                Err(_) => break,
            }
        }
        if let Some(answer) = waiting {
            let _ = answer.send(());
        }
    }

    /// How many members the array can do without.
    fn parities(&self) -> u16 {
        self.layout.geometry.parities()
    }

    fn event(&mut self, event: ManagerEvent) {
        let now = self.begun.elapsed().as_millis() as u64;
        self.manager.event(now, event, &mut self.actions);
    }

    fn carry_out(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    ManagerAction::Send { queue, msg } => {
                        self.queues[usize::from(queue)].send(msg);
                    }
                    ManagerAction::Record(record) => self.record(&record),
                    ManagerAction::Bitmap(write) => self.write_bitmap(&write),
                    ManagerAction::Note(note) => self.note(note),
                    ManagerAction::Stopped => self.stopped = true,
                }
            }
        }
    }

    fn publish(&mut self, rate: f64) {
        let rows = self.seats.rows(self.layout.members);
        if rows != *self.devices {
            self.devices = Arc::new(rows);
        }
        self.scrub_progress();
        let mut shot = snapshot(&self.manager);
        shot.rate = rate;
        shot.limits = self.limits;
        shot.scrubs.clone_from(&self.scrubs);
        shot.devices = self.devices.clone();
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = shot;
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Written { id, ref result, .. } if self.bitmap_written(id, result) => {}
            Told::Written { number, id, result } => self.written(number, id, result),
            Told::Closed { number } => self.closed(number),
        }
    }

    /// Gives every engine another file for a slot, or takes it away. The answers carry the ticket that is returned.
    fn change_files(&mut self, slot: u16, member: Option<&EngineMember>) -> u64 {
        self.ids += 1;
        for queue in &self.queues {
            queue.change(MemberChange {
                slot,
                member: member.cloned(),
                ticket: self.ids,
                done: self.done.clone(),
            });
        }
        self.ids
    }

    /// An engine has carried a change out.
    fn changed(&mut self, ticket: u64) {
        let mut list = self.seats.list.iter_mut();
        let Some(seat) = list.find(|seat| seat.ticket == ticket) else {
            return;
        };
        match &mut seat.state {
            State::Faulty {
                engines: Some(left),
                ..
            } => *left = left.saturating_sub(1),
            State::Joining {
                slot,
                from,
                waits,
                asked,
            } => {
                *waits = waits.saturating_sub(1);
                if *waits == 0 && !*asked {
                    *asked = true;
                    let (slot, from) = (*slot, *from);
                    self.event(ManagerEvent::Join { slot, from });
                }
            }
            _ => {}
        }
    }

    /// Brings the devices' states up to date with the manager's, takes files of failed members from the engines, and gives
    /// missing slots to spares.
    fn follow(&mut self) {
        let view = self.manager.view();
        self.seats.follow(&view);
        let changes = self.parities() > 0 && !view.failed && !view.read_only;
        if !changes || view.recorded != view.epoch || self.waiting.is_some() {
            return;
        }
        let queues = self.queues.len() as u16;
        for at in 0..self.seats.list.len() {
            let State::Faulty {
                slot: Some(slot),
                engines: None,
            } = self.seats.list[at].state
            else {
                continue;
            };
            let ticket = self.change_files(slot, None);
            let seat = &mut self.seats.list[at];
            seat.ticket = ticket;
            seat.state = State::Faulty {
                slot: Some(slot),
                engines: Some(queues),
            };
        }
        if self
            .pause_joins
            .is_some_and(|since| since.elapsed() < JOIN_AGAIN)
        {
            return;
        }
        for slot in view.missing.iter() {
            if self.seats.by_slot(slot).is_some() {
                continue;
            }
            let Some(at) = self.seats.next_spare() else {
                return;
            };
            let device = &self.seats.list[at].device;
            let member = EngineMember {
                file: device.file.clone(),
                data_offset: device.superblock.data_offset * 512,
            };
            tracing::info!(array = %self.name, slot, member = %device.path.display(), "a spare takes the place of a missing member");
            let ticket = self.change_files(slot, Some(&member));
            let seat = &mut self.seats.list[at];
            seat.ticket = ticket;
            seat.state = State::Joining {
                slot,
                from: 0,
                waits: queues,
                asked: false,
            };
        }
    }

    fn path_of(&self, slot: u16) -> String {
        let was =
            |seat: &&Seat| matches!(seat.state, State::Faulty { slot: Some(s), .. } if s == slot);
        let seat = self.seats.by_slot(slot);
        let seat = seat.or_else(|| self.seats.list.iter().rfind(was));
        seat.map_or_else(|| "?".into(), |s| s.device.path.display().to_string())
    }

    fn paths_of(&self, slots: &SlotSet) -> String {
        let paths: Vec<String> = slots.iter().map(|slot| self.path_of(slot)).collect();
        paths.join(", ")
    }

    /// The manager does not take a spare: it is one again, and the engines give its file back.
    fn not_joined(&mut self, slot: u16, why: Refused) {
        let joining =
            |seat: &&mut Seat| matches!(seat.state, State::Joining { slot: s, .. } if s == slot);
        let Some(seat) = self.seats.list.iter_mut().find(joining) else {
            return;
        };
        tracing::warn!(array = %self.name, slot, member = %seat.device.path.display(), ?why, "the spare is not taken");
        seat.state = State::Spare;
        seat.ticket = 0;
        self.pause_joins = Some(Instant::now());
        self.change_files(slot, None);
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::MemberFailed { slot, error } => {
                tracing::error!(array = %self.name, slot, member = %self.path_of(slot), ?error, "member failed; the array is degraded");
            }
            Note::ArrayFailed => {
                tracing::error!(array = %self.name, "too many members are lost; the array has failed")
            }
            Note::InSync { repaired } => {
                tracing::info!(array = %self.name, repaired_bands = repaired, "parity is in sync");
            }
            Note::SweepStuck { band } => {
                tracing::error!(array = %self.name, band, "resync met sectors that no member can give back; it has stopped");
            }
            Note::RebuildStarted { slots } => {
                tracing::info!(array = %self.name, members = %self.paths_of(&slots), "rebuild");
            }
            Note::RebuildFinished { slots } => {
                tracing::info!(array = %self.name, members = %self.paths_of(&slots), "rebuilt");
            }
            Note::RebuildAborted { slots } => {
                tracing::warn!(array = %self.name, members = %self.paths_of(&slots), "the rebuild has ended before its time");
            }
            Note::Refused {
                wish: Wish::Join(slot),
                why,
            } => self.not_joined(slot, why),
            Note::SpareWanted { slots } => {
                if self.seats.next_spare().is_none() {
                    let slots: Vec<u16> = slots.iter().collect();
                    tracing::warn!(array = %self.name, ?slots, "no spare is there: raidctl add {} DEVICE", self.name);
                }
            }
            Note::Refused { why, .. } => self.refused = Some(why),
            Note::Mismatch { .. } | Note::ScrubFinished { .. } => self.scrub_note(note),
        }
    }
}

/// Bands per second of one sweep, over windows of at least two seconds.
#[derive(Default)]
struct Rate {
    since: Option<(Instant, SweepKind, u64)>,
    value: f64,
}

impl Rate {
    fn update(&mut self, sweep: Option<SweepState>) {
        let Some(sweep) = sweep else {
            *self = Rate::default();
            return;
        };
        let now = (Instant::now(), sweep.kind, sweep.done);
        let Some((begun, kind, from)) = self.since.replace(now) else {
            return;
        };
        let seconds = begun.elapsed().as_secs_f64();
        if kind != sweep.kind || sweep.done < from {
            self.value = 0.0;
        } else if seconds >= 2.0 || (self.value == 0.0 && seconds > 0.2) {
            self.value = (sweep.done - from) as f64 / seconds;
        } else {
            self.since = Some((begun, kind, from));
        }
    }
}
