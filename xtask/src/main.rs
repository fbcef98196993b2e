//! `cargo xtask`: the project's tasks. Needs cargo only; installs or names what else is missing.

mod apt;
mod paths;
mod setup;
mod sh;
mod vm;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the raidd project")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run a command as root in a virtual machine that sees this machine's files.
    Vm(Box<vm::VmCommand>),
}

fn main() {
    let code = match Cli::parse().task {
        Task::Vm(task) => task.run(),
    };
    std::process::exit(code.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        1
    }));
}
