//! The field against two others: multiplication as at school, bit by bit, and a published crate.

use parity_kernels::gf;
use reed_solomon_erasure::galois_8;

/// Multiply as polynomials over bits, then reduce by 0x11d from the top.
fn schoolbook(a: u8, b: u8) -> u8 {
    let mut product = 0u16;
    for bit in 0..8 {
        if b >> bit & 1 != 0 {
            product ^= (a as u16) << bit;
        }
    }
    for bit in (8..15).rev() {
        if product >> bit & 1 != 0 {
            product ^= 0x11d << (bit - 8);
        }
    }
    product as u8
}

#[test]
fn all_products_agree() {
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(gf::mul(a, b), schoolbook(a, b), "{a} * {b}");
            assert_eq!(gf::mul(a, b), galois_8::mul(a, b), "{a} * {b}");
        }
    }
}

#[test]
fn doubling_powers_and_logarithms_agree() {
    for x in 0..=255 {
        assert_eq!(gf::double(x), schoolbook(2, x));
    }
    let mut power = 1;
    for exponent in 0..1000 {
        assert_eq!(gf::power(exponent), power);
        assert_eq!(gf::log(power) as usize, exponent % gf::ORDER);
        power = schoolbook(power, 2);
    }
}

#[test]
fn inverses_agree() {
    for x in 1..=255 {
        assert_eq!(schoolbook(x, gf::inverse(x)), 1);
        assert_eq!(gf::inverse(x), galois_8::div(1, x));
    }
    assert_eq!(gf::inverse(2), 0x8e);
}

#[test]
#[should_panic(expected = "no logarithm")]
fn zero_has_no_inverse() {
    gf::inverse(0);
}
