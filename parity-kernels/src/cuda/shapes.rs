//! The table of shapes on the device: what has been described once is known by number.
//!
//! Owns the table in device memory and its twin in host memory. A known shape costs one hash of its words; a new one is
//! copied in the background, and its job has to go elsewhere until it is there. Shapes are never forgotten; when the
//! table is full, jobs of unknown shapes are not taken.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::driver::{Context, Event, Stream};
use super::memory::{DeviceMemory, Shared};
use super::shape::{EXIT_SHAPE, SHAPE_ALIGN};
use crate::offload::{LaneError, Refusal};

/// Bytes of the table.
const TABLE: usize = 1 << 20;
const _: () = assert!(TABLE / SHAPE_ALIGN < EXIT_SHAPE as usize);

/// See the module.
pub(crate) struct Shapes {
    context: Arc<Context>,
    known: HashMap<Box<[u32]>, u16, BuildHasherDefault<WordHasher>>,
    device: DeviceMemory,
    host: Shared,
    stream: Stream,
    /// The last copy under way, and the shapes it brings.
    arriving: Event,
    /// Shapes below this number (in [`SHAPE_ALIGN`]) are on the device.
    ready: usize,
    /// Likewise once the copy under way is done.
    sent: usize,
}

impl Shapes {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Shapes, LaneError> {
        Ok(Shapes {
            context: context.clone(),
            known: HashMap::default(),
            device: DeviceMemory::new(context, TABLE)?,
            host: Shared::new(context, TABLE)?,
            stream: Stream::new(context)?,
            arriving: Event::new(context, false)?,
            ready: 0,
            sent: 0,
        })
    }

    /// The table, for a kernel.
    pub(crate) fn address(&self) -> u64 {
        self.device.address
    }

    /// The number of a shape, if it can be used now.
    ///
    /// # Errors
    /// `Ok(Err(..))`: not now, or never; else what the driver says.
    pub(crate) fn number(&mut self, words: &[u32]) -> Result<Result<u16, Refusal>, LaneError> {
        let known = self.known.get(words).copied();
        if let Some(number) = known
            && usize::from(number) < self.ready
        {
            return Ok(Ok(number));
        }
        let context = self.context.clone();
        let Some(_turn) = context.quiet.turn() else {
            return Ok(Err(Refusal::Full));
        };
        let number = match known {
            Some(number) => number,
            None => match self.send(words)? {
                Some(number) => number,
                None => return Ok(Err(Refusal::Unfit)),
            },
        };
        if usize::from(number) >= self.ready {
            if !self.arriving.passed()? {
                return Ok(Err(Refusal::Full));
            }
            self.ready = self.sent;
        }
        Ok(Ok(number))
    }

    /// Wait until all shapes that were asked for are there.
    pub(crate) fn settle(&mut self) -> Result<(), LaneError> {
        self.stream.wait()?;
        self.ready = self.sent;
        Ok(())
    }

    /// The number of a shape, waited for. For measurements.
    pub(crate) fn number_now(&mut self, words: &[u32]) -> Result<u16, LaneError> {
        loop {
            match self.number(words)? {
                Ok(number) => return Ok(number),
                Err(Refusal::Full) => self.settle()?,
                Err(Refusal::Unfit) => return Err(LaneError::new("the table of shapes is full")),
            }
        }
    }

    /// Start a new shape on its way. `None` if there is no room for it.
    fn send(&mut self, words: &[u32]) -> Result<Option<u16>, LaneError> {
        let (at, bytes) = (self.sent * SHAPE_ALIGN, size_of_val(words));
        if at + bytes > TABLE {
            return Ok(None);
        }
        let raw: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.host.write(at, &raw);
        let (to, from) = (
            self.device.address + at as u64,
            self.host.address() + at as u64,
        );
        // SAFETY: both places are within the tables, which are equally long; no kernel looks at a shape, and nobody
        // writes to its place again, once it has a number, and it gets that to the outside only when the copy is done.
        unsafe { self.stream.copy(to, from, bytes)? };
        self.arriving.record(&self.stream)?;
        let number = self.sent as u16;
        self.sent += bytes.div_ceil(SHAPE_ALIGN);
        self.known.insert(words.into(), number);
        Ok(Some(number))
    }
}

/// Hashes words by multiplying and turning; the words come from jobs and not from outside, so nobody makes them collide.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}
