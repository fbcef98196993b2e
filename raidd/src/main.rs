//! raidd: the daemon. Everything is in the library; this names the data path it runs with.

use std::sync::Arc;

use raidd::array_api::{ArrayOptions, ArrayStarter, MemberDevice, RunningArray, StartError};
use raidd::cli::exit;

/// Until the data path is joined on, the daemon serves everything but a start.
struct ControlOnly;

impl ArrayStarter for ControlOnly {
    fn start(
        &self,
        _verdict: raid_core::assemble::AssembledArray,
        _members: Vec<MemberDevice>,
        _options: ArrayOptions,
    ) -> Result<Arc<dyn RunningArray>, StartError> {
        Err(StartError::Unsupported(
            "this build of raidd has no data path yet".into(),
        ))
    }

    fn probe(&self) -> Result<Vec<String>, StartError> {
        Err(StartError::Unsupported(
            "this build of raidd has no data path yet".into(),
        ))
    }
}

fn main() -> std::process::ExitCode {
    exit::report("raidd", raidd::daemon::run(|| Arc::new(ControlOnly)), false)
}
