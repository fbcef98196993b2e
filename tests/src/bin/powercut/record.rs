//! `powercut record`: members in memory, as network block devices, of which every write, flush and answer goes into one
//! recording. Costs the members' sizes in memory, one thread a member, and one lock over all of them per event.
//!
//! Answers are held back and given in random order as long as more requests are there: a flush covers only writes that
//! have been answered before it came, so whoever does not wait for a write before flushing it is found out.

use crate::Random;
use crate::log::Writer;
use crate::nbd::{Command, Device, Request};
use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const EIO: u32 = 5;
const EINVAL: u32 = 22;

struct Shared {
    log: Mutex<Writer>,
    failed: Vec<AtomicBool>,
    devices: Vec<Device>,
}

/// Serves `nodes` until someone writes `quit` to the socket.
///
/// # Errors
/// A device cannot be attached, or the recording takes no more.
pub fn run(log: &Path, socket: &Path, bytes: u64, nodes: &[PathBuf]) -> Result<()> {
    let mut devices = Vec::new();
    let mut streams = Vec::new();
    for node in nodes {
        let (device, stream) = Device::attach(node, bytes)?;
        devices.push(device);
        streams.push(stream);
    }
    let shared = Arc::new(Shared {
        log: Mutex::new(Writer::create(log)?),
        failed: nodes.iter().map(|_| AtomicBool::new(false)).collect(),
        devices,
    });
    for member in 0..nodes.len() {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || shared.devices[member].run());
    }
    let members: Vec<_> = streams
        .into_iter()
        .enumerate()
        .map(|(member, stream)| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || serve(&shared, member, stream, bytes as usize))
        })
        .collect();
    let listener =
        UnixListener::bind(socket).with_context(|| format!("bind {}", socket.display()))?;
    {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || hear(&shared, stream));
            }
        });
    }
    for member in members {
        member.join().expect("no member panics")?;
    }
    shared.log.lock().expect("nobody panics").sync()
}

/// One member.
fn serve(shared: &Shared, member: usize, mut stream: UnixStream, size: usize) -> Result<()> {
    let mut store = vec![0; size];
    let mut random = Random(member as u64 + 1);
    let mut held: Vec<(Request, u32, Vec<u8>, Option<usize>)> = Vec::new();
    loop {
        let wait = if held.is_empty() {
            PollTimeout::NONE
        } else {
            PollTimeout::ZERO
        };
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        let more = poll(&mut fds, wait).context("poll")? > 0;
        if more {
            let request = Request::read(&mut stream)?;
            let failed = shared.failed[member].load(Ordering::Acquire);
            let end = request.offset as usize + request.bytes;
            let range = request.offset as usize..end;
            let log = || shared.log.lock().expect("nobody panics");
            match request.command {
                Command::Disconnect => return Ok(()),
                Command::Write { fua } => {
                    let mut data = vec![0; request.bytes];
                    stream
                        .read_exact(&mut data)
                        .context("read a write's bytes")?;
                    if failed || end > size {
                        held.push((request, EIO, Vec::new(), None));
                    } else {
                        let id = log().write(member, request.offset, &data, fua)?;
                        store[range].copy_from_slice(&data);
                        held.push((request, 0, Vec::new(), Some(id)));
                    }
                }
                _ if failed => held.push((request, EIO, Vec::new(), None)),
                Command::Read if end <= size => {
                    held.push((request, 0, store[range].to_vec(), None))
                }
                Command::Flush => {
                    let id = log().flush(member)?;
                    held.push((request, 0, Vec::new(), Some(id)));
                }
                Command::Read | Command::Unknown => held.push((request, EINVAL, Vec::new(), None)),
            }
        }
        if !held.is_empty() && (!more || random.below(2) == 0) {
            let (request, errno, data, id) =
                held.swap_remove(random.below(held.len() as u64) as usize);
            if let Some(of) = id {
                shared.log.lock().expect("nobody panics").done(of)?;
            }
            request.answer(&mut stream, errno, &data)?;
        }
    }
}

/// One speaker: each line is `mark TEXT`, `fail MEMBER`, `heal MEMBER` or `quit`, and is answered with `ok` once done.
fn hear(shared: &Shared, stream: UnixStream) -> Result<()> {
    let mut answers = stream.try_clone().context("a second descriptor")?;
    for line in BufReader::new(stream).lines() {
        let line = line.context("read a line")?;
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "mark" => {
                shared.log.lock().expect("nobody panics").mark(rest)?;
            }
            "fail" | "heal" => {
                let member: usize = rest.parse().context("no member")?;
                ensure!(member < shared.failed.len(), "no member {member}");
                shared.failed[member].store(verb == "fail", Ordering::Release);
                shared.log.lock().expect("nobody panics").mark(&line)?;
            }
            "quit" => {
                // Answered first: the process ends with its members.
                answers.write_all(b"ok\n").context("answer")?;
                shared.devices.iter().for_each(Device::disconnect);
                return Ok(());
            }
            _ => anyhow::bail!("unknown: {line}"),
        }
        answers.write_all(b"ok\n").context("answer")?;
    }
    Ok(())
}

/// The other side of [`hear`].
pub struct Speaker(BufReader<UnixStream>);

impl Speaker {
    /// # Errors
    /// Nobody listens there.
    pub fn connect(socket: &Path) -> Result<Speaker> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("connect to {}", socket.display()))?;
        Ok(Speaker(BufReader::new(stream)))
    }

    /// Says a line, and returns once it is in the recording.
    ///
    /// # Errors
    /// The recorder is gone.
    pub fn say(&mut self, line: &str) -> Result<()> {
        self.0
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .context("speak")?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).context("listen")?;
        ensure!(answer == "ok\n", "the recorder does not take '{line}'");
        Ok(())
    }
}
