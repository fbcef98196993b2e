//! The manager's thread: feeds the pure [`Manager`], writes superblocks, keeps the snapshot that `status` shows.
//!
//! Superblocks go to all present members at once, each in a thread of its own, and count as written after the member's
//! cache is flushed. This is rare (clean to dirty and back, a lost member), so it may allocate.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use nix::sys::stat;
use raid_core::path::manager::{Manager, ManagerAction, ManagerEvent, Note, Record};
use raid_core::path::types::{MemberError, Msg, SlotSet, View};
use raid_core::superblock::{SlotRole, Superblock};

use crate::array_api::MemberDevice;
use crate::device::aligned;
use crate::engine::Postbox;

/// How often to look whether the members are still there.
const LOOK: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(20);

/// What the keeper is told besides the queues' messages.
#[derive(Debug)]
pub enum Order {
    /// No requests come any more: leave the members clean, answer, end.
    Stop(Sender<()>),
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
    /// A sweep is under way.
    pub sweeping: bool,
    /// Bands in sync, of all.
    pub progress: (u64, u64),
    /// Bands per second over the last seconds.
    pub rate: f64,
}

/// Everything the keeper owns.
pub struct Keeper {
    /// The pure part.
    pub manager: Manager,
    /// Present members by slot.
    pub members: Vec<Option<MemberDevice>>,
    /// Their superblocks, as last written.
    pub superblocks: Vec<Option<Superblock>>,
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
}

/// A snapshot of a manager that has just been made.
pub fn snapshot(manager: &Manager) -> Snapshot {
    Snapshot {
        view: manager.view(),
        events: manager.events(),
        dirty: manager.dirty(),
        sweeping: manager.sweeping(),
        progress: manager.progress(),
        rate: 0.0,
    }
}

impl Keeper {
    /// Serves until it is told to stop.
    pub fn run(mut self) {
        let begun = Instant::now();
        let now = |begun: Instant| begun.elapsed().as_millis() as u64;
        let mut actions = Vec::new();
        let mut waiting: Option<Sender<()>> = None;
        let mut rate = Rate {
            since: begun,
            from: self.manager.progress().0,
            value: 0.0,
        };
        let mut looked = begun;
        self.manager.start(0, &mut actions);
        loop {
            let mut stopped = false;
            while !actions.is_empty() {
                for action in std::mem::take(&mut actions) {
                    match action {
                        ManagerAction::Send { queue, msg } => {
                            self.queues[usize::from(queue)].send(msg)
                        }
                        ManagerAction::Record(record) => {
                            for (slot, ok) in self.record(&record) {
                                let event = ManagerEvent::Recorded { slot, ok };
                                self.manager.event(now(begun), event, &mut actions);
                            }
                        }
                        ManagerAction::Note(note) => self.note(note),
                        ManagerAction::Stopped => stopped = true,
                    }
                }
            }
            rate.update(self.manager.progress().0);
            let mut shot = snapshot(&self.manager);
            shot.rate = rate.value;
            *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = shot;
            if stopped {
                if let Some(answer) = waiting {
                    let _ = answer.send(());
                }
                return;
            }
            match self.inbox.recv_timeout(TICK) {
                Ok(msg) => self
                    .manager
                    .event(now(begun), ManagerEvent::Msg(msg), &mut actions),
                Err(RecvTimeoutError::Timeout) => {
                    self.manager
                        .event(now(begun), ManagerEvent::Tick, &mut actions);
                }
                // All engines are gone without a stop: nothing is left to keep.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                for slot in self.vanished() {
                    let error = MemberError::Gone;
                    let event = ManagerEvent::Msg(Msg::MemberFailed { slot, error });
                    self.manager.event(now(begun), event, &mut actions);
                }
            }
            if let Ok(Order::Stop(answer)) = self.orders.try_recv() {
                waiting = Some(answer);
                self.manager
                    .event(now(begun), ManagerEvent::Stop, &mut actions);
            }
        }
    }

    /// Members whose block device the kernel has taken away, though nobody has met an error there yet.
    fn vanished(&self) -> Vec<u16> {
        let missing = self.manager.view().missing;
        let present = (0u16..)
            .zip(&self.members)
            .filter(|(slot, _)| !missing.contains(*slot));
        let gone = present.filter(|(_, member)| member.as_ref().is_some_and(is_gone));
        gone.map(|(slot, _)| slot).collect()
    }

    /// Writes the superblocks of a record; says which members took theirs.
    fn record(&mut self, record: &Record) -> Vec<(u16, bool)> {
        let seconds = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let targets: Vec<u16> = record.targets.iter().collect();
        for slot in &targets {
            if let Some(block) = &mut self.superblocks[usize::from(*slot)] {
                block.events = record.events;
                block.resync_offset = record.resync_offset;
                block.utime = seconds & ((1 << 40) - 1);
                drop_missing(block, &record.missing);
            }
        }
        let this = &*self;
        std::thread::scope(|scope| {
            let writers: Vec<_> = targets
                .iter()
                .map(|slot| (*slot, scope.spawn(move || this.write_superblock(*slot))))
                .collect();
            writers
                .into_iter()
                .map(|(slot, w)| (slot, w.join().unwrap_or(false)))
                .collect()
        })
    }

    fn write_superblock(&self, slot: u16) -> bool {
        let index = usize::from(slot);
        let (Some(member), Some(block)) = (&self.members[index], &self.superblocks[index]) else {
            return false;
        };
        let mut bytes = block.encode();
        bytes.resize(
            bytes.len().next_multiple_of(member.logical_block as usize),
            0,
        );
        let done = aligned::write(&member.file, block.super_offset * 512, &bytes)
            .and_then(|()| member.file.sync_data());
        if let Err(error) = &done {
            tracing::error!(array = %self.name, member = %member.path.display(), %error, "superblock not written");
        }
        done.is_ok()
    }

    fn note(&self, note: Note) {
        let path = |slot: u16| {
            self.members[usize::from(slot)]
                .as_ref()
                .map_or_else(|| "?".into(), |m| m.path.display().to_string())
        };
        match note {
            Note::MemberFailed { slot, error } => {
                tracing::error!(array = %self.name, slot, member = %path(slot), ?error, "member failed; the array is degraded");
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
            other => tracing::info!(array = %self.name, note = ?other, "manager"),
        }
    }
}

/// Whether a member's block device has left the system. A member that is no block device cannot leave.
fn is_gone(member: &MemberDevice) -> bool {
    let Ok(meta) = member.file.metadata() else {
        return true;
    };
    if !meta.file_type().is_block_device() {
        return false;
    }
    let (major, minor) = (stat::major(meta.rdev()), stat::minor(meta.rdev()));
    Path::new("/sys").join("dev/block").is_dir()
        && !Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists()
}

/// Members that are out keep their number but lose their role.
fn drop_missing(block: &mut Superblock, missing: &SlotSet) {
    for number in 0..block.roles.len() as u32 {
        if let SlotRole::Slot(slot) = block.role_of(number)
            && slot < 256
            && missing.contains(slot)
        {
            block.set_role(number, SlotRole::Faulty);
        }
    }
}

/// Bands per second, over windows of at least two seconds.
struct Rate {
    since: Instant,
    from: u64,
    value: f64,
}

impl Rate {
    fn update(&mut self, done: u64) {
        let seconds = self.since.elapsed().as_secs_f64();
        if seconds >= 2.0 || (self.value == 0.0 && seconds > 0.2) {
            self.value = done.saturating_sub(self.from) as f64 / seconds;
            self.since = Instant::now();
            self.from = done;
        }
    }
}
