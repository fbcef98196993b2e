//! One hardware queue of a ublk device, served on the engine's ring with user copy.
//!
//! Owns: the mapping of the queue's request descriptors, the state of each tag, and commands that did not fit into
//! the submission queue. Holds the char device open (through the shared device), so the device cannot be deleted
//! before this is dropped. Costs: see the crate; nothing here allocates after creation.
//!
//! All `unsafe` of the data path is in this file: the mapping, the pushes, `preadv`/`pwritev`.

use crate::convert::{
    self, DESCRIPTOR_BYTES, Descriptor, auto_buf_address, io_command, user_copy_position,
};
use crate::device::{CharDevice, Gate};
use crate::error::UblkError;
use crate::frontend::{Event, Fetched, Frontend, UBLK_KEY};
use io_uring::squeue::SubmissionQueue;
use io_uring::{opcode, types};
use libublk::sys;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Most spans of one system call (the kernel's IOV_MAX).
const SPANS: usize = 1024;

/// Where a tag is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    /// Not offered yet.
    Fresh,
    /// Its command waits for room in the submission queue.
    Waiting { op: u32, result: i32 },
    /// With the driver.
    Armed,
    /// With the engine, which may copy `bytes` bytes.
    Engine { bytes: u32 },
    /// Ended.
    Ended,
}

/// One queue. Move it to the engine's thread before [`Frontend::prime`]; afterwards that thread alone may use it.
pub struct Queue {
    device: Arc<CharDevice>,
    gate: Arc<Gate>,
    fd: RawFd,
    qid: u16,
    auto_buf: bool,
    descriptors: NonNull<u8>,
    mapped_bytes: usize,
    tags: Box<[Tag]>,
    waiting: VecDeque<u16>,
    spans: Vec<libc::iovec>,
    in_engine: u16,
    ended: u16,
    fault: Option<i32>,
}

// SAFETY: the mapping and the span list (stale between calls, and refilled before each use) are used only through
// `self`; neither is tied to the thread that made it. The driver wants one thread per tag, which is the caller's contract and not a memory matter.
unsafe impl Send for Queue {}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("device", &self.device.id)
            .field("qid", &self.qid)
            .field("in_engine", &self.in_engine)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Queue {
    pub(crate) fn new(
        device: Arc<CharDevice>,
        gate: Arc<Gate>,
        qid: u16,
        auto_buf: bool,
    ) -> Result<Queue, UblkError> {
        let depth = device.depth;
        let fd = device.fd();
        let mapped_bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(page_size());
        // SAFETY: a new shared read-only mapping at an address of the kernel's choice touches no existing memory;
        // `fd` is the char device that `device` keeps open.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd,
                convert::descriptor_position(qid) as libc::off_t,
            )
        };
        let descriptors = match NonNull::new(mapped.cast::<u8>()) {
            Some(start) if mapped != libc::MAP_FAILED => start,
            _ => {
                return Err(UblkError::Map {
                    qid,
                    source: io::Error::last_os_error(),
                });
            }
        };
        Ok(Queue {
            device,
            gate,
            fd,
            qid,
            auto_buf,
            descriptors,
            mapped_bytes,
            tags: vec![Tag::Fresh; usize::from(depth)].into(),
            waiting: VecDeque::with_capacity(usize::from(depth)),
            spans: Vec::with_capacity(SPANS),
            in_engine: 0,
            ended: 0,
            fault: None,
        })
    }

    /// Number of this queue in its device.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Offers `tag` with command `op`, at once or later.
    fn offer(&mut self, sq: &mut SubmissionQueue<'_>, tag: u16, op: u32, result: i32) {
        if self.waiting.is_empty() && self.push(sq, tag, op, result) {
            self.tags[usize::from(tag)] = Tag::Armed;
        } else {
            self.tags[usize::from(tag)] = Tag::Waiting { op, result };
            self.waiting.push_back(tag);
        }
    }

    fn push(&self, sq: &mut SubmissionQueue<'_>, tag: u16, op: u32, result: i32) -> bool {
        let command = opcode::UringCmd16::new(types::Fd(self.fd), op)
            .cmd(io_command(self.qid, tag, result))
            .addr(self.auto_buf.then(|| auto_buf_address(tag)))
            .build()
            .user_data(UBLK_KEY | u64::from(tag));
        // SAFETY: with user copy the command refers to no memory of ours (the address field is a buffer table index
        // or 0), and the char device stays open as long as `self`.
        unsafe { sq.push(&command) }.is_ok()
    }

    fn descriptor(&self, tag: u16) -> Descriptor {
        debug_assert!(usize::from(tag) < self.tags.len());
        // SAFETY: the mapping holds at least depth descriptors and callers have checked `tag` against `tags`. The
        // driver wrote this one before it completed the command and does not touch it again until the commit; the
        // volatile read keeps the compiler from assuming anything about the shared page.
        let raw = unsafe {
            self.descriptors
                .cast::<sys::ublksrv_io_desc>()
                .add(usize::from(tag))
                .as_ptr()
                .read_volatile()
        };
        Descriptor {
            op_flags: raw.op_flags,
            sectors: raw.nr_sectors,
            lba: raw.start_sector,
        }
    }

    fn end(&mut self, tag: u16) {
        self.tags[usize::from(tag)] = Tag::Ended;
        self.ended += 1;
    }

    /// Copies to or from `spans`, which the caller has just filled from non-empty borrowed slices.
    fn transfer(
        &mut self,
        qid: u16,
        tag: u16,
        offset: u32,
        direction: Direction,
    ) -> Result<(), i32> {
        let mut position = user_copy_position(qid, tag, offset);
        let mut first = 0;
        loop {
            let left = &mut self.spans[first..];
            if left.is_empty() {
                return Ok(());
            }
            let (start, count) = (left.as_mut_ptr(), left.len() as libc::c_int);
            let at = position as libc::off_t;
            // SAFETY: the spans were made in this call of copy_in (exclusive slices) or copy_out (shared slices) and
            // those borrows are still live; `copy_in` writes to them, `copy_out` only reads. There are `count`.
            let moved = unsafe {
                match direction {
                    Direction::In => libc::preadv(self.fd, start, count, at),
                    Direction::Out => libc::pwritev(self.fd, start, count, at),
                }
            };
            if moved < 0 {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    errno => return Err(-errno.unwrap_or(libc::EIO)),
                }
            }
            if moved == 0 {
                return Err(-libc::EIO);
            }
            position += moved as u64;
            first += advance(left, moved as usize);
        }
    }

    /// Checks that the engine holds `tag` and returns how many bytes it may copy. Of another queue's tag only that
    /// queue's engine knows: there the position must not run into the next tag's, and the driver refuses the rest.
    fn copyable_of(&self, qid: u16, tag: u16) -> u32 {
        if qid == self.qid {
            self.copyable(tag)
        } else {
            convert::MAX_REQUEST_BYTES
        }
    }

    fn copyable(&self, tag: u16) -> u32 {
        match self.tags.get(usize::from(tag)) {
            Some(Tag::Engine { bytes }) => *bytes,
            other => panic!("copy for tag {tag} in state {other:?}"),
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// Drops `moved` bytes from the front of `spans`; returns how many spans are done.
fn advance(spans: &mut [libc::iovec], mut moved: usize) -> usize {
    for (done, span) in spans.iter_mut().enumerate() {
        if moved < span.iov_len {
            span.iov_base = span.iov_base.wrapping_byte_add(moved);
            span.iov_len -= moved;
            return done;
        }
        moved -= span.iov_len;
    }
    spans.len()
}

fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

impl Frontend for Queue {
    fn depth(&self) -> u16 {
        self.tags.len() as u16
    }

    fn auto_buf(&self) -> bool {
        self.auto_buf
    }

    fn prime(&mut self, sq: &mut SubmissionQueue<'_>) {
        for tag in 0..self.depth() {
            assert_eq!(self.tags[usize::from(tag)], Tag::Fresh, "primed twice");
            self.offer(sq, tag, sys::UBLK_U_IO_FETCH_REQ, -1);
        }
        self.gate.primed();
    }

    fn flush(&mut self, sq: &mut SubmissionQueue<'_>) -> usize {
        while let Some(&tag) = self.waiting.front() {
            let Tag::Waiting { op, result } = self.tags[usize::from(tag)] else {
                unreachable!("tag {tag} is listed as waiting but is not");
            };
            if !self.push(sq, tag, op, result) {
                break;
            }
            self.tags[usize::from(tag)] = Tag::Armed;
            self.waiting.pop_front();
        }
        self.waiting.len()
    }

    fn on_cqe(&mut self, user_data: u64, res: i32) -> Event {
        let tag = user_data as u16;
        assert!(
            user_data == UBLK_KEY | u64::from(tag)
                && self.tags.get(usize::from(tag)) == Some(&Tag::Armed),
            "completion {user_data:#x} ({res}) of a command that is not in flight"
        );
        if res != sys::UBLK_IO_RES_OK as i32 {
            if res != sys::UBLK_IO_RES_ABORT {
                self.fault.get_or_insert(-res);
                self.gate.fault(-res);
            }
            self.end(tag);
            return Event::Ended;
        }
        let descriptor = self.descriptor(tag);
        let request = descriptor.request();
        let bytes = request.map_or(0, |r| r.data_bytes());
        self.tags[usize::from(tag)] = Tag::Engine { bytes };
        self.in_engine += 1;
        Event::Request(Fetched {
            tag,
            request,
            auto_buf: self.auto_buf && bytes > 0 && !descriptor.not_registered(),
        })
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_request(&mut self) -> Option<Fetched> {
        None
    }

    fn commit(&mut self, sq: &mut SubmissionQueue<'_>, tag: u16, result: i32) {
        self.copyable(tag);
        self.in_engine -= 1;
        self.offer(sq, tag, sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ, result);
    }

    fn copy_in<'a>(
        &mut self,
        qid: u16,
        tag: u16,
        mut offset: u32,
        dst: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Result<(), i32> {
        let bytes = self.copyable_of(qid, tag);
        let mut dst = dst.into_iter().filter(|span| !span.is_empty());
        loop {
            self.spans.clear();
            let mut len = 0;
            for span in dst.by_ref().take(SPANS) {
                len += span.len();
                self.spans.push(libc::iovec {
                    iov_base: span.as_mut_ptr().cast(),
                    iov_len: span.len(),
                });
            }
            if len > bytes.saturating_sub(offset) as usize {
                return Err(-libc::EINVAL);
            }
            if self.spans.is_empty() {
                return Ok(());
            }
            self.transfer(qid, tag, offset, Direction::In)?;
            offset += len as u32;
        }
    }

    fn copy_out<'a>(
        &mut self,
        qid: u16,
        tag: u16,
        mut offset: u32,
        src: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), i32> {
        let bytes = self.copyable_of(qid, tag);
        let mut src = src.into_iter().filter(|span| !span.is_empty());
        loop {
            self.spans.clear();
            let mut len = 0;
            for span in src.by_ref().take(SPANS) {
                len += span.len();
                self.spans.push(libc::iovec {
                    iov_base: span.as_ptr().cast_mut().cast(),
                    iov_len: span.len(),
                });
            }
            if len > bytes.saturating_sub(offset) as usize {
                return Err(-libc::EINVAL);
            }
            if self.spans.is_empty() {
                return Ok(());
            }
            self.transfer(qid, tag, offset, Direction::Out)?;
            offset += len as u32;
        }
    }

    fn in_engine(&self) -> u16 {
        self.in_engine
    }

    fn stopped(&self) -> bool {
        usize::from(self.ended) == self.tags.len()
    }

    fn fault(&self) -> Option<i32> {
        self.fault
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length and nothing refers to it any more.
        unsafe { libc::munmap(self.descriptors.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advance_over_short_transfers() {
        let lens = [4usize, 0, 6, 2];
        let total: usize = lens.iter().sum();
        for moved in 0..=total {
            let mut data = [0u8; 12];
            let base = data.as_mut_ptr() as usize;
            let mut at = 0;
            let mut spans: Vec<libc::iovec> = Vec::new();
            for len in lens {
                spans.push(libc::iovec {
                    iov_base: data[at..].as_mut_ptr().cast(),
                    iov_len: len,
                });
                at += len;
            }
            let done = advance(&mut spans, moved);
            let left: usize = spans[done..].iter().map(|s| s.iov_len).sum();
            assert_eq!(left, total - moved);
            if let Some(span) = spans.get(done) {
                assert_eq!(span.iov_base as usize, base + moved);
                assert!(span.iov_len > 0);
            }
        }
    }
}
