//! Vector instructions of x86-64. Each instruction set is a token type that can only be had, by
//! its `detect`, where the machine has the instructions; so holding one is the proof that they
//! may be used.
//!
//! Owns no memory. The only unsafe things here are using an instruction and reading or writing a
//! vector through the address of a slice long enough for it.

use std::arch::x86_64::*;

use crate::fold::{Lane, Sink, Term, fold};
use crate::gf;
use crate::job::Hints;

/// Define a token type. `$fold` is [`fold`] compiled with the features enabled; everything inside
/// is inlined into it, which is how the intrinsics below become single instructions.
macro_rules! token {
    ($(#[$doc:meta])* $token:ident, $fold:ident, $width:literal, $features:literal, $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $token(());

        impl $token {
            /// The token, if this machine has the instructions.
            pub fn detect() -> Option<$token> {
                ($(is_x86_feature_detected!($feature))&&+).then_some($token(()))
            }

            /// [`fold`] with these instructions.
            pub fn fold<T: Term, S: Sink>(
                self,
                terms: &[T],
                len: usize,
                hints: Hints,
                sink: &mut S,
            ) {
                // SAFETY: `self` exists, so `detect` has found the features.
                unsafe { $fold(self, terms, len, hints, sink) }
            }
        }

        #[target_feature(enable = $features)]
        fn $fold<T: Term, S: Sink>(
            lane: $token,
            terms: &[T],
            len: usize,
            hints: Hints,
            sink: &mut S,
        ) {
            fold::<_, _, _, $width>(lane, terms, len, hints, sink);
        }
    };
}

token!(
    /// 16 bytes at a time; multiplies with a table look-up per half byte.
    Ssse3, fold_ssse3, 4, "ssse3", "ssse3"
);
token!(
    /// 32 bytes at a time; multiplies with a table look-up per half byte.
    Avx2, fold_avx2, 4, "avx2", "avx2"
);
token!(
    /// 32 bytes at a time; multiplies with one bit-matrix instruction.
    Avx2Gfni, fold_avx2_gfni, 4, "avx2,gfni", "avx2", "gfni"
);
token!(
    /// 64 bytes at a time; multiplies with a table look-up per half byte.
    Avx512, fold_avx512, 4, "avx512f,avx512bw", "avx512f", "avx512bw"
);
token!(
    /// 64 bytes at a time; multiplies with one bit-matrix instruction.
    Avx512Gfni, fold_avx512_gfni, 4, "avx512f,avx512bw,gfni", "avx512f", "avx512bw", "gfni"
);

/// The part of [`Lane`] that is moving and adding, the same for all vectors of one width.
macro_rules! moves {
    ($vector:ty, $bytes:literal, $zero:ident, $load:ident, $store:ident, $stream:ident, $xor:ident) => {
        type V = $vector;
        const BYTES: usize = $bytes;

        #[inline(always)]
        fn zero(self) -> $vector {
            // SAFETY: `self` proves that the machine has this instruction.
            unsafe { $zero() }
        }

        #[inline(always)]
        fn load(self, from: &[u8]) -> $vector {
            let from: &[u8; $bytes] = from.first_chunk().expect("blocks are loaded whole");
            // SAFETY: reads exactly the array, at any alignment; `self` proves that the machine
            // has this instruction.
            unsafe { $load(from.as_ptr().cast()) }
        }

        #[inline(always)]
        fn store(self, v: $vector, to: &mut [u8]) {
            let to: &mut [u8; $bytes] = to.first_chunk_mut().expect("blocks are stored whole");
            // SAFETY: writes exactly the array, at any alignment; `self` proves that the machine
            // has this instruction.
            unsafe { $store(to.as_mut_ptr().cast(), v) }
        }

        #[inline(always)]
        fn stream(self, v: $vector, to: &mut [u8]) {
            let to: &mut [u8; $bytes] = to.first_chunk_mut().expect("blocks are stored whole");
            let place: *mut $vector = to.as_mut_ptr().cast();
            if place.is_aligned() {
                // SAFETY: writes exactly the array, which is aligned (checked); `self` proves that
                // the machine has this instruction.
                unsafe { $stream(place, v) }
            } else {
                self.store(v, to);
            }
        }

        #[inline(always)]
        fn fence(self) {
            // SAFETY: every x86-64 has it.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        fn prefetch(self, data: &[u8], at: usize) {
            let line = data.as_ptr().wrapping_add(at);
            // SAFETY: every x86-64 has it; a hint that may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        }

        #[inline(always)]
        fn xor(self, a: $vector, b: $vector) -> $vector {
            // SAFETY: `self` proves that the machine has this instruction.
            unsafe { $xor(a, b) }
        }
    };
}

/// The rest of [`Lane`] for the bit-matrix instruction.
macro_rules! scales_by_matrix {
    ($vector:ty, $broadcast:ident, $affine:ident) => {
        type Factor = $vector;
        const SCALES_FAST: bool = true;

        #[inline(always)]
        fn double(self, v: $vector) -> $vector {
            self.scale(self.factor(2), v)
        }

        #[inline(always)]
        fn factor(self, coefficient: u8) -> $vector {
            // SAFETY: `self` proves that the machine has this instruction.
            unsafe { $broadcast(gf::BIT_MATRICES[coefficient as usize] as i64) }
        }

        #[inline(always)]
        fn power(self, exponent: u8) -> $vector {
            // SAFETY: `self` proves that the machine has this instruction.
            unsafe { $broadcast(gf::POWER_MATRICES[exponent as usize] as i64) }
        }

        #[inline(always)]
        fn scale(self, factor: $vector, v: $vector) -> $vector {
            // SAFETY: `self` proves that the machine has this instruction.
            unsafe { $affine::<0>(v, factor) }
        }
    };
}

impl Lane for Ssse3 {
    moves!(
        __m128i,
        16,
        _mm_setzero_si128,
        _mm_loadu_si128,
        _mm_storeu_si128,
        _mm_stream_si128,
        _mm_xor_si128
    );
    /// The products of the low and the high half bytes.
    type Factor = (__m128i, __m128i);
    const SCALES_FAST: bool = false;

    #[inline(always)]
    fn double(self, v: __m128i) -> __m128i {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let carries = _mm_cmpgt_epi8(_mm_setzero_si128(), v);
            let reduction = _mm_and_si128(carries, _mm_set1_epi8(gf::REDUCTION as i8));
            _mm_xor_si128(_mm_add_epi8(v, v), reduction)
        }
    }

    #[inline(always)]
    fn factor(self, coefficient: u8) -> (__m128i, __m128i) {
        let products = &gf::HALF_BYTE_PRODUCTS[coefficient as usize];
        // SAFETY: reads exactly the two arrays, at any alignment; `self` proves that the machine
        // has this instruction.
        unsafe {
            (
                _mm_loadu_si128(products.low.as_ptr().cast()),
                _mm_loadu_si128(products.high.as_ptr().cast()),
            )
        }
    }

    #[inline(always)]
    fn scale(self, (low, high): (__m128i, __m128i), v: __m128i) -> __m128i {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let half = _mm_set1_epi8(0x0f);
            let from_low = _mm_shuffle_epi8(low, _mm_and_si128(v, half));
            let high_halves = _mm_and_si128(_mm_srli_epi64::<4>(v), half);
            _mm_xor_si128(from_low, _mm_shuffle_epi8(high, high_halves))
        }
    }

    #[inline(always)]
    fn is_zero(self, v: __m128i) -> bool {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_setzero_si128())) == 0xffff }
    }
}

impl Lane for Avx2 {
    moves!(
        __m256i,
        32,
        _mm256_setzero_si256,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_stream_si256,
        _mm256_xor_si256
    );
    /// The products of the low and the high half bytes.
    type Factor = (__m256i, __m256i);
    const SCALES_FAST: bool = false;

    #[inline(always)]
    fn double(self, v: __m256i) -> __m256i {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let carries = _mm256_cmpgt_epi8(_mm256_setzero_si256(), v);
            let reduction = _mm256_and_si256(carries, _mm256_set1_epi8(gf::REDUCTION as i8));
            _mm256_xor_si256(_mm256_add_epi8(v, v), reduction)
        }
    }

    #[inline(always)]
    fn factor(self, coefficient: u8) -> (__m256i, __m256i) {
        let products = &gf::HALF_BYTE_PRODUCTS[coefficient as usize];
        // SAFETY: reads exactly the two arrays, at any alignment; `self` proves that the machine
        // has these instructions.
        unsafe {
            let low = _mm_loadu_si128(products.low.as_ptr().cast());
            let high = _mm_loadu_si128(products.high.as_ptr().cast());
            (
                _mm256_broadcastsi128_si256(low),
                _mm256_broadcastsi128_si256(high),
            )
        }
    }

    #[inline(always)]
    fn scale(self, (low, high): (__m256i, __m256i), v: __m256i) -> __m256i {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let half = _mm256_set1_epi8(0x0f);
            let from_low = _mm256_shuffle_epi8(low, _mm256_and_si256(v, half));
            let high_halves = _mm256_and_si256(_mm256_srli_epi64::<4>(v), half);
            _mm256_xor_si256(from_low, _mm256_shuffle_epi8(high, high_halves))
        }
    }

    #[inline(always)]
    fn is_zero(self, v: __m256i) -> bool {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { _mm256_testz_si256(v, v) == 1 }
    }
}

impl Lane for Avx2Gfni {
    moves!(
        __m256i,
        32,
        _mm256_setzero_si256,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_stream_si256,
        _mm256_xor_si256
    );
    scales_by_matrix!(__m256i, _mm256_set1_epi64x, _mm256_gf2p8affine_epi64_epi8);

    #[inline(always)]
    fn is_zero(self, v: __m256i) -> bool {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { _mm256_testz_si256(v, v) == 1 }
    }
}

/// The truth table of `a ^ b ^ c`.
const XOR3: i32 = 0x96;

impl Lane for Avx512 {
    moves!(
        __m512i,
        64,
        _mm512_setzero_si512,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_stream_si512,
        _mm512_xor_si512
    );
    /// The products of the low and the high half bytes.
    type Factor = (__m512i, __m512i);
    const SCALES_FAST: bool = false;

    #[inline(always)]
    fn xor3(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { _mm512_ternarylogic_epi64::<XOR3>(a, b, c) }
    }

    #[inline(always)]
    fn double(self, v: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let carries = _mm512_movepi8_mask(v);
            let reduction = _mm512_maskz_mov_epi8(carries, _mm512_set1_epi8(gf::REDUCTION as i8));
            _mm512_xor_si512(_mm512_add_epi8(v, v), reduction)
        }
    }

    #[inline(always)]
    fn factor(self, coefficient: u8) -> (__m512i, __m512i) {
        let products = &gf::HALF_BYTE_PRODUCTS[coefficient as usize];
        // SAFETY: reads exactly the two arrays, at any alignment; `self` proves that the machine
        // has these instructions.
        unsafe {
            let low = _mm_loadu_si128(products.low.as_ptr().cast());
            let high = _mm_loadu_si128(products.high.as_ptr().cast());
            (_mm512_broadcast_i32x4(low), _mm512_broadcast_i32x4(high))
        }
    }

    #[inline(always)]
    fn scale(self, (low, high): (__m512i, __m512i), v: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has these instructions.
        unsafe {
            let half = _mm512_set1_epi8(0x0f);
            let from_low = _mm512_shuffle_epi8(low, _mm512_and_si512(v, half));
            let high_halves = _mm512_and_si512(_mm512_srli_epi64::<4>(v), half);
            _mm512_xor_si512(from_low, _mm512_shuffle_epi8(high, high_halves))
        }
    }

    #[inline(always)]
    fn is_zero(self, v: __m512i) -> bool {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { _mm512_test_epi64_mask(v, v) == 0 }
    }
}

impl Lane for Avx512Gfni {
    moves!(
        __m512i,
        64,
        _mm512_setzero_si512,
        _mm512_loadu_si512,
        _mm512_storeu_si512,
        _mm512_stream_si512,
        _mm512_xor_si512
    );
    scales_by_matrix!(__m512i, _mm512_set1_epi64, _mm512_gf2p8affine_epi64_epi8);

    #[inline(always)]
    fn xor3(self, a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { _mm512_ternarylogic_epi64::<XOR3>(a, b, c) }
    }

    #[inline(always)]
    fn is_zero(self, v: __m512i) -> bool {
        // SAFETY: `self` proves that the machine has this instruction.
        unsafe { _mm512_test_epi64_mask(v, v) == 0 }
    }
}

/// Drop these bytes from all caches.
pub(crate) fn flush(data: &[u8]) -> bool {
    for line in data.chunks(64) {
        // SAFETY: every x86-64 has it; the address is that of a live byte, whose value stays.
        unsafe { _mm_clflush(line.as_ptr()) }
    }
    // SAFETY: every x86-64 has it.
    unsafe { _mm_mfence() };
    true
}
