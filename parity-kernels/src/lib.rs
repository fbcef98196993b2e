//! XOR and Reed-Solomon P/Q arithmetic over byte slices, and the memory it works in.
//!
//! P is the XOR of the data chunks. Q is the sum of `2^exp * chunk` in GF(2^8) with polynomial
//! 0x11d, where the caller names the exponent of every chunk. Nothing here knows of arrays,
//! members or layouts.
//!
//! Start reading at [`scalar`]: it says what every operation means in a page that can be checked
//! on paper. All other engines must give the same bytes; `tests/engines.rs` holds them to it.
//!
//! Cost: every operation is one pass over its inputs, allocates nothing and never blocks.

pub mod buf;
pub mod calibrate;
pub mod coeff;
pub mod cuda;
pub mod engine;
mod fold;
pub mod gf;
pub mod job;
pub mod locate;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod offload;
pub mod scalar;
mod sink;
mod swar;
pub mod words;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use buf::{Arena, BufRange, Memory};
pub use engine::Engine;
pub use job::{Change, Hints, LostData, Mismatch, RecoverError, Source};
pub use locate::{Findings, Place, Wrong};
pub use words::Words;
