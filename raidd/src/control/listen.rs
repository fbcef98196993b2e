//! Takes possession of the socket path: one daemon per path, by a lock on a file beside it, so that a socket file
//! left by a crash is told from a living daemon. Runs once at start.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{Mode, umask};

/// The listening socket and the lock that makes it ours. Dropping it removes the socket file.
#[derive(Debug)]
pub struct Listening {
    /// Accepts connections.
    pub listener: UnixListener,
    path: PathBuf,
    _lock: Flock<File>,
}

/// Why the socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon has it.
    #[error("another raidd{} already serves {path}; stop it first, or give this one another --socket", pid.map(|p| format!(" (process {p})")).unwrap_or_default())]
    Taken {
        /// The socket.
        path: PathBuf,
        /// Its process id, if it wrote one.
        pid: Option<u32>,
    },
    /// Something else lies at that path.
    #[error("{path} exists and is not a socket; remove it or choose another --socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A step failed.
    #[error("{step} {path}: {source}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// To what.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Creates folder, lock and socket. The socket has mode 0660, owner unchanged, group `group` (or the daemon's).
pub fn listen(path: &Path, group: Option<u32>) -> Result<Listening, ListenError> {
    let io = |step, path: &Path| {
        let path = path.to_path_buf();
        move |source| ListenError::Io { step, path, source }
    };
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)
            .map_err(io("making the folder", folder))?;
    }
    let lock_path = PathBuf::from(format!("{}.lock", path.display()));
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock_path)
        .map_err(io("opening", &lock_path))?;
    let mut written = String::new();
    // A damaged file only costs the process id in the message.
    let _ = file.read_to_string(&mut written);
    let mut lock =
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
            nix::Error::EWOULDBLOCK => ListenError::Taken {
                path: path.into(),
                pid: written.trim().parse().ok(),
            },
            other => io("locking", &lock_path)(other.into()),
        })?;
    lock.set_len(0)
        .and_then(|()| lock.rewind())
        .and_then(|()| writeln!(lock, "{}", std::process::id()))
        .map_err(io("writing", &lock_path))?;

    // We hold the lock, so whatever socket lies here was left by a daemon that is gone.
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            std::fs::remove_file(path).map_err(io("removing the stale socket", path))?;
        }
        Ok(_) => return Err(ListenError::NotASocket { path: path.into() }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(io("looking at", path)(e)),
    }
    // Nobody may connect between bind and chmod.
    let old = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(old);
    let listener = bound.map_err(io("listening on", path))?;
    if group.is_some() {
        std::os::unix::fs::chown(path, None, group).map_err(io("setting the group of", path))?;
    }
    std::fs::set_permissions(path, Permissions::from_mode(0o660))
        .map_err(io("setting the mode of", path))?;
    Ok(Listening {
        listener,
        path: path.into(),
        _lock: lock,
    })
}

impl Drop for Listening {
    fn drop(&mut self) {
        // The lock file stays: removing it would let two daemons hold locks on two files of one name.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_daemon_is_refused_and_a_stale_socket_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/raidd.sock");
        let first = listen(&path, None).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let message = listen(&path, None).unwrap_err().to_string();
        assert!(
            message.contains(&format!("process {}", std::process::id())),
            "{message}"
        );
        assert!(
            path.exists(),
            "the refused daemon must leave the socket alone"
        );
        drop(first);
        assert!(!path.exists());
        // A crash leaves the file but not the lock.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        listen(&path, None).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("raidd.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(
            listen(&path, None),
            Err(ListenError::NotASocket { .. })
        ));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
