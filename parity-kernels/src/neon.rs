//! Vector instructions of 64-bit ARM, as [`crate::x86`] has them for x86-64: the token can only be
//! had where the machine has the instructions.
//!
//! Owns no memory. The only unsafe things here are using an instruction and reading or writing a
//! vector through the address of a slice long enough for it.

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use crate::fold::{Lane, Sink, Term, fold};
use crate::gf;
use crate::job::Hints;

/// 16 bytes at a time; multiplies with a table look-up per half byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// The token, if this machine has the instructions.
    pub fn detect() -> Option<Neon> {
        is_aarch64_feature_detected!("neon").then_some(Neon(()))
    }

    /// [`fold`] with these instructions.
    pub fn fold<T: Term, S: Sink>(self, terms: &[T], len: usize, hints: Hints, sink: &mut S) {
        // SAFETY: `self` exists, so `detect` has found the feature.
        unsafe { fold_neon(self, terms, len, hints, sink) }
    }
}

#[target_feature(enable = "neon")]
fn fold_neon<T: Term, S: Sink>(lane: Neon, terms: &[T], len: usize, hints: Hints, sink: &mut S) {
    fold::<_, _, _, 4>(lane, terms, len, hints, sink);
}

impl Lane for Neon {
    type V = uint8x16_t;
    /// The products of the low and the high half bytes.
    type Factor = (uint8x16_t, uint8x16_t);
    const BYTES: usize = 16;
    const SCALES_FAST: bool = false;

    #[inline(always)]
    fn zero(self) -> uint8x16_t {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { vdupq_n_u8(0) }
    }

    #[inline(always)]
    fn load(self, from: &[u8]) -> uint8x16_t {
        let from: &[u8; 16] = from.first_chunk().expect("blocks are loaded whole");
        // SAFETY: reads exactly the array, at any alignment; `self` proves that the machine has
        // this instruction.
        unsafe { vld1q_u8(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: uint8x16_t, to: &mut [u8]) {
        let to: &mut [u8; 16] = to.first_chunk_mut().expect("blocks are stored whole");
        // SAFETY: writes exactly the array, at any alignment; `self` proves that the machine has
        // this instruction.
        unsafe { vst1q_u8(to.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn xor(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { veorq_u8(a, b) }
    }

    #[inline(always)]
    fn double(self, v: uint8x16_t) -> uint8x16_t {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let carries = vcltzq_s8(vreinterpretq_s8_u8(v));
            let reduction = vandq_u8(carries, vdupq_n_u8(gf::REDUCTION));
            veorq_u8(vshlq_n_u8::<1>(v), reduction)
        }
    }

    #[inline(always)]
    fn factor(self, coefficient: u8) -> (uint8x16_t, uint8x16_t) {
        let products = &gf::HALF_BYTE_PRODUCTS[coefficient as usize];
        // SAFETY: reads exactly the two arrays, at any alignment; `self` proves that the machine
        // has this instruction.
        unsafe {
            (
                vld1q_u8(products.low.as_ptr()),
                vld1q_u8(products.high.as_ptr()),
            )
        }
    }

    #[inline(always)]
    fn scale(self, (low, high): (uint8x16_t, uint8x16_t), v: uint8x16_t) -> uint8x16_t {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let from_low = vqtbl1q_u8(low, vandq_u8(v, vdupq_n_u8(0x0f)));
            veorq_u8(from_low, vqtbl1q_u8(high, vshrq_n_u8::<4>(v)))
        }
    }

    #[inline(always)]
    fn is_zero(self, v: uint8x16_t) -> bool {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { vmaxvq_u8(v) == 0 }
    }

    #[inline(always)]
    fn prefetch(self, data: &[u8], at: usize) {
        let line = data.as_ptr().wrapping_add(at);
        // SAFETY: a hint that may name any address; it changes neither memory nor registers.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line,
                options(nostack, readonly, preserves_flags));
        }
    }
}

/// Drop these bytes from all caches.
pub(crate) fn flush(data: &[u8]) -> bool {
    // Lines are of 64 bytes or more; a line met twice is no harm.
    for line in data.chunks(64) {
        // SAFETY: Linux lets every process do this to its own memory; the address is that of a
        // live byte, whose value stays.
        unsafe {
            std::arch::asm!("dc civac, {line}", line = in(reg) line.as_ptr(),
                options(nostack, preserves_flags));
        }
    }
    // SAFETY: waits for the above; touches nothing.
    unsafe { std::arch::asm!("dsb sy", options(nostack, preserves_flags)) };
    true
}
