//! Serves the control socket: a thread that accepts, a thread per connection, all writing commands one at a time.
//! Knows lines, peers and limits; what a command does is behind [`Handler`].

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{debug, warn};

use super::lines::{LineError, Lines, Patience};
use super::listen::Listening;
use super::peer::{Peer, Policy, peer_of};
use super::protocol::{Command, MAX_LINE, Refusal, RefusalKind, Reply, Response, read_request};

/// Connections of anyone but root at one time.
const MAX_CONNECTIONS: usize = 32;
/// Connections at one time; the difference is kept for root.
const MAX_CONNECTIONS_ROOT: usize = 64;

/// Carries commands out.
pub trait Handler: Send + Sync + 'static {
    /// May take long; the caller holds the writer lock for commands that write.
    fn handle(&self, command: Command) -> Result<Reply, Refusal>;
}

/// Limits of the server; the defaults are for production.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Patience with clients.
    pub patience: Patience,
    /// How long a client may take to accept an answer.
    pub write: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let patience = Patience {
            idle: Duration::from_secs(60),
            line: Duration::from_secs(10),
        };
        Limits {
            patience,
            write: Duration::from_secs(10),
        }
    }
}

struct Shared {
    handler: Arc<dyn Handler>,
    policy: Policy,
    limits: Limits,
    stopping: AtomicBool,
    connections: AtomicUsize,
    writer: Mutex<()>,
}

/// A serving socket. Dropping it does not stop it; call [`Server::close`].
pub struct Server {
    shared: Arc<Shared>,
    path: std::path::PathBuf,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts serving.
    pub fn start(
        listening: Listening,
        policy: Policy,
        limits: Limits,
        handler: Arc<dyn Handler>,
    ) -> std::io::Result<Server> {
        let path = listening
            .listener
            .local_addr()?
            .as_pathname()
            .map(std::path::Path::to_path_buf)
            .unwrap_or_default();
        let shared = Arc::new(Shared {
            handler,
            policy,
            limits,
            stopping: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            writer: Mutex::new(()),
        });
        let accepting = shared.clone();
        let acceptor = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listening, &accepting))?;
        Ok(Server {
            shared,
            path,
            acceptor: Some(acceptor),
        })
    }

    /// Runs `f` while no writing command runs and none can begin.
    pub fn exclusively<T>(&self, f: impl FnOnce() -> T) -> T {
        let _writer = self
            .shared
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        f()
    }

    /// Stops accepting and removes the socket. Connections that are being served are left to end by themselves.
    pub fn close(mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the accepting thread; if it fails the thread is gone already.
        let _ = UnixStream::connect(&self.path);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listening: &Listening, shared: &Arc<Shared>) {
    loop {
        let accepted = listening.listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        match accepted {
            Ok((stream, _)) => admit(stream, shared),
            Err(e) => {
                // Out of descriptors or memory: wait rather than spin, existing clients may go away.
                warn!("accepting on the control socket: {e}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn admit(stream: UnixStream, shared: &Arc<Shared>) {
    if let Err(e) = stream.set_write_timeout(Some(shared.limits.write)) {
        warn!("control connection: {e}");
        return;
    }
    let peer = match peer_of(&stream) {
        Ok(peer) => peer,
        Err(e) => {
            warn!("control connection: peer credentials: {e}");
            return;
        }
    };
    if !shared.policy.allows(peer) {
        warn!(
            uid = peer.uid,
            pid = peer.pid,
            "refused a control connection: not root and not in the group"
        );
        let message =
            "only root and members of the configured group (socket.group) may control raidd";
        let _ = send(
            &stream,
            &Response::refused(0, Refusal::new(RefusalKind::Forbidden, message)),
        );
        return;
    }
    let limit = if peer.uid == 0 {
        MAX_CONNECTIONS_ROOT
    } else {
        MAX_CONNECTIONS
    };
    // Only this thread adds, so the check and the addition cannot be torn apart.
    if shared.connections.load(Ordering::SeqCst) >= limit {
        let refusal = Refusal::new(
            RefusalKind::TooMany,
            "too many control connections; try again",
        );
        let _ = send(&stream, &Response::refused(0, refusal));
        return;
    }
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let serving = shared.clone();
    let spawned = std::thread::Builder::new()
        .name("control-client".into())
        .spawn(move || {
            serve(&stream, peer, &serving);
            serving.connections.fetch_sub(1, Ordering::SeqCst);
        });
    if let Err(e) = spawned {
        shared.connections.fetch_sub(1, Ordering::SeqCst);
        warn!("control connection: no thread: {e}");
    }
}

fn serve(stream: &UnixStream, peer: Peer, shared: &Shared) {
    let mut lines = Lines::new(stream, MAX_LINE, shared.limits.patience);
    loop {
        let line = match lines.next_line() {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(error) => {
                debug!(pid = peer.pid, "control connection: {error}");
                if !matches!(error, LineError::Io(_)) {
                    let refusal = Refusal::new(RefusalKind::BadRequest, error.to_string());
                    let _ = send(stream, &Response::refused(0, refusal));
                }
                return;
            }
        };
        let response = match read_request(&line) {
            Err((id, refusal)) => Response::refused(id, refusal),
            Ok(request) => {
                debug!(pid = peer.pid, uid = peer.uid, command = ?request.command, "control");
                let writer = request
                    .command
                    .writes()
                    .then(|| shared.writer.lock().unwrap_or_else(PoisonError::into_inner));
                let result = shared.handler.handle(request.command);
                drop(writer);
                match result {
                    Ok(reply) => Response::ok(request.id, reply),
                    Err(refusal) => Response::refused(request.id, refusal),
                }
            }
        };
        if let Err(e) = send(stream, &response) {
            debug!(pid = peer.pid, "control connection: {e}");
            return;
        }
    }
}

fn send(mut stream: &UnixStream, response: &Response) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(response).map_err(std::io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)
}
