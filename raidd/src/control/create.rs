//! `create`: look at everything, plan, write all superblocks or none, start. Nothing is written before every check
//! has passed, and what was written is taken back if the start fails.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use raid_core::assemble::{self, AssembleOptions, AssembledArray};
use raid_core::create::{
    CreateError, CreatePlan, CreateWarning, NewArray, NewBitmap, NewMember, plan,
};
use raid_core::geometry::{Level, layout_name, layout_numbers, parse_layout};
use raid_core::superblock::{bitmap_version, uuid_text};
use raid_core::units::SECTOR_BYTES;

use super::arrays::Running;
use super::commands::Control;
use super::protocol::{
    ArrayView, BitmapKind, CreateReply, CreateRequest, MemberView, Outcome, Problem, Refusal,
    RefusalKind,
};
use crate::array_api::{MemberDevice, MemberState};
use crate::device::open::Mode;
use crate::discover::{best, locate, scan};
use crate::imprint::{Target, write_all};
use crate::preflight::{Candidate, Report, Terms, check};

impl Control {
    pub(super) fn create(&self, request: &CreateRequest) -> Result<CreateReply, Refusal> {
        let level = Level::from_md(i32::from(request.level))
            .filter(|l| *l != Level::Raid4)
            .ok_or_else(|| {
                bad(format!(
                    "there is no level {} here; choose 0, 5 or 6",
                    request.level
                ))
            })?;
        let layout = self.layout(level, request.layout.as_deref())?;
        let chunk = request
            .chunk_bytes
            .unwrap_or(u64::from(self.config.defaults.chunk.0));
        let chunk = crate::config::check_chunk(chunk).map_err(bad)?;
        let name = match &request.name {
            Some(name) => name.clone(),
            None => self.arrays.free_name(),
        };
        let terms = Terms {
            mode: if request.dry_run {
                Mode::Read
            } else {
                Mode::Write
            },
            force: request.force,
            allow_files: self.allow_files,
        };
        let Report {
            candidates,
            mut problems,
            mut warnings,
        } = check(&request.members, terms, &|dev| self.arrays.member_of(dev));
        if let Some(other) = self.arrays.by_name(&name) {
            let device = other.array.status().device;
            problems.push(Problem::new(
                format!("name {name}"),
                format!("an array of this name runs already ({})", device.display()),
                "choose another --name",
            ));
        }
        if request.members.len() < usize::from(level.min_members()) {
            let few = CreateError::TooFewMembers {
                level,
                members: request.members.len(),
            };
            problems.push(Problem::new("members", few.to_string(), ""));
        }
        // Without ublk nothing can be started, so nothing shall be written either.
        if !request.dry_run
            && let Err(e) = self.starter.probe()
        {
            problems.push(Problem::new("ublk", e.to_string(), ""));
        }
        if !problems.is_empty() {
            return Err(refused(&problems, request));
        }
        let members: Vec<NewMember> = candidates
            .iter()
            .map(|c| NewMember {
                device_uuid: random_uuid(),
                sectors: c.node.size_sectors,
            })
            .collect();
        let host = nix::unistd::gethostname()
            .ok()
            .and_then(|h| h.into_string().ok())
            // What the kernel answers before anyone has set a name.
            .filter(|h| h != "(none)")
            .unwrap_or_default();
        let wanted = NewArray {
            level,
            layout,
            chunk_sectors: (u64::from(chunk.0) / SECTOR_BYTES) as u32,
            name: &name,
            host: host.split('.').next().unwrap_or_default(),
            uuid: random_uuid(),
            now: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            assume_clean: request.assume_clean,
            bitmap: new_bitmap(level, request)?,
            members: &members,
        };
        let plan =
            plan(&wanted).map_err(|e| refused(&[plan_problem(&e, &request.members)], request))?;
        warnings.extend(
            plan.warnings
                .iter()
                .filter_map(|w| plan_warning(w, &request.members)),
        );
        let view = planned_view(&name, &wanted, &plan, &request.members);
        if request.dry_run {
            return Ok(CreateReply {
                array: view,
                outcome: Outcome::Planned,
                warnings,
            });
        }
        if !warnings.is_empty() && !request.accept_warnings {
            return Err(Refusal {
                kind: RefusalKind::NeedsConfirmation,
                message: "not created: confirm the following with --yes, or change the command"
                    .into(),
                problems: warnings,
            });
        }
        let (running, unguarded) =
            self.write_and_start(&name, &plan, candidates, request.assume_clean)?;
        warnings.extend(unguarded);
        let array = ArrayView::from(&running.array.status());
        self.arrays.add(running);
        Ok(CreateReply {
            array,
            outcome: Outcome::Changed,
            warnings,
        })
    }

    fn layout(&self, level: Level, asked: Option<&str>) -> Result<Option<u32>, Refusal> {
        match (level, asked) {
            (Level::Raid0, None) => Ok(None),
            (Level::Raid0, Some(name)) => parse_layout(level, name)
                .map(Some)
                .ok_or_else(|| bad(format!("raid0 has no layout '{name}': leave --layout out"))),
            (_, asked) => {
                let name = asked.unwrap_or(&self.config.defaults.layout);
                parse_layout(level, name).map(Some).ok_or_else(|| {
                    let names: Vec<&str> = layout_numbers(level)
                        .into_iter()
                        .filter_map(|n| layout_name(level, n))
                        .collect();
                    bad(format!(
                        "{level} has no layout '{name}'; it has {}",
                        names.join(", ")
                    ))
                })
            }
        }
    }

    /// Takes the notes of arrays away whose last member has just been overwritten.
    fn forget_overwritten(&self, mut old: Vec<[u8; 16]>) {
        old.retain(|uuid| {
            !self.guard.find(&uuid_text(uuid)).is_empty() && self.arrays.by_uuid(uuid).is_none()
        });
        if old.is_empty() {
            return;
        }
        let left = scan().0;
        for uuid in old {
            if left.iter().any(|f| f.superblock.uuid == uuid) {
                continue;
            }
            match self.guard.remove(&uuid) {
                Ok(_) => tracing::info!(
                    array = uuid_text(&uuid),
                    "its last member was overwritten: mdadm need not be kept off it any longer"
                ),
                Err(e) => tracing::warn!(array = uuid_text(&uuid), "{e}"),
            }
        }
    }

    fn write_and_start(
        &self,
        name: &str,
        plan: &CreatePlan,
        candidates: Vec<Candidate>,
        assume_clean: bool,
    ) -> Result<(Running, Option<Problem>), Refusal> {
        let failed = |message: String| Refusal::new(RefusalKind::Failed, message);
        let uuid = plan.superblocks.first().map(|b| b.uuid).unwrap_or_default();
        // Before the superblocks: udev looks at a device as soon as it has been written and closed.
        let unguarded = self.keep_off(name, &uuid);
        let forget = || {
            if let Err(e) = self.guard.remove(&uuid) {
                tracing::warn!(array = name, "{e}");
            }
        };
        let old = old_arrays(&candidates);
        let targets: Vec<Target<'_>> = candidates
            .iter()
            .zip(&plan.superblocks)
            .map(|(c, superblock)| Target {
                path: &c.node.path,
                file: &c.file,
                superblock,
                logical_block: c.node.logical_block,
                wipe: wipe(c, superblock.data_offset, assume_clean),
                bitmap: plan.bitmap.as_deref(),
            })
            .collect();
        let undo = write_all(&targets).map_err(|e| {
            forget();
            failed(format!("not created: {e}"))
        })?;
        let started = verdict_of(plan).and_then(|verdict| {
            let devices = candidates.iter().zip(&plan.superblocks).enumerate().map(
                |(slot, (c, superblock))| {
                    // A second handle, so that ours can still take everything back if the start fails.
                    Ok(MemberDevice {
                        slot: Some(slot as u16),
                        path: c.node.path.clone(),
                        file: Arc::new(c.file.try_clone()?),
                        superblock: superblock.clone(),
                        logical_block: c.node.logical_block,
                        size_sectors: c.node.size_sectors,
                    })
                },
            );
            let devices: std::io::Result<Vec<MemberDevice>> = devices.collect();
            let devices = devices.map_err(|e| e.to_string())?;
            let mut options = self.options(&uuid, false);
            options.claim = self.claim(&uuid, name).map_err(|p| p.message)?;
            self.starter
                .start(verdict, devices, options)
                .map_err(|e| e.to_string())
        });
        match started {
            Ok(array) => {
                self.remember(&uuid, array.as_ref());
                self.forget_overwritten(old);
                tracing::info!(array = name, device = %array.status().device.display(), "created");
                let running = Running {
                    name: name.into(),
                    uuid,
                    array,
                };
                Ok((running, unguarded))
            }
            Err(message) => {
                let left = undo.take_back(&targets);
                forget();
                let kept = if left.is_empty() {
                    "every member is as it was before".into()
                } else {
                    let names: Vec<String> = left.iter().map(|p| p.display().to_string()).collect();
                    format!(
                        "erase the superblocks with 'raidctl zero --force {}'",
                        names.join(" ")
                    )
                };
                Err(failed(format!("not created: {message}; {kept}")))
            }
        }
    }
}

/// Arrays with parity have a bitmap unless told otherwise.
fn new_bitmap(level: Level, request: &CreateRequest) -> Result<NewBitmap, Refusal> {
    let kind = request.bitmap.unwrap_or(match level {
        Level::Raid0 => BitmapKind::None,
        _ => BitmapKind::Internal,
    });
    let chunk_bytes = match request.bitmap_chunk_bytes.map(u32::try_from) {
        None => None,
        Some(Ok(bytes)) => Some(bytes),
        Some(Err(_)) => return Err(bad("a bitmap chunk has at most 2 GiB".into())),
    };
    match kind {
        BitmapKind::Internal => Ok(NewBitmap::Internal { chunk_bytes }),
        BitmapKind::None if chunk_bytes.is_some() => Err(bad(
            "a chunk size was given for a bitmap that is not wanted: leave one of the two out"
                .into(),
        )),
        BitmapKind::None => Ok(NewBitmap::None),
    }
}

/// The arrays that the candidates were members of until now.
fn old_arrays(candidates: &[Candidate]) -> Vec<[u8; 16]> {
    let mut old: Vec<[u8; 16]> = candidates
        .iter()
        .filter(|c| c.signatures.iter().any(|s| s.is_md))
        .filter_map(|c| best(locate(&c.file, c.node.size_sectors).ok()?))
        .map(|block| block.uuid)
        .collect();
    old.sort_unstable();
    old.dedup();
    old
}

fn bad(message: String) -> Refusal {
    Refusal::new(RefusalKind::BadRequest, message)
}

fn random_uuid() -> [u8; 16] {
    *uuid::Uuid::new_v4().as_bytes()
}

/// What the assembly of the new superblocks says; by construction one array with every member.
fn verdict_of(plan: &CreatePlan) -> Result<AssembledArray, String> {
    let candidates: Vec<assemble::Candidate> = plan
        .superblocks
        .iter()
        .map(|block| assemble::Candidate {
            superblock: block.clone(),
            device_sectors: block.data_offset + block.data_size,
            bitmap_version: plan.bitmap.as_deref().and_then(bitmap_version),
        })
        .collect();
    let verdict = assemble::assemble(&candidates, AssembleOptions::default())
        .into_iter()
        .next();
    verdict
        .ok_or("no array in the plan")?
        .outcome
        .map_err(|refusal| refusal.to_string())
}

/// Old signatures to erase. Data that is trusted (`--assume-clean`) is not touched, since its parity would no longer
/// be right.
fn wipe(candidate: &Candidate, data_offset: u64, assume_clean: bool) -> Vec<(u64, u64)> {
    let ranges = candidate
        .signatures
        .iter()
        .flat_map(|s| s.ranges.iter().copied());
    ranges
        .filter(|(offset, len)| !assume_clean || offset + len <= data_offset * SECTOR_BYTES)
        .collect()
}

fn refused(problems: &[Problem], request: &CreateRequest) -> Refusal {
    let count = if problems.len() == 1 {
        "a problem".into()
    } else {
        format!("{} problems", problems.len())
    };
    let message = format!(
        "raid{} not created, nothing was written: {count} found",
        request.level
    );
    Refusal {
        kind: RefusalKind::Preflight,
        message,
        problems: problems.to_vec(),
    }
}

fn member_name(slot: u16, members: &[PathBuf]) -> String {
    members
        .get(usize::from(slot))
        .map_or_else(|| format!("member {slot}"), |p| p.display().to_string())
}

/// The core speaks of slots, the operator of devices.
fn plan_problem(error: &CreateError, members: &[PathBuf]) -> Problem {
    let text = error.to_string();
    match error {
        CreateError::MemberTooSmall { slot, .. } => {
            let text = text
                .trim_start_matches(&format!("member {slot} "))
                .replacen("has ", "it has ", 1);
            Problem::new(member_name(*slot, members), text, "")
        }
        _ => Problem::new("the array", text, ""),
    }
}

fn plan_warning(warning: &CreateWarning, members: &[PathBuf]) -> Option<Problem> {
    match warning {
        CreateWarning::Wasted { slot, .. } => {
            let text = warning.to_string();
            let text = text.trim_start_matches(&format!("member {slot}: "));
            Some(Problem::new(
                member_name(*slot, members),
                text,
                "use members of one size, or leave the smallest out",
            ))
        }
        CreateWarning::TwoMembers => Some(Problem::new("members", warning.to_string(), "")),
        // Only of interest to those who move arrays between hosts, and no reason to ask.
        CreateWarning::NoHost => None,
    }
}

fn planned_view(
    name: &str,
    new: &NewArray<'_>,
    plan: &CreatePlan,
    members: &[PathBuf],
) -> ArrayView {
    ArrayView {
        name: name.into(),
        uuid: uuid_text(&new.uuid),
        level: new.level.md() as u8,
        chunk_bytes: u64::from(new.chunk_sectors) * SECTOR_BYTES,
        size_bytes: plan.geometry.array_sectors() * SECTOR_BYTES,
        device: None,
        members: members
            .iter()
            .enumerate()
            .map(|(slot, path)| MemberView {
                slot: Some(slot as u16),
                path: Some(path.clone()),
                number: Some(slot as u32),
                state: MemberState::InSync,
            })
            .collect(),
        state: "planned".into(),
    }
}
