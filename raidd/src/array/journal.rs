//! The files that an array leaves to a successor, and what the successor does with them: for each queue its arena and its
//! journal (`engine::journal`), and one head with what the members' superblocks say and how far parity is in sync.
//!
//! They lie in a tmpfs, so that they outlive the process and not the machine. Each generation, that is each process that
//! serves the array, has files of its own; those of the last one go when the next one's are in place.
//!
//! [`replay`] writes everything that was in flight once more and empties the members' caches. Then no stripe is half
//! written, whatever the dead process had done of its passes: those not noted were not begun, those noted are done.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, Release};

use parity_kernels::{Arena, Words};
use raid_core::path::types::SlotSet;

use crate::array_api::MemberDevice;
use crate::device::aligned;
use crate::engine::journal::{Journal, Left, Unfinished, read, words_for};

/// First word of a head: name and version.
const MAGIC: u64 = u64::from_be_bytes(*b"raiddWH\x01");
const WORDS: usize = 8;

/// The part of a head that is one superblock record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Event count.
    pub events: u64,
    /// Time of the record, as on the members.
    pub utime: u64,
}

/// What the keeper tells a successor. A few stores for each record and each sweep window.
#[derive(Debug)]
pub struct Head(Words);

/// The same, read by the successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLeft {
    /// The last record that all members have, and the one that was being written.
    pub marks: [Mark; 2],
    /// resync_offset that is right if no stripe is half written: `u64::MAX`, or sectors of each member.
    pub synced: u64,
}

impl HeadLeft {
    /// Whether the members say what the dead process wrote last, and nobody has written to them since.
    pub fn knows(&self, mark: Mark) -> bool {
        self.marks.contains(&mark)
    }
}

impl Head {
    /// The head of an array whose members say `mark`.
    ///
    /// # Errors
    /// No room for the file.
    pub fn new(file: &File, mark: Mark, synced: u64) -> io::Result<Head> {
        let head = Head(Words::over(file, WORDS)?);
        head.synced(synced);
        head.begin(mark);
        head.begin(mark);
        head.0[0].store(MAGIC, Release);
        Ok(head)
    }

    /// Before the first member's superblock says so. The record before is on all members then.
    pub fn begin(&self, mark: Mark) {
        for (from, to) in [(3, 1), (4, 2)] {
            self.0[to].store(self.0[from].load(Relaxed), Release);
        }
        // Of the two words either may be the old one where the process dies between them. Neither pair of an old and a new
        // one is on any member then, and the other mark still is.
        self.0[3].store(mark.events, Release);
        self.0[4].store(mark.utime, Release);
    }

    /// Parity below is in sync, as a resync_offset.
    pub fn synced(&self, offset: u64) {
        if self.0[5].load(Relaxed) != offset {
            self.0[5].store(offset, Release);
        }
    }
}

fn read_head(bytes: &[u8]) -> Option<HeadLeft> {
    let word = |i: usize| {
        let bytes = bytes.get(i * 8..i * 8 + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    let mark = |i: usize| {
        Some(Mark {
            events: word(i)?,
            utime: word(i + 1)?,
        })
    };
    (word(0)? == MAGIC).then_some(())?;
    Some(HeadLeft {
        marks: [mark(1)?, mark(3)?],
        synced: word(5)?,
    })
}

/// The files of one generation.
#[derive(Clone, Debug)]
pub struct Files {
    folder: PathBuf,
    stem: String,
}

impl Files {
    /// Those named `stem` in `folder`.
    pub fn new(folder: &Path, stem: String) -> Files {
        let folder = folder.to_path_buf();
        Files { folder, stem }
    }

    fn path(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{}.{what}", self.stem))
    }

    fn create(&self, what: &str) -> io::Result<File> {
        let path = self.path(what);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.open(path)
    }

    /// Makes arena and journal of a queue. Call on the thread that uses them.
    ///
    /// # Errors
    /// No room; the files are gone then.
    pub fn queue(
        &self,
        queue: u16,
        frames: usize,
        frame: usize,
        ios: usize,
    ) -> io::Result<(Arena, Journal)> {
        let (a, j) = (format!("q{queue}.arena"), format!("q{queue}.journal"));
        let made = (|| {
            let arena = Arena::over(&self.create(&a)?, frames, frame)?;
            let words = Words::over(&self.create(&j)?, words_for(ios))?;
            Ok((arena, Journal::new(words)))
        })();
        if made.is_err() {
            let _ = fs::remove_file(self.path(&a));
            let _ = fs::remove_file(self.path(&j));
        }
        made
    }

    /// Makes the head.
    ///
    /// # Errors
    /// As [`Head::new`].
    pub fn head(&self, mark: Mark, synced: u64) -> io::Result<Head> {
        Head::new(&self.create("head")?, mark, synced)
    }

    /// What the head of a dead process says; none if it is not whole.
    pub fn read_head(&self) -> Option<HeadLeft> {
        read_head(&fs::read(self.path("head")).ok()?)
    }

    /// What a queue of a dead process has left; none if it is not whole.
    pub fn read_queue(&self, queue: u16) -> Option<QueueLeft> {
        let left = read(&fs::read(self.path(&format!("q{queue}.journal"))).ok()?)?;
        let arena = File::open(self.path(&format!("q{queue}.arena"))).ok()?;
        Some(QueueLeft { left, arena })
    }

    /// Removes every file of this stem.
    pub fn remove(&self) {
        let prefix = format!("{}.", self.stem);
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// What one queue has left.
#[derive(Debug)]
pub struct QueueLeft {
    /// Its writes in flight.
    pub left: Left,
    arena: File,
}

/// How much was written again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Members on which a write of the dead process has failed.
pub fn failed(queues: &[QueueLeft]) -> SlotSet {
    queues
        .iter()
        .fold(SlotSet::EMPTY, |all, q| all.union(&q.left.failed))
}

/// Writes everything again and empties the caches of all members. `members` by slot; writes to absent ones are left out, as
/// their absence is a loss like any other.
///
/// # Errors
/// A sentence: what could not be read or written. Then stripes may be half written.
pub fn replay(queues: &[QueueLeft], members: &[Option<MemberDevice>]) -> Result<Replayed, String> {
    let mut done = Replayed::default();
    for queue in queues {
        if queue.left.doubt {
            return Err("a write could not be noted".into());
        }
        for write in &queue.left.writes {
            let Some(member) = members
                .get(usize::from(write.slot))
                .and_then(Option::as_ref)
            else {
                continue;
            };
            again(&queue.arena, write, member)
                .map_err(|e| format!("{}: {e}", member.path.display()))?;
            done.writes += 1;
            done.bytes += u64::from(write.sectors) * 512;
        }
    }
    for member in members.iter().flatten() {
        let flushed = member.file.sync_data();
        flushed.map_err(|e| format!("{}: {e}", member.path.display()))?;
    }
    Ok(done)
}

fn again(arena: &File, write: &Unfinished, member: &MemberDevice) -> io::Result<()> {
    let block = &member.superblock;
    let end = write.sector.checked_add(u64::from(write.sectors));
    if end.is_none_or(|end| end > block.data_size) {
        return Err(io::Error::other("a write beyond its data area was noted"));
    }
    let mut bytes = vec![0; write.sectors as usize * 512];
    let piece = bytes.len() / write.places.len();
    for (part, place) in bytes.chunks_exact_mut(piece).zip(&write.places) {
        arena.read_exact_at(part, *place)?;
    }
    aligned::write(
        &member.file,
        (block.data_offset + write.sector) * 512,
        &bytes,
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parity_kernels::BufRange;
    use raid_core::path::types::{Buf, BufSlice};
    use raid_core::superblock::Superblock;

    use super::*;

    fn member(folder: &Path, name: &str) -> MemberDevice {
        let path = folder.join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("file");
        file.set_len(1 << 20).expect("length");
        let mut superblock = Superblock::blank(4);
        (superblock.data_offset, superblock.data_size) = (16, 1024);
        MemberDevice {
            slot: Some(0),
            path,
            file: Arc::new(file),
            superblock,
            logical_block: 512,
            size_sectors: 2048,
        }
    }

    fn place(off: u64) -> BufSlice {
        BufSlice {
            buf: Buf::Arena,
            off,
            len: 4096,
        }
    }

    #[test]
    fn what_was_noted_is_written_from_the_dead_arena() {
        let folder = tempfile::tempdir().expect("folder");
        let files = Files::new(folder.path(), "a.1".into());
        let (mut arena, mut journal) = files.queue(0, 4, 8192, 8).expect("files");
        for (at, byte) in [(0, 1u8), (8192, 2), (16384, 3)] {
            arena.bytes_mut(BufRange::new(at, 4096)).fill(byte);
        }
        journal.note(0, 0, 100, 16, &[place(16384), place(0)]);
        journal.note(1, 1, 200, 8, &[place(8192)]);
        journal.note(2, 2, 200, 8, &[place(8192)]);
        journal.commit();
        journal.note(3, 0, 300, 8, &[place(0)]);
        // The process dies here: its mappings go, the files stay.
        drop((arena, journal));

        let members = [
            Some(member(folder.path(), "m0")),
            Some(member(folder.path(), "m1")),
            None,
        ];
        let queues = [files.read_queue(0).expect("whole")];
        let done = replay(&queues, &members).expect("written");
        assert_eq!((done.writes, done.bytes), (2, 24 * 512));
        let at = |m: usize, sector: u64| {
            let mut byte = [0];
            let member = members[m].as_ref().expect("there");
            member
                .file
                .read_exact_at(&mut byte, (16 + sector) * 512)
                .expect("read");
            byte[0]
        };
        assert_eq!(
            [at(0, 99), at(0, 100), at(0, 107), at(0, 108), at(0, 116)],
            [0, 3, 3, 1, 0]
        );
        assert_eq!([at(1, 200), at(1, 208)], [2, 0]);
        assert_eq!(at(0, 300), 0, "a pass that was not committed was not begun");

        files.remove();
        assert!(files.read_queue(0).is_none());
    }

    #[test]
    fn a_note_that_leads_out_of_the_data_area_is_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let files = Files::new(folder.path(), "a.1".into());
        let (_arena, mut journal) = files.queue(0, 4, 8192, 8).expect("files");
        journal.note(0, 0, 1020, 8, &[place(0)]);
        journal.commit();
        let queues = [files.read_queue(0).expect("whole")];
        let members = [Some(member(folder.path(), "m0"))];
        assert!(
            replay(&queues, &members)
                .expect_err("refused")
                .contains("m0")
        );
    }

    #[test]
    fn the_head_knows_the_last_two_records() {
        let folder = tempfile::tempdir().expect("folder");
        let files = Files::new(folder.path(), "a.1".into());
        assert!(files.read_head().is_none());
        let mark = |events, utime| Mark { events, utime };
        let head = files.head(mark(7, 70), 512).expect("room");
        head.begin(mark(8, 80));
        head.synced(1024);
        let left = files.read_head().expect("whole");
        assert!(left.knows(mark(7, 70)) && left.knows(mark(8, 80)) && !left.knows(mark(8, 70)));
        assert_eq!(left.synced, 1024);
        head.begin(mark(9, 90));
        let left = files.read_head().expect("whole");
        assert!(!left.knows(mark(7, 70)) && left.knows(mark(8, 80)));
    }
}
