//! One array's part of a start that has to do with the process before and the one after: takes over the block device, makes
//! the files that this process leaves, and says in the state file what it serves. Runs once per start.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parity_kernels::Arena;
use raid_core::assemble::AssembledArray;
use raid_core::path::layout::Layout;
use raid_core::path::manager::Manager;
use raid_core::superblock::{Superblock, uuid_text};
use ublk_frontend::existing::{Existing, shape};
use ublk_frontend::{Device, DeviceSpec, Features};

use super::attach::{AttachError, Claim, State, newest};
use super::journal::{Files, Head, Mark};
use super::ublk_error;
use crate::array_api::{ArrayOptions, MemberDevice, StartError};
use crate::engine::journal::Journal;

/// Takes the device over that waits, if it is as large as the array.
pub(super) fn recover(
    old: &Existing,
    spec: &DeviceSpec,
    features: &Features,
) -> Result<Device, StartError> {
    let has = shape(old.id).map_err(ublk_error)?;
    if has != (spec.sectors, spec.logical_block) {
        let what = "its size or block is not the array's";
        return Err(StartError::attach(AttachError::Device { id: old.id, what }));
    }
    Device::recover(old.id, features).map_err(ublk_error)
}

/// resync_offset of what the manager knows to be in sync.
pub(super) fn synced(manager: &Manager, band_rows: u32) -> u64 {
    match manager.progress() {
        (done, all) if done >= all => u64::MAX,
        (done, _) => done * u64::from(band_rows),
    }
}

fn with_slot(members: &[MemberDevice]) -> impl Iterator<Item = &MemberDevice> {
    members.iter().filter(|m| m.slot.is_some())
}

/// What this process leaves. Without a claim nothing.
pub(super) struct Legacy {
    claim: Option<Claim>,
    /// Where arenas and journals go; none where no stripe can be torn, or where there is no room.
    files: Option<Files>,
    /// A queue has none after all.
    short: Arc<AtomicBool>,
    band_rows: u32,
    name: String,
}

/// The part of one queue, for its thread.
pub(super) struct QueueLegacy {
    files: Option<Files>,
    short: Arc<AtomicBool>,
    queue: u16,
    ios: usize,
}

impl Legacy {
    pub fn new(
        options: &ArrayOptions,
        layout: &Layout,
        frames: u32,
        queues: u16,
        name: &str,
    ) -> Legacy {
        let mut legacy = Legacy {
            claim: options.claim.clone(),
            files: None,
            short: Arc::default(),
            band_rows: layout.rows,
            name: name.into(),
        };
        if let Some(claim) = legacy
            .claim
            .as_ref()
            .filter(|_| layout.parity && !options.read_only)
        {
            let bytes = u64::from(frames) * layout.frame_bytes() * u64::from(queues);
            match claim.room(bytes) {
                Ok(()) => legacy.files = Some(claim.new_files()),
                Err(why) => legacy.without(&why),
            }
        }
        legacy
    }

    fn without(&self, why: &str) {
        tracing::warn!(
            array = %self.name,
            "no write journal: {why}; should raidd be killed, the next one resyncs the whole array, and does not start it while \
             members are missing"
        );
    }

    /// What the thread of a queue needs.
    pub fn queue(&self, queue: u16, ios: usize) -> QueueLegacy {
        QueueLegacy {
            files: self.files.clone(),
            short: self.short.clone(),
            queue,
            ios,
        }
    }

    /// When all queues have their files: makes the head, and the state known.
    pub fn publish(
        &mut self,
        spec: &DeviceSpec,
        device: &Device,
        verdict: &AssembledArray,
        manager: &Manager,
        members: &[MemberDevice],
        read_only: bool,
    ) -> Result<Option<Head>, AttachError> {
        let Some(claim) = &self.claim else {
            return Ok(None);
        };
        if self.files.is_some() && self.short.load(Ordering::Acquire) {
            self.files = None;
            claim.new_files().remove();
            self.without("there is no room for it");
        }
        let blocks: Vec<&Superblock> = with_slot(members).map(|m| &m.superblock).collect();
        let mark = Mark {
            events: verdict.events,
            utime: newest(&blocks).map_or(0, |m| m.utime),
        };
        let head = match &self.files {
            Some(files) => files.head(mark, synced(manager, self.band_rows)),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        if let (Some(_), Err(error)) = (&self.files, &head) {
            self.without(&error.to_string());
        }
        let first = blocks.first();
        claim.publish(State {
            version: 0,
            boot_id: String::new(),
            uuid: String::new(),
            name: self.name.clone(),
            generation: 0,
            pids: Vec::new(),
            device: device.id(),
            cookie: device.cookie(),
            queues: device.queues(),
            depth: device.depth(),
            max_request_bytes: device.max_request_bytes(),
            sectors: spec.sectors,
            logical_block: spec.logical_block,
            level: first.map_or(0, |b| b.level),
            layout: first.map_or(0, |b| b.layout),
            chunk_sectors: first.map_or(0, |b| b.chunk_sectors),
            raid_disks: first.map_or(0, |b| b.raid_disks),
            member_sectors: first.map_or(0, |b| b.size),
            members: with_slot(members)
                .map(|m| uuid_text(&m.superblock.device_uuid))
                .collect(),
            read_only,
            journal: head.is_ok(),
        })?;
        Ok(head.ok())
    }

    /// The start failed, and there is no device that waits.
    pub fn retire(&self) {
        if let Some(claim) = &self.claim {
            claim.retire();
        }
    }
}

impl QueueLegacy {
    /// Arena and journal, or an arena of this process alone.
    pub fn make(&self, frames: usize, frame: usize) -> io::Result<(Arena, Option<Journal>)> {
        if let Some(files) = &self.files {
            match files.queue(self.queue, frames, frame, self.ios) {
                Ok((arena, journal)) => return Ok((arena, Some(journal))),
                Err(error) => {
                    tracing::warn!(queue = self.queue, %error, "no memory for a write journal");
                    self.short.store(true, Ordering::Release);
                }
            }
        }
        Ok((Arena::new(frames, frame)?, None))
    }
}
