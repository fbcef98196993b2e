//! What the tests share: the engines of this machine, pseudo-random bytes, and stripes of
//! unaligned chunks.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod conform;
pub mod layouts;

use parity_kernels::{Change, Engine, Source};
use reed_solomon_erasure::galois_8;

/// Run `test` with every engine that this machine has, and say which it lacks.
pub fn with_every_engine(mut test: impl FnMut(&Engine)) {
    let (mut ran, mut skipped) = (0, 0);
    for name in Engine::NAMES {
        match Engine::by_name(name) {
            Some(engine) => {
                test(&engine);
                ran += 1;
            }
            None => {
                println!("skipped: {name}");
                skipped += 1;
            }
        }
    }
    println!("{ran} engines ran, {skipped} were skipped");
    assert!(ran >= 2, "scalar and swar exist on every machine");
}

/// Xorshift: the same bytes for the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 24) as u8).collect()
    }

    /// `count` different exponents in any order.
    pub fn exponents(&mut self, count: usize) -> Vec<u8> {
        let mut all: Vec<u8> = (0..=254).collect();
        for i in 0..count {
            let j = i + self.below(all.len() - i);
            all.swap(i, j);
        }
        all.truncate(count);
        all
    }
}

/// A chunk in the middle of a larger allocation, at any alignment, with a margin that must not
/// change around it.
#[derive(Clone)]
pub struct Chunk {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

const MARGIN: usize = 96;
const CANARY: u8 = 0xa7;

impl Chunk {
    pub fn new(content: &[u8], start: usize) -> Chunk {
        assert!(start < MARGIN);
        let mut memory = vec![CANARY; content.len() + 2 * MARGIN];
        memory[start..start + content.len()].copy_from_slice(content);
        Chunk {
            memory,
            start,
            len: content.len(),
        }
    }

    /// A chunk of the same size and place, to be written to.
    pub fn blank(&self) -> Chunk {
        Chunk::new(&vec![0x5a; self.len], self.start)
    }

    pub fn get(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    pub fn assert_margin_intact(&self) {
        let margin = self.memory[..self.start]
            .iter()
            .chain(&self.memory[self.start + self.len..]);
        assert!(
            margin.into_iter().all(|byte| *byte == CANARY),
            "bytes around a chunk changed"
        );
    }
}

/// Data chunks with their exponents, and the P and Q that independent arithmetic makes of them.
#[derive(Clone)]
pub struct Stripe {
    pub data: Vec<Chunk>,
    pub exps: Vec<u8>,
    pub p: Chunk,
    pub q: Chunk,
}

impl Stripe {
    pub fn new(contents: &[Vec<u8>], exps: &[u8], random: &mut Random) -> Stripe {
        let len = contents[0].len();
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        for (content, exp) in contents.iter().zip(exps) {
            let coefficient = galois_8::exp(2, *exp as usize);
            for i in 0..len {
                p[i] = galois_8::add(p[i], content[i]);
                q[i] = galois_8::add(q[i], galois_8::mul(coefficient, content[i]));
            }
        }
        let mut chunk = |content: &[u8]| Chunk::new(content, random.below(MARGIN));
        Stripe {
            data: contents.iter().map(|content| chunk(content)).collect(),
            exps: exps.to_vec(),
            p: chunk(&p),
            q: chunk(&q),
        }
    }

    pub fn random(members: usize, len: usize, exps: &[u8], seed: u64) -> Stripe {
        let mut random = Random::new(seed);
        let contents: Vec<_> = (0..members).map(|_| random.bytes(len)).collect();
        Stripe::new(&contents, exps, &mut random)
    }

    pub fn sources(&self) -> Vec<Source<'_>> {
        self.sources_without(&[])
    }

    /// The sources except those with the indices `lost`.
    pub fn sources_without(&self, lost: &[usize]) -> Vec<Source<'_>> {
        let kept = (0..self.data.len()).filter(|i| !lost.contains(i));
        kept.map(|i| Source {
            data: self.data[i].get(),
            exp: self.exps[i],
        })
        .collect()
    }

    /// The changes that lead from this stripe to `new`, for the chunks with the indices `which`.
    pub fn changes<'a>(&'a self, new: &'a Stripe, which: &[usize]) -> Vec<Change<'a>> {
        let change = |&i: &usize| Change {
            old: self.data[i].get(),
            new: new.data[i].get(),
            exp: self.exps[i],
        };
        which.iter().map(change).collect()
    }
}
