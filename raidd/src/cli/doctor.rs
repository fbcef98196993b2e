//! `raidctl doctor`: the command line of [`crate::doctor`].

use std::path::PathBuf;

use clap::Args;

use super::exit;
use super::show;
use crate::config::{self, Config};
use crate::doctor::facts::ConfigFault;
use crate::doctor::{self, Finding, Status, gather};

/// `raidctl doctor`
#[derive(Debug, Args)]
pub struct Doctor {
    /// Configuration file of the daemon; /etc/raidd/raidd.yaml if it exists
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Looks, judges, prints. The status is 1 if something fails.
pub fn run(args: &Doctor, json: bool) -> exit::Outcome {
    let (config, error) = match config::load(args.config.as_deref()) {
        Ok(config) => (config, None),
        Err(error) => {
            let fault = ConfigFault {
                problem: error.problem(),
                remedy: error.remedy().into(),
            };
            (Config::default(), Some(fault))
        }
    };
    let facts = gather::gather(&config, error);
    let findings = doctor::examine(&facts);
    let passes = doctor::passes(&findings);
    if json {
        show::json(&serde_json::json!({ "passes": passes, "findings": findings }));
    } else {
        print(&findings);
    }
    Ok(if passes { exit::DONE } else { exit::FAILED })
}

fn print(findings: &[Finding]) {
    let width = findings.iter().map(|f| f.check.len()).max().unwrap_or(0);
    for f in findings {
        show::line(format_args!(
            "{:4}  {:width$}  {}",
            f.status.word(),
            f.check,
            f.found
        ));
        if !f.fix.is_empty() {
            show::line(format_args!("{:4}  {:width$}  -> {}", "", "", f.fix));
        }
    }
    let count = |status| findings.iter().filter(|f| f.status == status).count();
    show::line(format_args!(
        "\n{} to fix, {} worth a look",
        count(Status::Fail),
        count(Status::Warn)
    ));
}
