//! Eight bytes at a time in an ordinary register, for machines without vector instructions that
//! this crate knows. Safe code; several times faster than the scalar engine.

use crate::fold::Lane;
use crate::gf;

/// Needs nothing of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Swar;

const TOP_BITS: u64 = 0x8080_8080_8080_8080;

impl Lane for Swar {
    type V = u64;
    type Factor = u8;
    const BYTES: usize = 8;
    const SCALES_FAST: bool = false;

    #[inline(always)]
    fn zero(self) -> u64 {
        0
    }

    #[inline(always)]
    fn load(self, from: &[u8]) -> u64 {
        u64::from_le_bytes(*from.first_chunk().expect("blocks are loaded whole"))
    }

    #[inline(always)]
    fn store(self, v: u64, to: &mut [u8]) {
        to[..8].copy_from_slice(&v.to_le_bytes());
    }

    #[inline(always)]
    fn xor(self, a: u64, b: u64) -> u64 {
        a ^ b
    }

    #[inline(always)]
    fn double(self, v: u64) -> u64 {
        let carries = v & TOP_BITS;
        // A carry of 1 per byte times 0x1d stays within its byte.
        ((v ^ carries) << 1) ^ ((carries >> 7) * gf::REDUCTION as u64)
    }

    #[inline(always)]
    fn factor(self, coefficient: u8) -> u8 {
        coefficient
    }

    /// Multiplication as at school, from the highest bit of the factor down.
    #[inline(always)]
    fn scale(self, factor: u8, v: u64) -> u64 {
        let mut product = 0;
        for bit in (0..8 - factor.leading_zeros()).rev() {
            product = self.double(product);
            if factor >> bit & 1 != 0 {
                product ^= v;
            }
        }
        product
    }

    #[inline(always)]
    fn is_zero(self, v: u64) -> bool {
        v == 0
    }
}
