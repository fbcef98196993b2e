//! The field GF(2^8) with polynomial x^8+x^4+x^3+x^2+1 (0x11d) and generator 2.
//!
//! Owns the tables, all computed at compile time: 768 bytes of logarithms and powers, 4 KiB of
//! bit matrices and 8 KiB of half-byte products (the last two only where an engine uses them).
//! Addition in this field is XOR.

/// The low byte of the polynomial: what `x^8` reduces to.
pub const REDUCTION: u8 = 0x1d;

/// Number of non-zero elements, and so the period of the powers of two.
pub const ORDER: usize = 255;

/// `2 * x`.
#[inline]
pub const fn double(x: u8) -> u8 {
    (x << 1) ^ if x & 0x80 != 0 { REDUCTION } else { 0 }
}

const fn powers() -> [u8; 2 * ORDER] {
    let mut table = [0; 2 * ORDER];
    let mut x = 1;
    let mut i = 0;
    while i < 2 * ORDER {
        table[i] = x;
        x = double(x);
        i += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < ORDER {
        table[POWERS[i] as usize] = i as u8;
        i += 1;
    }
    table
}

/// `POWERS[i]` is `2^i`; two periods long, so that a sum of two logarithms needs no reduction.
static POWERS: [u8; 2 * ORDER] = powers();
static LOGARITHMS: [u8; 256] = logarithms();

/// `2^exponent`; the exponent counts modulo 255.
#[inline]
pub const fn power(exponent: usize) -> u8 {
    POWERS[exponent % ORDER]
}

/// The `i` in `0..=254` with `2^i == x`.
///
/// # Panics
/// If `x` is zero, which is no power of two.
#[inline]
pub const fn log(x: u8) -> u8 {
    assert!(x != 0, "zero has no logarithm");
    LOGARITHMS[x as usize]
}

/// `a * b`.
#[inline]
pub const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[LOGARITHMS[a as usize] as usize + LOGARITHMS[b as usize] as usize]
}

/// The `y` with `x * y == 1`.
///
/// # Panics
/// If `x` is zero, which has no inverse.
#[inline]
pub const fn inverse(x: u8) -> u8 {
    POWERS[ORDER - log(x) as usize]
}

/// The products of one coefficient with all half bytes: `low[i] = c * i`, `high[i] = c * 16i`.
/// A product with a whole byte is the sum of two of them.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct HalfByteProducts {
    pub low: [u8; 16],
    pub high: [u8; 16],
}

const fn half_byte_products() -> [HalfByteProducts; 256] {
    let mut table = [HalfByteProducts {
        low: [0; 16],
        high: [0; 16],
    }; 256];
    let mut c = 0;
    while c < 256 {
        let mut i = 0;
        while i < 16 {
            table[c].low[i] = mul(c as u8, i as u8);
            table[c].high[i] = mul(c as u8, (i as u8) << 4);
            i += 1;
        }
        c += 1;
    }
    table
}

/// [`HalfByteProducts`] of every coefficient.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) static HALF_BYTE_PRODUCTS: [HalfByteProducts; 256] = half_byte_products();

/// Multiplication by `c` as an 8 by 8 matrix over bits, in the form that the x86 instruction
/// `gf2p8affineqb` takes: byte `7 - i` of the word holds the input bits that sum to output bit `i`.
/// The polynomial enters only here, which is why that instruction does for 0x11d although its
/// sister `gf2p8mulb` is fixed to another polynomial.
const fn bit_matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut input = 0;
        while input < 8 {
            let product = mul(c as u8, 1 << input);
            let mut output = 0;
            while output < 8 {
                if product >> output & 1 != 0 {
                    table[c] |= 1u64 << (8 * (7 - output) + input);
                }
                output += 1;
            }
            input += 1;
        }
        c += 1;
    }
    table
}

const fn power_matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut exponent = 0;
    while exponent < 256 {
        table[exponent] = BIT_MATRICES[power(exponent) as usize];
        exponent += 1;
    }
    table
}

/// The bit matrix of `2^exponent`, for every exponent that fits a byte.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only x86-64 multiplies by bit matrices")
)]
pub(crate) static POWER_MATRICES: [u64; 256] = power_matrices();

/// The bit matrix of every coefficient.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only x86-64 multiplies by bit matrices")
)]
pub(crate) static BIT_MATRICES: [u64; 256] = bit_matrices();
