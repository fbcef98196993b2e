//! Exit codes of both programs and the one way errors are printed.

use std::process::ExitCode;

use super::show::{say, unwritten};

/// Done.
pub const DONE: u8 = 0;
/// Refused or failed.
pub const FAILED: u8 = 1;
/// Wrong usage; clap uses the same number.
pub const USAGE: u8 = 2;
/// No daemon answers: there is none, or it is stopped or stuck.
pub const NO_DAEMON: u8 = 3;
/// `detail --test`: the array could not be looked at.
pub const CANNOT_TELL: u8 = 4;

/// How a verb ended: a code, or a code and a message.
pub type Outcome = Result<u8, Failure>;

/// A code other than 0 with its message.
#[derive(Debug)]
pub struct Failure {
    /// One of the constants above.
    pub code: u8,
    /// A sentence for the operator.
    pub message: String,
    /// The single reasons.
    pub problems: Vec<crate::control::protocol::Problem>,
    /// `kind` in JSON.
    pub kind: &'static str,
}

impl Failure {
    /// A failure with nothing but a sentence.
    pub fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
            problems: Vec::new(),
            kind,
        }
    }
    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, "usage", message)
    }
}

/// Prints a failure to standard error, as text or JSON, and gives its code.
pub fn report(program: &str, outcome: Outcome, json: bool) -> ExitCode {
    let outcome = match (outcome, unwritten()) {
        // What was not written cannot be acted on, whatever else is well.
        (Ok(DONE), Some(why)) => Err(Failure::new(
            FAILED,
            "output",
            format!("writing to standard output: {why}; what was written is not complete"),
        )),
        (outcome, _) => outcome,
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if json {
                let value = serde_json::json!({
                    "error": {
                        "kind": failure.kind, "message": failure.message, "problems": failure.problems,
                    }
                });
                say(value);
            } else {
                say(format_args!("{program}: {}", failure.message));
                for problem in &failure.problems {
                    say(format_args!("  {problem}"));
                }
            }
            ExitCode::from(failure.code)
        }
    }
}
