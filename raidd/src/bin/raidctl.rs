//! raidctl: the command line of raidd. Everything is in the library, so that tests can call it.

use clap::Parser;
use raidd::cli::args::{Cli, Output};
use raidd::cli::{exit, verbs};

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    exit::report("raidctl", verbs::run(&cli), cli.output == Output::Json)
}
