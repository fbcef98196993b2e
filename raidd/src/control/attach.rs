//! Going on where a raidd that died has stopped: at start every array that it left is assembled in its place, with its block
//! device, and what it may have written in part is written again first. And the end of such a device where that cannot be
//! (`stop --abandon`). What the state file is, and why it is not trusted, is in `array::attach`.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raid_core::assemble::{AssembledArray, Candidate};
use raid_core::superblock::{parse_uuid, uuid_text};
use ublk_frontend::existing::{self, Existing};

use super::assemble::{Group, devices, judge};
use super::commands::Control;
use super::protocol::{
    AssembleRequest, Outcome, Problem, Refusal, RefusalKind, StopReply, StopRequest,
};
use crate::array::attach::{AttachError, Claim, Runtime};
use crate::array::is_ours;
use crate::array::journal::{failed, replay};
use crate::device::open::{Mode, OpenError, exclusive};
use crate::device::usage::openers;
use crate::discover::Found;

/// How long a dead process's member I/O may take to end: nothing can be done before.
const LATE_IO: Duration = Duration::from_secs(120);
/// How long it may itself take to let go.
const LATE_END: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

impl Control {
    /// Takes over every array that a dead raidd has left. What cannot be is said, and waits.
    pub fn attach_all(&self) {
        let Some(runtime) = &self.runtime else {
            return;
        };
        for uuid in runtime.arrays() {
            if let Err(problems) = self.attach(runtime, &uuid) {
                for p in problems {
                    tracing::error!("{}: not taken over: {}; {}", p.subject, p.message, p.remedy);
                }
            }
        }
        let served = |id: u32| {
            let node = PathBuf::from(format!("/dev/ublkb{id}"));
            self.arrays
                .views()
                .iter()
                .any(|v| v.device.as_ref() == Some(&node))
        };
        for left in waiting().into_iter().filter(|d| !served(d.id)) {
            let id = left.id;
            tracing::error!(
                "/dev/ublkb{id}, whose raidd died, waits for its array, and its users with it: assemble the array, or give \
                 the device up with 'raidctl stop --abandon /dev/ublkb{id}' (its users then get errors)"
            );
        }
    }

    fn attach(&self, runtime: &Runtime, uuid: &[u8; 16]) -> Result<(), Vec<Problem>> {
        let text = uuid_text(uuid);
        let one = |e: AttachError| vec![attach_problem(&text, &e)];
        // The claim is made again by the assembly; this one is to see whether there is anything to do.
        let claim = runtime.claim(uuid).map_err(one)?;
        let Some(state) = claim.left().cloned() else {
            return Ok(());
        };
        if claim.device().map_err(one)?.is_none() {
            // Its block device died with it; an assembly finds what it left.
            return Ok(());
        }
        drop(claim);
        let request = AssembleRequest {
            uuid: Some(text.clone()),
            read_only: state.read_only,
            ..AssembleRequest::default()
        };
        match self.assemble(&request) {
            Err(refusal) if refusal.problems.is_empty() => {
                let remedy = "bring its members back, then 'raidctl assemble --scan'";
                Err(vec![Problem::new(state.name, refusal.message, remedy)])
            }
            Err(refusal) => Err(refusal.problems),
            Ok(replies) => {
                let refused = replies
                    .into_iter()
                    .filter(|r| r.outcome == Outcome::Refused);
                let problems: Vec<Problem> = refused.flat_map(|r| r.problems).collect();
                if problems.is_empty() {
                    Ok(())
                } else {
                    Err(problems)
                }
            }
        }
    }

    /// The right to serve an array; none for tests without a daemon.
    pub(super) fn claim(&self, uuid: &[u8; 16], name: &str) -> Result<Option<Claim>, Problem> {
        let Some(runtime) = &self.runtime else {
            return Ok(None);
        };
        let claim = runtime.claim(uuid).map_err(|e| attach_problem(name, &e))?;
        Ok(Some(claim))
    }

    /// `stop --abandon`: the end of a device that no raidd serves.
    pub(super) fn abandon(&self, request: &StopRequest) -> Result<StopReply, Refusal> {
        let refuse = |message: String| Refusal::new(RefusalKind::Preflight, message);
        if let Ok(running) = self.arrays.find(&request.array) {
            return Err(refuse(format!(
                "{} is served; stop it without --abandon",
                running.name
            )));
        }
        let mut claims = Vec::new();
        for uuid in self.runtime.iter().flat_map(Runtime::arrays) {
            let claim = self.runtime.as_ref().map(|r| r.claim(&uuid));
            if let Some(Ok(claim)) = claim {
                claims.push((uuid, claim));
            }
        }
        let number = request
            .array
            .strip_prefix("/dev/ublkb")
            .and_then(|n| n.parse().ok());
        let wanted = parse_uuid(&request.array);
        let meant = claims.into_iter().find(|(uuid, claim)| {
            claim.left().is_some_and(|s| {
                number == Some(s.device) || wanted == Some(*uuid) || s.name == request.array
            })
        });
        let state = meant.as_ref().and_then(|(_, claim)| claim.left());
        let id = number.or(state.map(|s| s.device));
        let device = id.and_then(|id| waiting().into_iter().find(|d| d.id == id));
        if device.is_none() && meant.is_none() {
            let message = format!("'{}' is nothing that a dead raidd has left", request.array);
            return Err(Refusal::new(RefusalKind::NotFound, message));
        }
        let mut reply = StopReply {
            name: state.map_or_else(|| request.array.clone(), |s| s.name.clone()),
            uuid: meant
                .as_ref()
                .map(|(uuid, _)| uuid_text(uuid))
                .unwrap_or_default(),
            outcome: Outcome::Planned,
            released: false,
            problems: Vec::new(),
        };
        if request.dry_run {
            return Ok(reply);
        }
        if let Some(device) = device {
            let removed = existing::give_up(device.id);
            removed.map_err(|e| Refusal::new(RefusalKind::Failed, e.to_string()))?;
            tracing::warn!("/dev/ublkb{} was given up; its users get errors", device.id);
        }
        if let Some((_, claim)) = &meant {
            claim.retire();
        }
        reply.outcome = Outcome::Changed;
        Ok(reply)
    }
}

/// Devices of raidd that wait for a server.
fn waiting() -> Vec<Existing> {
    let all = existing::existing().unwrap_or_default();
    all.into_iter()
        .filter(|d| is_ours(d.cookie) && d.recoverable())
        .collect()
}

fn attach_problem(name: &str, error: &AttachError) -> Problem {
    let remedy = match error {
        AttachError::Served(_) => "stop it there first, or end that process if it hangs",
        AttachError::File { .. } | AttachError::Driver(_) => {
            "remove the cause, then assemble again"
        }
        AttachError::Unreadable(_) => {
            "start the version that wrote it; or 'raidctl stop --abandon' its device, remove the file and assemble again"
        }
        AttachError::Members(_) | AttachError::Moved | AttachError::Device { .. } => {
            "its device waits; if its users may get errors: 'raidctl stop --abandon' it, then assemble again"
        }
    };
    Problem::new(name, error.to_string(), remedy)
}

/// Opens a member for itself alone. After a death its I/O may not have ended yet, and the kernel keeps the member from us as
/// long as that is so; which is what makes it safe to write once we have it.
pub(super) fn open_member(found: &Found, mode: Mode, patient: bool) -> Result<File, OpenError> {
    let may_wait = |begin: Instant, found: &Found| {
        let served = || begin.elapsed() > LATE_END && !openers(found.node.dev, 1).is_empty();
        begin.elapsed() < LATE_IO && !served()
    };
    let begin = Instant::now();
    let mut said = false;
    loop {
        match exclusive(&found.node.path, mode, found.node.is_block) {
            // Somebody who has it open is no dead process.
            Err(OpenError::Busy) if patient && may_wait(begin, found) => {
                if !said && begin.elapsed() > Duration::from_secs(1) {
                    said = true;
                    let path = found.node.path.display();
                    tracing::info!("waiting for the end of a dead raidd's I/O on {path}");
                }
                std::thread::sleep(LOOK);
            }
            other => return other,
        }
    }
}

/// The verdict on an array whose last process may have died: as usual without one. With one, the members are compared with
/// what it left, its writes are written again, and then parity is as far in sync as it was: neither a resync nor force
/// is needed. Where something is missing or doubtful, it is as after any crash.
pub(super) fn verdict(
    claim: Option<&Claim>,
    candidates: &[Candidate],
    group: &Group,
    held: &[Arc<File>],
    request: &AssembleRequest,
) -> Result<AssembledArray, Problem> {
    let usual = || judge(candidates, group, request);
    let Some((claim, state)) = claim.and_then(|c| Some((c, c.left()?))) else {
        return usual();
    };
    let name = state.name.as_str();
    let files = claim.old_files().filter(|_| state.journal);
    let head = files.as_ref().and_then(|f| f.read_head());
    let waits = claim
        .device()
        .map_err(|e| attach_problem(name, &e))?
        .is_some();
    if let Err(error) = claim.check(candidates, head.as_ref()) {
        if waits {
            return Err(attach_problem(name, &error));
        }
        tracing::warn!(
            array = name,
            "what its last raidd left is not used: {error}"
        );
        return usual();
    }
    let (Some(files), Some(head), false) = (files, head, request.read_only || state.level == 0)
    else {
        if state.level != 0 && !state.read_only {
            tracing::warn!(
                array = name,
                "its last raidd died and left no whole write journal"
            );
        }
        return usual();
    };
    let queues: Option<Vec<_>> = (0..state.queues).map(|q| files.read_queue(q)).collect();
    let Some(queues) = queues else {
        tracing::warn!(
            array = name,
            "the write journal of its last raidd is not whole"
        );
        return usual();
    };
    // A member on which a write failed may lack it, and the others may not know yet. It is out, if it can be spared.
    let mut fresh = candidates.to_vec();
    let lost = failed(&queues);
    let best = candidates
        .iter()
        .map(|c| &c.superblock)
        .max_by_key(|b| b.events)
        .cloned();
    for candidate in &mut fresh {
        let number = candidate.superblock.dev_number;
        let slot = best.as_ref().map(|b| b.role_of(number));
        if let Some(raid_core::superblock::SlotRole::Slot(slot)) = slot
            && slot < 256
            && lost.contains(slot)
        {
            candidate.superblock.events = 0;
        }
    }
    let force = AssembleRequest {
        force: true,
        ..request.clone()
    };
    let mut verdict = match judge(&fresh, group, &force) {
        Ok(verdict) => verdict,
        Err(_) if !lost.is_empty() => return usual(),
        Err(problem) => return Err(problem),
    };
    let mut members = vec![None; verdict.members.len()];
    for member in devices(&verdict, group, held, candidates) {
        if let Some(place) = member.slot.and_then(|s| members.get_mut(usize::from(s))) {
            *place = Some(member);
        }
    }
    match replay(&queues, &members) {
        Ok(done) => {
            tracing::info!(
                array = name,
                writes = done.writes,
                bytes = done.bytes,
                "wrote again what its last raidd had in flight"
            );
            verdict.resync_offset = head.synced;
            verdict.clean = head.synced == u64::MAX;
            verdict.forced = false;
            // All members are told so before anything else.
            verdict.uneven = true;
            for block in verdict.superblocks.iter_mut().flatten() {
                block.resync_offset = head.synced;
            }
            Ok(verdict)
        }
        Err(why) => {
            tracing::warn!(
                array = name,
                "what its last raidd had in flight could not be written again: {why}"
            );
            usual()
        }
    }
}
