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
use crate::job::{Change, Hints, Source};

/// The most bytes a block can have.
pub(crate) const MAX_BLOCK: usize = 4 * 64;

/// Bytes that one prefetch brings.
const LINE: usize = 64;

/// How far ahead of the block at hand operands in memory are asked for. Of 512, 1024, 2048 and 4096
/// the first was as good as any for chunks of 64 KiB, and best for a page.
const FAR: usize = 512;

/// How far ahead of the block at hand the lines to be written are asked for, also where they are in
/// the second cache: a store that misses the first one costs more than a load.
const CLAIM: usize = 512;

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
    /// The factor `2^exponent`, for exponents up to 254.
    #[inline(always)]
    fn power(self, exponent: u8) -> Self::Factor {
        self.factor(gf::power(exponent as usize))
    }
    /// As [`Lane::store`], past the caches where `to` is aligned and the machine can.
    #[inline(always)]
    fn stream(self, v: Self::V, to: &mut [u8]) {
        self.store(v, to);
    }
    /// After the last [`Lane::stream`] of a call: other processors see what it wrote before
    /// whatever is written from now on.
    #[inline(always)]
    fn fence(self) {}
    /// Ask for the line at `data[at..]`, which need not be within `data`.
    #[inline(always)]
    fn prefetch(self, data: &[u8], at: usize) {
        let _ = (data, at);
    }
}

/// The vectors of one block. `W` is how many there are: enough independent sums to hide the
/// latency of a multiplication and the cost of walking the terms, few enough for the registers.
pub(crate) type Block<L, const W: usize> = [<L as Lane>::V; W];

/// Load the `len` bytes at `at` as a block; what a short block lacks is zero. Unless `AHEAD` is
/// zero, ask for the block so far ahead.
#[inline(always)]
pub(crate) fn load<L: Lane, const W: usize, const AHEAD: usize>(
    lane: L,
    data: &[u8],
    at: usize,
    len: usize,
) -> Block<L, W> {
    if AHEAD > 0 {
        for line in (0..W * L::BYTES).step_by(LINE) {
            lane.prefetch(data, at + line + AHEAD);
        }
    }
    let mut block = [lane.zero(); W];
    let data = &data[at..at + len];
    if len == W * L::BYTES {
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
pub(crate) fn store<L: Lane, const W: usize>(
    lane: L,
    block: Block<L, W>,
    data: &mut [u8],
    at: usize,
    len: usize,
) {
    let data = &mut data[at..at + len];
    if len == W * L::BYTES {
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

/// As [`store`], past the caches if `streaming` and where that is possible.
#[inline(always)]
pub(crate) fn put<L: Lane, const W: usize>(
    lane: L,
    block: Block<L, W>,
    data: &mut [u8],
    at: usize,
    len: usize,
    streaming: bool,
) {
    if streaming && len == W * L::BYTES {
        let data = &mut data[at..at + len];
        for (i, v) in block.into_iter().enumerate() {
            lane.stream(v, &mut data[i * L::BYTES..]);
        }
    } else {
        if at + CLAIM < data.len() {
            for line in (0..W * L::BYTES).step_by(LINE) {
                lane.prefetch(data, at + CLAIM + line);
            }
        }
        store(lane, block, data, at, len);
    }
}

/// `a + b`.
#[inline(always)]
pub(crate) fn add<L: Lane, const W: usize>(
    lane: L,
    mut a: Block<L, W>,
    b: Block<L, W>,
) -> Block<L, W> {
    for i in 0..W {
        a[i] = lane.xor(a[i], b[i]);
    }
    a
}

/// `coefficient * block`.
#[inline(always)]
pub(crate) fn scale<L: Lane, const W: usize>(
    lane: L,
    coefficient: u8,
    mut block: Block<L, W>,
) -> Block<L, W> {
    let factor = lane.factor(coefficient);
    for v in &mut block {
        *v = lane.scale(factor, *v);
    }
    block
}

/// Whether all bytes of the block are zero.
#[inline(always)]
pub(crate) fn is_zero<L: Lane, const W: usize>(lane: L, block: Block<L, W>) -> bool {
    block.into_iter().all(|v| lane.is_zero(v))
}

/// What P and Q are summed over.
pub(crate) trait Term {
    fn exp(&self) -> u8;
    /// See [`load`].
    fn load<L: Lane, const W: usize, const AHEAD: usize>(
        &self,
        lane: L,
        at: usize,
        len: usize,
    ) -> Block<L, W>;
}

impl Term for Source<'_> {
    fn exp(&self) -> u8 {
        self.exp
    }

    #[inline(always)]
    fn load<L: Lane, const W: usize, const AHEAD: usize>(
        &self,
        lane: L,
        at: usize,
        len: usize,
    ) -> Block<L, W> {
        load::<L, W, AHEAD>(lane, self.data, at, len)
    }
}

impl Term for Change<'_> {
    fn exp(&self) -> u8 {
        self.exp
    }

    #[inline(always)]
    fn load<L: Lane, const W: usize, const AHEAD: usize>(
        &self,
        lane: L,
        at: usize,
        len: usize,
    ) -> Block<L, W> {
        add(
            lane,
            load::<L, W, AHEAD>(lane, self.old, at, len),
            load::<L, W, AHEAD>(lane, self.new, at, len),
        )
    }
}

/// What becomes of the sums.
pub(crate) trait Sink {
    /// Whether P is wanted; if not, zeroes are handed over.
    const P: bool;
    /// Whether Q is wanted; if not, zeroes are handed over.
    const Q: bool;

    /// Take the sums over the `len` bytes at `at`. Returns whether to go on. What it reads itself,
    /// it asks for `AHEAD`.
    fn take<L: Lane, const W: usize, const AHEAD: usize>(
        &mut self,
        lane: L,
        at: usize,
        len: usize,
        p: Block<L, W>,
        q: Block<L, W>,
    ) -> bool;
}

/// Fold `len` bytes of all terms into `sink`.
#[inline(always)]
pub(crate) fn fold<L: Lane, T: Term, S: Sink, const W: usize>(
    lane: L,
    terms: &[T],
    len: usize,
    hints: Hints,
    sink: &mut S,
) {
    let order = if S::Q && !L::SCALES_FAST {
        Order::new(terms)
    } else {
        Order::NONE
    };
    // Where asking ahead would go beyond the end, nothing is asked for.
    let mut at = 0;
    if hints.cold {
        let until = len.saturating_sub(FAR);
        match blocks::<L, T, S, W, FAR>(lane, terms, &order, at, until, sink) {
            Some(reached) => at = reached,
            None => return,
        }
    }
    let Some(at) = blocks::<L, T, S, W, 0>(lane, terms, &order, at, len, sink) else {
        return;
    };
    if at < len {
        let (p, q) = sums::<L, T, S, W, 0>(lane, terms, &order, at, len - at);
        sink.take::<L, W, 0>(lane, at, len - at, p, q);
    }
    if hints.streaming {
        lane.fence();
    }
}

/// Whole blocks from `at` to `end`, and where they end; `None` if the sink has enough.
#[inline(always)]
fn blocks<L: Lane, T: Term, S: Sink, const W: usize, const AHEAD: usize>(
    lane: L,
    terms: &[T],
    order: &Order,
    mut at: usize,
    end: usize,
    sink: &mut S,
) -> Option<usize> {
    let full = W * L::BYTES;
    while end.saturating_sub(at) >= full {
        let (p, q) = sums::<L, T, S, W, AHEAD>(lane, terms, order, at, full);
        if !sink.take::<L, W, AHEAD>(lane, at, full, p, q) {
            return None;
        }
        at += full;
    }
    Some(at)
}

#[inline(always)]
fn sums<L: Lane, T: Term, S: Sink, const W: usize, const AHEAD: usize>(
    lane: L,
    terms: &[T],
    order: &Order,
    at: usize,
    len: usize,
) -> (Block<L, W>, Block<L, W>) {
    if S::Q && !L::SCALES_FAST {
        doubling_sums::<L, T, S, W, AHEAD>(lane, terms, order, at, len)
    } else {
        scaling_sums::<L, T, S, W, AHEAD>(lane, terms, at, len)
    }
}

/// `P += D`, `Q += 2^exp * D` for each term, two terms at a time, since some instruction sets add
/// three vectors in one instruction.
#[inline(always)]
fn scaling_sums<L: Lane, T: Term, S: Sink, const W: usize, const AHEAD: usize>(
    lane: L,
    terms: &[T],
    at: usize,
    len: usize,
) -> (Block<L, W>, Block<L, W>) {
    let (mut p, mut q) = ([lane.zero(); W], [lane.zero(); W]);
    let (pairs, rest) = terms.as_chunks::<2>();
    for [a, b] in pairs {
        let a_data: Block<L, W> = a.load::<L, W, AHEAD>(lane, at, len);
        let b_data: Block<L, W> = b.load::<L, W, AHEAD>(lane, at, len);
        if S::P {
            for i in 0..W {
                p[i] = lane.xor3(p[i], a_data[i], b_data[i]);
            }
        }
        if S::Q {
            let a_factor = lane.power(a.exp());
            let b_factor = lane.power(b.exp());
            for i in 0..W {
                let a_part = lane.scale(a_factor, a_data[i]);
                let b_part = lane.scale(b_factor, b_data[i]);
                q[i] = lane.xor3(q[i], a_part, b_part);
            }
        }
    }
    for term in rest {
        let data: Block<L, W> = term.load::<L, W, AHEAD>(lane, at, len);
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
fn doubling_sums<L: Lane, T: Term, S: Sink, const W: usize, const AHEAD: usize>(
    lane: L,
    terms: &[T],
    order: &Order,
    at: usize,
    len: usize,
) -> (Block<L, W>, Block<L, W>) {
    let (mut p, mut q) = ([lane.zero(); W], [lane.zero(); W]);
    for step in &order.steps[..order.count] {
        let data = terms[step.term as usize].load::<L, W, AHEAD>(lane, at, len);
        q = add(lane, raise(lane, q, step.gap), data);
        if S::P {
            p = add(lane, p, data);
        }
    }
    (p, raise(lane, q, order.lowest))
}

/// `2^exponent * block`.
#[inline(always)]
fn raise<L: Lane, const W: usize>(lane: L, mut block: Block<L, W>, exponent: u8) -> Block<L, W> {
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
