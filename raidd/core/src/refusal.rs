//! Why an array is not started, each reason with the sentence that tells the operator what to do.
//! Owns these texts; costs nothing until one is shown.

use crate::geometry::{GeometryError, Level};
use crate::units::human_sectors;
use std::fmt;

/// A refusal. Indices are those of the candidates; whoever knows the device paths may show them instead
/// of the `device N` of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A level without an engine here, by MD's number.
    Level(i32),
    /// A write-intent bitmap that is of version 3, not on all members, or not to be read.
    Bitmap,
    LocklessBitmap,
    Clustered,
    Journal,
    Ppl,
    Reshape {
        position: u64,
    },
    Replacement {
        index: usize,
    },
    /// A member of an array without redundancy is marked as being rebuilt.
    Recovery {
        index: usize,
    },
    BadBlocks {
        index: usize,
    },
    /// RAID 0 of unequal members without the layout bit.
    LayoutUnknown,
    Geometry(GeometryError),
    TooFewMembers {
        level: Level,
        members: u16,
        missing: Vec<u16>,
        stale: Vec<usize>,
    },
    DirtyDegraded {
        missing: Vec<u16>,
    },
    /// Two candidates with one device uuid.
    SameDevice {
        a: usize,
        b: usize,
    },
    SlotTwice {
        slot: u16,
        a: usize,
        b: usize,
    },
    SlotOutside {
        index: usize,
        slot: u16,
        members: u32,
    },
    Inconsistent {
        index: usize,
        other: usize,
        field: &'static str,
    },
    SplitBrain {
        a: usize,
        b: usize,
    },
    DeviceTooSmall {
        index: usize,
        need: u64,
        have: u64,
    },
    DataOverSuperblock {
        index: usize,
    },
}

/// Slots with nobody in them.
pub(crate) fn missing_slots(members: &[Option<usize>]) -> Vec<u16> {
    let slots = members.iter().enumerate();
    slots
        .filter(|(_, place)| place.is_none())
        .map(|(slot, _)| slot as u16)
        .collect()
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items
        .iter()
        .map(T::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Refusal {
    /// The text, with `device N` written as `name(N)`.
    pub fn text(&self, name: &dyn Fn(usize) -> String) -> String {
        use Refusal as R;
        match self {
            R::Level(level) => {
                let level = match level {
                    -1 => "linear".to_string(),
                    level => format!("raid{level}"),
                };
                format!("level {level} is not supported (0, 5 and 6 are): use mdadm --assemble for this array")
            }
            R::Bitmap => "the array has a write-intent bitmap that cannot be used here (damaged, or not of version 4, or not on \
                all members): start it with mdadm, let a resync finish, run `mdadm --grow --bitmap=none` on it, stop it and try again"
                .into(),
            R::LocklessBitmap => "the array has a lockless bitmap (version 6), which cannot be removed safely here: \
                use the array with mdadm 4.6 or later"
                .into(),
            R::Clustered => "the array belongs to a cluster: use it with mdadm on its cluster, \
                or make it a plain one there with `mdadm --grow --bitmap=none`"
                .into(),
            R::Journal => "the array has a write journal, which may hold data that is not on the members yet: \
                start it with mdadm and the journal device, fail and remove that device, and write \
                `resync` to the array's md/consistency_policy in sysfs"
                .into(),
            R::Ppl => "the array has a partial parity log: start it with mdadm, then run \
                `mdadm --grow --consistency-policy=resync` on it, stop it and try again"
                .into(),
            R::Reshape { position } => format!(
                "a reshape is in progress (at array sector {position}): \
                 assemble the array with mdadm and let the reshape finish"
            ),
            R::Replacement { index } => format!(
                "{} is the replacement for a member and not filled yet: \
                 assemble the array with mdadm and let the replacement finish",
                name(*index)
            ),
            R::Recovery { index } => format!(
                "{} says that it is being rebuilt, which raid0 cannot be: its superblock is damaged; look at it with \
                 mdadm --examine",
                name(*index)
            ),
            R::BadBlocks { index } => format!(
                "{} has a list of bad blocks that must not be read: replace that member with mdadm, or, \
                 if the list is known to be wrong, assemble once with `mdadm --assemble --update=force-no-bbl`",
                name(*index)
            ),
            R::LayoutUnknown => "the members are of unequal size and the superblocks do not say which of the two RAID 0 \
                layouts was used; if a kernel before 3.14 or after 5.3 made the array, assemble once with \
                `mdadm --assemble --update=layout-original`, else with `layout-alternate`"
                .into(),
            R::Geometry(error) => {
                format!("the superblocks describe an array that cannot be: {error}; check it with mdadm --examine")
            }
            R::TooFewMembers { level, members, missing, stale } => {
                let stale = match stale.len() {
                    0 => String::new(),
                    _ => {
                        let names: Vec<String> = stale.iter().map(|&index| name(index)).collect();
                        format!(
                            " ({} was found but its data is out of date: mdadm --assemble --force can take it \
                             back, at the price of what was written since)",
                            list(&names)
                        )
                    }
                };
                format!(
                    "{} of {members} members are missing (slots {}) and {level} works with at most {} missing: \
                     connect the missing members and try again{stale}",
                    missing.len(),
                    list(missing),
                    level.parities()
                )
            }
            R::DirtyDegraded { missing } => format!(
                "the array was not stopped cleanly and lacks members (slots {}): the lost chunks of stripes that \
                 were being written cannot be computed. Connect the missing members, or accept wrong data \
                 there and use --force",
                list(missing)
            ),
            R::SameDevice { a, b } => format!(
                "{} and {} are the same device, seen twice or copied: name only one of them",
                name(*a),
                name(*b)
            ),
            R::SlotTwice { slot, a, b } => format!(
                "{} and {} both claim slot {slot}: leave out the one that does not belong to the array",
                name(*a),
                name(*b)
            ),
            R::SlotOutside { index, slot, members } => format!(
                "{} claims slot {slot} of an array of {members} members: leave it out, or check it with mdadm --examine",
                name(*index)
            ),
            R::Inconsistent { index, other, field } => format!(
                "{} and {} disagree about the {field}: leave out the one that does not belong to the array",
                name(*index),
                name(*other)
            ),
            R::SplitBrain { a, b } => format!(
                "{} and {} were in use apart from one another, each with the other recorded as failed: \
                 decide which one holds the wanted data and leave the other out",
                name(*a),
                name(*b)
            ),
            R::DeviceTooSmall { index, need, have } => format!(
                "{} has {have} sectors ({}) and the array needs {need} on it: the device has shrunk, or this is \
                 only a part of it; find the whole device",
                name(*index),
                human_sectors(*have)
            ),
            R::DataOverSuperblock { index } => format!(
                "the superblock of {} lies inside its own data area: it is damaged; leave the device out",
                name(*index)
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&|index| format!("device {index}")))
    }
}

impl std::error::Error for Refusal {}
