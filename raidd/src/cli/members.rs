//! `fail`, `remove`, `add`, `re-add` and `spare`: what they ask the daemon and how they tell what was done.

use std::path::PathBuf;

use super::args::{Add, Cli, Fail, Remove, SpareVerb};
use super::exit::{self, Failure};
use super::show;
use super::verbs::{ask_daemon, members, unexpected};
use crate::array_api::MemberState;
use crate::control::protocol::{AddRequest, Command, MembersReply, MembersRequest, Outcome, Reply};

/// `raidctl fail`
pub fn fail(cli: &Cli, args: &Fail, json: bool) -> exit::Outcome {
    let request = MembersRequest {
        array: args.array.clone(),
        members: words(&args.members)?,
        force: args.force,
        spares_only: false,
        dry_run: args.dry_run,
    };
    tell(&send(cli, Command::Fail(request))?, "failed", json)
}

/// `raidctl remove`, `raidctl spare remove`
pub fn remove(cli: &Cli, args: &Remove, spares_only: bool, json: bool) -> exit::Outcome {
    let request = MembersRequest {
        array: args.array.clone(),
        members: words(&args.members)?,
        force: false,
        spares_only,
        dry_run: args.dry_run,
    };
    tell(&send(cli, Command::Remove(request))?, "removed", json)
}

/// `raidctl add`, `raidctl re-add`
pub fn add(cli: &Cli, args: &Add, again: bool, json: bool) -> exit::Outcome {
    let request = AddRequest {
        array: args.array.clone(),
        members: members(&args.members)?,
        again,
        force: args.force,
        dry_run: args.dry_run,
    };
    tell(&send(cli, Command::Add(request))?, "added", json)
}

/// `raidctl spare`
pub fn spare(cli: &Cli, verb: &SpareVerb, json: bool) -> exit::Outcome {
    match verb {
        SpareVerb::Add(args) => add(cli, args, false, json),
        SpareVerb::Remove(args) => remove(cli, args, true, json),
    }
}

/// Words as they are, all else as devices.
fn words(given: &[String]) -> Result<Vec<String>, Failure> {
    let mut out = Vec::new();
    for word in given {
        match word.as_str() {
            "failed" | "faulty" | "detached" => out.push(word.clone()),
            device => {
                let paths: Vec<PathBuf> = members(&[device.to_string()])?;
                // A path that is no UTF-8 cannot have come from these words.
                out.extend(paths.iter().map(|p| p.display().to_string()));
            }
        }
    }
    Ok(out)
}

fn send(cli: &Cli, command: Command) -> Result<MembersReply, Failure> {
    match ask_daemon(cli, command)? {
        Reply::Members(reply) => Ok(reply),
        _ => Err(unexpected(cli)),
    }
}

fn tell(reply: &MembersReply, verb: &str, json: bool) -> exit::Outcome {
    let undone = reply
        .problems
        .iter()
        .filter(|p| p.message.starts_with("not added"))
        .count();
    let done = match undone {
        0 => exit::DONE,
        _ => exit::FAILED,
    };
    if json {
        show::json(reply);
        return Ok(done);
    }
    show::remarks("note", &reply.problems);
    if reply.members.is_empty() {
        show::line(format_args!(
            "{}: there is nothing to be {verb}",
            reply.name
        ));
    }
    let doing = match reply.outcome {
        Outcome::Planned => format!("would be {verb}"),
        Outcome::Unchanged => format!("is {verb} already"),
        Outcome::Changed | Outcome::Refused => verb.to_string(),
    };
    for member in &reply.members {
        let path = member
            .path
            .as_ref()
            .map_or("-".into(), |p| p.display().to_string());
        let rest = match (verb, member.state, member.slot) {
            ("added", MemberState::Spare, _) => " as a spare".to_string(),
            ("added", _, Some(slot)) => format!(", slot {slot} is rebuilt on it"),
            _ => String::new(),
        };
        show::line(format_args!("{}: {path} {doing}{rest}", reply.name));
    }
    Ok(done)
}
