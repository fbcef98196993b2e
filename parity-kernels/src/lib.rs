//! parity-kernels
