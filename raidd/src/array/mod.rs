//! A running array: its members, engine threads, manager thread and block device, started and stopped as one.
//!
//! Start: limits of the members, ublk device, one engine thread per queue, then the device appears. Whatever fails on the way
//! takes everything made so far with it. Stop: the device goes first (refused while somebody uses it), then the manager
//! leaves the members clean, then the threads end, then the members are closed.

pub mod attach;
mod bitmap;
pub mod journal;
mod keeper;
mod limits;
pub mod parity;
mod succession;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded, unbounded};
use raid_core::assemble::AssembledArray;
use raid_core::geometry::Level;
use raid_core::path::layout::Layout;
use raid_core::path::manager::{Manager, ManagerConfig};
use raid_core::path::owners::Owners;
use raid_core::path::queue::{QueueConfig, QueueCore};
use raid_core::path::types::{Msg, SlotSet, SweepKind as Sweep};
use ublk_frontend::existing::Existing;
use ublk_frontend::{Device, DeviceSpec, Features, UblkError};

use crate::array_api::{
    ArrayOptions, ArrayStarter, ArrayStatus, Change, ChangeError, Changed, Health, MemberDevice,
    RunningArray, StartError, StopError, SweepKind, SweepLimits, SweepStatus,
};
use crate::engine::{Counters, Engine, EngineMember, Parts, Postbox, mailbox};
use attach::Claim;
use keeper::{Keeper, Order, Snapshot};
use parity::{ParityFacts, ParitySetup};
use succession::Legacy;

const OWNER_WORDS: usize = 1 << 14;
/// Bands of a sweep window: 8 MiB of each member at the usual band height.
const WINDOW: u64 = 128;
/// How long a hand-over waits for requests in flight.
const HAND_OVER: Duration = Duration::from_secs(10);
/// Time between checkpoints of a rebuild: what a crash can cost of it.
const CHECKPOINT_MS: u64 = 10_000;

/// Marks ublk devices as raidd's ("raidd", two bytes of the array's own, a version), so that those of a dead daemon are told
/// from others', and from one another.
const COOKIE: u64 = u64::from_be_bytes(*b"raidd\0\0\x01");
const COOKIE_OWN: u64 = 0xffff << 8;

/// Whether a device is, or was, some raidd's.
pub fn is_ours(cookie: u64) -> bool {
    cookie & !COOKIE_OWN == COOKIE
}

/// A cookie for a new device: its number may have been that of another one before.
fn new_cookie() -> u64 {
    let random = uuid::Uuid::new_v4().as_u128() as u64;
    COOKIE | (random & COOKIE_OWN)
}

/// Starts arrays on ublk devices.
#[derive(Debug, Default)]
pub struct UblkStarter;

impl ArrayStarter for UblkStarter {
    fn start(
        &self,
        verdict: AssembledArray,
        members: Vec<MemberDevice>,
        options: ArrayOptions,
    ) -> Result<Arc<dyn RunningArray>, StartError> {
        Ok(Arc::new(Array::start(verdict, members, options)?))
    }

    fn probe(&self) -> Result<Vec<String>, StartError> {
        let offered = Features::probe().map_err(ublk_error)?;
        let spec = DeviceSpec {
            zero_copy: true,
            recovery: true,
            ..DeviceSpec::default()
        };
        let used = Features::from_bits(spec.flags(offered));
        let mut names: Vec<String> = used.names().into_iter().map(String::from).collect();
        // A command and not a flag of the device.
        if offered.safe_stop() {
            names.push("SAFE_STOP_DEV".into());
        }
        Ok(names)
    }

    fn remove_leftovers(&self) -> Vec<String> {
        let dead = |d: &Existing| !d.alive && is_ours(d.cookie) && !d.recoverable();
        let devices = ublk_frontend::existing::existing().unwrap_or_default();
        let mut said = Vec::new();
        for device in devices.into_iter().filter(dead) {
            said.push(match ublk_frontend::existing::remove(device.id) {
                Ok(()) => format!("removed ublk device {}, whose raidd died", device.id),
                Err(e) => format!(
                    "ublk device {}, whose raidd died, was not removed: {e}",
                    device.id
                ),
            });
        }
        said
    }
}

fn ublk_error(error: UblkError) -> StartError {
    match error {
        UblkError::NoDriver => StartError::NoUblk {
            reason: "/dev/ublk-control does not exist".into(),
            remedy: "load the module: modprobe ublk_drv (Linux 6.5 or newer)".into(),
        },
        UblkError::NoPermission => StartError::NoUblk {
            reason: "no permission to open /dev/ublk-control".into(),
            remedy: "run raidd as root".into(),
        },
        UblkError::KernelTooOld => StartError::MissingFeature("user copy".into()),
        other => StartError::Device {
            operation: "setting up the ublk device".into(),
            source: io::Error::other(other),
        },
    }
}

/// The parts that go away in `stop`.
struct Running {
    device: Option<Device>,
    engines: Vec<JoinHandle<io::Result<()>>>,
    keeper: Option<JoinHandle<()>>,
    queues: Vec<Postbox>,
    claim: Option<Claim>,
}

/// See the module comment.
pub struct Array {
    running: Mutex<Running>,
    orders: Sender<Order>,
    exit: Arc<AtomicBool>,
    snapshot: Arc<Mutex<Snapshot>>,
    counters: Vec<Arc<Counters>>,
    facts: Facts,
}

/// What does not change while the array runs.
struct Facts {
    name: String,
    uuid: [u8; 16],
    level: Level,
    layout: u32,
    chunk_bytes: u64,
    size_bytes: u64,
    member_bytes: u64,
    band_bytes: u64,
    logical_block: u32,
    device: std::path::PathBuf,
    read_only: bool,
    parity: ParityFacts,
    features: Vec<String>,
}

impl Array {
    /// Starts an array. On an error nothing of it is left.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        verdict: AssembledArray,
        members: Vec<MemberDevice>,
        options: ArrayOptions,
    ) -> Result<Array, StartError> {
        let features = Features::probe().map_err(ublk_error)?;
        let geometry = verdict.geometry.clone();
        let layout = Layout::new(geometry.clone());
        let mut parity = ParitySetup::new(&options, layout.parity)?;
        let limits = limits::of_members(&members);
        let logical_block = members
            .iter()
            .map(|m| m.logical_block)
            .chain([512, verdict.logical_block_size])
            .max()
            .unwrap_or(512);
        let spec = limits::device_spec(&layout, &limits, logical_block, &options);
        let waiting = options.claim.as_ref().map(|c| c.device()).transpose();
        let waiting = waiting.map_err(StartError::attach)?.flatten();
        let device = match &waiting {
            Some(old) => succession::recover(old, &spec, &features)?,
            None => Device::add(&spec, &features).map_err(ublk_error)?,
        };
        let cpus: Vec<_> = (0..device.queues()).map(|q| device.queue_cpus(q)).collect();
        parity.find_gpus(&cpus);

        let files = engine_members(&geometry, &members);
        let mut filling = SlotSet::EMPTY;
        for (slot, _) in &verdict.filling {
            filling.insert(*slot);
        }
        let mut missing = SlotSet::EMPTY;
        for slot in (0..geometry.members()).filter(|s| files[usize::from(*s)].is_none()) {
            missing.insert(slot);
        }
        let mut manager = Manager::new(ManagerConfig {
            members: geometry.members(),
            parities: geometry.parities(),
            queues: device.queues(),
            bands: if layout.parity { layout.bands() } else { 0 },
            band_rows: layout.rows,
            events: verdict.events,
            resync_offset: verdict.resync_offset,
            missing,
            // What was forced is written as taken. A missing member is recorded even if the others know of it: they may
            // know from one record only, which is not enough.
            unrecorded: verdict.forced || verdict.uneven || !missing.is_empty(),
            read_only: options.read_only,
            safe_mode_delay_ms: options.safe_mode_delay_ms,
            sweep_floor: options.resync_floor_bytes,
            sweep_ceiling: options.resync_ceiling_bytes,
            window: WINDOW,
            filling,
            recovery: verdict.filling.iter().map(|f| f.1).min().unwrap_or(0),
            checkpoint_ms: CHECKPOINT_MS,
        });

        if manager.view().filling != filling {
            return Err(StartError::Unsupported(
                "a member is being rebuilt, which cannot be gone on with yet: let mdadm finish it"
                    .into(),
            ));
        }
        if let Some(bitmap) = bitmap::load(&verdict, &members, &layout)? {
            manager.set_bitmap(bitmap);
        }

        let facts = Facts {
            name: short_name(&verdict.name),
            uuid: verdict.uuid,
            level: verdict.level,
            layout: geometry.layout(),
            chunk_bytes: u64::from(geometry.chunk_sectors()) * 512,
            size_bytes: geometry.array_sectors() * 512,
            member_bytes: if layout.parity {
                geometry.member_sectors() * 512
            } else {
                0
            },
            band_bytes: u64::from(layout.rows) * 512,
            logical_block,
            device: device.path(),
            read_only: options.read_only,
            parity: parity.facts(layout.parity),
            features: device
                .features()
                .names()
                .into_iter()
                .map(String::from)
                .collect(),
        };
        let (orders, order_inbox) = unbounded();
        let exit = Arc::new(AtomicBool::new(false));
        let snapshot = Arc::new(Mutex::new(keeper::snapshot(&manager)));
        let mut array = Array {
            running: Mutex::new(Running {
                device: None,
                engines: Vec::new(),
                keeper: None,
                queues: Vec::new(),
                claim: options.claim.clone(),
            }),
            orders,
            exit,
            snapshot: snapshot.clone(),
            counters: Vec::new(),
            facts,
        };
        let frames = limits::frames(&layout, &options);
        let mut legacy = Legacy::new(
            &options,
            &layout,
            frames,
            device.queues(),
            &array.facts.name,
        );
        let keeper_inbox = array.start_engines(
            &device, &layout, &files, &manager, &parity, &options, frames, &legacy,
        )?;
        // Before anything can be written in this process's name.
        let head = legacy.publish(
            &spec,
            &device,
            &verdict,
            &manager,
            &members,
            options.read_only,
        );
        let head = match head {
            Ok(head) => head,
            Err(error) => {
                array
                    .running
                    .get_mut()
                    .unwrap_or_else(PoisonError::into_inner)
                    .device = Some(device);
                array.tear_down();
                return Err(StartError::attach(error));
            }
        };
        let running = array
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let keeper = Keeper::new(keeper::Start {
            manager,
            devices: members,
            layout,
            limits: SweepLimits {
                floor: options.resync_floor_bytes,
                ceiling: options.resync_ceiling_bytes,
                paused: false,
            },
            queues: running.queues.clone(),
            inbox: keeper_inbox,
            orders: order_inbox,
            snapshot,
            name: array.facts.name.clone(),
            head,
        });
        let spawned = keeper.and_then(|keeper| {
            std::thread::Builder::new()
                .name("raidd-keeper".into())
                .spawn(move || keeper.run())
        });
        let started = spawned.map_err(StartError::thread).and_then(|handle| {
            running.keeper = Some(handle);
            device.start().map_err(ublk_error)
        });
        let device_recovers = device.features().recovery();
        running.device = Some(device);
        if let Err(error) = started {
            if waiting.is_none() {
                legacy.retire();
            }
            array.tear_down();
            return Err(error);
        }
        if !device_recovers {
            let name = &array.facts.name;
            tracing::warn!(array = %name, "this kernel's ublk has no recovery: should raidd be killed, users of the array get errors");
        }
        if waiting.is_some() {
            let (name, device) = (&array.facts.name, array.facts.device.display());
            tracing::info!(array = %name, "{device} goes on in place of a raidd that died");
        }
        limits::open_up(&array.facts.device);
        Ok(array)
    }

    fn start_engines(
        &mut self,
        device: &Device,
        layout: &Layout,
        members: &[Option<EngineMember>],
        manager: &Manager,
        parity: &ParitySetup,
        options: &ArrayOptions,
        frames: u32,
        legacy: &Legacy,
    ) -> Result<crossbeam_channel::Receiver<Msg>, StartError> {
        let owners = Arc::new(Owners::new(OWNER_WORDS));
        let (to_keeper, keeper_inbox) = unbounded();
        let running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut cores = Vec::new();
        let mut mailboxes = Vec::new();
        for queue in 0..device.queues() {
            let cfg = QueueConfig {
                queue,
                queues: device.queues(),
                depth: device.depth(),
                max_sectors: limits::request_bytes(layout, options).max(device.max_request_bytes())
                    / 512,
                frames,
                defer_passes: 3,
            };
            let mut core =
                QueueCore::new(cfg, layout.geometry.clone(), owners.clone(), manager.view());
            if let Some(bitmap) = manager.bitmap() {
                core.set_intent(bitmap.intent());
            }
            let (postbox, inbox) = mailbox(core.mail_capacity()).map_err(StartError::thread)?;
            running.queues.push(postbox);
            mailboxes.push(inbox);
            cores.push(core);
        }
        for (queue, (core, inbox)) in (0u16..).zip(cores.into_iter().zip(mailboxes)) {
            let frontend = device.queue(queue).map_err(ublk_error)?;
            let counters = Arc::new(Counters::default());
            self.counters.push(counters.clone());
            let arena_frame = layout.frame_bytes() as usize;
            let (members, peers, manager) =
                (members.to_vec(), running.queues.clone(), to_keeper.clone());
            let cpus = device.queue_cpus(queue).to_vec();
            let exit = self.exit.clone();
            let lane = parity.plans.get(usize::from(queue)).cloned().flatten();
            let parity = parity.calibration.clone();
            let (ready, made) = bounded(1);
            let legacy = legacy.queue(queue, core.io_capacity());
            let work = move || {
                pin(&cpus);
                let build = || {
                    let (arena, journal) = legacy.make(frames as usize, arena_frame)?;
                    let parts = Parts {
                        core,
                        members,
                        mailbox: inbox,
                        peers,
                        manager,
                        parity,
                        lane,
                        arena,
                        journal,
                        counters,
                        exit,
                    };
                    Engine::new(frontend, parts)
                };
                match build() {
                    Ok(engine) => {
                        let _ = ready.send(Ok(()));
                        engine.run()
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        Ok(())
                    }
                }
            };
            let handle = std::thread::Builder::new()
                .name(format!("raidd-q{queue}"))
                .spawn(work);
            let made = handle.and_then(|handle| {
                running.engines.push(handle);
                made.recv()
                    .unwrap_or_else(|_| Err(io::Error::other("the engine thread died")))
            });
            if let Err(source) = made {
                self.tear_down();
                return Err(StartError::Device {
                    operation: "starting an engine thread".into(),
                    source,
                });
            }
        }
        Ok(keeper_inbox)
    }

    /// Ends all threads without a word to the members. For a start that failed; the members stay as a crash leaves them.
    fn tear_down(&mut self) {
        let running = self
            .running
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        self.exit.store(true, Ordering::Release);
        if let Some(device) = &running.device
            && let Err(error) = device.stop_forced()
        {
            tracing::debug!(%error, "stopping a device that did not start");
        }
        let (answer, _stopped) = bounded(1);
        let _ = self.orders.try_send(Order::Stop(answer));
        finish(running);
    }
}

/// Ends the threads, then removes the device.
fn finish(running: &mut Running) {
    for queue in &running.queues {
        queue.wake();
    }
    for engine in running.engines.drain(..) {
        match engine.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "an engine thread ended with an error"),
            Err(_) => tracing::error!("an engine thread panicked"),
        }
    }
    running.queues.clear();
    if let Some(keeper) = running.keeper.take()
        && keeper.join().is_err()
    {
        tracing::error!("the manager thread panicked");
    }
    if let Some(device) = running.device.take()
        && let Err(error) = device.delete()
    {
        tracing::warn!(%error, "the ublk device was not removed");
    }
}

impl RunningArray for Array {
    fn status(&self) -> ArrayStatus {
        let shot = self
            .snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let facts = &self.facts;
        let mut counters = BTreeMap::new();
        for queue in &self.counters {
            for (name, value) in queue.read() {
                *counters.entry(name.to_string()).or_insert(0) += value;
            }
        }
        let sweep = shot.sweep.map(|sweep| SweepStatus {
            kind: match sweep.kind {
                Sweep::Resync => SweepKind::Resync,
                Sweep::Fill => SweepKind::Recover,
                Sweep::Check => SweepKind::Check,
                Sweep::Repair { .. } => SweepKind::Repair,
            },
            done_bytes: sweep.done * facts.band_bytes,
            total_bytes: sweep.total * facts.band_bytes,
            rate_bytes_per_s: (shot.rate * facts.band_bytes as f64) as u64,
        });
        ArrayStatus {
            name: facts.name.clone(),
            uuid: facts.uuid,
            level: facts.level.md() as u8,
            layout: facts.layout,
            chunk_bytes: facts.chunk_bytes,
            size_bytes: facts.size_bytes,
            member_bytes: facts.member_bytes,
            logical_block: facts.logical_block,
            events: shot.events,
            device: facts.device.clone(),
            health: match (shot.view.failed, shot.view.doubtful().is_empty()) {
                (true, _) => Health::Failed,
                (false, true) => Health::Optimal,
                (false, false) => Health::Degraded,
            },
            clean: !shot.dirty,
            read_only: facts.read_only,
            members: shot.devices.to_vec(),
            sweep,
            limits: shot.limits,
            scrubs: shot.scrubs,
            bitmap: shot.bitmap,
            parity_engine: facts.parity.engine.clone(),
            parity: facts.parity.choices.clone(),
            gpu: facts.parity.gpu(),
            ublk_features: facts.features.clone(),
            counters,
        }
    }

    fn stop(&self) -> Result<(), StopError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &running.device {
            stop_device(device).map_err(|error| match error {
                ublk_frontend::StopError::Busy => StopError::Busy,
                other => StopError::Failed {
                    operation: "stopping the block device".into(),
                    source: io::Error::other(other),
                },
            })?;
        }
        let (answer, stopped) = bounded(1);
        let told = self.orders.send(Order::Stop(answer)).is_ok();
        if told && stopped.recv_timeout(Duration::from_secs(120)).is_err() {
            tracing::error!(array = %self.facts.name, "the members could not be marked clean");
        }
        self.exit.store(true, Ordering::Release);
        finish(&mut running);
        if let Some(claim) = running.claim.take() {
            claim.retire();
        }
        Ok(())
    }

    fn hand_over(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = running.device.as_ref().filter(|d| d.features().quiesce())
            && let Err(error) = device.quiesce(HAND_OVER)
        {
            tracing::info!(array = %self.facts.name, %error, "requests in flight are left to the next raidd");
        }
    }

    fn change(&self, change: Change) -> Result<Changed, ChangeError> {
        let ended = || ChangeError::new("the array has ended", "");
        let (answer, result) = bounded(1);
        let order = Order::Change { change, answer };
        self.orders.send(order).map_err(|_| ended())?;
        result.recv().map_err(|_| ended())?
    }
}

/// Stops the device. A partition scan or udev looks at every new or changed device for a moment; that is no use of it.
fn stop_device(device: &Device) -> Result<(), ublk_frontend::StopError> {
    let patience = Instant::now() + Duration::from_secs(1);
    loop {
        match device.stop() {
            Err(ublk_frontend::StopError::Busy) if Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

impl StartError {
    fn attach(error: attach::AttachError) -> StartError {
        StartError::Unsupported(error.to_string())
    }

    fn thread(source: io::Error) -> StartError {
        StartError::Device {
            operation: "starting a thread".into(),
            source,
        }
    }
}

/// What the engines get of the members, by slot.
fn engine_members(
    geometry: &raid_core::geometry::Geometry,
    members: &[MemberDevice],
) -> Vec<Option<EngineMember>> {
    let mut out: Vec<Option<EngineMember>> = (0..geometry.members()).map(|_| None).collect();
    for member in members {
        if let Some(place) = member.slot.and_then(|s| out.get_mut(usize::from(s))) {
            *place = Some(EngineMember {
                file: member.file.clone(),
                data_offset: member.superblock.data_offset * 512,
            });
        }
    }
    out
}

fn short_name(name: &str) -> String {
    name.split_once(':').map_or(name, |(_, n)| n).to_string()
}

/// Runs this thread where the queue's requests come from.
fn pin(cpus: &[usize]) {
    let mut set = nix::sched::CpuSet::new();
    let mut any = false;
    for cpu in cpus {
        any |= set.set(*cpu).is_ok();
    }
    if any && let Err(error) = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set) {
        tracing::debug!(%error, "an engine thread is not bound to its CPUs");
    }
}
