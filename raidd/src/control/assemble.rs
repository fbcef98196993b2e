//! `assemble`: find members, group them by array, take them all or none, start. An array that runs already is left
//! alone; one that MD holds without using it is taken over; everything else is a refusal that names who and why.

use std::sync::Arc;

use raid_core::assemble::{self as core, AssembleOptions, AssembledArray, LeftOut};
use raid_core::superblock::{SlotRole, parse_uuid, uuid_text};
use raid_core::units::SECTOR_BYTES;

use super::arrays::Running;
use super::attach;
use super::commands::Control;
use super::protocol::{
    ArrayView, AssembleReply, AssembleRequest, MemberView, Outcome, Problem, Refusal, RefusalKind,
};
use crate::array::attach::Claim;
use crate::array_api::{MemberDevice, MemberState};
use crate::device::open::Mode;
use crate::discover::{Found, candidate, locate, probe, scan};
use crate::preflight::busy;
use crate::takeover::{check_unused, md_holders, md_of_array, stop_unused};

/// Members of one uuid.
pub(super) struct Group {
    pub(super) uuid: [u8; 16],
    pub(super) found: Vec<Found>,
}

impl Control {
    pub(super) fn assemble(
        &self,
        request: &AssembleRequest,
    ) -> Result<Vec<AssembleReply>, Refusal> {
        let uuid = match request.uuid.as_deref().map(|text| (parse_uuid(text), text)) {
            Some((None, text)) => {
                let message = format!(
                    "'{text}' is no uuid: write 32 hexadecimal digits, as raidctl examine shows them"
                );
                return Err(Refusal::new(RefusalKind::BadRequest, message));
            }
            Some((uuid, _)) => uuid,
            None => None,
        };
        let (found, damaged) = self.members(request)?;
        let wanted = |f: &Found| {
            uuid.is_none_or(|u| f.superblock.uuid == u)
                && request
                    .name
                    .as_deref()
                    .is_none_or(|n| f.superblock.short_name() == n || f.superblock.name == n)
        };
        let mut groups: Vec<Group> = Vec::new();
        for one in found.into_iter().filter(wanted) {
            match groups.iter_mut().find(|g| g.uuid == one.superblock.uuid) {
                Some(group) => group.found.push(one),
                None => groups.push(Group {
                    uuid: one.superblock.uuid,
                    found: vec![one],
                }),
            }
        }
        if groups.is_empty() {
            return self.nothing(request, uuid, damaged);
        }
        if request.name.is_some() && groups.len() > 1 {
            let uuids: Vec<String> = groups.iter().map(|g| uuid_text(&g.uuid)).collect();
            let message = format!(
                "several arrays have this name; choose one with --uuid: {}",
                uuids.join(", ")
            );
            return Err(Refusal::new(RefusalKind::Preflight, message));
        }
        Ok(groups
            .into_iter()
            .map(|group| self.assemble_one(group, request))
            .collect())
    }

    /// Devices with superblocks. A device that was named and is no member is a refusal, a scanned one is not.
    fn members(&self, request: &AssembleRequest) -> Result<(Vec<Found>, Vec<Problem>), Refusal> {
        if request.members.is_empty() {
            let (found, damaged) = scan();
            let damaged = damaged
                .into_iter()
                .map(|(path, why)| {
                    Problem::new(path.display().to_string(), why, "see 'raidctl examine'")
                })
                .collect();
            return Ok((found, damaged));
        }
        let mut found: Vec<Found> = Vec::new();
        let mut problems = Vec::new();
        for path in &request.members {
            match probe(path, self.allow_files) {
                Ok(one) if found.iter().any(|f| f.node.dev == one.node.dev) => {
                    problems.push(Problem::new(
                        path.display().to_string(),
                        "it is given twice",
                        "name each member once",
                    ));
                }
                Ok(one) => found.push(one),
                Err(why) => problems.push(Problem::new(path.display().to_string(), why, "")),
            }
        }
        if problems.is_empty() {
            return Ok((found, Vec::new()));
        }
        Err(Refusal {
            kind: RefusalKind::Preflight,
            message: "not assembled, nothing was changed".into(),
            problems,
        })
    }

    fn nothing(
        &self,
        request: &AssembleRequest,
        uuid: Option<[u8; 16]>,
        damaged: Vec<Problem>,
    ) -> Result<Vec<AssembleReply>, Refusal> {
        // Our own members cannot be missed: they are read without being opened exclusively. So nothing runs either.
        let what = match (&request.name, uuid) {
            (Some(name), _) => format!("no member of an array named '{name}' was found"),
            (None, Some(uuid)) => format!("no member of the array {} was found", uuid_text(&uuid)),
            // A machine without arrays is not an error when it starts.
            (None, None) if damaged.is_empty() => return Ok(Vec::new()),
            (None, None) => "no usable member was found".into(),
        };
        Err(Refusal {
            kind: RefusalKind::NotFound,
            message: what,
            problems: damaged,
        })
    }

    fn assemble_one(&self, group: Group, request: &AssembleRequest) -> AssembleReply {
        if let Some(running) = self.arrays.by_uuid(&group.uuid) {
            let array = ArrayView::from(&running.array.status());
            return AssembleReply {
                array,
                outcome: Outcome::Unchanged,
                problems: Vec::new(),
            };
        }
        let view = found_view(&group);
        let refused = |problems: Vec<Problem>| AssembleReply {
            array: view.clone(),
            outcome: Outcome::Refused,
            problems,
        };
        if let Some(other) = self.arrays.by_name(&view.name) {
            let message = format!(
                "an array of this name runs already ({})",
                other.array.status().device.display()
            );
            return refused(vec![Problem::new(
                &view.name,
                message,
                "stop that one first",
            )]);
        }
        let claim = match request.dry_run {
            true => Ok(None),
            false => self.claim(&group.uuid, &view.name),
        };
        let claim = match claim {
            Ok(claim) => claim,
            Err(problem) => return refused(vec![problem]),
        };
        // A verdict from what was read first: no array is taken from MD only to be refused then. What a dead raidd left may
        // make force unnecessary, which is seen once the members are held.
        let lenient = AssembleRequest {
            force: request.force || claim.as_ref().is_some_and(|c| c.left().is_some()),
            ..request.clone()
        };
        let verdict = match self.judge_unheld(&group, &lenient) {
            Ok(verdict) => verdict,
            Err(problem) => return refused(vec![problem]),
        };
        let mut problems = Vec::new();
        let mut idle = Vec::new();
        let mut holders = md_holders(group.found.iter().map(|f| f.node.name.as_str()));
        holders.extend(md_of_array(&group.uuid));
        for md in holders {
            let taken = if request.dry_run {
                check_unused(&md).map(drop)
            } else {
                stop_unused(&md)
            };
            match taken {
                Err(e) => problems.push(Problem::new(&view.name, e.to_string(), e.remedy())),
                Ok(()) => idle.push(md),
            }
        }
        if !problems.is_empty() {
            return refused(problems);
        }
        if request.dry_run {
            let stops = |md: String| {
                let message =
                    format!("the idle MD array {md} has its members and would be stopped");
                Problem::new(&view.name, message, "")
            };
            let mut remarks = remarks(&verdict, &group);
            remarks.extend(idle.into_iter().map(stops));
            return AssembleReply {
                array: ArrayView {
                    members: planned_members(&verdict, &group),
                    ..view
                },
                outcome: Outcome::Planned,
                problems: remarks,
            };
        }
        match self.take_and_start(&group, &view.name, request, claim) {
            Ok((running, remarks)) => {
                let array = ArrayView::from(&running.array.status());
                self.arrays.add(running);
                AssembleReply {
                    array,
                    outcome: Outcome::Changed,
                    problems: remarks,
                }
            }
            Err(problems) => refused(problems),
        }
    }

    fn judge_unheld(
        &self,
        group: &Group,
        request: &AssembleRequest,
    ) -> Result<AssembledArray, Problem> {
        let candidates: Vec<core::Candidate> = group
            .found
            .iter()
            .map(|f| core::Candidate {
                superblock: f.superblock.clone(),
                device_sectors: f.node.size_sectors,
                bitmap_version: crate::device::open::look(&f.node.path)
                    .ok()
                    .and_then(|file| {
                        candidate(&file, f.node.size_sectors, f.superblock.clone()).bitmap_version
                    }),
            })
            .collect();
        judge(&candidates, group, request)
    }

    /// Opens every member exclusively or none, reads again what is on them now, and starts.
    fn take_and_start(
        &self,
        group: &Group,
        name: &str,
        request: &AssembleRequest,
        claim: Option<Claim>,
    ) -> Result<(Running, Vec<Problem>), Vec<Problem>> {
        let mode = if request.read_only {
            Mode::Read
        } else {
            Mode::Write
        };
        let mut problems = Vec::new();
        let mut held = Vec::new();
        for found in &group.found {
            let patient = claim.as_ref().is_some_and(|c| c.left().is_some());
            match attach::open_member(found, mode, patient) {
                Ok(file) => held.push(Arc::new(file)),
                Err(e) => problems.extend(busy(&found.node, &e)),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut candidates = Vec::new();
        for (found, file) in group.found.iter().zip(&held) {
            let path = found.node.path.display().to_string();
            let now = locate(file, found.node.size_sectors)
                .map_err(|e| vec![Problem::new(&path, e.to_string(), "")])?;
            let block = crate::discover::best(now)
                .filter(|b| b.uuid == group.uuid)
                .ok_or_else(|| {
                    vec![Problem::new(
                        &path,
                        "its superblock changed while it was being opened",
                        "try again",
                    )]
                })?;
            candidates.push(candidate(file, found.node.size_sectors, block));
        }
        let verdict = attach::verdict(claim.as_ref(), &candidates, group, &held, request)
            .map_err(|p| vec![p])?;
        let mut remarks = remarks(&verdict, group);
        let devices = devices(&verdict, group, &held, &candidates);
        drop(held);
        if !request.read_only {
            remarks.extend(self.keep_off(name, &group.uuid));
        }
        let mut options = self.options(&group.uuid, request.read_only);
        options.claim = claim;
        let array = self
            .starter
            .start(verdict, devices, options)
            .map_err(|e| vec![Problem::new(name, e.to_string(), "")])?;
        self.remember(&group.uuid, array.as_ref());
        tracing::info!(array = name, device = %array.status().device.display(), "assembled");
        Ok((
            Running {
                name: name.into(),
                uuid: group.uuid,
                array,
            },
            remarks,
        ))
    }
}

pub(super) fn judge(
    candidates: &[core::Candidate],
    group: &Group,
    request: &AssembleRequest,
) -> Result<AssembledArray, Problem> {
    let options = AssembleOptions {
        force: request.force,
        read_only: request.read_only,
    };
    let path = |index: usize| {
        group.found.get(index).map_or_else(
            || format!("device {index}"),
            |f| f.node.path.display().to_string(),
        )
    };
    let verdict = core::assemble(candidates, options).into_iter().next();
    let name = verdict
        .as_ref()
        .map_or("array", |v| v.name.as_str())
        .to_string();
    match verdict.map(|v| v.outcome) {
        Some(Ok(array)) => Ok(array),
        Some(Err(refusal)) => Err(Problem::new(name, refusal.text(&path), "")),
        None => Err(Problem::new(name, "no members", "")),
    }
}

/// The devices of the verdict's slots, then its spares. Devices that were left out are closed, MD may not have them either
/// as long as the ignore line stands.
pub(super) fn devices(
    verdict: &AssembledArray,
    group: &Group,
    held: &[Arc<std::fs::File>],
    candidates: &[core::Candidate],
) -> Vec<MemberDevice> {
    let device = |index: usize, slot, superblock| {
        let node = &group.found[index].node;
        MemberDevice {
            slot,
            path: node.path.clone(),
            file: held[index].clone(),
            superblock,
            logical_block: node.logical_block,
            size_sectors: node.size_sectors,
        }
    };
    let slots = verdict.members.iter().zip(&verdict.superblocks).enumerate();
    let members = slots.filter_map(|(slot, (index, superblock))| {
        Some(device((*index)?, Some(slot as u16), superblock.clone()?))
    });
    let spares = verdict.spares.iter();
    let spares = spares.map(|&index| device(index, None, candidates[index].superblock.clone()));
    members.chain(spares).collect()
}

/// What the operator should know about an array that starts all the same.
fn remarks(verdict: &AssembledArray, group: &Group) -> Vec<Problem> {
    let name = verdict.name.rsplit(':').next().unwrap_or_default();
    let mut remarks = Vec::new();
    for (index, why) in &verdict.left_out {
        let path = group.found[*index].node.path.display().to_string();
        let again = format!("to have it rebuilt: raidctl re-add {name} {path}");
        remarks.push(match why {
            LeftOut::Stale { behind } => Problem::new(
                path,
                format!("left out: its data is out of date, by {behind} events"),
                again,
            ),
            LeftOut::Faulty => Problem::new(
                path,
                "left out: the other members have recorded its failure",
                again,
            ),
            LeftOut::Removed { behind } => Problem::new(
                path,
                format!("left out: it was removed from the array, {behind} events ago"),
                again,
            ),
            LeftOut::Spare => Problem::new(
                path,
                "left out: a spare that the array cannot use (too small, or another one has its number)",
                "see 'raidctl examine'",
            ),
        });
    }
    for (slot, from) in &verdict.filling {
        let size = verdict.geometry.member_sectors().max(1);
        let path = verdict.members[usize::from(*slot)]
            .map(|index| group.found[index].node.path.display().to_string());
        let percent = from * 100 / size;
        remarks.push(Problem::new(
            path.unwrap_or_default(),
            format!("its rebuild goes on from {percent} % (slot {slot})"),
            "",
        ));
    }
    let missing = verdict.members.iter().filter(|m| m.is_none()).count();
    if missing > 0 {
        let message = format!("{missing} of {} members are missing", verdict.members.len());
        let remedy = match verdict.spares.is_empty() {
            true => "the array runs degraded; connect or replace them",
            false => "its spares are rebuilt in their place",
        };
        remarks.push(Problem::new(name, message, remedy));
    }
    if verdict.forced {
        let message = "it was not stopped cleanly and lacks members: stripes that were being written then may hold \
                       wrong data in the lost chunks";
        remarks.push(Problem::new(name, message, "check the file system on it"));
    }
    remarks
}

/// The slots as they would be filled, missing ones too, then the devices that would be left out.
fn planned_members(verdict: &AssembledArray, group: &Group) -> Vec<MemberView> {
    let path = |index: usize| group.found.get(index).map(|f| f.node.path.clone());
    let number = |index: usize| Some(group.found.get(index)?.superblock.dev_number);
    let slots = verdict.members.iter().enumerate().map(|(slot, index)| {
        let path = index.and_then(path);
        let filling = verdict.filling.iter().any(|(s, _)| usize::from(*s) == slot);
        MemberView {
            slot: Some(slot as u16),
            state: match path {
                Some(_) if filling => MemberState::Rebuilding,
                Some(_) => MemberState::InSync,
                None => MemberState::Missing,
            },
            path,
            number: index.and_then(number),
        }
    });
    let other = |index: usize, state| MemberView {
        slot: None,
        path: path(index),
        number: number(index),
        state,
    };
    let spares = verdict.spares.iter();
    let spares = spares.map(|index| other(*index, MemberState::Spare));
    let others = verdict.left_out.iter().map(|(index, why)| {
        let state = match why {
            LeftOut::Spare => MemberState::Spare,
            LeftOut::Stale { .. } | LeftOut::Faulty | LeftOut::Removed { .. } => {
                MemberState::Faulty
            }
        };
        other(*index, state)
    });
    slots.chain(spares).chain(others).collect()
}

/// What is known of an array before it is started, from its freshest superblock.
fn found_view(group: &Group) -> ArrayView {
    let best = group
        .found
        .iter()
        .map(|f| &f.superblock)
        .max_by_key(|b| b.events);
    let mut members: Vec<MemberView> = group
        .found
        .iter()
        .map(|f| {
            let own = matches!(f.superblock.slot(), SlotRole::Slot(_));
            let (slot, state) =
                match best.map_or(SlotRole::Spare, |b| b.role_of(f.superblock.dev_number)) {
                    SlotRole::Slot(slot) => (Some(slot), MemberState::InSync),
                    SlotRole::Faulty => (None, MemberState::Faulty),
                    SlotRole::Spare if own => (None, MemberState::Faulty),
                    SlotRole::Spare | SlotRole::Journal => (None, MemberState::Spare),
                };
            MemberView {
                slot,
                path: Some(f.node.path.clone()),
                number: Some(f.superblock.dev_number),
                state,
            }
        })
        .collect();
    members.sort_by_key(|m| m.slot.unwrap_or(u16::MAX));
    let size = best.map_or(0, |b| {
        let parities =
            raid_core::geometry::Level::from_md(b.level).map_or(0, |l| u64::from(l.parities()));
        match b.level {
            0 => group
                .found
                .iter()
                .fold(0u64, |sum, f| sum.saturating_add(f.superblock.data_size)),
            _ => b
                .size
                .saturating_mul(u64::from(b.raid_disks).saturating_sub(parities)),
        }
    });
    ArrayView {
        name: best.map_or_else(String::new, |b| b.short_name().to_string()),
        uuid: uuid_text(&group.uuid),
        level: best
            .and_then(|b| u8::try_from(b.level).ok())
            .unwrap_or(u8::MAX),
        chunk_bytes: best.map_or(0, |b| u64::from(b.chunk_sectors) * SECTOR_BYTES),
        size_bytes: size.saturating_mul(SECTOR_BYTES),
        device: None,
        members,
        state: "not running".into(),
    }
}
