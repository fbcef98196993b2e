//! What the kernel says about the members' queues, and what follows for the block device. Reads sysfs at start only.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use raid_core::path::layout::Layout;
use ublk_frontend::{DeviceSpec, DiscardLimits};

use crate::array_api::{ArrayOptions, MemberDevice};

const LEAST_REQUEST: u32 = 1 << 20;
const MOST_REQUEST: u32 = 32 << 20;

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

/// The longest request: what was asked for, a full stripe at least, within what ublk can do.
pub(super) fn request_bytes(layout: &Layout, options: &ArrayOptions) -> u32 {
    let stripe = u64::from(layout.data) * u64::from(layout.geometry.chunk_sectors()) * 512;
    let wanted = u64::from(options.max_request_bytes)
        .max(stripe)
        .max(u64::from(LEAST_REQUEST));
    wanted.min(u64::from(MOST_REQUEST)) as u32 / 4096 * 4096
}

/// Frames of a queue's arena.
pub(super) fn frames(layout: &Layout, options: &ArrayOptions) -> u32 {
    (options.frame_bytes / layout.frame_bytes()).clamp(16, 4096) as u32
}

/// What the driver is told about the block device.
pub(super) fn device_spec(
    layout: &Layout,
    limits: &MemberLimits,
    logical_block: u32,
    options: &ArrayOptions,
) -> DeviceSpec {
    let chunk = layout.geometry.chunk_sectors() * 512;
    let stripe = u64::from(chunk) * u64::from(layout.data);
    let raid0 = !layout.parity;
    let request = request_bytes(layout, options);
    // The driver takes powers of two only. A preferred size without the width would only make mkfs complain.
    let width = u32::try_from(stripe).ok().filter(|w| w.is_power_of_two());
    DeviceSpec {
        id: options.device_id,
        queues: options.queues,
        depth: options.depth,
        max_request_bytes: request,
        logical_block,
        physical_block: limits.physical_block.max(logical_block),
        io_min: width.map_or(logical_block, |_| chunk),
        io_opt: width.unwrap_or(0),
        sectors: layout.geometry.array_sectors(),
        // A discarded stripe need not read back as zeroes, so only RAID 0 passes discards on.
        discard: limits
            .discard_granularity
            .filter(|_| raid0 && !options.read_only)
            .map(|granularity| DiscardLimits {
                max_sectors: (1 << 30) / 512,
                granularity: granularity.max(logical_block),
            }),
        write_zeroes_max_sectors: if options.read_only || (raid0 && !limits.write_zeroes) {
            0
        } else {
            request / 512
        },
        volatile_cache: true,
        fua: false,
        rotational: limits.rotational,
        read_only: options.read_only,
        zero_copy: options.zero_copy,
        recovery: true,
        dma_alignment_mask: limits.dma_alignment_mask,
        cookie: super::new_cookie(),
        ..DeviceSpec::default()
    }
}
