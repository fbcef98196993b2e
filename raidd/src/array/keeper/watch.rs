//! Looks whether the devices are still there: one that has left the system is failed although nobody has met an error on it.
//! A look at sysfs for each device, once a second.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::sys::stat;
use raid_core::path::manager::ManagerEvent;
use raid_core::path::types::{MemberError, Msg};

use super::Keeper;
use super::seats::State;
use crate::array_api::MemberDevice;

impl Keeper {
    pub(super) fn look(&mut self) {
        for seat in &mut self.seats.list {
            seat.gone = seat.gone || is_gone(&seat.device);
        }
        let gone = self.seats.list.iter().filter(|seat| seat.gone);
        let gone: Vec<(u32, State)> = gone.map(|seat| (seat.number(), seat.state)).collect();
        for (number, state) in gone {
            match state {
                State::Member { slot, .. } => {
                    let error = MemberError::Gone;
                    self.event(ManagerEvent::Msg(Msg::MemberFailed { slot, error }));
                }
                State::Spare => {
                    tracing::error!(array = %self.name, number, "a spare has left the system");
                    self.seats.fail_spare(number);
                }
                // One that joins is failed when it has joined.
                State::Joining { .. } | State::Faulty { .. } => {}
            }
        }
    }
}

/// Whether a device has left the system. What is no block device cannot leave.
pub fn is_gone(device: &MemberDevice) -> bool {
    let Ok(meta) = device.file.metadata() else {
        return true;
    };
    if !meta.file_type().is_block_device() {
        return false;
    }
    let (major, minor) = (stat::major(meta.rdev()), stat::minor(meta.rdev()));
    Path::new("/sys").join("dev/block").is_dir()
        && !Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists()
}
