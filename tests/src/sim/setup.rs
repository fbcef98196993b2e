//! What one seed simulates: shape of the array, sizes of the pools, load, faults. All drawn from the seed.

use raid_core::geometry::{Geometry, Level};
use raid_core::path::queue::Bug;

use super::rng::Rng;

/// State of the array when it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// In sync.
    Clean,
    /// Never synced: parity is garbage.
    Fresh,
    /// In sync up to here, garbage behind. In member sectors.
    Checkpoint(u64),
}

/// A fault of the edges (not of the core), planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EdgeBug {
    /// A superblock write is answered without flushing the member.
    RecordWithoutFlush,
    /// The superblock of a record is written to the first member only.
    RecordOne,
    /// A fence is reported before its parity jobs are done.
    EarlyFence,
    /// Bytes of the bitmap are answered without flushing the member.
    BitsWithoutFlush,
    /// The next start takes a member whose events are behind for a fresh one.
    AcceptStale,
    /// The next start takes a member that was being filled for a whole one.
    ForgetRecovery,
}

/// Everything that a run needs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The seed of the run.
    pub seed: u64,
    /// Shape.
    pub geometry: Geometry,
    /// State at start.
    pub start: Start,
    /// Queues.
    pub queues: u16,
    /// Requests in flight for each queue.
    pub depth: u16,
    /// Frames of each queue.
    pub frames: u32,
    /// See `QueueConfig::defer_passes`.
    pub defer_passes: u64,
    /// Bands of a sweep window.
    pub window: u64,
    /// Idle time until clean, ms.
    pub safe_mode_delay_ms: u64,
    /// Requests of one epoch (from start to quiet point or power cut).
    pub requests: u32,
    /// Epochs.
    pub epochs: u32,
    /// Members that may be lost.
    pub losses: u16,
    /// Members of one stripe that may have medium errors.
    pub medium: u16,
    /// Lost members are replaced by new ones.
    pub rejoin: bool,
    /// Time between checkpoints of a rebuild, ms.
    pub checkpoint_ms: u64,
    /// Scrubs run now and then.
    pub scrub: bool,
    /// How many epochs end with a power cut, in percent.
    pub crash: u64,
    /// Copies from and to requests fail now and then.
    pub copy_errors: bool,
    /// Nothing may be written.
    pub read_only: bool,
    /// Percent of requests that carry registered pages.
    pub direct: u64,
    /// Percent of requests that are reads.
    pub reads: u64,
    /// Longest request, sectors.
    pub longest: u64,
    /// Stripes that requests go to, 0 = all.
    pub hot: u64,
    /// Weights of the kinds of step.
    pub weights: [u64; 8],
    /// The write-intent bitmap, if the array has one.
    pub bitmap: Option<super::bitmap::BitmapSetup>,
    /// A planted fault of the core.
    pub bug: Option<Bug>,
    /// A planted fault of the edges.
    pub edge_bug: Option<EdgeBug>,
}

impl Setup {
    /// Draws everything.
    pub fn from_seed(seed: u64) -> Setup {
        let mut r = Rng::new(seed);
        let level = r.pick(&[
            Level::Raid5,
            Level::Raid6,
            Level::Raid5,
            Level::Raid6,
            Level::Raid6,
            Level::Raid0,
        ]);
        let geometry = draw_geometry(level, &mut r);
        let parities = geometry.parities();
        let start = match (parities, r.below(4)) {
            (0, _) | (_, 0 | 1) => Start::Clean,
            (_, 2) => Start::Fresh,
            _ => {
                let chunk = u64::from(geometry.chunk_sectors());
                let unit = chunk.min(128);
                Start::Checkpoint(r.range(1, geometry.member_sectors() / unit) * unit)
            }
        };
        let too_many = parities > 0 && r.chance(5);
        let medium = if parities > 0 && !too_many && r.chance(40) {
            1
        } else {
            0
        };
        let losses = if too_many {
            parities + 1
        } else if r.chance(60) {
            parities - medium
        } else {
            0
        };
        let stripe = u64::from(geometry.chunk_sectors()) * u64::from(geometry.data_members());
        Setup {
            seed,
            start,
            queues: r.range(1, 4) as u16,
            depth: r.pick(&[1, 2, 4, 8, 16]),
            frames: r.pick(&[2, 2, 3, 4, 8, 16]),
            defer_passes: r.below(4),
            window: r.range(1, 24),
            safe_mode_delay_ms: r.pick(&[1, 10, 100, 100_000]),
            requests: r.range(20, 200) as u32,
            epochs: r.range(1, 4) as u32,
            losses,
            medium,
            rejoin: losses > 0 && !too_many && r.chance(70),
            checkpoint_ms: r.pick(&[1, 1, 20, 200]),
            scrub: parities > 0 && r.chance(30),
            crash: r.pick(&[0, 50, 100]),
            copy_errors: r.chance(5),
            read_only: parities > 0 && start == Start::Clean && r.chance(3),
            direct: r.pick(&[0, 50, 100]),
            reads: r.pick(&[10, 30, 50, 80]),
            longest: r.pick(&[
                8,
                stripe / u64::from(geometry.data_members()),
                stripe,
                stripe * 3,
            ]),
            hot: r.pick(&[0, 1, 2, 8]),
            weights: std::array::from_fn(|_| r.pick(&[1, 2, 4, 8, 16])),
            bug: None,
            edge_bug: None,
            bitmap: super::bitmap::draw(seed, &geometry),
            geometry,
        }
    }
}

impl Setup {
    /// Members are lost and replaced.
    pub fn favour_rebuilds(&mut self) {
        (self.losses, self.medium) = (self.geometry.parities(), 0);
        self.rejoin = self.losses > 0;
        self.read_only = false;
    }

    /// Many queues, few reads, no power cuts.
    pub fn favour_writes(&mut self) {
        (self.queues, self.reads, self.crash) = (4, 10, 0);
    }
}

/// A shape small enough to be checked sector by sector: at most some 20000 array sectors.
pub fn draw_geometry(level: Level, r: &mut Rng) -> Geometry {
    let chunk = r.pick(&[8u32, 8, 8, 16, 16, 32, 128, 256, 256]);
    let members = r.range(if level == Level::Raid6 { 4 } else { 3 }, 9) as u16;
    let most = (12_000 / (u64::from(chunk) * u64::from(members))).clamp(3, 64);
    let stripes = r.range(2, most);
    if level == Level::Raid0 {
        let chunk = r.pick(&[8u32, 16, 24, 128, 200]);
        let sizes: Vec<u64> = (0..members)
            .map(|_| u64::from(chunk) * r.range(2, most.min(16)))
            .collect();
        return Geometry::raid0(r.range(1, 2) as u32, chunk, &sizes).expect("a valid shape");
    }
    let layout = match level {
        Level::Raid5 => r.pick(&[0, 1, 2, 2, 3, 4, 5]),
        _ => r.pick(&[0, 1, 2, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20]),
    };
    Geometry::parity(level, layout, members, chunk, u64::from(chunk) * stripes)
        .expect("a valid shape")
}
