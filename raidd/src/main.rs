//! raidd: the daemon. Everything is in the library; this names the data path it runs with.

use std::sync::Arc;

use raidd::array::UblkStarter;
use raidd::cli::exit;

fn main() -> std::process::ExitCode {
    exit::report("raidd", raidd::daemon::run(|| Arc::new(UblkStarter)), false)
}
