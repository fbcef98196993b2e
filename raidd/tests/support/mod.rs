//! A data path that moves no data: it holds the members, answers what an array would answer, and fails on demand.
//! With it the whole control plane runs without ublk, in tests and in the example `raidd-sim`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use raid_core::assemble::AssembledArray;
use raid_core::create::NewMember;
use raid_core::spare::{free_number, plan_spare};
use raidd::array_api::{
    ArrayOptions, ArrayStarter, ArrayStatus, Change, ChangeError, Changed, Health, MemberDevice,
    MemberState, MemberStatus, RunningArray, ScrubReport, StartError, StopError, SweepKind,
    SweepLimits, SweepStatus,
};

/// Starts simulated arrays.
#[derive(Default)]
pub struct SimStarter {
    /// Every probe and start fails while set.
    pub no_ublk: AtomicBool,
    /// The next start fails.
    pub fail_start: AtomicBool,
    /// Stops are refused while set.
    pub busy: Arc<AtomicBool>,
    /// Arrays have lost too many members while set.
    pub failed: Arc<AtomicBool>,
    /// Leftovers are mounted while set: their removal does not return.
    pub leftovers_used: AtomicBool,
    next: AtomicU32,
}

struct SimArray {
    status: Mutex<ArrayStatus>,
    busy: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
    members: Mutex<Vec<MemberDevice>>,
}

impl ArrayStarter for SimStarter {
    fn start(
        &self,
        verdict: AssembledArray,
        members: Vec<MemberDevice>,
        options: ArrayOptions,
    ) -> Result<Arc<dyn RunningArray>, StartError> {
        self.probe()?;
        if self.fail_start.swap(false, Ordering::SeqCst) {
            return Err(StartError::Unsupported(
                "the simulation was told to fail".into(),
            ));
        }
        let geometry = &verdict.geometry;
        let slots = verdict.members.len() as u16;
        let member = |slot| members.iter().find(|m| m.slot == Some(slot));
        let status = ArrayStatus {
            name: verdict.name.rsplit(':').next().unwrap_or_default().into(),
            uuid: verdict.uuid,
            level: verdict.level.md() as u8,
            layout: geometry.layout(),
            chunk_bytes: u64::from(geometry.chunk_sectors()) * 512,
            size_bytes: geometry.array_sectors() * 512,
            member_bytes: 0,
            logical_block: members.iter().map(|m| m.logical_block).max().unwrap_or(512),
            events: verdict.events,
            device: PathBuf::from(format!(
                "/dev/ublkb{}",
                options
                    .device_id
                    .unwrap_or_else(|| self.next.fetch_add(1, Ordering::SeqCst))
            )),
            health: if verdict.degraded > 0 {
                Health::Degraded
            } else {
                Health::Optimal
            },
            clean: verdict.clean,
            read_only: options.read_only,
            members: (0..slots)
                .map(|slot| MemberStatus {
                    slot: Some(slot),
                    path: member(slot).map(|m| m.path.clone()),
                    number: member(slot).map(|m| m.superblock.dev_number),
                    device_uuid: member(slot).map(|m| m.superblock.device_uuid),
                    gone: false,
                    state: if member(slot).is_some() {
                        MemberState::InSync
                    } else {
                        MemberState::Missing
                    },
                    errors: 0,
                })
                .collect(),
            sweep: (!verdict.clean).then_some(SweepStatus {
                kind: SweepKind::Resync,
                done_bytes: 1 << 20,
                total_bytes: 4 << 20,
                rate_bytes_per_s: 1 << 20,
            }),
            bitmap: None,
            limits: SweepLimits::default(),
            scrubs: Vec::new(),
            parity_engine: "simulated".into(),
            parity: Vec::new(),
            gpu: Default::default(),
            ublk_features: self.probe()?,
            counters: BTreeMap::from([("reads".into(), 0)]),
        };
        Ok(Arc::new(SimArray {
            status: Mutex::new(status),
            busy: self.busy.clone(),
            failed: self.failed.clone(),
            members: Mutex::new(members),
        }))
    }

    fn probe(&self) -> Result<Vec<String>, StartError> {
        if self.no_ublk.load(Ordering::SeqCst) {
            return Err(StartError::NoUblk {
                reason: "/dev/ublk-control does not exist".into(),
                remedy: "load the module with 'modprobe ublk_drv'".into(),
            });
        }
        Ok(vec!["USER_COPY".into()])
    }

    fn remove_leftovers(&self) -> Vec<String> {
        while self.leftovers_used.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        vec!["removed".into()]
    }
}

impl RunningArray for SimArray {
    fn status(&self) -> ArrayStatus {
        let mut status = self.status.lock().unwrap().clone();
        if self.failed.load(Ordering::SeqCst) {
            status.health = Health::Failed;
        }
        status
    }

    fn stop(&self) -> Result<(), StopError> {
        if self.busy.load(Ordering::SeqCst) {
            return Err(StopError::Busy);
        }
        self.members.lock().unwrap().clear();
        Ok(())
    }

    /// As an array would that nothing is missing in; spares stay spares.
    fn change(&self, change: Change) -> Result<Changed, ChangeError> {
        let mut devices = self.members.lock().unwrap();
        let mut status = self.status.lock().unwrap();
        let with = |number| move |m: &MemberStatus| m.number == Some(number);
        match change {
            Change::Plan {
                sectors,
                device_uuid,
            } => {
                let pattern = &devices[0].superblock;
                let taken: Vec<u32> = devices.iter().map(|d| d.superblock.dev_number).collect();
                let number = free_number(pattern.raid_disks, &taken).unwrap();
                let device = NewMember {
                    device_uuid,
                    sectors,
                };
                match plan_spare(pattern, &device, number, 1) {
                    Ok(block) => return Ok(Changed::Planned(Box::new(block))),
                    Err(error) => return Err(ChangeError::new(error.to_string(), "")),
                }
            }
            Change::Add(device) => {
                status.members.push(MemberStatus {
                    slot: None,
                    path: Some(device.path.clone()),
                    number: Some(device.superblock.dev_number),
                    device_uuid: Some(device.superblock.device_uuid),
                    gone: false,
                    state: MemberState::Spare,
                    errors: 0,
                });
                devices.push(*device);
            }
            Change::Fail {
                numbers,
                force,
                dry_run,
            } => {
                if numbers.len() > 2 && !force {
                    return Err(ChangeError::new("the array would fail", "--force"));
                }
                for number in numbers.iter().filter(|_| !dry_run) {
                    let member = status.members.iter_mut().find(|m| with(*number)(m));
                    member.unwrap().state = MemberState::Faulty;
                }
            }
            Change::Scrub { repair } => status.scrubs.push(ScrubReport {
                kind: repair.map_or(SweepKind::Check, |_| SweepKind::Repair),
                policy: repair,
                began: 1_800_000_000,
                ended: None,
                complete: false,
                checked_bytes: 0,
                mismatch_sectors: 0,
                repaired_sectors: 0,
                unreadable: 0,
                findings: Vec::new(),
            }),
            Change::ScrubStop => {
                if let Some(report) = status.scrubs.last_mut() {
                    report.ended = Some(1_800_000_100);
                }
            }
            Change::Limits(limits) => {
                status.limits.floor = limits.floor.unwrap_or(status.limits.floor);
                status.limits.ceiling = limits.ceiling.unwrap_or(status.limits.ceiling);
                status.limits.paused = limits.paused.unwrap_or(status.limits.paused);
            }
            Change::Remove { number, dry_run } => {
                let at = status.members.iter().position(with(number)).unwrap();
                if status.members[at].state == MemberState::InSync {
                    return Err(ChangeError::new("it is a member in use", "fail it first"));
                }
                if !dry_run {
                    let empty = MemberStatus {
                        path: None,
                        number: None,
                        device_uuid: None,
                        state: MemberState::Missing,
                        ..status.members[at].clone()
                    };
                    match empty.slot {
                        Some(_) => status.members[at] = empty,
                        None => drop(status.members.remove(at)),
                    }
                    devices.retain(|d| d.superblock.dev_number != number);
                }
            }
        }
        Ok(Changed::Done)
    }
}
