//! `raidctl doctor`: what this machine has of what raidd uses, what will be used, and what to fix. Needs no daemon.
//!
//! [`gather`] looks (at `/proc`, `/sys`, `/etc` below a root that tests choose, and at drivers), into the plain [`Facts`]; the
//! sibling files judge them, without looking at anything. Looking starts the CUDA driver and opens a lane to each GPU
//! that the configuration wants, which takes a second; nothing is changed.

mod cpu;
pub mod facts;
pub mod gather;
mod gpu;
pub mod kernels;
mod md;
mod memory;
#[cfg(test)]
mod tests;
mod ublk;

use serde::Serialize;

pub use facts::Facts;
pub use gpu::{advice, lane_advice};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Status {
    /// As it should be.
    #[serde(rename = "ok")]
    Ok,
    /// There is none of it, and none is needed.
    #[serde(rename = "none")]
    None,
    /// raidd works, not as well or as safely as it could.
    #[serde(rename = "warn")]
    Warn,
    /// raidd does not work, or not as the configuration wants it.
    #[serde(rename = "fail")]
    Fail,
}

impl Status {
    /// In tables.
    pub fn word(self) -> &'static str {
        match self {
            Status::Ok => "OK",
            Status::None => "none",
            Status::Warn => "WARN",
            Status::Fail => "FAIL",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// How it came out.
    pub status: Status,
    /// What there is, and what will be used of it.
    pub found: String,
    /// What to do; empty where nothing is to be done.
    pub fix: String,
}

impl Finding {
    fn new(
        status: Status,
        check: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding {
            check: check.into(),
            status,
            found: found.into(),
            fix: fix.into(),
        }
    }

    fn ok(check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding::new(Status::Ok, check, found, "")
    }
}

/// Judges everything.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(fault) = &facts.config_error {
        findings.push(Finding::new(
            Status::Fail,
            "configuration",
            format!("{}; what follows is judged by the defaults", fault.problem),
            &fault.remedy,
        ));
    }
    findings.extend(kernels::judge(&facts.kernel_release));
    findings.extend(ublk::judge(&facts.ublk));
    findings.extend(cpu::judge(&facts.cpu));
    findings.extend(gpu::judge(&facts.gpu));
    findings.extend(memory::judge(&facts.memory));
    findings.extend(md::judge(&facts.md));
    findings
}

/// Whether raidd can work as it is configured.
pub fn passes(findings: &[Finding]) -> bool {
    findings.iter().all(|f| f.status != Status::Fail)
}
