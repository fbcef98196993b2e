//! The daemon's and raidctl's library: the control plane here, the data path in `array`, `engine` and `member_io`.
//!
//! | module | what it owns |
//! |---|---|
//! | `array_api` | the boundary between the two |
//! | `bench`, `doctor`, `metrics` | what raidctl measures, looks at and exports |
//! | `config`, `units` | the YAML file, sizes and durations |
//! | `control` | socket, protocol, commands |
//! | `lane` | GPUs that compute parity |
//! | `device` | what Linux knows about block devices |
//! | `member_spec` | `/dev/nvme<0..7>n1` |

pub mod array;
pub mod array_api;
pub mod bench;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod device;
pub mod discover;
pub mod doctor;
pub mod engine;
pub mod guard;
pub mod imprint;
pub mod lane;
pub mod leftovers;
pub mod member_spec;
pub mod metrics;
pub mod numbers;
pub mod preflight;
pub mod signature;
pub mod takeover;
pub mod units;
