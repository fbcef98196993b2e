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
    seeds(1200, |_| {});
}

/// The same, with members lost and replaced all the time.
#[test]
fn sim_rebuilds() {
    seeds(300, Setup::favour_rebuilds);
}

/// The same, under many writes.
#[test]
fn sim_rebuilds_beside_writes() {
    seeds(100, |setup| {
        setup.favour_rebuilds();
        setup.favour_writes();
    });
}

fn seeds(count: u64, favour: impl Fn(&mut Setup)) {
    let draw = |seed| {
        let mut setup = Setup::from_seed(seed);
        favour(&mut setup);
        setup
    };
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(seed) = number("RAIDD_SIM_SEED") {
        let setup = draw(seed);
        eprintln!("{setup:?}");
        if let Err(error) = run(&setup, Log::on(true)) {
            let _ = std::panic::take_hook();
            panic!("seed {seed}: {error}");
        }
        return;
    }
    let first = number("RAIDD_SIM_FIRST").unwrap_or(1);
    let count = number("RAIDD_SIM_SEEDS").unwrap_or(count);
    for seed in first..first + count {
        let setup = draw(seed);
        if let Err(error) = run(&setup, Log::off()) {
            let text = report(&setup, &error, 80);
            let _ = std::panic::take_hook();
            panic!("{text}");
        }
    }
}
