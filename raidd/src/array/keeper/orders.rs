//! What operators ask of a running array, judged at the one place that knows its state, and carried out.

use std::time::{Duration, Instant, SystemTime};

use raid_core::create::NewMember;
use raid_core::path::manager::ManagerEvent;
use raid_core::path::types::{MemberError, Msg};
use raid_core::spare::{SpareError, plan_spare};

use super::seats::State;
use super::{Answer, Keeper, Order};
use crate::array_api::{Change, ChangeError, Changed, MemberDevice};

/// How long a device that is removed may take to end what it has in hand.
const PATIENCE: Duration = Duration::from_secs(10);

/// A device on its way out.
#[derive(Debug)]
pub struct Parting {
    number: u32,
    /// Who waits for it; nobody any more after [`PATIENCE`].
    answer: Option<Answer>,
    since: Instant,
    /// Nothing is left but its writer's end.
    pub closing: bool,
}

fn refuse(message: impl Into<String>, remedy: impl Into<String>) -> Result<Changed, ChangeError> {
    Err(ChangeError::new(message, remedy))
}

impl Keeper {
    pub(super) fn obey(&mut self, order: Order) {
        match order {
            Order::Stop(answer) => {
                self.waiting = Some(answer);
                self.event(ManagerEvent::Stop);
            }
            Order::Change { change, answer } => {
                let result = match change {
                    Change::Plan {
                        sectors,
                        device_uuid,
                    } => self.plan(sectors, device_uuid),
                    Change::Add(device) => self.add(*device),
                    Change::Fail {
                        numbers,
                        force,
                        dry_run,
                    } => self.fail(&numbers, force, dry_run),
                    Change::Scrub { repair } => self.scrub(repair),
                    Change::ScrubStop => {
                        self.event(ManagerEvent::ScrubStop);
                        Ok(Changed::Done)
                    }
                    Change::Limits(limits) => self.limit(limits),
                    Change::Remove { number, dry_run } => match self.may_remove(number) {
                        Ok(_) if !dry_run => return self.remove(number, answer),
                        other => other,
                    },
                };
                self.answers.push((answer, result));
            }
        }
    }

    /// Whether devices may come and go at all.
    fn serves_changes(&self) -> Result<(), ChangeError> {
        let view = self.manager.view();
        let why = if view.read_only {
            (
                "the array was started read only",
                "stop it and assemble it without --readonly",
            )
        } else if self.waiting.is_some() {
            ("the array is being stopped", "")
        } else if view.failed {
            (
                "the array has failed: more members are lost than its level tolerates",
                "stop it and assemble it again from the members that are left",
            )
        } else if self.parities() == 0 {
            (
                "raid0 has no redundancy: its members cannot be exchanged",
                "",
            )
        } else {
            return Ok(());
        };
        Err(ChangeError::new(why.0, why.1))
    }

    fn plan(&self, sectors: u64, device_uuid: [u8; 16]) -> Result<Changed, ChangeError> {
        self.serves_changes()?;
        let pattern = self.seats.pattern();
        let pattern = pattern.ok_or_else(|| ChangeError::new("no member is in sync", ""))?;
        let device = NewMember {
            device_uuid,
            sectors,
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let number = self.seats.free_number();
        let planned = number
            .ok_or(SpareError::TooMany)
            .and_then(|number| plan_spare(pattern, &device, number, now));
        match planned {
            Ok(block) => Ok(Changed::Planned(Box::new(block))),
            Err(error) => refuse(error.to_string(), ""),
        }
    }

    fn add(&mut self, device: MemberDevice) -> Result<Changed, ChangeError> {
        self.serves_changes()?;
        let number = device.superblock.dev_number;
        if self.seats.free_number() != Some(number) {
            return refuse("another device has been added meanwhile", "try again");
        }
        let path = device.path.clone();
        let spare = MemberDevice {
            slot: None,
            ..device
        };
        if let Err(error) = self.seats.take(spare, State::Spare) {
            return refuse(format!("no thread for the device: {error}"), "");
        }
        tracing::info!(array = %self.name, member = %path.display(), number, "added as a spare");
        Ok(Changed::Done)
    }

    fn fail(
        &mut self,
        numbers: &[u32],
        force: bool,
        dry_run: bool,
    ) -> Result<Changed, ChangeError> {
        self.serves_changes()?;
        let mut slots = Vec::new();
        let mut spares = Vec::new();
        for number in numbers {
            match self.seats.by_number(*number).map(|seat| seat.state) {
                None => return refuse(format!("no device has number {number}"), ""),
                Some(State::Member { slot, filling }) => slots.push((slot, filling)),
                Some(State::Spare) => spares.push(*number),
                Some(State::Joining { .. }) => {
                    return refuse("it is just becoming a member", "try again");
                }
                // It is so already.
                Some(State::Faulty { .. }) => {}
            }
        }
        let view = self.manager.view();
        let mut lost = view.missing.union(&view.filling);
        let before = lost.len();
        for (slot, _) in slots.iter().filter(|(_, filling)| !filling) {
            lost.insert(*slot);
        }
        let most = usize::from(self.parities());
        if lost.len() > most && lost.len() > before && !force {
            let names: Vec<String> = lost.iter().map(|slot| self.name_of(slot)).collect();
            return refuse(
                format!(
                    "the array would fail: it would be without {} and can do without {most}: {}",
                    lost.len(),
                    names.join(", ")
                ),
                "let the rebuild of the others finish first; --force does it all the same, and every read and write then fails",
            );
        }
        if dry_run {
            return Ok(Changed::Done);
        }
        for number in spares {
            self.seats.fail_spare(number);
        }
        for (slot, _) in slots {
            // As a failure: whether the array may be broken by it has been decided here.
            let error = MemberError::Removed;
            self.event(ManagerEvent::Msg(Msg::MemberFailed { slot, error }));
            self.carry_out();
        }
        self.seats.follow(&self.manager.view());
        Ok(Changed::Done)
    }

    /// A slot for people, with its device where there is one.
    fn name_of(&self, slot: u16) -> String {
        match self.path_of(slot) {
            path if path == "?" => format!("slot {slot} (missing)"),
            path => format!("slot {slot} ({path})"),
        }
    }

    fn may_remove(&self, number: u32) -> Result<Changed, ChangeError> {
        let Some(seat) = self.seats.by_number(number) else {
            return refuse(format!("no device has number {number}"), "");
        };
        let path = seat.device.path.display();
        match seat.state {
            State::Spare => Ok(Changed::Done),
            State::Faulty { slot: None, .. } => Ok(Changed::Done),
            State::Faulty { .. } => self.serves_changes().map(|()| Changed::Done),
            State::Member { filling: false, .. } => refuse(
                "it is a member in use",
                format!("fail it first: raidctl fail {} {path}", self.name),
            ),
            State::Member { .. } | State::Joining { .. } => refuse(
                "it is being filled",
                format!("fail it first: raidctl fail {} {path}", self.name),
            ),
        }
    }

    fn remove(&mut self, number: u32, answer: Answer) {
        self.parting.push(Parting {
            number,
            answer: Some(answer),
            since: Instant::now(),
            closing: false,
        });
        // Before a slot asks for this spare.
        self.see_off();
    }

    /// Brings removals on: a device goes when no engine has its file any more.
    pub(super) fn see_off(&mut self) {
        for at in 0..self.parting.len() {
            let number = self.parting[at].number;
            let free = self.seats.by_number(number).is_some_and(|seat| {
                matches!(
                    seat.state,
                    State::Spare
                        | State::Faulty {
                            engines: Some(0),
                            ..
                        }
                )
            });
            if !self.parting[at].closing
                && free
                && let Some(seat) = self.seats.remove(number)
            {
                tracing::info!(array = %self.name, member = %seat.device.path.display(), number, "removed");
                self.parting[at].closing = true;
            }
            if self.parting[at].since.elapsed() > PATIENCE
                && let Some(answer) = self.parting[at].answer.take()
            {
                let late = refuse(
                    "it still has I/O in flight",
                    "it is given back as soon as that has ended; see 'raidctl detail'",
                );
                self.answers.push((answer, late));
            }
        }
    }

    /// The writer of a device has ended: nothing of it is open any more.
    pub(super) fn closed(&mut self, number: u32) {
        let gone = |p: &Parting| p.closing && p.number == number;
        if let Some(at) = self.parting.iter().position(gone) {
            let parting = self.parting.swap_remove(at);
            if let Some(answer) = parting.answer {
                self.answers.push((answer, Ok(Changed::Done)));
            }
        }
    }
}
