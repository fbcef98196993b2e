//! Who serves an array, and what the next one needs to go on in its place: one small file per array in the runtime
//! folder, and a lock beside it that ends with the process.
//!
//! Nothing in it is trusted: the lock says that its process is dead, the boot id that it was this boot, the members' superblocks
//! that nobody has had the array meanwhile, and the driver that the block device is the one it names. What does not
//! fit is an error that touches nothing. Read and written once per start; never on the I/O path.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use raid_core::assemble::Candidate;
use raid_core::superblock::{SlotRole, Superblock, parse_uuid, uuid_text};
use serde::{Deserialize, Serialize};
use ublk_frontend::existing::{self, Existing, State as DeviceState};

use super::is_ours;
use super::journal::{Files, HeadLeft, Mark};

/// Version of the file.
const VERSION: u32 = 1;
/// How long the lock of a process that is just ending is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is kept of an array that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// [`VERSION`].
    pub version: u32,
    /// Of the boot that it was written in.
    pub boot_id: String,
    /// Array uuid.
    pub uuid: String,
    /// For messages.
    pub name: String,
    /// Counts the processes that have served the array; names their files.
    pub generation: u64,
    /// The driver knows a block device that is served by one of these: the process that wrote this, and the one before it.
    pub pids: Vec<u32>,
    /// ublk number.
    pub device: u32,
    /// What marks it in the driver.
    pub cookie: u64,
    /// Hardware queues.
    pub queues: u16,
    /// Requests in flight per queue.
    pub depth: u16,
    /// Longest request in bytes.
    pub max_request_bytes: u32,
    /// Size in sectors.
    pub sectors: u64,
    /// Logical block in bytes.
    pub logical_block: u32,
    /// MD's level.
    pub level: i32,
    /// MD's layout.
    pub layout: u32,
    /// Chunk in sectors.
    pub chunk_sectors: u32,
    /// Members of the array.
    pub raid_disks: u32,
    /// Sectors in use on each member.
    pub member_sectors: u64,
    /// Device uuids of the members that it began with.
    pub members: Vec<String>,
    /// Served read only.
    pub read_only: bool,
    /// Every queue has a journal.
    pub journal: bool,
}

/// Why an array cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The lock is held.
    #[error("another raidd serves it (it holds {0})")]
    Served(PathBuf),
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not one that this program has written.
    #[error("{0} cannot be understood; it may be of another version of raidd")]
    Unreadable(PathBuf),
    /// The members do not agree with it.
    #[error("{0} differs between the members and what the dead raidd had")]
    Members(&'static str),
    /// The members were written to by somebody else.
    #[error("somebody has written to the members since its raidd died")]
    Moved,
    /// The block device is not the one it names.
    #[error("ublk device {id} is not the one that the dead raidd served: {what}")]
    Device {
        /// Its number.
        id: u32,
        /// What differs.
        what: &'static str,
    },
    /// The driver cannot be asked.
    #[error(transparent)]
    Driver(#[from] ublk_frontend::UblkError),
}

/// The folder of these files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    folder: PathBuf,
}

impl Runtime {
    /// Below the folder that the control socket is in.
    pub fn beside(socket: &Path) -> Runtime {
        let folder = socket.parent().unwrap_or(Path::new("/")).join("arrays");
        Runtime { folder }
    }

    fn path(&self, uuid: &[u8; 16], ext: &str) -> PathBuf {
        self.folder.join(format!("{}.{ext}", file_name(uuid)))
    }

    /// Arrays that have such a file: those that run, and those whose process died.
    pub fn arrays(&self) -> Vec<[u8; 16]> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let uuid = |e: fs::DirEntry| {
            let name = e.file_name();
            parse_uuid(name.to_str()?.strip_suffix(".json")?)
        };
        let mut all: Vec<_> = entries.filter_map(uuid).collect();
        all.sort_unstable();
        all
    }

    /// Becomes the one process that may serve the array, until the claim is dropped or this process ends.
    ///
    /// # Errors
    /// [`AttachError::Served`], [`AttachError::File`], [`AttachError::Unreadable`].
    pub fn claim(&self, uuid: &[u8; 16]) -> Result<Claim, AttachError> {
        let file_error = |path: &Path| {
            let path = path.to_path_buf();
            move |source| AttachError::File { path, source }
        };
        let mut folder = DirBuilder::new();
        folder.recursive(true).mode(0o700);
        folder
            .create(&self.folder)
            .map_err(file_error(&self.folder))?;
        let lock_path = self.path(uuid, "lock");
        let lock = lock(&lock_path)?;
        let path = self.path(uuid, "json");
        let left = match fs::read(&path) {
            Ok(text) => {
                let state: Option<State> = serde_json::from_slice(&text).ok();
                let state =
                    state.filter(|s| s.version == VERSION && parse_uuid(&s.uuid) == Some(*uuid));
                Some(state.ok_or_else(|| AttachError::Unreadable(path.clone()))?)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(file_error(&path)(e)),
        };
        let this_boot = left.as_ref().is_none_or(|s| s.boot_id == boot_id());
        let claim = Claim(Arc::new(Inner {
            runtime: self.clone(),
            uuid: *uuid,
            left: left.filter(|_| this_boot),
            _lock: lock,
        }));
        if !this_boot {
            claim.retire();
        }
        Ok(claim)
    }
}

fn lock(path: &Path) -> Result<Flock<File>, AttachError> {
    let file_error = |source| AttachError::File {
        path: path.into(),
        source,
    };
    let begin = Instant::now();
    loop {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let file = options.open(path).map_err(file_error)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, nix::Error::EWOULDBLOCK)) if begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err((_, nix::Error::EWOULDBLOCK)) => return Err(AttachError::Served(path.into())),
            Err((_, e)) => return Err(file_error(e.into())),
        }
    }
}

fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().into()
}

fn file_name(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|b| format!("{b:02x}")).collect()
}

/// The right to serve an array. Clones share it.
#[derive(Clone, Debug)]
pub struct Claim(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    runtime: Runtime,
    uuid: [u8; 16],
    left: Option<State>,
    _lock: Flock<File>,
}

impl PartialEq for Claim {
    fn eq(&self, other: &Claim) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Claim {}

impl Claim {
    /// What the process before has left, if it has not stopped the array.
    pub fn left(&self) -> Option<&State> {
        self.0.left.as_ref()
    }

    /// Its files.
    pub fn old_files(&self) -> Option<Files> {
        self.left().map(|s| self.files(s.generation))
    }

    fn files(&self, generation: u64) -> Files {
        let stem = format!("{}.{generation}", file_name(&self.0.uuid));
        Files::new(&self.0.runtime.folder, stem)
    }

    /// Number of this process's files.
    pub fn generation(&self) -> u64 {
        self.left().map_or(1, |s| s.generation + 1)
    }

    /// Where this process's files go.
    pub fn new_files(&self) -> Files {
        self.files(self.generation())
    }

    /// Whether the folder is in memory and has room for so many bytes without being filled.
    ///
    /// # Errors
    /// A sentence.
    pub fn room(&self, bytes: u64) -> Result<(), String> {
        let folder = &self.0.runtime.folder;
        let found =
            nix::sys::statfs::statfs(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        if found.filesystem_type() != nix::sys::statfs::TMPFS_MAGIC {
            return Err(format!("{} is not in a tmpfs", folder.display()));
        }
        let free = found.blocks_available() * found.block_size() as u64;
        if bytes > free / 2 {
            return Err(format!(
                "{} has {} MiB left, of which buffers may take half, and they need {} MiB; mount a larger tmpfs there",
                folder.display(),
                free >> 20,
                bytes >> 20
            ));
        }
        Ok(())
    }

    /// The block device that waits for us, if there is one.
    ///
    /// # Errors
    /// [`AttachError::Device`] if one waits under that number and is another, [`AttachError::Driver`].
    pub fn device(&self) -> Result<Option<Existing>, AttachError> {
        let Some(state) = self.left() else {
            return Ok(None);
        };
        let begin = Instant::now();
        loop {
            let waits = |d: &Existing| {
                is_ours(d.cookie) && d.state != DeviceState::Dead && d.features.recovery()
            };
            let Some(found) = existing::find(state.device)?.filter(waits) else {
                return Ok(None);
            };
            match (found.alive, served_by(state, &found)) {
                // The number has gone to somebody else's device since.
                (true, false) => return Ok(None),
                // The lock is ours, so that process is ending.
                (true, true) if begin.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                _ => {
                    fits(state, &found)?;
                    return Ok(Some(found));
                }
            }
        }
    }

    /// Whether these are the members of the dead process, with nothing written by others since.
    ///
    /// # Errors
    /// [`AttachError::Members`], [`AttachError::Moved`].
    pub fn check(
        &self,
        candidates: &[Candidate],
        head: Option<&HeadLeft>,
    ) -> Result<(), AttachError> {
        let Some(state) = self.left() else {
            return Ok(());
        };
        let blocks: Vec<&Superblock> = candidates.iter().map(|c| &c.superblock).collect();
        compare(state, &blocks)?;
        match head {
            Some(head) if newest(&blocks).is_some_and(|mark| !head.knows(mark)) => {
                Err(AttachError::Moved)
            }
            _ => Ok(()),
        }
    }

    /// Makes the state known to the next process, in one step, and removes the files of the one before.
    ///
    /// # Errors
    /// [`AttachError::File`].
    pub fn publish(&self, mut state: State) -> Result<(), AttachError> {
        state.version = VERSION;
        state.boot_id = boot_id();
        state.uuid = uuid_text(&self.0.uuid);
        state.generation = self.generation();
        state.pids = vec![std::process::id()];
        state.pids.extend(self.left().and_then(|s| s.pids.first()));
        let path = self.0.runtime.path(&self.0.uuid, "json");
        let new = self.0.runtime.path(&self.0.uuid, "json-new");
        let written = (|| {
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(&state)?)?;
            fs::rename(&new, &path)
        })();
        written.map_err(|source| AttachError::File { path, source })?;
        if let Some(old) = self.old_files() {
            old.remove();
        }
        Ok(())
    }

    /// The array was stopped, or what was left of it must not be used: nothing remains for a next process.
    pub fn retire(&self) {
        let _ = fs::remove_file(self.0.runtime.path(&self.0.uuid, "json"));
        let prefix = format!("{}.", file_name(&self.0.uuid));
        for entry in fs::read_dir(&self.0.runtime.folder)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&prefix) && !name.ends_with(".lock") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The newest record on these members.
pub fn newest(blocks: &[&Superblock]) -> Option<Mark> {
    let mark = |b: &&Superblock| Mark {
        events: b.events,
        utime: b.utime,
    };
    // A spare may have been made after the last record.
    let members = blocks
        .iter()
        .filter(|b| matches!(b.slot(), SlotRole::Slot(_)));
    members.map(mark).max_by_key(|m| (m.events, m.utime))
}

fn served_by(state: &State, found: &Existing) -> bool {
    state
        .pids
        .iter()
        .any(|p| i64::from(*p) == i64::from(found.server))
}

fn fits(state: &State, found: &Existing) -> Result<(), AttachError> {
    let checks = [
        (
            found.cookie == state.cookie,
            "it is another one of this number",
        ),
        (!found.alive, "its server is alive"),
        (found.queues == state.queues, "number of queues"),
        (found.depth == state.depth, "requests per queue"),
        (
            found.max_request_bytes == state.max_request_bytes,
            "longest request",
        ),
    ];
    let mut wrong = checks.iter().filter(|(ok, _)| !ok);
    match wrong.next() {
        Some((_, what)) => Err(AttachError::Device { id: found.id, what }),
        None => Ok(()),
    }
}

fn compare(state: &State, blocks: &[&Superblock]) -> Result<(), AttachError> {
    for block in blocks {
        let checks = [
            (block.level == state.level, "the level"),
            (
                block.layout == state.layout || state.level == 0,
                "the layout",
            ),
            (block.chunk_sectors == state.chunk_sectors, "the chunk"),
            (
                block.raid_disks == state.raid_disks,
                "the number of members",
            ),
            (block.size == state.member_sectors, "the size"),
        ];
        if let Some((_, what)) = checks.iter().find(|(ok, _)| !ok) {
            return Err(AttachError::Members(what));
        }
    }
    let known = |uuid: &str| blocks.iter().any(|b| uuid_text(&b.device_uuid) == uuid);
    // Members may be gone since; that all are others may not be.
    let had = &state.members;
    if !had.is_empty() && !had.iter().any(|uuid| known(uuid)) {
        return Err(AttachError::Members("every member"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ublk_frontend::Features;

    use super::*;

    const UUID: [u8; 16] = *b"0123456789abcdef";

    fn state() -> State {
        State {
            version: VERSION,
            boot_id: boot_id(),
            uuid: uuid_text(&UUID),
            name: "data".into(),
            generation: 1,
            pids: vec![77],
            device: 3,
            cookie: 9,
            queues: 2,
            depth: 128,
            max_request_bytes: 1 << 20,
            sectors: 1 << 20,
            logical_block: 512,
            level: 5,
            layout: 2,
            chunk_sectors: 128,
            raid_disks: 3,
            member_sectors: 1 << 19,
            members: vec![uuid_text(&[1; 16]), uuid_text(&[2; 16])],
            read_only: false,
            journal: true,
        }
    }

    fn block(device: u8) -> Superblock {
        let mut block = Superblock::blank(4);
        (block.level, block.layout, block.chunk_sectors) = (5, 2, 128);
        (block.raid_disks, block.size, block.device_uuid) = (3, 1 << 19, [device; 16]);
        (block.events, block.utime) = (9, 90);
        block
    }

    #[test]
    fn a_state_is_left_to_the_next_claim_and_only_one_can_have_it() {
        let folder = tempfile::tempdir().expect("folder");
        let runtime = Runtime::beside(&folder.path().join("raidd.sock"));
        let claim = runtime.claim(&UUID).expect("free");
        assert_eq!((claim.left(), claim.generation()), (None, 1));
        claim.publish(state()).expect("written");
        assert_eq!(runtime.arrays(), [UUID]);
        let refused = runtime.claim(&UUID).expect_err("it is served");
        assert!(matches!(refused, AttachError::Served(_)), "{refused}");
        drop(claim);
        let next = runtime.claim(&UUID).expect("its process is gone");
        let left = next.left().expect("left");
        assert_eq!(
            (left.name.as_str(), left.pids[0]),
            ("data", std::process::id())
        );
        assert_eq!(next.generation(), 2);
        next.new_files().head(Mark::default(), 0).expect("room");
        next.retire();
        assert!(runtime.arrays().is_empty());
        assert!(next.new_files().read_head().is_none());
    }

    #[test]
    fn what_another_boot_or_version_has_left_is_not_used() {
        let folder = tempfile::tempdir().expect("folder");
        let runtime = Runtime::beside(&folder.path().join("raidd.sock"));
        runtime
            .claim(&UUID)
            .expect("free")
            .publish(state())
            .expect("written");
        let path = runtime.path(&UUID, "json");
        let text = fs::read_to_string(&path).expect("there");
        fs::write(&path, text.replace(&boot_id(), "another")).expect("written");
        assert_eq!(runtime.claim(&UUID).expect("free").left(), None);
        assert!(!path.exists());
        for bad in [text.replace("\"version\": 1", "\"version\": 2"), "{".into()] {
            fs::write(&path, bad).expect("written");
            let refused = runtime.claim(&UUID).expect_err("not understood");
            assert!(matches!(refused, AttachError::Unreadable(_)), "{refused}");
        }
    }

    #[test]
    fn every_difference_is_named() {
        let (a, b, c) = (block(1), block(2), block(3));
        compare(&state(), &[&a, &b]).expect("the same");
        compare(&state(), &[&b]).expect("one is gone");
        assert!(compare(&state(), &[&c]).is_err(), "others");
        let odd = |change: fn(&mut Superblock)| {
            let mut b = block(1);
            change(&mut b);
            compare(&state(), &[&b])
                .expect_err("it differs")
                .to_string()
        };
        assert!(odd(|b| b.level = 6).contains("level"));
        assert!(odd(|b| b.layout = 3).contains("layout"));
        assert!(odd(|b| b.chunk_sectors = 64).contains("chunk"));
        assert!(odd(|b| b.raid_disks = 4).contains("members"));
        assert!(odd(|b| b.size = 7).contains("size"));

        let device = Existing {
            id: 3,
            server: 77,
            alive: false,
            cookie: 9,
            state: DeviceState::Waiting,
            features: Features::from_bits(0),
            queues: 2,
            depth: 128,
            max_request_bytes: 1 << 20,
        };
        fits(&state(), &device).expect("the same");
        let odd = |change: fn(&mut Existing)| {
            let mut d = device;
            change(&mut d);
            fits(&state(), &d).expect_err("it differs").to_string()
        };
        assert!(odd(|d| d.cookie = 1).contains("another one"));
        assert!(odd(|d| d.alive = true).contains("alive"));
        assert!(odd(|d| d.queues = 1).contains("queues"));
        assert!(odd(|d| d.depth = 1).contains("per queue"));
        assert!(odd(|d| d.max_request_bytes = 1).contains("longest"));
    }
}
