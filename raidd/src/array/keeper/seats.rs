//! The devices of a running array: which number, which slot, in what state, and the superblock that each shall have.
//!
//! The role table is kept as MD keeps it: a device has its number for life; failed ones are faulty until they are removed,
//! numbers of nobody are those of spares. A member that is missing from the start counts as faulty until its slot has
//! been filled: whoever finds it must not take it for a spare.

use std::io;

use crossbeam_channel::Sender;
use raid_core::path::manager::Record;
use raid_core::path::types::{SlotSet, View};
use raid_core::spare::{free_number, grow_roles};
use raid_core::superblock::{SlotRole, Superblock, feature};

use super::writer::{Job, Told, Writer};
use crate::array_api::{MemberDevice, MemberState, MemberStatus};

/// Where a device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Holds a slot, whole or being filled.
    Member {
        /// Which.
        slot: u16,
        /// Its data is not all there yet.
        filling: bool,
    },
    /// The engines are getting its file for this slot.
    Joining {
        /// Which.
        slot: u16,
        /// Where the right data ends, in member sectors.
        from: u64,
        /// Engines that have not answered yet.
        waits: u16,
        /// All have, and the manager has been asked.
        asked: bool,
    },
    /// Ready for a slot.
    Spare,
    /// Out of the array and still held.
    Faulty {
        /// The slot it had.
        slot: Option<u16>,
        /// Engines that still have its file; none before they have been asked.
        engines: Option<u16>,
    },
}

/// One device.
#[derive(Debug)]
pub struct Seat {
    /// The device and its superblock, as last given to the writer.
    pub device: MemberDevice,
    /// Where it stands.
    pub state: State,
    /// Its thread.
    pub writer: Writer,
    /// The ticket of a change that the engines are asked for.
    pub ticket: u64,
    /// Its own superblock says that it has its slot.
    pub announced: bool,
    /// The device has left the system.
    pub gone: bool,
}

impl Seat {
    /// Its number in the role table.
    pub fn number(&self) -> u32 {
        self.device.superblock.dev_number
    }

    /// The slot whose data it holds or is getting.
    pub fn slot(&self) -> Option<u16> {
        match self.state {
            State::Member { slot, .. } | State::Joining { slot, .. } => Some(slot),
            State::Spare | State::Faulty { .. } => None,
        }
    }

    /// In the words of `detail`.
    pub fn member_state(&self) -> MemberState {
        match self.state {
            State::Member { filling: false, .. } => MemberState::InSync,
            State::Member { filling: true, .. } => MemberState::Rebuilding,
            State::Joining { .. } | State::Spare => MemberState::Spare,
            State::Faulty { .. } => MemberState::Faulty,
        }
    }

    fn job(&self, id: u64) -> Job {
        let block = &self.device.superblock;
        let mut bytes = block.encode();
        let whole = self.device.logical_block.max(512) as usize;
        bytes.resize(bytes.len().next_multiple_of(whole), 0);
        Job {
            id,
            flush_first: true,
            runs: vec![(block.super_offset * 512, bytes)],
        }
    }

    /// Hands its superblock to its writer.
    pub fn write(&self, id: u64) {
        self.writer.write(self.job(id));
    }
}

/// All devices of one array.
#[derive(Debug)]
pub struct Seats {
    /// In no order that matters.
    pub list: Vec<Seat>,
    /// By device number, as the next superblocks will say it.
    roles: Vec<u16>,
    raid_disks: u32,
    told: Sender<Told>,
}

impl Seats {
    /// The devices that an assembly gave: members with their slots, and spares. `filling` members are not whole.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(
        devices: Vec<MemberDevice>,
        filling: &SlotSet,
        told: Sender<Told>,
    ) -> io::Result<Seats> {
        let first = devices.iter().find(|d| d.slot.is_some());
        let mut seats = Seats {
            roles: first.map_or_else(Vec::new, |d| d.superblock.roles.clone()),
            raid_disks: first.map_or(0, |d| d.superblock.raid_disks),
            list: Vec::new(),
            told,
        };
        for device in devices {
            let state = match device.slot {
                Some(slot) => State::Member {
                    slot,
                    filling: filling.contains(slot),
                },
                None => State::Spare,
            };
            seats.take(device, state)?;
        }
        for number in 0..seats.roles.len() as u32 {
            let absent = seats.by_number(number).is_none();
            if absent && matches!(seats.role(number), SlotRole::Slot(_)) {
                seats.set_role(number, SlotRole::Faulty);
            }
        }
        Ok(seats)
    }

    /// Takes a device in. Its number must be free.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn take(&mut self, device: MemberDevice, state: State) -> io::Result<()> {
        let number = device.superblock.dev_number;
        let writer = Writer::start(number, device.file.clone(), self.told.clone())?;
        grow_roles(&mut self.roles, number);
        if state == State::Spare {
            self.set_role(number, SlotRole::Spare);
        }
        self.list.push(Seat {
            device,
            state,
            writer,
            ticket: 0,
            announced: state != State::Spare,
            gone: false,
        });
        Ok(())
    }

    fn role(&self, number: u32) -> SlotRole {
        let raw = self.roles.get(number as usize).copied();
        raw.map_or(SlotRole::Spare, SlotRole::from_raw)
    }

    fn set_role(&mut self, number: u32, role: SlotRole) {
        if let Some(entry) = self.roles.get_mut(number as usize) {
            *entry = role.raw();
        }
    }

    /// The device with this number.
    pub fn by_number(&self, number: u32) -> Option<&Seat> {
        self.list.iter().find(|seat| seat.number() == number)
    }

    /// The device with this number.
    pub fn by_number_mut(&mut self, number: u32) -> Option<&mut Seat> {
        self.list.iter_mut().find(|seat| seat.number() == number)
    }

    /// The device that holds this slot or is getting it.
    pub fn by_slot(&self, slot: u16) -> Option<&Seat> {
        self.list.iter().find(|seat| seat.slot() == Some(slot))
    }

    /// The number that a new device would get.
    pub fn free_number(&self) -> Option<u32> {
        let taken: Vec<u32> = self.list.iter().map(Seat::number).collect();
        free_number(self.raid_disks, &taken)
    }

    /// Where in the list the spare is that comes next: the lowest number.
    pub fn next_spare(&self) -> Option<usize> {
        let spares = self.list.iter().enumerate();
        let spares = spares.filter(|(_, seat)| seat.state == State::Spare);
        spares
            .min_by_key(|(_, seat)| seat.number())
            .map(|(at, _)| at)
    }

    /// For `detail`: a row for each slot, with the failed device where nobody has taken its place, then all others.
    pub fn rows(&self, slots: u16) -> Vec<MemberStatus> {
        let row = |slot, seat: &Seat| MemberStatus {
            slot,
            path: Some(seat.device.path.clone()),
            number: Some(seat.number()),
            device_uuid: Some(seat.device.superblock.device_uuid),
            gone: seat.gone,
            state: seat.member_state(),
            errors: 0,
        };
        let mut shown = Vec::new();
        let mut rows: Vec<MemberStatus> = (0..slots)
            .map(|slot| {
                let in_it = |seat: &&Seat| matches!(seat.state, State::Member { slot: s, .. } if s == slot);
                let was_in_it = |seat: &&Seat| matches!(seat.state, State::Faulty { slot: Some(s), .. } if s == slot);
                let mut list = self.list.iter();
                let seat = list.find(in_it).or_else(|| self.list.iter().rfind(was_in_it));
                shown.extend(seat.map(Seat::number));
                seat.map_or(
                    MemberStatus {
                        slot: Some(slot),
                        path: None,
                        number: None,
                        device_uuid: None,
                        gone: false,
                        state: MemberState::Missing,
                        errors: 0,
                    },
                    |seat| row(Some(slot), seat),
                )
            })
            .collect();
        let mut others: Vec<&Seat> = self
            .list
            .iter()
            .filter(|s| !shown.contains(&s.number()))
            .collect();
        others.sort_by_key(|seat| seat.number());
        rows.extend(others.into_iter().map(|seat| row(None, seat)));
        rows
    }

    /// A superblock to plan others by: of a member in sync.
    pub fn pattern(&self) -> Option<&Superblock> {
        let whole = |seat: &&Seat| matches!(seat.state, State::Member { filling: false, .. });
        let mut all = self.list.iter();
        all.find(whole).map(|seat| &seat.device.superblock)
    }

    /// Takes over who is in, being filled, or out. Gives the numbers of those that have just failed.
    pub fn follow(&mut self, view: &View) -> Vec<u32> {
        let mut failed = Vec::new();
        for seat in &mut self.list {
            match seat.state {
                State::Member { slot, .. } if view.missing.contains(slot) => {
                    let engines = None;
                    seat.state = State::Faulty {
                        slot: Some(slot),
                        engines,
                    };
                    failed.push(seat.number());
                }
                State::Member { slot, .. } => {
                    let filling = view.filling.contains(slot);
                    seat.state = State::Member { slot, filling };
                }
                State::Joining { slot, asked, .. } if asked && !view.missing.contains(slot) => {
                    let filling = view.filling.contains(slot);
                    seat.state = State::Member { slot, filling };
                }
                _ => {}
            }
        }
        for number in &failed {
            self.set_role(*number, SlotRole::Faulty);
        }
        failed
    }

    /// Forgets a device: its number is nobody's from now on.
    pub fn remove(&mut self, number: u32) -> Option<Seat> {
        let at = self.list.iter().position(|seat| seat.number() == number)?;
        self.set_role(number, SlotRole::Spare);
        Some(self.list.swap_remove(at))
    }

    /// A spare that cannot be used any more.
    pub fn fail_spare(&mut self, number: u32) {
        if let Some(seat) = self.by_number_mut(number) {
            seat.state = State::Faulty {
                slot: None,
                engines: Some(0),
            };
            self.set_role(number, SlotRole::Faulty);
        }
    }

    /// Brings the table up to date with the states, then every superblock with table and record. Gives the numbers of the
    /// spares whose superblock says something else about the roles now. `seconds` since 1970.
    pub fn imprint(&mut self, record: &Record, seconds: u64) -> Vec<u32> {
        let mut spares = Vec::new();
        for at in 0..self.list.len() {
            let (number, state) = (self.list[at].number(), self.list[at].state);
            if let State::Member { slot, .. } = state {
                // What the record does not know yet is not written yet.
                let role = match record.missing.contains(slot) {
                    true if self.list[at].announced => SlotRole::Faulty,
                    true => SlotRole::Spare,
                    false => SlotRole::Slot(slot),
                };
                self.set_role(number, role);
            }
        }
        // Those that were replaced are nobody any more once their slot is whole again.
        for number in 0..self.roles.len() as u32 {
            if self.role(number) == SlotRole::Faulty
                && self.by_number(number).is_none()
                && record.missing.is_empty()
                && record.filling.is_empty()
            {
                self.set_role(number, SlotRole::Spare);
            }
        }
        for seat in &mut self.list {
            let block = &mut seat.device.superblock;
            if seat.state == State::Spare && block.roles != self.roles {
                spares.push(block.dev_number);
            }
            block.roles.clone_from(&self.roles);
            block.events = record.events;
            block.resync_offset = record.resync_offset;
            block.utime = seconds & ((1 << 40) - 1);
            block.feature_map &= !(feature::RECOVERY_OFFSET | feature::RECOVERY_BITMAP);
            block.recovery_offset = 0;
            if let State::Member { slot, .. } = seat.state
                && record.filling.contains(slot)
            {
                block.feature_map |= feature::RECOVERY_OFFSET;
                block.recovery_offset = record.recovery;
            }
        }
        spares
    }
}
