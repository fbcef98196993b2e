//! The array under simulation: real queues and the real manager, simulated edges around them. Owns everything that exists
//! between two power cuts except the scheduler (`step`) and the checks (`check`).

use std::collections::VecDeque;
use std::sync::Arc;

use parity_kernels::{Engine, Source};
use raid_core::geometry::Level;
use raid_core::path::layout::Layout;
use raid_core::path::manager::{Manager, ManagerAction, ManagerConfig, Note, Record};
use raid_core::path::owners::Owners;
use raid_core::path::queue::{QueueConfig, QueueCore};
use raid_core::path::types::*;

use super::bitmap::Bits;
use super::disk::{SimDisk, Super};
use super::log::Log;
use super::oracle::Oracle;
use super::rng::Rng;
use super::setup::{Setup, Start};

/// Bytes of a simulated sector.
pub const BYTES: usize = 8;
/// By how much simulated sectors are smaller than real ones.
pub const SCALE: u64 = SECTOR as u64 / BYTES as u64;

/// Member I/O in flight.
#[derive(Debug)]
pub struct MemberIo {
    pub io: u32,
    pub kind: IoKind,
    pub slot: u16,
    pub sector: u64,
    pub sectors: u32,
    pub bufs: Vec<BufSlice>,
    /// Sectors that have been transferred already.
    pub moved: Moved,
    /// Of the member when it began.
    pub generation: u32,
}

/// One flag a sector; prints as a count.
pub struct Moved(Vec<bool>);

impl std::fmt::Debug for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.iter().filter(|m| **m).count())
    }
}

/// Work for the copying and computing lane of a queue, in order up to a fence.
#[derive(Debug)]
pub enum Lane {
    Copy {
        out: bool,
        queue: u16,
        tag: u16,
        off: u32,
        bufs: Vec<BufSlice>,
    },
    Zero(BufSlice),
    Compute(Job, Vec<(BufSlice, u8)>),
    Locate {
        op: u32,
        srcs: Vec<(BufSlice, u8)>,
        p: Option<BufSlice>,
        q: Option<BufSlice>,
    },
}

/// What stands before one fence, and how it has gone so far. Groups are done in any order.
#[derive(Debug)]
pub struct Group {
    pub items: VecDeque<Lane>,
    /// Whom the fence is for; nobody if it has been reported already (a planted fault).
    pub op: Option<u32>,
    pub ok: bool,
    pub mismatch: bool,
    /// Answers that come before that of the fence.
    pub located: Vec<Event>,
}

impl Group {
    pub fn new() -> Group {
        Group {
            items: VecDeque::new(),
            op: None,
            ok: true,
            mismatch: false,
            located: Vec::new(),
        }
    }
}

/// A request in flight.
#[derive(Debug)]
pub struct Active {
    pub request: Request,
    pub id: u64,
    pub sent: u64,
    pub buf: Vec<u8>,
    /// A copy was made to fail: an error is a right answer.
    pub spoiled: bool,
}

/// One queue and its edges.
pub struct SimQueue {
    pub core: QueueCore,
    pub out: Actions,
    pub arena: Vec<u8>,
    pub mail: VecDeque<Msg>,
    pub ready: Vec<Event>,
    /// Go before the fences of their operations.
    pub located: Vec<Event>,
    /// Before the next fence.
    pub open: Group,
    /// Before fences that have been asked for.
    pub groups: Vec<Group>,
    pub ios: Vec<MemberIo>,
    pub tags: Vec<Option<Active>>,
}

/// One superblock of a record on its way.
#[derive(Clone, Copy, Debug)]
pub struct SuperIo {
    pub slot: u16,
    pub record: Record,
    /// The superblock is on the medium, the flush is not done.
    pub written: bool,
}

/// What has been counted, for the summary of many seeds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub requests: u64,
    pub steps: u64,
    pub crashes: u64,
    pub losses: u64,
    pub medium: u64,
    pub full: u64,
    pub encodes: u64,
    pub updates: u64,
    pub recovers: u64,
    pub decoded: u64,
    pub merged: u64,
    pub forwarded: u64,
    pub records: u64,
    pub sweeps_done: u64,
    pub cleans: u64,
    /// Members made whole, and rebuilds that ended before that.
    pub rebuilt: u64,
    pub aborted: u64,
    /// Starts with a member in the middle of being filled, and those of them beyond its start.
    pub resumed: u64,
    pub resumed_late: u64,
    pub scrubs: u64,
}

/// See the module comment.
pub struct World {
    pub setup: Setup,
    pub layout: Layout,
    pub parities: u16,
    pub rng: Rng,
    pub log: Log,
    pub disks: Vec<SimDisk>,
    pub queues: Vec<SimQueue>,
    pub manager: Manager,
    pub manager_mail: VecDeque<Msg>,
    pub owners: Arc<Owners>,
    pub records: Vec<SuperIo>,
    pub bits: Option<Bits>,
    pub oracle: Oracle,
    /// Grows with every event.
    pub now: u64,
    pub clock_ms: u64,
    pub next_id: u64,
    pub requests_left: u32,
    pub faults_on: bool,
    /// Before it comes to rest, lost members are replaced.
    pub rejoin_all: bool,
    /// Member sectors whose parity may not match the data.
    pub holes: Vec<bool>,
    /// Member sectors written while a member was lost: if it comes back, parity may not match there.
    pub missed: Vec<bool>,
    /// Members that have been made to fail since the array was created.
    pub lost: SlotSet,
    /// A loss too many has happened.
    pub beyond: bool,
    pub stopped: bool,
    pub in_sync: bool,
    /// Members lie. A repair writes without marking the array dirty: it changes nothing but rows that do not match anyway.
    pub corrupted: bool,
    /// What scrubs have told, and how the last one ended.
    pub told: Vec<Note>,
    pub position: Vec<u64>,
    /// What has been done, and the step at which it last grew.
    pub progress: (u64, u64),
    /// When the oldest request in flight was sent, and the step since which it is the oldest.
    pub waiting: (u64, u64),
    pub tally: Tally,
    pub engine: Engine,
}

/// A finding.
pub type Outcome<T = ()> = Result<T, String>;

/// First byte and length of a slice in the simulated memory.
pub fn index(slice: &BufSlice) -> (usize, usize) {
    (
        (slice.off / SCALE) as usize,
        (u64::from(slice.len) / SCALE) as usize,
    )
}

impl World {
    /// A new array.
    pub fn new(setup: Setup, log: Log) -> World {
        let layout = Layout::new(setup.geometry.clone());
        let mut rng = Rng::new(setup.seed ^ 0x5eed);
        let g = &setup.geometry;
        let n = g.members();
        let longest = g.member_sectors() as usize;
        let synced = match setup.start {
            Start::Clean => u64::MAX,
            Start::Fresh => 0,
            Start::Checkpoint(s) => s,
        };
        let sb = Super {
            events: rng.below(5),
            resync_offset: synced,
            missing: SlotSet::EMPTY,
            recovery: None,
        };
        let mut disks: Vec<SimDisk> = (0..n)
            .map(|_| SimDisk::new((0..longest).map(|_| rng.next()).collect(), sb))
            .collect();
        let engine = Engine::scalar();
        let bits = Bits::new(&setup, &sb);
        let crashed = setup.bitmap.is_some_and(|b| b.crashed);
        let mut holes = vec![false; longest];
        if layout.parity {
            for (row, hole) in holes.iter_mut().enumerate() {
                let named = |b: &Bits| !crashed || b.names(row as u64);
                if (row as u64) < synced || bits.as_ref().is_some_and(|b| !named(b)) {
                    let stripe = row as u64 / u64::from(g.chunk_sectors());
                    let map = g.stripe_map(stripe);
                    let data: Vec<([u8; BYTES], u8)> = (0..layout.data)
                        .map(|k| {
                            let slot = usize::from(map.data_slot(k));
                            (
                                disks[slot].media[row].to_ne_bytes(),
                                exponent(&layout, stripe, k),
                            )
                        })
                        .collect();
                    let data: Vec<Source> = data
                        .iter()
                        .map(|(d, exp)| Source { data: d, exp: *exp })
                        .collect();
                    let (mut p, mut q) = ([0u8; BYTES], [0u8; BYTES]);
                    engine.encode(
                        &data,
                        Some(&mut p),
                        map.q_slot().is_some().then_some(&mut q[..]),
                    );
                    disks[usize::from(map.p_slot())].media[row] = u64::from_ne_bytes(p);
                    if let Some(slot) = map.q_slot() {
                        disks[usize::from(slot)].media[row] = u64::from_ne_bytes(q);
                    }
                } else {
                    *hole = true;
                }
            }
        }
        let content: Vec<u64> = (0..g.array_sectors())
            .map(|lba| {
                let at = g.locate(lba);
                disks[usize::from(at.slot)].media[at.sector as usize]
            })
            .collect();
        let owners = Arc::new(Owners::new(1 << rng.below(7)));
        let manager = Manager::new(manager_config(&setup, &layout, &sb));
        let parities = g.parities();
        let mut world = World {
            parities,
            oracle: Oracle::new(&content),
            disks,
            queues: Vec::new(),
            manager,
            manager_mail: VecDeque::new(),
            owners,
            records: Vec::new(),
            bits,
            now: 1,
            clock_ms: 0,
            next_id: 1,
            requests_left: 0,
            faults_on: true,
            rejoin_all: false,
            missed: vec![false; longest],
            holes,
            lost: SlotSet::EMPTY,
            beyond: false,
            stopped: false,
            in_sync: false,
            corrupted: false,
            told: Vec::new(),
            position: vec![0; usize::from(setup.queues)],
            tally: Tally::default(),
            progress: (0, 0),
            waiting: (u64::MAX, 0),
            engine,
            layout,
            rng,
            log,
            setup,
        };
        let mut manager = world.manager.clone();
        world.load_bits(&mut manager, &sb, &SlotSet::EMPTY);
        world.manager = manager;
        world.start();
        world
    }

    /// Makes the queues and starts the manager.
    pub fn start(&mut self) {
        self.manager.plant(self.setup.bug);
        let view = self.manager.view();
        self.queues = (0..self.setup.queues)
            .map(|queue| {
                let cfg = QueueConfig {
                    queue,
                    queues: self.setup.queues,
                    depth: self.setup.depth,
                    max_sectors: self.setup.longest as u32,
                    frames: self.setup.frames,
                    defer_passes: self.setup.defer_passes,
                };
                let geometry = self.setup.geometry.clone();
                let mut core = QueueCore::new(cfg, geometry, self.owners.clone(), view);
                core.plant(self.setup.bug);
                if let Some(bitmap) = self.manager.bitmap() {
                    core.set_intent(bitmap.intent());
                }
                SimQueue {
                    arena: vec![0xee; (core.arena_bytes() / SCALE) as usize],
                    core,
                    out: Actions::default(),
                    mail: VecDeque::new(),
                    ready: Vec::new(),
                    located: Vec::new(),
                    open: Group::new(),
                    groups: Vec::new(),
                    ios: Vec::new(),
                    tags: (0..self.setup.depth).map(|_| None).collect(),
                }
            })
            .collect();
        let mut out = Vec::new();
        self.manager.start(self.clock_ms, &mut out);
        self.manager_actions(out).expect("nothing is in flight yet");
    }

    /// When the oldest request in flight was sent.
    pub fn oldest(&self) -> u64 {
        let tags = self.queues.iter().flat_map(|q| q.tags.iter().flatten());
        tags.map(|a| a.sent).min().unwrap_or(u64::MAX)
    }

    /// Carries out what a queue wants after a pass.
    pub fn execute(&mut self, q: usize) -> Outcome {
        let mut out = std::mem::take(&mut self.queues[q].out);
        for action in out.list.drain(..) {
            self.log.add(|| format!("  q{q} {action:?}"));
            let bufs = |range: &std::ops::Range<u32>| {
                out.bufs[range.start as usize..range.end as usize].to_vec()
            };
            match action {
                Action::Member {
                    io,
                    kind,
                    slot,
                    sector,
                    sectors,
                    bufs: range,
                } => {
                    let io = MemberIo {
                        io,
                        kind,
                        slot,
                        sector,
                        sectors,
                        bufs: bufs(&range),
                        moved: Moved(vec![false; sectors as usize]),
                        generation: self.disks[usize::from(slot)].generation,
                    };
                    self.check_member_io(q, &io)?;
                    if !self.lost.is_empty() {
                        self.miss(&io);
                    }
                    self.queues[q].ios.push(io);
                }
                Action::CopyIn {
                    queue,
                    tag,
                    off,
                    bufs: range,
                } => self.queues[q].open.items.push_back(Lane::Copy {
                    out: false,
                    queue,
                    tag,
                    off,
                    bufs: bufs(&range),
                }),
                Action::CopyOut {
                    queue,
                    tag,
                    off,
                    bufs: range,
                } => self.queues[q].open.items.push_back(Lane::Copy {
                    out: true,
                    queue,
                    tag,
                    off,
                    bufs: bufs(&range),
                }),
                Action::Zero(slice) => self.queues[q].open.items.push_back(Lane::Zero(slice)),
                Action::Compute(job) => {
                    let range = match &job {
                        Job::Encode { srcs, .. }
                        | Job::Recover { srcs, .. }
                        | Job::Check { srcs, .. } => srcs.clone(),
                        Job::Update { .. } => 0..0,
                    };
                    let srcs = out.srcs[range.start as usize..range.end as usize].to_vec();
                    self.queues[q]
                        .open
                        .items
                        .push_back(Lane::Compute(job, srcs));
                }
                Action::Locate {
                    op,
                    srcs,
                    p,
                    q: q_slice,
                } => {
                    let srcs = out.srcs[srcs.start as usize..srcs.end as usize].to_vec();
                    let work = Lane::Locate {
                        op,
                        srcs,
                        p,
                        q: q_slice,
                    };
                    self.queues[q].open.items.push_back(work);
                }
                Action::Fence { op } => {
                    let queue = &mut self.queues[q];
                    let mut group = std::mem::replace(&mut queue.open, Group::new());
                    group.op = Some(op);
                    queue.groups.push(group);
                }
                Action::Complete { tag, result } => self.complete(q, tag, result)?,
                Action::Send { to, msg } => match to {
                    Peer::Queue(other) => {
                        if usize::from(other) == q {
                            return Err(format!("q{q} sends to itself: {msg:?}"));
                        }
                        self.queues[usize::from(other)].mail.push_back(msg);
                    }
                    Peer::Manager => self.manager_mail.push_back(msg),
                },
            }
        }
        out.clear();
        self.queues[q].out = out;
        Ok(())
    }

    /// Moves some or all sectors of an I/O that have not been moved yet. Reads stop at a bad sector.
    pub fn transfer(&mut self, q: usize, io: &mut MemberIo, all: bool) {
        let disk = &mut self.disks[usize::from(io.slot)];
        let queue = &mut self.queues[q];
        let mut slices = io.bufs.iter();
        let mut current: Option<(Buf, usize, usize)> = None;
        for i in 0..io.sectors {
            let place = match io.kind {
                IoKind::Read | IoKind::Write => {
                    if current.is_none_or(|c| c.2 == 0) {
                        let s = slices.next().expect("buffers cover the I/O");
                        let (at, len) = index(s);
                        current = Some((s.buf, at, len));
                    }
                    let c = current.as_mut().expect("just set");
                    let place = (c.0, c.1);
                    (c.1, c.2) = (c.1 + BYTES, c.2 - BYTES);
                    Some(place)
                }
                _ => None,
            };
            if io.moved.0[i as usize] || !(all || self.rng.chance(30)) {
                continue;
            }
            let sector = io.sector + u64::from(i);
            if io.kind == IoKind::Read && disk.bad.contains(&sector) {
                continue;
            }
            io.moved.0[i as usize] = true;
            let Some((buf, at)) = place else {
                if io.kind == IoKind::WriteZeroes || (io.kind == IoKind::Discard && i % 2 == 0) {
                    disk.put(sector, 0);
                }
                continue;
            };
            let bytes = match buf {
                Buf::Arena => &mut queue.arena[at..at + BYTES],
                Buf::Request(tag) => {
                    let active = queue.tags[usize::from(tag)].as_mut();
                    &mut active.expect("pages of a request in flight").buf[at..at + BYTES]
                }
            };
            if io.kind == IoKind::Read {
                bytes.copy_from_slice(&disk.get(sector).to_ne_bytes());
            } else {
                disk.put(
                    sector,
                    u64::from_ne_bytes((&*bytes).try_into().expect("a sector")),
                );
            }
        }
    }

    /// Ends a member I/O.
    pub fn finish_io(&mut self, q: usize, at: usize) {
        let mut io = self.queues[q].ios.swap_remove(at);
        let disk = &mut self.disks[usize::from(io.slot)];
        let range = io.sector..io.sector + u64::from(io.sectors);
        let medium = match io.kind {
            IoKind::Read => disk.bad.range(range).next().is_some(),
            IoKind::Write => disk.fail_write,
            _ => false,
        };
        let result = if disk.gone || disk.generation != io.generation {
            Err(MemberError::Gone)
        } else if medium {
            self.transfer(q, &mut io, false);
            Err(MemberError::Medium)
        } else {
            self.transfer(q, &mut io, true);
            if io.kind == IoKind::Flush {
                self.disks[usize::from(io.slot)].flush();
                self.flush_bits(io.slot);
            }
            Ok(())
        };
        if result.is_err() {
            self.miss(&io);
        }
        self.log.add(|| {
            format!(
                "q{q} io {} slot {} {:?} -> {result:?}",
                io.io, io.slot, io.kind
            )
        });
        self.queues[q]
            .ready
            .push(Event::IoDone { io: io.io, result });
    }

    fn miss(&mut self, io: &MemberIo) {
        let filling = self.manager.view().filling.contains(io.slot);
        if self.layout.parity && io.kind == IoKind::Write && !filling {
            let rows = io.sector as usize..(io.sector + u64::from(io.sectors)) as usize;
            self.missed[rows].fill(true);
        }
    }

    /// Carries out what the manager wants.
    pub fn manager_actions(&mut self, actions: Vec<ManagerAction>) -> Outcome {
        for action in actions {
            self.log.add(|| format!("  manager {action:?}"));
            match action {
                ManagerAction::Send { queue, msg } => {
                    self.queues[usize::from(queue)].mail.push_back(msg);
                }
                ManagerAction::Record(record) => {
                    self.check_record(&record)?;
                    self.check_header(&record)?;
                    self.tally.records += 1;
                    for slot in record.targets.iter() {
                        self.records.push(SuperIo {
                            slot,
                            record,
                            written: false,
                        });
                    }
                }
                ManagerAction::Bitmap(write) => self.bits_sent(&write)?,
                ManagerAction::Note(note) => match note {
                    Note::InSync { .. } => {
                        self.in_sync = true;
                        self.tally.sweeps_done += 1;
                    }
                    Note::SweepStuck { band } if !self.beyond => {
                        return Err(format!("the sweep is stuck at band {band}"));
                    }
                    Note::MemberFailed { slot, .. } if !self.lost.contains(slot) => {
                        return Err(format!("member {slot} was thrown out without a reason"));
                    }
                    Note::RebuildFinished { slots } => self.rebuilt(&slots),
                    Note::RebuildAborted { .. } => self.tally.aborted += 1,
                    Note::Mismatch { band, .. } if !self.corrupted => {
                        return Err(format!("a scrub finds a difference in band {band}"));
                    }
                    Note::Mismatch { .. } | Note::ScrubFinished { .. } => {
                        self.tally.scrubs += u64::from(!matches!(note, Note::Mismatch { .. }));
                        self.told.push(note);
                    }
                    Note::ArrayFailed if !self.beyond => {
                        return Err("the array failed within its tolerance".into());
                    }
                    _ => {}
                },
                ManagerAction::Stopped => self.stopped = true,
            }
        }
        Ok(())
    }

    /// Something more happens.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

/// What the manager is told at start, of an array with all its members.
pub fn manager_config(setup: &Setup, layout: &Layout, sb: &Super) -> ManagerConfig {
    ManagerConfig {
        members: layout.members,
        parities: setup.geometry.parities(),
        queues: setup.queues,
        bands: if layout.parity { layout.bands() } else { 0 },
        band_rows: layout.rows,
        events: sb.events,
        resync_offset: sb.resync_offset,
        missing: SlotSet::EMPTY,
        unrecorded: false,
        read_only: setup.read_only,
        safe_mode_delay_ms: setup.safe_mode_delay_ms,
        sweep_floor: 64 << 20,
        sweep_ceiling: None,
        window: setup.window,
        filling: SlotSet::EMPTY,
        recovery: 0,
        checkpoint_ms: setup.checkpoint_ms,
    }
}

/// Exponent of a data chunk in Q; 0 where there is no Q.
pub fn exponent(layout: &Layout, stripe: u64, k: u16) -> u8 {
    match layout.geometry.level() {
        Level::Raid6 => layout.geometry.q_exponent(stripe, k),
        _ => 0,
    }
}
