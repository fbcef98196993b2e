//! raidd with a data path that moves no data: the whole control plane on real block devices, for trying commands out
//! and for tests on machines without ublk. RAIDD_SIM=no-ublk, busy or fail-start sets a fault.

use std::sync::Arc;
use std::sync::atomic::Ordering;

#[path = "../tests/support/mod.rs"]
mod support;

fn main() -> std::process::ExitCode {
    let outcome = raidd::daemon::run(|| {
        let starter = support::SimStarter::default();
        match std::env::var("RAIDD_SIM").as_deref() {
            Ok("no-ublk") => starter.no_ublk.store(true, Ordering::SeqCst),
            Ok("busy") => starter.busy.store(true, Ordering::SeqCst),
            Ok("fail-start") => starter.fail_start.store(true, Ordering::SeqCst),
            _ => {}
        }
        Arc::new(starter)
    });
    raidd::cli::exit::report("raidd-sim", outcome, false)
}
