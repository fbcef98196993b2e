//! The verdict on a set of superblocks: which arrays they form, and whether and how each may start.
//!
//! Owns the rules of freshness, roles, consistency and refusal; `docs/format.md` (Assembly) tells them in
//! words. Pure: the caller reads the blocks and gives the device sizes. Costs little more than the blocks'
//! own size; runs once per assembly.

use crate::bitmap::VERSION;
use crate::geometry::{Geometry, Level};
use crate::refusal::{Refusal, missing_slots};
use crate::superblock::{DeviceError, MAX_ROLES, RESYNC_DONE, SlotRole, Superblock, feature};

/// A device with a superblock that decoded.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub superblock: Superblock,
    /// Size of the device in sectors.
    pub device_sectors: u64,
    /// `superblock::bitmap_version` of the block's bitmap, when it has one and the caller has read it. With
    /// another than 4 the array is refused.
    pub bitmap_version: Option<u32>,
}

/// What the operator allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssembleOptions {
    /// Start a dirty array although members are missing: stripes that were being written may hold wrong
    /// data in the lost chunks.
    pub force: bool,
    /// Nothing will be written to the members. Does not lift any refusal but tells the caller's intent.
    pub read_only: bool,
}

/// Why a device of the array's uuid takes no part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// Its superblock is behind by this many events.
    Stale { behind: u64 },
    /// The others have recorded its failure.
    Faulty,
    /// It was a member and has been taken out, or another has its place.
    Removed { behind: u64 },
    /// A spare that the array cannot use: too small, or with the number of another one.
    Spare,
}

/// One array found among the candidates.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub uuid: [u8; 16],
    /// Name by the freshest superblock.
    pub name: String,
    /// All candidates with this uuid, as indices into the input.
    pub candidates: Vec<usize>,
    pub outcome: Result<AssembledArray, Refusal>,
}

/// An array that may start. The superblocks are the caller's to change and write.
#[derive(Clone, Debug)]
pub struct AssembledArray {
    pub geometry: Geometry,
    pub uuid: [u8; 16],
    /// As on disk, `host:name` or `name`.
    pub name: String,
    pub level: Level,
    /// By slot: the candidate there, as an index into the input; `None` where it is missing.
    pub members: Vec<Option<usize>>,
    /// By slot, like `members`; roles, events and the resync position are already those of the freshest.
    pub superblocks: Vec<Option<Superblock>>,
    /// Is all parity right?
    pub clean: bool,
    /// `RESYNC_DONE`, or the member sector up to which the parity is right.
    pub resync_offset: u64,
    /// Slots of members that are being filled, with the sectors from the start of their data that are right already. Their
    /// rows below that may be read, and whoever writes the array writes them too.
    pub filling: Vec<(u16, u64)>,
    /// Spares that are ready to take a slot, as indices into the input.
    pub spares: Vec<usize>,
    /// Members that are missing or not whole yet.
    pub degraded: u16,
    /// Highest events count.
    pub events: u64,
    /// Highest `logical_block_size` on the members; 0 when none says.
    pub logical_block_size: u32,
    /// Started only because the operator insisted: dirty and degraded.
    pub forced: bool,
    /// The members that take part differ in their events on disk: a power cut came between the superblocks of one record.
    pub uneven: bool,
    /// Devices of the array that take no part.
    pub left_out: Vec<(usize, LeftOut)>,
}

/// Sorts the candidates into arrays, in order of first appearance, and judges each.
pub fn assemble(candidates: &[Candidate], options: AssembleOptions) -> Vec<Verdict> {
    let mut groups: Vec<([u8; 16], Vec<usize>)> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        let uuid = candidate.superblock.uuid;
        match groups.iter_mut().find(|group| group.0 == uuid) {
            Some(group) => group.1.push(index),
            None => groups.push((uuid, vec![index])),
        }
    }
    let verdict = |(uuid, members): ([u8; 16], Vec<usize>)| {
        let group = Group {
            all: candidates,
            indices: &members,
        };
        let name = group.block(group.freshest()).name.clone();
        Verdict {
            uuid,
            name,
            outcome: group.judge(options),
            candidates: members,
        }
    };
    groups.into_iter().map(verdict).collect()
}

/// The candidates of one array; never empty.
struct Group<'a> {
    all: &'a [Candidate],
    indices: &'a [usize],
}

impl Group<'_> {
    fn block(&self, index: usize) -> &Superblock {
        &self.all[index].superblock
    }

    /// The first with the most events, an active member before a spare or a journal.
    fn freshest(&self) -> usize {
        let rank = |index: usize| {
            let block = self.block(index);
            (block.events, matches!(block.slot(), SlotRole::Slot(_)))
        };
        let first = self.indices[0];
        self.indices.iter().fold(first, |best, &index| {
            if rank(index) > rank(best) {
                index
            } else {
                best
            }
        })
    }

    fn judge(&self, options: AssembleOptions) -> Result<AssembledArray, Refusal> {
        let freshest = self.freshest();
        let best = self.block(freshest);
        let level = supported_level(best.level)?;
        self.refuse_same_device()?;
        let mut left_out = Vec::new();
        let mut active = Vec::new();
        let mut filling = Vec::new();
        let mut spares = Vec::new();
        for &index in self.indices {
            let block = self.block(index);
            let behind = best.events - block.events;
            let own = matches!(block.slot(), SlotRole::Slot(_));
            match best.role_of(block.dev_number) {
                SlotRole::Slot(slot) if behind <= 1 => {
                    active.push((index, slot));
                    if level != Level::Raid0
                        && let Some(from) = filled_to(block)
                    {
                        filling.push((slot, from));
                    }
                }
                SlotRole::Slot(_) => left_out.push((index, LeftOut::Stale { behind })),
                SlotRole::Faulty => left_out.push((index, LeftOut::Faulty)),
                SlotRole::Spare if own => left_out.push((index, LeftOut::Removed { behind })),
                SlotRole::Spare => spares.push(index),
                SlotRole::Journal => return Err(Refusal::Journal),
            }
        }
        self.keep_usable(&mut spares, &mut left_out, level);
        self.refuse_features(best, &active)?;
        self.refuse_disagreement(freshest, &active)?;
        let count = u16::try_from(best.raid_disks).unwrap_or(u16::MAX);
        let mut members = vec![None; usize::from(count.min(crate::geometry::MAX_MEMBERS))];
        for &(index, slot) in &active {
            match members.get_mut(usize::from(slot)) {
                None => {
                    return Err(Refusal::SlotOutside {
                        index,
                        slot,
                        members: best.raid_disks,
                    });
                }
                Some(Some(other)) => {
                    return Err(Refusal::SlotTwice {
                        slot,
                        a: *other,
                        b: index,
                    });
                }
                Some(place) => *place = Some(index),
            }
        }
        for &(index, _) in &active {
            self.check_member(index, level)?;
        }
        // A member that is not whole yet is no help where it is not.
        filling.sort_unstable();
        let mut missing = missing_slots(&members);
        missing.extend(filling.iter().map(|(slot, _)| *slot));
        missing.sort_unstable();
        let most = level.parities();
        if missing.len() > usize::from(most) {
            let stale = left_out
                .iter()
                .filter(|(_, why)| matches!(why, LeftOut::Stale { .. } | LeftOut::Removed { .. }));
            return Err(Refusal::TooFewMembers {
                level,
                members: count,
                missing,
                stale: stale.map(|&(index, _)| index).collect(),
            });
        }
        let geometry = self.geometry(best, level, count, &members)?;
        // Of equally fresh members the most doubtful position counts.
        let resync_offset = match level {
            Level::Raid0 => RESYNC_DONE,
            _ => {
                let fresh = active.iter().map(|&(index, _)| self.block(index));
                let fresh = fresh.filter(|block| block.events == best.events);
                fresh
                    .map(|block| block.resync_offset)
                    .min()
                    .unwrap_or(best.resync_offset)
            }
        };
        let clean = resync_offset == RESYNC_DONE;
        let degraded = missing.len() as u16;
        let forced = !clean && degraded > 0;
        if forced && !options.force {
            return Err(Refusal::DirtyDegraded { missing });
        }
        // With no redundancy left there is nothing that could be brought in sync: what was taken by force counts as clean
        // from now on, as after mdadm's force. Otherwise the next start, by anybody, would have to be forced again.
        let resync_offset = if forced && missing.len() == usize::from(most) {
            RESYNC_DONE
        } else {
            resync_offset
        };
        let superblocks = members.iter().map(|place| {
            place.map(|index| {
                let mut block = self.block(index).clone();
                block.roles.clone_from(&best.roles);
                block.events = best.events;
                block.resync_offset = resync_offset;
                block
            })
        });
        let blocks = active
            .iter()
            .map(|&(index, _)| self.block(index).logical_block_size);
        let uneven = active
            .iter()
            .any(|&(index, _)| self.block(index).events != best.events);
        Ok(AssembledArray {
            uuid: best.uuid,
            name: best.name.clone(),
            level,
            superblocks: superblocks.collect(),
            clean,
            resync_offset,
            filling,
            spares,
            degraded,
            events: best.events,
            logical_block_size: blocks.max().unwrap_or(0),
            forced,
            uneven,
            left_out,
            geometry,
            members,
        })
    }

    /// Moves spares that cannot be used to those that are left out. Of two with one number the one that was written later is
    /// the one that the array knows.
    fn keep_usable(
        &self,
        spares: &mut Vec<usize>,
        left_out: &mut Vec<(usize, LeftOut)>,
        level: Level,
    ) {
        spares.sort_by_key(|&index| std::cmp::Reverse(self.block(index).events));
        let mut numbers = Vec::new();
        spares.retain(|&index| {
            let number = self.block(index).dev_number;
            let known = !numbers.contains(&number) && (number as usize) < MAX_ROLES;
            let usable = known && level != Level::Raid0 && self.check_member(index, level).is_ok();
            match usable {
                true => numbers.push(number),
                false => left_out.push((index, LeftOut::Spare)),
            }
            usable
        });
        spares.sort_unstable();
    }

    /// One device seen by two paths, or a copy of a device.
    fn refuse_same_device(&self) -> Result<(), Refusal> {
        for (place, &a) in self.indices.iter().enumerate() {
            let uuid = self.block(a).device_uuid;
            let twin = self.indices[place + 1..]
                .iter()
                .find(|&&b| self.block(b).device_uuid == uuid);
            if let Some(&b) = twin {
                return Err(Refusal::SameDevice { a, b });
            }
        }
        Ok(())
    }

    fn refuse_features(&self, best: &Superblock, active: &[(usize, u16)]) -> Result<(), Refusal> {
        use feature as f;
        let map = active.iter().fold(best.feature_map, |map, &(index, _)| {
            map | self.block(index).feature_map
        });
        let with = |bits: u32| {
            let found = active
                .iter()
                .find(|&&(index, _)| self.block(index).has(bits));
            found.map_or(self.indices[0], |&(index, _)| index)
        };
        let bitmap = || {
            let versions = active
                .iter()
                .map(|&(index, _)| self.all[index].bitmap_version);
            versions.max().flatten()
        };
        let has = |bits: u32| map & bits != 0;
        if has(f::RESHAPE | f::RESHAPE_BACKWARDS | f::NEW_OFFSET) {
            return Err(Refusal::Reshape {
                position: best.reshape_position,
            });
        }
        if has(f::CLUSTERED) {
            return Err(Refusal::Clustered);
        }
        if has(f::JOURNAL) {
            return Err(Refusal::Journal);
        }
        if has(f::PPL | f::MULTIPLE_PPLS) {
            return Err(Refusal::Ppl);
        }
        if has(f::BITMAP) {
            let plain = |&(index, _): &(usize, u16)| {
                self.block(index).has(f::BITMAP) && self.all[index].bitmap_version == Some(VERSION)
            };
            match bitmap() {
                Some(5) => return Err(Refusal::Clustered),
                Some(6) => return Err(Refusal::LocklessBitmap),
                _ if best.level == 0 || !active.iter().all(plain) => return Err(Refusal::Bitmap),
                _ => {}
            }
        }
        if has(f::REPLACEMENT) {
            return Err(Refusal::Replacement {
                index: with(f::REPLACEMENT),
            });
        }
        let recovery = f::RECOVERY_OFFSET | f::RECOVERY_BITMAP;
        if best.level == 0 && has(recovery) {
            return Err(Refusal::Recovery {
                index: with(recovery),
            });
        }
        if has(f::BAD_BLOCKS) {
            return Err(Refusal::BadBlocks {
                index: with(f::BAD_BLOCKS),
            });
        }
        Ok(())
    }

    /// Members that are fresh must tell the same story.
    fn refuse_disagreement(&self, freshest: usize, active: &[(usize, u16)]) -> Result<(), Refusal> {
        let best = self.block(freshest);
        for &(index, _) in active {
            let block = self.block(index);
            let field = [
                ("level", block.level == best.level),
                ("layout", block.layout == best.layout),
                ("chunk size", block.chunk_sectors == best.chunk_sectors),
                ("creation time", block.ctime == best.ctime),
                ("size", block.size == best.size),
                ("number of members", block.raid_disks == best.raid_disks),
                (
                    "feature map",
                    (block.feature_map ^ best.feature_map) & feature::RAID0_LAYOUT == 0,
                ),
            ];
            if let Some((field, _)) = field.into_iter().find(|&(_, same)| !same) {
                return Err(Refusal::Inconsistent {
                    index,
                    other: freshest,
                    field,
                });
            }
            // Equally fresh, yet each has seen other failures: they ran apart from one another.
            let differ = |&&(other, _): &&(usize, u16)| {
                let number = self.block(other).dev_number;
                block.role_of(number) != best.role_of(number)
            };
            if block.events == best.events && active.iter().any(|entry| differ(&entry)) {
                return Err(Refusal::SplitBrain {
                    a: freshest,
                    b: index,
                });
            }
        }
        // The same with a member that only one side still counts as working.
        for &index in self.indices {
            let block = self.block(index);
            let own = matches!(block.slot(), SlotRole::Slot(_));
            let role = best.role_of(block.dev_number);
            let gone = matches!(role, SlotRole::Faulty | SlotRole::Spare);
            if block.events == best.events && own && gone {
                return Err(Refusal::SplitBrain {
                    a: freshest,
                    b: index,
                });
            }
        }
        Ok(())
    }

    fn check_member(&self, index: usize, level: Level) -> Result<(), Refusal> {
        let Candidate {
            superblock: block,
            device_sectors,
            ..
        } = &self.all[index];
        match block.check_device(*device_sectors) {
            Ok(()) => {}
            Err(DeviceError::TooSmall { need, have }) => {
                return Err(Refusal::DeviceTooSmall { index, need, have });
            }
            Err(DeviceError::Overlap) => return Err(Refusal::DataOverSuperblock { index }),
        }
        if level != Level::Raid0 && block.size > block.data_size {
            return Err(Refusal::DeviceTooSmall {
                index,
                need: block.data_offset.saturating_add(block.size),
                have: block.data_offset.saturating_add(block.data_size),
            });
        }
        Ok(())
    }

    fn geometry(
        &self,
        best: &Superblock,
        level: Level,
        count: u16,
        members: &[Option<usize>],
    ) -> Result<Geometry, Refusal> {
        if level != Level::Raid0 {
            let shape = Geometry::parity(level, best.layout, count, best.chunk_sectors, best.size);
            return shape.map_err(Refusal::Geometry);
        }
        if usize::from(count) != members.len() {
            let members = best.raid_disks as usize;
            return Err(Refusal::Geometry(crate::geometry::GeometryError::Members {
                level,
                members,
            }));
        }
        let sizes: Vec<u64> = members
            .iter()
            .flatten()
            .map(|&index| self.block(index).data_size)
            .collect();
        let told = best.has(feature::RAID0_LAYOUT);
        let layout = if told {
            best.layout
        } else {
            crate::geometry::LAYOUT_ORIGINAL
        };
        let shape =
            Geometry::raid0(layout, best.chunk_sectors, &sizes).map_err(Refusal::Geometry)?;
        // Without the bit the two layouts must come to the same: one zone, or a second one of one member.
        if !told
            && shape
                .zones()
                .get(1)
                .is_some_and(|zone| zone.slots.len() > 1)
        {
            return Err(Refusal::LayoutUnknown);
        }
        Ok(shape)
    }
}

/// How many sectors of its data a fresh member has, if it does not have all. A device whose own block does not say that it is
/// a member got its slot just before a crash. What a bitmap-guided rebuild has left out is not known here: all of it, then.
fn filled_to(block: &Superblock) -> Option<u64> {
    if !matches!(block.slot(), SlotRole::Slot(_)) || block.has(feature::RECOVERY_BITMAP) {
        return Some(0);
    }
    let partial = block.has(feature::RECOVERY_OFFSET);
    partial.then_some(block.recovery_offset.min(block.size))
}

fn supported_level(level: i32) -> Result<Level, Refusal> {
    match Level::from_md(level) {
        Some(Level::Raid4) | None => Err(Refusal::Level(level)),
        Some(level) => Ok(level),
    }
}
