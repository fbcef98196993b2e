//! The plan of a member that joins an array that exists: its number, its superblock as a spare, and the role table that all
//! members share, as MD keeps them.
//!
//! Owns the choice of device number and data offset for such a member. Pure; costs one superblock.

use std::fmt;

use crate::create::{NewMember, bitmap_room, role_entries};
use crate::superblock::{MAX_ROLES, SUPER_SECTOR_1_2, SlotRole, Superblock, feature};
use crate::units::human_sectors;

/// What a data offset is rounded to where the array's own does not fit, in sectors (1 MiB).
const ALIGNMENT: u64 = 2048;

/// Why a device cannot become a spare of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpareError {
    /// Its array has no redundancy that could fill it.
    NoRedundancy,
    /// It has too few sectors.
    TooSmall {
        /// Sectors it has.
        have: u64,
        /// Sectors it must have at least.
        need: u64,
    },
    /// Every device number is in use.
    TooMany,
}

impl fmt::Display for SpareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpareError::NoRedundancy => write!(
                f,
                "raid0 has no redundancy that could fill a new member: make a larger array and copy the data"
            ),
            SpareError::TooSmall { have, need } => write!(
                f,
                "it has {have} sectors ({}) and a member of this array needs {need}: it is {} sectors too small",
                human_sectors(*have),
                need - have
            ),
            SpareError::TooMany => write!(
                f,
                "the array has {MAX_ROLES} devices already: remove those that failed first"
            ),
        }
    }
}

impl std::error::Error for SpareError {}

/// The number of a new device: the lowest from `raid_disks` on that none of the present devices has, as MD chooses it. Numbers
/// of devices that were removed are used again.
pub fn free_number(raid_disks: u32, present: &[u32]) -> Option<u32> {
    (raid_disks..MAX_ROLES as u32).find(|number| !present.contains(number))
}

/// The superblock of a device that becomes a spare. `array` is the superblock of any member in sync; fields that belong to
/// that member alone are not taken over. The data begins where it does on that member if the device is large enough, else
/// as far behind the superblock as its size allows.
///
/// # Errors
/// See [`SpareError`].
pub fn plan_spare(
    array: &Superblock,
    device: &NewMember,
    number: u32,
    now: u64,
) -> Result<Superblock, SpareError> {
    if array.level == 0 {
        return Err(SpareError::NoRedundancy);
    }
    if number as usize >= MAX_ROLES {
        return Err(SpareError::TooMany);
    }
    // A bitmap that exists has the array's size and must have its room here too, whatever is usual for this device.
    let (room, log) = match (array.has(feature::BITMAP), array.bad_block_log()) {
        (false, _) => (bitmap_room(device.sectors), true),
        (true, Some((log, _))) if log > SUPER_SECTOR_1_2 + 8 => {
            let room = log - SUPER_SECTOR_1_2 - 8;
            (room.max(bitmap_room(device.sectors)), true)
        }
        (true, _) => (
            array.data_offset.saturating_sub(SUPER_SECTOR_1_2 + 16),
            false,
        ),
    };
    // Superblock and bitmap, then the log of bad blocks.
    let least = (SUPER_SECTOR_1_2 + 8 + room + 8).next_multiple_of(8);
    let need = least.saturating_add(array.size);
    if device.sectors < need {
        let have = device.sectors;
        return Err(SpareError::TooSmall { have, need });
    }
    let most = device.sectors - array.size;
    let data_offset = match most {
        most if most >= array.data_offset.max(least) => array.data_offset.max(least),
        most if most / ALIGNMENT * ALIGNMENT >= least => most / ALIGNMENT * ALIGNMENT,
        _ => least,
    };
    let mut block = array.clone();
    block.feature_map &= feature::BITMAP;
    block.recovery_offset = 0;
    block.data_offset = data_offset;
    block.data_size = device.sectors - data_offset;
    block.super_offset = SUPER_SECTOR_1_2;
    if !block.has(feature::BITMAP) {
        block.bitmap_offset = 0;
    }
    block.new_offset = 0;
    block.dev_number = number;
    block.corrected_reads = 0;
    block.device_uuid = device.device_uuid;
    block.devflags = 0;
    block.bblog_shift = 0;
    (block.bblog_size, block.bblog_offset) = match log {
        true => (8, 8 + room as i32),
        false => (0, 0),
    };
    block.utime = now & 0xff_ffff_ffff;
    grow_roles(&mut block.roles, number);
    block.set_role(number, SlotRole::Spare);
    Ok(block)
}

/// Makes room for a device number in a role table, as much as fills a sector. Numbers are below [`MAX_ROLES`].
pub fn grow_roles(roles: &mut Vec<u16>, number: u32) {
    let want = number as usize + 1;
    if want > roles.len() {
        roles.resize(role_entries(want).min(MAX_ROLES), SlotRole::Spare.raw());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::{NewArray, NewBitmap, plan};
    use crate::geometry::Level;

    fn array(sectors: u64, chunk_sectors: u32) -> Superblock {
        let members: Vec<NewMember> = (0..4)
            .map(|n| NewMember {
                device_uuid: [n + 1; 16],
                sectors,
            })
            .collect();
        let wanted = NewArray {
            level: Level::Raid5,
            layout: None,
            chunk_sectors,
            name: "a",
            host: "h",
            uuid: [9; 16],
            now: 1,
            assume_clean: false,
            bitmap: NewBitmap::None,
            members: &members,
        };
        plan(&wanted).unwrap().superblocks.swap_remove(1)
    }

    fn device(sectors: u64) -> NewMember {
        NewMember {
            device_uuid: [77; 16],
            sectors,
        }
    }

    #[test]
    fn numbers_as_md_gives_them() {
        assert_eq!(free_number(4, &[0, 1, 2, 3]), Some(4));
        // What mdadm makes of four members: the last one was a spare first.
        assert_eq!(free_number(4, &[0, 1, 2, 4]), Some(5));
        // Number 4 was removed.
        assert_eq!(free_number(4, &[0, 1, 5, 3]), Some(4));
        let all: Vec<u32> = (0..MAX_ROLES as u32).collect();
        assert_eq!(free_number(4, &all), None);
    }

    #[test]
    fn the_same_place_as_on_the_others() {
        let mut old = array(1 << 21, 1024);
        old.feature_map |= feature::BAD_BLOCKS | feature::RECOVERY_OFFSET;
        old.recovery_offset = 77;
        old.corrected_reads = 5;
        old.devflags = 1;
        let block = plan_spare(&old, &device(1 << 21), 4, 99).unwrap();
        assert_eq!(block.data_offset, old.data_offset);
        assert_eq!((block.feature_map, block.recovery_offset), (0, 0));
        assert_eq!((block.corrected_reads, block.devflags), (0, 0));
        assert_eq!((block.dev_number, block.slot()), (4, SlotRole::Spare));
        assert_eq!(block.role_of(2), SlotRole::Slot(2));
        assert_eq!(block.device_uuid, [77; 16]);
        assert_eq!((block.uuid, block.events), (old.uuid, old.events));
        assert_eq!(block.data_size + block.data_offset, 1 << 21);
        let bytes = block.encode();
        assert_eq!(Superblock::decode(&bytes, 8).unwrap(), block);
        assert!(block.check_device(1 << 21).is_ok());
    }

    #[test]
    fn a_device_that_is_a_little_short_begins_earlier() {
        let old = array(1 << 21, 128);
        assert!(old.data_offset >= 2048);
        let spare = old.data_size - old.size;
        for less in [spare + 1, spare + 100, old.data_offset + spare - 40] {
            let sectors = (1 << 21) - less;
            let block = plan_spare(&old, &device(sectors), 4, 0).unwrap();
            assert!(block.data_offset < old.data_offset, "{less}");
            assert!(block.data_offset + old.size <= sectors, "{less}");
            assert!(block.check_device(sectors).is_ok());
            let (log, len) = block.bad_block_log().unwrap();
            assert!(log + u64::from(len) <= block.data_offset, "{less}");
        }
        let least = plan_spare(&old, &device(10_000), 4, 0).unwrap_err();
        let SpareError::TooSmall { need, .. } = least else {
            panic!("{least:?}")
        };
        assert!(plan_spare(&old, &device(need), 4, 0).is_ok());
        let short = plan_spare(&old, &device(need - 3), 4, 0).unwrap_err();
        assert!(short.to_string().contains("3 sectors too small"), "{short}");
    }

    #[test]
    fn a_bitmap_has_its_room_on_a_new_member_too() {
        let mut old = array(1 << 21, 128);
        old.feature_map |= feature::BITMAP;
        old.bitmap_offset = 8;
        old.bblog_offset = 8 + 256;
        let block = plan_spare(&old, &device(1 << 21), 4, 0).unwrap();
        assert_eq!((block.bitmap_offset, block.bblog_offset), (8, 8 + 256));
        assert_eq!(block.feature_map, feature::BITMAP);
        // Where nothing tells how long the bitmap may be, all that is before the data is its.
        (old.bblog_size, old.bblog_offset) = (0, 0);
        let block = plan_spare(&old, &device(1 << 21), 4, 0).unwrap();
        assert_eq!(block.bad_block_log(), None);
        assert!(block.data_offset >= old.data_offset);
    }

    #[test]
    fn the_table_grows_by_whole_sectors() {
        let old = array(1 << 21, 128);
        assert_eq!(old.roles.len(), 128);
        let block = plan_spare(&old, &device(1 << 21), 128, 0).unwrap();
        assert_eq!(block.roles.len(), 384);
        assert_eq!(block.slot(), SlotRole::Spare);
        let refused = |number| plan_spare(&old, &device(1 << 21), number, 0);
        assert!(refused(MAX_ROLES as u32 - 1).is_ok());
        assert_eq!(refused(MAX_ROLES as u32), Err(SpareError::TooMany));
    }

    #[test]
    fn nothing_fills_a_member_of_raid0() {
        let mut old = array(1 << 21, 128);
        old.level = 0;
        let error = plan_spare(&old, &device(1 << 21), 4, 0).unwrap_err();
        assert_eq!(error, SpareError::NoRedundancy);
    }
}
