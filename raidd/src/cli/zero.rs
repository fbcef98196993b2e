//! `raidctl zero`: erases MD superblocks from members that nobody uses. Works without a daemon, but never on a member
//! of a running array: the daemon holds those exclusively.

use std::path::{Path, PathBuf};

use raid_core::superblock::{MAX_BYTES, uuid_text};
use raid_core::units::SECTOR_BYTES;
use serde::Serialize;

use super::args::Zero;
use super::exit::{self, Failure};
use super::show;
use crate::control::protocol::{Outcome, Problem};
use crate::device::aligned;
use crate::device::node::{Node, inspect};
use crate::device::open::{Mode, exclusive};
use crate::discover::{Located, candidate, locate, refusal_of_one};
use crate::guard::Guard;
use crate::preflight::busy;

/// What was done to one device.
#[derive(Debug, Serialize)]
struct Zeroed {
    path: PathBuf,
    outcome: Outcome,
    /// Superblocks erased, or that would be.
    superblocks: Vec<String>,
}

struct Victim {
    node: Node,
    file: std::fs::File,
    found: Vec<Located>,
}

/// All are looked at before the first is erased.
pub fn run(paths: &[PathBuf], args: &Zero, json: bool) -> exit::Outcome {
    let mode = if args.dry_run {
        Mode::Read
    } else {
        Mode::Write
    };
    let mut problems = Vec::new();
    let mut victims = Vec::new();
    for path in paths {
        match look_at(path, mode, args.force) {
            Ok(victim) => victims.push(victim),
            Err(mut more) => problems.append(&mut more),
        }
    }
    if !problems.is_empty() {
        let mut failure = Failure::new(exit::FAILED, "preflight", "nothing was erased");
        failure.problems = problems;
        return Err(failure);
    }
    let mut done = Vec::new();
    for victim in &victims {
        if !args.dry_run {
            erase(victim).map_err(|e| {
                Failure::new(
                    exit::FAILED,
                    "failed",
                    format!("{}: erasing failed: {e}", victim.node.path.display()),
                )
            })?;
        }
        done.push(Zeroed {
            path: victim.node.path.clone(),
            outcome: match (victim.found.is_empty(), args.dry_run) {
                (true, _) => Outcome::Unchanged,
                (false, true) => Outcome::Planned,
                (false, false) => Outcome::Changed,
            },
            superblocks: victim.found.iter().map(describe).collect(),
        });
    }
    if !args.dry_run {
        release(&victims);
    }
    if json {
        show::json(&serde_json::json!({ "members": done }));
    } else {
        for one in &done {
            let verb = if args.dry_run {
                "would erase"
            } else {
                "erased"
            };
            match one.superblocks.is_empty() {
                true => show::line(format_args!(
                    "{}: no MD superblock, nothing to erase",
                    one.path.display()
                )),
                false => show::line(format_args!(
                    "{}: {verb} {}",
                    one.path.display(),
                    one.superblocks.join(" and ")
                )),
            }
        }
    }
    Ok(exit::DONE)
}

fn describe(located: &Located) -> String {
    match &located.block {
        Ok(b) => format!(
            "superblock {} of {} ({})",
            located.placement.version(),
            b.short_name(),
            uuid_text(&b.uuid)
        ),
        Err(e) => format!("superblock {} ({e})", located.placement.version()),
    }
}

fn look_at(path: &Path, mode: Mode, force: bool) -> Result<Victim, Vec<Problem>> {
    let subject = path.display().to_string();
    let problem = |message: String, remedy: &str| vec![Problem::new(&subject, message, remedy)];
    // Erasing needs no exclusive device node: image files are welcome, they are locked instead.
    let node = inspect(path, true).map_err(|e| problem(e.to_string(), &e.remedy(path)))?;
    let file = exclusive(path, mode, node.is_block).map_err(|e| busy(&node, &e))?;
    let found = locate(&file, node.size_sectors)
        .map_err(|e| problem(format!("it cannot be read: {e}"), ""))?;
    if !force {
        for located in &found {
            let reason = match &located.block {
                Err(error) => Some(error.to_string()),
                Ok(block) => refusal_of_one(candidate(&file, node.size_sectors, block.clone())),
            };
            if let Some(reason) = reason {
                let message = format!("it is not one of ours: {reason}");
                return Err(problem(message, "to erase it all the same, use --force"));
            }
        }
    }
    Ok(Victim { node, file, found })
}

fn erase(victim: &Victim) -> std::io::Result<()> {
    for located in &victim.found {
        let offset = located.sector * SECTOR_BYTES;
        aligned::zero(
            &victim.file,
            offset,
            MAX_BYTES as u64,
            victim.node.logical_block,
        )?;
    }
    victim.file.sync_all()
}

/// mdadm and udev need not be kept off an array whose members are gone. Other members of it that were not named are
/// still kept off only as long as the daemon holds them, so this is done only where every named device was erased.
fn release(victims: &[Victim]) {
    let guard = Guard::system();
    let mut uuids: Vec<[u8; 16]> = Vec::new();
    for block in victims
        .iter()
        .flat_map(|v| v.found.iter())
        .filter_map(|l| l.block.as_ref().ok())
    {
        if !uuids.contains(&block.uuid) {
            uuids.push(block.uuid);
        }
    }
    for uuid in uuids {
        let left = crate::discover::scan()
            .0
            .iter()
            .filter(|f| f.superblock.uuid == uuid)
            .count();
        if left > 0 {
            show::say(format_args!(
                "raidctl: {left} members of {} remain; mdadm is kept off them until they are erased too",
                uuid_text(&uuid)
            ));
        } else if let Err(e) = guard.remove(&uuid) {
            show::say(format_args!("raidctl: {e}"));
        }
    }
}
