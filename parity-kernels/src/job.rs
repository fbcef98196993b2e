//! The operands of the parity operations: borrowed slices and the exponents that go with them.
//!
//! Owns no memory. All slices of one call are equally long; an engine panics if they are not.
//! An exponent `exp` stands for the Q coefficient `2^exp` and is at most 254. In a call that uses
//! Q each chunk has its own; two with the same one could not be told apart, and an engine panics.
//! Where only P is used, exponents mean nothing and may all be 0.

use std::fmt;

/// What the caller knows about where the bytes are and will be wanted. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// The operands come from memory rather than from a cache: ask for them ahead.
    pub cold: bool,
    /// Nobody on this processor reads the results soon: store them past the caches where they are
    /// aligned to a vector. Right for what a device fetches next; wrong for what is read back.
    pub streaming: bool,
}

/// One data chunk, or the same byte range of it in every operand.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The bytes.
    pub data: &'a [u8],
    /// The Q coefficient is `2^exp`.
    pub exp: u8,
}

/// A data chunk before and after it is overwritten.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The bytes that the present P and Q were made from.
    pub old: &'a [u8],
    /// The bytes that P and Q shall cover from now on.
    pub new: &'a [u8],
    /// The Q coefficient is `2^exp`.
    pub exp: u8,
}

/// A data chunk to be restored.
#[derive(Debug)]
pub struct LostData<'a> {
    /// Where the restored bytes go; what is in it does not matter.
    pub out: &'a mut [u8],
    /// The Q coefficient is `2^exp`.
    pub exp: u8,
}

/// Which parity does not match the data. `false` for a parity that was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// P differs from the XOR of the data.
    pub p: bool,
    /// Q differs from the weighted sum of the data.
    pub q: bool,
}

impl Mismatch {
    /// Whether anything differs.
    pub fn any(self) -> bool {
        self.p || self.q
    }
}

/// Why lost data cannot be restored from what is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoverError {
    /// More than two data chunks are lost; P and Q are two equations.
    TooManyLost {
        /// How many data chunks are lost.
        lost: usize,
    },
    /// There are fewer parities than lost data chunks.
    ParityMissing {
        /// How many data chunks are lost.
        lost: usize,
        /// How many of P and Q were given.
        parities: usize,
    },
}

impl fmt::Display for RecoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoverError::TooManyLost { lost } => {
                write!(
                    f,
                    "{lost} data chunks are lost, and P and Q restore two at most"
                )
            }
            RecoverError::ParityMissing { lost, parities } => {
                write!(
                    f,
                    "{lost} data chunks are lost, and only {parities} parity chunks are left"
                )
            }
        }
    }
}

impl std::error::Error for RecoverError {}
