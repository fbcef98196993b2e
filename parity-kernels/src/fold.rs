//! The loop that all fast engines share: fold the data into P and Q, block by block.
//!
//! A block is a few vectors wide. For each block all data are read once, both sums stay in
//! registers, and a [`Sink`] says what becomes of them: stored as parity, added to it, solved for
//! lost data, or compared. That makes every operation one pass over memory.
//!
//! The loop is generic over the instruction set ([`Lane`]), what is summed ([`Term`]) and the
//! sink, and compiled for every combination that [`crate::engine`] calls. All of it is inlined
//! into one function per combination, in which `x86` enables the instruction set.

use crate::gf;
use crate::job::{Change, Source};

/// Vectors per block; enough independent sums to hide the latency of a multiplication.
pub(crate) const WIDTH: usize = 4;

/// The most bytes a block can have.
pub(crate) const MAX_BLOCK: usize = WIDTH * 64;

/// One instruction set: vectors of field elements, one per byte.
///
/// A value of an implementing type proves that the machine has the instructions.
pub(crate) trait Lane: Copy {
    /// A vector.
    type V: Copy;
    /// A constant to multiply by, in the form that [`Lane::scale`] wants.
    type Factor: Copy;
    /// Bytes in a vector.
    const BYTES: usize;
    /// Whether multiplying by any constant costs no more than doubling. If so, every term is
    /// multiplied by its own coefficient; if not, the sum is doubled between terms.
    const SCALES_FAST: bool;

    fn zero(self) -> Self::V;
    /// The first [`Lane::BYTES`] bytes of `from`; panics if there are fewer.
    fn load(self, from: &[u8]) -> Self::V;
    /// Into the first [`Lane::BYTES`] bytes of `to`; panics if there are fewer.
    fn store(self, v: Self::V, to: &mut [u8]);
    fn xor(self, a: Self::V, b: Self::V) -> Self::V;
    #[inline(always)]
    fn xor3(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.xor(self.xor(a, b), c)
    }
    /// `2 * v`.
    fn double(self, v: Self::V) -> Self::V;
    fn factor(self, coefficient: u8) -> Self::Factor;
    /// `factor * v`.
    fn scale(self, factor: Self::Factor, v: Self::V) -> Self::V;
    fn is_zero(self, v: Self::V) -> bool;
}

/// The vectors of one block.
pub(crate) type Block<L> = [<L as Lane>::V; WIDTH];

/// Bytes in a block.
pub(crate) const fn block_bytes<L: Lane>() -> usize {
    WIDTH * L::BYTES
}

/// Load the `len` bytes at `at` as a block; what a short block lacks is zero.
#[inline(always)]
pub(crate) fn load<L: Lane>(lane: L, data: &[u8], at: usize, len: usize) -> Block<L> {
    let mut block = [lane.zero(); WIDTH];
    let data = &data[at..at + len];
    if len == block_bytes::<L>() {
        for (i, v) in block.iter_mut().enumerate() {
            *v = lane.load(&data[i * L::BYTES..]);
        }
    } else {
        let mut padded = [0; MAX_BLOCK];
        padded[..len].copy_from_slice(data);
        for (i, v) in block.iter_mut().enumerate() {
            *v = lane.load(&padded[i * L::BYTES..]);
        }
    }
    block
}

/// Store the first `len` bytes of a block at `at`.
#[inline(always)]
pub(crate) fn store<L: Lane>(lane: L, block: Block<L>, data: &mut [u8], at: usize, len: usize) {
    let data = &mut data[at..at + len];
    if len == block_bytes::<L>() {
        for (i, v) in block.into_iter().enumerate() {
            lane.store(v, &mut data[i * L::BYTES..]);
        }
    } else {
        let mut padded = [0; MAX_BLOCK];
        for (i, v) in block.into_iter().enumerate() {
            lane.store(v, &mut padded[i * L::BYTES..]);
        }
        data.copy_from_slice(&padded[..len]);
    }
}

/// `a + b`.
#[inline(always)]
pub(crate) fn add<L: Lane>(lane: L, mut a: Block<L>, b: Block<L>) -> Block<L> {
    for i in 0..WIDTH {
        a[i] = lane.xor(a[i], b[i]);
    }
    a
}

/// `coefficient * block`.
#[inline(always)]
pub(crate) fn scale<L: Lane>(lane: L, coefficient: u8, mut block: Block<L>) -> Block<L> {
    let factor = lane.factor(coefficient);
    for v in &mut block {
        *v = lane.scale(factor, *v);
    }
    block
}

/// Whether all bytes of the block are zero.
#[inline(always)]
pub(crate) fn is_zero<L: Lane>(lane: L, block: Block<L>) -> bool {
    block.into_iter().all(|v| lane.is_zero(v))
}

/// What P and Q are summed over.
pub(crate) trait Term {
    fn exp(&self) -> u8;
    fn load<L: Lane>(&self, lane: L, at: usize, len: usize) -> Block<L>;
}

impl Term for Source<'_> {
    fn exp(&self) -> u8 {
        self.exp
    }

    #[inline(always)]
    fn load<L: Lane>(&self, lane: L, at: usize, len: usize) -> Block<L> {
        load(lane, self.data, at, len)
    }
}

impl Term for Change<'_> {
    fn exp(&self) -> u8 {
        self.exp
    }

    #[inline(always)]
    fn load<L: Lane>(&self, lane: L, at: usize, len: usize) -> Block<L> {
        add(
            lane,
            load(lane, self.old, at, len),
            load(lane, self.new, at, len),
        )
    }
}

/// What becomes of the sums.
pub(crate) trait Sink {
    /// Whether P is wanted; if not, zeroes are handed over.
    const P: bool;
    /// Whether Q is wanted; if not, zeroes are handed over.
    const Q: bool;

    /// Take the sums over the `len` bytes at `at`. Returns whether to go on.
    fn take<L: Lane>(&mut self, lane: L, at: usize, len: usize, p: Block<L>, q: Block<L>) -> bool;
}

/// Fold `len` bytes of all terms into `sink`.
#[inline(always)]
pub(crate) fn fold<L: Lane, T: Term, S: Sink>(lane: L, terms: &[T], len: usize, sink: &mut S) {
    let order = if S::Q && !L::SCALES_FAST {
        Order::new(terms)
    } else {
        Order::NONE
    };
    let full = block_bytes::<L>();
    let mut at = 0;
    while len - at >= full {
        let (p, q) = sums::<L, T, S>(lane, terms, &order, at, full);
        if !sink.take(lane, at, full, p, q) {
            return;
        }
        at += full;
    }
    if at < len {
        let (p, q) = sums::<L, T, S>(lane, terms, &order, at, len - at);
        sink.take(lane, at, len - at, p, q);
    }
}

#[inline(always)]
fn sums<L: Lane, T: Term, S: Sink>(
    lane: L,
    terms: &[T],
    order: &Order,
    at: usize,
    len: usize,
) -> (Block<L>, Block<L>) {
    if S::Q && !L::SCALES_FAST {
        doubling_sums::<L, T, S>(lane, terms, order, at, len)
    } else {
        scaling_sums::<L, T, S>(lane, terms, at, len)
    }
}

/// `P += D`, `Q += 2^exp * D` for each term, two terms at a time, since some instruction sets add
/// three vectors in one instruction.
#[inline(always)]
fn scaling_sums<L: Lane, T: Term, S: Sink>(
    lane: L,
    terms: &[T],
    at: usize,
    len: usize,
) -> (Block<L>, Block<L>) {
    let (mut p, mut q) = ([lane.zero(); WIDTH], [lane.zero(); WIDTH]);
    let (pairs, rest) = terms.as_chunks::<2>();
    for [a, b] in pairs {
        let (a_data, b_data) = (a.load(lane, at, len), b.load(lane, at, len));
        if S::P {
            for i in 0..WIDTH {
                p[i] = lane.xor3(p[i], a_data[i], b_data[i]);
            }
        }
        if S::Q {
            let a_factor = lane.factor(gf::power(a.exp() as usize));
            let b_factor = lane.factor(gf::power(b.exp() as usize));
            for i in 0..WIDTH {
                let a_part = lane.scale(a_factor, a_data[i]);
                let b_part = lane.scale(b_factor, b_data[i]);
                q[i] = lane.xor3(q[i], a_part, b_part);
            }
        }
    }
    for term in rest {
        let data = term.load(lane, at, len);
        if S::P {
            p = add(lane, p, data);
        }
        if S::Q {
            q = add(lane, q, scale(lane, gf::power(term.exp() as usize), data));
        }
    }
    (p, q)
}

/// Horner's rule, from the highest exponent down: `Q = 2^gap * Q + D`, and `P += D`.
#[inline(always)]
fn doubling_sums<L: Lane, T: Term, S: Sink>(
    lane: L,
    terms: &[T],
    order: &Order,
    at: usize,
    len: usize,
) -> (Block<L>, Block<L>) {
    let (mut p, mut q) = ([lane.zero(); WIDTH], [lane.zero(); WIDTH]);
    for step in &order.steps[..order.count] {
        let data = terms[step.term as usize].load(lane, at, len);
        q = add(lane, raise(lane, q, step.gap), data);
        if S::P {
            p = add(lane, p, data);
        }
    }
    (p, raise(lane, q, order.lowest))
}

/// `2^exponent * block`.
#[inline(always)]
fn raise<L: Lane>(lane: L, mut block: Block<L>, exponent: u8) -> Block<L> {
    match exponent {
        0 => {}
        1 => {
            for v in &mut block {
                *v = lane.double(*v);
            }
        }
        _ => block = scale(lane, gf::power(exponent as usize), block),
    }
    block
}

/// The terms by falling exponent, as Horner's rule takes them. Costs about as much as folding a
/// few hundred bytes.
struct Order {
    steps: [Step; gf::ORDER],
    count: usize,
    /// The exponent of the last term.
    lowest: u8,
}

#[derive(Clone, Copy)]
struct Step {
    term: u8,
    /// How far the exponent is below that of the step before.
    gap: u8,
}

impl Order {
    /// No terms.
    const NONE: Order = Order {
        steps: [Step { term: 0, gap: 0 }; gf::ORDER],
        count: 0,
        lowest: 0,
    };

    /// # Panics
    /// If two terms share an exponent.
    fn new<T: Term>(terms: &[T]) -> Order {
        const FREE: u8 = u8::MAX;
        let mut term_of = [FREE; gf::ORDER];
        let mut highest = 0;
        for (i, term) in terms.iter().enumerate() {
            let place = &mut term_of[term.exp() as usize];
            assert!(
                *place == FREE,
                "two chunks share the exponent {}",
                term.exp()
            );
            *place = i as u8;
            highest = highest.max(term.exp());
        }
        let mut order = Order::NONE;
        order.lowest = highest;
        for exp in (0..=highest).rev() {
            let term = term_of[exp as usize];
            if term != FREE {
                let gap = order.lowest - exp;
                order.steps[order.count] = Step { term, gap };
                order.count += 1;
                order.lowest = exp;
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(exps: &[u8]) -> (Vec<(u8, u8)>, u8) {
        let terms: Vec<_> = exps.iter().map(|&exp| Source { data: &[], exp }).collect();
        let order = Order::new(&terms);
        let steps = order.steps[..order.count]
            .iter()
            .map(|step| (step.term, step.gap));
        (steps.collect(), order.lowest)
    }

    #[test]
    fn order_falls_and_knows_its_gaps() {
        assert_eq!(steps(&[]), (vec![], 0));
        assert_eq!(steps(&[0, 1, 2]), (vec![(2, 0), (1, 1), (0, 1)], 0));
        assert_eq!(steps(&[2, 0, 1]), (vec![(0, 0), (2, 1), (1, 1)], 0));
        assert_eq!(steps(&[7, 254, 3]), (vec![(1, 0), (0, 247), (2, 4)], 3));
    }

    #[test]
    fn order_takes_all_exponents() {
        let all: Vec<u8> = (0..=254).collect();
        let (steps, lowest) = steps(&all);
        assert_eq!(steps.len(), 255);
        assert_eq!(steps[0], (254, 0));
        assert!(
            steps[1..]
                .iter()
                .enumerate()
                .all(|(i, step)| *step == (253 - i as u8, 1))
        );
        assert_eq!(lowest, 0);
    }

    #[test]
    #[should_panic(expected = "share the exponent 4")]
    fn order_refuses_a_repeated_exponent() {
        steps(&[4, 1, 4]);
    }
}
