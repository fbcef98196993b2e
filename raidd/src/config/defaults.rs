//! `defaults:`, what `create` and `assemble` use unless told otherwise. Checks of one value live in that value's type or in a
//! function beside it, so that the parser still knows the line when they fail.

use std::ops::RangeInclusive;
use std::time::Duration;

use raid_core::geometry::{Level, parse_layout};
use serde::Deserialize;
use serde::de::Deserializer;

use super::found::{Found, read};
use super::parity;
use super::value::{one_of, size, size_within, whole, whole_numbers};
use crate::array_api::ArrayOptions;
use crate::lane::choice::GpuChoice;
use crate::units::{Bytes, Span};

/// `defaults:`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Chunk of new arrays.
    pub chunk: Chunk,
    /// Layout of new RAID 5 and 6 arrays, by MD's name.
    #[serde(deserialize_with = "layout")]
    pub layout: String,
    /// ublk queues per array.
    pub queues: Queues,
    /// Requests in flight per queue.
    #[serde(deserialize_with = "depth")]
    pub depth: u16,
    /// Largest request of the block device.
    #[serde(deserialize_with = "max_request")]
    pub max_request: Bytes,
    /// Whether a request's own pages may go to the members.
    pub zero_copy: ZeroCopy,
    /// Idle time before an array is marked clean.
    pub safe_mode_delay: Span,
    /// Buffer memory per queue.
    #[serde(deserialize_with = "buffer_memory")]
    pub buffer_memory: Bytes,
    /// Parity engine by name, or `auto`.
    #[serde(deserialize_with = "parity::engine")]
    pub parity_engine: Option<String>,
    /// GPUs that may compute parity.
    #[serde(deserialize_with = "parity::gpu")]
    pub gpu: GpuChoice,
    /// How many times later than on the CPU a job may end on a GPU.
    #[serde(deserialize_with = "parity::slack")]
    pub gpu_slack: u32,
    /// Most multiprocessors of one GPU that an array keeps while it gives it work.
    #[serde(deserialize_with = "parity::blocks")]
    pub gpu_blocks: u16,
    /// Speed of background walks.
    pub resync: Resync,
}

/// `defaults.resync:`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resync {
    /// Kept up while the foreground is busy, per second.
    pub floor: Bytes,
    /// Never exceeded, per second.
    pub ceiling: Option<Bytes>,
}

/// `zero_copy:`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroCopy {
    /// Where the kernel can.
    Auto,
    /// Never.
    Off,
}

/// A chunk: a power of two from 4 KiB to 64 MiB, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk(pub u32);

/// `queues:` a number or `auto` (one per CPU, at most 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues(pub Option<u16>);

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            chunk: Chunk(64 << 10),
            layout: "left-symmetric".into(),
            queues: Queues(None),
            depth: 128,
            max_request: Bytes(4 << 20),
            zero_copy: ZeroCopy::Auto,
            safe_mode_delay: Span(Duration::from_millis(200)),
            buffer_memory: Bytes(64 << 20),
            parity_engine: None,
            gpu: GpuChoice::Auto,
            gpu_slack: 2,
            gpu_blocks: 16,
            resync: Resync::default(),
        }
    }
}

impl Default for Resync {
    fn default() -> Resync {
        Resync {
            floor: Bytes(10 << 20),
            ceiling: None,
        }
    }
}

impl Defaults {
    /// The options of one array start.
    pub fn options(&self, read_only: bool) -> ArrayOptions {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get().min(8) as u16);
        ArrayOptions {
            queues: self.queues.0.unwrap_or(cpus),
            depth: self.depth,
            max_request_bytes: self.max_request.0 as u32,
            zero_copy: self.zero_copy == ZeroCopy::Auto,
            read_only,
            safe_mode_delay_ms: self.safe_mode_delay.0.as_millis() as u64,
            resync_floor_bytes: self.resync.floor.0,
            resync_ceiling_bytes: self.resync.ceiling.map(|b| b.0),
            parity_engine: self.parity_engine.clone(),
            gpu: self.gpu.clone(),
            gpu_slack: self.gpu_slack,
            gpu_blocks: self.gpu_blocks,
            device_id: None,
            frame_bytes: self.buffer_memory.0,
            claim: None,
        }
    }
}

fn depth<'de, D: Deserializer<'de>>(d: D) -> Result<u16, D::Error> {
    whole(d, 1..=4096).map(|n| n as u16)
}

fn max_request<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
    const WITHIN: RangeInclusive<u64> = 1 << 20..=32 << 20;
    let wanted = "a multiple of 4 KiB from 1 MiB to 32 MiB";
    size(d, wanted, |n| {
        match WITHIN.contains(&n) && n.is_multiple_of(4096) {
            true => Ok(Bytes(n)),
            false => Err(format!("{} does not fit: write {wanted}", Bytes(n))),
        }
    })
}

fn buffer_memory<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
    size_within(d, 8 << 20..=1 << 40)
}

fn layout<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    read(d, |found| match found {
        Found::Word(name) if parse_layout(Level::Raid6, &name).is_some() => Ok(name),
        other => Err(other.misfit("left-symmetric or another of mdadm's names of layouts")),
    })
}

/// Whether a chunk can be used; the message says what can.
pub fn check_chunk(bytes: u64) -> Result<Chunk, String> {
    if !bytes.is_power_of_two() || !(4096..=64 << 20).contains(&bytes) {
        return Err(format!(
            "{} is no chunk size: use a power of two from 4K to 64M",
            Bytes(bytes)
        ));
    }
    Ok(Chunk(bytes as u32))
}

impl<'de> Deserialize<'de> for Chunk {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Chunk, D::Error> {
        size(d, "a power of two from 4K to 64M", check_chunk)
    }
}

impl<'de> Deserialize<'de> for ZeroCopy {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<ZeroCopy, D::Error> {
        one_of(d, &[("auto", ZeroCopy::Auto), ("off", ZeroCopy::Off)])
    }
}

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Queues, D::Error> {
        const WITHIN: RangeInclusive<u64> = 1..=128;
        read(d, |found| match found {
            Found::Number(n) if WITHIN.contains(&n) => Ok(Queues(Some(n as u16))),
            Found::Word(word) if word.eq_ignore_ascii_case("auto") => Ok(Queues(None)),
            other => Err(other.misfit(format_args!("auto, or {}", whole_numbers(&WITHIN)))),
        })
    }
}
