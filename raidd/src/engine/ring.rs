//! The engine's io_uring: member I/O, the wake-up descriptor, and room for the frontend's commands.
//!
//! Ownership: the engine keeps arena and ring together and drops the ring first, after its last completion; what a pushed
//! entry refers to is arena memory, a request's registered pages, or a member file that the engine holds. Vector lists are
//! only read by the kernel while it takes the entries in, so they live in a scratch list that is reused after each submit.
//!
//! Key space of `user_data`: bit 63 the frontend, bit 62 the wake-up descriptor, else the core's I/O number.
//!
//! All `unsafe` of the daemon is in this file.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::squeue::{Entry, SubmissionQueue};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};
use parity_kernels::{Arena, BufRange};
use raid_core::path::types::{Buf, BufSlice};

/// Key of the wake-up read.
pub const WAKE_KEY: u64 = 1 << 62;

/// Key of the frontend's wake-up read.
pub const FRONTEND_KEY: u64 = WAKE_KEY | 1;

/// `_IO(0x12, 0)`: discard a byte range of a block device through a ring (Linux 6.12).
const BLOCK_URING_CMD_DISCARD: u32 = 0x1200;
/// How long to wait for more completions than one, in microseconds.
const GATHER_US: u32 = 50;
/// Outer limit of a wait that has an inner one.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Most bytes of one registered buffer.
const MOST_REGISTERED: usize = 1 << 30;

/// One ring. See the module comment.
pub struct MemberRing {
    ring: IoUring,
    iovecs: Vec<libc::iovec>,
    /// Buffer table index of the first piece of the arena, and the bytes of a piece; none if registration failed.
    fixed: Option<(u16, usize)>,
    vectored_fixed: bool,
    /// The kernel can wait for several completions with a time limit on "several" (Linux 6.12).
    min_wait: bool,
    wake: Box<[u64; 2]>,
}

/// What a member I/O moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Member to buffers.
    Read,
    /// Buffers to member.
    Write,
}

impl MemberRing {
    /// A ring with a buffer table for `request_bufs` requests and the arena. Call on the engine's thread.
    ///
    /// # Errors
    /// What io_uring_setup says; a kernel that cannot register the arena only makes I/O slower.
    pub fn new(entries: u32, request_bufs: u16, arena: &Arena) -> io::Result<MemberRing> {
        let build = |defer: bool| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(entries * 4).setup_single_issuer();
            if defer {
                builder.setup_defer_taskrun();
            } else {
                builder.setup_coop_taskrun();
            }
            builder.setup_taskrun_flag();
            builder.build(entries)
        };
        let ring: IoUring = build(true).or_else(|_| build(false))?;
        let min_wait = ring.params().is_feature_min_timeout();
        let piece = (MOST_REGISTERED / arena.frame_bytes()).max(1) * arena.frame_bytes();
        let pieces = arena.len().div_ceil(piece);
        let mut probe = Probe::new();
        let vectored_fixed = ring.submitter().register_probe(&mut probe).is_ok()
            && probe.is_supported(opcode::ReadvFixed::CODE)
            && probe.is_supported(opcode::WritevFixed::CODE);
        let table = u32::from(request_bufs) + pieces as u32;
        ring.submitter().register_buffers_sparse(table)?;
        let list: Vec<libc::iovec> = (0..pieces)
            .map(|i| {
                let off = i * piece;
                arena.iovec(BufRange {
                    off,
                    len: piece.min(arena.len() - off),
                })
            })
            .collect();
        // SAFETY: the ranges are arena memory, which outlives the ring (see the module comment).
        let registered = unsafe {
            ring.submitter()
                .register_buffers_update(u32::from(request_bufs), &list, None)
        };
        if let Err(error) = &registered {
            tracing::warn!(%error, "buffer memory cannot be registered with io_uring; going on without");
        }
        Ok(MemberRing {
            ring,
            iovecs: Vec::with_capacity(16384),
            fixed: registered.is_ok().then_some((request_bufs, piece)),
            vectored_fixed,
            min_wait,
            wake: Box::new([0; 2]),
        })
    }

    /// The submission queue, for the frontend's commands.
    pub fn sq(&mut self) -> SubmissionQueue<'_> {
        self.ring.submission()
    }

    /// Hands everything to the kernel and waits for `want` completions, but for no more than one once [`GATHER_US`] have
    /// passed, and for none after `limit`.
    pub fn submit_and_wait(&mut self, want: u32, limit: Option<Duration>) -> io::Result<()> {
        let want = if self.min_wait { want } else { 1 };
        // Without an outer limit the inner one would end the wait with nothing, again and again while members are slow.
        let limit = limit.or((want > 1).then_some(LONG_WAIT));
        let time = limit.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(time) = &time {
            args = args.timespec(time);
        }
        if want > 1 {
            args = args.min_wait_usec(GATHER_US);
        }
        let done = self
            .ring
            .submitter()
            .submit_with_args(want as usize, &args)
            .map(drop);
        self.iovecs.clear();
        match done {
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Hands everything to the kernel without waiting, and lets it deliver what is done.
    pub fn submit(&mut self) -> io::Result<()> {
        let done = self.ring.submitter().submit_and_wait(0);
        self.iovecs.clear();
        match done {
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Whether completions are there, or can be had without waiting. A system call only if the kernel has some in reserve.
    pub fn ready(&mut self) -> io::Result<bool> {
        if self.ring.submission().taskrun() {
            self.submit()?;
        }
        Ok(!self.ring.completion().is_empty())
    }

    /// Moves the completions that are there to `out` as `(user_data, result)`.
    pub fn completions(&mut self, out: &mut Vec<(u64, i32)>) {
        let room = out.capacity() - out.len();
        let mut cq = self.ring.completion();
        out.extend(cq.by_ref().take(room).map(|c| (c.user_data(), c.result())));
    }

    fn push(&mut self, entry: &Entry) {
        loop {
            // SAFETY: every caller in this file builds entries over arena memory, registered requests, member files or
            // `wake`, all of which outlive the completion (module comment).
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            if let Err(error) = self.submit() {
                // Nothing can be started or finished any more; the block device must not pretend otherwise.
                panic!("io_uring does not take submissions: {error}");
            }
        }
    }

    /// Asks for one wake-up through an eventfd.
    pub fn arm_wake(&mut self, fd: BorrowedFd<'_>) {
        let place = (&raw mut self.wake[0]).cast();
        self.push(
            &opcode::Read::new(Fd(fd.as_raw_fd()), place, 8)
                .build()
                .user_data(WAKE_KEY),
        );
    }

    /// Asks for one wake-up through the frontend's eventfd.
    pub fn arm_frontend(&mut self, fd: BorrowedFd<'_>) {
        let place = (&raw mut self.wake[1]).cast();
        self.push(
            &opcode::Read::new(Fd(fd.as_raw_fd()), place, 8)
                .build()
                .user_data(FRONTEND_KEY),
        );
    }

    /// Starts a read or write of a member at byte `pos`. `bufs` are in one memory, arena or request, in order.
    ///
    /// # Panics
    /// If a buffer is not within the arena.
    pub fn transfer(
        &mut self,
        key: u32,
        direction: Direction,
        file: &File,
        pos: u64,
        bufs: &[BufSlice],
        arena: &Arena,
    ) {
        let fd = Fd(file.as_raw_fd());
        let index = self.table_index(bufs);
        let entry = if let ([one], Some(index)) = (bufs, index) {
            let (ptr, len) = (address(one, arena), one.len);
            match direction {
                Direction::Read => opcode::ReadFixed::new(fd, ptr, len, index)
                    .offset(pos)
                    .build(),
                Direction::Write => opcode::WriteFixed::new(fd, ptr, len, index)
                    .offset(pos)
                    .build(),
            }
        } else {
            if self.iovecs.capacity() - self.iovecs.len() < bufs.len()
                && let Err(error) = self.submit()
            {
                panic!("io_uring does not take submissions: {error}");
            }
            let start = self.iovecs.len();
            for buf in bufs {
                self.iovecs.push(libc::iovec {
                    iov_base: address(buf, arena).cast(),
                    iov_len: buf.len as usize,
                });
            }
            let list = self.iovecs[start..].as_ptr();
            let count = bufs.len() as u32;
            match (direction, index.filter(|_| self.vectored_fixed)) {
                (Direction::Read, Some(i)) => opcode::ReadvFixed::new(fd, list, count, i)
                    .offset(pos)
                    .build(),
                (Direction::Write, Some(i)) => opcode::WritevFixed::new(fd, list, count, i)
                    .offset(pos)
                    .build(),
                (Direction::Read, None) => opcode::Readv::new(fd, list, count).offset(pos).build(),
                (Direction::Write, None) => {
                    opcode::Writev::new(fd, list, count).offset(pos).build()
                }
            }
        };
        self.push(&entry.user_data(u64::from(key)));
    }

    /// The buffer table index that covers all of `bufs`, if there is one.
    fn table_index(&self, bufs: &[BufSlice]) -> Option<u16> {
        match bufs.first()?.buf {
            Buf::Request(tag) => Some(tag),
            Buf::Arena => {
                let (base, piece) = self.fixed?;
                let first = bufs[0].off as usize / piece;
                bufs.iter()
                    .all(|b| b.off as usize / piece == first)
                    .then(|| base + first as u16)
            }
        }
    }

    /// Empties the member's volatile cache.
    pub fn flush(&mut self, key: u32, file: &File) {
        let entry = opcode::Fsync::new(Fd(file.as_raw_fd()))
            .flags(io_uring::types::FsyncFlags::DATASYNC)
            .build();
        self.push(&entry.user_data(u64::from(key)));
    }

    /// Tells the member that a byte range is unused.
    pub fn discard(&mut self, key: u32, file: &File, pos: u64, len: u64) {
        // The command's second word is the length; it shares its place with the command bytes.
        let mut command = [0u8; 16];
        command[..8].copy_from_slice(&len.to_ne_bytes());
        let entry = opcode::UringCmd16::new(Fd(file.as_raw_fd()), BLOCK_URING_CMD_DISCARD)
            .cmd(command)
            .addr(Some(pos))
            .build();
        self.push(&entry.user_data(u64::from(key)));
    }

    /// Lets the member write zeroes itself, unmapping if it can; an error if it has no such command.
    pub fn write_zeroes(&mut self, key: u32, file: &File, pos: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let entry = opcode::Fallocate::new(Fd(file.as_raw_fd()), len)
            .offset(pos)
            .mode(mode)
            .build();
        self.push(&entry.user_data(u64::from(key)));
    }
}

/// Where the kernel finds a buffer: arena memory, or an offset within a registered request.
fn address(buf: &BufSlice, arena: &Arena) -> *mut u8 {
    match buf.buf {
        Buf::Arena => arena
            .iovec(BufRange {
                off: buf.off as usize,
                len: buf.len as usize,
            })
            .iov_base
            .cast(),
        Buf::Request(_) => std::ptr::without_provenance_mut(buf.off as usize),
    }
}

/// Marks this thread as one that block devices depend on: its allocations must not wait for the devices it serves.
pub fn mark_io_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: a flag of the calling thread; no memory is passed.
    let done = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if done != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "PR_SET_IO_FLUSHER is not available");
    }
}
