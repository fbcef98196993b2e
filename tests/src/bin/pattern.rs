//! `pattern`: writes a stream over a block device in which every 512-byte sector says which sector it is and from which
//! seed, and reads it back; the first wrong sector is named together with what is there instead.
//!
//! Owns the stream's format and the shape of scattered writes. Costs one buffer of a request per job and no more than the
//! device's own bandwidth; nothing of what is written is kept, both sides compute it.

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use parity_kernels::Arena;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const SECTOR: usize = 512;
/// `O_DIRECT` of x86-64 and most others; the name is libc's only.
const O_DIRECT: i32 = 0o40000;

#[derive(Parser)]
#[command(about = "Write and verify position-dependent data on a block device")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write the stream of a seed over the device or a part of it.
    Write {
        #[command(flatten)]
        place: Place,
    },
    /// Write many separate pieces of 1 sector to 4 MiB, at any alignment and in no order, and leave what is between them.
    Scatter {
        #[command(flatten)]
        place: Place,
    },
    /// Read and compare; exit status 1 and the first wrong sector if something differs.
    Verify {
        #[command(flatten)]
        place: Place,
        /// A `scatter` of this seed came afterwards (over the same part); may be given several times, in order.
        #[arg(long = "over", value_name = "SEED")]
        over: Vec<u64>,
    },
}

#[derive(Args)]
struct Place {
    device: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// First sector.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of sectors; to the end of the device if absent.
    #[arg(long)]
    sectors: Option<u64>,
    /// Bytes of one request (the largest one, for scattered writes 4 MiB).
    #[arg(long, default_value_t = 1 << 20)]
    request: usize,
    /// Requests in flight.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Scattered pieces begin and end at multiples of this many bytes.
    #[arg(long, default_value_t = 512)]
    align: usize,
    /// Through the page cache.
    #[arg(long)]
    buffered: bool,
}

/// A run of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    from: u64,
    sectors: u64,
}

fn main() -> ExitCode {
    match run(&Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pattern: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Write { place } => {
            let (file, all) = place.open(true)?;
            place.write(&file, &cut(all, place.request_sectors()), place.request)
        }
        Verb::Scatter { place } => {
            let (file, all) = place.open(true)?;
            let mut pieces = scattered(all, place.seed, place.align_sectors()?);
            shuffle(&mut pieces, place.seed);
            place.write(&file, &pieces, LARGEST as usize * SECTOR)
        }
        Verb::Verify { place, over } => {
            let (file, all) = place.open(false)?;
            let align = place.align_sectors()?;
            let layers: Vec<(u64, Vec<Piece>)> = over
                .iter()
                .map(|&seed| (seed, scattered(all, seed, align)))
                .collect();
            place.verify(&file, all, &layers)
        }
    }
}

impl Place {
    fn request_sectors(&self) -> u64 {
        (self.request / SECTOR).max(1) as u64
    }

    fn align_sectors(&self) -> Result<u64> {
        ensure!(
            self.align >= SECTOR && self.align.is_multiple_of(SECTOR),
            "--align is not a multiple of 512"
        );
        Ok((self.align / SECTOR) as u64)
    }

    fn open(&self, write: bool) -> Result<(File, Piece)> {
        let name = self.device.display();
        ensure!(self.jobs > 0, "--jobs is 0");
        ensure!(
            self.request >= SECTOR && self.request.is_multiple_of(SECTOR),
            "--request is not a multiple of 512"
        );
        let mut options = OpenOptions::new();
        options.read(true).write(write);
        if !self.buffered {
            options.custom_flags(O_DIRECT);
        }
        let mut file = options
            .open(&self.device)
            .with_context(|| format!("open {name}"))?;
        let size = file.seek(SeekFrom::End(0))? / SECTOR as u64;
        let Some(left) = size.checked_sub(self.from) else {
            bail!("{name} has only {size} sectors");
        };
        let sectors = self.sectors.unwrap_or(left);
        ensure!(sectors <= left, "{name} has only {size} sectors");
        ensure!(sectors > 0, "nothing to do on {name}");
        Ok((
            file,
            Piece {
                from: self.from,
                sectors,
            },
        ))
    }

    fn write(&self, file: &File, pieces: &[Piece], largest: usize) -> Result<()> {
        self.each(pieces, largest, |piece, buffer| {
            fill(buffer, piece.from, self.seed);
            file.write_all_at(buffer, piece.from * SECTOR as u64)
                .with_context(|| format!("write {} sectors at {}", piece.sectors, piece.from))
        })?;
        file.sync_data().context("flush")
    }

    fn verify(&self, file: &File, all: Piece, layers: &[(u64, Vec<Piece>)]) -> Result<()> {
        let found = Mutex::new(Findings::default());
        self.each(
            &cut(all, self.request_sectors()),
            self.request,
            |piece, buffer| {
                file.read_exact_at(buffer, piece.from * SECTOR as u64)
                    .with_context(|| format!("read {} sectors at {}", piece.sectors, piece.from))?;
                let mut expected = [0; SECTOR];
                for (index, sector) in buffer.chunks_exact(SECTOR).enumerate() {
                    let number = piece.from + index as u64;
                    let seed = seed_at(number, self.seed, layers);
                    fill(&mut expected, number, seed);
                    if sector != expected {
                        let mut found = found.lock().expect("no job panics");
                        found.note(number, || {
                            format!("expected seed {seed}, found {}", describe(sector))
                        });
                    }
                }
                Ok(())
            },
        )?;
        let found = found.into_inner().expect("no job panics");
        let Some((sector, what)) = found.first else {
            return Ok(());
        };
        bail!(
            "{}: sector {sector}: {what}; {} of {} sectors wrong, the last is {}",
            self.device.display(),
            found.count,
            all.sectors,
            found.last
        )
    }

    /// Does `work` on each piece, several at a time; the first error ends it.
    fn each(
        &self,
        pieces: &[Piece],
        largest: usize,
        work: impl Fn(Piece, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let job = || -> Result<()> {
            let mut arena = Arena::new(1, largest.next_multiple_of(4096))?;
            while let Some(&piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let range = arena.slice(0, 0, piece.sectors as usize * SECTOR);
                if let Err(error) = work(piece, arena.bytes_mut(range)) {
                    next.store(pieces.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.jobs).map(|_| scope.spawn(job)).collect();
            jobs.into_iter()
                .try_for_each(|job| job.join().expect("no job panics"))
        })
    }
}

/// What a verification came upon.
#[derive(Default)]
struct Findings {
    first: Option<(u64, String)>,
    last: u64,
    count: u64,
}

impl Findings {
    fn note(&mut self, sector: u64, what: impl FnOnce() -> String) {
        self.count += 1;
        self.last = self.last.max(sector);
        if self.first.as_ref().is_none_or(|first| sector < first.0) {
            self.first = Some((sector, what()));
        }
    }
}

/// Fills `bytes` with sectors from number `from` on. A sector's first word is its number, the second the seed; the others
/// depend on both in a way that exclusive or does not carry through, so that a wrong parity never looks right.
fn fill(bytes: &mut [u8], from: u64, seed: u64) {
    for (index, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        let number = from + index as u64;
        let key = mix(number ^ mix(seed));
        for (word, out) in sector.chunks_exact_mut(8).enumerate() {
            let value = match word {
                0 => number,
                1 => seed,
                _ => key.wrapping_mul((word as u64) << 1 | 1),
            };
            out.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// What a sector that is not as expected holds.
fn describe(sector: &[u8]) -> String {
    if sector.iter().all(|&byte| byte == 0) {
        return "zeroes".to_owned();
    }
    let word = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"));
    let (number, seed) = (word(0), word(8));
    let mut whole = [0; SECTOR];
    fill(&mut whole, number, seed);
    if sector == whole {
        return format!("sector {number} of seed {seed}");
    }
    let same = sector
        .iter()
        .zip(&whole)
        .take_while(|(have, want)| have == want)
        .count();
    if same > 24 {
        format!("sector {number} of seed {seed} up to byte {same} only")
    } else {
        format!("no sector of any seed (it begins {:02x?})", &sector[..16])
    }
}

fn seed_at(sector: u64, first: u64, layers: &[(u64, Vec<Piece>)]) -> u64 {
    let holds = |pieces: &[Piece]| {
        let after = pieces.partition_point(|piece| piece.from <= sector);
        after > 0 && sector < pieces[after - 1].from + pieces[after - 1].sectors
    };
    let last = layers.iter().rev().find(|(_, pieces)| holds(pieces));
    last.map_or(first, |&(seed, _)| seed)
}

/// Consecutive pieces of `sectors` each.
fn cut(all: Piece, sectors: u64) -> Vec<Piece> {
    let end = all.from + all.sectors;
    (all.from..end)
        .step_by(sectors as usize)
        .map(|from| Piece {
            from,
            sectors: sectors.min(end - from),
        })
        .collect()
}

/// Sectors of the largest scattered piece.
const LARGEST: u64 = 8192;

/// Separate pieces inside `all`, in ascending order; the seed decides where. Half are below 8 KiB, few are megabytes.
fn scattered(all: Piece, seed: u64, align: u64) -> Vec<Piece> {
    let mut state = mix(seed ^ 0x5ca7);
    let mut length = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let random = mix(state);
        let (least, most) = match random % 100 {
            0..50 => (1, 16),
            50..80 => (8, 256),
            80..96 => (256, 2048),
            _ => (2048, LARGEST),
        };
        let sectors = least + (random >> 8) % (most - least + 1);
        sectors.div_ceil(align) * align
    };
    let end = all.from + all.sectors;
    let mut pieces = Vec::new();
    let mut at = all.from;
    loop {
        at += length();
        let sectors = length().min(LARGEST / align * align);
        if at + sectors > end {
            return pieces;
        }
        pieces.push(Piece { from: at, sectors });
        at += sectors;
    }
}

fn shuffle(pieces: &mut [Piece], seed: u64) {
    for index in (1..pieces.len()).rev() {
        let other = mix(seed ^ index as u64) % (index as u64 + 1);
        pieces.swap(index, other as usize);
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of the input.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_differ_and_name_themselves() {
        let mut bytes = vec![0; 3 * SECTOR];
        fill(&mut bytes, 7, 5);
        assert_eq!(describe(&bytes[SECTOR..2 * SECTOR]), "sector 8 of seed 5");
        assert_ne!(bytes[16..SECTOR], bytes[SECTOR + 16..2 * SECTOR]);
        bytes[100] ^= 1;
        assert_eq!(
            describe(&bytes[..SECTOR]),
            "sector 7 of seed 5 up to byte 100 only"
        );
        assert_eq!(describe(&[0; SECTOR]), "zeroes");
    }

    #[test]
    fn scattered_pieces_are_apart_aligned_and_inside() {
        let all = Piece {
            from: 64,
            sectors: 400_000,
        };
        for align in [1, 8] {
            let pieces = scattered(all, 3, align);
            assert!(pieces.len() > 100, "{}", pieces.len());
            for pair in pieces.windows(2) {
                assert!(pair[0].from + pair[0].sectors < pair[1].from);
            }
            for piece in &pieces {
                assert!(piece.from.is_multiple_of(align) && piece.sectors.is_multiple_of(align));
                assert!(piece.sectors > 0 && piece.sectors <= LARGEST);
            }
            let last = pieces.last().expect("some pieces");
            assert!(pieces[0].from >= 64 && last.from + last.sectors <= 400_064);
            let mut shuffled = pieces.clone();
            shuffle(&mut shuffled, 3);
            assert_ne!(shuffled, pieces);
            shuffled.sort_by_key(|piece| piece.from);
            assert_eq!(shuffled, pieces);
        }
    }

    #[test]
    fn the_last_layer_counts() {
        let piece = |from, sectors| vec![Piece { from, sectors }];
        let layers = [(2, piece(10, 5)), (3, piece(12, 1))];
        let seeds: Vec<u64> = (9..16).map(|at| seed_at(at, 1, &layers)).collect();
        assert_eq!(seeds, [1, 2, 2, 3, 2, 2, 1]);
    }

    #[test]
    fn a_changed_sector_is_found() {
        let file = std::env::temp_dir().join(format!("pattern-test-{}", std::process::id()));
        std::fs::write(&file, vec![0; 3 << 20]).expect("a file");
        let verb = |words: &[&str]| {
            let device = file.to_str().expect("text");
            let words = ["pattern"].iter().chain(words);
            let cli = Cli::parse_from(words.copied().chain([device, "--buffered", "--jobs", "2"]));
            run(&cli.verb)
        };
        verb(&["write"]).expect("written");
        verb(&["verify"]).expect("the same");
        verb(&["scatter", "--seed", "9"]).expect("scattered");
        verb(&["verify", "--over", "9"]).expect("the same");
        assert!(verb(&["verify"]).is_err());
        let mut bytes = vec![0; SECTOR];
        fill(&mut bytes, 6, 1);
        let open = OpenOptions::new().write(true).open(&file).expect("open");
        open.write_all_at(&bytes, 100 * SECTOR as u64)
            .expect("spoilt");
        let error = verb(&["verify", "--over", "9"])
            .expect_err("found")
            .to_string();
        assert!(error.contains("sector 100: "), "{error}");
        assert!(
            error.contains("found sector 6 of seed 1; 1 of 6144"),
            "{error}"
        );
        std::fs::remove_file(&file).expect("removed");
    }
}
