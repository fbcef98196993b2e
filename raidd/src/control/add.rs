//! `add` and `re-add`: every check that create makes, then a superblock that makes the device a spare of the array, then the
//! array takes it. What was on the device is put back if the array does not take it.

use std::sync::Arc;

use raid_core::superblock::{Superblock, uuid_text};

use super::arrays::Running;
use super::commands::Control;
use super::members::{now, refusal, reply};
use super::protocol::{AddRequest, MembersReply, Outcome, Problem, Refusal, RefusalKind};
use crate::array_api::{ArrayStatus, Change, Changed, MemberDevice, MemberState, MemberStatus};
use crate::device::node::inspect;
use crate::device::open::{Mode, look};
use crate::discover::{best, locate};
use crate::imprint::{Target, write_all};
use crate::preflight::{Candidate, Report, Terms, check};

impl Control {
    pub(super) fn add(&self, request: &AddRequest) -> Result<MembersReply, Refusal> {
        let running = self.arrays.find(&request.array)?;
        let status = running.array.status();
        let mut remarks = Vec::new();
        if request.again {
            self.let_go(&running, &status, request)?;
            remarks.push(Problem::new(
                &running.name,
                "what is added again is rebuilt from the start, whatever it holds",
                "",
            ));
        }
        let terms = Terms {
            mode: match request.dry_run {
                true => Mode::Read,
                false => Mode::Write,
            },
            // A former member carries a superblock; whether it is the right one is looked at below.
            force: request.force || request.again,
            allow_files: self.allow_files,
        };
        let Report {
            candidates,
            mut problems,
            warnings,
        } = check(&request.members, terms, &|dev| self.arrays.member_of(dev));
        remarks.extend(warnings);
        for candidate in &candidates {
            problems.extend(self.fits(&running, &status, candidate, request));
        }
        if !problems.is_empty() {
            let count = match problems.len() {
                1 => "a problem".into(),
                n => format!("{n} problems"),
            };
            return Err(Refusal {
                kind: RefusalKind::Preflight,
                message: format!("nothing was added to {}: {count} found", running.name),
                problems,
            });
        }
        if request.dry_run {
            let planned: Vec<MemberStatus> = candidates.iter().map(as_spare).collect();
            return Ok(reply(&running, Outcome::Planned, &planned, remarks));
        }
        let mut added = Vec::new();
        for candidate in candidates {
            let path = candidate.node.path.clone();
            match self.add_one(&running, candidate, request.again) {
                Ok(member) => added.push(member),
                // Those before it are spares already, which is no harm; the operator hears of it.
                Err(message) if added.is_empty() => {
                    let message = format!("not added: {message}");
                    return Err(Refusal::new(RefusalKind::Failed, message));
                }
                Err(message) => remarks.push(Problem::new(
                    path.display().to_string(),
                    format!("not added: {message}"),
                    "the devices named before it were added",
                )),
            }
        }
        Ok(reply(
            &running,
            Outcome::Changed,
            &now(&running, &added),
            remarks,
        ))
    }

    /// `re-add`: the device is one that the array still holds as failed, maybe under another name: that one is let go.
    fn let_go(
        &self,
        running: &Running,
        status: &ArrayStatus,
        request: &AddRequest,
    ) -> Result<(), Refusal> {
        for path in &request.members {
            let Some(block) = former(path, self.allow_files) else {
                continue;
            };
            let held = |m: &&MemberStatus| {
                m.state == MemberState::Faulty && m.device_uuid == Some(block.device_uuid)
            };
            let held = status.members.iter().find(held);
            if block.uuid != running.uuid || held.is_none() {
                continue;
            }
            let number = held.and_then(|m| m.number).unwrap_or(u32::MAX);
            let dry_run = request.dry_run;
            let change = Change::Remove { number, dry_run };
            running
                .array
                .change(change)
                .map_err(|e| refusal("nothing was added", &path.display().to_string(), &e))?;
        }
        Ok(())
    }

    /// What forbids this device.
    fn fits(
        &self,
        running: &Running,
        status: &ArrayStatus,
        candidate: &Candidate,
        request: &AddRequest,
    ) -> Vec<Problem> {
        let path = candidate.node.path.display().to_string();
        let mut problems = Vec::new();
        if candidate.node.logical_block > status.logical_block {
            let message = format!(
                "its logical blocks have {} bytes and those of the array {}: writes of the array could not reach it",
                candidate.node.logical_block, status.logical_block
            );
            problems.push(Problem::new(
                &path,
                message,
                "use a drive of the others' kind, or reformat an NVMe drive with 'nvme format --lbaf'",
            ));
        }
        let block = locate(&candidate.file, candidate.node.size_sectors)
            .ok()
            .and_then(best);
        if request.again {
            problems.extend(again(running, status, block.as_ref(), &path, request.force));
        } else if let Some(block) = block.filter(|b| b.uuid == running.uuid)
            && !request.force
        {
            // It has been refused for its superblock; this is the better remedy.
            let message = format!(
                "it was a member of {} (by its superblock, {} events ago)",
                running.name,
                status.events.saturating_sub(block.events)
            );
            let remedy = format!("raidctl re-add {} {path}", running.name);
            problems.push(Problem::new(&path, message, remedy));
        }
        let change = Change::Plan {
            sectors: candidate.node.size_sectors,
            device_uuid: random_uuid(),
        };
        if let Err(e) = running.array.change(change) {
            problems.push(Problem::new(&path, e.message, e.remedy));
        }
        problems
    }

    fn add_one(
        &self,
        running: &Running,
        candidate: Candidate,
        again: bool,
    ) -> Result<MemberStatus, String> {
        let size_sectors = candidate.node.size_sectors;
        let old = locate(&candidate.file, size_sectors).ok().and_then(best);
        let device_uuid = match old.filter(|_| again) {
            Some(block) => block.device_uuid,
            None => random_uuid(),
        };
        let change = Change::Plan {
            sectors: size_sectors,
            device_uuid,
        };
        let superblock = match running.array.change(change) {
            Ok(Changed::Planned(block)) => *block,
            Ok(Changed::Done) => return Err("no plan was made".into()),
            Err(e) => return Err(e.to_string()),
        };
        let path = candidate.node.path.clone();
        let file = Arc::new(candidate.file);
        let ranges = candidate.signatures.iter();
        let targets = [Target {
            path: &path,
            file: &file,
            superblock: &superblock,
            logical_block: candidate.node.logical_block,
            wipe: ranges.flat_map(|s| s.ranges.iter().copied()).collect(),
            bitmap: None,
        }];
        let undo = write_all(&targets).map_err(|e| e.to_string())?;
        let device = MemberDevice {
            slot: None,
            path: path.clone(),
            file: file.clone(),
            superblock: superblock.clone(),
            logical_block: candidate.node.logical_block,
            size_sectors,
        };
        if let Err(e) = running.array.change(Change::Add(Box::new(device))) {
            let left = undo.take_back(&targets);
            return Err(match left.is_empty() {
                true => format!("{e}; the device is as it was before"),
                false => format!(
                    "{e}; its superblock could not be taken back: raidctl zero {}",
                    path.display()
                ),
            });
        }
        tracing::info!(array = running.name, member = %path.display(), number = superblock.dev_number, "added");
        Ok(MemberStatus {
            slot: None,
            path: Some(path),
            number: Some(superblock.dev_number),
            device_uuid: Some(superblock.device_uuid),
            gone: false,
            state: MemberState::Spare,
            errors: 0,
        })
    }
}

/// What forbids adding a device again.
fn again(
    running: &Running,
    status: &ArrayStatus,
    block: Option<&Superblock>,
    path: &str,
    force: bool,
) -> Option<Problem> {
    let add = format!("raidctl add {} {path}", running.name);
    let Some(block) = block else {
        return Some(Problem::new(path, "it carries no superblock", add));
    };
    if block.uuid != running.uuid {
        let message = format!(
            "it is a member of another array, {} ({})",
            block.short_name(),
            uuid_text(&block.uuid)
        );
        let remedy = format!("if that array is not needed any more: {add} --force");
        return Some(Problem::new(path, message, remedy));
    }
    if block.events > status.events && !force {
        let message = format!(
            "it is {} events ahead of the array: it was in use apart from the others, and may hold the data that is wanted",
            block.events - status.events
        );
        return Some(Problem::new(
            path,
            message,
            "look at both before --force overwrites it",
        ));
    }
    None
}

/// The superblock of a device that may be in use.
fn former(path: &std::path::Path, allow_files: bool) -> Option<Superblock> {
    let node = inspect(path, allow_files).ok()?;
    let file = look(path).ok()?;
    best(locate(&file, node.size_sectors).ok()?)
}

fn as_spare(candidate: &Candidate) -> MemberStatus {
    MemberStatus {
        slot: None,
        path: Some(candidate.node.path.clone()),
        number: None,
        device_uuid: None,
        gone: false,
        state: MemberState::Spare,
        errors: 0,
    }
}

fn random_uuid() -> [u8; 16] {
    *uuid::Uuid::new_v4().as_bytes()
}
