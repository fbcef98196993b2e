//! The data path allocates nothing once it is warm: a block device that waits for memory can be what memory waits for.
//!
//! The test counts this thread's allocations while a queue works through requests of every kind, healthy and degraded. Its own
//! file, because it replaces the program's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use raid_core::bitmap::{Header, Map};
use raid_core::geometry::{Geometry, Level};
use raid_core::path::intent_manager::IntentManager;
use raid_core::path::layout;
use raid_core::path::manager::{Manager, ManagerAction, ManagerConfig, ManagerEvent};
use raid_core::path::owners::Owners;
use raid_core::path::queue::{QueueConfig, QueueCore};
use raid_core::path::types::*;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes on to the system's allocator unchanged; counting touches a thread-local integer without a
// destructor, which itself allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Keeps `depth` requests in flight; answers member I/O in batches, some of it with medium errors.
fn work(
    core: &mut QueueCore,
    total: u64,
    requests: u64,
    random: &mut Random,
    out: &mut Actions,
    events: &mut Vec<Event>,
    manager: &mut Manager,
    asked: &mut Vec<Msg>,
) {
    let depth = 16u16;
    let mut free: [bool; 16] = [true; 16];
    let (mut issued, mut done) = (0, 0);
    while done < requests {
        for tag in 0..depth {
            if free[usize::from(tag)] && issued < requests {
                let longest = if random.next(3) == 0 { 4000 } else { 64 };
                let sectors = (1 + random.next(longest)) as u32;
                let op = [Op::Read, Op::Write, Op::Write, Op::WriteZeroes, Op::Flush]
                    [random.next(5) as usize];
                let sectors = if op == Op::Flush { 0 } else { sectors };
                let lba = random.next(total - u64::from(sectors));
                let direct = random.next(2) == 0;
                core.event(
                    Event::Request {
                        tag,
                        request: Request {
                            op,
                            lba,
                            sectors,
                            direct,
                        },
                    },
                    out,
                );
                free[usize::from(tag)] = false;
                issued += 1;
            }
        }
        for event in events.drain(..) {
            core.event(event, out);
        }
        core.end_of_pass(out);
        for action in &out.list {
            match action {
                Action::Member { io, kind, .. } => {
                    let bad = *kind == IoKind::Read && random.next(200) == 0;
                    let result = if bad {
                        Err(MemberError::Medium)
                    } else {
                        Ok(())
                    };
                    events.push(Event::IoDone { io: *io, result });
                }
                Action::Fence { op } => events.push(Event::Fenced {
                    op: *op,
                    ok: true,
                    mismatch: false,
                }),
                Action::Complete { tag, .. } => {
                    free[usize::from(*tag)] = true;
                    done += 1;
                }
                Action::Send {
                    msg: msg @ Msg::NeedBit { .. },
                    ..
                } => asked.push(*msg),
                _ => {}
            }
        }
        for msg in asked.drain(..) {
            // The manager's thread may allocate.
            let before = ALLOCATIONS.with(Cell::get);
            set_bit(manager, msg, events);
            ALLOCATIONS.with(|n| n.set(before));
        }
        out.clear();
    }
}

/// The manager and its edge, as far as bits are concerned.
fn set_bit(manager: &mut Manager, msg: Msg, events: &mut Vec<Event>) {
    let mut out = Vec::new();
    manager.event(0, ManagerEvent::Msg(msg), &mut out);
    while !out.is_empty() {
        for action in std::mem::take(&mut out) {
            match action {
                ManagerAction::Bitmap(write) => {
                    for slot in write.targets.iter() {
                        let done = ManagerEvent::BitmapDone { slot, ok: true };
                        manager.event(0, done, &mut out);
                    }
                }
                ManagerAction::Send { msg: Msg::Bits, .. } => events.push(Event::Msg(Msg::Bits)),
                _ => {}
            }
        }
    }
}

/// A manager whose array is in sync, with a bitmap that has no bit set yet.
fn manager(geometry: &Geometry) -> Manager {
    let layout = layout::Layout::new(geometry.clone());
    let mut manager = Manager::new(ManagerConfig {
        members: geometry.members(),
        parities: geometry.parities(),
        queues: 1,
        bands: layout.bands(),
        band_rows: layout.rows,
        events: 1,
        resync_offset: u64::MAX,
        missing: SlotSet::EMPTY,
        filling: SlotSet::EMPTY,
        recovery: 0,
        unrecorded: false,
        read_only: false,
        safe_mode_delay_ms: 1000,
        sweep_floor: 1,
        sweep_ceiling: None,
        window: 1,
        checkpoint_ms: 1000,
    });
    let header = Header::new([1; 16], geometry.member_sectors(), 1 << 20);
    let map = Map::clean(&header).expect("valid");
    manager.set_bitmap(IntentManager::new(header, map, &layout, u64::MAX, 4096, 0));
    manager
}

#[test]
fn nothing_is_allocated_after_the_start() {
    let mut random = Random(1);
    for (level, missing, filling) in [
        (Level::Raid5, None, None),
        (Level::Raid6, None, None),
        (Level::Raid6, Some(2u16), None),
        (Level::Raid6, None, Some(3u16)),
        (Level::Raid6, Some(2), Some(3)),
    ] {
        let geometry = Geometry::parity(level, 2, 7, 256, 256 * 400).expect("valid");
        let mut view = View {
            writable: true,
            synced: 40,
            ..View::default()
        };
        if let Some(slot) = missing {
            view.missing.insert(slot);
        }
        if let Some(slot) = filling {
            view.filling.insert(slot);
            (view.filled, view.fill_end) = (200, 500);
        }
        let cfg = QueueConfig {
            queue: 0,
            queues: 1,
            depth: 16,
            max_sectors: 8192,
            frames: 24,
            defer_passes: 2,
        };
        let total = geometry.array_sectors();
        let mut manager = manager(&geometry);
        let mut core = QueueCore::new(cfg, geometry, Arc::new(Owners::new(256)), view);
        core.set_intent(manager.bitmap().expect("just made").intent());
        let mut out = Actions::with_capacity(1 << 16, 1 << 17);
        let mut events = Vec::with_capacity(1 << 16);
        let mut asked = Vec::with_capacity(1 << 12);
        let before = ALLOCATIONS.with(Cell::get);
        work(
            &mut core,
            total,
            20_000,
            &mut random,
            &mut out,
            &mut events,
            &mut manager,
            &mut asked,
        );
        let allocations = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(
            allocations, 0,
            "{level:?} without {missing:?}, filling {filling:?}"
        );
        assert!(
            core.stats().recovers + core.stats().decoded > 0,
            "errors were part of it"
        );
        let (dirty, chunks) = manager.bitmap().expect("just made").dirty();
        assert_eq!(dirty, chunks, "every bit was asked for and set");
    }
}
