//! One parity job with everything that it names, kept until it is done: what the core's list forgets with the pass, a lane and
//! a repetition after its failure still need. Costs a copy of the ranges; its lists are as long as they will ever be from
//! the start.

use std::time::Instant;

use parity_kernels::BufRange;
use parity_kernels::offload::ArenaJob;
use raid_core::path::types::{Actions, BufSlice, Job};

/// Which of the four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Encode,
    Update,
    Recover,
    Check,
}

/// A job. See the module comment.
#[derive(Debug)]
pub(super) struct Work {
    pub kind: Kind,
    data: Vec<(BufRange, u8)>,
    changed: Vec<(BufRange, BufRange, u8)>,
    lost: [(BufRange, u8); 2],
    lost_count: usize,
    p: Option<BufRange>,
    q: Option<BufRange>,
    /// First byte and one past the last byte of all that is named.
    extent: (usize, usize),
    /// The fence that waits for it, where it is on the lane.
    pub fence: u32,
    /// On the lane, or on one that was lost with it.
    pub flying: bool,
    /// When it was handed over.
    pub since: Instant,
    /// When it was expected back from the lane, in ns after that; 0 if nothing is to be learnt from it.
    pub expected_ns: f64,
}

pub(super) fn range(slice: &BufSlice) -> BufRange {
    BufRange {
        off: slice.off as usize,
        len: slice.len as usize,
    }
}

fn option(slice: &Option<BufSlice>) -> Option<BufRange> {
    slice.as_ref().map(range)
}

impl Work {
    /// An empty place for a job of an array with that many members.
    pub fn new(members: usize) -> Work {
        Work {
            kind: Kind::Check,
            data: Vec::with_capacity(members),
            changed: Vec::with_capacity(members),
            lost: [(BufRange::default(), 0); 2],
            lost_count: 0,
            p: None,
            q: None,
            extent: (usize::MAX, 0),
            fence: 0,
            flying: false,
            since: Instant::now(),
            expected_ns: 0.0,
        }
    }

    fn cover(&mut self, range: BufRange) {
        self.extent.0 = self.extent.0.min(range.off);
        self.extent.1 = self.extent.1.max(range.end());
    }

    /// Takes a job of the core over.
    pub fn fill(&mut self, job: &Job, all: &Actions) {
        self.data.clear();
        self.changed.clear();
        self.lost_count = 0;
        self.extent = (usize::MAX, 0);
        if let Job::Encode { srcs, .. } | Job::Recover { srcs, .. } | Job::Check { srcs, .. } = job
        {
            let list = &all.srcs[srcs.start as usize..srcs.end as usize];
            self.data.extend(list.iter().map(|(s, e)| (range(s), *e)));
        }
        match job {
            Job::Encode { p, q, .. } => {
                self.kind = Kind::Encode;
                (self.p, self.q) = (option(p), option(q));
            }
            Job::Update {
                old,
                new,
                exp,
                p,
                q,
            } => {
                self.kind = Kind::Update;
                (self.p, self.q) = (option(p), option(q));
                self.changed.push((range(old), range(new), *exp));
            }
            Job::Recover {
                p,
                q,
                first,
                second,
                ..
            } => {
                self.kind = Kind::Recover;
                (self.p, self.q) = (option(p), option(q));
                for (slice, exp) in [Some(*first), *second].into_iter().flatten() {
                    self.lost[self.lost_count] = (range(&slice), exp);
                    self.lost_count += 1;
                }
            }
            Job::Check { p, q, .. } => {
                self.kind = Kind::Check;
                (self.p, self.q) = (option(p), option(q));
            }
        }
        let (mut lo, mut hi) = (usize::MAX, 0);
        for range in self.operands() {
            (lo, hi) = (lo.min(range.off), hi.max(range.end()));
        }
        self.extent = (lo, hi);
    }

    /// Joins one more change to an update of the same rows. False if this is no such update or has no room.
    pub fn join(&mut self, job: &Job) -> bool {
        let Job::Update {
            old,
            new,
            exp,
            p,
            q,
        } = job
        else {
            return false;
        };
        let same = self.kind == Kind::Update && (self.p, self.q) == (option(p), option(q));
        if !same || self.changed.len() == self.changed.capacity() {
            return false;
        }
        let (old, new) = (range(old), range(new));
        self.changed.push((old, new, *exp));
        self.cover(old);
        self.cover(new);
        true
    }

    /// Whether a change that comes later may be moved in front of this job: it only adds to parity, and to none that the
    /// change reads.
    pub fn lets_pass(&self, job: &Job) -> bool {
        let Job::Update { old, new, .. } = job else {
            return false;
        };
        let reads = |range: BufRange| [old, new].iter().any(|s| self::range(s).overlaps(range));
        self.kind == Kind::Update && !self.writes().any(reads)
    }

    /// As the kernels take it.
    pub fn job(&self) -> ArenaJob<'_> {
        let (data, p, q) = (&self.data[..], self.p, self.q);
        match self.kind {
            Kind::Encode => ArenaJob::Encode { data, p, q },
            Kind::Update => ArenaJob::Update {
                changed: &self.changed,
                p,
                q,
            },
            Kind::Recover => ArenaJob::Recover {
                data,
                p,
                q,
                lost: &self.lost[..self.lost_count],
            },
            Kind::Check => ArenaJob::Check { data, p, q },
        }
    }

    fn operands(&self) -> impl Iterator<Item = BufRange> {
        let data = self.data.iter().map(|(range, _)| *range);
        let changed = self.changed.iter().flat_map(|(old, new, _)| [*old, *new]);
        let lost = self.lost[..self.lost_count].iter().map(|(range, _)| *range);
        data.chain(changed).chain(lost).chain(self.p).chain(self.q)
    }

    fn writes(&self) -> impl Iterator<Item = BufRange> {
        let parity = matches!(self.kind, Kind::Encode | Kind::Update);
        let lost = self.lost[..self.lost_count].iter().map(|(range, _)| *range);
        let parities = [self.p, self.q].into_iter().flatten();
        parities.filter(move |_| parity).chain(lost)
    }

    /// Whether the order of the two matters: one writes what the other reads or writes.
    pub fn conflicts(&self, other: &Work) -> bool {
        if self.extent.1 <= other.extent.0 || other.extent.1 <= self.extent.0 {
            return false;
        }
        let hits = |a: &Work, b: &Work| a.writes().any(|w| b.operands().any(|o| w.overlaps(o)));
        hits(self, other) || hits(other, self)
    }
}

#[cfg(test)]
mod tests {
    use raid_core::path::types::Buf;

    use super::*;

    fn slice(at: u64) -> BufSlice {
        BufSlice {
            buf: Buf::Arena,
            off: at * 512,
            len: 512,
        }
    }

    fn update(old: u64, new: u64, p: u64, q: u64) -> Job {
        Job::Update {
            old: slice(old),
            new: slice(new),
            exp: 3,
            p: Some(slice(p)),
            q: Some(slice(q)),
        }
    }

    fn work(job: &Job, srcs: &[u64]) -> Work {
        let mut all = Actions::default();
        all.srcs.extend(srcs.iter().map(|s| (slice(*s), 1)));
        let mut work = Work::new(8);
        work.fill(job, &all);
        work
    }

    fn encode(srcs: &[u64], p: u64) -> Work {
        let job = Job::Encode {
            srcs: 0..srcs.len() as u32,
            p: Some(slice(p)),
            q: None,
        };
        work(&job, srcs)
    }

    fn check(srcs: &[u64], p: u64) -> Work {
        let job = Job::Check {
            srcs: 0..srcs.len() as u32,
            p: Some(slice(p)),
            q: None,
        };
        work(&job, srcs)
    }

    fn recover(srcs: &[u64], p: u64, lost: u64) -> Work {
        let job = Job::Recover {
            srcs: 0..srcs.len() as u32,
            p: Some(slice(p)),
            q: None,
            first: (slice(lost), 0),
            second: None,
        };
        work(&job, srcs)
    }

    #[test]
    fn updates_of_the_same_rows_join() {
        let mut first = work(&update(0, 1, 10, 11), &[]);
        assert!(first.join(&update(2, 3, 10, 11)));
        assert_eq!(first.job().data_bytes(), 4 * 512);
        assert!(!first.join(&update(2, 3, 10, 12)), "another Q");
        assert!(!first.join(&update(2, 3, 12, 11)), "another P");
        for _ in 2..8 {
            assert!(first.join(&update(4, 5, 10, 11)));
        }
        assert!(!first.join(&update(4, 5, 10, 11)), "full");
        assert!(!encode(&[0, 1], 10).join(&update(0, 1, 10, 11)));
    }

    #[test]
    fn only_updates_that_write_nothing_it_reads_let_a_change_pass() {
        let first = work(&update(0, 1, 10, 11), &[]);
        assert!(first.lets_pass(&update(2, 3, 12, 13)));
        assert!(!first.lets_pass(&update(10, 3, 12, 13)));
        assert!(!first.lets_pass(&update(2, 11, 12, 13)));
        assert!(!encode(&[0], 10).lets_pass(&update(2, 3, 12, 13)));
    }

    #[test]
    fn conflicts_are_found() {
        // Recovered data that is checked afterwards; parity that is made of it.
        assert!(recover(&[0, 1], 10, 2).conflicts(&check(&[0, 1, 2], 10)));
        assert!(encode(&[0, 2], 10).conflicts(&recover(&[0, 1], 9, 2)));
        // Two that write the same.
        assert!(encode(&[0, 1], 10).conflicts(&encode(&[2, 3], 10)));
        assert!(work(&update(0, 1, 10, 11), &[]).conflicts(&work(&update(2, 3, 12, 11), &[])));
        // Readers of the same; other frames; interleaved places.
        assert!(!check(&[0, 1], 10).conflicts(&check(&[0, 1], 10)));
        assert!(!encode(&[0, 1], 2).conflicts(&encode(&[3, 4], 5)));
        assert!(!encode(&[0, 4], 2).conflicts(&encode(&[1, 3], 5)));
    }
}
