//! Engines on file members with requests from memory: the whole data path except ublk, on any machine.
//!
//! Every test ends with a parity check of the member files and a read back with each tolerable set of members missing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parity_kernels::{Arena, Engine as Parity, Source};
use raid_core::geometry::{Geometry, Level};
use raid_core::path::owners::Owners;
use raid_core::path::queue::{QueueConfig, QueueCore};
use raid_core::path::types::{SlotSet, View};
use raidd::engine::{Counters, Engine, EngineMember, Parts, Postbox, mailbox};
use ublk_frontend::{MemClient, Op, Request};

const OFFSET: u64 = 1 << 20;

struct Rig {
    client: MemClient,
    engines: Vec<JoinHandle<std::io::Result<()>>>,
    queues: Vec<Postbox>,
    exit: Arc<AtomicBool>,
    counters: Vec<Arc<Counters>>,
}

fn files(n: usize, sectors: u64) -> Vec<Arc<File>> {
    (0..n)
        .map(|_| {
            let file = tempfile::tempfile().expect("a temporary file");
            file.set_len(OFFSET + sectors * 512).expect("its size");
            Arc::new(file)
        })
        .collect()
}

fn start(
    geometry: &Geometry,
    files: &[Arc<File>],
    queues: u16,
    missing: &[u16],
    frames: u32,
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
    // Nothing fails here, so the manager has nothing to say.
    std::thread::spawn(move || while from_queues.recv().is_ok() {});
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
        engines.push(std::thread::spawn(move || {
            let arena = Arena::new(frames as usize, frame)?;
            let parity = Parity::detect();
            let parts = Parts {
                core,
                members,
                mailbox: inbox,
                peers,
                manager,
                parity,
                lane: None,
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
    }
}

impl Rig {
    fn stop(self) -> u64 {
        self.client.stop();
        self.exit.store(true, Ordering::Release);
        self.queues.iter().for_each(Postbox::wake);
        for engine in self.engines {
            engine.join().expect("no panic").expect("a sound ring");
        }
        let get = |c: &Arc<Counters>| {
            c.read()
                .iter()
                .find(|(n, _)| *n == "forwarded_pieces")
                .expect("known")
                .1
        };
        self.counters.iter().map(get).sum()
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

fn parity_matches(geometry: &Geometry, files: &[Arc<File>]) {
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

fn read_all(rig: &Rig, bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for lba in (0..bytes as u64 / 512).step_by(1024) {
        let sectors = (bytes as u64 / 512 - lba).min(1024) as u32;
        out.extend(rig.client.read(lba, sectors).expect("read"));
    }
    out
}

/// Four clients write and read their own interleaved 37-sector areas, so that they share stripes all the time.
fn hammer(geometry: &Geometry, queues: u16, frames: u32, seed: u64) -> u64 {
    let n = usize::from(geometry.members());
    let sectors = if geometry.level() == Level::Raid0 {
        geometry.array_sectors() / n as u64 + u64::from(geometry.chunk_sectors())
    } else {
        geometry.member_sectors()
    };
    let files = files(n, sectors);
    let rig = start(geometry, &files, queues, &[], frames);
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
    let forwarded = rig.stop();
    if geometry.parities() == 0 {
        return forwarded;
    }
    parity_matches(geometry, &files);
    for a in 0..geometry.members() {
        for b in a..geometry.members() {
            if a != b && (geometry.parities() < 2 || (a + b) % 3 != 0) {
                continue;
            }
            let missing = if a == b { vec![a] } else { vec![a, b] };
            let rig = start(geometry, &files, queues, &missing, frames);
            assert!(
                read_all(&rig, model.len()) == model,
                "seed {seed}: read back without {missing:?}"
            );
            rig.stop();
        }
    }
    // Writes without a member, then what it holds can be computed from the others.
    let rig = start(geometry, &files, queues, &[1], frames);
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
    rig.stop();
    if geometry.parities() == 2 {
        let rig = start(geometry, &files, queues, &[1, 0], frames);
        assert!(
            read_all(&rig, model.len()) == model,
            "seed {seed}: a second loss after degraded writes"
        );
        rig.stop();
    }
    forwarded
}

fn parity(level: Level, layout: u32, members: u16, chunk: u32, stripes: u64) -> Geometry {
    Geometry::parity(level, layout, members, chunk, u64::from(chunk) * stripes).expect("a geometry")
}

#[test]
fn raid5_small_chunks() {
    hammer(&parity(Level::Raid5, 2, 4, 8, 160), 1, 8, 1);
    hammer(&parity(Level::Raid5, 0, 3, 16, 160), 2, 16, 2);
}

#[test]
fn raid5_chunks_of_several_bands() {
    hammer(&parity(Level::Raid5, 2, 5, 256, 12), 2, 16, 3);
    hammer(&parity(Level::Raid5, 4, 4, 1024, 6), 1, 4, 4);
}

#[test]
fn raid6_left_symmetric_and_others() {
    hammer(&parity(Level::Raid6, 2, 8, 128, 16), 2, 8, 5);
    for (layout, seed) in [(1, 6), (9, 7), (18, 8)] {
        hammer(&parity(Level::Raid6, layout, 5, 16, 96), 2, 8, seed);
    }
    hammer(&parity(Level::Raid6, 2, 4, 128, 24), 2, 6, 9);
}

#[test]
fn raid0_with_unequal_members() {
    hammer(
        &Geometry::raid0(1, 16, &[1600; 4]).expect("a geometry"),
        2,
        4,
        10,
    );
}

/// Queues that share stripes must really have handed work to one another, or these tests prove less than they say.
#[test]
fn queues_forward_to_one_another() {
    let forwarded: u64 = (20..24)
        .map(|seed| hammer(&parity(Level::Raid5, 2, 4, 128, 4), 4, 8, seed))
        .sum();
    assert!(forwarded > 0);
}
