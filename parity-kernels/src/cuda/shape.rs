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

/// One unit of work for the kernels, as their `struct Unit`: `len` bytes of each range from byte `base` of the memory, both
/// multiples of what they are counted in. A ring adds its sequence numbers.
pub(crate) fn unit(shape: u32, base: usize, len: usize) -> [u64; 2] {
    let base = (base / BASE_UNIT) as u64;
    [u64::from(shape) << 16 | base << 32, (len / COLUMN) as u64]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::Arena;
    use crate::engine::Engine;
    use crate::job::Mismatch;

    /// What the kernels do with a shape, in plain steps: the arithmetic of `columns_as` in `kernels/parity.cu` for one byte
    /// after the other. Answers the outputs, at their offsets from the base.
    fn carry_out(words: &[u32], memory: &[u8], len: usize) -> (Vec<(usize, Vec<u8>)>, Mismatch) {
        let place = |word: usize| words[word] as usize * COLUMN;
        let factor = |table: usize, byte: u8| {
            let bytes: Vec<u8> = words[table..table + 5]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            let (low, middle, high) = (byte & 7, byte >> 3 & 7, byte >> 6);
            bytes[usize::from(low)] ^ bytes[8 + usize::from(middle)] ^ bytes[16 + usize::from(high)]
        };
        let (op, halvings) = (words[at::OP] & 0xff, words[at::OP] >> 8);
        let flags = words[at::FLAGS];
        let (mut first, mut second) = (vec![0; len], vec![0; len]);
        let mut mismatch = Mismatch::default();
        for i in 0..len {
            let (mut p, mut q) = (0, 0);
            for term in 0..words[at::TERMS] as usize {
                let [offset, gap] = [0, 1].map(|part| words[HEADER + TERM * term + part]);
                let byte = memory[offset as usize * COLUMN + i];
                p ^= byte;
                if flags & NO_Q == 0 {
                    q = gf::mul(gf::power(gap as usize), q) ^ byte;
                }
            }
            if words[at::LAST_GAP] > 0 {
                let by_table = factor(at::LAST, q);
                q = gf::mul(gf::power(words[at::LAST_GAP] as usize), q);
                assert_eq!(by_table, q, "the table says the same as the gap");
            }
            if flags & ADD_P != 0 {
                p ^= memory[place(at::P) + i];
            }
            if flags & ADD_Q != 0 {
                q ^= memory[place(at::Q) + i];
            }
            match op {
                CHECK => {
                    mismatch.p |= flags & OUT_0 != 0 && p != 0;
                    mismatch.q |= flags & OUT_1 != 0 && q != 0;
                }
                RECOVER_Q => first[i] = factor(at::A, q),
                RECOVER_PQ => {
                    let halved = gf::mul(gf::power(gf::ORDER - halvings as usize), q);
                    assert_eq!(factor(at::B, q), halved, "the table says the same");
                    first[i] = p ^ factor(at::A, p ^ halved);
                    second[i] = p ^ first[i];
                }
                _ => (first[i], second[i]) = (p, q),
            }
        }
        let mut outputs = Vec::new();
        if op != CHECK && flags & OUT_0 != 0 {
            outputs.push((place(at::OUT0), first));
        }
        if op != CHECK && flags & OUT_1 != 0 {
            outputs.push((place(at::OUT1), second));
        }
        (outputs, mismatch)
    }

    const LEN: usize = 48;

    /// Chunk `i` of the arena of these tests; they begin away from the start, and lie apart.
    fn chunk(i: usize) -> BufRange {
        BufRange::new(1040 + i * 64, LEN)
    }

    fn noise() -> Arena {
        let mut arena = Arena::new(8, 4096).expect("memory");
        let mut state = 7u32;
        for byte in arena.bytes_mut(BufRange::new(0, 8 * 4096)) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        arena
    }

    /// A job by its shape does what the scalar engine does.
    fn agrees(arena: &mut Arena, job: &ArenaJob) {
        let mut words = Vec::new();
        let placed = describe(job, &mut words).expect("a job for the card");
        assert_eq!((words.len() - HEADER) % (BATCH * TERM), 0, "whole batches");
        assert_eq!(placed.base % BASE_UNIT, 0);
        let memory = arena.bytes(BufRange::new(placed.base, 8 * 4096 - placed.base));
        let (mut outputs, mismatch) = carry_out(&words, memory, placed.len);
        if placed.aside {
            let (p, q) = job.parities();
            let places: Vec<_> = p.into_iter().chain(q).collect();
            assert_eq!(outputs.len(), places.len());
            for (output, place) in outputs.iter_mut().zip(places) {
                output.0 = place.off - placed.base;
            }
        }
        let found = job.run(&Engine::scalar(), arena);
        assert_eq!(found, mismatch, "{job:?}");
        for (offset, bytes) in outputs {
            let there = BufRange::new(placed.base + offset, placed.len);
            assert_eq!(arena.bytes(there), bytes, "{job:?} at {there:?}");
        }
    }

    #[test]
    fn shapes_say_what_the_jobs_do() {
        let mut arena = noise();
        let lists: [&[u8]; 6] = [
            &[0],
            &[0, 1, 2],
            &[5, 0, 3],
            &[254, 9, 1, 200],
            &[7; 1],
            &[4, 3, 2, 1, 0, 8, 7, 6, 5, 20, 30],
        ];
        for exps in lists {
            let data: Vec<_> = exps
                .iter()
                .enumerate()
                .map(|(i, exp)| (chunk(i), *exp))
                .collect();
            let n = data.len();
            let (p, q) = (chunk(n + 2), chunk(n + 3));
            for (p, q) in [(Some(p), Some(q)), (Some(p), None), (None, Some(q))] {
                agrees(&mut arena, &ArenaJob::Check { data: &data, p, q });
                agrees(&mut arena, &ArenaJob::Encode { data: &data, p, q });
                agrees(&mut arena, &ArenaJob::Check { data: &data, p, q });
                let changed: Vec<_> = data
                    .iter()
                    .step_by(2)
                    .map(|(old, exp)| (*old, chunk(n), *exp))
                    .collect();
                let changed = &changed[..];
                agrees(&mut arena, &ArenaJob::Update { changed, p, q });
            }
            for x in 0..n {
                for y in 0..n {
                    let rest: Vec<_> = (0..n)
                        .filter(|i| *i != x && *i != y)
                        .map(|i| data[i])
                        .collect();
                    let lost = [(chunk(n), exps[x]), (chunk(n + 1), exps[y])];
                    let lost = if x == y { &lost[..1] } else { &lost[..] };
                    for (p, q) in [(Some(p), Some(q)), (Some(p), None), (None, Some(q))] {
                        if x != y && (p.is_none() || q.is_none()) {
                            continue;
                        }
                        let data = &rest[..];
                        agrees(&mut arena, &ArenaJob::Recover { data, p, q, lost });
                    }
                }
            }
        }
    }

    #[test]
    fn a_unit_is_laid_out_as_the_kernel_reads_it() {
        // seq_shape, base; columns, seq_check: 32 bits each, the lower first.
        assert_eq!(
            unit(0x1234, 3 * BASE_UNIT, 5 * COLUMN),
            [3 << 32 | 0x1234_0000, 5]
        );
        assert_eq!(unit(EXIT_SHAPE, 0, 0), [0xffff_0000, 0]);
    }

    #[test]
    fn what_the_card_cannot_do_is_refused() {
        let mut words = Vec::new();
        let mut refuses = |range: fn(usize) -> BufRange| {
            let data = [(range(0), 0), (range(1), 1)];
            let job = ArenaJob::Encode {
                data: &data,
                p: Some(range(2)),
                q: None,
            };
            assert_eq!(describe(&job, &mut words), Err(Refusal::Unfit));
        };
        refuses(|i| BufRange::new(i * 512, 0));
        refuses(|i| BufRange::new(i * 512, 24));
        refuses(|i| BufRange::new(i * 512 + 8, 32));
        refuses(|i| BufRange::new(i << 37, 32));
    }

    #[test]
    fn equal_jobs_elsewhere_have_equal_shapes() {
        let shape = |start: usize| {
            let data = [
                (BufRange::new(start, 512), 0),
                (BufRange::new(start + 4096, 512), 1),
            ];
            let job = ArenaJob::Encode {
                data: &data,
                p: Some(BufRange::new(start + 8192, 512)),
                q: Some(BufRange::new(start + 12288, 512)),
            };
            let mut words = Vec::new();
            let placed = describe(&job, &mut words).expect("fits");
            (placed.base, words)
        };
        let ((first, one), (second, other)) = (shape(512), shape(1 << 20));
        assert_eq!((first, second), (512, 1 << 20));
        assert_eq!(one, other);
    }
}
