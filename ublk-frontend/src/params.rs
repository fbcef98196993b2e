//! Description of a device and its encoding for SET_PARAMS, as pure functions. Runs once per device.
//!
//! The bytes are laid out here, not through the bindings, because those lack the DMA alignment and segment
//! parameters that zero copy needs; a test compares the offsets with the bindings as far as these go.

#![forbid(unsafe_code)]

use crate::convert::MAX_REQUEST_BYTES;
use crate::error::UblkError;
use crate::features::Features;
use libublk::sys;

/// Limits of discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Longest discard in sectors.
    pub max_sectors: u32,
    /// Granularity in bytes, at least one logical block.
    pub granularity: u32,
}

/// Limits of one segment of a request, needed where members take the request's pages directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentLimits {
    /// A segment does not cross multiples of this plus one; a power of two less one, at least 4095.
    pub boundary_mask: u64,
    /// Longest segment in bytes, at least 4096.
    pub max_bytes: u32,
    /// Most segments of one request.
    pub max_segments: u16,
}

/// Everything the driver is told about a new device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Wanted number N of /dev/ublkbN; any free one if `None`.
    pub id: Option<u32>,
    /// Wanted hardware queues; the driver gives at most one per CPU.
    pub queues: u16,
    /// Requests in flight per queue, 1 to 4096.
    pub depth: u16,
    /// Longest request in bytes, a multiple of 4096 up to 32 MiB.
    pub max_request_bytes: u32,
    /// Logical block in bytes.
    pub logical_block: u32,
    /// Physical block in bytes.
    pub physical_block: u32,
    /// Preferred least I/O in bytes. Only powers of two reach the driver, otherwise it is left unset.
    pub io_min: u32,
    /// Preferred I/O in bytes, 0 = unset. Only powers of two reach the driver, otherwise it is left unset.
    pub io_opt: u32,
    /// Requests are split at multiples of this many sectors; 0 = unset.
    pub chunk_sectors: u32,
    /// Size in sectors.
    pub sectors: u64,
    /// Discard, if offered.
    pub discard: Option<DiscardLimits>,
    /// Longest write-zeroes in sectors; 0 = not offered.
    pub write_zeroes_max_sectors: u32,
    /// Answered writes may be lost until a flush; without this no flush is ever sent.
    pub volatile_cache: bool,
    /// FUA writes are understood; needs `volatile_cache`.
    pub fua: bool,
    /// A rotating disk.
    pub rotational: bool,
    /// The device cannot be written.
    pub read_only: bool,
    /// Ask for registration of request pages in the queue's ring where the driver can do it.
    pub zero_copy: bool,
    /// Keep the block device and replay its requests when the server dies.
    pub recovery: bool,
    /// Address alignment of request pages as a mask (511 for 512 bytes); 0 = unset.
    pub dma_alignment_mask: u32,
    /// Segment limits; `None` = unset.
    pub segments: Option<SegmentLimits>,
    /// Kept by the driver unread; marks a device as ours.
    pub cookie: u64,
}

impl Default for DeviceSpec {
    /// One queue of depth 128, 1 MiB requests, 512-byte blocks, a volatile cache, no size.
    fn default() -> Self {
        DeviceSpec {
            id: None,
            queues: 1,
            depth: 128,
            max_request_bytes: 1 << 20,
            logical_block: 512,
            physical_block: 4096,
            io_min: 4096,
            io_opt: 0,
            chunk_sectors: 0,
            sectors: 0,
            discard: None,
            write_zeroes_max_sectors: 0,
            volatile_cache: true,
            fua: false,
            rotational: false,
            read_only: false,
            zero_copy: false,
            recovery: false,
            dma_alignment_mask: 0,
            segments: None,
            cookie: 0,
        }
    }
}

/// Range operations above this many sectors are truncated by some kernels.
const MAX_RANGE_SECTORS: u32 = u32::MAX >> 9;

const TYPE_DMA_ALIGN: u32 = 1 << 4;
const TYPE_SEGMENT: u32 = 1 << 5;
const OFFSET_BASIC: usize = 8;
const OFFSET_DISCARD: usize = 40;
const OFFSET_DMA_ALIGN: usize = 108;
const OFFSET_SEGMENT: usize = 120;

/// Size of the encoded parameters in bytes.
pub const PARAMS_BYTES: usize = 136;

/// Sectors and logical block in bytes, out of what GET_PARAMS gave.
pub(crate) fn shape(params: &[u8; PARAMS_BYTES]) -> (u64, u32) {
    let mut sectors = [0; 8];
    sectors.copy_from_slice(&params[OFFSET_BASIC + 16..OFFSET_BASIC + 24]);
    let shift = u32::from(params[OFFSET_BASIC + 4]).min(31);
    (u64::from_ne_bytes(sectors), 1 << shift)
}

impl DeviceSpec {
    /// Checks what the driver would refuse with a bare EINVAL, or accept and then misbehave.
    ///
    /// # Errors
    /// [`UblkError::Spec`] names the field.
    pub fn validate(&self) -> Result<(), UblkError> {
        let block = |b: u32| b.is_power_of_two() && (512..=4096).contains(&b);
        let checks = [
            ((1..=4096).contains(&self.queues), "queues: 1 to 4096"),
            ((1..=4096).contains(&self.depth), "depth: 1 to 4096"),
            (
                self.max_request_bytes.is_multiple_of(4096)
                    && (4096..=MAX_REQUEST_BYTES).contains(&self.max_request_bytes),
                "max_request_bytes: a multiple of 4096 up to 32 MiB",
            ),
            (block(self.logical_block), "logical_block: 512 to 4096"),
            (
                self.physical_block.is_power_of_two() && self.physical_block >= self.logical_block,
                "physical_block: a power of two, not below logical_block",
            ),
            (
                self.sectors > 0
                    && (self.sectors << 9).is_multiple_of(u64::from(self.logical_block)),
                "sectors: whole logical blocks, not 0",
            ),
            (
                !self.fua || self.volatile_cache,
                "fua: needs volatile_cache",
            ),
            (
                self.discard.is_none_or(|d| {
                    d.granularity >= self.logical_block
                        && d.granularity.is_multiple_of(self.logical_block)
                        && d.max_sectors > 0
                }),
                "discard: granularity in logical blocks, max_sectors not 0",
            ),
            (
                self.dma_alignment_mask < 4096 && (self.dma_alignment_mask + 1).is_power_of_two(),
                "dma_alignment_mask: a power of two less one, below 4096",
            ),
            (
                self.segments.is_none_or(|s| {
                    s.boundary_mask >= 4095
                        && s.boundary_mask.wrapping_add(1) & s.boundary_mask == 0
                        && s.max_bytes >= 4096
                        && s.max_segments > 0
                }),
                "segments: boundary a power of two less one, at least 4095; max_bytes at least 4096; max_segments not 0",
            ),
            (
                self.id.is_none_or(|id| id <= i32::MAX as u32),
                "id: too large",
            ),
        ];
        match checks.iter().find(|(ok, _)| !ok) {
            Some((_, why)) => Err(UblkError::Spec(why)),
            None => Ok(()),
        }
    }

    /// The flags for ADD_DEV out of what the driver offers.
    pub fn flags(&self, features: Features) -> u64 {
        let mut flags = sys::UBLK_F_USER_COPY | sys::UBLK_F_CMD_IOCTL_ENCODE;
        if self.zero_copy && features.zero_copy() && features.auto_buf_reg() {
            flags |= sys::UBLK_F_SUPPORT_ZERO_COPY | sys::UBLK_F_AUTO_BUF_REG;
        }
        if self.recovery && features.recovery() {
            flags |= sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE;
            if features.quiesce() {
                flags |= sys::UBLK_F_QUIESCE;
            }
        }
        u64::from(flags)
    }

    /// The bytes of `struct ublk_params` for SET_PARAMS. The older drivers read only the part that they know.
    pub fn encode(&self) -> [u8; PARAMS_BYTES] {
        let shift = |bytes: u32| {
            if bytes.is_power_of_two() {
                bytes.trailing_zeros() as u8
            } else {
                0
            }
        };
        let mut types = sys::UBLK_PARAM_TYPE_BASIC;
        let mut out = Out([0; PARAMS_BYTES]);

        let mut attrs = 0;
        for (on, attr) in [
            (self.read_only, sys::UBLK_ATTR_READ_ONLY),
            (self.rotational, sys::UBLK_ATTR_ROTATIONAL),
            (self.volatile_cache, sys::UBLK_ATTR_VOLATILE_CACHE),
            (self.fua, sys::UBLK_ATTR_FUA),
        ] {
            attrs |= if on { attr } else { 0 };
        }
        out.u32(OFFSET_BASIC, attrs);
        out.0[OFFSET_BASIC + 4] = shift(self.logical_block);
        out.0[OFFSET_BASIC + 5] = shift(self.physical_block);
        out.0[OFFSET_BASIC + 6] = shift(self.io_opt);
        out.0[OFFSET_BASIC + 7] = shift(self.io_min);
        out.u32(OFFSET_BASIC + 8, self.max_request_bytes >> 9);
        out.u32(OFFSET_BASIC + 12, self.chunk_sectors);
        out.u64(OFFSET_BASIC + 16, self.sectors);

        if self.discard.is_some() || self.write_zeroes_max_sectors > 0 {
            types |= sys::UBLK_PARAM_TYPE_DISCARD;
            let discard = self.discard.unwrap_or(DiscardLimits {
                max_sectors: 0,
                granularity: self.logical_block,
            });
            out.u32(OFFSET_DISCARD + 4, discard.granularity);
            out.u32(
                OFFSET_DISCARD + 8,
                discard.max_sectors.min(MAX_RANGE_SECTORS),
            );
            out.u32(
                OFFSET_DISCARD + 12,
                self.write_zeroes_max_sectors.min(MAX_RANGE_SECTORS),
            );
            out.u32(OFFSET_DISCARD + 16, 1u16.to_le().into());
        }
        if self.dma_alignment_mask > 0 {
            types |= TYPE_DMA_ALIGN;
            out.u32(OFFSET_DMA_ALIGN, self.dma_alignment_mask);
        }
        if let Some(segments) = self.segments {
            types |= TYPE_SEGMENT;
            out.u64(OFFSET_SEGMENT, segments.boundary_mask);
            out.u32(OFFSET_SEGMENT + 8, segments.max_bytes);
            out.0[OFFSET_SEGMENT + 12..OFFSET_SEGMENT + 14]
                .copy_from_slice(&segments.max_segments.to_ne_bytes());
        }
        out.u32(0, PARAMS_BYTES as u32);
        out.u32(4, types);
        out.0
    }
}

struct Out([u8; PARAMS_BYTES]);

impl Out {
    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    fn spec() -> DeviceSpec {
        DeviceSpec {
            sectors: 1 << 20,
            ..DeviceSpec::default()
        }
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn offsets_match_the_bindings() {
        type P = sys::ublk_params;
        assert_eq!(offset_of!(P, types), 4);
        assert_eq!(offset_of!(P, basic), OFFSET_BASIC);
        assert_eq!(offset_of!(sys::ublk_param_basic, max_sectors), 8);
        assert_eq!(offset_of!(sys::ublk_param_basic, chunk_sectors), 12);
        assert_eq!(offset_of!(sys::ublk_param_basic, dev_sectors), 16);
        assert_eq!(offset_of!(sys::ublk_param_basic, io_opt_shift), 6);
        assert_eq!(offset_of!(sys::ublk_param_basic, io_min_shift), 7);
        assert_eq!(offset_of!(P, discard), OFFSET_DISCARD);
        type D = sys::ublk_param_discard;
        assert_eq!(offset_of!(D, discard_granularity), 4);
        assert_eq!(offset_of!(D, max_discard_sectors), 8);
        assert_eq!(offset_of!(D, max_write_zeroes_sectors), 12);
        assert_eq!(offset_of!(D, max_discard_segments), 16);
        assert_eq!(size_of::<P>(), OFFSET_DMA_ALIGN + 4); // rounded up to 8
        assert_eq!(
            offset_of!(P, zoned) + size_of::<sys::ublk_param_zoned>(),
            OFFSET_DMA_ALIGN
        );
        assert_eq!((OFFSET_DMA_ALIGN + 8).next_multiple_of(8), OFFSET_SEGMENT);
        assert_eq!(OFFSET_SEGMENT + 16, PARAMS_BYTES);
    }

    #[test]
    fn widths_that_are_no_powers_of_two_stay_unset() {
        let bytes = DeviceSpec {
            io_min: 64 << 10,
            io_opt: 3 * (64 << 10),
            ..spec()
        }
        .encode();
        assert_eq!(bytes[OFFSET_BASIC + 7], 16);
        assert_eq!(bytes[OFFSET_BASIC + 6], 0);
        assert_eq!(bytes[OFFSET_BASIC + 4], 9);
        assert_eq!(bytes[OFFSET_BASIC + 5], 12);
        assert_eq!(u32_at(&bytes, 4), sys::UBLK_PARAM_TYPE_BASIC);
        assert_eq!(u32_at(&bytes, OFFSET_BASIC), sys::UBLK_ATTR_VOLATILE_CACHE);
        assert_eq!(u32_at(&bytes, OFFSET_BASIC + 8), 2048);
    }

    #[test]
    fn write_zeroes_alone_still_names_a_granularity() {
        let bytes = DeviceSpec {
            write_zeroes_max_sectors: u32::MAX,
            ..spec()
        }
        .encode();
        assert_eq!(
            u32_at(&bytes, 4),
            sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD
        );
        assert_eq!(u32_at(&bytes, OFFSET_DISCARD + 4), 512);
        assert_eq!(u32_at(&bytes, OFFSET_DISCARD + 8), 0);
        assert_eq!(u32_at(&bytes, OFFSET_DISCARD + 12), u32::MAX >> 9);
        assert_eq!(u32_at(&bytes, OFFSET_DISCARD + 16), 1);
    }

    #[test]
    fn flags_follow_the_driver() {
        let spec = DeviceSpec {
            zero_copy: true,
            recovery: true,
            ..spec()
        };
        let base = u64::from(sys::UBLK_F_USER_COPY | sys::UBLK_F_CMD_IOCTL_ENCODE);
        assert_eq!(spec.flags(Features::from_bits(base)), base);
        // Zero copy without automatic registration is of no use to us.
        assert_eq!(spec.flags(Features::from_bits(base | 1)), base);
        let all = spec.flags(Features::from_bits(0x1f_ffff));
        assert_eq!(all, base | 1 | 1 << 11 | 1 << 3 | 1 << 4 | 1 << 12);
    }

    #[test]
    fn bad_descriptions_are_named() {
        assert!(spec().validate().is_ok());
        type Edit = fn(&mut DeviceSpec);
        let bad: [(Edit, &str); 8] = [
            (|s| s.sectors = 0, "sectors"),
            (|s| s.depth = 4097, "depth"),
            (|s| s.queues = 0, "queues"),
            (|s| s.max_request_bytes = 64 << 20, "max_request_bytes"),
            (|s| s.logical_block = 1024 * 3, "logical_block"),
            (|s| s.dma_alignment_mask = 4096, "dma_alignment_mask"),
            (
                |s| {
                    s.fua = true;
                    s.volatile_cache = false;
                },
                "fua",
            ),
            (
                |s| {
                    s.logical_block = 4096;
                    s.sectors = 9;
                },
                "sectors",
            ),
        ];
        for (edit, field) in bad {
            let mut s = spec();
            edit(&mut s);
            match s.validate() {
                Err(UblkError::Spec(why)) => assert!(why.starts_with(field), "{why}"),
                other => panic!("{field}: {other:?}"),
            }
        }
    }
}
