//! One ublk device: added, started, stopped, deleted.
//!
//! Owns a control thread, because libublk's control objects live in the thread that made them and because kernel
//! commands may block: every caller here waits with a time limit, so neither an oops in ADD_DEV nor a queue that does
//! not drain can hang it. Dropping a device stops and deletes it, waiting a few seconds at most. Not on the I/O path.
//!
//! Order of a life: [`Device::add`], [`Device::queue`] for each queue, each queue moves to its engine thread and is
//! primed there, [`Device::start`], ... , [`Device::stop`], the engines see their queues end and drop them,
//! [`Device::delete`].
//!
//! A device with the recovery flags outlives its server: it waits, its users with it, until another process calls
//! [`Device::recover`] in place of `add`; from there on the order is the same, and the requests that the dead server had
//! are issued again. A recovered device that is dropped before it was started goes on waiting.

use crate::control::ControlRing;
use crate::error::{StopError, UblkError};
use crate::existing::look_up;
use crate::features::Features;
use crate::params::DeviceSpec;
use crate::queue::Queue;
use libublk::UblkFlags;
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::sys;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const ADD_LIMIT: Duration = Duration::from_secs(20);
const PRIME_LIMIT: Duration = Duration::from_secs(10);
const OPEN_LIMIT: Duration = Duration::from_secs(3);
const START_LIMIT: Duration = Duration::from_secs(30);
/// A stop waits for requests in flight, and these for members.
const STOP_LIMIT: Duration = Duration::from_secs(180);
const DELETE_LIMIT: Duration = Duration::from_secs(10);
const RELEASE_LIMIT: Duration = Duration::from_secs(30);
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
    Quiesce(u64, Reply<()>),
    /// End the thread, and leave the device as it is.
    Leave(Sender<()>),
    /// Stop if started, delete, end the thread.
    Discard(Sender<()>),
}

/// The char device, held open, and what the driver told about it.
#[derive(Debug)]
pub(crate) struct CharDevice {
    file: fs::File,
    pub(crate) id: u32,
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    max_request_bytes: u32,
    cookie: u64,
    flags: u64,
}

impl CharDevice {
    /// Opens it; its node may take a moment to appear, and a dead server a moment to let it go.
    fn open(ring: &mut ControlRing, id: u32) -> Result<CharDevice, UblkError> {
        let info = look_up(ring, id);
        let info = info.map_err(|errno| command("GET_DEV_INFO", errno))?;
        let begin = Instant::now();
        let file = loop {
            let opened = fs::File::options()
                .read(true)
                .write(true)
                .open(char_path(id));
            match opened {
                Ok(file) => break file,
                Err(_) if begin.elapsed() < OPEN_LIMIT => thread::sleep(Duration::from_millis(10)),
                Err(e) => {
                    let errno = e.raw_os_error().unwrap_or(libc::EIO);
                    return Err(command("open of the char device", errno));
                }
            }
        };
        Ok(CharDevice {
            file,
            id,
            queues: info.queues,
            depth: info.depth,
            max_request_bytes: info.max_request_bytes,
            cookie: info.cookie,
            flags: info.features.bits(),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// What the control thread found out while adding.
struct Added {
    char_device: Arc<CharDevice>,
    cpus: Vec<Vec<usize>>,
}

/// A ublk device.
pub struct Device {
    id: u32,
    queues: u16,
    depth: u16,
    max_request_bytes: u32,
    cookie: u64,
    auto_buf: bool,
    flags: u64,
    safe_stop: bool,
    cpus: Vec<Vec<usize>>,
    gate: Arc<Gate>,
    orders: Sender<Order>,
    /// Until deletion begins; the driver deletes only when nobody holds the char device.
    char_device: Mutex<Option<Arc<CharDevice>>>,
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
        let from = From::New {
            spec: spec.clone(),
            flags: spec.flags(*features),
        };
        Device::begin(from, features, ADD_LIMIT)
    }

    /// Takes over a device whose server died or has let it go, for [`start`](Device::start) to serve it again. Waits up to
    /// 30 s for the kernel to be done with the dead process. Whether the device is the right one is the caller's to
    /// know ([`crate::existing::find`], [`crate::existing::shape`]).
    ///
    /// # Errors
    /// [`UblkError::Alive`], [`UblkError::NotRecoverable`], or a failed command; the device then goes on waiting.
    pub fn recover(id: u32, features: &Features) -> Result<Device, UblkError> {
        Device::begin(From::Old(id), features, RELEASE_LIMIT + ADD_LIMIT)
    }

    fn begin(from: From, features: &Features, limit: Duration) -> Result<Device, UblkError> {
        let (orders, inbox) = channel();
        let (reply, added) = channel();
        let gate = Arc::new(Gate::default());
        let job = Control {
            from,
            gate: gate.clone(),
        };
        thread::Builder::new()
            .name("ublk-control".into())
            .spawn(move || job.run(&reply, &inbox))
            .map_err(UblkError::Thread)?;
        let Added { char_device, cpus } = match added.recv_timeout(limit) {
            Ok(result) => result?,
            Err(_) => return Err(UblkError::AddTimeout),
        };
        Ok(Device {
            id: char_device.id,
            queues: char_device.queues,
            depth: char_device.depth,
            max_request_bytes: char_device.max_request_bytes,
            cookie: char_device.cookie,
            auto_buf: char_device.flags & u64::from(sys::UBLK_F_AUTO_BUF_REG) != 0,
            flags: char_device.flags,
            safe_stop: features.safe_stop(),
            cpus,
            gate,
            orders,
            taken: Mutex::new(vec![false; usize::from(char_device.queues)]),
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

    /// What [`DeviceSpec::cookie`] was.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Longest request in bytes.
    pub fn max_request_bytes(&self) -> u32 {
        self.max_request_bytes
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

    /// Makes the block device appear, or a recovered one go on. All queues must be primed and their engines submitting;
    /// waits 10 s for the former and 30 s for the latter.
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

    /// Detaches the device from this process in an orderly way: no new request comes, those in the engine are answered,
    /// then every tag of every queue ends, and the block device waits for [`Device::recover`] by the next process. After
    /// an error the driver may hand out no more requests: try again, or end the process, which comes to the same.
    ///
    /// # Errors
    /// A failed command; EOPNOTSUPP without the feature QUIESCE, EBUSY when requests take longer than `limit`.
    pub fn quiesce(&self, limit: Duration) -> Result<(), UblkError> {
        let ms = limit.as_millis() as u64;
        self.order("QUIESCE_DEV", limit + DROP_LIMIT, |reply| {
            Order::Quiesce(ms, reply)
        })
    }

    /// Lets go of the device without a word to the driver: it waits for the next server. For the end of a process after
    /// [`quiesce`](Device::quiesce). Drop all queues first.
    pub fn leave(self) {
        self.hold().take();
        let (done, wait) = channel();
        if self.orders.send(Order::Leave(done)).is_ok() {
            let _ = wait.recv_timeout(DROP_LIMIT);
        }
    }

    /// Like [`stop`](Device::stop) for a device in use: its users get errors from then on.
    ///
    /// # Errors
    /// A failed command.
    pub fn stop_forced(&self) -> Result<(), UblkError> {
        self.order("STOP_DEV", STOP_LIMIT, Order::Stop)
    }

    /// Removes a stopped device, or lets a recovered one that was not started wait. Drop all queues first: the driver waits for them.
    ///
    /// # Errors
    /// A failed command, or [`UblkError::Timeout`] after 10 s; the removal then happens when the queues are gone.
    pub fn delete(self) -> Result<(), UblkError> {
        self.hold().take();
        self.order("DEL_DEV", DELETE_LIMIT + DROP_LIMIT, Order::Delete)
    }

    fn hold(&self) -> std::sync::MutexGuard<'_, Option<Arc<CharDevice>>> {
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

/// Where the device comes from.
enum From {
    New { spec: DeviceSpec, flags: u64 },
    Old(u32),
}

/// The control thread: the only user of libublk's control object, which only a device that was added here has.
struct Control {
    from: From,
    gate: Arc<Gate>,
}

impl Control {
    fn run(self, reply: &Reply<Added>, inbox: &Receiver<Order>) {
        let made = match &self.from {
            From::New { spec, flags } => add(spec, *flags).map(|(r, c, a)| (r, Some(c), a)),
            From::Old(id) => recover(*id).map(|(r, a)| (r, None, a)),
        };
        let (mut ring, ctrl, added) = match made {
            Ok(parts) => parts,
            Err(e) => {
                let _ = reply.send(Err(e));
                return;
            }
        };
        let id = added.char_device.id;
        // A device of ours from its first moment; a recovered one once it is served again.
        let mut ours = ctrl.is_some();
        let mut live = false;
        let mut deleted = false;
        if reply.send(Ok(added)).is_err() {
            // The caller gave up on us: leave nothing of our own behind.
            if ours {
                let _ = delete(&mut ring, id, ctrl.as_ref());
            }
            return;
        }
        while let Ok(order) = inbox.recv() {
            match order {
                Order::Start(reply) => {
                    let result = self.start(&mut ring, id);
                    live |= result.is_ok();
                    ours |= live;
                    let _ = reply.send(result);
                }
                Order::TryStop(reply) => {
                    let op = sys::UBLK_U_CMD_TRY_STOP_DEV;
                    let result = ring.command(op, id, 0, &mut [], &|| false);
                    live &= result.is_err();
                    let _ = reply.send(named("TRY_STOP_DEV", result));
                }
                Order::Stop(reply) => {
                    let result = if ours { stop(&mut ring, id) } else { Ok(()) };
                    live &= result.is_err();
                    let _ = reply.send(result);
                }
                Order::Delete(reply) => {
                    let result = match ours {
                        true => delete(&mut ring, id, ctrl.as_ref()),
                        false => Ok(()),
                    };
                    deleted = result.is_ok();
                    let _ = reply.send(result);
                }
                Order::Quiesce(ms, reply) => {
                    let op = sys::UBLK_U_CMD_QUIESCE_DEV;
                    let result = ring.command(op, id, ms, &mut [], &|| false);
                    let _ = reply.send(named("QUIESCE_DEV", result));
                }
                Order::Leave(done) => {
                    if let Some(ctrl) = &ctrl {
                        ctrl.disown();
                    }
                    let _ = done.send(());
                    return;
                }
                Order::Discard(done) => {
                    if live {
                        let _ = stop(&mut ring, id);
                    }
                    if ours && !deleted {
                        let _ = delete(&mut ring, id, ctrl.as_ref());
                    }
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn start(&self, ring: &mut ControlRing, id: u32) -> Result<(), UblkError> {
        let (op, name) = match self.from {
            From::New { .. } => (sys::UBLK_U_CMD_START_DEV, "START_DEV"),
            From::Old(_) => (sys::UBLK_U_CMD_END_USER_RECOVERY, "END_USER_RECOVERY"),
        };
        let begin = Instant::now();
        let give_up = || self.gate.get().fault.is_some() || begin.elapsed() > START_LIMIT;
        let pid = u64::from(std::process::id());
        let result = ring.command(op, id, pid, &mut [], &give_up);
        match (result, self.gate.get().fault) {
            (Err(libc::EINTR | libc::ECANCELED), Some(errno)) => Err(UblkError::Fetch { errno }),
            (Err(libc::EINTR | libc::ECANCELED), None) => Err(UblkError::Timeout { command: name }),
            (result, _) => named(name, result),
        }
    }
}

fn add(spec: &DeviceSpec, flags: u64) -> Result<(ControlRing, UblkCtrl, Added), UblkError> {
    let mut ring = ControlRing::open()?;
    let ctrl = UblkCtrlBuilder::default()
        .name("raidd")
        .id(spec.id.map_or(-1, |id| id as i32))
        .nr_queues(spec.queues)
        .depth(spec.depth)
        .io_buf_bytes(spec.max_request_bytes)
        .ctrl_flags(flags)
        .ctrl_target_flags(spec.cookie)
        .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
        .build()
        .map_err(|e| library("ADD_DEV", e))?;
    let id = ctrl.dev_info().dev_id;
    let mut params = spec.encode();
    let result = ring.command(sys::UBLK_U_CMD_SET_PARAMS, id, 0, &mut params, &|| false);
    named("SET_PARAMS", result)?;
    let added = opened(&mut ring, id)?;
    Ok((ring, ctrl, added))
}

/// START_USER_RECOVERY. The driver is busy with the dead process for a while.
fn recover(id: u32) -> Result<(ControlRing, Added), UblkError> {
    let mut ring = ControlRing::open()?;
    let begin = Instant::now();
    loop {
        let found = look_up(&mut ring, id).map_err(|e| command("GET_DEV_INFO", e))?;
        if found.alive {
            let pid = found.server;
            return Err(UblkError::Alive { id, pid });
        }
        if !found.recoverable() {
            return Err(UblkError::NotRecoverable(id));
        }
        let op = sys::UBLK_U_CMD_START_USER_RECOVERY;
        match ring.command(op, id, 0, &mut [], &|| false) {
            Err(libc::EBUSY) if begin.elapsed() < RELEASE_LIMIT => {
                thread::sleep(Duration::from_millis(20));
            }
            result => {
                named("START_USER_RECOVERY", result)?;
                break;
            }
        }
    }
    let added = opened(&mut ring, id)?;
    Ok((ring, added))
}

fn opened(ring: &mut ControlRing, id: u32) -> Result<Added, UblkError> {
    let char_device = Arc::new(CharDevice::open(ring, id)?);
    let cpus = (0..char_device.queues)
        .map(|qid| affinity(ring, id, qid))
        .collect();
    Ok(Added { char_device, cpus })
}

/// CPUs of a queue; none if the driver does not say.
fn affinity(ring: &mut ControlRing, id: u32, qid: u16) -> Vec<usize> {
    let mut mask = [0u8; 128];
    let op = sys::UBLK_U_CMD_GET_QUEUE_AFFINITY;
    if ring
        .command(op, id, u64::from(qid), &mut mask, &|| false)
        .is_err()
    {
        return Vec::new();
    }
    (0..mask.len() * 8)
        .filter(|cpu| mask[cpu / 8] >> (cpu % 8) & 1 != 0)
        .collect()
}

fn command(command: &'static str, errno: i32) -> UblkError {
    UblkError::Command { command, errno }
}

pub(crate) fn named(command: &'static str, result: Result<i32, i32>) -> Result<(), UblkError> {
    result
        .map(|_| ())
        .map_err(|errno| UblkError::Command { command, errno })
}

pub(crate) fn stop(ring: &mut ControlRing, id: u32) -> Result<(), UblkError> {
    let result = ring.command(sys::UBLK_U_CMD_STOP_DEV, id, 0, &mut [], &|| false);
    named("STOP_DEV", result)
}

/// Deletes, and waits until the last user of the char device is gone; gives up waiting, not deleting.
fn delete(ring: &mut ControlRing, id: u32, ctrl: Option<&UblkCtrl>) -> Result<(), UblkError> {
    // From here on libublk must not delete as well: it would wait without a limit.
    if let Some(ctrl) = ctrl {
        ctrl.disown();
    }
    let begin = Instant::now();
    let give_up = || begin.elapsed() > DELETE_LIMIT;
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

pub(crate) fn char_path(id: u32) -> PathBuf {
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
