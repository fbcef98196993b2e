//! raidctl's end of the control socket: connect, one request, one response.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::lines::{LineError, Lines, Patience};
use super::protocol::{Command, PROTOCOL, Refusal, Reply, Request, Response};

/// Longest answer accepted; `list` of hundreds of arrays stays below.
const MAX_ANSWER: usize = 64 << 20;
/// A create writes and reads back superblocks on all members, and members may be slow.
const ANSWER_PATIENCE: Duration = Duration::from_secs(600);

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
pub fn connect(path: &Path, wait: Duration) -> Result<UnixStream, ClientError> {
    let deadline = Instant::now() + wait;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(ClientError::Denied { path: path.into() });
            }
            Err(source) if Instant::now() >= deadline => {
                return Err(ClientError::NoDaemon {
                    path: path.into(),
                    source,
                });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Sends one command and waits for its answer.
pub fn call(stream: &UnixStream, path: &Path, command: Command) -> Result<Reply, ClientError> {
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
    // The daemon may have refused us and closed before we wrote; its refusal is still there to be read.
    let written = (&mut &*stream).write_all(&line);
    let patience = Patience {
        idle: ANSWER_PATIENCE,
        line: ANSWER_PATIENCE,
    };
    let answer = match Lines::new(stream, MAX_ANSWER, patience).next_line() {
        Ok(Some(answer)) => answer,
        Ok(None) => {
            return Err(broken(match written {
                Err(e) => format!("it closed the connection ({e})"),
                Ok(()) => "it closed the connection".into(),
            }));
        }
        Err(LineError::TooSlow) => return Err(broken("it took too long".into())),
        Err(e) => return Err(broken(e.to_string())),
    };
    let response: Response = serde_json::from_slice(&answer).map_err(|e| broken(e.to_string()))?;
    match (response.ok, response.error) {
        (Some(reply), None) => Ok(reply),
        (None, Some(refusal)) => Err(ClientError::Refused(refusal)),
        _ => Err(broken("neither an answer nor an error".into())),
    }
}
