//! One ublk device: added, started, stopped, deleted.
//!
//! Owns a control thread, because libublk's control objects live in the thread that made them and because kernel
//! commands may block: every caller here waits with a time limit, so neither an oops in ADD_DEV nor a queue that does
//! not drain can hang it. Dropping a device stops and deletes it, waiting a few seconds at most. Not on the I/O path.
//!
//! Order of a life: [`Device::add`], [`Device::queue`] for each queue, each queue moves to its engine thread and is
//! primed there, [`Device::start`], ... , [`Device::stop`], the engines see their queues end and drop them,
//! [`Device::delete`].

use crate::control::ControlRing;
use crate::error::{StopError, UblkError};
use crate::features::Features;
use crate::params::DeviceSpec;
use crate::queue::Queue;
use libublk::UblkFlags;
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder, UblkQueueAffinity};
use libublk::io::UblkDev;
use libublk::sys;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const ADD_LIMIT: Duration = Duration::from_secs(20);
const PRIME_LIMIT: Duration = Duration::from_secs(10);
const START_LIMIT: Duration = Duration::from_secs(30);
/// A stop waits for requests in flight, and these for members.
const STOP_LIMIT: Duration = Duration::from_secs(180);
const DELETE_LIMIT: Duration = Duration::from_secs(10);
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// What queues tell the starting thread.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct GateState {
    primed: u16,
    fault: Option<i32>,
}

impl Gate {
    fn update(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    pub(crate) fn primed(&self) {
        self.update(|s| s.primed += 1);
    }

    pub(crate) fn fault(&self, errno: i32) {
        self.update(|s| s.fault = s.fault.or(Some(errno)));
    }

    fn get(&self) -> GateState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_primed(&self, queues: u16) -> Result<(), UblkError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, _) = self
            .changed
            .wait_timeout_while(state, PRIME_LIMIT, |s| {
                s.primed < queues && s.fault.is_none()
            })
            .unwrap_or_else(PoisonError::into_inner);
        match (state.fault, state.primed) {
            (Some(errno), _) => Err(UblkError::Fetch { errno }),
            (None, primed) if primed < queues => Err(UblkError::NotPrimed { primed, queues }),
            _ => Ok(()),
        }
    }
}

type Reply<T> = Sender<Result<T, UblkError>>;

enum Order {
    Start(Reply<()>),
    TryStop(Reply<()>),
    Stop(Reply<()>),
    Delete(Reply<()>),
    /// Stop if started, delete, end the thread.
    Discard(Sender<()>),
}

/// What the control thread found out while adding.
struct Added {
    char_device: Arc<UblkDev>,
    cpus: Vec<Vec<usize>>,
}

/// A ublk device.
pub struct Device {
    id: u32,
    queues: u16,
    depth: u16,
    auto_buf: bool,
    flags: u64,
    safe_stop: bool,
    cpus: Vec<Vec<usize>>,
    gate: Arc<Gate>,
    orders: Sender<Order>,
    /// Until deletion begins; the driver deletes only when nobody holds the char device.
    char_device: Mutex<Option<Arc<UblkDev>>>,
    taken: Mutex<Vec<bool>>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("id", &self.id)
            .field("queues", &self.queues)
            .field("depth", &self.depth)
            .field("auto_buf", &self.auto_buf)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Creates the device in the driver and opens its char device. The block device appears with
    /// [`start`](Device::start).
    ///
    /// # Errors
    /// A description that cannot be expressed, a number in use, a refusal by the driver, or no answer within 20 s.
    pub fn add(spec: &DeviceSpec, features: &Features) -> Result<Device, UblkError> {
        spec.validate()?;
        if let Some(id) = spec.id
            && Path::new(&format!("/sys/class/ublk-char/ublkc{id}")).exists()
        {
            return Err(UblkError::IdInUse(id));
        }
        let flags = spec.flags(*features);
        let (orders, inbox) = channel();
        let (reply, added) = channel();
        let gate = Arc::new(Gate::default());
        let job = Control {
            spec: spec.clone(),
            flags,
            gate: gate.clone(),
        };
        thread::Builder::new()
            .name("ublk-control".into())
            .spawn(move || job.run(&reply, &inbox))
            .map_err(UblkError::Thread)?;
        let Added { char_device, cpus } = match added.recv_timeout(ADD_LIMIT) {
            Ok(result) => result?,
            Err(_) => return Err(UblkError::AddTimeout),
        };
        let info = char_device.dev_info;
        Ok(Device {
            id: info.dev_id,
            queues: info.nr_hw_queues,
            depth: info.queue_depth,
            auto_buf: info.flags & u64::from(sys::UBLK_F_AUTO_BUF_REG) != 0,
            flags: info.flags,
            safe_stop: features.safe_stop(),
            cpus,
            gate,
            orders,
            taken: Mutex::new(vec![false; usize::from(info.nr_hw_queues)]),
            char_device: Mutex::new(Some(char_device)),
        })
    }

    /// Number N of the device.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Path of the block device.
    pub fn path(&self) -> PathBuf {
        block_path(self.id)
    }

    /// Hardware queues that the driver gave, which may be fewer than asked for.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Requests in flight per queue.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Whether request pages are registered in the queue's ring.
    pub fn auto_buf(&self) -> bool {
        self.auto_buf
    }

    /// The flags that the driver gave to this device.
    pub fn features(&self) -> Features {
        Features::from_bits(self.flags)
    }

    /// CPUs whose requests come to a queue: a good place for its thread. Empty if the driver did not say.
    pub fn queue_cpus(&self, qid: u16) -> &[usize] {
        self.cpus
            .get(usize::from(qid))
            .map_or(&[], |cpus| cpus.as_slice())
    }

    /// One queue, to be moved to its engine's thread. Each can be taken once.
    ///
    /// # Errors
    /// [`UblkError::Queue`], [`UblkError::Map`].
    pub fn queue(&self, qid: u16) -> Result<Queue, UblkError> {
        let device = self.hold().clone().ok_or(UblkError::Queue(qid))?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(usize::from(qid)) {
            Some(taken) if !*taken => {
                let queue = Queue::new(device, self.gate.clone(), qid, self.auto_buf)?;
                *taken = true;
                Ok(queue)
            }
            _ => Err(UblkError::Queue(qid)),
        }
    }

    /// Makes the block device appear. All queues must be primed and their engines submitting; waits 10 s for the
    /// former and 30 s for the latter.
    ///
    /// # Errors
    /// [`UblkError::NotPrimed`], [`UblkError::Fetch`], [`UblkError::Command`], [`UblkError::Timeout`].
    pub fn start(&self) -> Result<(), UblkError> {
        self.gate.wait_primed(self.queues)?;
        self.order("START_DEV", START_LIMIT + DROP_LIMIT, Order::Start)
    }

    /// Takes the block device away, unless somebody uses it. Returns when all requests were answered, so the engines
    /// must go on serving meanwhile; then every tag of every queue ends.
    ///
    /// From Linux 7.0 the driver itself refuses while the device is open. Before that an exclusive open tells
    /// mounted from unmounted only, and somebody who opens the device between that test and the stop loses it.
    ///
    /// # Errors
    /// [`StopError::Busy`], or a failed command.
    pub fn stop(&self) -> Result<(), StopError> {
        let busy = |errno| matches!(errno, libc::EBUSY);
        if self.safe_stop {
            return match self.order("TRY_STOP_DEV", STOP_LIMIT, Order::TryStop) {
                Err(UblkError::Command { errno, .. }) if busy(errno) => Err(StopError::Busy),
                other => other.map_err(StopError::from),
            };
        }
        let _held = match exclusive(&self.path()) {
            Ok(file) => Some(file),
            Err(e) if e.raw_os_error().is_some_and(busy) => return Err(StopError::Busy),
            Err(_) => None,
        };
        Ok(self.order("STOP_DEV", STOP_LIMIT, Order::Stop)?)
    }

    /// Like [`stop`](Device::stop) for a device in use: its users get errors from then on.
    ///
    /// # Errors
    /// A failed command.
    pub fn stop_forced(&self) -> Result<(), UblkError> {
        self.order("STOP_DEV", STOP_LIMIT, Order::Stop)
    }

    /// Removes a stopped device. Drop all queues first: the driver waits for them.
    ///
    /// # Errors
    /// A failed command, or [`UblkError::Timeout`] after 10 s; the removal then happens when the queues are gone.
    pub fn delete(self) -> Result<(), UblkError> {
        self.hold().take();
        self.order("DEL_DEV", DELETE_LIMIT + DROP_LIMIT, Order::Delete)
    }

    fn hold(&self) -> std::sync::MutexGuard<'_, Option<Arc<UblkDev>>> {
        self.char_device
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn order(
        &self,
        command: &'static str,
        limit: Duration,
        order: impl FnOnce(Reply<()>) -> Order,
    ) -> Result<(), UblkError> {
        let (reply, result) = channel();
        if self.orders.send(order(reply)).is_err() {
            return Err(UblkError::Timeout { command });
        }
        match result.recv_timeout(limit) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(UblkError::Timeout { command })
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.hold().take();
        let (done, wait) = channel();
        if self.orders.send(Order::Discard(done)).is_ok() {
            let _ = wait.recv_timeout(DROP_LIMIT);
        }
    }
}

/// The control thread: the only user of libublk's control object.
struct Control {
    spec: DeviceSpec,
    flags: u64,
    gate: Arc<Gate>,
}

impl Control {
    fn run(self, reply: &Reply<Added>, inbox: &Receiver<Order>) {
        let (mut ring, ctrl, added) = match self.add() {
            Ok(parts) => parts,
            Err(e) => {
                let _ = reply.send(Err(e));
                return;
            }
        };
        let id = ctrl.dev_info().dev_id;
        let mut live = false;
        let mut deleted = false;
        if reply.send(Ok(added)).is_err() {
            // The caller gave up on us: leave nothing behind.
            let _ = delete(&mut ring, &ctrl);
            return;
        }
        while let Ok(order) = inbox.recv() {
            match order {
                Order::Start(reply) => {
                    let result = self.start(&mut ring, id);
                    live |= result.is_ok();
                    let _ = reply.send(result);
                }
                Order::TryStop(reply) => {
                    let op = sys::UBLK_U_CMD_TRY_STOP_DEV;
                    let result = ring.command(op, id, 0, &mut [], &|| false);
                    live &= result.is_err();
                    let _ = reply.send(named("TRY_STOP_DEV", result));
                }
                Order::Stop(reply) => {
                    let result = stop(&mut ring, id);
                    live &= result.is_err();
                    let _ = reply.send(result);
                }
                Order::Delete(reply) => {
                    let result = delete(&mut ring, &ctrl);
                    deleted = result.is_ok();
                    let _ = reply.send(result);
                }
                Order::Discard(done) => {
                    if live {
                        let _ = stop(&mut ring, id);
                    }
                    if !deleted {
                        let _ = delete(&mut ring, &ctrl);
                    }
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn add(&self) -> Result<(ControlRing, UblkCtrl, Added), UblkError> {
        let mut ring = ControlRing::open()?;
        let ctrl = UblkCtrlBuilder::default()
            .name("raidd")
            .id(self.spec.id.map_or(-1, |id| id as i32))
            .nr_queues(self.spec.queues)
            .depth(self.spec.depth)
            .io_buf_bytes(self.spec.max_request_bytes)
            .ctrl_flags(self.flags)
            .ctrl_target_flags(self.spec.cookie)
            .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
            .build()
            .map_err(|e| library("ADD_DEV", e))?;
        let id = ctrl.dev_info().dev_id;
        let mut params = self.spec.encode();
        let result = ring.command(sys::UBLK_U_CMD_SET_PARAMS, id, 0, &mut params, &|| false);
        named("SET_PARAMS", result)?;
        let char_device = UblkDev::new("raidd".into(), |_| Ok(()), &ctrl)
            .map_err(|e| library("open of the char device", e))?;
        let cpus = (0..char_device.dev_info.nr_hw_queues)
            .map(|qid| {
                let mut mask = UblkQueueAffinity::new();
                match ctrl.get_queue_affinity(qid.into(), &mut mask) {
                    Ok(_) => mask.to_bits_vec(),
                    Err(_) => Vec::new(),
                }
            })
            .collect();
        let char_device = Arc::new(char_device);
        Ok((ring, ctrl, Added { char_device, cpus }))
    }

    fn start(&self, ring: &mut ControlRing, id: u32) -> Result<(), UblkError> {
        let begin = Instant::now();
        let give_up = || self.gate.get().fault.is_some() || begin.elapsed() > START_LIMIT;
        let pid = u64::from(std::process::id());
        let result = ring.command(sys::UBLK_U_CMD_START_DEV, id, pid, &mut [], &give_up);
        match (result, self.gate.get().fault) {
            (Err(libc::EINTR | libc::ECANCELED), Some(errno)) => Err(UblkError::Fetch { errno }),
            (Err(libc::EINTR | libc::ECANCELED), None) => Err(UblkError::Timeout {
                command: "START_DEV",
            }),
            (result, _) => named("START_DEV", result),
        }
    }
}

fn named(command: &'static str, result: Result<i32, i32>) -> Result<(), UblkError> {
    result
        .map(|_| ())
        .map_err(|errno| UblkError::Command { command, errno })
}

fn stop(ring: &mut ControlRing, id: u32) -> Result<(), UblkError> {
    let result = ring.command(sys::UBLK_U_CMD_STOP_DEV, id, 0, &mut [], &|| false);
    named("STOP_DEV", result)
}

/// Deletes, and waits until the last user of the char device is gone; gives up waiting, not deleting.
fn delete(ring: &mut ControlRing, ctrl: &UblkCtrl) -> Result<(), UblkError> {
    // From here on libublk must not delete as well: it would wait without a limit.
    ctrl.disown();
    let begin = Instant::now();
    let give_up = || begin.elapsed() > DELETE_LIMIT;
    let id = ctrl.dev_info().dev_id;
    match ring.command(sys::UBLK_U_CMD_DEL_DEV, id, 0, &mut [], &give_up) {
        Err(libc::EINTR | libc::ECANCELED) => Err(UblkError::Timeout { command: "DEL_DEV" }),
        result => named("DEL_DEV", result),
    }
}

/// libublk's error as ours.
fn library(command: &'static str, error: libublk::UblkError) -> UblkError {
    use libublk::UblkError as E;
    let errno = match error {
        E::UringIOError(errno) | E::OtherError(errno) => errno.abs(),
        E::IOError(e) => e.raw_os_error().unwrap_or(libc::EIO),
        E::InvalidVal => libc::EINVAL,
        E::UringTimeout | E::UringIoQueued | E::JsonError(_) | E::QueueIsDown => libc::EIO,
    };
    UblkError::Command { command, errno }
}

fn char_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkc{id}"))
}

fn block_path(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

fn exclusive(path: &Path) -> io::Result<fs::File> {
    fs::File::options()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(path)
}

/// A device in the driver, as seen from outside its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Existing {
    /// Number N of /dev/ublkbN.
    pub id: u32,
    /// Process that serves or served it.
    pub server: i32,
    /// Whether that process still exists.
    pub alive: bool,
    /// What [`DeviceSpec::cookie`] was.
    pub cookie: u64,
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

fn look_up(ring: &mut ControlRing, id: u32) -> Result<Existing, i32> {
    use std::mem::offset_of;
    type Info = sys::ublksrv_ctrl_dev_info;
    let mut info = [0; size_of::<Info>()];
    let op = sys::UBLK_U_CMD_GET_DEV_INFO;
    ring.command(op, id, 0, &mut info, &|| false)?;
    let pid_at = offset_of!(Info, ublksrv_pid);
    let cookie_at = offset_of!(Info, ublksrv_flags);
    let mut pid = [0; 4];
    pid.copy_from_slice(&info[pid_at..pid_at + 4]);
    let mut cookie = [0; 8];
    cookie.copy_from_slice(&info[cookie_at..cookie_at + 8]);
    let server = i32::from_ne_bytes(pid);
    Ok(Existing {
        id,
        server,
        alive: server > 0 && Path::new(&format!("/proc/{server}")).exists(),
        cookie: u64::from_ne_bytes(cookie),
    })
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
    let device = look_up(&mut ring, id).map_err(|errno| UblkError::Command {
        command: "GET_DEV_INFO",
        errno,
    })?;
    if device.alive || held(id) {
        return Err(UblkError::Alive {
            id,
            pid: device.server,
        });
    }
    stop(&mut ring, id)?;
    named(
        "DEL_DEV",
        ring.command(sys::UBLK_U_CMD_DEL_DEV, id, 0, &mut [], &|| false),
    )
}
