//! Engines on file members with requests from memory, for tests of the whole data path except ublk; with lanes to a simulated
//! device if wanted. [`hammer`] ends with a parity check of the member files and a read back with each tolerable set of
//! members missing.

#![allow(dead_code)] // each test uses its part

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use parity_kernels::calibrate::Calibration;
use parity_kernels::offload::LaneCost;
use parity_kernels::offload::simulated::{Faults, SimulatedDevice};
use parity_kernels::{Arena, Engine as Parity, Source};
use raid_core::geometry::{Geometry, Level};
use raid_core::path::owners::Owners;
use raid_core::path::queue::{QueueConfig, QueueCore};
use raid_core::path::types::{Msg, SlotSet, View};
use raidd::engine::{Counters, Engine, EngineMember, Parts, Postbox, mailbox};
use raidd::lane::LanePlan;
use raidd::lane::cost::{FlatRate, Policy};
use raidd::lane::status::{LaneStatus, Shared};
use raidd::lane::supervisor::Pauses;
use ublk_frontend::{MemClient, Op, Request};

/// Where the data of a member file begins.
pub const OFFSET: u64 = 1 << 20;

/// Lanes for all engines.
#[derive(Clone)]
pub struct Lanes {
    pub device: SimulatedDevice,
    pub policy: Policy,
    /// Rate of the CPU that the engines believe in, bytes per ns.
    pub cpu: f64,
    pub pauses: Pauses,
}

impl Lanes {
    /// A device that gets every job that it can take, and is tried again soon when it has failed.
    pub fn eager() -> Lanes {
        let cost = LaneCost {
            caller_ns: 0.0,
            latency_ns: 10_000.0,
            ns_per_byte: 0.0,
        };
        Lanes {
            device: SimulatedDevice {
                faults: Arc::new(Faults::default()),
                cost,
                depth: 32,
            },
            policy: Policy::default(),
            cpu: 1e-6,
            pauses: Pauses {
                first: Duration::from_millis(2),
                most: Duration::from_millis(20),
            },
        }
    }

    pub fn faults(&self) -> &Faults {
        &self.device.faults
    }

    fn plan(&self) -> LanePlan {
        let opener = Arc::new(self.device.clone());
        let mut plan = LanePlan::new(opener, Arc::new(FlatRate(self.cpu)), self.policy);
        plan.pauses = self.pauses;
        plan
    }
}

pub struct Rig {
    pub client: MemClient,
    engines: Vec<JoinHandle<std::io::Result<()>>>,
    pub queues: Vec<Postbox>,
    exit: Arc<AtomicBool>,
    counters: Vec<Arc<Counters>>,
    lanes: Vec<Arc<Shared>>,
    pub manager: crossbeam_channel::Receiver<Msg>,
}

pub fn files(n: usize, sectors: u64) -> Vec<Arc<File>> {
    (0..n)
        .map(|_| {
            let file = tempfile::tempfile().expect("a temporary file");
            file.set_len(OFFSET + sectors * 512).expect("its size");
            Arc::new(file)
        })
        .collect()
}

pub fn start(
    geometry: &Geometry,
    files: &[Arc<File>],
    queues: u16,
    missing: &[u16],
    frames: u32,
    lanes: Option<&Lanes>,
) -> Rig {
    let (frontends, client) = ublk_frontend::fake::group(queues, 16).expect("eventfds");
    let owners = Arc::new(Owners::new(1024));
    let exit = Arc::new(AtomicBool::new(false));
    let mut view = View {
        writable: true,
        synced: u64::MAX,
        ..View::default()
    };
    let mut gone = SlotSet::EMPTY;
    for slot in missing {
        gone.insert(*slot);
    }
    view.missing = gone;
    let members: Vec<_> = files
        .iter()
        .zip(0u16..)
        .map(|(file, slot)| {
            (!gone.contains(slot)).then(|| EngineMember {
                file: file.clone(),
                data_offset: OFFSET,
            })
        })
        .collect();
    let (to_manager, from_queues) = crossbeam_channel::unbounded();
    let mut cores = Vec::new();
    let (mut postboxes, mut inboxes) = (Vec::new(), Vec::new());
    for queue in 0..queues {
        let cfg = QueueConfig {
            queue,
            queues,
            depth: 16,
            max_sectors: 8192,
            frames,
            defer_passes: 2,
        };
        let core = QueueCore::new(cfg, geometry.clone(), owners.clone(), view);
        let (postbox, inbox) = mailbox(core.mail_capacity()).expect("an eventfd");
        postboxes.push(postbox);
        inboxes.push(inbox);
        cores.push(core);
    }
    let mut engines = Vec::new();
    let mut all_counters = Vec::new();
    let mut shared = Vec::new();
    for ((core, inbox), frontend) in cores.into_iter().zip(inboxes).zip(frontends) {
        let counters = Arc::new(Counters::default());
        all_counters.push(counters.clone());
        let frame = (core.arena_bytes() / u64::from(frames)) as usize;
        let (members, peers, manager, exit) = (
            members.clone(),
            postboxes.clone(),
            to_manager.clone(),
            exit.clone(),
        );
        let lane = lanes.map(Lanes::plan);
        shared.extend(lane.iter().map(|plan| plan.shared.clone()));
        engines.push(std::thread::spawn(move || {
            let arena = Arena::new(frames as usize, frame)?;
            let parity = calibration();
            let parts = Parts {
                journal: None,
                core,
                members,
                mailbox: inbox,
                peers,
                manager,
                parity,
                lane,
                arena,
                counters,
                exit,
            };
            Engine::new(frontend, parts)?.run()
        }));
    }
    Rig {
        client,
        engines,
        queues: postboxes,
        exit,
        counters: all_counters,
        lanes: shared,
        manager: from_queues,
    }
}

/// One for all, made of nothing: measuring would take as long as a test.
fn calibration() -> Arc<Calibration> {
    static ONE: OnceLock<Arc<Calibration>> = OnceLock::new();
    ONE.get_or_init(|| Arc::new(Calibration::from_samples(&[], Parity::detect())))
        .clone()
}

/// Sums of the counters of all engines.
#[derive(Default, Debug)]
pub struct Sums(std::collections::BTreeMap<&'static str, u64>);

impl Sums {
    pub fn add(&mut self, other: Sums) {
        for (name, value) in other.0 {
            *self.0.entry(name).or_default() += value;
        }
    }

    pub fn get(&self, name: &str) -> u64 {
        *self.0.get(name).expect("a counter of that name")
    }
}

impl Rig {
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for counters in &self.counters {
            sums.add(Sums(counters.read().into()));
        }
        sums
    }

    pub fn lanes(&self) -> Vec<LaneStatus> {
        self.lanes.iter().map(|l| l.read()).collect()
    }

    pub fn stop(self) -> Sums {
        self.client.stop();
        self.abandon()
    }

    /// Ends the engines, without waiting for requests in flight.
    pub fn abandon(self) -> Sums {
        self.exit.store(true, Ordering::Release);
        self.queues.iter().for_each(Postbox::wake);
        for engine in self.engines {
            engine.join().expect("no panic").expect("a sound ring");
        }
        let mut sums = Sums::default();
        for counters in &self.counters {
            sums.add(Sums(counters.read().into()));
        }
        sums
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

pub fn parity_matches(geometry: &Geometry, files: &[Arc<File>]) {
    let chunk = geometry.chunk_sectors() as usize * 512;
    for stripe in 0..geometry.stripes() {
        let at = OFFSET + stripe * chunk as u64;
        let read = |slot: u16| {
            let mut bytes = vec![0; chunk];
            files[usize::from(slot)]
                .read_exact_at(&mut bytes, at)
                .expect("read");
            bytes
        };
        let data: Vec<(Vec<u8>, u8)> = (0..geometry.data_members())
            .map(|k| {
                (
                    read(geometry.data_slot(stripe, k)),
                    geometry.q_exponent(stripe, k),
                )
            })
            .collect();
        let sources: Vec<Source> = data
            .iter()
            .map(|(d, exp)| Source { data: d, exp: *exp })
            .collect();
        let p = read(geometry.p_slot(stripe));
        let q = geometry.q_slot(stripe).map(read);
        let mismatch = Parity::scalar().check(&sources, Some(&p), q.as_deref());
        assert!(!mismatch.any(), "stripe {stripe}: {mismatch:?}");
    }
}

pub fn read_all(rig: &Rig, bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for lba in (0..bytes as u64 / 512).step_by(1024) {
        let sectors = (bytes as u64 / 512 - lba).min(1024) as u32;
        out.extend(rig.client.read(lba, sectors).expect("read"));
    }
    out
}

/// Four clients write and read their own interleaved 37-sector areas, so that they share stripes all the time.
pub fn hammer(geometry: &Geometry, queues: u16, frames: u32, seed: u64) -> Sums {
    hammer_with(geometry, queues, frames, seed, None)
}

/// As [`hammer`], with lanes, and then a read back without each tolerable set of members rather than some of the pairs.
pub fn hammer_with(
    geometry: &Geometry,
    queues: u16,
    frames: u32,
    seed: u64,
    lanes: Option<&Lanes>,
) -> Sums {
    let n = usize::from(geometry.members());
    let sectors = if geometry.level() == Level::Raid0 {
        geometry.array_sectors() / n as u64 + u64::from(geometry.chunk_sectors())
    } else {
        geometry.member_sectors()
    };
    let files = files(n, sectors);
    let rig = start(geometry, &files, queues, &[], frames, lanes);
    let total = geometry.array_sectors();
    let clients: Vec<_> = (0..4u64)
        .map(|me| {
            let client = rig.client.clone();
            std::thread::spawn(move || {
                let mut random = Random(seed + me);
                let mut writes = Vec::new();
                for _ in 0..400 {
                    let area = random.next(total / (37 * 4)) * 4 + me;
                    let first = area * 37 + random.next(30);
                    let count = 1 + random.next(7);
                    let fill = random.next(256) as u8;
                    let data: Vec<u8> = (0..count * 512)
                        .map(|i| fill.wrapping_add((i / 97) as u8))
                        .collect();
                    if random.next(8) == 0 {
                        client
                            .range(Op::WriteZeroes { unmap: false }, first, count as u32)
                            .expect("write zeroes");
                        writes.push((first, vec![0; data.len()]));
                    } else {
                        client.write(first, data.clone(), false).expect("write");
                        assert!(
                            client.read(first, count as u32).expect("read") == data,
                            "seed {seed} client {me} at {first}"
                        );
                        writes.push((first, data));
                    }
                }
                client.flush().expect("flush");
                writes
            })
        })
        .collect();
    let mut model = vec![0u8; total as usize * 512];
    for client in clients {
        for (first, data) in client.join().expect("no panic") {
            model[first as usize * 512..][..data.len()].copy_from_slice(&data);
        }
    }
    // A large sequential stretch with many requests in flight, from an odd place to an odd place.
    let mut pending = Vec::new();
    let mut lba = 3;
    while lba + 700 < total {
        let data: Vec<u8> = (0..700 * 512u32)
            .map(|i| (i / 512 + lba as u32 * 7) as u8)
            .collect();
        model[lba as usize * 512..][..data.len()].copy_from_slice(&data);
        let request = Request {
            op: Op::Write,
            lba,
            sectors: 700,
            fua: false,
        };
        pending.push(rig.client.submit(request, data));
        lba += 700;
    }
    for write in pending {
        write.wait().expect("write");
    }
    assert!(
        read_all(&rig, model.len()) == model,
        "seed {seed}: healthy read back"
    );
    let mut sums = rig.stop();
    if geometry.parities() == 0 {
        return sums;
    }
    parity_matches(geometry, &files);
    for a in 0..geometry.members() {
        for b in a..geometry.members() {
            if a != b && (geometry.parities() < 2 || (lanes.is_none() && (a + b) % 3 != 0)) {
                continue;
            }
            let missing = if a == b { vec![a] } else { vec![a, b] };
            let rig = start(geometry, &files, queues, &missing, frames, lanes);
            assert!(
                read_all(&rig, model.len()) == model,
                "seed {seed}: read back without {missing:?}"
            );
            sums.add(rig.stop());
        }
    }
    // Writes without a member, then what it holds can be computed from the others.
    let rig = start(geometry, &files, queues, &[1], frames, lanes);
    let mut random = Random(seed ^ 0xdead);
    for _ in 0..200 {
        let count = 1 + random.next(300);
        let first = random.next(total - count);
        let data = vec![random.next(256) as u8; count as usize * 512];
        model[first as usize * 512..][..data.len()].copy_from_slice(&data);
        rig.client
            .write(first, data, false)
            .expect("degraded write");
    }
    assert!(
        read_all(&rig, model.len()) == model,
        "seed {seed}: read back after degraded writes"
    );
    sums.add(rig.stop());
    if geometry.parities() == 2 {
        let rig = start(geometry, &files, queues, &[1, 0], frames, lanes);
        assert!(
            read_all(&rig, model.len()) == model,
            "seed {seed}: a second loss after degraded writes"
        );
        sums.add(rig.stop());
    }
    sums
}

pub fn parity(level: Level, layout: u32, members: u16, chunk: u32, stripes: u64) -> Geometry {
    Geometry::parity(level, layout, members, chunk, u64::from(chunk) * stripes).expect("a geometry")
}
