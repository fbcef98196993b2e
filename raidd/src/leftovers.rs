//! Devices that a daemon that died has left behind. The kernel keeps such a device, and its removal waiting, for as
//! long as a file system is mounted on it; so they are removed in a thread of their own while everything else is
//! served, and whoever keeps one is named in the log. Runs once at start-up; costs two threads until they are gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::array_api::ArrayStarter;
use crate::device::node::{DevNo, number_of};
use crate::device::usage::mount_points;

/// How often the log is given a chance to name who keeps a device.
const LOOK: Duration = Duration::from_secs(1);
/// How long a start waits for the number its array had, if only the removal has not got to it yet.
const PATIENCE: Duration = Duration::from_secs(2);

/// The device numbers that are not free yet.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// ublk number, and the block device's number if it has one.
    pending: Mutex<BTreeMap<u32, Option<DevNo>>>,
    gone: Condvar,
}

/// ublk numbers of this machine whose server is dead; none where there is no ublk.
pub fn dead_devices() -> Vec<u32> {
    let devices = ublk_frontend::existing::existing().unwrap_or_default();
    devices
        .into_iter()
        .filter(|d| !d.alive && !d.recoverable())
        .map(|d| d.id)
        .collect()
}

fn node(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

impl Leftovers {
    /// Begins to remove them and returns at once. `dead`: see [`dead_devices`].
    ///
    /// # Errors
    /// No thread can be started; nothing is removed then.
    pub fn remove(
        self: &Arc<Leftovers>,
        dead: Vec<u32>,
        starter: Arc<dyn ArrayStarter>,
    ) -> std::io::Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        // The node goes first and the number last, so what it was is remembered now.
        let pending = dead.into_iter().map(|id| (id, number_of(&node(id))));
        *self.lock() = pending.collect();
        let (removing, watching) = (self.clone(), self.clone());
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let removal = spawn("leftovers").spawn(move || {
            for sentence in starter.remove_leftovers() {
                info!("{sentence}");
            }
            removing.lock().clear();
            removing.gone.notify_all();
        });
        if let Err(e) = removal {
            self.lock().clear();
            return Err(e);
        }
        spawn("leftover-watch").spawn(move || watching.watch())?;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Option<DevNo>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says who keeps them, once for each set of mounts, until they are gone.
    fn watch(&self) {
        let mut said = Vec::new();
        loop {
            let (pending, _) = self
                .gone
                .wait_timeout_while(self.lock(), LOOK, |p| !p.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            if pending.is_empty() {
                return;
            }
            let devices = pending.clone();
            drop(pending);
            let kept: Vec<String> = devices
                .into_iter()
                .filter_map(|(id, dev)| kept(&node(id), &mount_points(dev, &node(id))))
                .collect();
            if kept != said {
                kept.iter().for_each(|sentence| warn!("{sentence}"));
            }
            said = kept;
        }
    }

    /// Whether a number is still that of a dead device, after waiting a moment for it to become free.
    pub fn keeps(&self, id: u32) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut pending = self.lock();
        while pending.contains_key(&id) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            (pending, _) = self
                .gone
                .wait_timeout(pending, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        false
    }
}

/// The log line about one device; none if nothing is mounted from it.
fn kept(device: &Path, points: &[PathBuf]) -> Option<String> {
    let device = device.display();
    let points: Vec<String> = points.iter().map(|p| p.display().to_string()).collect();
    (!points.is_empty()).then(|| {
        let points = points.join(" ");
        format!(
            "{device}, whose server died, is still mounted on {points}; its array gets another device \
             number until 'umount {points}' lets it go"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_keeps_a_dead_device_is_named_with_the_remedy() {
        let text = kept(Path::new("/dev/ublkb3"), &["/data".into(), "/srv".into()]).unwrap();
        assert!(text.starts_with("/dev/ublkb3"), "{text}");
        assert!(text.contains("mounted on /data /srv"), "{text}");
        assert!(text.contains("umount /data /srv"), "{text}");
        assert_eq!(kept(Path::new("/dev/ublkb3"), &[]), None);
    }
}
