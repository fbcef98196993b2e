//! What the kernel says about the members' queues, and what follows for the block device. Reads sysfs at start only.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::array_api::MemberDevice;

/// The strictest of all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberLimits {
    /// Bytes; the members agree or the largest counts.
    pub physical_block: u32,
    /// Address alignment of buffers, as a mask.
    pub dma_alignment_mask: u32,
    /// All members know discard; largest common granularity in bytes.
    pub discard_granularity: Option<u32>,
    /// All members write zeroes by command.
    pub write_zeroes: bool,
    /// Some member spins.
    pub rotational: bool,
}

fn attribute(queue: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(queue.join(name))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Combines the members' limits; what sysfs does not say is assumed to be the cautious value.
pub fn of_members(members: &[MemberDevice]) -> MemberLimits {
    let mut all = MemberLimits {
        physical_block: 512,
        dma_alignment_mask: 3,
        discard_granularity: Some(512),
        write_zeroes: true,
        rotational: false,
    };
    for member in members {
        let rdev = member.file.metadata().map_or(0, |m| m.rdev());
        let (major, minor) = (nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
        let node = format!("/sys/dev/block/{major}:{minor}");
        // A partition has no queue of its own; its disk's is one level up.
        let mut queue = Path::new(&node).join("queue");
        if !queue.exists() {
            queue = Path::new(&node).join("../queue");
        }
        let lbs = member.logical_block;
        let get = |name: &str| attribute(&queue, name);
        let physical = get("physical_block_size").unwrap_or(u64::from(lbs)) as u32;
        all.physical_block = all.physical_block.max(physical).max(lbs);
        let align = get("dma_alignment").unwrap_or(u64::from(lbs) - 1) as u32;
        all.dma_alignment_mask |= align;
        let discard = get("discard_max_bytes")
            .filter(|b| *b > 0)
            .and_then(|_| get("discard_granularity"));
        all.discard_granularity = match (all.discard_granularity, discard) {
            (Some(a), Some(b)) if b > 0 => Some(a.max(b as u32)),
            _ => None,
        };
        all.write_zeroes &= get("write_zeroes_max_bytes").is_some_and(|b| b > 0);
        all.rotational |= get("rotational") == Some(1);
    }
    all
}

/// Lets requests be as long as the driver takes them, whatever the preferred size, and in the order they come.
pub fn open_up(device: &Path) {
    let Some(name) = device.file_name() else {
        return;
    };
    let queue = Path::new("/sys/class/block").join(name).join("queue");
    let set = |attribute: &str, value: &str| {
        if let Err(error) = fs::write(queue.join(attribute), value) {
            tracing::debug!(attribute, value, %error, "queue attribute not set");
        }
    };
    if let Ok(most) = fs::read_to_string(queue.join("max_hw_sectors_kb")) {
        set("max_sectors_kb", most.trim());
    }
    set("scheduler", "none");
    set("wbt_lat_usec", "0");
}
