//! The memory that I/O and parity work in: one region per engine thread, cut into equal frames.
//!
//! [`Arena`] owns an anonymous, zeroed mapping, aligned to 2 MiB and backed by huge pages where
//! the kernel agrees. Its size is fixed at creation and all of it is resident from then on; no
//! call afterwards allocates. Places in it are named by [`BufRange`], plain offsets that can be
//! kept in request state without borrowing the arena. The parity calls turn them into slices,
//! after checking that nothing which is written overlaps anything else, and so cost a few
//! nanoseconds per operand more than the [`Engine`] alone.
//!
//! The kernel and devices may write into the region through addresses from [`Arena::iovec`] and
//! [`Arena::base_ptr`]. Whoever hands out such an address must leave that range alone, reading
//! included, until the kernel is done with it. The arena itself touches only the ranges named in
//! a call, so transfers elsewhere in the region do no harm.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use crate::engine::Engine;
use crate::job::{Change, LostData, Mismatch, RecoverError, Source};

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Up to this many data chunks the operand list takes less than a KiB of stack.
const FEW: usize = 16;
/// The most data chunks one call takes: all exponents there are.
const MANY: usize = 255;

/// A range of bytes in an [`Arena`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BufRange {
    /// First byte, counted from the start of the arena.
    pub off: usize,
    /// Number of bytes.
    pub len: usize,
}

impl BufRange {
    /// `len` bytes from `off`.
    pub const fn new(off: usize, len: usize) -> BufRange {
        BufRange { off, len }
    }

    /// One past the last byte.
    pub const fn end(self) -> usize {
        self.off + self.len
    }

    /// The `len` bytes that begin `off` bytes into this range.
    ///
    /// # Panics
    /// If they do not lie within this range.
    pub fn slice(self, off: usize, len: usize) -> BufRange {
        assert!(
            off <= self.len && len <= self.len - off,
            "{off}+{len} is outside {self:?}"
        );
        BufRange {
            off: self.off + off,
            len,
        }
    }

    /// Whether the two have a byte in common.
    pub const fn overlaps(self, other: BufRange) -> bool {
        self.len > 0 && other.len > 0 && self.off < other.end() && other.off < self.end()
    }
}

impl From<BufRange> for Range<usize> {
    fn from(range: BufRange) -> Range<usize> {
        range.off..range.end()
    }
}

/// A page-aligned, resident region of memory in equal frames. See the module for who may touch it.
#[derive(Debug)]
pub struct Arena {
    /// Of `memory`.
    base: NonNull<u8>,
    len: usize,
    frame_bytes: usize,
    memory: Arc<Memory>,
}

// SAFETY: only the arena makes references into its mapping, and a mapping is not tied to a thread.
unsafe impl Send for Arena {}

/// The mapping under an [`Arena`], kept alive by whoever has registered it with a device. It gives an address and no
/// access: what lies there is the arena's, by the rules of the module.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it hands out an address and a length and no reference; unmapping is not tied to a thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Address of the first byte, a multiple of the page size.
    pub fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes in it.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Arena {
    /// Map `frames` frames of `frame_bytes` each, zeroed and resident.
    ///
    /// # Errors
    /// `InvalidInput` if either is zero, `frame_bytes` is no multiple of 4096, or the product
    /// overflows; otherwise what `mmap` says, `OutOfMemory` mostly.
    pub fn new(frames: usize, frame_bytes: usize) -> io::Result<Arena> {
        Arena::make(None, frames, frame_bytes)
    }

    /// The same in the pages of an empty file, for whoever may have to read them once this process is dead. The file is
    /// made as long as the arena, and all of it is given memory now. Nobody else may write to it. Huge pages come only
    /// where its file system gives them (tmpfs: mounted with `huge=`, or `shmem_enabled` of the kernel).
    ///
    /// # Errors
    /// As [`Arena::new`], and what the file says to becoming that long: `StorageFull`.
    pub fn over(file: &File, frames: usize, frame_bytes: usize) -> io::Result<Arena> {
        Arena::make(Some(file), frames, frame_bytes)
    }

    fn make(file: Option<&File>, frames: usize, frame_bytes: usize) -> io::Result<Arena> {
        let len = frames
            .checked_mul(frame_bytes)
            .filter(|len| *len <= isize::MAX as usize / 2);
        let Some(len) = len.filter(|len| *len > 0 && frame_bytes.is_multiple_of(PAGE)) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("an arena of {frames} frames of {frame_bytes} bytes is not possible"),
            ));
        };
        let base = map_aligned(len, file)?;
        let memory = Arc::new(Memory { base, len });
        make_resident(base, len)?;
        Ok(Arena {
            base,
            len,
            frame_bytes,
            memory,
        })
    }

    /// Number of frames.
    pub fn frames(&self) -> usize {
        self.len / self.frame_bytes
    }

    /// Bytes per frame.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Bytes in all frames together.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory itself, for registering it with a device that must be let go of it before it is unmapped.
    pub fn memory(&self) -> Arc<Memory> {
        self.memory.clone()
    }

    /// Address of the first byte, for registering the region with io_uring.
    pub fn base_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// All of one frame.
    ///
    /// # Panics
    /// If there is no such frame.
    pub fn frame(&self, frame: usize) -> BufRange {
        assert!(frame < self.frames(), "frame {frame} of {}", self.frames());
        BufRange::new(frame * self.frame_bytes, self.frame_bytes)
    }

    /// `len` bytes, beginning `off` bytes into a frame.
    ///
    /// # Panics
    /// If they do not lie within that frame.
    pub fn slice(&self, frame: usize, off: usize, len: usize) -> BufRange {
        self.frame(frame).slice(off, len)
    }

    /// Lock the region into memory, so that it is never paged out while memory is short.
    ///
    /// # Errors
    /// What `mlock` says; `EPERM` and `ENOMEM` mean that the process may not lock as much.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is exactly our own mapping; locking does not change its contents.
        match unsafe { libc::mlock(self.base.as_ptr().cast(), self.len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Read a range.
    ///
    /// # Panics
    /// If it is not within the arena.
    pub fn bytes(&self, range: BufRange) -> &[u8] {
        self.check_within(range);
        // SAFETY: within the mapping (checked), which lives as long as `self` and is initialised
        // (anonymous memory begins as zeroes). Slices to write to exist only under `&mut self`.
        unsafe { slice::from_raw_parts(self.base.as_ptr().add(range.off), range.len) }
    }

    /// Write a range.
    ///
    /// # Panics
    /// If it is not within the arena.
    pub fn bytes_mut(&mut self, range: BufRange) -> &mut [u8] {
        self.check_within(range);
        // SAFETY: within the mapping (checked), and the result borrows `self` mutably.
        unsafe { self.exclusive(range) }
    }

    /// Write several ranges at once, in the order given.
    ///
    /// # Panics
    /// If two of them overlap or one is not within the arena.
    pub fn spans_mut<'a>(
        &'a mut self,
        ranges: &'a [BufRange],
    ) -> impl Iterator<Item = &'a mut [u8]> + 'a {
        for (i, a) in ranges.iter().enumerate() {
            self.check_within(*a);
            let apart = ranges[i + 1..].iter().all(|b| !a.overlaps(*b));
            assert!(apart, "span {i} overlaps another");
        }
        let base = self.base;
        ranges.iter().map(move |r| {
            // SAFETY: every range is within the mapping and overlaps no other (checked on this very list), and
            // `&mut self` excludes every other borrow for as long as the slices live.
            unsafe { std::slice::from_raw_parts_mut(base.as_ptr().add(r.off), r.len) }
        })
    }

    /// Copy one range onto another of the same length.
    ///
    /// # Panics
    /// If they overlap, differ in length or are not within the arena.
    pub fn copy(&mut self, from: BufRange, to: BufRange) {
        self.check_disjoint(&[to], [from]);
        // SAFETY: `to` is within the mapping and does not overlap `from` (checked), and
        // `&mut self` excludes every other borrow.
        let out = unsafe { self.exclusive(to) };
        out.copy_from_slice(self.bytes(from));
    }

    /// The range as the kernel takes it. The caller must keep the arena alive, and leave the
    /// range alone, until the kernel is done with it.
    ///
    /// # Panics
    /// If it is not within the arena.
    pub fn iovec(&self, range: BufRange) -> libc::iovec {
        self.check_within(range);
        let base = self.base.as_ptr().wrapping_add(range.off);
        libc::iovec {
            iov_base: base.cast(),
            iov_len: range.len,
        }
    }

    /// [`Engine::encode`] on ranges of this arena; `data` holds ranges and exponents.
    ///
    /// # Panics
    /// If P or Q overlaps the other or any data, a range is not within the arena, lengths differ,
    /// or there are more than 255 data.
    pub fn encode(
        &mut self,
        engine: &Engine,
        data: &[(BufRange, u8)],
        p: Option<BufRange>,
        q: Option<BufRange>,
    ) {
        let writes = [p.unwrap_or_default(), q.unwrap_or_default()];
        self.check_disjoint(&writes, data.iter().map(|(range, _)| *range));
        // SAFETY: P and Q are within the mapping and overlap neither one another nor any data
        // (checked), and `&mut self` excludes every other borrow.
        let (p, q) = unsafe { (p.map(|p| self.exclusive(p)), q.map(|q| self.exclusive(q))) };
        self.with_sources(data, |data| engine.encode(data, p, q));
    }

    /// [`Engine::update`] on ranges of this arena; `changed` holds old, new and exponent.
    ///
    /// # Panics
    /// As [`Arena::encode`]. Old and new may overlap.
    pub fn update(
        &mut self,
        engine: &Engine,
        changed: &[(BufRange, BufRange, u8)],
        p: Option<BufRange>,
        q: Option<BufRange>,
    ) {
        let writes = [p.unwrap_or_default(), q.unwrap_or_default()];
        self.check_disjoint(
            &writes,
            changed.iter().flat_map(|(old, new, _)| [*old, *new]),
        );
        // SAFETY: P and Q are within the mapping and overlap neither one another nor anything old
        // or new (checked), and `&mut self` excludes every other borrow.
        let (p, q) = unsafe { (p.map(|p| self.exclusive(p)), q.map(|q| self.exclusive(q))) };
        self.with_changes(changed, |changed| engine.update(changed, p, q));
    }

    /// [`Engine::recover`] on ranges of this arena; `data` and `lost` hold ranges and exponents.
    ///
    /// # Errors
    /// As [`Engine::recover`].
    ///
    /// # Panics
    /// If a lost range overlaps another operand, a range is not within the arena, lengths differ,
    /// or there are more than 255 data.
    pub fn recover(
        &mut self,
        engine: &Engine,
        data: &[(BufRange, u8)],
        p: Option<BufRange>,
        q: Option<BufRange>,
        lost: &[(BufRange, u8)],
    ) -> Result<(), RecoverError> {
        let reads = data.iter().map(|(range, _)| *range).chain(p).chain(q);
        match *lost {
            [] => Ok(()),
            [(x, exp)] => {
                self.check_disjoint(&[x], reads);
                // SAFETY: the output is within the mapping and overlaps nothing that is read
                // (checked), and `&mut self` excludes every other borrow.
                let out = unsafe { self.exclusive(x) };
                self.recover_into(engine, data, p, q, &mut [LostData { out, exp }])
            }
            [(x, x_exp), (y, y_exp)] => {
                self.check_disjoint(&[x, y], reads);
                // SAFETY: the outputs are within the mapping and overlap neither one another nor
                // anything read (checked), and `&mut self` excludes every other borrow.
                let (x, y) = unsafe { (self.exclusive(x), self.exclusive(y)) };
                let mut lost = [
                    LostData { out: x, exp: x_exp },
                    LostData { out: y, exp: y_exp },
                ];
                self.recover_into(engine, data, p, q, &mut lost)
            }
            _ => Err(RecoverError::TooManyLost { lost: lost.len() }),
        }
    }

    /// [`Engine::check`] on ranges of this arena; `data` holds ranges and exponents.
    ///
    /// # Panics
    /// If a range is not within the arena, lengths differ, or there are more than 255 data.
    pub fn check(
        &self,
        engine: &Engine,
        data: &[(BufRange, u8)],
        p: Option<BufRange>,
        q: Option<BufRange>,
    ) -> Mismatch {
        let (p, q) = (p.map(|p| self.bytes(p)), q.map(|q| self.bytes(q)));
        self.with_sources(data, |data| engine.check(data, p, q))
    }

    fn recover_into(
        &self,
        engine: &Engine,
        data: &[(BufRange, u8)],
        p: Option<BufRange>,
        q: Option<BufRange>,
        lost: &mut [LostData],
    ) -> Result<(), RecoverError> {
        let (p, q) = (p.map(|p| self.bytes(p)), q.map(|q| self.bytes(q)));
        self.with_sources(data, |data| engine.recover(data, p, q, lost))
    }

    /// Call `job` with the sources that `data` names, held on the stack.
    fn with_sources<T>(&self, data: &[(BufRange, u8)], job: impl FnOnce(&[Source]) -> T) -> T {
        let source = |&(range, exp): &(BufRange, u8)| Source {
            data: self.bytes(range),
            exp,
        };
        let empty = Source { data: &[], exp: 0 };
        if data.len() <= FEW {
            job(fill(&mut [empty; FEW], data.iter().map(source)))
        } else {
            job(fill(&mut [empty; MANY], data.iter().map(source)))
        }
    }

    /// Call `job` with the changes that `changed` names, held on the stack.
    fn with_changes<T>(
        &self,
        changed: &[(BufRange, BufRange, u8)],
        job: impl FnOnce(&[Change]) -> T,
    ) -> T {
        let change = |&(old, new, exp): &(BufRange, BufRange, u8)| Change {
            old: self.bytes(old),
            new: self.bytes(new),
            exp,
        };
        let empty = Change {
            old: &[],
            new: &[],
            exp: 0,
        };
        if changed.len() <= FEW {
            job(fill(&mut [empty; FEW], changed.iter().map(change)))
        } else {
            job(fill(&mut [empty; MANY], changed.iter().map(change)))
        }
    }

    fn check_within(&self, range: BufRange) {
        assert!(
            range.off <= self.len && range.len <= self.len - range.off,
            "{range:?} is outside an arena of {} bytes",
            self.len
        );
    }

    /// Panic unless every range is within the arena and what is written overlaps nothing else.
    fn check_disjoint(&self, writes: &[BufRange], reads: impl IntoIterator<Item = BufRange>) {
        for (i, write) in writes.iter().enumerate() {
            self.check_within(*write);
            for other in &writes[..i] {
                assert!(
                    !write.overlaps(*other),
                    "writes to {write:?} and {other:?} overlap"
                );
            }
        }
        for read in reads {
            self.check_within(read);
            for write in writes {
                assert!(
                    !write.overlaps(read),
                    "a write to {write:?} overlaps a read of {read:?}"
                );
            }
        }
    }

    /// A slice of the arena to write to, without borrowing the arena mutably.
    ///
    /// # Safety
    /// The range is within the arena, the caller holds `&mut self` for as long as the result
    /// lives, and meanwhile no other slice is made that overlaps it, by [`Arena::bytes`] neither.
    #[expect(clippy::mut_from_ref)]
    unsafe fn exclusive(&self, range: BufRange) -> &mut [u8] {
        // SAFETY: within the mapping, which lives as long as `self` and is initialised (anonymous memory and new files
        // begin as zeroes); the caller ensures that nothing else refers to these bytes.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr().add(range.off), range.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly our own mapping; the arena holds a share of `self`, so no slice of it outlives this.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(result, 0, "munmap: {}", io::Error::last_os_error());
    }
}

/// Put `operands` into the front of `list` and return that part.
fn fill<T>(list: &mut [T], operands: impl ExactSizeIterator<Item = T>) -> &[T] {
    let count = operands.len();
    assert!(
        count <= list.len(),
        "{count} operands, and there are only {MANY} exponents"
    );
    for (place, operand) in list.iter_mut().zip(operands) {
        *place = operand;
    }
    &list[..count]
}

/// Map `len` bytes of zeroes, or of a file that is made that long, at a multiple of 2 MiB: by mapping more and giving the
/// ends back.
fn map_aligned(len: usize, file: Option<&File>) -> io::Result<NonNull<u8>> {
    if let Some(file) = file {
        give_length(file, len)?;
    }
    let reserved = len + HUGE_PAGE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping where the kernel likes; it replaces nothing.
    let start = unsafe { libc::mmap(ptr::null_mut(), reserved, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let before = start.align_offset(HUGE_PAGE);
    let base = start.wrapping_byte_add(before);
    for (end, surplus) in [
        (start, before),
        (base.wrapping_byte_add(len), HUGE_PAGE - before),
    ] {
        // SAFETY: both ends are whole pages of the mapping just made, and nothing refers to them.
        if surplus > 0 && unsafe { libc::munmap(end, surplus) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    if let Some(file) = file {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: it replaces what is left of the mapping just made, to which nothing refers; the file is as long.
        let mapped = unsafe { libc::mmap(base, len, protection, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // SAFETY: as above.
            unsafe { libc::munmap(base, len) };
            return Err(error);
        }
    }
    Ok(NonNull::new(base.cast()).expect("mmap does not map address zero unless asked"))
}

/// Give a file its length and its memory now, since what cannot be had at the first touch of a mapping kills the process.
pub(crate) fn give_length(file: &File, len: usize) -> io::Result<()> {
    let bytes = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: a call on an open file; no memory is passed.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Have all pages of the mapping present now, huge ones if possible, rather than at first use.
fn make_resident(base: NonNull<u8>, len: usize) -> io::Result<()> {
    let start = base.as_ptr().cast();
    // Advice only: where huge pages are off or unknown, small pages do.
    // SAFETY: the range is a mapping of ours; this advice does not change its contents.
    unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
    // SAFETY: as above; populating writes nothing.
    if unsafe { libc::madvise(start, len, libc::MADV_POPULATE_WRITE) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EINVAL) {
        return Err(error);
    }
    // Linux before 5.14 does not know that advice.
    for off in (0..len).step_by(PAGE) {
        // SAFETY: within the mapping, which nobody else refers to yet.
        unsafe { base.as_ptr().add(off).write_volatile(0) };
    }
    Ok(())
}
