//! Kernel words to ours and back, as pure functions. Owns no state, performs no I/O; the descriptor is 24 bytes, so
//! each call is a few instructions.

#![forbid(unsafe_code)]

use libublk::sys;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Fill the request's pages.
    Read,
    /// Store the request's pages.
    Write,
    /// Make every write that was answered before durable.
    Flush,
    /// The range's content is no longer needed.
    Discard,
    /// The range shall read as zeroes.
    WriteZeroes {
        /// Whether the space may be given back (the client did not forbid it).
        unmap: bool,
    },
}

/// One request of a client. Sectors are 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First sector of the device; 0 for a flush.
    pub lba: u64,
    /// Length in sectors; 0 for a flush.
    pub sectors: u32,
    /// The write shall be durable before it is answered.
    pub fua: bool,
}

impl Request {
    /// Whether the request carries bytes to copy.
    pub fn has_data(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write)
    }

    /// Length in bytes of the data; 0 for requests without data.
    pub fn data_bytes(&self) -> u32 {
        if self.has_data() {
            self.sectors << 9
        } else {
            0
        }
    }

    /// The result to commit when all went well: the full length of a read or write, otherwise 0 (a byte count of a
    /// long range would overflow).
    pub fn success(&self) -> i32 {
        self.data_bytes() as i32
    }
}

/// Why a request failed, as far as a client can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The array cannot serve the range.
    Io,
    /// The bytes of the range are lost, others may be readable.
    Medium,
    /// No space.
    NoSpace,
    /// The operation is not supported.
    Unsupported,
    /// The array is going away.
    Shutdown,
}

impl RequestError {
    /// The negative errno to commit. The only place where an errno goes out.
    ///
    /// The block layer turns ENODATA into "medium error" and ENODEV into "device offline"; EAGAIN must never be
    /// used, it fails ordinary requests instead of having them retried.
    pub fn result(self) -> i32 {
        -match self {
            RequestError::Io => libc::EIO,
            RequestError::Medium => libc::ENODATA,
            RequestError::NoSpace => libc::ENOSPC,
            RequestError::Unsupported => libc::EOPNOTSUPP,
            RequestError::Shutdown => libc::ENODEV,
        }
    }
}

/// A request descriptor as the driver writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Operation in bits 0 to 7, flags above.
    pub op_flags: u32,
    /// Length in sectors.
    pub sectors: u32,
    /// First sector.
    pub lba: u64,
}

impl Descriptor {
    /// The request, or the negative errno to answer.
    pub fn request(&self) -> Result<Request, i32> {
        let op = match self.op_flags & 0xff {
            sys::UBLK_IO_OP_READ => Op::Read,
            sys::UBLK_IO_OP_WRITE => Op::Write,
            sys::UBLK_IO_OP_FLUSH => {
                return Ok(Request {
                    op: Op::Flush,
                    lba: 0,
                    sectors: 0,
                    fua: false,
                });
            }
            sys::UBLK_IO_OP_DISCARD => Op::Discard,
            sys::UBLK_IO_OP_WRITE_ZEROES => Op::WriteZeroes {
                unmap: self.op_flags & sys::UBLK_IO_F_NOUNMAP == 0,
            },
            _ => return Err(RequestError::Unsupported.result()),
        };
        let fua = op != Op::Read && self.op_flags & sys::UBLK_IO_F_FUA != 0;
        Ok(Request {
            op,
            lba: self.lba,
            sectors: self.sectors,
            fua,
        })
    }

    /// The driver could not register the request's pages in the ring: use the copying calls for this one.
    pub fn not_registered(&self) -> bool {
        self.op_flags & sys::UBLK_IO_F_NEED_REG_BUF != 0
    }
}

/// Largest request the offset arithmetic of user copy can address, in bytes.
pub const MAX_REQUEST_BYTES: u32 = 1 << sys::UBLK_IO_BUF_BITS;

/// Position in the char device of byte `offset` of the request `tag` of queue `qid` (header: UBLKSRV_IO_BUF_OFFSET,
/// then 25 bits of offset, 16 of tag, 12 of queue).
pub fn user_copy_position(qid: u16, tag: u16, offset: u32) -> u64 {
    debug_assert!(offset < MAX_REQUEST_BYTES);
    u64::from(sys::UBLKSRV_IO_BUF_OFFSET)
        + (u64::from(qid) << sys::UBLK_QID_OFF
            | u64::from(tag) << sys::UBLK_TAG_OFF
            | u64::from(offset))
}

/// Position in the char device of the descriptors of queue `qid`: the stride is set by the greatest possible depth.
pub fn descriptor_position(qid: u16) -> u64 {
    u64::from(sys::UBLKSRV_CMD_BUF_OFFSET)
        + u64::from(qid) * u64::from(sys::UBLK_MAX_QUEUE_DEPTH) * DESCRIPTOR_BYTES as u64
}

/// Size of one descriptor; only a device that asks for larger ones gets any other.
pub const DESCRIPTOR_BYTES: usize = size_of::<sys::ublksrv_io_desc>();

/// The 16 command bytes of FETCH_REQ and COMMIT_AND_FETCH_REQ; the address stays 0 with user copy.
pub fn io_command(qid: u16, tag: u16, result: i32) -> [u8; 16] {
    let mut cmd = [0; 16];
    cmd[0..2].copy_from_slice(&qid.to_ne_bytes());
    cmd[2..4].copy_from_slice(&tag.to_ne_bytes());
    cmd[4..8].copy_from_slice(&result.to_ne_bytes());
    cmd
}

/// The entry's address field that asks for registration of the next request's pages at buffer index `index`; if that
/// fails the request still comes, marked.
pub fn auto_buf_address(index: u16) -> u64 {
    u64::from(index) | u64::from(sys::UBLK_AUTO_BUF_REG_FALLBACK) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(op: u32, flags: u32) -> Descriptor {
        Descriptor {
            op_flags: op | flags,
            sectors: 16,
            lba: 7,
        }
    }

    #[test]
    fn operations() {
        let request = |op, fua| {
            Ok(Request {
                op,
                lba: 7,
                sectors: 16,
                fua,
            })
        };
        let fua = sys::UBLK_IO_F_FUA;
        assert_eq!(descriptor(0, 0).request(), request(Op::Read, false));
        assert_eq!(descriptor(0, fua).request(), request(Op::Read, false));
        assert_eq!(descriptor(1, 0).request(), request(Op::Write, false));
        assert_eq!(descriptor(1, fua).request(), request(Op::Write, true));
        assert_eq!(descriptor(3, 0).request(), request(Op::Discard, false));
        let zero = |unmap| Op::WriteZeroes { unmap };
        assert_eq!(descriptor(5, 0).request(), request(zero(true), false));
        assert_eq!(
            descriptor(5, fua | sys::UBLK_IO_F_NOUNMAP).request(),
            request(zero(false), true)
        );
        assert_eq!(
            descriptor(2, 0).request(),
            Ok(Request {
                op: Op::Flush,
                lba: 0,
                sectors: 0,
                fua: false
            })
        );
    }

    #[test]
    fn every_other_operation_is_refused() {
        for op in (0..=255u32).filter(|op| ![0, 1, 2, 3, 5].contains(op)) {
            assert_eq!(descriptor(op, 0).request(), Err(-libc::EOPNOTSUPP));
        }
    }

    #[test]
    fn hints_do_not_change_a_request() {
        let hints =
            sys::UBLK_IO_F_META | sys::UBLK_IO_F_SWAP | sys::UBLK_IO_F_FAILFAST_DEV | 1 << 17;
        assert_eq!(descriptor(1, hints).request(), descriptor(1, 0).request());
        assert!(descriptor(0, 1 << 17).not_registered());
        assert!(!descriptor(0, 0).not_registered());
    }

    #[test]
    fn success_is_the_length_only_where_bytes_move() {
        let of = |op| descriptor(op, 0).request().map(|r| r.success());
        assert_eq!(of(0), Ok(8192));
        assert_eq!(of(1), Ok(8192));
        assert_eq!(of(2), Ok(0));
        assert_eq!(of(3), Ok(0));
        assert_eq!(of(5), Ok(0));
        let long = Request {
            op: Op::Discard,
            lba: 0,
            sectors: u32::MAX >> 9,
            fua: false,
        };
        assert_eq!(long.success(), 0);
    }

    #[test]
    fn errors_go_out_as_the_block_layer_expects() {
        assert_eq!(RequestError::Io.result(), -5);
        assert_eq!(RequestError::Medium.result(), -61);
        assert_eq!(RequestError::NoSpace.result(), -28);
        assert_eq!(RequestError::Unsupported.result(), -95);
        assert_eq!(RequestError::Shutdown.result(), -19);
    }

    #[test]
    fn positions() {
        assert_eq!(user_copy_position(0, 0, 0), 0x8000_0000);
        assert_eq!(user_copy_position(0, 0, 4096), 0x8000_1000);
        assert_eq!(user_copy_position(0, 1, 0), 0x8000_0000 + (1 << 25));
        assert_eq!(
            user_copy_position(3, 5, 7),
            0x8000_0000 + (3 << 41) + (5 << 25) + 7
        );
        // The last byte of the last tag of one queue comes before the next queue.
        assert!(
            user_copy_position(0, u16::MAX, MAX_REQUEST_BYTES - 1) < user_copy_position(1, 0, 0)
        );
        assert_eq!(DESCRIPTOR_BYTES, 24);
        assert_eq!(descriptor_position(0), 0);
        assert_eq!(descriptor_position(2), 2 * 4096 * 24);
    }

    #[test]
    fn command_bytes_match_the_header() {
        use std::mem::offset_of;
        type Cmd = sys::ublksrv_io_cmd;
        assert_eq!(size_of::<Cmd>(), 16);
        assert_eq!(offset_of!(Cmd, q_id), 0);
        assert_eq!(offset_of!(Cmd, tag), 2);
        assert_eq!(offset_of!(Cmd, result), 4);
        let bytes = io_command(0x0102, 0x0304, -5);
        assert_eq!(bytes[0..2], 0x0102u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 0x0304u16.to_ne_bytes());
        assert_eq!(bytes[4..8], (-5i32).to_ne_bytes());
        assert_eq!(bytes[8..], [0; 8]);
        assert_eq!(auto_buf_address(9), 0x1_0009);
    }
}
