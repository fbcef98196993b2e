//! The host process of a guest: started in a process group of its own, killed with all that it started at the time
//! limit, at Ctrl-C and at the end. One thread each for output and for signals.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// What happens to the guest's output.
pub enum Output<'a> {
    Inherit,
    Lines(&'a mut dyn FnMut(&str)),
}

/// How a guest's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited,
    TimedOut,
}

/// Group of the running guest, for the signal thread; 0 when none runs.
static GROUP: AtomicI32 = AtomicI32::new(0);
/// Folder to remove if this program is ended while the guest runs.
static FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);
static WATCHING: AtomicBool = AtomicBool::new(false);

/// Kills the guest and ends this program when a person or a supervisor ends it.
fn watch_signals() -> Result<()> {
    if WATCHING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let mut set = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block().context("cannot block signals")?;
    std::thread::spawn(move || {
        if let Ok(signal) = set.wait() {
            kill_group(GROUP.load(Ordering::SeqCst));
            if let Ok(mut folder) = FOLDER.lock()
                && let Some(folder) = folder.take()
            {
                // Nothing is left to tell an error to.
                let _ = std::fs::remove_dir_all(folder);
            }
            std::process::exit(128 + signal as i32);
        }
    });
    Ok(())
}

fn kill_group(group: i32) {
    if group > 0 {
        // The group may be gone already.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}

enum Message {
    Line(Vec<u8>),
    Ended,
}

/// Runs `command` until its output ends or `limit` is over. `folder` is removed if a signal ends this program meanwhile. Lines for which `noise` holds are dropped.
pub fn run(
    command: &mut Command,
    folder: &Path,
    limit: Duration,
    mut out: Output<'_>,
    noise: fn(&str) -> bool,
) -> Result<End> {
    watch_signals()?;
    if let Ok(mut kept) = FOLDER.lock() {
        *kept = Some(folder.to_path_buf());
    }
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    let group = i32::try_from(child.id()).context("process id out of range")?;
    GROUP.store(group, Ordering::SeqCst);
    let deadline = Instant::now() + limit;
    let (sender, receiver) = channel();
    if let Some(stdout) = child.stdout.take() {
        let sender = sender.clone();
        std::thread::spawn(move || read_lines(BufReader::new(stdout), &sender));
    }
    drop(sender);
    let end = loop {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Message::Line(bytes)) => {
                let text = String::from_utf8_lossy(&bytes);
                let text = text.trim_end_matches('\n').trim_end_matches('\r');
                if noise(text) {
                    continue;
                }
                match &mut out {
                    Output::Inherit => {
                        let mut stdout = std::io::stdout().lock();
                        // A reader that went away is no reason to leave the guest running unwatched.
                        let _ = writeln!(stdout, "{text}");
                        let _ = stdout.flush();
                    }
                    Output::Lines(call) => call(text),
                }
            }
            Ok(Message::Ended) | Err(RecvTimeoutError::Disconnected) => break End::Exited,
            Err(RecvTimeoutError::Timeout) => break End::TimedOut,
        }
    };
    if end == End::Exited {
        // The guest closed its output when it powered off; give it a moment to leave by itself.
        for _ in 0..20 {
            if child.try_wait()?.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    kill_group(group);
    child.wait()?;
    GROUP.store(0, Ordering::SeqCst);
    Ok(end)
}

fn read_lines(mut from: impl BufRead, to: &Sender<Message>) {
    loop {
        let mut line = Vec::new();
        match from.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                if to.send(Message::Line(line)).is_err() {
                    return;
                }
            }
        }
    }
    let _ = to.send(Message::Ended);
}
