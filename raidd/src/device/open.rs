//! Opening members. `O_EXCL` on a block device is the kernel's own mutual exclusion: it fails while MD, a mount,
//! device-mapper or another raidd has the device, and they fail while we have it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Whether the opener means to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Reads only; closing it does not wake udev.
    Read,
    /// Reads and writes.
    Write,
}

/// Why a member could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody else holds it.
    #[error("it is in use")]
    Busy,
    /// Write protected.
    #[error("it is write protected")]
    ReadOnly,
    /// Not for this user.
    #[error("permission denied; run as root")]
    Denied,
    /// Anything else.
    #[error("opening it failed: {0}")]
    Io(io::Error),
}

/// To root the same answer says that the device does not take writes.
fn classify(e: io::Error, root: bool) -> OpenError {
    match e.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Busy,
        Some(libc::EACCES | libc::EPERM) if !root => OpenError::Denied,
        Some(libc::EROFS | libc::EACCES) => OpenError::ReadOnly,
        _ => OpenError::Io(e),
    }
}

/// Opens a member for itself alone. `is_block` is false for image files in tests, which are locked instead.
pub fn exclusive(path: &Path, mode: Mode, is_block: bool) -> Result<File, OpenError> {
    let flags = if is_block {
        libc::O_EXCL | libc::O_DIRECT
    } else {
        0
    };
    let file = OpenOptions::new()
        .read(true)
        .write(mode == Mode::Write)
        .custom_flags(flags | libc::O_CLOEXEC)
        .open(path)
        .map_err(|e| classify(e, nix::unistd::geteuid().is_root()))?;
    if !is_block {
        file.try_lock().map_err(|_| OpenError::Busy)?;
    }
    Ok(file)
}

/// Opens a device or an image file to look at it, whoever has it. Prefers `O_DIRECT`, so that what others wrote past
/// the page cache is seen.
pub fn look(path: &Path) -> io::Result<File> {
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .custom_flags(flags | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)
    };
    open(libc::O_DIRECT).or_else(|e| {
        if e.raw_os_error() == Some(libc::EINVAL) {
            open(0)
        } else {
            Err(e)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody but root was told to unprotect a device that was not protected.
    #[test]
    fn a_user_without_rights_is_not_told_of_write_protection() {
        let denied = || io::Error::from_raw_os_error(libc::EACCES);
        assert!(matches!(classify(denied(), false), OpenError::Denied));
        assert!(matches!(classify(denied(), true), OpenError::ReadOnly));
        let protected = io::Error::from_raw_os_error(libc::EROFS);
        assert!(matches!(classify(protected, false), OpenError::ReadOnly));
    }
}
