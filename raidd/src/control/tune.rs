//! `scrub` and `set`: what may be asked of a running array besides its members.

use super::commands::Control;
use super::members::refusal;
use super::protocol::{DetailView, Refusal, RefusalKind, ScrubAction, ScrubRequest, SetRequest};
use crate::array_api::{Change, LimitsChange, ScrubPolicy};
use crate::units::parse_size;

/// Keys of `set`, each with what it takes.
const KEYS: &str = "resync.floor=SIZE, resync.ceiling=SIZE|none, resync.paused=yes|no";

impl Control {
    pub(super) fn scrub(&self, request: &ScrubRequest) -> Result<DetailView, Refusal> {
        let running = self.arrays.find(&request.array)?;
        let policy = request.policy.unwrap_or(ScrubPolicy::Locate);
        let change = match request.action {
            ScrubAction::Start => Change::Scrub {
                repair: request.repair.then_some(policy),
            },
            ScrubAction::Stop => Change::ScrubStop,
        };
        running
            .array
            .change(change)
            .map_err(|e| refusal("no scrub", &running.name, &e))?;
        self.arrays.detail(&request.array)
    }

    pub(super) fn set(&self, request: &SetRequest) -> Result<DetailView, Refusal> {
        let running = self.arrays.find(&request.array)?;
        let limits = limits(&request.settings)
            .map_err(|message| Refusal::new(RefusalKind::BadRequest, message))?;
        running
            .array
            .change(Change::Limits(limits))
            .map_err(|e| refusal("nothing was changed", &running.name, &e))?;
        self.arrays.detail(&request.array)
    }
}

/// All settings, or what is wrong with the first bad one.
fn limits(settings: &[String]) -> Result<LimitsChange, String> {
    let mut change = LimitsChange::default();
    for setting in settings {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| format!("'{setting}' is no KEY=VALUE; there are {KEYS}"))?;
        let size = || {
            let size = parse_size(value, 1).map_err(|e| format!("{key}: {e}"))?.0;
            match size {
                0 => Err(format!(
                    "{key}: 0 would stop every walk; use resync.paused=yes"
                )),
                size => Ok(size),
            }
        };
        match key {
            "resync.floor" => change.floor = Some(size()?),
            "resync.ceiling" if value == "none" => change.ceiling = Some(None),
            "resync.ceiling" => change.ceiling = Some(Some(size()?)),
            "resync.paused" => {
                change.paused = Some(match value {
                    "yes" | "true" | "on" => true,
                    "no" | "false" | "off" => false,
                    _ => return Err(format!("{key}: '{value}' is neither yes nor no")),
                });
            }
            _ => return Err(format!("there is no '{key}' to be set; there are {KEYS}")),
        }
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_or_told_what_is_wrong() {
        let read =
            |words: &[&str]| limits(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>());
        let all = read(&[
            "resync.floor=5M",
            "resync.ceiling=none",
            "resync.paused=yes",
        ]);
        let want = LimitsChange {
            floor: Some(5 << 20),
            ceiling: Some(None),
            paused: Some(true),
        };
        assert_eq!(all, Ok(want));
        assert_eq!(
            read(&["resync.ceiling=1G"]).unwrap().ceiling,
            Some(Some(1 << 30))
        );
        for (word, says) in [
            ("resync.floor", "KEY=VALUE"),
            ("resync.flor=1", "resync.floor=SIZE"),
            ("resync.floor=fast", "not a size"),
            ("resync.floor=0", "paused"),
            ("resync.paused=maybe", "neither"),
        ] {
            let error = read(&[word]).unwrap_err();
            assert!(error.contains(says), "{word}: {error}");
        }
    }
}
