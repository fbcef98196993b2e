//! raidctl's command line as to members and progress. Only shapes and their help.

use clap::{Args, Subcommand, ValueEnum};

/// `raidctl fail`
#[derive(Debug, Args)]
pub struct Fail {
    /// Name, uuid or device path of the array
    pub array: String,
    /// Also if the array fails with them: every read and write is an error then
    #[arg(long, short)]
    pub force: bool,
    /// Show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Members, or 'detached' for those that have left the system
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<String>,
}

/// `raidctl remove`
#[derive(Debug, Args)]
pub struct Remove {
    /// Name, uuid or device path of the array
    pub array: String,
    /// Show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Failed devices or spares; 'failed' or 'detached' for all that are so
    #[arg(required = true, value_name = "DEVICE")]
    pub members: Vec<String>,
}

/// `raidctl add`, `raidctl re-add`
#[derive(Debug, Args)]
pub struct Add {
    /// Name, uuid or device path of the array
    pub array: String,
    /// Overwrite what is on the devices (never what is in use)
    #[arg(long, short)]
    pub force: bool,
    /// Check everything, write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Block devices, or ranges of them
    #[arg(required = true, value_name = "DEVICE")]
    pub members: Vec<String>,
}

/// `raidctl spare`
#[derive(Debug, Args)]
pub struct Spare {
    /// What to do
    #[command(subcommand)]
    pub verb: SpareVerb,
}

/// What to do with spares.
#[derive(Debug, Subcommand)]
pub enum SpareVerb {
    /// Give an array spares
    Add(Add),
    /// Take spares away from an array
    Remove(Remove),
}

/// `raidctl rebuild`, `raidctl resync`
#[derive(Debug, Args)]
pub struct Walk {
    /// What to do
    #[command(subcommand)]
    pub verb: WalkVerb,
}

/// What to do with a background walk.
#[derive(Debug, Subcommand)]
pub enum WalkVerb {
    /// Show how far it is
    Status {
        /// Name, uuid or device path of the array
        array: String,
    },
}

/// `raidctl status`
#[derive(Debug, Args)]
pub struct Status {
    /// Show it again and again, until interrupted
    #[arg(long, short)]
    pub watch: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// Name, uuid or device path; all running arrays without one
    pub array: Option<String>,
}

/// `raidctl wait`
#[derive(Debug, Args)]
pub struct Wait {
    /// Names, uuids or device paths
    #[arg(required = true, value_name = "ARRAY")]
    pub arrays: Vec<String>,
}

/// `raidctl scrub`
#[derive(Debug, Args)]
pub struct Scrub {
    /// What to do
    #[command(subcommand)]
    pub verb: ScrubVerb,
}

/// What to do with scrubs.
#[derive(Debug, Subcommand)]
pub enum ScrubVerb {
    /// Begin one: tell where parity and data differ
    Start(ScrubStart),
    /// End the one that runs, at once
    Stop {
        /// Name, uuid or device path of the array
        array: String,
    },
    /// Show the one that runs, and what those before it have found
    Status {
        /// Name, uuid or device path of the array
        array: String,
    },
}

/// `raidctl scrub start`
#[derive(Debug, Args)]
pub struct ScrubStart {
    /// Name, uuid or device path of the array
    pub array: String,
    /// Put right what differs
    #[arg(long)]
    pub repair: bool,
    /// Whom to believe then: 'locate' finds the wrong member out by P and Q (RAID 6), 'parity' makes parity anew of the data
    #[arg(long, value_enum, requires = "repair", default_value_t = PolicyWord::Locate)]
    pub policy: PolicyWord,
}

/// Words of `--policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyWord {
    /// Find the wrong member.
    Locate,
    /// Believe the data.
    Parity,
}

/// `raidctl set`
#[derive(Debug, Args)]
pub struct Set {
    /// Name, uuid or device path of the array
    pub array: String,
    /// resync.floor=SIZE, resync.ceiling=SIZE|none (a second), resync.paused=yes|no
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}
