//! Which request comes next: one generator per queue. Costs a few divisions a request.

use raid_core::geometry::Geometry;
use ublk_frontend::{Op, Request};

use crate::source::Random;

/// A request and where in the source its bytes begin.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// What is asked for.
    pub request: Request,
    /// First byte in the source; of no meaning unless it is a write.
    pub at: usize,
    /// What [`Load::done`] gets back.
    pub area: u32,
}

/// What is written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole stripes one after another, in requests of at least this many sectors.
    Stripes { least: u32 },
    /// Writes of that many sectors at random places.
    Small { sectors: u32 },
    /// Reads of whole chunks whose member is missing, at random places.
    Lost,
    /// Everything, at odd places and in odd lengths, queues sharing stripes. For checking, not for speed.
    Mixed,
    /// No requests.
    Nothing,
}

/// The generator of one queue.
pub struct Load {
    kind: Kind,
    geometry: Geometry,
    random: Random,
    queue: u64,
    queues: u64,
    missing: Vec<u16>,
    /// Part of the source that this queue walks through, and where it is.
    source: (usize, usize),
    at: usize,
    /// Stripes that this queue works on.
    stripes: (u64, u64),
    stripe: u64,
    /// Areas with a request in flight (`Mixed` only).
    busy: Vec<bool>,
    small_areas: u64,
}

/// Sectors of the areas that queues take turns in, so that they share stripes.
const SMALL_AREA: u64 = 37;

impl Load {
    /// The generator of `queue` out of `queues`. `source` is the length of the source; a queue walks through its own part of
    /// it, or uses the same first bytes again and again if `hot`.
    pub fn new(
        kind: Kind,
        geometry: &Geometry,
        (queue, queues): (u16, u16),
        missing: &[u16],
        source: usize,
        hot: bool,
        seed: u64,
    ) -> Load {
        let (queue, queues) = (u64::from(queue), u64::from(queues));
        let share = geometry.stripes() / queues;
        let part = source / queues as usize / 4096 * 4096;
        let mut load = Load {
            kind,
            geometry: geometry.clone(),
            random: Random(seed ^ (queue << 32)),
            queue,
            queues,
            missing: missing.to_vec(),
            source: match hot {
                true => (0, 0),
                false => (queue as usize * part, part),
            },
            at: 0,
            stripes: (queue * share, share),
            stripe: 0,
            busy: Vec::new(),
            small_areas: 0,
        };
        if kind == Kind::Mixed {
            load.source = (0, source);
            load.small_areas = geometry.array_sectors() / 2 / SMALL_AREA;
            let large = geometry.array_sectors() / 2 / load.large_area();
            load.busy = vec![false; ((load.small_areas + large) / queues) as usize];
        }
        load
    }

    fn stripe_sectors(&self) -> u64 {
        u64::from(self.geometry.chunk_sectors()) * u64::from(self.geometry.data_members())
    }

    fn large_area(&self) -> u64 {
        2 * self.stripe_sectors() + 5
    }

    /// The next request, or none if there is none at the moment.
    pub fn next(&mut self) -> Option<Ask> {
        match self.kind {
            Kind::Stripes { least } => {
                let stripe = self.stripe_sectors();
                let count = u64::from(least).div_ceil(stripe).min(self.stripes.1);
                if self.stripe + count > self.stripes.1 {
                    self.stripe = 0;
                }
                let lba = (self.stripes.0 + self.stripe) * stripe;
                self.stripe += count;
                Some(self.write(lba, (count * stripe) as u32))
            }
            Kind::Small { sectors } => {
                let all = self.stripes.1 * self.stripe_sectors() / u64::from(sectors);
                let place = self.random.below(all) * u64::from(sectors);
                Some(self.write(self.stripes.0 * self.stripe_sectors() + place, sectors))
            }
            Kind::Lost => Some(self.lost()),
            Kind::Mixed => self.mixed(),
            Kind::Nothing => None,
        }
    }

    /// The request of that area has been answered.
    pub fn done(&mut self, area: u32) {
        if let Some(busy) = self.busy.get_mut(area as usize) {
            *busy = false;
        }
    }

    fn write(&mut self, lba: u64, sectors: u32) -> Ask {
        let bytes = sectors as usize * 512;
        let (start, len) = self.source;
        if self.at + bytes > len {
            self.at = 0;
        }
        let at = start + self.at;
        if len > 0 {
            self.at += bytes;
        }
        ask(Op::Write, lba, sectors, at, u32::MAX)
    }

    fn lost(&mut self) -> Ask {
        let chunk = self.geometry.chunk_sectors();
        loop {
            let stripe = self.stripes.0 + self.random.below(self.stripes.1);
            let k = self.random.below(u64::from(self.geometry.data_members())) as u16;
            if self.missing.contains(&self.geometry.data_slot(stripe, k)) {
                let data = u64::from(self.geometry.data_members());
                let lba = (stripe * data + u64::from(k)) * u64::from(chunk);
                return ask(Op::Read, lba, chunk, 0, u32::MAX);
            }
        }
    }

    fn mixed(&mut self) -> Option<Ask> {
        let index = self.random.below(self.busy.len() as u64);
        if std::mem::replace(&mut self.busy[index as usize], true) {
            return None;
        }
        let area = index * self.queues + self.queue;
        let (first, size) = match area.checked_sub(self.small_areas) {
            None => (area * SMALL_AREA, SMALL_AREA),
            Some(large) => {
                let half = self.small_areas * SMALL_AREA;
                (half + large * self.large_area(), self.large_area())
            }
        };
        let (lba, sectors) = match self.random.below(4) {
            0 => (first, size),
            _ => {
                let skip = self.random.below(size);
                (first + skip, 1 + self.random.below(size - skip))
            }
        };
        let sectors = sectors as u32;
        let op = match self.random.below(32) {
            0 => return Some(ask(Op::Flush, 0, 0, 0, index as u32)),
            1 | 2 => Op::WriteZeroes { unmap: false },
            3..=8 => Op::Read,
            _ => Op::Write,
        };
        let room = (self.source.1 / 512) as u64 - u64::from(sectors);
        let at = self.random.below(room) as usize * 512;
        Some(ask(op, lba, sectors, at, index as u32))
    }
}

fn ask(op: Op, lba: u64, sectors: u32, at: usize, area: u32) -> Ask {
    let request = Request {
        op,
        lba,
        sectors,
        fua: false,
    };
    Ask { request, at, area }
}
