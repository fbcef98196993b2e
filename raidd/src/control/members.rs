//! `fail` and `remove`: which devices an operator means, and what the array says to it.

use std::path::Path;

use raid_core::superblock::uuid_text;

use super::arrays::Running;
use super::commands::Control;
use super::protocol::{
    MemberView, MembersReply, MembersRequest, Outcome, Problem, Refusal, RefusalKind,
};
use crate::array_api::{Change, ChangeError, MemberState, MemberStatus};
use crate::device::node::number_of;

impl Control {
    pub(super) fn fail(&self, request: &MembersRequest) -> Result<MembersReply, Refusal> {
        let running = self.arrays.find(&request.array)?;
        let meant = meant(&running, &request.members)?;
        let numbers: Vec<u32> = meant
            .iter()
            .filter(|m| m.state != MemberState::Faulty)
            .filter_map(|m| m.number)
            .collect();
        if numbers.is_empty() {
            return Ok(reply(&running, Outcome::Unchanged, &meant, Vec::new()));
        }
        let change = Change::Fail {
            numbers: numbers.clone(),
            force: request.force,
            dry_run: request.dry_run,
        };
        let names: Vec<String> = meant.iter().map(name).collect();
        running
            .array
            .change(change)
            .map_err(|e| refusal("nothing was failed", &names.join(", "), &e))?;
        let outcome = match request.dry_run {
            true => Outcome::Planned,
            false => Outcome::Changed,
        };
        Ok(reply(&running, outcome, &now(&running, &meant), Vec::new()))
    }

    pub(super) fn remove(&self, request: &MembersRequest) -> Result<MembersReply, Refusal> {
        let running = self.arrays.find(&request.array)?;
        let meant = meant(&running, &request.members)?;
        if request.spares_only {
            no_member_among(&running, &meant)?;
        }
        let remove = |member: &MemberStatus, dry_run| {
            let number = member.number.unwrap_or(u32::MAX);
            let change = Change::Remove { number, dry_run };
            running.array.change(change)
        };
        // All or none, as far as can be known before.
        for member in &meant {
            remove(member, true).map_err(|e| refusal("nothing was removed", &name(member), &e))?;
        }
        if request.dry_run {
            return Ok(reply(&running, Outcome::Planned, &meant, Vec::new()));
        }
        let mut problems = Vec::new();
        for member in &meant {
            if let Err(e) = remove(member, false) {
                problems.push(Problem::new(name(member), e.message, e.remedy));
            }
        }
        let outcome = match meant.is_empty() {
            true => Outcome::Unchanged,
            false => Outcome::Changed,
        };
        Ok(reply(&running, outcome, &meant, problems))
    }
}

fn no_member_among(running: &Running, meant: &[MemberStatus]) -> Result<(), Refusal> {
    let Some(member) = meant.iter().find(|m| m.state != MemberState::Spare) else {
        return Ok(());
    };
    let message = format!("nothing was removed: {} is no spare", name(member));
    let remedy = format!("raidctl remove {} {}", running.name, name(member));
    Err(Refusal {
        problems: vec![Problem::new(name(member), "it is no spare", remedy)],
        ..Refusal::new(RefusalKind::Preflight, message)
    })
}

/// A refusal with the array's own words.
pub(super) fn refusal(what: &str, subject: &str, error: &ChangeError) -> Refusal {
    Refusal {
        kind: RefusalKind::Preflight,
        message: format!("{what}: {error}"),
        problems: vec![Problem::new(subject, &error.message, &error.remedy)],
    }
}

pub(super) fn name(member: &MemberStatus) -> String {
    match (&member.path, member.slot) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(slot)) => format!("slot {slot}"),
        (None, None) => "?".into(),
    }
}

/// The devices that the words mean. `failed` and `detached` may mean none.
fn meant(running: &Running, words: &[String]) -> Result<Vec<MemberStatus>, Refusal> {
    let all = running.array.status().members;
    let mut found: Vec<MemberStatus> = Vec::new();
    for word in words {
        let these: Vec<&MemberStatus> = match word.as_str() {
            "failed" | "faulty" => all
                .iter()
                .filter(|m| m.state == MemberState::Faulty)
                .collect(),
            "detached" => {
                // The array looks once a second; the node of a device goes with it at once.
                let left = |m: &&MemberStatus| m.path.as_ref().is_some_and(|p| !p.exists());
                all.iter().filter(|m| m.gone || left(m)).collect()
            }
            path => vec![one(running, &all, Path::new(path))?],
        };
        for member in these {
            if !found.contains(member) {
                found.push(member.clone());
            }
        }
    }
    Ok(found)
}

fn one<'a>(
    running: &Running,
    all: &'a [MemberStatus],
    path: &Path,
) -> Result<&'a MemberStatus, Refusal> {
    let dev = number_of(path);
    // A device that came back may have the name of one that left: the one that is there is meant.
    let same = |m: &&MemberStatus| {
        let named = m.path.as_deref() == Some(path);
        let is = |p: &Path| dev.is_some() && number_of(p) == dev;
        m.number.is_some() && (named || (!m.gone && m.path.as_deref().is_some_and(is)))
    };
    let mut these: Vec<&MemberStatus> = all.iter().filter(same).collect();
    these.sort_by_key(|m| m.gone);
    these.first().copied().ok_or_else(|| {
        let devices: Vec<String> = all
            .iter()
            .filter(|m| m.number.is_some())
            .map(name)
            .collect();
        Refusal {
            problems: vec![Problem::new(
                path.display().to_string(),
                format!("it is no device of {}", running.name),
                format!("its devices are {}", devices.join(", ")),
            )],
            ..Refusal::new(
                RefusalKind::NotFound,
                format!("{} is no device of {}", path.display(), running.name),
            )
        }
    })
}

/// The same devices as they are now.
pub(super) fn now(running: &Running, then: &[MemberStatus]) -> Vec<MemberStatus> {
    let all = running.array.status().members;
    then.iter()
        .map(|old| {
            let same = all.iter().find(|m| m.number == old.number);
            same.unwrap_or(old).clone()
        })
        .collect()
}

pub(super) fn reply(
    running: &Running,
    outcome: Outcome,
    members: &[MemberStatus],
    problems: Vec<Problem>,
) -> MembersReply {
    MembersReply {
        name: running.name.clone(),
        uuid: uuid_text(&running.uuid),
        outcome,
        members: members.iter().map(MemberView::from).collect(),
        problems,
    }
}
