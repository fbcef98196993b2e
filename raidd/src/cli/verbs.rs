//! What raidctl does for each verb: turn arguments into a request, ask where asking is due, print the answer.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::args::{Assemble, Cli, Create, Detail, Output, Stop, Verb};
use super::exit::{self, Failure};
use super::{bench, bitmap, doctor, examine, metrics, scrub, show, status, zero};
use crate::array_api::{Health, SweepKind};
use crate::control::client::{ClientError, Limits, call, connect};
use crate::control::protocol::{
    AssembleReply, AssembleRequest, Command, CreateReply, CreateRequest, DetailRequest, Outcome,
    RefusalKind, Reply, StopRequest,
};
use crate::member_spec::expand_all;

/// Runs one command line.
pub fn run(cli: &Cli) -> exit::Outcome {
    let json = cli.output == Output::Json;
    match &cli.verb {
        Verb::Create(args) => create(cli, args, json),
        Verb::Assemble(args) => assemble(cli, args, json),
        Verb::Stop(args) => stop(cli, args, json),
        Verb::List => list(cli, json),
        Verb::Detail(args) => detail(cli, args, json),
        Verb::Status(args) => status::status(cli, args, json),
        Verb::Wait(args) => status::wait(cli, args, json),
        Verb::Fail(args) => super::members::fail(cli, args, json),
        Verb::Remove(args) => super::members::remove(cli, args, false, json),
        Verb::Add(args) => super::members::add(cli, args, false, json),
        Verb::ReAdd(args) => super::members::add(cli, args, true, json),
        Verb::Spare(args) => super::members::spare(cli, &args.verb, json),
        Verb::Scrub(args) => scrub::scrub(cli, &args.verb, json),
        Verb::Set(args) => scrub::set(cli, args, json),
        Verb::Rebuild(args) => status::walk(cli, &args.verb, SweepKind::Recover, json),
        Verb::Resync(args) => status::walk(cli, &args.verb, SweepKind::Resync, json),
        Verb::Examine(args) if args.bitmap => bitmap::run(&members(&args.members)?, json),
        Verb::Examine(args) => examine::run(&members(&args.members)?, json),
        Verb::Zero(args) => zero::run(&members(&args.members)?, args, json),
        Verb::Bench(args) => bench::run(args, json),
        Verb::Doctor(args) => doctor::run(args, json),
        // Silently answering in another form than the one asked for would break what reads it.
        Verb::Metrics if json => Err(Failure::usage(
            "metrics prints the text that Prometheus reads, and nothing else: leave --output out (detail and list know json)",
        )),
        Verb::Metrics => metrics::run(cli),
    }
}

/// Ranges expanded, relative paths made absolute: the daemon works in another folder.
pub(super) fn members(words: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let names = expand_all(words).map_err(|e| Failure::usage(e.to_string()))?;
    names
        .into_iter()
        .map(|name| std::path::absolute(&name).map_err(|e| Failure::usage(format!("{name}: {e}"))))
        .collect()
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let message = error.to_string();
        match error {
            ClientError::NoDaemon { .. } => Failure::new(exit::NO_DAEMON, "no_daemon", message),
            ClientError::Silent { .. } => Failure::new(exit::NO_DAEMON, "no_answer", message),
            ClientError::Denied { .. } => Failure::new(exit::FAILED, "denied", message),
            ClientError::Broken { .. } => Failure::new(exit::FAILED, "broken", message),
            ClientError::Refused(refusal) => {
                let kind = match refusal.kind {
                    RefusalKind::BadRequest => "bad_request",
                    RefusalKind::Forbidden => "forbidden",
                    RefusalKind::TooMany => "too_many",
                    RefusalKind::NotFound => "not_found",
                    RefusalKind::Preflight => "preflight",
                    RefusalKind::NeedsConfirmation => "needs_confirmation",
                    RefusalKind::Busy => "busy",
                    RefusalKind::Failed => "failed",
                };
                Failure {
                    code: exit::FAILED,
                    message,
                    problems: refusal.problems,
                    kind,
                }
            }
        }
    }
}

pub(super) fn ask_daemon(cli: &Cli, command: Command) -> Result<Reply, Failure> {
    let limits = Limits::default();
    let stream = connect(&cli.socket, Duration::from_secs(cli.wait_daemon), &limits)?;
    Ok(call(&stream, &cli.socket, command, &limits)?)
}

/// The daemon answered a different question.
pub(super) fn unexpected(cli: &Cli) -> Failure {
    let reason = "an answer to another question".to_string();
    ClientError::Broken {
        path: cli.socket.clone(),
        reason,
    }
    .into()
}

fn create(cli: &Cli, args: &Create, json: bool) -> exit::Outcome {
    let mut request = CreateRequest {
        level: args.level,
        members: members(&args.members)?,
        name: args.name.clone(),
        chunk_bytes: args.chunk,
        layout: args.layout.clone(),
        assume_clean: args.assume_clean,
        bitmap: args.bitmap,
        bitmap_chunk_bytes: args.bitmap_chunk,
        force: args.force,
        accept_warnings: args.yes,
        dry_run: args.dry_run,
    };
    let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if terminal && !args.yes && !args.dry_run && !json {
        // Show what would be made, then ask. The daemon checks everything again when it is meant.
        let plan = send_create(
            cli,
            CreateRequest {
                dry_run: true,
                ..request.clone()
            },
        )?;
        show::plan(&plan.array);
        show::remarks("warning", &plan.warnings);
        if !confirmed("Create this array? What is on these members is lost. [y/N] ") {
            return Err(Failure::new(exit::FAILED, "declined", "not created"));
        }
        request.accept_warnings = true;
    }
    let reply = send_create(cli, request)?;
    if json {
        show::json(&reply);
        return Ok(exit::DONE);
    }
    show::remarks("warning", &reply.warnings);
    match &reply.array.device {
        Some(device) => show::line(device.display()),
        None => show::plan(&reply.array),
    }
    Ok(exit::DONE)
}

fn send_create(cli: &Cli, request: CreateRequest) -> Result<CreateReply, Failure> {
    match ask_daemon(cli, Command::Create(request))? {
        Reply::Created(reply) => Ok(reply),
        _ => Err(unexpected(cli)),
    }
}

/// Asks on the terminal; anything but yes is no.
fn confirmed(question: &str) -> bool {
    let _ = write!(std::io::stderr(), "{question}");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

fn assemble(cli: &Cli, args: &Assemble, json: bool) -> exit::Outcome {
    if !args.scan && args.members.is_empty() && args.name.is_none() && args.uuid.is_none() {
        return Err(Failure::usage(
            "say what to assemble: --scan, --name NAME, --uuid UUID, or the members",
        ));
    }
    let request = AssembleRequest {
        members: members(&args.members)?,
        name: args.name.clone(),
        uuid: args.uuid.clone(),
        read_only: args.readonly,
        force: args.force,
        dry_run: args.dry_run,
    };
    let Reply::Assembled { arrays } = ask_daemon(cli, Command::Assemble(request))? else {
        return Err(unexpected(cli));
    };
    let refused = arrays
        .iter()
        .filter(|a| a.outcome == Outcome::Refused)
        .count();
    if json {
        show::json(&serde_json::json!({ "arrays": arrays }));
        return Ok(if refused == 0 {
            exit::DONE
        } else {
            exit::FAILED
        });
    }
    if arrays.is_empty() {
        show::line("no arrays were found");
    }
    for array in &arrays {
        show_assembled(array);
    }
    if refused > 0 {
        let message = format!("{refused} of {} arrays not assembled", arrays.len());
        return Err(Failure::new(exit::FAILED, "refused", message));
    }
    Ok(exit::DONE)
}

fn show_assembled(reply: &AssembleReply) {
    let a = &reply.array;
    let device = a.device.as_deref().unwrap_or(Path::new("-")).display();
    match reply.outcome {
        Outcome::Changed => show::line(format_args!("{device}: {} assembled, {}", a.name, a.state)),
        Outcome::Unchanged => show::line(format_args!(
            "{device}: {} runs already, {}",
            a.name, a.state
        )),
        Outcome::Planned => {
            show::line(format_args!("{} would be assembled:", a.name));
            show::plan(a);
        }
        Outcome::Refused => show::say(format_args!(
            "raidctl: {} ({}) not assembled",
            a.name, a.uuid
        )),
    }
    match reply.outcome {
        Outcome::Refused => reply
            .problems
            .iter()
            .for_each(|problem| show::say(format_args!("  {problem}"))),
        _ => show::remarks("warning", &reply.problems),
    }
}

fn stop(cli: &Cli, args: &Stop, json: bool) -> exit::Outcome {
    let request = StopRequest {
        abandon: args.abandon,
        array: args.array.clone(),
        release: args.release,
        dry_run: args.dry_run,
    };
    let Reply::Stopped(reply) = ask_daemon(cli, Command::Stop(request))? else {
        return Err(unexpected(cli));
    };
    let kept = args.release && !reply.released;
    if json {
        show::json(&reply);
        return Ok(if kept { exit::FAILED } else { exit::DONE });
    }
    let verb = match reply.outcome {
        Outcome::Planned => "would be stopped",
        Outcome::Unchanged => "does not run",
        _ => "stopped",
    };
    show::remarks("warning", &reply.problems);
    let rest = if reply.released {
        ", its members are mdadm's to assemble"
    } else {
        ""
    };
    show::line(format_args!("{} {verb}{rest}", reply.name));
    if kept {
        let message = format!("mdadm is still kept off the members of {}", reply.name);
        return Err(Failure::new(exit::FAILED, "not_released", message));
    }
    Ok(exit::DONE)
}

fn list(cli: &Cli, json: bool) -> exit::Outcome {
    let Reply::List { arrays } = ask_daemon(cli, Command::List)? else {
        return Err(unexpected(cli));
    };
    if json {
        show::json(&serde_json::json!({ "arrays": arrays }));
    } else {
        show::list(&arrays);
    }
    Ok(exit::DONE)
}

fn detail(cli: &Cli, args: &Detail, json: bool) -> exit::Outcome {
    let answer = ask_daemon(
        cli,
        Command::Detail(DetailRequest {
            array: args.array.clone(),
        }),
    );
    let reply = match answer {
        Ok(Reply::Detail(reply)) => reply,
        Ok(_) => return Err(unexpected(cli)),
        Err(mut failure) => {
            if args.test {
                failure.code = exit::CANNOT_TELL;
            }
            return Err(failure);
        }
    };
    if json {
        show::json(&reply);
    } else {
        show::detail(&reply);
    }
    Ok(match (args.test, reply.health) {
        (false, _) | (true, Health::Optimal) => exit::DONE,
        (true, Health::Degraded) => 1,
        (true, Health::Failed) => 2,
    })
}
