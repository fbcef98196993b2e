//! raidctl's command line. Only shapes and their help; what they do is in the sibling files.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use super::member_args::{
    Add, Fail, Remove, Scrub, ScrubStart, ScrubVerb, Set, Spare, SpareVerb, Status, Wait, Walk,
    WalkVerb,
};
use crate::config::{DEFAULT_SOCKET, check_chunk};
use crate::control::protocol::BitmapKind;
use crate::units::parse_size;

/// Create, assemble, watch and stop RAID arrays served by raidd.
#[derive(Debug, Parser)]
#[command(name = "raidctl", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// Control socket of the daemon
    #[arg(long, global = true, env = "RAIDD_SOCKET", default_value = DEFAULT_SOCKET, value_name = "PATH")]
    pub socket: PathBuf,
    /// Print tables for people or JSON for programs
    #[arg(long, short = 'o', global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// Wait this many seconds for the daemon to come up
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub wait_daemon: u64,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

const EXIT_CODES: &str = "Exit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon answers. \
`detail --test`: 0 fine, 1 degraded, 2 unusable, 4 cannot tell. `wait`: 1 if there was nothing to wait for.\n\
Members may be given as a range: '/dev/nvme<0..7>n1', '/dev/nvme{0..7}n1' or '/dev/nvme[0-7]n1'.";

/// How answers are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs; the shape is stable.
    Json,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a new array and start it
    Create(Create),
    /// Start arrays that exist on their members
    Assemble(Assemble),
    /// Stop an array and leave it clean
    Stop(Stop),
    /// List running arrays
    List,
    /// Show one running array
    Detail(Detail),
    /// State and progress of all running arrays or of one, once or all the time
    Status(Status),
    /// Wait until no resync, rebuild or scrub runs
    Wait(Wait),
    /// Take members out of service
    Fail(Fail),
    /// Let failed devices and spares go
    Remove(Remove),
    /// Give an array new devices: spares, which rebuild what is missing by themselves
    Add(Add),
    /// Give an array devices back that were members of it before
    ReAdd(Add),
    /// Add or remove spares
    Spare(Spare),
    /// Compare parity with the data, and put right what differs
    Scrub(Scrub),
    /// Change the limits of background walks of a running array
    Set(Set),
    /// Show the rebuild of an array
    Rebuild(Walk),
    /// Show the resync of an array
    Resync(Walk),
    /// Decode what is on a member (needs no daemon)
    Examine(Examine),
    /// Erase the superblocks of members that are not in use (needs no daemon)
    Zero(Zero),
    /// Print all figures of the daemon as Prometheus text
    Metrics,
    /// Measure this machine (needs no daemon)
    Bench(super::bench::Bench),
    /// What this machine has of what raidd uses, what will be used, what to fix (needs no daemon)
    Doctor(super::doctor::Doctor),
}

/// `raidctl create`
#[derive(Debug, Args)]
pub struct Create {
    /// RAID level
    #[arg(long, short, value_parser = parse_level)]
    pub level: u8,
    /// Name of the array; r0, r1, ... when absent
    #[arg(long, short)]
    pub name: Option<String>,
    /// Chunk size, such as 64K; a bare number is KiB, as in mdadm
    #[arg(long, short, value_name = "SIZE", value_parser = parse_chunk)]
    pub chunk: Option<u64>,
    /// MD's name of the parity layout
    #[arg(long)]
    pub layout: Option<String>,
    /// Trust that parity on the members is right already; wrong unless they are all zeroes or come from such an array
    #[arg(long)]
    pub assume_clean: bool,
    /// Write-intent bitmap: with it only what was being written is resynced after a crash [default: internal; none for level 0]
    #[arg(long, short, value_enum, value_name = "KIND")]
    pub bitmap: Option<BitmapKind>,
    /// Bytes of each member for one bit of it, such as 64M; a bare number is KiB, as in mdadm [default: as mdadm chooses]
    #[arg(long, value_name = "SIZE", value_parser = parse_bitmap_chunk)]
    pub bitmap_chunk: Option<u64>,
    /// Overwrite what is on the members (never what is in use)
    #[arg(long, short)]
    pub force: bool,
    /// Do not ask; go on in spite of warnings
    #[arg(long, short)]
    pub yes: bool,
    /// Check everything and show the plan, write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Block devices in slot order, or ranges of them
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<String>,
}

/// `raidctl assemble`
#[derive(Debug, Args)]
pub struct Assemble {
    /// Look at all block devices and start every array found
    #[arg(long, short, conflicts_with = "members")]
    pub scan: bool,
    /// Only the array of this name
    #[arg(long, short)]
    pub name: Option<String>,
    /// Only the array of this uuid
    #[arg(long, short)]
    pub uuid: Option<String>,
    /// Serve reads only and write nothing to the members
    #[arg(long, short)]
    pub readonly: bool,
    /// Start although a member is stale or parity is in doubt; says what is at risk
    #[arg(long, short)]
    pub force: bool,
    /// Show what would be started
    #[arg(long)]
    pub dry_run: bool,
    /// Look at these devices only
    #[arg(value_name = "MEMBER")]
    pub members: Vec<String>,
}

/// `raidctl stop`
#[derive(Debug, Args)]
pub struct Stop {
    /// Name, uuid or device path
    pub array: String,
    /// Give up a device whose raidd died and that cannot be taken over: its users get errors
    #[arg(long, conflicts_with = "release")]
    pub abandon: bool,
    /// Also let udev and mdadm have the members again
    #[arg(long)]
    pub release: bool,
    /// Show what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// `raidctl detail`
#[derive(Debug, Args)]
pub struct Detail {
    /// Name, uuid or device path
    pub array: String,
    /// Set the exit status as mdadm does: 0 fine, 1 degraded, 2 unusable, 4 cannot tell
    #[arg(long, short)]
    pub test: bool,
}

/// `raidctl examine`
#[derive(Debug, Args)]
pub struct Examine {
    /// Show the write-intent bitmap instead of the superblock
    #[arg(long, short = 'X')]
    pub bitmap: bool,
    /// Block devices or image files
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<String>,
}

/// `raidctl zero`
#[derive(Debug, Args)]
pub struct Zero {
    /// Also erase superblocks that are damaged or of a format that raidctl does not write
    #[arg(long, short)]
    pub force: bool,
    /// Show what would be erased
    #[arg(long)]
    pub dry_run: bool,
    /// Block devices, or ranges of them
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<String>,
}

fn parse_level(text: &str) -> Result<u8, String> {
    match text.trim_start_matches("raid") {
        "0" => Ok(0),
        "5" => Ok(5),
        "6" => Ok(6),
        "1" | "10" | "4" | "50" | "60" => {
            Err("this level is not supported yet; choose 0, 5 or 6".into())
        }
        _ => Err("choose level 0, 5 or 6".into()),
    }
}

fn parse_chunk(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text, 1024).map_err(|e| e.to_string())?.0;
    check_chunk(bytes).map(|c| u64::from(c.0))
}

fn parse_bitmap_chunk(text: &str) -> Result<u64, String> {
    Ok(parse_size(text, 1024).map_err(|e| e.to_string())?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("raidctl").chain(line.split_whitespace()))
    }

    #[test]
    fn definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn create_as_in_the_readme() {
        let cli = parse("create --level 6 --chunk 128K /dev/nvme<0..7>n1 --output json").unwrap();
        assert_eq!(cli.output, Output::Json);
        let Verb::Create(create) = cli.verb else {
            panic!("{:?}", cli.verb)
        };
        assert_eq!((create.level, create.chunk), (6, Some(131_072)));
        assert!(parse("create --level raid5 --chunk 64 a b c").is_ok());
    }

    #[test]
    fn usage_errors() {
        for line in [
            "create a b c",
            "create --level 7 a b c",
            "create --level 6",
            "create --level 5 --chunk 100K a b c",
            "create --level 5 --chunk huge a b c",
            "assemble --scan /dev/sda",
            "stop",
            "detail",
            "levitate",
            "fail data",
            "remove",
            "add data",
            "spare add data",
            "spare",
            "wait",
            "rebuild data",
            "status --interval 0",
            "scrub data",
            "scrub start data --policy locate",
            "scrub start data --repair --policy hope",
            "set data",
            "list --output xml",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        let text = parse("create --level 10 a b c").unwrap_err().to_string();
        assert!(text.contains("not supported yet"), "{text}");
    }
}
