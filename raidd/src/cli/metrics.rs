//! `raidctl metrics`: asks the daemon for its arrays and prints their figures as Prometheus text, the only form it knows.

use super::args::Cli;
use super::exit::{self, Failure};
use super::show;
use super::verbs::{ask_daemon, unexpected};
use crate::control::protocol::{Command, DetailRequest, Reply};
use crate::metrics;

/// Asks and prints.
pub fn run(cli: &Cli) -> exit::Outcome {
    let Reply::Version { version, .. } = ask_daemon(cli, Command::Version)? else {
        return Err(unexpected(cli));
    };
    let Reply::List { arrays } = ask_daemon(cli, Command::List)? else {
        return Err(unexpected(cli));
    };
    let mut details = Vec::new();
    for array in arrays {
        let request = DetailRequest { array: array.uuid };
        match ask_daemon(cli, Command::Detail(request)) {
            Ok(Reply::Detail(detail)) => details.push(*detail),
            Ok(_) => return Err(unexpected(cli)),
            // It was stopped in this moment.
            Err(failure) if failure.kind == "not_found" => {}
            Err(failure) => return Err(failure),
        }
    }
    let text = metrics::text(&version, &details)
        .map_err(|e| Failure::new(exit::FAILED, "metrics", e.to_string()))?;
    show::line(text.trim_end());
    Ok(exit::DONE)
}
