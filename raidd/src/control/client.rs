//! raidctl's end of the control socket: connect, one request, one response. Nothing here waits for ever: a daemon that is
//! stopped or stuck is told apart from one that has much to do by asking it first whether it is there.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_to, socket,
};

use super::lines::{LineError, Lines, Patience};
use super::protocol::{Command, PROTOCOL, Refusal, Reply, Request, Response};

/// Longest answer accepted; `list` of hundreds of arrays stays below.
const MAX_ANSWER: usize = 64 << 20;
/// How long an answer may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// To the question whether anybody is there, which waits for nothing.
    pub alive: Duration,
    /// To a question about arrays.
    pub look: Duration,
    /// To an order. A create writes and reads back superblocks on all members, and members may be slow; and orders wait for
    /// one another.
    pub change: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            alive: Duration::from_secs(10),
            look: Duration::from_secs(30),
            change: Duration::from_secs(600),
        }
    }
}

/// What came instead of an answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "no raidd answers on {path} ({source}); start it with 'systemctl start raidd', or give --socket"
    )]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Somebody listens but we may not connect.
    #[error(
        "{path}: permission denied; run raidctl as root or as a member of the configured group"
    )]
    Denied {
        /// The socket.
        path: PathBuf,
    },
    /// Somebody listens and does not answer.
    #[error(
        "raidd on {path} has not answered for {} s; see whether it is stopped or stuck (systemctl status raidd), and its log",
        .waited.as_secs_f32()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// For so long.
        waited: Duration,
    },
    /// The daemon went away or talks nonsense.
    #[error("raidd on {path} gave no proper answer: {reason}; see its log")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The daemon says no.
    #[error("{}", .0.message)]
    Refused(Refusal),
}

/// Connects, trying again for up to `wait` if nobody listens yet.
///
/// # Errors
/// All but [`ClientError::Refused`].
pub fn connect(path: &Path, wait: Duration, limits: &Limits) -> Result<UnixStream, ClientError> {
    let since = Instant::now();
    loop {
        let error = match try_connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let waited = since.elapsed();
        match error {
            Errno::EACCES | Errno::EPERM => {
                return Err(ClientError::Denied { path: path.into() });
            }
            // More wait to be let in than the kernel keeps for somebody who lets nobody in.
            Errno::EAGAIN if waited >= limits.alive.max(wait) => {
                return Err(ClientError::Silent {
                    path: path.into(),
                    waited: limits.alive.max(wait),
                });
            }
            Errno::EAGAIN => {}
            other if waited >= wait => {
                return Err(ClientError::NoDaemon {
                    path: path.into(),
                    source: other.into(),
                });
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Never waits: an ordinary connect does so until it is let in.
fn try_connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect_to(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false).map_err(|e| {
        e.raw_os_error()
            .map_or(Errno::UnknownErrno, Errno::from_raw)
    })?;
    Ok(stream)
}

/// Sends one command and waits for its answer, after an answer to the question whether anybody is there.
///
/// # Errors
/// All but [`ClientError::NoDaemon`].
pub fn call(
    stream: &UnixStream,
    path: &Path,
    command: Command,
    limits: &Limits,
) -> Result<Reply, ClientError> {
    if command == Command::Version {
        return ask(stream, path, command, limits.alive);
    }
    ask(stream, path, Command::Version, limits.alive)?;
    let limit = match command.writes() {
        true => limits.change,
        false => limits.look,
    };
    ask(stream, path, command, limit)
}

fn ask(
    stream: &UnixStream,
    path: &Path,
    command: Command,
    limit: Duration,
) -> Result<Reply, ClientError> {
    let broken = |reason: String| ClientError::Broken {
        path: path.into(),
        reason,
    };
    let request = Request {
        protocol: PROTOCOL,
        id: 1,
        command,
    };
    let mut line = serde_json::to_vec(&request).map_err(|e| broken(e.to_string()))?;
    line.push(b'\n');
    stream
        .set_write_timeout(Some(limit))
        .map_err(|e| broken(e.to_string()))?;
    // The daemon may have refused us and closed before we wrote; its refusal is still there to be read.
    let written = (&mut &*stream).write_all(&line);
    let patience = Patience {
        idle: limit,
        line: limit,
    };
    let answer = match Lines::new(stream, MAX_ANSWER, patience).next_line() {
        Ok(Some(answer)) => answer,
        Ok(None) => {
            return Err(broken(match written {
                Err(e) => format!("it closed the connection ({e})"),
                Ok(()) => "it closed the connection".into(),
            }));
        }
        Err(LineError::TooSlow) => {
            return Err(ClientError::Silent {
                path: path.into(),
                waited: limit,
            });
        }
        Err(e) => return Err(broken(e.to_string())),
    };
    let response: Response = serde_json::from_slice(&answer).map_err(|e| broken(e.to_string()))?;
    match (response.ok, response.error) {
        (Some(reply), None) => Ok(reply),
        (None, Some(refusal)) => Err(ClientError::Refused(refusal)),
        _ => Err(broken("neither an answer nor an error".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    const SHORT: Limits = Limits {
        alive: Duration::from_millis(300),
        look: Duration::from_millis(300),
        change: Duration::from_secs(20),
    };

    fn socket_path() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        (folder, path)
    }

    fn dry_run() -> Command {
        Command::Stop(super::super::protocol::StopRequest {
            abandon: false,
            array: "r0".into(),
            release: false,
            dry_run: true,
        })
    }

    /// `raidctl metrics` on a daemon that had been stopped waited for ten minutes, and a timer started it every minute.
    #[test]
    fn a_daemon_that_does_not_answer_is_given_up() {
        let (_folder, path) = socket_path();
        let _listener = UnixListener::bind(&path).unwrap();
        for command in [Command::Version, Command::List, dry_run()] {
            let began = Instant::now();
            let stream = connect(&path, Duration::ZERO, &SHORT).unwrap();
            let error = call(&stream, &path, command, &SHORT).unwrap_err();
            assert!(matches!(error, ClientError::Silent { .. }), "{error}");
            assert!(error.to_string().contains("has not answered for 0.3 s"));
            assert!(began.elapsed() < Duration::from_secs(5));
        }
    }

    /// The kernel keeps a number of callers waiting for somebody who lets none in; one more waits in `connect`.
    #[test]
    fn neither_does_a_full_antechamber_hold_anybody() {
        use nix::sys::socket::{Backlog, bind, listen};
        let (_folder, path) = socket_path();
        let fd = socket(
            AddressFamily::Unix,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .unwrap();
        bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&fd, Backlog::new(1).unwrap()).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match connect(&path, Duration::ZERO, &SHORT) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100);
        };
        assert!(matches!(error, ClientError::Silent { .. }), "{error}");
    }

    #[test]
    fn nobody_is_told_from_silence() {
        let (_folder, path) = socket_path();
        let error = connect(&path, Duration::ZERO, &SHORT).unwrap_err();
        assert!(matches!(error, ClientError::NoDaemon { .. }), "{error}");
        let listener = UnixListener::bind(&path).unwrap();
        drop(listener);
        let error = connect(&path, Duration::from_millis(120), &SHORT).unwrap_err();
        assert!(matches!(error, ClientError::NoDaemon { .. }), "{error}");
    }

    /// What may take long is not cut, as long as somebody is there.
    #[test]
    fn an_order_may_take_its_time() {
        let (_folder, path) = socket_path();
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream).lines();
            lines.next().unwrap().unwrap();
            let version = Reply::Version {
                version: "0".into(),
                pid: 1,
            };
            let send = |response: &Response| {
                let line = serde_json::to_string(response).unwrap() + "\n";
                (&stream).write_all(line.as_bytes()).unwrap();
            };
            send(&Response::ok(1, version));
            assert!(lines.next().unwrap().unwrap().contains("r0"));
            std::thread::sleep(3 * SHORT.look);
            let refusal = Refusal::new(super::super::protocol::RefusalKind::NotFound, "none");
            send(&Response::refused(1, refusal));
        });
        let stream = connect(&path, Duration::ZERO, &SHORT).unwrap();
        let error = call(&stream, &path, dry_run(), &SHORT).unwrap_err();
        assert!(matches!(error, ClientError::Refused(_)), "{error}");
        daemon.join().unwrap();
    }
}
