//! What each command of the protocol does; the daemon's half of raidctl's verbs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raid_core::superblock::uuid_text;

use super::arrays::Arrays;
use super::protocol::{
    Command, Outcome, Problem, Refusal, RefusalKind, Reply, StopReply, StopRequest,
};
use super::server::Handler;
use crate::array::attach::Runtime;
use crate::array_api::{ArrayOptions, ArrayStarter, RunningArray};
use crate::config::Config;
use crate::guard::Guard;
use crate::leftovers::Leftovers;
use crate::numbers::Numbers;

/// Everything a command may need.
pub struct Control {
    pub(super) config: Config,
    pub(super) starter: Arc<dyn ArrayStarter>,
    pub(super) guard: Guard,
    pub(super) arrays: Arrays,
    pub(super) numbers: Numbers,
    leftovers: Arc<Leftovers>,
    /// Where it is kept what runs, for the next raidd.
    pub(super) runtime: Option<Runtime>,
    /// The daemon was told to end and only waits for arrays in use.
    ending: AtomicBool,
    /// Tests use image files as members; the programs never do.
    pub(super) allow_files: bool,
}

impl Control {
    /// For the daemon.
    pub fn new(config: Config, starter: Arc<dyn ArrayStarter>) -> Control {
        let guard = if config.manage_mdadm_conf {
            Guard::system()
        } else {
            Guard::default()
        };
        let numbers = Numbers::new(&config.state_dir);
        Control {
            runtime: Some(Runtime::beside(&config.socket.path)),
            numbers,
            config,
            starter,
            guard,
            arrays: Arrays::default(),
            leftovers: Arc::default(),
            ending: AtomicBool::new(false),
            allow_files: false,
        }
    }

    /// For tests without block devices: image files as members, mdadm's and udev's files where `guard` says.
    pub fn with_files(config: Config, starter: Arc<dyn ArrayStarter>, guard: Guard) -> Control {
        let numbers = Numbers::new(&config.state_dir);
        Control {
            runtime: None,
            numbers,
            config,
            starter,
            guard,
            arrays: Arrays::default(),
            leftovers: Arc::default(),
            ending: AtomicBool::new(false),
            allow_files: true,
        }
    }

    /// Removes devices of a daemon that died, in the background.
    ///
    /// # Errors
    /// As [`Leftovers::remove`].
    pub fn remove_leftovers(&self, dead: Vec<u32>) -> std::io::Result<()> {
        self.leftovers.remove(dead, self.starter.clone())
    }

    /// From now on nothing is started any more: it would go with the arrays that are in use now.
    pub fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    fn not_ending(&self, what: &str) -> Result<(), Refusal> {
        if !self.ending.load(Ordering::SeqCst) {
            return Ok(());
        }
        let message = format!(
            "{what}: this raidd was told to end and only waits for arrays that are in use; start it again \
             once it has ended (systemctl restart raidd), then repeat the command"
        );
        Err(Refusal::new(RefusalKind::Failed, message))
    }

    /// What runs.
    pub fn arrays(&self) -> &Arrays {
        &self.arrays
    }

    fn stop(&self, request: &StopRequest) -> Result<StopReply, Refusal> {
        if request.abandon {
            return self.abandon(request);
        }
        let running = match self.arrays.find(&request.array) {
            Ok(running) => running,
            Err(unknown) if request.release => return self.release_stopped(request, unknown),
            Err(unknown) => return Err(unknown),
        };
        if request.dry_run {
            let refusal = self.arrays.busy(&running);
            if !refusal.problems.is_empty() {
                return Err(refusal);
            }
            return Ok(StopReply {
                name: running.name,
                uuid: uuid_text(&running.uuid),
                outcome: Outcome::Planned,
                released: request.release,
                problems: Vec::new(),
            });
        }
        let mut reply = self.arrays.stop(&running)?;
        if request.release {
            self.release(&running.uuid, &mut reply);
        }
        Ok(reply)
    }

    fn release(&self, uuid: &[u8; 16], reply: &mut StopReply) {
        match self.guard.remove(uuid) {
            Ok(_) => reply.released = true,
            Err(e) => {
                tracing::warn!(array = reply.name, "{e}");
                let again = format!("then repeat: raidctl stop --release {}", reply.uuid);
                reply.problems.push(Problem::new(
                    &reply.name,
                    format!("not released: {e}"),
                    again,
                ));
            }
        }
    }

    /// Takes the notes of an array away that does not run, found by them or by its members.
    fn release_stopped(
        &self,
        request: &StopRequest,
        unknown: Refusal,
    ) -> Result<StopReply, Refusal> {
        let mut uuids = self.guard.find(&request.array);
        if uuids.is_empty() {
            for found in crate::discover::scan().0 {
                let block = found.superblock;
                if block.short_name() == request.array || block.name == request.array {
                    uuids.extend(self.guard.find(&uuid_text(&block.uuid)));
                }
            }
            uuids.sort_unstable();
            uuids.dedup();
        }
        // One that runs is meant by its own name only.
        uuids.retain(|uuid| self.arrays.by_uuid(uuid).is_none());
        let uuid = match uuids.as_slice() {
            [] => {
                let message = format!(
                    "{}, and nothing keeps mdadm off one of that name or uuid",
                    unknown.message
                );
                return Err(Refusal::new(unknown.kind, message));
            }
            [one] => *one,
            several => {
                let several: Vec<String> = several.iter().map(uuid_text).collect();
                let message = format!(
                    "several arrays that do not run have this name; release one by its uuid: {}",
                    several.join(", ")
                );
                return Err(Refusal::new(RefusalKind::Preflight, message));
            }
        };
        let mut reply = StopReply {
            name: request.array.clone(),
            uuid: uuid_text(&uuid),
            outcome: Outcome::Unchanged,
            released: false,
            problems: Vec::new(),
        };
        if request.dry_run {
            reply.outcome = Outcome::Planned;
            reply.released = true;
            let message = "it does not run; its members would become mdadm's to assemble";
            reply.problems.push(Problem::new(&reply.name, message, ""));
        } else {
            self.release(&uuid, &mut reply);
        }
        Ok(reply)
    }

    /// Options of a start: the configured ones, and the device number the array had last time if it is free.
    pub(super) fn options(&self, uuid: &[u8; 16], read_only: bool) -> ArrayOptions {
        let mut options = self.config.defaults.options(read_only);
        options.device_id = self.numbers.of(uuid).filter(|id| !self.taken(*id));
        options
    }

    fn taken(&self, id: u32) -> bool {
        self.leftovers.keeps(id)
            || Path::new(&format!("/dev/ublkc{id}")).exists()
            || Path::new(&format!("/sys/class/ublk-char/ublkc{id}")).exists()
    }

    /// So that an array has the same device after the next start. Forgetting it is no harm worth a failure.
    pub(super) fn remember(&self, uuid: &[u8; 16], array: &dyn RunningArray) {
        let device = array.status().device;
        let id = device
            .to_str()
            .and_then(|d| d.strip_prefix("/dev/ublkb"))
            .and_then(|n| n.parse().ok());
        if let Some(id) = id
            && let Err(e) = self.numbers.set(uuid, id)
        {
            tracing::warn!("{e}");
        }
    }

    /// Keeps mdadm and udev off an array; failing to is a warning, not an obstacle.
    pub(super) fn keep_off(&self, name: &str, uuid: &[u8; 16]) -> Option<Problem> {
        match self.guard.add(name, uuid) {
            Ok(true) => tracing::info!(
                array = name,
                "told mdadm and udev to leave its members alone"
            ),
            Ok(false) => {}
            Err(e) => {
                tracing::warn!(array = name, "{e}");
                return Some(Problem::new(
                    name,
                    e.to_string(),
                    "assemble it again once that file can be written",
                ));
            }
        }
        None
    }
}

impl Handler for Control {
    fn handle(&self, command: Command) -> Result<Reply, Refusal> {
        Ok(match command {
            Command::Version => Reply::Version {
                version: env!("CARGO_PKG_VERSION").into(),
                pid: std::process::id(),
            },
            Command::Create(request) => {
                self.not_ending("not created")?;
                Reply::Created(self.create(&request)?)
            }
            Command::Assemble(request) => {
                self.not_ending("not assembled")?;
                Reply::Assembled {
                    arrays: self.assemble(&request)?,
                }
            }
            Command::Stop(request) => Reply::Stopped(self.stop(&request)?),
            Command::List => Reply::List {
                arrays: self.arrays.views(),
            },
            Command::Detail(request) => {
                Reply::Detail(Box::new(self.arrays.detail(&request.array)?))
            }
            Command::Fail(request) => Reply::Members(self.fail(&request)?),
            Command::Remove(request) => Reply::Members(self.remove(&request)?),
            Command::Add(request) => Reply::Members(self.add(&request)?),
            Command::Scrub(request) => Reply::Detail(Box::new(self.scrub(&request)?)),
            Command::Set(request) => Reply::Detail(Box::new(self.set(&request)?)),
        })
    }
}
