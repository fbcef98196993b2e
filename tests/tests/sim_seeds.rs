//! Many seeds through the simulator. `RAIDD_SIM_SEED=n` runs one and prints its events; `RAIDD_SIM_SEEDS=n` runs that many,
//! `RAIDD_SIM_FIRST=n` from there on.

#[path = "../src/sim/mod.rs"]
mod sim;

use sim::log::Log;
use sim::run::{report, run};
use sim::setup::Setup;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|v| v.parse().expect("a number"))
}

#[test]
fn sim_seeds() {
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(seed) = number("RAIDD_SIM_SEED") {
        let setup = Setup::from_seed(seed);
        eprintln!("{setup:?}");
        if let Err(error) = run(&setup, Log::on(true)) {
            let _ = std::panic::take_hook();
            panic!("seed {seed}: {error}");
        }
        return;
    }
    let first = number("RAIDD_SIM_FIRST").unwrap_or(1);
    let count = number("RAIDD_SIM_SEEDS").unwrap_or(1200);
    for seed in first..first + count {
        let setup = Setup::from_seed(seed);
        if let Err(error) = run(&setup, Log::off()) {
            let text = report(&setup, &error, 80);
            let _ = std::panic::take_hook();
            panic!("{text}");
        }
    }
}
