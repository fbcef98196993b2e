//! A hand-driven array for named scenarios: real queues and manager, every answer given by the test, everything that they
//! want written down as one short word each. Costs nothing worth naming.
//!
//! Words: `R2 8+4` read member 2, sectors 8..12; `W`, `F` likewise; `in`/`out` copies; `zero`; `encode`, `update`, `recover`,
//! `check`; `ok 3`, `err 3 Io` answer of tag 3; `to q1 Seg`, `to manager NeedDirty` messages; `record 5 dirty -[2]`.

use std::collections::VecDeque;
use std::sync::Arc;

use raid_core::geometry::{Geometry, Level};
use raid_core::path::layout::Layout;
use raid_core::path::manager::{Manager, ManagerAction, ManagerConfig, ManagerEvent, Record};
use raid_core::path::owners::Owners;
use raid_core::path::queue::{QueueConfig, QueueCore};
use raid_core::path::types::*;

/// See the module comment.
pub struct Rig {
    pub queues: Vec<QueueCore>,
    pub manager: Manager,
    pub records: VecDeque<Record>,
    pub now_ms: u64,
    out: Actions,
    mail: Vec<VecDeque<Msg>>,
    manager_mail: VecDeque<Msg>,
    ios: Vec<(usize, u32, String)>,
    fences: Vec<(usize, u32)>,
    words: Vec<String>,
}

/// Idle time until clean, ms.
pub const DELAY: u64 = 100;

impl Rig {
    /// `members` members with chunks of 8 sectors and 8 stripes, RAID 5 left-symmetric unless 6; `resync` as found.
    pub fn new(level: Level, members: u16, queues: u16, resync: u64, read_only: bool) -> Rig {
        Rig::deferring(level, members, queues, resync, read_only, 0)
    }

    /// In sync, dirty, writable, one queue, chunks of this many sectors.
    pub fn chunk(level: Level, members: u16, chunk: u32) -> Rig {
        let geometry = Geometry::parity(level, 2, members, chunk, 64).expect("valid");
        let mut rig = Rig::with(geometry, 1, u64::MAX, false, 0);
        rig.make_dirty();
        rig
    }

    /// As [`Rig::new`]; partial bands of large requests wait this many passes.
    pub fn deferring(
        level: Level,
        members: u16,
        queues: u16,
        resync: u64,
        read_only: bool,
        defer_passes: u64,
    ) -> Rig {
        let geometry = Geometry::parity(level, 2, members, 8, 64).expect("valid");
        Rig::with(geometry, queues, resync, read_only, defer_passes)
    }

    fn with(
        geometry: Geometry,
        queues: u16,
        resync: u64,
        read_only: bool,
        defer_passes: u64,
    ) -> Rig {
        let members = geometry.members();
        let layout = Layout::new(geometry.clone());
        let mut manager = Manager::new(ManagerConfig {
            members,
            parities: geometry.parities(),
            queues,
            bands: layout.bands(),
            band_rows: layout.rows,
            events: 10,
            resync_offset: resync,
            missing: SlotSet::EMPTY,
            unrecorded: false,
            read_only,
            safe_mode_delay_ms: DELAY,
            sweep_floor: 1 << 30,
            sweep_ceiling: None,
            window: 4,
            filling: SlotSet::EMPTY,
            recovery: 0,
            checkpoint_ms: DELAY,
        });
        let owners = Arc::new(Owners::new(64));
        let queue = |queue| {
            let cfg = QueueConfig {
                queue,
                queues,
                depth: 8,
                max_sectors: 256,
                frames: 16,
                defer_passes,
            };
            QueueCore::new(cfg, geometry.clone(), owners.clone(), manager.view())
        };
        let queues: Vec<QueueCore> = (0..queues).map(queue).collect();
        let mut out = Vec::new();
        manager.start(0, &mut out);
        let mut rig = Rig {
            mail: queues.iter().map(|_| VecDeque::new()).collect(),
            queues,
            manager,
            records: VecDeque::new(),
            now_ms: 0,
            out: Actions::default(),
            manager_mail: VecDeque::new(),
            ios: Vec::new(),
            fences: Vec::new(),
            words: Vec::new(),
        };
        rig.manager_actions(out);
        rig
    }

    /// In sync, marked dirty, writable.
    pub fn dirty(level: Level, members: u16, queues: u16) -> Rig {
        let mut rig = Rig::new(level, members, queues, u64::MAX, false);
        rig.make_dirty();
        rig
    }

    fn make_dirty(&mut self) {
        self.manager_event(ManagerEvent::Msg(Msg::NeedDirty { queue: 0 }));
        self.record();
        self.deliver();
        self.take();
    }

    /// The manager learns that a member is gone, and the queues from it.
    pub fn lose(&mut self, slot: u16) {
        let error = MemberError::Gone;
        self.manager_event(ManagerEvent::Msg(Msg::MemberFailed { slot, error }));
        self.deliver();
    }

    /// A request arrives; call [`Rig::pass`] afterwards.
    pub fn send(&mut self, q: usize, tag: u16, op: Op, lba: u64, sectors: u32) {
        let request = Request {
            op,
            lba,
            sectors,
            direct: true,
        };
        self.queues[q].event(Event::Request { tag, request }, &mut self.out);
        self.run(q, false);
    }

    /// Ends a pass of a queue.
    pub fn pass(&mut self, q: usize) {
        self.run(q, true);
    }

    /// Answers all fences.
    pub fn fences(&mut self) {
        for (q, op) in std::mem::take(&mut self.fences) {
            let event = Event::Fenced {
                op,
                ok: true,
                mismatch: false,
            };
            self.queues[q].event(event, &mut self.out);
            self.run(q, true);
        }
    }

    /// Ends the member I/O in flight whose word begins like this; says how many.
    pub fn io(&mut self, like: &str, result: Result<(), MemberError>) -> usize {
        let (mine, rest) = std::mem::take(&mut self.ios)
            .into_iter()
            .partition(|(_, _, word)| word.starts_with(like));
        self.ios = rest;
        let mine: Vec<(usize, u32, String)> = mine;
        for (q, io, _) in &mine {
            self.queues[*q].event(Event::IoDone { io: *io, result }, &mut self.out);
            self.run(*q, true);
        }
        mine.len()
    }

    /// Ends all member I/O and fences until nothing more comes.
    pub fn settle(&mut self) {
        while !self.ios.is_empty() || !self.fences.is_empty() {
            self.fences();
            self.io("", Ok(()));
            self.deliver();
        }
    }

    /// Delivers the oldest message to a queue.
    pub fn deliver_one(&mut self, q: usize) {
        let msg = self.mail[q].pop_front().expect("a message");
        self.queues[q].event(Event::Msg(msg), &mut self.out);
        self.run(q, true);
    }

    /// Delivers the oldest message to the manager.
    pub fn manager_one(&mut self) {
        let msg = self.manager_mail.pop_front().expect("a message");
        self.manager_event(ManagerEvent::Msg(msg));
    }

    /// Delivers all messages and those that follow from them.
    pub fn deliver(&mut self) {
        loop {
            if let Some(q) = (0..self.mail.len()).find(|q| !self.mail[*q].is_empty()) {
                self.deliver_one(q);
            } else if !self.manager_mail.is_empty() {
                self.manager_one();
            } else {
                return;
            }
        }
    }

    /// The record in flight becomes durable on all its targets.
    pub fn record(&mut self) {
        let record = self.records.pop_front().expect("a record in flight");
        for slot in record.targets.iter() {
            self.manager_event(ManagerEvent::Recorded { slot, ok: true });
        }
    }

    /// Something happens to the manager.
    pub fn manager_event(&mut self, event: ManagerEvent) {
        let mut out = Vec::new();
        self.manager.event(self.now_ms, event, &mut out);
        self.manager_actions(out);
    }

    /// Time passes.
    pub fn tick(&mut self, ms: u64) {
        self.now_ms += ms;
        self.manager_event(ManagerEvent::Tick);
    }

    /// The words since the last call.
    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.words)
    }

    /// The words since the last call that begin with one of these.
    pub fn only(&mut self, like: &[&str]) -> Vec<String> {
        let all = self.take();
        let wanted = |w: &String| like.iter().any(|l| w.starts_with(l));
        all.into_iter().filter(wanted).collect()
    }

    fn manager_actions(&mut self, actions: Vec<ManagerAction>) {
        for action in actions {
            match action {
                ManagerAction::Send { queue, msg } => {
                    self.mail[usize::from(queue)].push_back(msg);
                }
                ManagerAction::Record(r) => {
                    let state = match r.resync_offset {
                        u64::MAX => "clean".into(),
                        0 => "dirty".into(),
                        other => format!("@{other}"),
                    };
                    let missing: Vec<u16> = r.missing.iter().collect();
                    let without = match missing.is_empty() {
                        true => String::new(),
                        false => format!(" -{missing:?}"),
                    };
                    self.words
                        .push(format!("record {} {state}{without}", r.events));
                    self.records.push_back(r);
                }
                ManagerAction::Bitmap(_) => unreachable!("the array has no bitmap"),
                ManagerAction::Note(_) => {}
                ManagerAction::Stopped => self.words.push("stopped".into()),
            }
        }
    }

    fn run(&mut self, q: usize, end: bool) {
        if end {
            self.queues[q].end_of_pass(&mut self.out);
        }
        for action in self.out.list.drain(..) {
            let word = match action {
                Action::Member {
                    io,
                    kind,
                    slot,
                    sector,
                    sectors,
                    ..
                } => {
                    let kind = match kind {
                        IoKind::Read => 'R',
                        IoKind::Write => 'W',
                        IoKind::Flush => 'F',
                        IoKind::Discard => 'D',
                        IoKind::WriteZeroes => 'Z',
                    };
                    let word = match kind {
                        'F' => format!("F{slot}"),
                        _ => format!("{kind}{slot} {sector}+{sectors}"),
                    };
                    self.ios.push((q, io, word.clone()));
                    word
                }
                Action::CopyIn { queue, tag, .. } => format!("in q{queue} {tag}"),
                Action::CopyOut { queue, tag, .. } => format!("out q{queue} {tag}"),
                Action::Zero(_) => "zero".into(),
                Action::Compute(Job::Encode { .. }) => "encode".into(),
                Action::Compute(Job::Update { .. }) => "update".into(),
                Action::Compute(Job::Recover { .. }) => "recover".into(),
                Action::Compute(Job::Check { .. }) => "check".into(),
                Action::Locate { .. } => "locate".into(),
                Action::Fence { op } => {
                    self.fences.push((q, op));
                    continue;
                }
                Action::Complete { tag, result } => match result {
                    Ok(()) => format!("ok {tag}"),
                    Err(error) => format!("err {tag} {error:?}"),
                },
                Action::Send { to, msg } => {
                    let text = format!("{msg:?}");
                    let name = text.split([' ', '(']).next().unwrap_or_default().to_owned();
                    let word = match to {
                        Peer::Queue(other) => {
                            self.mail[usize::from(other)].push_back(msg);
                            format!("to q{other} {name}")
                        }
                        Peer::Manager => {
                            self.manager_mail.push_back(msg);
                            format!("to manager {name}")
                        }
                    };
                    if name == "ViewAck" {
                        continue;
                    }
                    word
                }
            };
            self.words.push(word);
        }
        self.out.clear();
    }
}
