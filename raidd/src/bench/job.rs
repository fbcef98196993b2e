//! The jobs that are measured, and where a stripe's chunks lie in the memory.

use clap::ValueEnum;
use parity_kernels::BufRange;
use parity_kernels::offload::ArenaJob;

/// A parity job. Names on the command line and in JSON are those of the variants in kebab-case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Job {
    /// P of all data (RAID 5, full stripe)
    EncodeP,
    /// P and Q of all data (RAID 6, full stripe)
    EncodePq,
    /// One chunk changes: P and Q follow
    Update,
    /// One lost data chunk from P
    RecoverP,
    /// One lost data chunk from Q
    RecoverQ,
    /// Two lost data chunks from P and Q
    RecoverTwo,
    /// P and Q against the data
    Check,
}

/// How many data chunks a stripe has, and how many bytes of each a job covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Data chunks, 1 to 255.
    pub data: usize,
    /// Bytes of each.
    pub bytes: usize,
}

impl Shape {
    /// From the beginning of one chunk to that of the next; chunks begin at a page.
    pub fn stride(self) -> usize {
        self.bytes.next_multiple_of(4096)
    }

    /// Bytes from one stripe to the next: data, P, Q, and a chunk's new content for the update.
    pub fn stripe_bytes(self) -> usize {
        (self.data + 3) * self.stride()
    }

    /// How many stripes so much memory holds.
    pub fn stripes_in(self, bytes: usize) -> usize {
        bytes / self.stripe_bytes()
    }

    /// Chunk `index` of a stripe: data first, then P, Q and the spare one.
    fn chunk(self, stripe: usize, index: usize) -> BufRange {
        BufRange::new(
            stripe * self.stripe_bytes() + index * self.stride(),
            self.bytes,
        )
    }
}

/// Room for the operands of one job, used again for the next.
#[derive(Debug, Default)]
pub struct Operands {
    data: Vec<(BufRange, u8)>,
    changed: Vec<(BufRange, BufRange, u8)>,
}

impl Job {
    /// All, in the order of the table.
    pub const ALL: [Job; 7] = [
        Job::EncodeP,
        Job::EncodePq,
        Job::Update,
        Job::RecoverP,
        Job::RecoverQ,
        Job::RecoverTwo,
        Job::Check,
    ];

    /// Name in JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Job::EncodeP => "encode-p",
            Job::EncodePq => "encode-pq",
            Job::Update => "update",
            Job::RecoverP => "recover-p",
            Job::RecoverQ => "recover-q",
            Job::RecoverTwo => "recover-two",
            Job::Check => "check",
        }
    }

    /// Data members that it takes at least.
    pub fn least_data(self) -> usize {
        match self {
            Job::RecoverTwo => 2,
            _ => 1,
        }
    }

    /// Data bytes of one job: every data chunk of the stripe, lost ones included; for the update, the chunk that is written.
    pub fn data_bytes(self, shape: Shape) -> usize {
        match self {
            Job::Update => shape.bytes,
            _ => shape.data * shape.bytes,
        }
    }

    /// The job on one stripe.
    pub fn on(self, shape: Shape, stripe: usize, room: &mut Operands) -> ArenaJob<'_> {
        let chunk = |index| shape.chunk(stripe, index);
        let (p, q) = (Some(chunk(shape.data)), Some(chunk(shape.data + 1)));
        if self == Job::Update {
            let middle = shape.data / 2;
            room.changed.clear();
            room.changed
                .push((chunk(middle), chunk(shape.data + 2), middle as u8));
            return ArenaJob::Update {
                changed: &room.changed,
                p,
                q,
            };
        }
        room.data.clear();
        room.data
            .extend((0..shape.data).map(|k| (chunk(k), k as u8)));
        let data = &room.data[..];
        let recover = |lost: usize, p, q| ArenaJob::Recover {
            data: &data[lost..],
            p,
            q,
            lost: &data[..lost],
        };
        match self {
            Job::EncodeP => ArenaJob::Encode { data, p, q: None },
            Job::EncodePq | Job::Update => ArenaJob::Encode { data, p, q },
            Job::RecoverP => recover(1, p, None),
            Job::RecoverQ => recover(1, None, q),
            Job::RecoverTwo => recover(2, p, q),
            Job::Check => ArenaJob::Check { data, p, q },
        }
    }
}
