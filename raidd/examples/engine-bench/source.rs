//! Where the bytes of writes come from, and what the array must hold afterwards.
//!
//! Owns one region of random bytes; every sector of it differs from every other. A request names its bytes by a place in
//! it, so nothing is generated while the load runs, and the model of the array is one word per sector.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes per sector.
pub const SECTOR: usize = 512;

/// Numbers that look random and repeat with the seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n
    }
}

/// A region of random bytes.
pub struct Source {
    bytes: Vec<u8>,
}

impl Source {
    /// `len` bytes, rounded up to whole sectors; made by all cores together.
    pub fn new(len: usize) -> Source {
        let mut bytes = vec![0u8; len.next_multiple_of(1 << 20)];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = (bytes.len() / threads).next_multiple_of(1 << 20);
        std::thread::scope(|scope| {
            for (i, part) in bytes.chunks_mut(share).enumerate() {
                scope.spawn(move || {
                    let mut random = Random((i as u64) << 40);
                    for word in part.as_chunks_mut::<8>().0 {
                        *word = random.word().to_ne_bytes();
                    }
                });
            }
        });
        Source { bytes }
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// `len` bytes from `at`.
    pub fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at..at + len]
    }
}

/// For every sector of the array the sector of the source that it holds.
pub struct Model {
    sectors: Vec<AtomicU32>,
    wrong: AtomicU64,
    compared: AtomicU64,
}

impl Model {
    /// An array of zeroes.
    pub fn new(sectors: u64) -> Model {
        Model {
            sectors: (0..sectors).map(|_| AtomicU32::new(0)).collect(),
            wrong: AtomicU64::new(0),
            compared: AtomicU64::new(0),
        }
    }

    /// The sectors from `lba` on hold the source from byte `at` on; zeroes if none.
    pub fn write(&self, lba: u64, sectors: u32, at: Option<usize>) {
        for i in 0..sectors {
            let holds = at.map_or(0, |at| (at / SECTOR) as u32 + i + 1);
            self.sectors[lba as usize + i as usize].store(holds, Ordering::Relaxed);
        }
    }

    /// Whether these bytes are what the array holds from `lba` on; counts the sectors that are not.
    pub fn compare(&self, source: &Source, lba: u64, bytes: &[u8]) -> bool {
        const ZERO: [u8; SECTOR] = [0; SECTOR];
        let mut wrong = 0;
        for (i, sector) in bytes.chunks(SECTOR).enumerate() {
            let holds = self.sectors[lba as usize + i].load(Ordering::Relaxed);
            let right = match holds {
                0 => &ZERO[..],
                n => source.bytes((n as usize - 1) * SECTOR, SECTOR),
            };
            wrong += u64::from(sector != right);
        }
        self.wrong.fetch_add(wrong, Ordering::Relaxed);
        let count = bytes.len().div_ceil(SECTOR) as u64;
        self.compared.fetch_add(count, Ordering::Relaxed);
        wrong == 0
    }

    /// Sectors compared so far, and how many of them were wrong.
    pub fn tally(&self) -> (u64, u64) {
        (
            self.compared.load(Ordering::Relaxed),
            self.wrong.load(Ordering::Relaxed),
        )
    }

    /// Sectors that were ever written with something else than zeroes and still hold it.
    pub fn written(&self) -> u64 {
        let holds = |s: &&AtomicU32| s.load(Ordering::Relaxed) != 0;
        self.sectors.iter().filter(holds).count() as u64
    }
}
