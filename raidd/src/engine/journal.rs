//! The member writes of one engine that may have been carried out in part, where a successor finds them if this process dies:
//! which sectors of which member, and where in the arena their bytes lie, which is in a file of its own beside this table.
//!
//! A stripe is whole before its writes and after them. So all writes of a pass are noted before the first is submitted, and
//! count from one store on, [`Journal::commit`]: a process that dies has none of them noted and none submitted, or all
//! noted. A note goes when its write has ended, before the core hears of it and uses the bytes' place, or the member's
//! sectors, for something else. Whoever writes all that is noted once more therefore makes every stripe whole, whatever
//! part of it the dead process had done; see `array::journal`.
//!
//! Costs eight stores into one cache line for each write, one for its end, one for a pass. No system call, no allocation.

use std::sync::atomic::Ordering;

use parity_kernels::Words;
use raid_core::path::types::{Buf, BufSlice, SlotSet};

/// First word of the table: name and version.
const MAGIC: u64 = u64::from_be_bytes(*b"raiddWJ\x01");
/// Words before the notes, two cache lines.
const HEAD: usize = 16;
/// Number of notes.
const COUNT: usize = 1;
/// Not 0: something could not be noted, so nothing can be concluded from the rest.
const DOUBT: usize = 2;
/// Four words: members on which a write has failed.
const FAILED: usize = 4;
/// The last pass whose notes count. In a cache line of its own, that of the writing thread.
const COMMITTED: usize = 8;
/// Words of a note, one cache line: pass, sector, sectors and slot and pieces, then places.
const NOTE: usize = 8;
/// Most pieces of one write; two places to a word.
const PIECES: usize = 10;

/// Where the words are. The daemon has them in a file's pages.
pub trait Table {
    /// Number of words.
    fn count(&self) -> usize;
    /// Stores a word, after all that were stored before.
    fn put(&self, at: usize, value: u64);
    /// The word.
    fn get(&self, at: usize) -> u64;
}

impl Table for Words {
    fn count(&self) -> usize {
        self.len()
    }
    #[inline]
    fn put(&self, at: usize, value: u64) {
        self[at].store(value, Ordering::Release);
    }
    #[inline]
    fn get(&self, at: usize) -> u64 {
        self[at].load(Ordering::Relaxed)
    }
}

/// Words that a journal for that many I/Os in flight takes.
pub fn words_for(ios: usize) -> usize {
    HEAD + ios * NOTE
}

/// See the module comment.
#[derive(Debug)]
pub struct Journal<T = Words> {
    table: T,
    /// The pass that is being noted.
    pass: u64,
    noted: bool,
}

impl<T: Table> Journal<T> {
    /// An empty journal in words that are all zero.
    ///
    /// # Panics
    /// If there is no room for a single note.
    pub fn new(table: T) -> Journal<T> {
        let count = table.count().saturating_sub(HEAD) / NOTE;
        assert!(count > 0, "a journal without room");
        table.put(COUNT, count as u64);
        table.put(MAGIC_AT, MAGIC);
        Journal {
            table,
            pass: 1,
            noted: false,
        }
    }

    /// Notes a write that will be submitted after [`Journal::commit`] and not before.
    #[inline]
    pub fn note(&mut self, io: u32, slot: u16, sector: u64, sectors: u32, bufs: &[BufSlice]) {
        let at = HEAD + io as usize * NOTE;
        let piece = bufs.first().map_or(0, |b| b.len);
        let fits = |b: &BufSlice| {
            b.buf == Buf::Arena
                && b.len == piece
                && b.off.is_multiple_of(512)
                && b.off / 512 <= u64::from(u32::MAX)
        };
        if at + NOTE > self.table.count() || bufs.len() > PIECES || !bufs.iter().all(fits) {
            return self.table.put(DOUBT, 1);
        }
        let pieces = bufs.len() as u64;
        self.table.put(at + 1, sector);
        let about = u64::from(sectors) << 32 | u64::from(slot) << 16 | pieces;
        self.table.put(at + 2, about);
        for (i, pair) in bufs.chunks(2).enumerate() {
            let place = |b: &BufSlice| b.off / 512;
            let high = pair.get(1).map_or(0, place);
            self.table.put(at + 3 + i, high << 32 | place(&pair[0]));
        }
        self.table.put(at, self.pass);
        self.noted = true;
    }

    /// From here on all that was noted counts.
    #[inline]
    pub fn commit(&mut self) {
        if self.noted {
            self.noted = false;
            self.table.put(COMMITTED, self.pass);
            self.pass += 1;
        }
    }

    /// A write has ended, or will not be submitted. Members on which one fails are remembered: the note is gone before the
    /// members' superblocks know of the failure.
    #[inline]
    pub fn ended(&self, io: u32, failed: bool) {
        let at = HEAD + io as usize * NOTE;
        if at + NOTE > self.table.count() {
            return;
        }
        if failed {
            let slot = (self.table.get(at + 2) >> 16) as u16;
            let word = FAILED + usize::from(slot >> 6 & 3);
            self.table
                .put(word, self.table.get(word) | 1 << (slot & 63));
        }
        self.table.put(at, 0);
    }
}

const MAGIC_AT: usize = 0;

/// A write that may have been carried out in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Which member.
    pub slot: u16,
    /// First sector of the member's data area.
    pub sector: u64,
    /// Length in sectors.
    pub sectors: u32,
    /// Where equal pieces of it begin in the arena, in bytes.
    pub places: Vec<u64>,
}

/// What a dead process has left.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Left {
    /// To be written again, in any order: no two overlap.
    pub writes: Vec<Unfinished>,
    /// Members on which a write has failed.
    pub failed: SlotSet,
    /// Not everything was noted.
    pub doubt: bool,
}

/// Reads a table; none if it is not one, or not whole.
pub fn read(bytes: &[u8]) -> Option<Left> {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|w| u64::from_ne_bytes(w.try_into().expect("eight bytes")))
        .collect();
    let head = words.get(..HEAD)?;
    if head[MAGIC_AT] != MAGIC || words.len() < words_for(usize::try_from(head[COUNT]).ok()?) {
        return None;
    }
    let mut left = Left {
        doubt: head[DOUBT] != 0,
        ..Left::default()
    };
    for slot in 0..256u16 {
        if head[FAILED + usize::from(slot >> 6)] >> (slot & 63) & 1 != 0 {
            left.failed.insert(slot);
        }
    }
    for note in words[HEAD..words_for(head[COUNT] as usize)].chunks_exact(NOTE) {
        if note[0] == 0 || note[0] > head[COMMITTED] {
            continue;
        }
        let (sectors, slot) = ((note[2] >> 32) as u32, (note[2] >> 16) as u16);
        let pieces = (note[2] & 0xffff) as usize;
        if pieces == 0 || pieces > PIECES || !(sectors as usize).is_multiple_of(pieces) {
            return None;
        }
        let place = |i: usize| (note[3 + i / 2] >> (32 * (i % 2)) & 0xffff_ffff) * 512;
        left.writes.push(Unfinished {
            slot,
            sector: note[1],
            sectors,
            places: (0..pieces).map(place).collect(),
        });
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Remembers every store, so that a process can be killed after each.
    struct Log {
        len: usize,
        stores: RefCell<Vec<(usize, u64)>>,
    }

    impl Log {
        fn new(ios: usize) -> Log {
            Log {
                len: words_for(ios),
                stores: RefCell::default(),
            }
        }

        /// The file's bytes after so many stores.
        fn after(&self, stores: usize) -> Vec<u8> {
            let mut words = vec![0u64; self.len];
            for (at, value) in &self.stores.borrow()[..stores] {
                words[*at] = *value;
            }
            words.iter().flat_map(|w| w.to_ne_bytes()).collect()
        }

        fn stored(&self) -> usize {
            self.stores.borrow().len()
        }
    }

    impl Table for &Log {
        fn count(&self) -> usize {
            self.len
        }
        fn put(&self, at: usize, value: u64) {
            self.stores.borrow_mut().push((at, value));
        }
        fn get(&self, at: usize) -> u64 {
            let stores = self.stores.borrow();
            stores.iter().rev().find(|s| s.0 == at).map_or(0, |s| s.1)
        }
    }

    fn bufs(places: &[u64], len: u32) -> Vec<BufSlice> {
        let slice = |place: &u64| BufSlice {
            buf: Buf::Arena,
            off: *place,
            len,
        };
        places.iter().map(slice).collect()
    }

    fn write(io: u32, places: usize) -> Unfinished {
        Unfinished {
            slot: io as u16 % 7,
            sector: 1_000_000 + u64::from(io) * 128,
            sectors: 8 * places as u32,
            places: (0..places as u64)
                .map(|p| (u64::from(io) * 16 + p) * 4096)
                .collect(),
        }
    }

    fn note(journal: &mut Journal<&Log>, io: u32, w: &Unfinished) {
        let piece = w.sectors / w.places.len() as u32 * 512;
        journal.note(io, w.slot, w.sector, w.sectors, &bufs(&w.places, piece));
    }

    fn sorted(mut writes: Vec<Unfinished>) -> Vec<Unfinished> {
        writes.sort_by_key(|w| w.sector);
        writes
    }

    /// Killed after every single store of several passes whose numbers are used again: what is left is what was left
    /// before the call that was interrupted, or what is left after it. Above all, of a pass there is nothing or all.
    #[test]
    fn every_cut_leaves_all_of_a_pass_or_nothing() {
        let log = Log::new(6);
        let mut journal = Journal::new(&log);
        let mut live: Vec<(u32, Unfinished)> = Vec::new();
        // By number of stores: what may be left.
        let mut allowed: Vec<(usize, Vec<Unfinished>)> = vec![(log.stored(), Vec::new())];
        let mut mark = |live: &[(u32, Unfinished)]| {
            let now = sorted(live.iter().map(|(_, w)| w.clone()).collect());
            allowed.push((log.stored(), now));
        };
        for pass in 0..5u32 {
            let fresh: Vec<u32> = (0..6)
                .filter(|io| !live.iter().any(|l| l.0 == *io))
                .collect();
            let mut new = Vec::new();
            for io in fresh {
                let w = Unfinished {
                    sector: 5000 * u64::from(pass + 1) + u64::from(io),
                    ..write(io, 1 + (io + pass) as usize % PIECES)
                };
                note(&mut journal, io, &w);
                mark(&live);
                new.push((io, w));
            }
            journal.commit();
            live.extend(new);
            mark(&live);
            // Ends in another order, some only after the next pass.
            for io in [4, 1, 5, 0] {
                if let Some(at) = live.iter().position(|l| l.0 == io) {
                    journal.ended(io, false);
                    live.remove(at);
                    mark(&live);
                }
            }
        }
        for pair in allowed.windows(2) {
            let ((from, before), (to, after)) = (&pair[0], &pair[1]);
            for cut in *from..=*to {
                let left = read(&log.after(cut)).expect("a table");
                assert!(!left.doubt && left.failed.is_empty());
                let found = sorted(left.writes);
                assert!(found == *before || found == *after, "cut {cut}: {found:?}");
            }
        }
        assert!(log.stored() > 150);
    }

    #[test]
    fn a_failed_write_names_its_member_before_its_note_goes() {
        let log = Log::new(3);
        let mut journal = Journal::new(&log);
        let w = Unfinished {
            slot: 200,
            ..write(2, 3)
        };
        note(&mut journal, 2, &w);
        journal.commit();
        let begun = log.stored();
        journal.ended(2, true);
        for cut in begun..=log.stored() {
            let left = read(&log.after(cut)).expect("a table");
            assert!(
                left.failed.contains(200) || left.writes == [w.clone()],
                "cut {cut}"
            );
        }
        let left = read(&log.after(log.stored())).expect("a table");
        assert_eq!((left.failed.len(), left.writes.len()), (1, 0));
    }

    #[test]
    fn what_cannot_be_noted_is_doubt() {
        let request = BufSlice {
            buf: Buf::Request(1),
            off: 0,
            len: 4096,
        };
        let uneven = [bufs(&[0], 4096), bufs(&[4096], 512)].concat();
        let many: Vec<u64> = (0..11).map(|p| p * 4096).collect();
        for bad in [vec![request], uneven, bufs(&many, 4096), bufs(&[100], 512)] {
            let log = Log::new(1);
            let mut journal = Journal::new(&log);
            journal.note(0, 0, 0, 8, &bad);
            journal.commit();
            assert!(
                read(&log.after(log.stored())).expect("a table").doubt,
                "{bad:?}"
            );
        }
    }

    #[test]
    fn what_is_no_table_is_refused() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&vec![0; words_for(4) * 8]), None, "never begun");
        let log = Log::new(4);
        let mut journal = Journal::new(&log);
        note(&mut journal, 0, &write(0, 2));
        journal.commit();
        let whole = log.after(log.stored());
        assert!(read(&whole).is_some());
        assert_eq!(read(&whole[..whole.len() - 8]), None, "cut short");
        let mut odd = whole.clone();
        odd[(HEAD + 2) * 8] = 0;
        assert_eq!(read(&odd), None, "a write without bytes");
    }
}
