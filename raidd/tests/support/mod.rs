//! A data path that moves no data: it holds the members, answers what an array would answer, and fails on demand.
//! With it the whole control plane runs without ublk, in tests and in the example `raidd-sim`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use raid_core::assemble::AssembledArray;
use raidd::array_api::{
    ArrayOptions, ArrayStarter, ArrayStatus, Health, MemberDevice, MemberState, MemberStatus,
    RunningArray, StartError, StopError, SweepKind, SweepStatus,
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
    status: ArrayStatus,
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
            parity_engine: "simulated".into(),
            parity: Vec::new(),
            gpu: Default::default(),
            ublk_features: self.probe()?,
            counters: BTreeMap::from([("reads".into(), 0)]),
        };
        Ok(Arc::new(SimArray {
            status,
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
        let mut status = self.status.clone();
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
}
