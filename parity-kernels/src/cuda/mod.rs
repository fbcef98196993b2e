//! Parity on CUDA devices: what there is, and lanes to it.
//!
//! The driver (`libcuda.so.1`) is loaded at run time and nothing else is needed; without it [`probe`] says so, and all else
//! works. The kernels are `kernels/parity.cu`, compiled to `ptx/parity.ptx`, which drivers from R525 on load.
//!
//! [`Gpu`] opens lanes ([`crate::offload::Lane`]); `driver` and `memory` alone call the driver; `shape` says how a job is put to the
//! kernels, `ring` and `bulk` are the two ways in.

mod bulk;
mod driver;
mod lane;
mod memory;
mod probe;
mod quiet;
mod ring;
mod shape;
mod shapes;
pub mod yardstick;

pub use lane::{CudaLane, Gpu, GpuOptions, Shortage, gpus};
pub use probe::{DeviceInfo, PATIENCE, Probe, Selection, Unavailable, patiently, probe};
pub use ring::RingOptions;
