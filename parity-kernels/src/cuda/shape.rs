//! How a job is described to the kernels in `kernels/parity.cu`: a shape, uploaded once and then named by number, and the
//! place where it is laid over the arena. Pure; owns nothing and costs a few nanoseconds per chunk.
//!
//! A shape holds everything about a job but where it begins, and that at most a few hundred kinds of jobs occur in an
//! array (the rotations of its layout, times the operations) is what makes a unit of work fit 16 bytes. Layout and flags
//! are those of `struct Shape` and `enum Op` in the kernel source.

use crate::buf::BufRange;
use crate::coeff::{self, Solution};
use crate::gf;
use crate::offload::{ArenaJob, Refusal};

/// Words (32 bits) of a shape before its terms.
pub(crate) const HEADER: usize = 32;
/// Words of one term.
pub(crate) const TERM: usize = 2;
/// Shapes begin at multiples of this many bytes.
pub(crate) const SHAPE_ALIGN: usize = 128;
/// The shape number of the unit that ends a worker.
pub(crate) const EXIT_SHAPE: u32 = 0xffff;
/// Bytes of one column: offsets and lengths are multiples of it.
pub(crate) const COLUMN: usize = 16;
/// A unit begins at a multiple of this many bytes, less the remainder that its shape carries.
pub(crate) const BASE_UNIT: usize = 512;

pub(crate) const STORE: u32 = 0;
pub(crate) const RECOVER_P: u32 = 1;
pub(crate) const RECOVER_Q: u32 = 2;
pub(crate) const RECOVER_PQ: u32 = 3;
pub(crate) const CHECK: u32 = 4;

pub(crate) const ADD_P: u32 = 1;
pub(crate) const ADD_Q: u32 = 2;
pub(crate) const OUT_0: u32 = 4;
pub(crate) const OUT_1: u32 = 8;
pub(crate) const ASIDE: u32 = 16;
pub(crate) const NO_Q: u32 = 32;
pub(crate) const EVEN_GAPS: u32 = 64;

/// Terms are padded with zeroes to multiples of this many.
pub(crate) const BATCH: usize = 8;

/// Where words of the header are.
pub(crate) mod at {
    pub(crate) const OP: usize = 0;
    pub(crate) const FLAGS: usize = 1;
    pub(crate) const TERMS: usize = 2;
    pub(crate) const LAST_GAP: usize = 3;
    pub(crate) const P: usize = 4;
    pub(crate) const Q: usize = 5;
    pub(crate) const OUT0: usize = 6;
    pub(crate) const OUT1: usize = 7;
    pub(crate) const A: usize = 8;
    pub(crate) const B: usize = 16;
    pub(crate) const LAST: usize = 24;
}

/// A job's shape is in the word list; this is the rest of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Byte of the arena from which the shape's offsets count, a multiple of [`BASE_UNIT`].
    pub base: usize,
    /// Bytes of each range.
    pub len: usize,
    /// The outputs must be moved into place afterwards.
    pub aside: bool,
}

/// Describe `job` into `words`.
///
/// # Errors
/// [`Refusal::Unfit`]: nothing to do, ranges that are no multiples of 16 bytes, ranges too far apart, or lost data that P
/// and Q do not restore.
pub(crate) fn describe(job: &ArenaJob, words: &mut Vec<u32>) -> Result<Placed, Refusal> {
    words.clear();
    words.resize(HEADER, 0);
    let len = job.len();
    if len == 0 || !len.is_multiple_of(COLUMN) {
        return Err(Refusal::Unfit);
    }
    let mut place = Place {
        lowest: usize::MAX,
        highest: 0,
        aligned: true,
    };
    match *job {
        ArenaJob::Encode { data, .. }
        | ArenaJob::Check { data, .. }
        | ArenaJob::Recover { data, .. } => data.iter().for_each(|(range, _)| place.see(*range)),
        ArenaJob::Update { changed, .. } => changed.iter().for_each(|(old, new, _)| {
            place.see(*old);
            place.see(*new);
        }),
    }
    if let ArenaJob::Recover { lost, .. } = job {
        lost.iter().for_each(|(range, _)| place.see(*range));
    }
    let (p, q) = job.parities();
    p.into_iter().chain(q).for_each(|range| place.see(range));
    let base = place.lowest / BASE_UNIT * BASE_UNIT;
    if !place.aligned || (place.highest - base) / COLUMN > u32::MAX as usize {
        return Err(Refusal::Unfit);
    }
    let offset = |range: BufRange| ((range.off - base) / COLUMN) as u32;
    let mut uses_q = q.is_some();
    let mut flags = 0;
    if let Some(p) = p {
        words[at::P] = offset(p);
    }
    if let Some(q) = q {
        words[at::Q] = offset(q);
    }
    match *job {
        ArenaJob::Encode { .. } | ArenaJob::Update { .. } => {
            words[at::OP] = STORE;
            let adds = matches!(job, ArenaJob::Update { .. });
            if p.is_some() {
                flags |= OUT_0 | if adds { ADD_P } else { 0 };
            }
            if q.is_some() {
                flags |= OUT_1 | if adds { ADD_Q } else { 0 };
            }
            if adds {
                flags |= ASIDE;
            } else {
                (words[at::OUT0], words[at::OUT1]) = (words[at::P], words[at::Q]);
                (words[at::P], words[at::Q]) = (0, 0);
            }
        }
        ArenaJob::Check { .. } => {
            words[at::OP] = CHECK;
            flags |= if p.is_some() { ADD_P | OUT_0 } else { 0 };
            flags |= if q.is_some() { ADD_Q | OUT_1 } else { 0 };
        }
        ArenaJob::Recover { lost, .. } => {
            let solution = match *lost {
                [(_, x)] => coeff::solve(&[x], p.is_some(), q.is_some()),
                [(_, x), (_, y)] => coeff::solve(&[x, y], p.is_some(), q.is_some()),
                _ => return Err(Refusal::Unfit),
            };
            // The lower exponent first: the kernel divides by its power of two, step by step if it is low.
            let first = usize::from(matches!(*lost, [(_, x), (_, y)] if y < x));
            words[at::OUT0] = offset(lost[first].0);
            flags |= OUT_0;
            match solution.map_err(|_| Refusal::Unfit)? {
                Solution::Nothing => return Err(Refusal::Unfit),
                Solution::FromP => {
                    words[at::OP] = RECOVER_P;
                    flags |= ADD_P;
                    uses_q = false;
                    words[at::Q] = 0;
                }
                Solution::FromQ { scale } => {
                    words[at::OP] = RECOVER_Q;
                    flags |= ADD_Q;
                    table(&mut words[at::A..], scale);
                    words[at::P] = 0;
                }
                Solution::FromBoth { .. } => {
                    let (x, y) = (lost[first].1, lost[1 - first].1);
                    words[at::OP] = RECOVER_PQ | u32::from(x) << 8;
                    flags |= ADD_P | ADD_Q | OUT_1;
                    words[at::OUT1] = offset(lost[1 - first].0);
                    // With r = 2^(y-x): r / (r + 1) * p + 2^-x / (r + 1) * q = p + (p + 2^-x q) / (r + 1).
                    let ratio = gf::power(usize::from(y - x));
                    table(&mut words[at::A..], gf::inverse(ratio ^ 1));
                    table(&mut words[at::B..], gf::power(gf::ORDER - usize::from(x)));
                }
            }
        }
    }
    if !uses_q {
        flags |= NO_Q;
    }
    words[at::FLAGS] = flags;
    match *job {
        ArenaJob::Encode { data, .. }
        | ArenaJob::Check { data, .. }
        | ArenaJob::Recover { data, .. } => {
            for (range, exp) in data {
                words.extend([offset(*range), u32::from(*exp)]);
            }
        }
        ArenaJob::Update { changed, .. } => {
            for (old, new, exp) in changed {
                words.extend([offset(*old), u32::from(*exp), offset(*new), u32::from(*exp)]);
            }
        }
    }
    let terms = (words.len() - HEADER) / TERM;
    words[at::TERMS] = terms as u32;
    order(words, uses_q);
    words.resize(HEADER + terms.next_multiple_of(BATCH).max(BATCH) * TERM, 0);
    Ok(Placed {
        base,
        len,
        aside: flags & ASIDE != 0,
    })
}

/// Where the ranges of a job lie.
struct Place {
    lowest: usize,
    highest: usize,
    aligned: bool,
}

impl Place {
    fn see(&mut self, range: BufRange) {
        self.lowest = self.lowest.min(range.off);
        self.highest = self.highest.max(range.off);
        self.aligned &= range.off.is_multiple_of(COLUMN);
    }
}

/// The products of `coefficient` with the low three bits of a byte, the next three and the last two, as the kernel's
/// `Factor` takes them: 8, 8 and 4 bytes.
fn table(words: &mut [u32], coefficient: u8) {
    let products = |shift: u32, first: u8| {
        let product = |i: u8| gf::mul(coefficient, (first + i) << shift);
        u32::from_le_bytes([product(0), product(1), product(2), product(3)])
    };
    words[0] = products(0, 0);
    words[1] = products(0, 4);
    words[2] = products(3, 0);
    words[3] = products(3, 4);
    words[4] = products(6, 0);
}

/// Put the terms, which carry their exponents, in the order of Horner's rule and have them carry gaps.
fn order(words: &mut [u32], uses_q: bool) {
    let (header, terms) = words.split_at_mut(HEADER);
    let (terms, _) = terms.as_chunks_mut::<TERM>();
    if !uses_q {
        terms.iter_mut().for_each(|term| term[1] = 0);
        return;
    }
    // Most callers name their data by rising exponent.
    if terms.is_sorted_by(|a, b| a[1] < b[1]) {
        terms.reverse();
    } else {
        terms.sort_unstable_by_key(|[offset, exp]| (std::cmp::Reverse(*exp), *offset));
    }
    // Before the first term the sum is zero, and to double it costs the least.
    let mut last = terms.first().map_or(0, |[_, exp]| exp + 1);
    for [_, exp] in terms.iter_mut() {
        let gap = last - *exp;
        last = *exp;
        *exp = gap;
    }
    if terms.iter().all(|[_, gap]| *gap == 1) {
        header[at::FLAGS] |= EVEN_GAPS;
    }
    header[at::LAST_GAP] = last;
    if last > 0 {
        table(&mut header[at::LAST..], gf::power(last as usize));
    }
}
