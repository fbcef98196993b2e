//! `cargo xtask`: the project's tasks. Needs cargo only; installs or names what else is missing.

mod apt;
mod build;
mod compare;
mod count;
mod demo;
mod e2e;
mod paths;
mod ptx;
mod setup;
mod sh;
mod test;
mod tidy;
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
    /// The main job: create an array, put a file system and files on it, read them back, also through mdadm.
    Demo(demo::DemoCommand),
    /// Run everything that can be checked on this machine; ends with `N passed, N failed, N skipped`.
    Test(test::TestCommand),
    /// Run end-to-end scripts, each in a fresh guest.
    E2e(e2e::E2eCommand),
    /// Measure raidd and mdadm in turn on the same members and write the table and charts.
    Compare(compare::CompareCommand),
    /// Make the GPU code (PTX) from its sources, or check that it is what they give.
    Ptx(ptx::PtxCommand),
}

fn main() {
    let code = match Cli::parse().task {
        Task::Vm(task) => task.run(),
        Task::Demo(task) => task.run(),
        Task::Test(task) => task.run(),
        Task::E2e(task) => task.run(),
        Task::Compare(task) => task.run(),
        Task::Ptx(task) => task.run(),
    };
    std::process::exit(code.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        1
    }));
}
