//! The arrays that run in this daemon: found by name, uuid or device path, listed, stopped.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use raid_core::geometry::{Level, layout_name};
use raid_core::superblock::{parse_uuid, uuid_text};

use super::protocol::{ArrayView, DetailView, Outcome, Problem, Refusal, RefusalKind, StopReply};
use crate::array_api::{Health, RunningArray, StopError};
use crate::device::node::{DevNo, number_of};
use crate::device::usage::{Use, explain_busy_path};

/// One running array and what never changes about it.
#[derive(Clone)]
pub struct Running {
    /// Without the host part.
    pub name: String,
    /// Raw superblock bytes.
    pub uuid: [u8; 16],
    /// The data path's handle.
    pub array: Arc<dyn RunningArray>,
}

/// All of them. The lock is held only to look, never while an array does something.
#[derive(Default)]
pub struct Arrays(Mutex<Vec<Running>>);

impl Arrays {
    fn all(&self) -> Vec<Running> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes a started array in.
    pub fn add(&self, running: Running) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(running);
        all.sort_by(|a, b| a.name.cmp(&b.name));
    }

    fn forget(&self, uuid: &[u8; 16]) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|r| r.uuid != *uuid);
    }

    /// The array of this uuid, if it runs.
    pub fn by_uuid(&self, uuid: &[u8; 16]) -> Option<Running> {
        self.all().into_iter().find(|r| r.uuid == *uuid)
    }

    /// The array of this name, if it runs.
    pub fn by_name(&self, name: &str) -> Option<Running> {
        self.all().into_iter().find(|r| r.name == name)
    }

    /// Name of the array that has this device as a member.
    pub fn member_of(&self, dev: DevNo) -> Option<String> {
        let has = |r: &Running| {
            let members = r.array.status().members;
            members
                .into_iter()
                .filter(|m| !m.gone)
                .filter_map(|m| m.path)
                .any(|path| number_of(&path) == Some(dev))
        };
        self.all().into_iter().find(has).map(|r| r.name)
    }

    /// Whether none runs.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// The lowest free `rN`.
    pub fn free_name(&self) -> String {
        let taken: Vec<String> = self.all().into_iter().map(|r| r.name).collect();
        (0..=taken.len())
            .map(|n| format!("r{n}"))
            .find(|n| !taken.contains(n))
            .unwrap_or_else(|| "r".into())
    }

    /// The array an operator means: its name, its uuid or its device, the latter also through links.
    pub fn find(&self, wanted: &str) -> Result<Running, Refusal> {
        let all = self.all();
        let uuid = parse_uuid(wanted);
        let real = std::fs::canonicalize(wanted).ok();
        let found = all.iter().find(|r| {
            if r.name == wanted || uuid == Some(r.uuid) {
                return true;
            }
            let device = r.array.status().device;
            device == Path::new(wanted) || real.as_deref() == Some(device.as_path())
        });
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|r| r.name.as_str()).collect();
            let running = if names.is_empty() {
                "none are running".into()
            } else {
                format!("running: {}", names.join(", "))
            };
            Refusal::new(
                RefusalKind::NotFound,
                format!("there is no array '{wanted}' here ({running})"),
            )
        })
    }

    /// For `list`.
    pub fn views(&self) -> Vec<ArrayView> {
        self.all()
            .iter()
            .map(|r| ArrayView::from(&r.array.status()))
            .collect()
    }

    /// For `detail`.
    pub fn detail(&self, wanted: &str) -> Result<DetailView, Refusal> {
        let status = self.find(wanted)?.array.status();
        let layout = Level::from_md(i32::from(status.level))
            .and_then(|level| layout_name(level, status.layout))
            .map_or_else(|| status.layout.to_string(), str::to_string);
        Ok(DetailView::new(&status, layout))
    }

    /// Stops one array, or says who uses it.
    pub fn stop(&self, running: &Running) -> Result<StopReply, Refusal> {
        let failed = running.array.status().health == Health::Failed;
        match running.array.stop() {
            Ok(()) => {
                let lost = failed.then(|| {
                    let message = "it had failed: more members were lost than its level tolerates, and what was \
                                   written to it since then is lost";
                    Problem::new(&running.name, message, "check the file system on it")
                });
                self.forget(&running.uuid);
                tracing::info!(array = running.name, "stopped");
                Ok(StopReply {
                    name: running.name.clone(),
                    uuid: uuid_text(&running.uuid),
                    outcome: Outcome::Changed,
                    released: false,
                    problems: lost.into_iter().collect(),
                })
            }
            Err(StopError::Busy) => Err(self.busy(running)),
            Err(error @ StopError::Failed { .. }) => Err(Refusal::new(
                RefusalKind::Failed,
                format!("{} was not stopped and goes on: {error}", running.name),
            )),
        }
    }

    /// The refusal for an array in use.
    pub fn busy(&self, running: &Running) -> Refusal {
        let device = running.array.status().device;
        let uses = explain_busy_path(&device);
        let problems = uses.iter().map(|u| problem(&device, u)).collect();
        let what: Vec<&str> = uses.iter().map(|u| u.what.as_str()).collect();
        let (name, device) = (&running.name, device.display());
        let message = if what.is_empty() {
            format!("{name} ({device}) is open in some program; close it, then stop again")
        } else {
            format!(
                "{name} ({device}) is {}; {}, then stop again",
                what.join(", "),
                uses[0].remedy
            )
        };
        Refusal {
            kind: RefusalKind::Busy,
            message,
            problems,
        }
    }

    /// Lets every array finish what is in flight and take nothing more, for the next process to go on with.
    pub fn hand_over(&self) {
        std::thread::scope(|scope| {
            for running in self.all() {
                scope.spawn(move || running.array.hand_over());
            }
        });
    }

    /// Stops everything that is not in use and returns the refusals of the rest, for the end of the daemon.
    pub fn stop_all(&self) -> Vec<Refusal> {
        self.all()
            .iter()
            .filter_map(|r| self.stop(r).err())
            .collect()
    }
}

fn problem(device: &Path, used: &Use) -> Problem {
    Problem::new(
        device.display().to_string(),
        format!("is {}", used.what),
        used.remedy.clone(),
    )
}
