//! Which erasures lead to which coefficients. Pure functions of a few bytes, run once per call.
//!
//! Write `p` for "given P minus the P of the surviving data" and `q` likewise. If data x is lost,
//! `p = D_x` and `q = 2^x D_x`. If x and y are lost, `p = D_x + D_y` and
//! `q = 2^x D_x + 2^y D_y`; dividing the second by `2^x` and putting in the first gives
//! `2^-x q = D_x + 2^(y-x) (p + D_x)`, and so
//! `D_x = (2^(y-x) p + 2^-x q) / (2^(y-x) + 1)` and `D_y = p + D_x`.

use crate::gf;
use crate::job::RecoverError;

/// How the lost data follow from the differences `p` and `q`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Solution {
    /// Nothing is lost.
    Nothing,
    /// `D_x = p`.
    FromP,
    /// `D_x = scale * q`.
    FromQ {
        /// `2^-x`.
        scale: u8,
    },
    /// `D_x = a * p + b * q`, `D_y = p + D_x`.
    FromBoth {
        /// `2^(y-x) / (2^(y-x) + 1)`.
        a: u8,
        /// `2^-x / (2^(y-x) + 1)`.
        b: u8,
    },
}

/// Choose how to restore data with the exponents `lost` from the parities that are left.
/// A single chunk comes from P when P is there, as that is the cheaper one.
///
/// # Panics
/// If the two exponents are equal or one is above 254: those equations have no solution.
pub fn solve(lost: &[u8], p: bool, q: bool) -> Result<Solution, RecoverError> {
    for exp in lost {
        assert!((*exp as usize) < gf::ORDER, "exponent {exp} is above 254");
    }
    match *lost {
        [] => Ok(Solution::Nothing),
        [_] if p => Ok(Solution::FromP),
        [x] if q => Ok(Solution::FromQ {
            scale: gf::power(gf::ORDER - x as usize),
        }),
        [x, y] if p && q => {
            assert!(x != y, "two lost chunks share the exponent {x}");
            let ratio = gf::power(gf::ORDER + y as usize - x as usize);
            let divisor = gf::inverse(ratio ^ 1);
            Ok(Solution::FromBoth {
                a: gf::mul(ratio, divisor),
                b: gf::mul(gf::power(gf::ORDER - x as usize), divisor),
            })
        }
        [_] | [_, _] => Err(RecoverError::ParityMissing {
            lost: lost.len(),
            parities: p as usize + q as usize,
        }),
        _ => Err(RecoverError::TooManyLost { lost: lost.len() }),
    }
}
