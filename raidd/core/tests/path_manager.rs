//! The manager by itself: members that join and leave, checkpoints, scrubs, pauses and rates. One queue that acknowledges
//! everything at once stands for all of them.

use raid_core::path::manager::*;
use raid_core::path::types::*;

struct Rig {
    manager: Manager,
    now: u64,
    records: Vec<Record>,
    windows: Vec<(SweepKind, u64, u64)>,
    aborted: bool,
    notes: Vec<Note>,
    view: View,
}

const BANDS: u64 = 64;
const ROWS: u32 = 16;
const WINDOW: u64 = 8;
const BYTES: u64 = WINDOW * ROWS as u64 * 512;

fn config(parities: u16, missing: &[u16]) -> ManagerConfig {
    let mut set = SlotSet::EMPTY;
    for slot in missing {
        set.insert(*slot);
    }
    ManagerConfig {
        members: 5,
        parities,
        queues: 1,
        bands: BANDS,
        band_rows: ROWS,
        events: 10,
        resync_offset: u64::MAX,
        missing: set,
        unrecorded: !missing.is_empty(),
        read_only: false,
        safe_mode_delay_ms: 1_000_000,
        sweep_floor: 1,
        sweep_ceiling: None,
        window: WINDOW,
        filling: SlotSet::EMPTY,
        recovery: 0,
        checkpoint_ms: 1000,
    }
}

impl Rig {
    fn new(cfg: ManagerConfig) -> Rig {
        let manager = Manager::new(cfg);
        let mut rig = Rig {
            view: manager.view(),
            manager,
            now: 0,
            records: Vec::new(),
            windows: Vec::new(),
            aborted: false,
            notes: Vec::new(),
        };
        let mut out = Vec::new();
        rig.manager.start(0, &mut out);
        rig.carry_out(out);
        rig
    }

    fn event(&mut self, event: ManagerEvent) {
        let mut out = Vec::new();
        self.manager.event(self.now, event, &mut out);
        self.carry_out(out);
    }

    fn carry_out(&mut self, actions: Vec<ManagerAction>) {
        for action in actions {
            match action {
                ManagerAction::Send { msg, .. } => match msg {
                    Msg::View(view) => {
                        self.view = view;
                        let (epoch, fill) = (view.epoch, view.fill);
                        self.event(ManagerEvent::Msg(Msg::ViewAck {
                            queue: 0,
                            epoch,
                            fill,
                        }));
                    }
                    Msg::Sweep { kind, first, end } => self.windows.push((kind, first, end)),
                    Msg::SweepAbort => self.aborted = true,
                    _ => {}
                },
                ManagerAction::Record(record) => self.records.push(record),
                ManagerAction::Note(note) => self.notes.push(note),
                ManagerAction::Bitmap(_) => unreachable!("the array has no bitmap"),
                ManagerAction::Stopped => {}
            }
        }
    }

    /// The oldest record becomes durable.
    fn record(&mut self) -> Record {
        let record = self.records.remove(0);
        for slot in record.targets.iter() {
            self.event(ManagerEvent::Recorded { slot, ok: true });
        }
        record
    }

    fn record_all(&mut self) {
        while !self.records.is_empty() {
            self.record();
        }
    }

    /// The window in hand is done after this time.
    fn swept(&mut self, ms: u64, foreground: u64) {
        let (_, _, end) = self.windows.remove(0);
        self.now += ms;
        self.event(ManagerEvent::Msg(Msg::SweepDone {
            end,
            repaired: 0,
            unreadable: 0,
            foreground,
        }));
    }

    fn tick(&mut self, ms: u64) {
        self.now += ms;
        self.event(ManagerEvent::Tick);
    }

    fn refused(&mut self) -> Option<(Wish, Refused)> {
        self.notes.drain(..).find_map(|n| match n {
            Note::Refused { wish, why } => Some((wish, why)),
            _ => None,
        })
    }
}

fn set(slot: u16) -> SlotSet {
    let mut set = SlotSet::EMPTY;
    set.insert(slot);
    set
}

#[test]
fn a_member_joins_after_the_loss_is_recorded_twice_and_is_filled_window_by_window() {
    let mut r = Rig::new(config(1, &[3]));
    r.event(ManagerEvent::Join { slot: 3, from: 0 });
    assert!(r.view.missing.contains(3), "not recorded yet");
    r.record(); // levels
    r.record();
    r.record();
    assert!(r.notes.contains(&Note::RebuildStarted { slots: set(3) }));
    assert_eq!((r.view.filling, r.view.fill_end), (set(3), 0));
    assert!(r.windows.is_empty(), "its coming is not recorded yet");
    r.record();
    let second = r.record();
    assert_eq!((second.filling, second.recovery), (set(3), 0));
    assert_eq!(r.windows, [(SweepKind::Fill, 0, WINDOW)]);
    assert_eq!((r.view.filled, r.view.fill_end), (0, 2 * WINDOW));
    r.swept(1, 0);
    assert_eq!((r.view.filled, r.view.fill_end), (WINDOW, 3 * WINDOW));
}

#[test]
fn a_checkpoint_says_what_the_record_before_it_has_flushed() {
    let mut cfg = config(1, &[]);
    cfg.filling = set(2);
    let mut r = Rig::new(cfg);
    r.swept(1, 0);
    r.swept(1, 0);
    r.tick(1000);
    assert_eq!(r.record().recovery, 0);
    r.swept(1, 0);
    r.tick(1000);
    assert_eq!(r.record().recovery, 2 * WINDOW * u64::from(ROWS));
    while !r.windows.is_empty() {
        r.swept(1, 0);
    }
    let last = r.record();
    assert_eq!(last.filling, set(2), "flushes it");
    assert!(
        !r.notes
            .iter()
            .any(|n| matches!(n, Note::RebuildFinished { .. }))
    );
    let whole = r.record();
    assert_eq!((whole.filling, whole.recovery), (SlotSet::EMPTY, 0));
    assert!(r.notes.contains(&Note::RebuildFinished { slots: set(2) }));
}

/// After a crash parity below the frontier comes first; beyond it one pass does both.
#[test]
fn resync_goes_up_to_the_frontier_and_the_rebuild_does_the_rest() {
    let mut cfg = config(2, &[]);
    (cfg.filling, cfg.recovery) = (set(2), 2 * WINDOW * u64::from(ROWS));
    cfg.resync_offset = 0;
    let mut r = Rig::new(cfg);
    let kinds: Vec<_> = std::iter::from_fn(|| {
        let window = *r.windows.first()?;
        r.swept(1, 0);
        Some(window)
    })
    .collect();
    assert_eq!(kinds[1], (SweepKind::Resync, WINDOW, 2 * WINDOW));
    assert_eq!(kinds[2], (SweepKind::Fill, 2 * WINDOW, 3 * WINDOW));
    assert_eq!(kinds.len() as u64, BANDS / WINDOW);
    assert_eq!(r.manager.progress(), (BANDS, BANDS));
}

#[test]
fn a_member_that_fails_again_is_missing_again() {
    let mut r = Rig::new(config(1, &[3]));
    r.event(ManagerEvent::Join { slot: 3, from: 0 });
    r.record_all();
    r.swept(1, 0);
    let (slot, error) = (3, MemberError::Gone);
    r.event(ManagerEvent::Msg(Msg::MemberFailed { slot, error }));
    assert!(r.notes.contains(&Note::RebuildAborted { slots: set(3) }));
    assert!(!r.view.failed && r.view.missing.contains(3) && r.view.filling.is_empty());
}

#[test]
fn what_would_lose_data_is_refused() {
    let mut r = Rig::new(config(1, &[3]));
    r.event(ManagerEvent::Leave { slot: 1 });
    assert_eq!(r.refused(), Some((Wish::Leave(1), Refused::Needed)));
    r.event(ManagerEvent::Leave { slot: 3 });
    assert_eq!(r.refused(), Some((Wish::Leave(3), Refused::Empty)));
    r.event(ManagerEvent::Join { slot: 1, from: 0 });
    assert_eq!(r.refused(), Some((Wish::Join(1), Refused::Occupied)));
    let (kind, first, end) = (Scrub::Check, 0, BANDS);
    r.event(ManagerEvent::Scrub { kind, first, end });
    assert_eq!(r.refused(), Some((Wish::Scrub, Refused::NoRedundancy)));
    let mut r = Rig::new(config(2, &[]));
    r.event(ManagerEvent::Leave { slot: 1 });
    assert!(r.view.missing.contains(1) && r.refused().is_none());
}

#[test]
fn a_scrub_counts_and_stops_at_once() {
    let mut r = Rig::new(config(2, &[]));
    let (kind, first) = (Scrub::Check, 4);
    let end = 4 + 3 * WINDOW;
    r.event(ManagerEvent::Scrub { kind, first, end });
    let mismatch = Msg::Mismatch {
        band: 5,
        lo: 2,
        hi: 6,
        located: Some(1),
        repaired: false,
    };
    r.event(ManagerEvent::Msg(mismatch));
    r.swept(1, 0);
    let state = r.manager.sweep().expect("under way");
    assert_eq!((state.done, state.total, state.mismatches), (8, 24, 4));
    r.event(ManagerEvent::ScrubStop);
    assert!(r.aborted);
    let (_, first, _) = r.windows.remove(0);
    let done = Msg::SweepDone {
        end: first,
        repaired: 0,
        unreadable: 0,
        foreground: 0,
    };
    r.event(ManagerEvent::Msg(done));
    let finished = Note::ScrubFinished {
        kind,
        complete: false,
        checked: WINDOW,
        mismatches: 4,
        repaired: 0,
        unreadable: 0,
    };
    assert_eq!(r.notes.last(), Some(&finished));
    assert!(r.manager.sweep().is_none() && r.windows.is_empty());
}

#[test]
fn a_pause_lets_no_window_begin() {
    let mut cfg = config(1, &[]);
    cfg.resync_offset = 0;
    let mut r = Rig::new(cfg);
    r.event(ManagerEvent::Pause(true));
    r.swept(1, 0);
    assert!(r.windows.is_empty() && r.manager.sweep().is_some_and(|s| s.paused));
    r.event(ManagerEvent::Pause(false));
    assert_eq!(r.windows, [(SweepKind::Resync, WINDOW, 2 * WINDOW)]);
}

/// Time from one window's begin to the next, where each takes 10 ms.
fn period(r: &mut Rig, foreground: u64) -> u64 {
    let begun = r.now;
    r.swept(10, foreground);
    while r.windows.is_empty() {
        r.tick(1);
    }
    r.now - begun
}

#[test]
fn requests_halve_the_share_of_a_sweep_and_rest_doubles_it() {
    let mut cfg = config(1, &[]);
    (cfg.resync_offset, cfg.bands) = (0, 1 << 20);
    let mut r = Rig::new(cfg);
    let busy: Vec<u64> = (0..6).map(|_| period(&mut r, 1)).collect();
    assert_eq!(busy, [20, 40, 80, 160, 160, 160]);
    let idle: Vec<u64> = (0..5).map(|_| period(&mut r, 0)).collect();
    assert_eq!(idle, [80, 40, 20, 10, 10]);
}

#[test]
fn floor_and_ceiling_bound_the_rate() {
    let mut cfg = config(1, &[]);
    (cfg.resync_offset, cfg.bands) = (0, 1 << 20);
    let mut r = Rig::new(cfg);
    // A window every 50 ms at least, and every 30 ms at most.
    let (floor, ceiling) = (BYTES * 1000 / 50, Some(BYTES * 1000 / 30));
    r.event(ManagerEvent::Rates { floor, ceiling });
    assert_eq!(period(&mut r, 0), 30);
    let busy: Vec<u64> = (0..4).map(|_| period(&mut r, 1)).collect();
    assert_eq!(busy, [30, 40, 50, 50]);
}
