//! A table of 64-bit words in a file's pages, for what must be readable once this process is dead.
//!
//! A store reaches the page at once: a process that is killed loses nothing that it has stored, and what it had not yet stored
//! is not there. So the order of the stores of one thread is the order in which a successor sees them, given that the
//! compiler keeps it; hence atomics. No call after creation makes a system call or allocates.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

use crate::buf::give_length;

/// The mapping. It begins at a page, so that eight words share a cache line.
#[derive(Debug)]
pub struct Words {
    base: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it hands out shared references to atomics only; a mapping is not tied to a thread.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Makes `file` as long as `count` words, all zero in a new file, and maps it.
    ///
    /// # Errors
    /// `InvalidInput` for no words; what the file says to becoming that long; what `mmap` says.
    pub fn over(file: &File, count: usize) -> io::Result<Words> {
        if count == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = count * size_of::<AtomicU64>();
        give_length(file, bytes)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a fresh mapping where the kernel likes, of a file that has this length; it replaces nothing.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast()) {
            Some(base) if start != libc::MAP_FAILED => Ok(Words { base, count }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `count` words, is aligned to a page and lives as long as `self`; any bytes are words,
        // and all access is atomic.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: exactly our own mapping; references to it borrow `self`.
        unsafe {
            libc::munmap(
                self.base.as_ptr().cast(),
                self.count * size_of::<AtomicU64>(),
            )
        };
    }
}
