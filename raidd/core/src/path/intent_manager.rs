//! The manager's share of the write-intent bitmap: what the members' bits say, which are to be set or cleared next, and which
//! bands have to be swept after a crash. Pure; the edge writes the bytes that it is given.
//!
//! Promises, beside those of [`super::intent`]:
//! - a unit is published only when its bits are durable on every present member, and no loss is unrecorded: a member that
//!   lacks the bit must not come back as a fresh one;
//! - bits are cleared only on a whole array, after the writes under them have ended and every member has been flushed since;
//! - the header is written before a superblock with the same events, on all members, so that no superblock is ever ahead of
//!   the bitmap (MD would take such a bitmap for out of date and sync everything);
//! - `events_cleared` is durable before a bit is cleared, and never above what all members have as their events;
//! - a member gets the whole map before the first of its superblocks is written: after a crash the members' bitmaps differ.
//!
//! Costs one byte per unit beside the map; a round of clearing looks at each unit once in `daemon_sleep` seconds.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::intent::Intent;
use super::layout::Layout;
use super::manager::ManagerAction;
use super::types::{Msg, SlotSet};
use crate::bitmap::{Header, Map};

/// Bytes for the bitmaps of some members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapWrite {
    /// Slots to write to. Each is answered with [`super::manager::ManagerEvent::BitmapDone`] when all is written *and* the
    /// member's cache is empty.
    pub targets: SlotSet,
    /// Byte offset from the start of the bitmap on the member, and whole blocks. None: only flush.
    pub runs: Vec<(u64, Vec<u8>)>,
}

/// What the manager knows besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Members that take part.
    pub present: SlotSet,
    /// Nothing is missing or being filled.
    pub optimal: bool,
    /// The survivors say who is missing, twice, and all queues know.
    pub recorded: bool,
    /// Not failed, not read-only.
    pub alive: bool,
    /// No queue writes or will, and nothing is in a member's cache.
    pub quiet: bool,
    pub stopping: bool,
    /// Events that all present members have.
    pub events: u64,
    pub queues: u16,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Bits and header; these units are published afterwards.
    Set { units: Vec<u64>, full: bool },
    /// All caches are emptied, and `events_cleared` with them.
    Flush,
    /// Bits go.
    Wipe,
}

#[derive(Clone, Debug)]
struct Flight {
    kind: Kind,
    targets: SlotSet,
    pending: SlotSet,
    failed: SlotSet,
    events: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clear {
    Idle,
    /// Queues have been asked in this round, so many have not answered.
    Asking {
        left: u16,
    },
    /// Waiting for a flush to be sent, or for its answers.
    Flushing,
    /// Waiting for the bits to be cleared.
    Wiping,
}

/// See the module comment.
#[derive(Clone, Debug)]
pub struct IntentManager {
    intent: Arc<Intent>,
    header: Header,
    map: Map,
    /// Sectors of each member in a unit.
    unit_sectors: u64,
    bands: u64,
    /// Bands that had to be swept at the start.
    needed: u64,
    /// Bytes of a block of the bitmap.
    block: u64,
    period_ms: u64,
    /// Events that are durable in the headers of all members in `written`.
    durable_events: u64,
    /// Events that a superblock waits for.
    wanted_events: u64,
    /// Members that have the whole map.
    written: SlotSet,
    /// A superblock waits for members that have not.
    wanted_map: bool,
    /// Units that queues wait for.
    want: Vec<u64>,
    flight: Option<Flight>,
    clear: Clear,
    clearing: Vec<u64>,
    round: u32,
    next_age_ms: u64,
    #[cfg(feature = "planted-bugs")]
    pub(super) bug: Option<super::queue::Bug>,
}

impl IntentManager {
    /// Takes over the bitmap found on the members. Dirty chunks at or behind `resync_offset` (member sectors, `u64::MAX` for
    /// a clean array) have to be swept; the others only wait to be cleared. `block_bytes`: 512 or 4096. `now_ms`: the clock
    /// of the events to come.
    pub fn new(
        header: Header,
        map: Map,
        layout: &Layout,
        resync_offset: u64,
        block_bytes: u32,
        now_ms: u64,
    ) -> IntentManager {
        let rows = u64::from(layout.rows);
        let unit_sectors = map
            .chunk_sectors()
            .max(u64::from(layout.geometry.chunk_sectors()));
        let intent = Intent::new(layout.bands(), unit_sectors / rows);
        let mut map = map;
        for range in map.dirty().collect::<Vec<_>>() {
            for unit in range.start / unit_sectors..range.end.div_ceil(unit_sectors) {
                let sectors =
                    unit * unit_sectors..((unit + 1) * unit_sectors).min(header.sync_size);
                intent.load(
                    unit,
                    resync_offset != u64::MAX && sectors.end > resync_offset,
                );
                // A unit is dirty as a whole.
                map.mark(sectors);
            }
        }
        let period_ms = u64::from(header.daemon_sleep) * 1000;
        let mut bitmap = IntentManager {
            intent: Arc::new(intent),
            durable_events: 0,
            wanted_events: 0,
            header,
            map,
            unit_sectors,
            bands: layout.bands(),
            needed: 0,
            block: u64::from(block_bytes),
            period_ms,
            written: SlotSet::EMPTY,
            wanted_map: false,
            want: Vec::new(),
            flight: None,
            clear: Clear::Idle,
            clearing: Vec::new(),
            round: 0,
            next_age_ms: now_ms + period_ms,
            #[cfg(feature = "planted-bugs")]
            bug: None,
        };
        let done = match resync_offset {
            u64::MAX => layout.bands(),
            offset => offset / rows,
        };
        bitmap.needed = bitmap.left(done);
        bitmap
    }

    /// With another time between rounds of clearing than the header says.
    #[must_use]
    pub fn every(mut self, period_ms: u64) -> IntentManager {
        self.next_age_ms = self.next_age_ms - self.period_ms + period_ms;
        self.period_ms = period_ms;
        self
    }

    /// What the queues look at.
    pub fn intent(&self) -> Arc<Intent> {
        self.intent.clone()
    }

    /// Bytes of each member's data that a chunk of the bitmap stands for.
    pub fn chunk_bytes(&self) -> u64 {
        u64::from(self.header.chunk_bytes)
    }

    /// Chunks that are dirty on the members, of all.
    pub fn dirty(&self) -> (u64, u64) {
        (self.map.count(), self.map.chunks())
    }

    /// Nothing is under way to a member.
    pub fn settled(&self) -> bool {
        self.flight.is_none() && self.want.is_empty() && self.clear == Clear::Idle
    }

    /// Whether superblocks with these events may be written to these members; if not, sees to it that they soon may.
    pub(super) fn ahead(&mut self, events: u64, targets: &SlotSet) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug == Some(super::queue::Bug::HeaderBehind) && self.level(targets) {
            return true;
        }
        if self.durable_events >= events && self.written.includes(targets) {
            return true;
        }
        self.wanted_events = self.wanted_events.max(events);
        self.wanted_map |= !self.written.includes(targets);
        false
    }

    /// Whether these members have the whole map.
    pub(super) fn level(&self, present: &SlotSet) -> bool {
        self.written.includes(present)
    }

    /// There is another member in this slot, which has no bitmap yet.
    pub(super) fn forget(&mut self, slot: u16) {
        self.written.remove(slot);
    }

    /// A queue waits for a unit.
    pub(super) fn need(&mut self, unit: u64, queues: u16, out: &mut Vec<ManagerAction>) {
        let wiping = self.clear == Clear::Wiping && self.intent.clearing(unit);
        #[cfg(feature = "planted-bugs")]
        let early = self.bug == Some(super::queue::Bug::BitBeforeDurable);
        #[cfg(not(feature = "planted-bugs"))]
        let early = false;
        if (self.intent.dirty(unit) && !wiping) || early {
            // It is set already, or still: nothing has been cleared on a member.
            self.intent.publish(unit);
            release(queues, out);
            if !early {
                return;
            }
        }
        self.want.push(unit);
    }

    /// A queue has ended all writes that it had begun when it was asked.
    pub(super) fn ended(&mut self, round: u32) {
        if let Clear::Asking { left } = self.clear
            && round == self.round
        {
            self.clear = match left {
                1 => Clear::Flushing,
                _ => Clear::Asking { left: left - 1 },
            };
        }
    }

    /// A member has taken its bytes, or not. Gives the members that failed once all have answered.
    pub(super) fn done(
        &mut self,
        slot: u16,
        ok: bool,
        queues: u16,
        out: &mut Vec<ManagerAction>,
    ) -> SlotSet {
        let flight = self.flight.as_mut().expect("bitmap bytes are under way");
        flight.pending.remove(slot);
        if !ok {
            flight.failed.insert(slot);
        }
        if !flight.pending.is_empty() {
            return SlotSet::EMPTY;
        }
        let flight = self.flight.take().expect("checked above");
        for slot in flight.failed.iter() {
            self.written.remove(slot);
        }
        let some = flight.failed != flight.targets;
        match flight.kind {
            Kind::Set { units, full } => {
                if some {
                    self.durable_events = self.durable_events.max(flight.events);
                    for slot in flight.targets.iter().filter(|_| full) {
                        if !flight.failed.contains(slot) {
                            self.written.insert(slot);
                        }
                    }
                }
                if flight.failed.is_empty() {
                    for unit in &units {
                        self.intent.publish(*unit);
                    }
                    if !units.is_empty() {
                        release(queues, out);
                    }
                } else {
                    // Once more, when the others have recorded who is missing.
                    self.want.extend(units);
                }
            }
            Kind::Flush if flight.failed.is_empty() => self.clear = Clear::Wiping,
            Kind::Flush => self.give_up(),
            Kind::Wipe => {
                for unit in std::mem::take(&mut self.clearing) {
                    self.intent.cleared(unit);
                }
                self.clear = Clear::Idle;
            }
        }
        flight.failed
    }

    fn give_up(&mut self) {
        for unit in std::mem::take(&mut self.clearing) {
            self.intent.keep(unit);
        }
        self.clear = Clear::Idle;
    }

    /// Starts what is due.
    pub(super) fn run(&mut self, now_ms: u64, facts: &Facts, out: &mut Vec<ManagerAction>) {
        let may_clear = facts.optimal && facts.recorded && facts.alive;
        #[cfg(feature = "planted-bugs")]
        let may_clear =
            may_clear || (facts.alive && self.bug == Some(super::queue::Bug::ClearWhileDegraded));
        if !may_clear && self.flight.is_none() && self.clear != Clear::Idle {
            self.give_up();
        }
        if self.flight.is_some() || !facts.alive || facts.present.is_empty() {
            return;
        }
        let header = self.wanted_events > self.durable_events;
        let map = self.wanted_map && !self.level(&facts.present);
        let bits = !self.want.is_empty() && facts.recorded;
        if header || map || bits {
            return self.send_set(facts, bits, out);
        }
        match self.clear {
            Clear::Idle if may_clear => self.start_clear(now_ms, facts, out),
            Clear::Idle | Clear::Asking { .. } => {}
            Clear::Flushing => self.send_flush(facts, out),
            Clear::Wiping => self.send_wipe(facts, out),
        }
    }

    fn send(
        &mut self,
        kind: Kind,
        facts: &Facts,
        runs: Vec<(u64, Vec<u8>)>,
        out: &mut Vec<ManagerAction>,
    ) {
        self.flight = Some(Flight {
            kind,
            targets: facts.present,
            pending: facts.present,
            failed: SlotSet::EMPTY,
            events: self.header.events,
        });
        out.push(ManagerAction::Bitmap(BitmapWrite {
            targets: facts.present,
            runs,
        }));
    }

    fn send_set(&mut self, facts: &Facts, bits: bool, out: &mut Vec<ManagerAction>) {
        let full = !self.level(&facts.present);
        let mut blocks = BTreeSet::new();
        let events = self.header.events.max(self.wanted_events).max(facts.events);
        if events != self.header.events || events > self.durable_events {
            self.header.events = events;
            // What was out of date or failed once is so no more: what is written now is whole.
            self.header.state = 0;
            blocks.insert(0);
        }
        let mut units = Vec::new();
        if bits {
            units = std::mem::take(&mut self.want);
            for unit in &units {
                blocks.extend(self.mark(*unit));
            }
        }
        if full {
            self.wanted_map = false;
            blocks = (0..self.header.bytes().div_ceil(self.block)).collect();
        }
        let runs = self.runs(&blocks);
        self.send(Kind::Set { units, full }, facts, runs, out);
    }

    fn sectors(&self, unit: u64) -> std::ops::Range<u64> {
        unit * self.unit_sectors..(unit + 1) * self.unit_sectors
    }

    fn blocks_of(&self, unit: u64) -> std::ops::Range<u64> {
        Map::blocks(self.map.bits(self.sectors(unit)), self.block as usize)
    }

    fn mark(&mut self, unit: u64) -> std::ops::Range<u64> {
        self.map.mark(self.sectors(unit));
        self.blocks_of(unit)
    }

    /// The bytes of some blocks, neighbours together.
    fn runs(&self, blocks: &BTreeSet<u64>) -> Vec<(u64, Vec<u8>)> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for block in blocks {
            let at = block * self.block;
            let mut bytes = vec![0; self.block as usize];
            self.map.block(&self.header, *block, &mut bytes);
            match runs.last_mut() {
                Some((first, run)) if *first + run.len() as u64 == at => run.extend(bytes),
                _ => runs.push((at, bytes)),
            }
        }
        runs
    }

    fn start_clear(&mut self, now_ms: u64, facts: &Facts, out: &mut Vec<ManagerAction>) {
        let units = 0..self.intent.units();
        if facts.stopping {
            if facts.quiet {
                self.clearing = units.filter(|u| self.intent.retire(*u)).collect();
                if !self.clearing.is_empty() {
                    self.clear = Clear::Flushing;
                    self.send_flush(facts, out);
                }
            }
            return;
        }
        if now_ms < self.next_age_ms {
            return;
        }
        self.next_age_ms = now_ms + self.period_ms;
        self.clearing = units.filter(|u| self.intent.age(*u)).collect();
        if self.clearing.is_empty() {
            return;
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug == Some(super::queue::Bug::ClearEarly) {
            self.clear = Clear::Wiping;
            return self.send_wipe(facts, out);
        }
        self.round += 1;
        self.clear = Clear::Asking { left: facts.queues };
        let msg = Msg::Begun { round: self.round };
        for queue in 0..facts.queues {
            out.push(ManagerAction::Send { queue, msg });
        }
    }

    fn send_flush(&mut self, facts: &Facts, out: &mut Vec<ManagerAction>) {
        if self.clearing.is_empty() {
            self.clear = Clear::Idle;
            return;
        }
        let mut blocks = BTreeSet::new();
        if self.header.events_cleared < facts.events {
            self.header.events_cleared = facts.events;
            blocks.insert(0);
        }
        let runs = self.runs(&blocks);
        self.send(Kind::Flush, facts, runs, out);
    }

    fn send_wipe(&mut self, facts: &Facts, out: &mut Vec<ManagerAction>) {
        let mut blocks = BTreeSet::new();
        // Some have been asked for in the meantime.
        let intent = &self.intent;
        self.clearing.retain(|unit| intent.clearing(*unit));
        for unit in &self.clearing {
            self.map
                .clear(unit * self.unit_sectors..(unit + 1) * self.unit_sectors);
            blocks.extend(self.blocks_of(*unit));
        }
        if blocks.is_empty() {
            self.clear = Clear::Idle;
            return;
        }
        let runs = self.runs(&blocks);
        self.send(Kind::Wipe, facts, runs, out);
    }

    /// Nothing is left to be done for a clean stop.
    pub(super) fn at_rest(&self, facts: &Facts) -> bool {
        if !facts.alive {
            return true;
        }
        let clearable = |unit: u64| self.intent.dirty(unit) && !self.intent.needed(unit);
        self.settled() && !(facts.optimal && (0..self.intent.units()).any(clearable))
    }

    // --- the sweep after a crash ------------------------------------------------------------------------------

    fn bands_of(&self, unit: u64) -> std::ops::Range<u64> {
        self.intent.first_band(unit)..self.intent.first_band(unit + 1).min(self.bands)
    }

    /// The first run of bands from `band` on that have to be swept.
    pub(super) fn next_needed(&self, band: u64) -> Option<std::ops::Range<u64>> {
        let units = self.intent.units();
        let first = (self.intent.unit(band)..units).find(|u| self.intent.needed(*u))?;
        let end = (first..units)
            .find(|u| !self.intent.needed(*u))
            .unwrap_or(units);
        let end = self.intent.first_band(end).min(self.bands);
        Some(band.max(self.intent.first_band(first))..end)
    }

    /// Parity is right below this band: units that lie there as a whole are needed no more.
    pub(super) fn swept(&mut self, first: u64, end: u64) {
        for unit in self.intent.unit(first)..self.intent.units() {
            if self.bands_of(unit).end > end {
                break;
            }
            self.intent.in_sync(unit);
        }
    }

    /// Parity is right everywhere.
    pub(super) fn all_swept(&mut self) {
        for unit in 0..self.intent.units() {
            self.intent.in_sync(unit);
        }
    }

    /// Bands from `band` on that have to be swept still.
    pub fn left(&self, band: u64) -> u64 {
        (self.intent.unit(band)..self.intent.units())
            .filter(|unit| self.intent.needed(*unit))
            .map(|unit| {
                let range = self.bands_of(unit);
                range.end.saturating_sub(range.start.max(band))
            })
            .sum()
    }

    /// Bands that were to be swept below `band`, and all that were at the start.
    pub(super) fn progress(&self, band: u64) -> (u64, u64) {
        (self.needed.saturating_sub(self.left(band)), self.needed)
    }

    /// Bands that a member lacks which left the array when it had these events: those under dirty chunks. None if bits have
    /// been cleared since then, so that all of it has to be filled. Uuid and slot must be the same too.
    pub fn missed_by(&self, member_events: u64) -> Option<Vec<std::ops::Range<u64>>> {
        if !self.header.may_rejoin(member_events) {
            return None;
        }
        let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
        for unit in (0..self.intent.units()).filter(|unit| self.intent.dirty(*unit)) {
            let range = self.bands_of(unit);
            match runs.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => runs.push(range),
            }
        }
        Some(runs)
    }
}

/// Tells all queues to look at the bits again.
fn release(queues: u16, out: &mut Vec<ManagerAction>) {
    for queue in 0..queues {
        let msg = Msg::Bits;
        out.push(ManagerAction::Send { queue, msg });
    }
}
