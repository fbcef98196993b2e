//! `powercut cut`: what a power cut at an event of the recording may leave on the members. Costs twice the members' sizes
//! in memory besides the recording; an image costs one write of all members.
//!
//! A write is durable once a flush that came after its answer has ended, or, with FUA, once it has been answered itself.
//! Every other write that had reached the member is there or not, or in part: each image draws for each member whether
//! all are there, none, or some, and a part of those are torn. Writes that are there keep their order.

use crate::Random;
use crate::log::{Event, Recording};
use anyhow::{Context, Result, ensure};
use parity_kernels::Arena;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// `O_DIRECT` of x86-64.
const O_DIRECT: i32 = 0o40000;
/// Where metadata 1.2 keeps its superblock; a drive writes so little as a whole.
const SUPERBLOCK: Range<u64> = 4096..8192;
/// Bytes of one write to a device.
const STRIDE: usize = 1 << 20;

/// Where to cut.
pub struct Choice {
    /// Flush boundaries, spread evenly if there are more (0: none).
    pub flushes: usize,
    /// Points at random between.
    pub random: usize,
    pub seed: u64,
    /// Writes are torn at multiples of this many bytes.
    pub tear: usize,
    /// No point before the first mark that begins so.
    pub from: String,
    /// This event only.
    pub only: Option<usize>,
    /// As members do whose flushes do nothing: whoever checks the images must find it.
    pub forget: bool,
}

#[derive(Debug)]
struct Pending {
    id: usize,
    offset: u64,
    data: Range<usize>,
    fua: bool,
    answered: bool,
    durable: bool,
}

/// A member as the events so far have left it.
struct Member {
    /// What is there for certain, and is covered by nothing pending.
    base: Vec<u8>,
    /// What came since, in its order: the first of them is not durable.
    pending: Vec<Pending>,
}

/// All members at an event, with the flushes in flight.
pub struct State<'a> {
    recording: &'a Recording,
    members: Vec<Member>,
    /// Flush in flight -> its member and the writes that it covers.
    flushes: HashMap<usize, (usize, Vec<usize>)>,
    at: usize,
    /// No write comes to be durable from this event on.
    forget_from: usize,
}

impl<'a> State<'a> {
    pub fn new(recording: &'a Recording, members: usize, bytes: usize) -> State<'a> {
        let members = (0..members).map(|_| Member {
            base: vec![0; bytes],
            pending: Vec::new(),
        });
        State {
            recording,
            members: members.collect(),
            flushes: HashMap::new(),
            at: 0,
            forget_from: usize::MAX,
        }
    }

    /// Goes on until the events before number `end` have happened; calls `mark` with each mark on the way.
    pub fn advance(&mut self, end: usize, mut mark: impl FnMut(&str)) {
        while self.at < end {
            let id = self.at;
            self.at += 1;
            match &self.recording.events[id] {
                Event::Write {
                    member,
                    offset,
                    data,
                    fua,
                } => self.members[*member].pending.push(Pending {
                    id,
                    offset: *offset,
                    data: data.clone(),
                    fua: *fua,
                    answered: false,
                    durable: false,
                }),
                Event::Flush { member } => {
                    let answered = self.members[*member]
                        .pending
                        .iter()
                        .filter(|write| write.answered);
                    self.flushes
                        .insert(id, (*member, answered.map(|write| write.id).collect()));
                }
                Event::Done { .. } if id >= self.forget_from => (),
                Event::Done { of } => self.done(*of),
                Event::Mark { text } => mark(text),
            }
        }
    }

    fn done(&mut self, of: usize) {
        let member = if let Some((member, covered)) = self.flushes.remove(&of) {
            for write in &mut self.members[member].pending {
                write.durable |= covered.binary_search(&write.id).is_ok();
            }
            member
        } else if let Event::Write { member, .. } = self.recording.events[of] {
            let pending = &mut self.members[member].pending;
            if let Ok(index) = pending.binary_search_by_key(&of, |write| write.id) {
                pending[index].answered = true;
                pending[index].durable |= pending[index].fua;
            }
            member
        } else {
            return;
        };
        let Member { base, pending } = &mut self.members[member];
        let settled = pending.iter().take_while(|write| write.durable).count();
        for write in pending.drain(..settled) {
            let bytes = self.recording.bytes(&write.data);
            base[write.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Fills `image` with one of the states that member `member` may be left in.
    pub fn image(&self, member: usize, tear: usize, random: &mut Random, image: &mut [u8]) {
        let Member { base, pending } = &self.members[member];
        image.copy_from_slice(base);
        // Of 16 writes so many are there.
        let there = [0, 16, 4, 8, 12][random.below(5) as usize];
        for write in pending {
            let bytes = self.recording.bytes(&write.data);
            let from = write.offset as usize;
            let image = &mut image[from..][..bytes.len()];
            if write.durable {
                image.copy_from_slice(bytes);
            } else if random.below(16) < there {
                let whole = SUPERBLOCK.contains(&write.offset)
                    && write.offset + bytes.len() as u64 <= SUPERBLOCK.end;
                if whole || random.below(4) > 0 {
                    image.copy_from_slice(bytes);
                } else {
                    torn(image, bytes, from, tear, random);
                }
            }
        }
    }

    /// Where writes may or may not be there: member sectors, first and count.
    pub fn risk(&self) -> Vec<(u64, u64)> {
        let pending = self.members.iter().flat_map(|member| &member.pending);
        let mut risk: Vec<_> = pending
            .filter(|write| !write.durable)
            .map(|write| (write.offset / 512, write.data.len() as u64 / 512))
            .collect();
        risk.sort_unstable();
        risk.dedup();
        risk
    }

    /// Writes that may or may not be there.
    pub fn open(&self) -> usize {
        self.members
            .iter()
            .flat_map(|member| &member.pending)
            .filter(|write| !write.durable)
            .count()
    }
}

/// Any of the units of `tear` bytes may have been written, or not.
fn torn(image: &mut [u8], bytes: &[u8], from: usize, tear: usize, random: &mut Random) {
    let mut at = 0;
    while at < bytes.len() {
        let end = (((from + at) / tear + 1) * tear - from).min(bytes.len());
        if random.below(2) == 0 {
            image[at..end].copy_from_slice(&bytes[at..end]);
        }
        at = end;
    }
}

/// The points, in order, each with what it is.
fn points(recording: &Recording, choice: &Choice, first: usize) -> Vec<(usize, &'static str)> {
    if let Some(only) = choice.only {
        return vec![(only, "chosen")];
    }
    let is_flush = |of: usize| matches!(recording.events[of], Event::Flush { .. });
    let ends: Vec<usize> = (first..recording.events.len())
        .filter(|&at| matches!(recording.events[at], Event::Done { of } if is_flush(of)))
        .map(|at| at + 1)
        .collect();
    let take = choice.flushes.min(ends.len());
    let mut points: Vec<_> = (0..take)
        .map(|n| (ends[n * ends.len() / take], "flush"))
        .collect();
    let span = (recording.events.len() - first) as u64;
    let mut random = Random(choice.seed);
    points.extend((0..choice.random).map(|_| (first + 1 + random.below(span) as usize, "random")));
    points.sort_unstable();
    points
}

/// For each point writes the images to `devices` (several sets of them get the same) and the marks before it to `promises`,
/// what is at risk to `risk`, prints `POINT KIND OPEN`, and waits for a line.
///
/// # Errors
/// The recording is not whole, or a device takes no writes.
pub fn run(
    log: &Path,
    members: usize,
    bytes: usize,
    choice: &Choice,
    promises: &Path,
    risk: Option<&Path>,
    devices: &[PathBuf],
) -> Result<()> {
    ensure!(
        devices.len().is_multiple_of(members) && !devices.is_empty(),
        "{} devices for {members} members",
        devices.len()
    );
    ensure!(bytes.is_multiple_of(STRIDE), "members of whole MiB only");
    let recording = Recording::read(log)?;
    let first = recording
        .events
        .iter()
        .position(|event| matches!(event, Event::Mark { text } if text.starts_with(&choice.from)))
        .with_context(|| format!("no mark '{}'", choice.from))?;
    let mut state = State::new(&recording, members, bytes);
    if choice.forget {
        state.forget_from = first;
    }
    let mut arena = Arena::new(1, bytes)?;
    let range = arena.slice(0, 0, bytes);
    let open = |path: &PathBuf| {
        OpenOptions::new()
            .write(true)
            .custom_flags(O_DIRECT)
            .open(path)
            .with_context(|| format!("open {}", path.display()))
    };
    let mut marks =
        File::create(promises).with_context(|| format!("create {}", promises.display()))?;
    let mut lines = std::io::stdin().lock().lines();
    for (point, kind) in points(&recording, choice, first) {
        let mut text = String::new();
        state.advance(point, |mark| {
            text.push_str(mark);
            text.push('\n');
        });
        marks
            .write_all(text.as_bytes())
            .context("write the promises")?;
        if let Some(path) = risk {
            let risk = state.risk();
            let lines = risk
                .iter()
                .map(|(first, count)| format!("{first}+{count}\n"));
            std::fs::write(path, lines.collect::<String>()).context("write what is at risk")?;
        }
        let mut random = Random(choice.seed ^ point as u64);
        for member in 0..members {
            let image = arena.bytes_mut(range);
            state.image(member, choice.tear, &mut random, image);
            for path in devices.iter().skip(member).step_by(members) {
                // Opened anew each time: nobody else may hold it between.
                let device = open(path)?;
                for (index, bytes) in image.chunks_exact(STRIDE).enumerate() {
                    let at = (index * STRIDE) as u64;
                    device
                        .write_all_at(bytes, at)
                        .with_context(|| format!("write {}", path.display()))?;
                }
            }
        }
        println!("{point} {kind} {}", state.open());
        if lines
            .next()
            .transpose()
            .context("wait for a line")?
            .is_none()
        {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Writer;

    /// Values that the first byte of each of a member's first sectors may have, over many images.
    fn values(recording: &Recording, at: usize) -> Vec<Vec<u8>> {
        let mut state = State::new(recording, 1, 8192);
        state.advance(at, |_| ());
        let mut image = vec![0; 8192];
        let mut found = vec![Vec::new(); 3];
        for seed in 0..200 {
            state.image(0, 512, &mut Random(seed), &mut image);
            for (sector, found) in found.iter_mut().enumerate() {
                found.push(image[sector * 512]);
                assert_eq!(
                    image[sector * 512],
                    image[sector * 512 + 511],
                    "torn inside a sector"
                );
            }
        }
        for found in &mut found {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    #[test]
    fn only_what_was_flushed_is_certain() {
        let path = std::env::temp_dir().join(format!("powercut-cut-{}", std::process::id()));
        let mut log = Writer::create(&path).expect("a file");
        let mut write = |at: u64, value: u8, sectors: usize, fua: bool| {
            log.write(0, at * 512, &vec![value; sectors * 512], fua)
                .expect("written")
        };
        let first = write(0, 1, 2, false); // 0
        let late = write(2, 2, 1, false); // 1
        log.done(first).expect("written"); // 2
        let flush = log.flush(0).expect("written"); // 3
        log.done(late).expect("written"); // 4
        log.done(flush).expect("written"); // 5
        let forced = log.write(0, 512, &[3; 512], true).expect("written"); // 6
        log.done(forced).expect("written"); // 7
        log.sync().expect("written");
        let recording = Recording::read(&path).expect("whole");
        assert_eq!(values(&recording, 0), [[0], [0], [0]]);
        assert_eq!(values(&recording, 5), [[0, 1], [0, 1], [0, 2]]);
        // The flush came before the answer to the second write, so that it need not cover it.
        assert_eq!(values(&recording, 6), [vec![1], vec![1], vec![0, 2]]);
        assert_eq!(values(&recording, 7), [vec![1], vec![1, 3], vec![0, 2]]);
        assert_eq!(values(&recording, 8), [vec![1], vec![3], vec![0, 2]]);
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn a_superblock_is_written_whole() {
        let path = std::env::temp_dir().join(format!("powercut-super-{}", std::process::id()));
        let mut log = Writer::create(&path).expect("a file");
        log.write(0, 4096, &[9; 4096], false).expect("written");
        log.sync().expect("written");
        let recording = Recording::read(&path).expect("whole");
        let mut state = State::new(&recording, 1, 8192);
        state.advance(1, |_| ());
        assert_eq!(state.open(), 1);
        let mut image = vec![0; 8192];
        let mut seen = [0, 0];
        for seed in 0..200 {
            state.image(0, 512, &mut Random(seed), &mut image);
            assert!(image[4096..].iter().all(|&byte| byte == image[4096]));
            seen[usize::from(image[4096] == 9)] += 1;
        }
        assert!(seen[0] > 20 && seen[1] > 20, "{seen:?}");
        std::fs::remove_file(&path).expect("removed");
    }
}
