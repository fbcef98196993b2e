//! The life of the daemon: arguments, config, log, memory lock, socket, signals. Everything that serves is in
//! `control`; everything that moves data is behind [`ArrayStarter`].
//!
//! SIGTERM and SIGINT: arrays that nobody uses are stopped clean and the daemon ends. If one is in use the daemon says
//! which and by whom, stays, and goes on serving it: ending would turn every request of a mounted file system into
//! an error. It ends by itself once the last such array has been stopped or is no longer used.
//!
//! SIGHUP: the program file of now takes this process over and goes on with all arrays, as after a death, except that the
//! devices are first given time to finish what is in flight. The process keeps its number.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use clap::Parser;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::array_api::ArrayStarter;
use crate::cli::exit::{self, Failure};
use crate::config::{self, Config, LogFormat};
use crate::control::commands::Control;
use crate::control::listen::listen;
use crate::control::peer::{Policy, group_id};
use crate::control::server::{Limits, Server};
use crate::leftovers::dead_devices;

/// Serve RAID arrays as ublk block devices. Runs in the foreground; raidctl tells it what to do.
#[derive(Debug, Parser)]
#[command(name = "raidd", version)]
pub struct Args {
    /// Configuration file; /etc/raidd/raidd.yaml if it exists
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Control socket; wins over the configuration file
    #[arg(long, env = "RAIDD_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// How often a daemon that was told to end looks whether its arrays are free at last.
const LINGER_MS: u16 = 1000;

/// The whole program but for the data path, which `starter` makes once memory is locked and logging is on.
pub fn run(starter: impl FnOnce() -> Arc<dyn ArrayStarter>) -> exit::Outcome {
    let args = Args::parse();
    let mut config =
        config::load(args.config.as_deref()).map_err(|e| failure("config", e.to_string()))?;
    if let Some(socket) = args.socket {
        config.socket.path = socket;
    }
    start_log(&config).map_err(|message| failure("config", message))?;
    if !nix::unistd::geteuid().is_root() {
        return Err(failure(
            "not_root",
            "raidd must run as root: it opens block devices and creates ublk devices",
        ));
    }
    // Blocked before the first thread starts, so that all threads inherit it and only wait() below sees them.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    // The path, not the file that it names now.
    let program = std::env::current_exe();
    signals
        .thread_block()
        .map_err(|e| failure("signals", format!("blocking signals: {e}")))?;

    let group = config.socket.group.as_deref().map(group_id).transpose();
    let group = group.map_err(|e| failure("config", e.to_string()))?;
    let listening =
        listen(&config.socket.path, group).map_err(|e| failure("socket", e.to_string()))?;
    lock_memory();
    let starter = starter();
    // Before anything of ours can be among them.
    let dead = dead_devices();
    match starter.probe() {
        Ok(features) => info!("ublk features in use: {}", features.join(" ")),
        // Not fatal: examine, list and a later modprobe all work; a create says the same again.
        Err(e) => warn!("no array can be started: {e}"),
    }
    let policy = Policy {
        daemon_uid: nix::unistd::geteuid().as_raw(),
        group,
    };
    let socket = config.socket.path.clone();
    let control = Arc::new(Control::new(config, starter));
    // Users of a dead raidd's devices wait, and so may whoever asks us something.
    control.attach_all();
    let server = Server::start(listening, policy, Limits::default(), control.clone())
        .map_err(|e| failure("socket", format!("serving {}: {e}", socket.display())))?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        "serving {}",
        socket.display()
    );
    if let Err(e) = control.remove_leftovers(dead) {
        warn!("devices of a raidd that died are not removed: no thread: {e}");
    }
    let upgrade = || match &program {
        Ok(program) => hand_over(program, &server, &control),
        Err(e) => error!("no hand-over: it is not known which program this is: {e}"),
    };
    wait_for_the_end(&signals, &server, &control, &upgrade)?;
    server.close();
    info!("ended");
    Ok(exit::DONE)
}

fn failure(kind: &'static str, message: impl Into<String>) -> Failure {
    Failure::new(exit::FAILED, kind, message)
}

/// Returns when a signal came and no array is left.
fn wait_for_the_end(
    signals: &SigSet,
    server: &Server,
    control: &Control,
    upgrade: &dyn Fn(),
) -> Result<(), Failure> {
    let broken = |e: Errno| failure("signals", format!("waiting for signals: {e}"));
    let mut file = SignalFd::with_flags(signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .map_err(broken)?;
    let mut said: Option<Vec<String>> = None;
    loop {
        let timeout = if said.is_some() {
            PollTimeout::from(LINGER_MS)
        } else {
            PollTimeout::NONE
        };
        let signal = next_signal(&mut file, timeout).map_err(broken)?;
        if signal == Some(Signal::SIGHUP as i32) {
            upgrade();
            continue;
        }
        let came = signal.is_some();
        if !came && said.is_none() {
            continue;
        }
        // A command that runs is finished first; none begins while the last arrays go.
        let left = server.exclusively(|| {
            control.end();
            control.arrays().stop_all()
        });
        if left.is_empty() {
            return Ok(());
        }
        let messages: Vec<String> = left.into_iter().map(|refusal| refusal.message).collect();
        if came || said.as_ref() != Some(&messages) {
            for message in &messages {
                error!("told to end, but {message}; raidd serves it until then");
            }
        }
        said = Some(messages);
    }
}

/// Becomes the program that the file holds now. Returns only if that cannot be, and everything goes on then.
fn hand_over(program: &Path, server: &Server, control: &Control) {
    let runs = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    match runs {
        Ok(status) if status.success() => {}
        Ok(status) => return error!("no hand-over: {} --version: {status}", program.display()),
        Err(e) => return error!("no hand-over: {}: {e}", program.display()),
    }
    server.exclusively(|| {
        info!("handing over to {}", program.display());
        control.arrays().hand_over();
        // All files close with it, and what they hold; the threads end wherever they are. From here on it is as after a death.
        let e = Command::new(program)
            .args(std::env::args_os().skip(1))
            .exec();
        // The devices may be without a server now, and only a new process can serve them.
        error!(
            "{}: {e}; ending, for another raidd to go on",
            program.display()
        );
        std::process::exit(1);
    });
}

/// The signal that came in time.
fn next_signal(file: &mut SignalFd, timeout: PollTimeout) -> Result<Option<i32>, Errno> {
    let mut waiting = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    match poll(&mut waiting, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(e) => return Err(e),
    }
    Ok(file.read_signal()?.map(|info| info.ssi_signo as i32))
}

/// Pages of a block device's server must not be written to that device. Pages are locked when first touched, so
/// that the reserve of an allocator costs nothing; what the I/O path needs is touched at start.
fn lock_memory() {
    let flags = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE;
    let onfault = MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT);
    match mlockall(flags | onfault).or_else(|_| mlockall(MlockAllFlags::MCL_CURRENT)) {
        Ok(()) => {}
        Err(e) => warn!(
            "memory is not locked ({e}): under memory pressure an array could wait for itself; \
             raise the limit (LimitMEMLOCK=infinity, or CAP_IPC_LOCK)"
        ),
    }
}

/// A bare level is meant for raidd; what the ublk library tells at `info` is detail to everybody else.
fn with_quiet_libraries(level: &str) -> String {
    match level {
        "info" | "warn" => format!("{level},libublk=warn"),
        other => other.into(),
    }
}

fn start_log(config: &Config) -> Result<(), String> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => {
            EnvFilter::try_new(&text).map_err(|e| format!("RUST_LOG: {e}"))?
        }
        _ => EnvFilter::try_new(with_quiet_libraries(&config.log.level)).map_err(|e| {
            format!(
                "log.level: '{}' is no filter ({e}); use info or debug",
                config.log.level
            )
        })?,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let set = match config.log.format {
        LogFormat::Json => builder.json().try_init(),
        LogFormat::Text => {
            use std::io::IsTerminal;
            builder
                .with_ansi(std::io::stderr().is_terminal())
                .try_init()
        }
    };
    set.map_err(|e| e.to_string())
}
