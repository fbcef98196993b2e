//! Scrubs and limits of background walks as an operator sees them: orders to the manager, and what it tells in an operator's
//! terms (device, sector, array sector).

use std::time::SystemTime;

use raid_core::geometry::Role;
use raid_core::path::manager::{ManagerEvent, Note, Refused, Scrub};
use raid_core::path::types::{Policy, SweepKind as Sweep};

use super::Keeper;
use crate::array_api::{
    ChangeError, Changed, Finding, LimitsChange, ScrubPolicy, ScrubReport, SweepKind,
};

/// So many scrubs are remembered.
const HISTORY: usize = 8;

fn now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// A sentence for an operator, and what to do.
fn reason(why: Refused) -> (&'static str, &'static str) {
    match why {
        Refused::NoParity => ("raid0 has no parity to compare with", ""),
        Refused::Failed => ("the array has failed", "stop it and assemble it again"),
        Refused::ReadOnly => ("the array was started read only", ""),
        Refused::Stopping => ("the array is being stopped", ""),
        Refused::Busy => ("a scrub runs already", "see 'raidctl scrub status'"),
        Refused::NoRedundancy => (
            "as many members are lost as the level tolerates: there is nothing to compare with",
            "replace the lost members first",
        ),
        // About members, or not there yet.
        _ => ("the array does not take it", ""),
    }
}

impl Keeper {
    pub(super) fn scrub(&mut self, repair: Option<ScrubPolicy>) -> Result<Changed, ChangeError> {
        if repair == Some(ScrubPolicy::Locate) && self.parities() < 2 {
            return Err(ChangeError::new(
                "one parity does not tell which member is wrong",
                "check first; --policy parity makes parity anew of the data, right or wrong",
            ));
        }
        let kind = match repair {
            None => Scrub::Check,
            Some(ScrubPolicy::Locate) => Scrub::Repair {
                policy: Policy::Locate,
            },
            Some(ScrubPolicy::Parity) => Scrub::Repair {
                policy: Policy::Parity,
            },
        };
        self.refused = None;
        let (first, end) = (0, u64::MAX);
        // Before the event, whose notes may belong to it already.
        self.scrubs.push(ScrubReport {
            kind: match repair {
                None => SweepKind::Check,
                Some(_) => SweepKind::Repair,
            },
            policy: repair,
            began: now(),
            ended: None,
            complete: false,
            checked_bytes: 0,
            mismatch_sectors: 0,
            repaired_sectors: 0,
            unreadable: 0,
            findings: Vec::new(),
        });
        self.event(ManagerEvent::Scrub { kind, first, end });
        self.carry_out();
        if let Some(why) = self.refused.take() {
            self.scrubs.pop();
            let (message, remedy) = reason(why);
            return Err(ChangeError::new(message, remedy));
        }
        if self.scrubs.len() > HISTORY {
            self.scrubs.remove(0);
        }
        tracing::info!(array = %self.name, ?kind, "scrub");
        Ok(Changed::Done)
    }

    pub(super) fn limit(&mut self, change: LimitsChange) -> Result<Changed, ChangeError> {
        let mut limits = self.limits;
        limits.floor = change.floor.unwrap_or(limits.floor);
        limits.ceiling = change.ceiling.unwrap_or(limits.ceiling);
        limits.paused = change.paused.unwrap_or(limits.paused);
        if limits.ceiling.is_some_and(|ceiling| ceiling < limits.floor) {
            return Err(ChangeError::new(
                "the ceiling would be below the floor",
                "change both in one command",
            ));
        }
        self.limits = limits;
        let (floor, ceiling) = (limits.floor, limits.ceiling);
        self.event(ManagerEvent::Rates { floor, ceiling });
        if change.paused.is_some() {
            self.event(ManagerEvent::Pause(limits.paused));
        }
        tracing::info!(array = %self.name, ?limits, "limits of background walks");
        Ok(Changed::Done)
    }

    /// What the running scrub has seen so far.
    pub(super) fn scrub_progress(&mut self) {
        let rows = u64::from(self.layout.rows) * 512;
        let Some(sweep) = self.manager.sweep() else {
            return;
        };
        if !matches!(sweep.kind, Sweep::Check | Sweep::Repair { .. }) {
            return;
        }
        if let Some(report) = self.scrubs.last_mut().filter(|r| r.ended.is_none()) {
            report.checked_bytes = sweep.done * rows;
            report.mismatch_sectors = sweep.mismatches;
            report.repaired_sectors = sweep.repaired;
            report.unreadable = sweep.unreadable;
        }
    }

    /// Notes about scrubs.
    pub(super) fn scrub_note(&mut self, note: Note) {
        match note {
            Note::Mismatch {
                band,
                located,
                rows,
                repaired,
            } => {
                let finding = self.finding(band, located, rows, repaired);
                tracing::warn!(
                    array = %self.name, slot = ?finding.slot, member = ?finding.path, holds = ?finding.holds,
                    member_sector = finding.member_sector, sectors = finding.sectors,
                    array_sector = ?finding.array_sector, repaired, "parity and data differ"
                );
                if let Some(report) = self.scrubs.last_mut() {
                    report.findings.push(finding);
                }
            }
            Note::ScrubFinished {
                complete,
                checked,
                mismatches,
                repaired,
                unreadable,
                ..
            } => {
                let bytes = checked * u64::from(self.layout.rows) * 512;
                tracing::info!(array = %self.name, complete, checked_bytes = bytes, mismatches, repaired, unreadable, "scrub has ended");
                if let Some(report) = self.scrubs.last_mut() {
                    report.ended = Some(now());
                    report.complete = complete;
                    report.checked_bytes = bytes;
                    report.mismatch_sectors = mismatches;
                    report.repaired_sectors = repaired;
                    report.unreadable = unreadable;
                }
            }
            other => tracing::info!(array = %self.name, note = ?other, "manager"),
        }
    }

    fn finding(
        &self,
        band: u64,
        located: Option<u16>,
        rows: (u32, u32),
        repaired: bool,
    ) -> Finding {
        let geometry = &self.layout.geometry;
        let stripe = self.layout.stripe(band);
        let member_sector = self.layout.member_sector(band) + u64::from(rows.0);
        let role = located.map(|slot| geometry.role(stripe, slot));
        let data_slot = match (role, located) {
            (Some(Role::Data(_)), Some(slot)) => slot,
            _ => geometry.data_slot(stripe, 0),
        };
        let device = located.and_then(|slot| self.seats.by_slot(slot));
        Finding {
            slot: located,
            path: device.map(|seat| seat.device.path.clone()),
            holds: role.map(|role| match role {
                Role::Data(_) => "data".to_string(),
                Role::P => "P".to_string(),
                Role::Q => "Q".to_string(),
            }),
            member_sector,
            device_sector: device.map(|seat| seat.device.superblock.data_offset + member_sector),
            sectors: rows.1 - rows.0,
            array_sector: geometry.inverse(data_slot, member_sector),
            repaired,
        }
    }
}
