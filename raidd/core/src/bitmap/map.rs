//! The set of dirty chunks of a bitmap, in memory and as bytes on disk.
//! Costs a bit per chunk; ranges are worked on in words of 64 chunks; `count` is kept, not computed.

use super::header::{HEADER_BYTES, Header, HeaderError, Stale};
use std::fmt;
use std::ops::Range;

/// Which chunks are dirty. All ranges of sectors are in a member's data area (`data_offset` not included).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Bit i of word w is chunk 64 w + i; bits beyond the last chunk are 0.
    words: Vec<u64>,
    chunks: u64,
    dirty: u64,
    /// Power of two of the sectors of a chunk.
    shift: u32,
    sync_size: u64,
}

/// Why there is no map in some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    Header(HeaderError),
    Truncated { have: usize, need: u64 },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::Header(error) => error.fmt(f),
            MapError::Truncated { have, need } => {
                write!(
                    f,
                    "the bitmap needs {need} bytes and only {have} could be read"
                )
            }
        }
    }
}

impl std::error::Error for MapError {}

impl From<HeaderError> for MapError {
    fn from(error: HeaderError) -> MapError {
        MapError::Header(error)
    }
}

/// The bits of word `word` that lie in a range of bits, and are to be in it.
fn mask(word: u64, bits: &Range<u64>) -> u64 {
    let first = word * 64;
    let (from, to) = (
        bits.start.max(first) - first,
        bits.end.min(first + 64) - first,
    );
    (u64::MAX >> (64 - (to - from))) << from
}

/// The words that hold a range of bits that is not empty.
fn words_of(bits: &Range<u64>) -> Range<u64> {
    bits.start / 64..bits.end.div_ceil(64)
}

impl Map {
    /// A map with no chunk dirty. Errors: those of `Header::check`.
    pub fn clean(header: &Header) -> Result<Map, HeaderError> {
        header.check()?;
        let chunks = header.chunks();
        Ok(Map {
            words: vec![0; chunks.div_ceil(64) as usize],
            chunks,
            dirty: 0,
            shift: (header.chunk_bytes / 512).trailing_zeros(),
            sync_size: header.sync_size,
        })
    }

    /// A map with every chunk dirty, for when it is not known which ones are.
    pub fn all_dirty(header: &Header) -> Result<Map, HeaderError> {
        let mut map = Map::clean(header)?;
        map.mark_bits(0..map.chunks);
        Ok(map)
    }

    /// Takes the bits from a bitmap's bytes, which begin with its header.
    pub fn decode(header: &Header, area: &[u8]) -> Result<Map, MapError> {
        let mut map = Map::clean(header)?;
        let need = header.bytes();
        if (area.len() as u64) < need {
            return Err(MapError::Truncated {
                have: area.len(),
                need,
            });
        }
        let bits = &area[HEADER_BYTES..need as usize];
        for (word, eight) in map.words.iter_mut().zip(bits.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..eight.len()].copy_from_slice(eight);
            *word = u64::from_le_bytes(bytes);
        }
        if let Some(last) = map.words.last_mut() {
            *last &= u64::MAX >> (map.chunks.next_multiple_of(64) - map.chunks);
        }
        map.dirty = map
            .words
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum();
        Ok(map)
    }

    /// As `decode`, but every chunk is dirty when the bits may lack something (`Header::stale`); `area` does not
    /// matter then.
    pub fn load(
        header: &Header,
        area: &[u8],
        superblock_events: u64,
    ) -> Result<(Map, Option<Stale>), MapError> {
        match header.stale(superblock_events) {
            None => Ok((Map::decode(header, area)?, None)),
            stale => Ok((Map::all_dirty(header)?, stale)),
        }
    }

    /// Chunks of the map.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Dirty ones among them.
    pub fn count(&self) -> u64 {
        self.dirty
    }

    /// Sectors of a chunk; the last one may be shorter.
    pub fn chunk_sectors(&self) -> u64 {
        1 << self.shift
    }

    /// The chunks that a range of sectors touches. What lies beyond the map is left out.
    pub fn bits(&self, sectors: Range<u64>) -> Range<u64> {
        let end = sectors.end.min(self.sync_size);
        if sectors.start >= end {
            return 0..0;
        }
        sectors.start >> self.shift..((end - 1) >> self.shift) + 1
    }

    /// The chunks that lie in a range of sectors as a whole, the map's last one up to its end.
    pub fn whole_bits(&self, sectors: Range<u64>) -> Range<u64> {
        let start = sectors.start.div_ceil(self.chunk_sectors());
        let end = match sectors.end >= self.sync_size {
            true => self.chunks,
            false => sectors.end >> self.shift,
        };
        match start < end {
            true => start..end,
            false => 0..0,
        }
    }

    /// The sectors of some chunks.
    pub fn sectors(&self, bits: Range<u64>) -> Range<u64> {
        let cut = |bit: u64| (bit.min(self.chunks) << self.shift).min(self.sync_size);
        cut(bits.start)..cut(bits.end)
    }

    /// Makes every chunk dirty that a range of sectors touches. Gives the number that were not yet: when it is not
    /// 0, the blocks of these bits (`blocks`) must be on disk before the data is written.
    pub fn mark(&mut self, sectors: Range<u64>) -> u64 {
        self.mark_bits(self.bits(sectors))
    }

    /// Makes every chunk clean that lies in a range of sectors as a whole; a chunk that the range only touches
    /// stays as it is. Gives the number that were dirty.
    pub fn clear(&mut self, sectors: Range<u64>) -> u64 {
        let bits = self.whole_bits(sectors);
        let mut cleared = 0;
        for word in words_of(&bits) {
            let held = &mut self.words[word as usize];
            let gone = *held & mask(word, &bits);
            *held &= !gone;
            cleared += u64::from(gone.count_ones());
        }
        self.dirty -= cleared;
        cleared
    }

    /// Whether every chunk that a range of sectors touches is dirty already, so that a write need not wait.
    pub fn is_dirty(&self, sectors: Range<u64>) -> bool {
        let bits = self.bits(sectors);
        words_of(&bits).all(|word| {
            let mask = mask(word, &bits);
            self.words[word as usize] & mask == mask
        })
    }

    fn mark_bits(&mut self, bits: Range<u64>) -> u64 {
        let mut new = 0;
        for word in words_of(&bits) {
            let held = &mut self.words[word as usize];
            let more = mask(word, &bits) & !*held;
            *held |= more;
            new += u64::from(more.count_ones());
        }
        self.dirty += new;
        new
    }

    /// The first chunk from `bit` on that is dirty, or is clean.
    fn next(&self, bit: u64, dirty: bool) -> u64 {
        let mut word = bit / 64;
        let mut skip = bit % 64;
        while let Some(&held) = self.words.get(word as usize) {
            let wanted = if dirty { held } else { !held };
            let seen = wanted & (u64::MAX << skip);
            if seen != 0 {
                return (word * 64 + u64::from(seen.trailing_zeros())).min(self.chunks);
            }
            word += 1;
            skip = 0;
        }
        self.chunks
    }

    /// The dirty chunks in order, neighbours together.
    pub fn dirty_bits(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, true);
            if start >= self.chunks {
                return None;
            }
            at = self.next(start, false);
            Some(start..at)
        })
    }

    /// The sectors of the dirty chunks in order, neighbours together, no range empty.
    pub fn dirty(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.dirty_bits().map(|bits| self.sectors(bits))
    }

    /// The blocks of `block_bytes` (512 or 4096), counted from the bitmap's start on disk, that hold some bits.
    pub fn blocks(bits: Range<u64>, block_bytes: usize) -> Range<u64> {
        if bits.is_empty() {
            return 0..0;
        }
        let block = |bit: u64| (HEADER_BYTES as u64 + bit / 8) / block_bytes as u64;
        block(bits.start)..block(bits.end - 1) + 1
    }

    /// Fills `out` with block `index` of the bitmap, a block being as long as `out` (512 or 4096 bytes). The header
    /// stands at the front of block 0. Bits beyond the last chunk are 1, as mdadm leaves them.
    pub fn block(&self, header: &Header, index: u64, out: &mut [u8]) {
        let first = index * out.len() as u64;
        let head = header.encode();
        let past = self.chunks % 64;
        for (at, eight) in out.chunks_mut(8).enumerate() {
            let byte = first + 8 * at as u64;
            let Some(bits) = byte.checked_sub(HEADER_BYTES as u64) else {
                let byte = byte as usize;
                eight.copy_from_slice(&head[byte..byte + eight.len()]);
                continue;
            };
            let word = match self.words.get((bits / 8) as usize) {
                Some(&word) if past != 0 && bits / 8 == self.chunks / 64 => word | u64::MAX << past,
                Some(&word) => word,
                None => u64::MAX,
            };
            eight.copy_from_slice(&word.to_le_bytes()[..eight.len()]);
        }
    }
}
