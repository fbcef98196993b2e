//! Network block devices of this kernel whose other end is in this process: what `nbd-client` does, without negotiation
//! (include/uapi/linux/nbd.h, and doc/proto.md of the NBD project). The only file here with system calls of its own.

use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

mod call {
    //! The ioctls: the kernel's name is the function's in capitals.
    use nix::request_code_none;
    nix::ioctl_write_int_bad!(nbd_set_sock, request_code_none!(0xab, 0));
    nix::ioctl_write_int_bad!(nbd_set_blksize, request_code_none!(0xab, 1));
    nix::ioctl_none_bad!(nbd_do_it, request_code_none!(0xab, 3));
    nix::ioctl_none_bad!(nbd_clear_sock, request_code_none!(0xab, 4));
    nix::ioctl_write_int_bad!(nbd_set_size_blocks, request_code_none!(0xab, 7));
    nix::ioctl_none_bad!(nbd_disconnect, request_code_none!(0xab, 8));
    nix::ioctl_write_int_bad!(nbd_set_flags, request_code_none!(0xab, 10));
}

const SECTOR: u64 = 512;
/// `NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA`: the kernel sees a volatile cache.
const FLAGS: i32 = 1 | 4 | 8;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const COMMAND_FUA: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Read,
    Write { fua: bool },
    Disconnect,
    Flush,
    Unknown,
}

/// A request's head; the bytes of a write come next on the stream.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub command: Command,
    pub cookie: [u8; 8],
    pub offset: u64,
    pub bytes: usize,
}

impl Request {
    /// # Errors
    /// The stream has ended or carries something else.
    pub fn read(stream: &mut UnixStream) -> Result<Request> {
        let mut head = [0; 28];
        stream.read_exact(&mut head).context("read a request")?;
        let word =
            |from: usize| u32::from_be_bytes(head[from..from + 4].try_into().expect("four bytes"));
        anyhow::ensure!(word(0) == REQUEST, "no request but {:02x?}", &head[..4]);
        let flags = u16::from_be_bytes([head[4], head[5]]);
        let command = match u16::from_be_bytes([head[6], head[7]]) {
            0 => Command::Read,
            1 => Command::Write {
                fua: flags & COMMAND_FUA != 0,
            },
            2 => Command::Disconnect,
            3 => Command::Flush,
            _ => Command::Unknown,
        };
        Ok(Request {
            command,
            cookie: head[8..16].try_into().expect("eight bytes"),
            offset: u64::from(word(16)) << 32 | u64::from(word(20)),
            bytes: word(24) as usize,
        })
    }

    /// Answers it; `data` is what was read.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn answer(&self, stream: &mut UnixStream, errno: u32, data: &[u8]) -> Result<()> {
        let mut reply = Vec::with_capacity(16 + data.len());
        reply.extend_from_slice(&REPLY.to_be_bytes());
        reply.extend_from_slice(&errno.to_be_bytes());
        reply.extend_from_slice(&self.cookie);
        reply.extend_from_slice(data);
        stream.write_all(&reply).context("answer")
    }
}

/// A device that is attached for as long as [`Device::run`] lasts.
pub struct Device {
    file: File,
    _kernel_end: UnixStream,
}

impl Device {
    /// Gives `node` a size and the other end of the stream that is returned.
    ///
    /// # Errors
    /// No such node, or it is in use.
    pub fn attach(node: &Path, bytes: u64) -> Result<(Device, UnixStream)> {
        let name = node.display();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(node)
            .with_context(|| format!("open {name}"))?;
        let (ours, theirs) = UnixStream::pair().context("a pair of sockets")?;
        let fd = file.as_raw_fd();
        let blocks = i32::try_from(bytes / SECTOR).context("too large")?;
        // SAFETY: these take an integer each, and both descriptors are open.
        unsafe {
            call::nbd_clear_sock(fd)?;
            call::nbd_set_blksize(fd, SECTOR as i32)?;
            call::nbd_set_size_blocks(fd, blocks)?;
            call::nbd_set_flags(fd, FLAGS)?;
            call::nbd_set_sock(fd, theirs.as_raw_fd()).with_context(|| format!("attach {name}"))?;
        }
        Ok((
            Device {
                file,
                _kernel_end: theirs,
            },
            ours,
        ))
    }

    /// Serves as the kernel's side until someone disconnects.
    pub fn run(&self) {
        // SAFETY: no argument; it blocks, and an error means that the device is gone, which is how it ends.
        let _ = unsafe { call::nbd_do_it(self.file.as_raw_fd()) };
    }

    /// Ends [`run`](Device::run) of another thread.
    pub fn disconnect(&self) {
        // SAFETY: no argument; where it is gone already nothing is to be done.
        let _ = unsafe { call::nbd_disconnect(self.file.as_raw_fd()) };
    }
}
