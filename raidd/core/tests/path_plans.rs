//! What the data path asks of the edges, checked against geometry alone: every byte of a request is moved exactly once, to or
//! from the place that geometry names. Member I/O always succeeds here; the simulator has the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use raid_core::geometry::{Geometry, Level, layout_numbers};
use raid_core::path::owners::Owners;
use raid_core::path::queue::{QueueConfig, QueueCore};
use raid_core::path::types::*;

/// A queue and the bookkeeping of where arena bytes came from.
struct Driver {
    core: QueueCore,
    /// Sector of the arena -> sector of the request that was copied there.
    copied: BTreeMap<u64, u32>,
    /// Request sector -> how often it was written to or read from its place.
    moved: BTreeMap<u32, u32>,
    /// Sectors of the request that came out of a frame.
    delivered: BTreeMap<u32, u32>,
    parity_writes: u64,
    parity_reads: u64,
    done: Option<Result<(), RequestError>>,
}

fn driver(geometry: &Geometry, missing: &[u16], synced: bool) -> Driver {
    let mut view = View {
        writable: true,
        ..View::default()
    };
    view.synced = if synced { u64::MAX } else { 0 };
    for slot in missing {
        view.missing.insert(*slot);
    }
    let cfg = QueueConfig {
        queue: 0,
        queues: 1,
        depth: 2,
        max_sectors: 8192,
        frames: 4,
        defer_passes: 1,
    };
    Driver {
        core: QueueCore::new(cfg, geometry.clone(), Arc::new(Owners::new(64)), view),
        copied: BTreeMap::new(),
        moved: BTreeMap::new(),
        delivered: BTreeMap::new(),
        parity_writes: 0,
        parity_reads: 0,
        done: None,
    }
}

impl Driver {
    fn run(&mut self, geometry: &Geometry, request: Request) {
        let mut out = Actions::default();
        self.core
            .event(Event::Request { tag: 0, request }, &mut out);
        for _ in 0..100_000 {
            self.core.end_of_pass(&mut out);
            if out.list.is_empty() {
                break;
            }
            let mut events = Vec::new();
            for action in &out.list {
                self.action(geometry, &request, action, &out, &mut events);
            }
            out.clear();
            for event in events {
                self.core.event(event, &mut out);
            }
        }
        assert_eq!(self.done, Some(Ok(())), "{request:?} ended");
        assert!(self.core.idle(), "nothing is left of {request:?}");
    }

    fn action(
        &mut self,
        geometry: &Geometry,
        request: &Request,
        action: &Action,
        all: &Actions,
        events: &mut Vec<Event>,
    ) {
        let list = |r: &std::ops::Range<u32>| &all.bufs[r.start as usize..r.end as usize];
        match action {
            Action::Member {
                io,
                kind,
                slot,
                sector,
                sectors,
                bufs,
            } => {
                assert!(
                    !self.core.view().missing.contains(*slot),
                    "a missing member is left alone"
                );
                let bytes: u64 = list(bufs).iter().map(|b| u64::from(b.len)).sum();
                if matches!(kind, IoKind::Read | IoKind::Write) {
                    assert_eq!(
                        bytes,
                        u64::from(*sectors) * 512,
                        "buffers are as long as the member range"
                    );
                    let places = list(bufs).iter().flat_map(|b| {
                        (0..u64::from(b.len) / 512).map(|i| (b.buf, b.off / 512 + i))
                    });
                    for (i, (buf, at)) in places.enumerate() {
                        self.sector(geometry, request, *kind, *slot, sector + i as u64, buf, at);
                    }
                }
                events.push(Event::IoDone {
                    io: *io,
                    result: Ok(()),
                });
            }
            Action::CopyIn { off, bufs, .. } => {
                let mut at = off / 512;
                for buf in list(bufs) {
                    for i in 0..u64::from(buf.len) / 512 {
                        self.copied.insert(buf.off / 512 + i, at);
                        at += 1;
                    }
                }
            }
            Action::CopyOut { off, bufs, .. } => {
                let mut at = off / 512;
                for buf in list(bufs) {
                    for _ in 0..buf.len / 512 {
                        *self.delivered.entry(at).or_insert(0) += 1;
                        at += 1;
                    }
                }
            }
            Action::Fence { op } => events.push(Event::Fenced {
                op: *op,
                ok: true,
                mismatch: false,
            }),
            Action::Complete { result, .. } => self.done = Some(*result),
            Action::Zero(_) | Action::Compute(_) | Action::Locate { .. } => {}
            Action::Send { msg, .. } => panic!("one queue has nobody to write to: {msg:?}"),
        }
    }

    fn sector(
        &mut self,
        geometry: &Geometry,
        request: &Request,
        kind: IoKind,
        slot: u16,
        sector: u64,
        buf: Buf,
        at: u64,
    ) {
        let Some(lba) = geometry.inverse(slot, sector) else {
            self.parity_writes += u64::from(kind == IoKind::Write);
            self.parity_reads += u64::from(kind == IoKind::Read);
            return;
        };
        let wanted = (request.lba..request.lba + u64::from(request.sectors)).contains(&lba);
        match (request.op, kind) {
            (Op::Write, IoKind::Write) => {
                assert!(
                    wanted,
                    "only the request's own sectors are written as data: {lba}"
                );
                let index = (lba - request.lba) as u32;
                let from = match buf {
                    Buf::Request(_) => at as u32,
                    Buf::Arena => self.copied[&at],
                };
                assert_eq!(
                    from, index,
                    "the right sector of the request goes to array sector {lba}"
                );
                *self.moved.entry(index).or_insert(0) += 1;
            }
            (Op::Read, IoKind::Read) if wanted && buf == Buf::Request(0) => {
                assert_eq!(
                    at,
                    lba - request.lba,
                    "array sector {lba} goes to its place in the request"
                );
                *self.moved.entry(at as u32).or_insert(0) += 1;
            }
            _ => {}
        }
    }
}

fn geometries() -> impl Strategy<Value = Geometry> {
    let parity = (
        prop_oneof![Just(Level::Raid5), Just(Level::Raid6)],
        4u16..9,
        0usize..32,
        3u32..11,
        2u64..40,
    );
    let parity = parity.prop_map(|(level, n, layout, chunk, stripes)| {
        let layouts = layout_numbers(level);
        let chunk = 1 << chunk;
        Geometry::parity(
            level,
            layouts[layout % layouts.len()],
            n,
            chunk,
            u64::from(chunk) * stripes,
        )
        .expect("valid")
    });
    let raid0 = (
        1u32..3,
        1u32..33,
        proptest::collection::vec(64u64..4000, 2..7),
    );
    let raid0 = raid0.prop_map(|(layout, chunk, mut sizes)| {
        let chunk = chunk * 8;
        sizes
            .iter_mut()
            .for_each(|s| *s = (*s).max(u64::from(chunk)));
        Geometry::raid0(layout, chunk, &sizes).expect("valid")
    });
    prop_oneof![3 => parity, 1 => raid0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_request_moves_every_byte_exactly_once(
        geometry in geometries(),
        at in 0.0f64..1.0,
        len in 1u32..4096,
        write in any::<bool>(),
        direct in any::<bool>(),
        degraded in any::<bool>(),
        synced in any::<bool>(),
    ) {
        let total = geometry.array_sectors();
        let lba = (at * total as f64) as u64;
        let sectors = u64::from(len).min(total - lba).max(1) as u32;
        let missing: Vec<u16> = if degraded && geometry.parities() > 0 { vec![0] } else { vec![] };
        let op = if write { Op::Write } else { Op::Read };
        let request = Request { op, lba: lba.min(total - u64::from(sectors)), sectors, direct };
        let mut d = driver(&geometry, &missing, synced);
        d.run(&geometry, request);
        for index in 0..sectors {
            let lost = missing.contains(&geometry.locate(request.lba + u64::from(index)).slot);
            let moved = d.moved.get(&index).copied().unwrap_or(0);
            let delivered = d.delivered.get(&index).copied().unwrap_or(0);
            if write {
                prop_assert_eq!(moved, u32::from(!lost), "sector {} written", index);
            } else if direct {
                prop_assert_eq!((moved, delivered), (u32::from(!lost), u32::from(lost)), "sector {} read", index);
            } else {
                // Through a frame; what is lost comes after it, over the frame's bytes.
                prop_assert_eq!(delivered, 1 + u32::from(lost), "sector {} read", index);
            }
        }
        if write && geometry.parities() > 0 && missing.is_empty() {
            prop_assert!(d.parity_writes > 0, "parity follows data");
        }
        if write && !synced {
            prop_assert_eq!(if missing.is_empty() { d.parity_reads } else { 0 }, 0, "parity out of sync is not read for a write");
        }
    }
}

/// Left-symmetric RAID 6 on 6 members, 64 KiB chunks; a write of two whole stripes:
///
/// ```text
///          m0  m1  m2  m3  m4  m5
/// stripe 0  Q  D0  D1  D2  D3   P     one write of 128 KiB to each member,
/// stripe 1 D4  D5  D6  D7   P   Q     nothing is read
/// ```
#[test]
fn whole_stripes_are_one_write_per_member_and_no_read() {
    let geometry = Geometry::parity(Level::Raid6, 2, 6, 128, 128 * 8).expect("valid");
    let mut d = driver(&geometry, &[], true);
    d.run(
        &geometry,
        Request {
            op: Op::Write,
            lba: 0,
            sectors: 2 * 4 * 128,
            direct: true,
        },
    );
    let stats = d.core.stats();
    assert_eq!(
        (
            stats.member_ios,
            stats.member_read_sectors,
            stats.member_write_sectors
        ),
        (6, 0, 6 * 256)
    );
    assert_eq!((stats.full, stats.encodes, stats.updates), (2, 0, 0));
}
