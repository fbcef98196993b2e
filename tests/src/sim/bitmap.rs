//! The write-intent bitmap under simulation: the blocks on the members with their caches, writes under way, power cuts, what
//! the next start reads, and what must always be true of bits and headers. The real [`Map`] and [`Header`] make the bytes.
//!
//! A start reads the bits as raidd does, from all fresh members together, or as Linux does, from any one of them.

use std::collections::BTreeMap;

use raid_core::bitmap::{Header, Map};
use raid_core::geometry::Geometry;
use raid_core::path::intent_manager::{BitmapWrite, IntentManager};
use raid_core::path::manager::{Manager, ManagerEvent, Record};
use raid_core::path::types::*;

use super::disk::Super;
use super::rng::Rng;
use super::setup::{EdgeBug, Setup, Start};
use super::world::{MemberIo, Outcome, World};

/// Bytes of a block, small so that a map has several.
const BLOCK: usize = 512;

/// What a seed draws for the bitmap.
#[derive(Clone, Copy, Debug)]
pub struct BitmapSetup {
    /// Sectors of a member for each bit.
    pub chunk: u32,
    /// Between rounds of clearing, ms.
    pub period_ms: u64,
    /// A crash has happened before the start: parity is garbage under some bits, and only there.
    pub crashed: bool,
    /// Do not compare every write with the bits: what is wrong has to show after a power cut.
    pub blind: bool,
}

/// Half of the arrays with parity have a bitmap. From a stream of its own, so that the rest of a seed does not change.
pub fn draw(seed: u64, geometry: &Geometry) -> Option<BitmapSetup> {
    let mut r = Rng::new(seed ^ 0xb17_3a9);
    let chunks = [1, 4, 8, 16, 32, 64, 256, 1024];
    let draw = BitmapSetup {
        chunk: r.pick(&chunks),
        period_ms: r.pick(&[5, 20, 100, 1000]),
        crashed: r.chance(50),
        blind: false,
    };
    (geometry.parities() > 0 && r.chance(50)).then_some(draw)
}

/// One member's bitmap area.
#[derive(Clone, Debug)]
struct Area {
    media: Vec<u8>,
    /// Versions of blocks that are not flushed, oldest first.
    cache: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Area {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        for (i, block) in bytes.chunks(BLOCK).enumerate() {
            let key = at / BLOCK as u64 + i as u64;
            self.cache.entry(key).or_default().push(block.to_vec());
        }
    }

    fn set(&mut self, key: u64, block: &[u8]) {
        let at = key as usize * BLOCK;
        self.media[at..at + block.len()].copy_from_slice(block);
    }

    fn flush(&mut self) {
        for (key, versions) in std::mem::take(&mut self.cache) {
            self.set(key, versions.last().expect("never empty"));
        }
    }

    fn power_cut(&mut self, rng: &mut Rng) {
        for (key, versions) in std::mem::take(&mut self.cache) {
            let at = rng.index(versions.len() + 1);
            if at > 0 {
                self.set(key, &versions[at - 1]);
            }
        }
    }

    fn header(&self) -> Header {
        Header::decode(&self.media).expect("a header")
    }
}

/// One member's part of a bitmap write.
#[derive(Debug)]
struct Flight {
    slot: u16,
    runs: Vec<(u64, Vec<u8>)>,
    written: bool,
}

/// See the module comment.
#[derive(Debug)]
pub struct Bits {
    setup: BitmapSetup,
    areas: Vec<Area>,
    flights: Vec<Flight>,
    /// Dirty chunks at the last write.
    dirty: u64,
}

impl Bits {
    /// The bitmap of a new array; see [`BitmapSetup::crashed`].
    pub fn new(setup: &Setup, sb: &Super) -> Option<Bits> {
        let bitmap = setup.bitmap?;
        let mut rng = Rng::new(setup.seed ^ 0xb17);
        let size = setup.geometry.member_sectors();
        let mut header = Header::new([7; 16], size, bitmap.chunk * 512);
        header.events = sb.events;
        let mut map = Map::clean(&header).expect("a valid header");
        let some = setup.start == Start::Clean || bitmap.crashed;
        let all = if some { 0 } else { sb.resync_offset.min(size) };
        if !some {
            map.mark(all..size);
        }
        for _ in 0..rng.below(4) {
            let at = rng.below(size);
            map.mark(at..at + 1);
        }
        let blocks = header.bytes().div_ceil(BLOCK as u64);
        let mut media = vec![0; blocks as usize * BLOCK];
        for (i, block) in media.chunks_mut(BLOCK).enumerate() {
            map.block(&header, i as u64, block);
        }
        let area = Area {
            media,
            cache: BTreeMap::new(),
        };
        Some(Bits {
            setup: bitmap,
            areas: vec![area; usize::from(setup.geometry.members())],
            flights: Vec::new(),
            dirty: 0,
        })
    }

    /// Whether a row's bit is set, as the first member says.
    pub fn names(&self, row: u64) -> bool {
        let area = &self.areas[0];
        let map = Map::decode(&area.header(), &area.media).expect("a bitmap");
        map.is_dirty(row..row + 1)
    }
}

impl World {
    /// Reads the bits of the members that are in and gives them to the manager.
    pub fn load_bits(&mut self, manager: &mut Manager, sb: &Super, missing: &SlotSet) {
        let Some(bits) = &self.bits else { return };
        let fresh: Vec<usize> = (0..bits.areas.len())
            .filter(|s| !missing.contains(*s as u16))
            .collect();
        let like_md = self.rng.chance(50);
        let one = fresh[self.rng.index(fresh.len())];
        let sources = if like_md { vec![one] } else { fresh };
        let mut header = bits.areas[one].header();
        let mut map: Option<Map> = None;
        for slot in sources {
            let area = &bits.areas[slot];
            let (found, _) = Map::load(&area.header(), &area.media, sb.events).expect("a bitmap");
            map = Some(match map {
                None => found,
                Some(mut map) => {
                    for range in found.dirty() {
                        map.mark(range);
                    }
                    map
                }
            });
            header.events_cleared = header.events_cleared.max(area.header().events_cleared);
        }
        let map = map.expect("some member is in");
        header.events = header.events.max(sb.events);
        self.log.add(|| {
            let dirty: Vec<_> = map.dirty().collect();
            format!("bitmap: {header:?} dirty {dirty:?}")
        });
        let period = bits.setup.period_ms;
        let loaded = IntentManager::new(
            header,
            map,
            &self.layout,
            sb.resync_offset,
            BLOCK as u32,
            self.clock_ms,
        );
        manager.set_bitmap(loaded.every(period));
        if let Some(bits) = &mut self.bits {
            bits.dirty = 0;
        }
        // Rows without a bit are in sync, or the bitmap lies.
        let intent = manager.bitmap().expect("just set").intent();
        for (row, hole) in self.holes.iter_mut().enumerate() {
            let band = row as u64 / u64::from(self.layout.rows);
            *hole &= intent.needed(intent.unit(band));
        }
    }

    /// Another member comes into a slot, with a bitmap in which nothing is set. False if something is still on its way to the
    /// one before it.
    pub fn exchange_bits(&mut self, slot: u16) -> bool {
        let Some(bits) = &mut self.bits else {
            return true;
        };
        if bits.flights.iter().any(|f| f.slot == slot) {
            return false;
        }
        let area = &mut bits.areas[usize::from(slot)];
        area.cache.clear();
        let header = area.header();
        let map = Map::clean(&header).expect("a valid header");
        for (i, block) in area.media.chunks_mut(BLOCK).enumerate() {
            map.block(&header, i as u64, block);
        }
        true
    }

    /// The manager wants bytes written.
    pub fn bits_sent(&mut self, write: &BitmapWrite) -> Outcome {
        if self.setup.read_only {
            return Err(format!("nothing may be written here: {write:?}"));
        }
        let bits = self.bits.as_mut().ok_or("there is no bitmap")?;
        if !bits.flights.is_empty() {
            return Err("two writes of the bitmap at once".into());
        }
        let dirty = self.manager.bitmap().map_or(0, |b| b.dirty().0);
        if dirty < bits.dirty && !self.manager.view().missing.is_empty() {
            return Err("bits are cleared while a member is missing".into());
        }
        bits.dirty = dirty;
        bits.flights = write
            .targets
            .iter()
            .map(|slot| Flight {
                slot,
                runs: write.runs.clone(),
                written: false,
            })
            .collect();
        Ok(())
    }

    /// Writes of the bitmap are under way.
    pub fn bits_under_way(&self) -> bool {
        self.bits.as_ref().is_some_and(|b| !b.flights.is_empty())
    }

    /// Nothing is under way or due.
    pub fn bits_quiet(&self) -> bool {
        let settled = || self.manager.bitmap().is_none_or(IntentManager::settled);
        !self.bits_under_way() && (self.beyond || self.setup.read_only || settled())
    }

    /// Some write of the bitmap goes on: into the cache, then with a flush onto the medium.
    pub fn bits_step(&mut self) -> Outcome {
        let waiting = self.bits.as_ref().map_or(0, |b| b.flights.len());
        let at = self.rng.index(waiting);
        let fail = self.faults_on && self.rng.chance(1);
        let bits = self.bits.as_mut().expect("a write is under way");
        let slot = bits.flights[at].slot;
        let index = usize::from(slot);
        let ok = if self.disks[index].gone {
            false
        } else if !bits.flights[at].written {
            bits.flights[at].written = true;
            for (offset, bytes) in &bits.flights[at].runs {
                bits.areas[index].put(*offset, bytes);
            }
            if !(fail && self.may_lose(slot)) {
                return Ok(());
            }
            self.lose(slot);
            false
        } else {
            if self.setup.edge_bug != Some(EdgeBug::BitsWithoutFlush) {
                bits.areas[index].flush();
                self.disks[index].flush();
            }
            true
        };
        if let Some(bits) = &mut self.bits {
            bits.flights.swap_remove(at);
        }
        self.manager_event(ManagerEvent::BitmapDone { slot, ok })
    }

    /// A flush of a member by others (a superblock, a request) takes the bitmap's blocks along.
    pub fn flush_bits(&mut self, slot: u16) {
        if let Some(bits) = &mut self.bits {
            bits.areas[usize::from(slot)].flush();
        }
    }

    /// Power is cut: of what is not flushed, block by block any version survives.
    pub fn cut_bits(&mut self) {
        let Some(bits) = &mut self.bits else { return };
        for flight in std::mem::take(&mut bits.flights) {
            let slot = usize::from(flight.slot);
            if !flight.written && !self.disks[slot].gone {
                for (offset, bytes) in &flight.runs {
                    bits.areas[slot].put(*offset, bytes);
                }
            }
        }
        for area in &mut bits.areas {
            area.power_cut(&mut self.rng);
        }
    }

    /// A member write begins: its bits must be durable wherever a later start may read them.
    pub fn check_bit(&self, q: usize, io: &MemberIo) -> Outcome {
        let Some(bits) = self.bits.as_ref().filter(|b| !b.setup.blind) else {
            return Ok(());
        };
        let missing = self.manager.view().missing;
        for slot in (0..self.layout.members).filter(|s| !missing.contains(*s)) {
            let area = &bits.areas[usize::from(slot)];
            if self.lost.contains(slot) {
                continue;
            }
            let map = Map::decode(&area.header(), &area.media).map_err(|e| e.to_string())?;
            if !map.is_dirty(io.sector..io.sector + u64::from(io.sectors)) {
                return Err(format!("q{q} writes without a bit on slot {slot}: {io:?}"));
            }
        }
        Ok(())
    }

    /// A superblock is about to be written: the bitmap must not be behind it, on any member.
    pub fn check_header(&self, record: &Record) -> Outcome {
        let Some(bits) = &self.bits else {
            return Ok(());
        };
        for slot in record.targets.iter() {
            let header = bits.areas[usize::from(slot)].header();
            if header.events < record.events && !self.lost.contains(slot) {
                return Err(format!("{record:?}, but slot {slot} has {header:?}"));
            }
        }
        Ok(())
    }

    /// After a clean stop of a whole array no bit is set, and header and superblock say the same.
    pub fn check_bits_stopped(&self) -> Outcome {
        let Some(bits) = &self.bits else {
            return Ok(());
        };
        let missing = self.manager.view().missing;
        let done = self.manager.progress().0 == self.layout.bands();
        for slot in (0..self.layout.members).filter(|s| !missing.contains(*s)) {
            let area = &bits.areas[usize::from(slot)];
            let header = area.header();
            let map = Map::decode(&header, &area.media).map_err(|e| e.to_string())?;
            let events = self.disks[usize::from(slot)].sb.events;
            let whole = missing.is_empty() && done;
            if (whole && map.count() > 0) || header.events < events {
                return Err(format!(
                    "stopped with {} bits of {}, {header:?}, superblock {events}, on slot {slot}",
                    map.count(),
                    map.chunks(),
                ));
            }
        }
        Ok(())
    }
}
