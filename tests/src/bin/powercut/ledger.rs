//! `powercut write` and `check`: a load that knows what it was promised. Every sector of its says which it is and in which
//! version; after a flush the recording gets a line that says which versions are safe now, and the check holds what is
//! there against the lines before the cut. Costs a word per sector of each file in the check.
//!
//! Lines: `begin FILE VERSION` before any byte of this version is sent, `safe FILE VERSION FIRST+COUNT...` after the flush,
//! `new NAME FILE VERSION SECTORS` after a new file and its folder were flushed, `gone NAME` before it is deleted.

use crate::Random;
use crate::record::Speaker;
use anyhow::{Context, Result, bail, ensure};
use parity_kernels::Arena;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write as _};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SECTOR: usize = 512;
/// `O_DIRECT` of x86-64.
const O_DIRECT: i32 = 0o40000;
/// Largest extent in bytes.
const LARGEST: usize = 512 << 10;

/// Milliseconds from one rest of the load to the next, and of a rest.
const PERIOD: u64 = 2000;
const REST: u64 = 700;

/// The shape of the load.
#[derive(Clone, Debug)]
pub struct Load {
    /// A block device, or a folder in which files are made.
    pub target: PathBuf,
    pub socket: PathBuf,
    pub time: Duration,
    pub seed: u64,
    /// Writers, each in a file or a part of the device of its own.
    pub jobs: usize,
    /// Bytes of each job's file or part.
    pub bytes: usize,
    /// Extents begin and end at multiples of this many bytes.
    pub unit: usize,
    /// Pause after each flush.
    pub pause: Duration,
}

/// The bytes of a sector: which file and which sector of it, the version, and words that depend on all three.
fn fill(sector: &mut [u8], file: usize, number: u64, version: u64) {
    let place = (file as u64) << 48 | number;
    let key = Random::mix(place ^ Random::mix(version));
    for (word, out) in sector.chunks_exact_mut(8).enumerate() {
        let value = match word {
            0 => place,
            1 => version,
            _ => key.wrapping_mul((word as u64) << 1 | 1),
        };
        out.copy_from_slice(&value.to_le_bytes());
    }
}

/// The version of a sector that is whole and at its place.
fn version(sector: &[u8], file: usize, number: u64) -> Option<u64> {
    let version = u64::from_le_bytes(sector[8..16].try_into().expect("eight bytes"));
    let mut whole = [0; SECTOR];
    fill(&mut whole, file, number, version);
    (sector == whole).then_some(version)
}

fn open(path: &Path, write: bool, direct: bool) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(if direct { O_DIRECT } else { 0 })
        .open(path)
        .with_context(|| format!("open {}", path.display()))
}

/// Where job `file` writes: the path, and its first byte there.
fn place(target: &Path, folder: bool, file: usize, bytes: usize) -> (PathBuf, u64) {
    if folder {
        (target.join(format!("ledger.{file}")), 0)
    } else {
        (target.to_owned(), (file * bytes) as u64)
    }
}

/// Writes for the given time.
///
/// # Errors
/// A write, a flush or the recorder failed.
pub fn write(load: &Load) -> Result<()> {
    ensure!(
        load.unit.is_multiple_of(SECTOR) && load.bytes > 2 * LARGEST,
        "unit and size do not fit"
    );
    let folder = load.target.is_dir();
    if folder {
        for file in 0..load.jobs {
            let (path, _) = place(&load.target, true, file, load.bytes);
            let made = File::create(&path).with_context(|| format!("create {}", path.display()))?;
            made.set_len(load.bytes as u64)?;
            made.sync_all()?;
        }
        File::open(&load.target)?.sync_all()?;
    }
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..load.jobs)
            .map(|file| scope.spawn(move || job(load, folder, file)))
            .collect();
        jobs.into_iter()
            .try_for_each(|job| job.join().expect("no job panics"))
    })
}

fn job(load: &Load, folder: bool, file: usize) -> Result<()> {
    let mut random = Random(Random::mix(load.seed) ^ file as u64);
    let mut speaker = Speaker::connect(&load.socket)?;
    let (path, base) = place(&load.target, folder, file, load.bytes);
    let direct = open(&path, true, true)?;
    let cached = open(&path, true, false)?;
    let mut arena = Arena::new(1, LARGEST)?;
    let units = (load.bytes / load.unit) as u64;
    let end = Instant::now() + load.time;
    let mut made = Vec::new();
    for version in 1.. {
        if Instant::now() >= end {
            break;
        }
        speaker.say(&format!("mark begin {file} {version}"))?;
        let mut safe = format!("mark safe {file} {version}");
        // On a device only as a user of devices does it; in a file either way.
        let through = if folder && random.below(2) == 0 {
            &cached
        } else {
            &direct
        };
        for _ in 0..1 + random.below(12) {
            // Mostly small, some whole stripes.
            let most = if random.below(5) == 0 {
                LARGEST
            } else {
                32 << 10
            };
            let count = 1 + random.below((most / load.unit) as u64);
            let first = random.below(units - count);
            let bytes = count as usize * load.unit;
            let (first, sectors) = (first * load.unit as u64 / SECTOR as u64, bytes / SECTOR);
            let range = arena.slice(0, 0, bytes);
            for (index, sector) in arena.bytes_mut(range).chunks_exact_mut(SECTOR).enumerate() {
                fill(sector, file, first + index as u64, version);
            }
            through
                .write_all_at(arena.bytes_mut(range), base + first * SECTOR as u64)
                .context("write")?;
            write!(safe, " {first}+{sectors}")?;
        }
        through.sync_data().context("flush")?;
        speaker.say(&safe)?;
        if folder && random.below(4) == 0 {
            new_file(load, file, version, &mut random, &mut speaker, &mut made)?;
        }
        std::thread::sleep(load.pause);
        // All jobs rest together at the end of each period, so that the array comes to be clean, and dirty again.
        let into = (end - load.time).elapsed().as_millis() as u64 % PERIOD;
        if into > PERIOD - REST {
            std::thread::sleep(Duration::from_millis(PERIOD - into));
        }
    }
    Ok(())
}

/// Makes a file whose existence is promised, too; every other time one is deleted.
fn new_file(
    load: &Load,
    file: usize,
    version: u64,
    random: &mut Random,
    speaker: &mut Speaker,
    made: &mut Vec<String>,
) -> Result<()> {
    let name = format!("new.{file}.{version}");
    let sectors = 1 + random.below(256);
    let mut bytes = vec![0; sectors as usize * SECTOR];
    for (number, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        fill(sector, file, number as u64, version);
    }
    let mut new =
        File::create(load.target.join(&name)).with_context(|| format!("create {name}"))?;
    new.write_all(&bytes).context("write a new file")?;
    new.sync_all().context("flush a new file")?;
    File::open(&load.target)?
        .sync_all()
        .context("flush the folder")?;
    speaker.say(&format!("mark new {name} {file} {version} {sectors}"))?;
    made.push(name);
    if made.len() > 4 && random.below(2) == 0 {
        let old = made.swap_remove(random.below(made.len() as u64) as usize);
        speaker.say(&format!("mark gone {old}"))?;
        std::fs::remove_file(load.target.join(&old)).with_context(|| format!("delete {old}"))?;
    }
    Ok(())
}

/// What the lines before a cut promise.
#[derive(Default)]
struct Promises {
    /// Per file: the latest version that was begun, and the least version of each sector (0: none).
    files: BTreeMap<usize, (u64, Vec<u64>)>,
    /// Name -> file, version, sectors.
    new: BTreeMap<String, (usize, u64, u64)>,
}

impl Promises {
    fn read(text: &str) -> Result<Promises> {
        let mut promises = Promises::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["begin", file, version] => {
                    promises.files.entry(file.parse()?).or_default().0 = version.parse()?
                }
                ["safe", file, version, ref extents @ ..] => {
                    let (_, least) = promises.files.entry(file.parse()?).or_default();
                    for extent in extents {
                        let (first, count) = extent.split_once('+').context("no extent")?;
                        let (first, count): (usize, usize) = (first.parse()?, count.parse()?);
                        if least.len() < first + count {
                            least.resize(first + count, 0);
                        }
                        least[first..first + count].fill(version.parse()?);
                    }
                }
                ["new", name, file, version, sectors] => {
                    let what = (file.parse()?, version.parse()?, sectors.parse()?);
                    promises.new.insert(name.to_owned(), what);
                }
                ["gone", name] => {
                    promises.new.remove(name);
                }
                // Others are the script's.
                _ => (),
            }
        }
        Ok(promises)
    }
}

/// An array that was opened without a member after a cut.
#[derive(Clone, Debug)]
pub struct Missing {
    /// Level, members, sectors of a chunk, member sector where data begins, slot.
    words: [u64; 5],
}

impl std::str::FromStr for Missing {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Missing> {
        let words: Vec<u64> = text.split(':').map(str::parse).collect::<Result<_, _>>()?;
        let words = words.try_into().ok().context("five numbers")?;
        Ok(Missing { words })
    }
}

impl Missing {
    /// # Errors
    /// The file cannot be read.
    pub fn excuse(self, risk: &Path) -> Result<Excuse> {
        let text =
            std::fs::read_to_string(risk).with_context(|| format!("read {}", risk.display()))?;
        let line = |line: &str| -> Result<Range<u64>> {
            let (first, count) = line.split_once('+').context("no extent")?;
            let first: u64 = first.parse()?;
            Ok(first..first + count.parse::<u64>()?)
        };
        let rows = text.lines().map(line).collect::<Result<_>>()?;
        Ok(Excuse {
            missing: self,
            rows,
        })
    }
}

/// Sectors that a cut may cost an array that has lost a member: the write hole.
pub struct Excuse {
    missing: Missing,
    rows: Vec<Range<u64>>,
}

impl Excuse {
    /// Whether this sector of the array is on the missing member, in a row with a write that may be there in part. MD's
    /// left-symmetric layout: P moves down by one member a stripe, Q is next to it, data follows.
    fn covers(&self, sector: u64) -> bool {
        let [level, members, chunk, begin, slot] = self.missing.words;
        let parities = level - 4;
        let (number, row) = (sector / chunk, sector % chunk);
        let (stripe, data) = (number / (members - parities), number % (members - parities));
        let p = members - 1 - stripe % members;
        let row = begin + stripe * chunk + row;
        (p + parities + data) % members == slot && self.rows.iter().any(|rows| rows.contains(&row))
    }
}

/// Checks `target` against the lines in the file `promises`; says how much was checked.
///
/// # Errors
/// A promise is broken: the first one, and how many sectors are wrong.
pub fn check(
    target: &Path,
    promises: &Path,
    bytes: usize,
    excuse: Option<&Excuse>,
) -> Result<String> {
    let text = std::fs::read_to_string(promises)
        .with_context(|| format!("read {}", promises.display()))?;
    let promises = Promises::read(&text)?;
    let folder = target.is_dir();
    let mut arena = Arena::new(1, LARGEST)?;
    let (mut held, mut excused, mut broken, mut first) = (0_u64, 0_u64, 0_u64, None);
    for (&file, (latest, least)) in &promises.files {
        let (path, base) = place(target, folder, file, bytes);
        let mut from = open(&path, false, true)?;
        let size = from.seek(SeekFrom::End(0))?;
        for (index, part) in least.chunks(LARGEST / SECTOR).enumerate() {
            if part.iter().all(|&version| version == 0) {
                continue;
            }
            let at = (index * LARGEST) as u64;
            let length = LARGEST.min((size - base - at) as usize);
            let range = arena.slice(0, 0, length);
            from.read_exact_at(arena.bytes_mut(range), base + at)
                .with_context(|| format!("read {} at {}", path.display(), base + at))?;
            for (sector, (bytes, &least)) in arena
                .bytes_mut(range)
                .chunks_exact(SECTOR)
                .zip(part)
                .enumerate()
            {
                if least == 0 {
                    continue;
                }
                let number = (at / SECTOR as u64) + sector as u64;
                let found = version(bytes, file, number);
                if found.is_some_and(|found| (least..=*latest).contains(&found)) {
                    held += 1;
                    continue;
                }
                if excuse.is_some_and(|excuse| excuse.covers(base / SECTOR as u64 + number)) {
                    excused += 1;
                    continue;
                }
                broken += 1;
                let what = match found {
                    Some(found) => format!("version {found}"),
                    None if bytes.iter().all(|&byte| byte == 0) => "zeroes".to_owned(),
                    None => format!("no version of it: {:02x?}", &bytes[..16]),
                };
                first.get_or_insert_with(|| format!("{} sector {number} (byte {}): version {least} to {latest} was promised, there is {what}", path.display(), base + number * 512));
            }
        }
    }
    for (name, &(file, wanted, sectors)) in &promises.new {
        let bytes = std::fs::read(target.join(name))
            .with_context(|| format!("the file {name} was promised"))?;
        ensure!(
            bytes.len() as u64 == sectors * SECTOR as u64,
            "{name} has {} bytes, not {sectors} sectors",
            bytes.len()
        );
        for (number, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            ensure!(
                version(sector, file, number as u64) == Some(wanted),
                "{name}: sector {number} is not of version {wanted}"
            );
            held += 1;
        }
    }
    match first {
        Some(first) => bail!("{first}; {broken} of {} sectors are wrong", broken + held),
        None => Ok(format!(
            "{held} sectors and {} new files as promised, {excused} in the write hole",
            promises.new.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_write_hole_is_excused_and_nothing_else() {
        // Chunks of 8 sectors; in stripe 1 of a RAID 5 of 4, P is on slot 2, data on 3, 0 and 1.
        let missing: Missing = "5:4:8:100:0".parse().expect("five numbers");
        let excuse = Excuse {
            missing,
            rows: std::iter::once(110..112).collect(),
        };
        let covered: Vec<u64> = (0..72).filter(|&sector| excuse.covers(sector)).collect();
        assert_eq!(covered, [24 + 8 + 2, 24 + 8 + 3]);
    }

    #[test]
    fn broken_promises_are_found() {
        let dir = std::env::temp_dir().join(format!("powercut-ledger-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let lines = dir.join("promises");
        std::fs::write(&lines, "armed\nbegin 0 1\nsafe 0 1 8+8\nbegin 0 2\nbegin 1 1\nnew new.1 1 1 2\nnew old 1 1 2\ngone old\n").expect("written");
        let put = |name: &str, from: u64, sectors: u64, file: usize, version: u64| {
            let mut bytes = vec![0; 4096];
            for sector in from..from + sectors {
                fill(
                    &mut bytes[(sector - from) as usize * SECTOR..][..SECTOR],
                    file,
                    sector,
                    version,
                );
            }
            bytes.truncate(sectors as usize * SECTOR);
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(dir.join(name))
                .expect("open");
            file.write_all_at(&bytes, from * SECTOR as u64)
                .expect("written");
        };
        put("ledger.0", 8, 8, 0, 1);
        put("ledger.1", 0, 8, 1, 1);
        put("new.1", 0, 2, 1, 1);
        let check = || check(&dir, &lines, 1 << 20, None).map_err(|error| format!("{error:#}"));
        assert_eq!(
            check().expect("kept"),
            "10 sectors and 1 new files as promised, 0 in the write hole"
        );
        // A newer version is right, as long as it had begun.
        put("ledger.0", 9, 1, 0, 2);
        check().expect("kept");
        put("ledger.0", 9, 1, 0, 3);
        assert!(
            check()
                .expect_err("from the future")
                .contains("sector 9 (byte 4608): version 1 to 2")
        );
        put("ledger.0", 9, 1, 0, 1);
        put("ledger.0", 10, 1, 7, 1);
        assert!(
            check()
                .expect_err("another file's")
                .contains("1 of 10 sectors")
        );
        put("ledger.0", 10, 1, 0, 1);
        std::fs::remove_file(dir.join("new.1")).expect("deleted");
        assert!(check().expect_err("gone").contains("new.1 was promised"));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
