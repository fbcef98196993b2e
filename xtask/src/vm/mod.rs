//! The test beds: a command run as root in a small virtual machine that sees this machine's own files.
//!
//! What the guest writes goes to memory and is gone afterwards, except below the folders that are shared for
//! writing (the repository, unless told otherwise). `/dev`, `/proc`, `/sys`, `/run` and `/tmp` are the guest's own.

mod build_uml;
mod guest;
mod initramfs;
mod kernel;
mod process;
mod qemu;
mod uml;

use crate::paths;
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Exit status that says that the command ran past its time limit.
pub const TIMED_OUT: i32 = 124;
/// Exit status that says that the guest itself failed.
pub const GUEST_DIED: i32 = 125;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bed {
    /// A kernel that is an ordinary program: boots in a second, native speed.
    Uml,
    /// A packaged distribution kernel in a virtual machine with emulated NVMe drives.
    Qemu,
}

impl Bed {
    pub fn name(self) -> &'static str {
        match self {
            Bed::Uml => "uml",
            Bed::Qemu => "qemu",
        }
    }

    /// UML where its kernel is at hand, else QEMU.
    pub fn default_here() -> Bed {
        if paths::uml_kernel().is_some() {
            Bed::Uml
        } else {
            Bed::Qemu
        }
    }
}

/// How a guest is made.
#[derive(Args, Clone, Debug, Default)]
pub struct VmOptions {
    /// The bed; by default UML where its kernel is at hand, else QEMU.
    #[arg(long, value_enum)]
    pub bed: Option<Bed>,
    /// UML: path of the kernel. QEMU: version of the packaged kernel, such as 6.12 or 7.3.
    #[arg(long)]
    pub kernel: Option<String>,
    /// Guest memory, such as 6G (default: 6G in UML, 3G in QEMU).
    #[arg(short = 'm', long = "memory")]
    pub memory: Option<String>,
    /// Guest CPUs.
    #[arg(short = 'c', long = "cpus")]
    pub cpus: Option<u32>,
    /// Time limit in seconds, after which everything the guest started is killed and the exit status is 124.
    #[arg(short = 't', long = "time")]
    pub seconds: Option<u64>,
    /// A folder that the guest may write to (repeatable; default: the repository).
    #[arg(short = 'w', long = "writable")]
    pub writable: Vec<PathBuf>,
    /// Kernel argument (repeatable).
    #[arg(short = 'a', long = "append", allow_hyphen_values = true)]
    pub append: Vec<String>,
    /// QEMU: number of emulated NVMe drives.
    #[arg(long, default_value_t = 8)]
    pub drives: u32,
    /// QEMU: size of each drive in MiB.
    #[arg(long, default_value_t = 512)]
    pub drive_mib: u64,
    /// QEMU: further properties of each NVMe drive, such as logical_block_size=4096,physical_block_size=4096.
    #[arg(long, default_value = "")]
    pub drive_props: String,
}

impl VmOptions {
    pub fn bed(&self) -> Bed {
        self.bed.unwrap_or_else(Bed::default_here)
    }
}

#[derive(Subcommand, Debug)]
enum VmAction {
    /// Build the UML kernel from Debian's kernel source package into .bed/linux.uml.
    BuildUml {
        /// Build even if it is there.
        #[arg(long)]
        force: bool,
        /// Keep the source tree.
        #[arg(long)]
        keep: bool,
    },
    /// Fetch a packaged kernel for the QEMU bed into .bed/kernels.
    FetchKernel {
        /// Version, such as 6.12 or 7.3.
        version: Option<String>,
    },
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct VmCommand {
    #[command(subcommand)]
    action: Option<VmAction>,
    #[command(flatten)]
    options: VmOptions,
    /// The command to run as root in the guest.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl VmCommand {
    pub fn run(self) -> Result<i32> {
        match self.action {
            Some(VmAction::BuildUml { force, keep }) => build_uml::build(force, keep).map(|_| 0),
            Some(VmAction::FetchKernel { version }) => {
                let kernel = kernel::packaged(version.as_deref())?;
                println!("{}", kernel.image.display());
                Ok(0)
            }
            None => run(&self.options, &self.command),
        }
    }
}

/// Builds the UML kernel if none is at hand.
pub fn build_uml() -> Result<PathBuf> {
    build_uml::build(false, false)
}

/// Runs a command in a guest, its output passed through, and returns its exit status.
pub fn run(options: &VmOptions, command: &[String]) -> Result<i32> {
    run_with(options, command, process::Output::Inherit)
}

/// Runs a command in a guest, calling `line` for each line of its output, and returns its exit status.
pub fn run_lines(
    options: &VmOptions,
    command: &[String],
    line: &mut dyn FnMut(&str),
) -> Result<i32> {
    run_with(options, command, process::Output::Lines(line))
}

fn run_with(options: &VmOptions, command: &[String], out: process::Output<'_>) -> Result<i32> {
    let job = guest::Job::new(options, command)?;
    match options.bed() {
        Bed::Uml => uml::run(options, &job, out),
        Bed::Qemu => qemu::run(options, &job, out),
    }
}
