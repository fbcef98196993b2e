//! Devices as seen from outside their server: which there are, whether they can be taken over, and the end of those that
//! nobody serves any more. A few control commands each; never on the I/O path.

use crate::control::ControlRing;
use crate::device::{char_path, named, stop};
use crate::error::UblkError;
use crate::features::Features;
use libublk::sys;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// A device in the driver, as seen from outside its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Existing {
    /// Number N of /dev/ublkbN.
    pub id: u32,
    /// Process that serves or served it.
    pub server: i32,
    /// Whether that process still exists.
    pub alive: bool,
    /// What [`crate::DeviceSpec::cookie`] was.
    pub cookie: u64,
    /// Whether it is served, or waits for somebody who does.
    pub state: State,
    /// Its flags.
    pub features: Features,
    /// Hardware queues.
    pub queues: u16,
    /// Requests in flight per queue.
    pub depth: u16,
    /// Longest request in bytes.
    pub max_request_bytes: u32,
}

/// What the driver says of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Added and not started, or stopped: there is no block device.
    Dead,
    /// Its server is there, or its end has not been noticed yet.
    Live,
    /// Its server is gone and the block device waits for the next one, requests included.
    Waiting,
}

impl Existing {
    /// Its block device lives on without a server, and a new one can take it over: [`crate::Device::recover`].
    pub fn recoverable(&self) -> bool {
        !self.alive && self.state != State::Dead && self.features.recovery()
    }
}

/// All ublk devices of this machine, among them those whose server died.
///
/// # Errors
/// As [`Features::probe`].
pub fn existing() -> Result<Vec<Existing>, UblkError> {
    let mut ring = ControlRing::open()?;
    let mut ids: Vec<u32> = fs::read_dir("/sys/class/ublk-char")
        .map(|entries| {
            entries
                .filter_map(|entry| {
                    let name = entry.ok()?.file_name();
                    name.to_str()?.strip_prefix("ublkc")?.parse().ok()
                })
                .collect()
        })
        .unwrap_or_default();
    ids.sort_unstable();
    Ok(ids
        .into_iter()
        .filter_map(|id| look_up(&mut ring, id).ok())
        .collect())
}

pub(crate) fn look_up(ring: &mut ControlRing, id: u32) -> Result<Existing, i32> {
    use std::mem::offset_of;
    type Info = sys::ublksrv_ctrl_dev_info;
    let mut info = [0; size_of::<Info>()];
    let op = sys::UBLK_U_CMD_GET_DEV_INFO;
    ring.command(op, id, 0, &mut info, &|| false)?;
    fn at<const N: usize>(info: &[u8], offset: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&info[offset..offset + N]);
        out
    }
    let server = i32::from_ne_bytes(at(&info, offset_of!(Info, ublksrv_pid)));
    let state = u16::from_ne_bytes(at(&info, offset_of!(Info, state)));
    Ok(Existing {
        id,
        server,
        alive: alive(server),
        cookie: u64::from_ne_bytes(at(&info, offset_of!(Info, ublksrv_flags))),
        state: match u32::from(state) {
            sys::UBLK_S_DEV_DEAD => State::Dead,
            sys::UBLK_S_DEV_LIVE => State::Live,
            _ => State::Waiting,
        },
        features: Features::from_bits(u64::from_ne_bytes(at(&info, offset_of!(Info, flags)))),
        queues: u16::from_ne_bytes(at(&info, offset_of!(Info, nr_hw_queues))),
        depth: u16::from_ne_bytes(at(&info, offset_of!(Info, queue_depth))),
        max_request_bytes: u32::from_ne_bytes(at(&info, offset_of!(Info, max_io_buf_bytes))),
    })
}

/// A process that exists and has not ended. After a hand-over by exec the old server has our own number.
fn alive(server: i32) -> bool {
    if server <= 0 || server.unsigned_abs() == std::process::id() {
        return false;
    }
    let stat = fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
    // The state comes after the name, which may hold anything.
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// A device by its number; none if there is no such device.
///
/// # Errors
/// As [`Features::probe`].
pub fn find(id: u32) -> Result<Option<Existing>, UblkError> {
    if !Path::new(&format!("/sys/class/ublk-char/ublkc{id}")).exists() {
        return Ok(None);
    }
    Ok(look_up(&mut ControlRing::open()?, id).ok())
}

/// The size in sectors and the logical block in bytes that a device was started with.
///
/// # Errors
/// As [`Features::probe`]; a failed command.
pub fn shape(id: u32) -> Result<(u64, u32), UblkError> {
    let mut params = [0; crate::params::PARAMS_BYTES];
    params[..4].copy_from_slice(&(crate::params::PARAMS_BYTES as u32).to_ne_bytes());
    let op = sys::UBLK_U_CMD_GET_PARAMS;
    let done = ControlRing::open()?.command(op, id, 0, &mut params, &|| false);
    named("GET_PARAMS", done)?;
    Ok(crate::params::shape(&params))
}

/// Whether somebody holds the char device, which has one opener at a time: a server that has added but not started its
/// device has no process id in the driver yet. The kernel lets go of a dead server's a little after its end, hence
/// the patience.
fn held(id: u32) -> bool {
    let begin = Instant::now();
    loop {
        let opened = fs::File::options()
            .read(true)
            .write(true)
            .open(char_path(id));
        match opened {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            _ => return false,
        }
        if begin.elapsed() > RELEASE_LIMIT {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Stops and deletes a device whose server died. Clients that wait for a new server get errors.
///
/// # Errors
/// [`UblkError::Alive`] if a process serves it or is about to (still holds its char device after 5 s); a failed
/// command.
pub fn remove(id: u32) -> Result<(), UblkError> {
    let mut ring = ControlRing::open()?;
    free(&mut ring, id)?;
    stop(&mut ring, id)?;
    named(
        "DEL_DEV",
        ring.command(sys::UBLK_U_CMD_DEL_DEV, id, 0, &mut [], &|| false),
    )
}

/// As [`remove`], for a device with users: does not wait for their end, which is when its number becomes free.
///
/// # Errors
/// As [`remove`].
pub fn give_up(id: u32) -> Result<(), UblkError> {
    let mut ring = ControlRing::open()?;
    free(&mut ring, id)?;
    stop(&mut ring, id)?;
    let begin = Instant::now();
    let late = || begin.elapsed() > RELEASE_LIMIT;
    match ring.command(sys::UBLK_U_CMD_DEL_DEV, id, 0, &mut [], &late) {
        Err(libc::EINTR | libc::ECANCELED) => Ok(()),
        result => named("DEL_DEV", result),
    }
}

/// Nobody serves the device.
fn free(ring: &mut ControlRing, id: u32) -> Result<(), UblkError> {
    let device = look_up(ring, id).map_err(|errno| UblkError::Command {
        command: "GET_DEV_INFO",
        errno,
    })?;
    if device.alive || held(id) {
        return Err(UblkError::Alive {
            id,
            pid: device.server,
        });
    }
    Ok(())
}
