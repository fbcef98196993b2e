//! The cases that everything which runs parity jobs is put through: an engine on this thread, or a lane to a device.
//!
//! A [`Case`] is a job over one span of memory: what the span holds before, and byte for byte what it must hold after,
//! which the scalar engine says. The bytes around the operands belong to the span, so a stray write is a failure.
//! [`cases`] makes them one after the other from fixed seeds; each costs its span, twice.

use std::collections::HashMap;

use parity_kernels::offload::{ArenaJob, Done, Lane, Refusal};
use parity_kernels::{Arena, BufRange, Engine, Mismatch};

use super::Random;
use super::layouts;

/// No case takes more memory than this.
pub const MAX_SPAN: usize = 1 << 20;

/// Which operation, and with which erasures or changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Encode,
    /// Overwrite the data with these indices.
    Update(Vec<usize>),
    /// Lose the data with these indices.
    Recover(Vec<usize>),
    /// Flip a bit at `byte` of the chunk: data by index, P is `data.len()`, Q one more.
    Check(Vec<(usize, usize)>),
}

/// From which a case is made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub what: What,
    pub exps: Vec<u8>,
    pub len: usize,
    /// Every operand begins at a multiple of this, counted from the start of the arena.
    pub align: usize,
    pub p: bool,
    pub q: bool,
    pub seed: u64,
}

/// One job with its memory. Ranges count from the start of the span.
pub struct Case {
    pub plan: Plan,
    data: Vec<(BufRange, u8)>,
    changed: Vec<(BufRange, BufRange, u8)>,
    lost: Vec<(BufRange, u8)>,
    p: Option<BufRange>,
    q: Option<BufRange>,
    /// The span before the job.
    before: Vec<u8>,
    /// The span after it, and what the job reports, by the scalar engine.
    after: Vec<u8>,
    mismatch: Mismatch,
}

/// Lays chunks out in a span, in random order of place, with gaps.
struct Layout {
    random: Random,
    align: usize,
    end: usize,
}

impl Layout {
    fn range(&mut self, len: usize) -> BufRange {
        let gap = match self.align {
            1 => self.random.below(67),
            align => align * self.random.below(3),
        };
        let off = (self.end + gap).next_multiple_of(self.align);
        self.end = off + len;
        BufRange::new(off, len)
    }
}

fn at(base: usize, range: BufRange) -> BufRange {
    BufRange::new(base + range.off, range.len)
}

impl Case {
    pub fn new(plan: Plan) -> Case {
        let mut layout = Layout {
            random: Random::new(plan.seed),
            align: plan.align,
            end: 0,
        };
        let len = plan.len;
        let data: Vec<BufRange> = plan.exps.iter().map(|_| layout.range(len)).collect();
        let (p, q) = (layout.range(len), layout.range(len));
        let spare: Vec<BufRange> = match &plan.what {
            What::Update(which) | What::Recover(which) => {
                which.iter().map(|_| layout.range(len)).collect()
            }
            _ => Vec::new(),
        };
        let span = (layout.end + layout.random.below(64)).next_multiple_of(512);
        assert!(span <= MAX_SPAN, "{plan:?} takes {span} bytes");

        let mut case = Case {
            before: layout.random.bytes(span),
            data: data
                .iter()
                .copied()
                .zip(plan.exps.iter().copied())
                .collect(),
            changed: Vec::new(),
            lost: Vec::new(),
            p: Some(p),
            q: Some(q),
            after: Vec::new(),
            mismatch: Mismatch::default(),
            plan,
        };
        // Right parities first, whatever comes then.
        case.before = case
            .scalar(&ArenaJob::Encode {
                data: &case.data,
                p: case.p,
                q: case.q,
            })
            .0;
        case.p = case.plan.p.then_some(p);
        case.q = case.plan.q.then_some(q);
        match case.plan.what.clone() {
            What::Encode => {
                for range in [p, q] {
                    let junk = layout.random.bytes(len);
                    case.before[range.off..range.end()].copy_from_slice(&junk);
                }
            }
            What::Update(which) => {
                let new = which.iter().zip(&spare);
                case.changed = new
                    .map(|(&i, &new)| (data[i], new, case.plan.exps[i]))
                    .collect();
            }
            What::Recover(which) => {
                let lost = which.iter().zip(&spare);
                case.lost = lost.map(|(&i, &out)| (out, case.plan.exps[i])).collect();
                let mut i = 0;
                case.data.retain(|_| {
                    i += 1;
                    !which.contains(&(i - 1))
                });
            }
            What::Check(flips) => {
                for (chunk, byte) in flips {
                    let range = data
                        .iter()
                        .copied()
                        .chain([p, q])
                        .nth(chunk)
                        .expect("a chunk");
                    case.before[range.off + byte] ^= 1 << layout.random.below(8);
                }
            }
        }
        (case.after, case.mismatch) = case.with_job(0, |job| case.scalar(job));
        case
    }

    /// Bytes of memory that the case takes.
    pub fn span(&self) -> usize {
        self.before.len()
    }

    /// Put the case into the arena, from byte `base` on.
    pub fn prepare(&self, arena: &mut Arena, base: usize) {
        arena
            .bytes_mut(BufRange::new(base, self.span()))
            .copy_from_slice(&self.before);
    }

    /// Call `run` with the job, for a case that was put at `base`.
    pub fn with_job<T>(&self, base: usize, run: impl FnOnce(&ArenaJob) -> T) -> T {
        let (p, q) = (self.p.map(|p| at(base, p)), self.q.map(|q| at(base, q)));
        let moved = |list: &[(BufRange, u8)]| -> Vec<(BufRange, u8)> {
            list.iter()
                .map(|(range, exp)| (at(base, *range), *exp))
                .collect()
        };
        let (data, lost) = (moved(&self.data), moved(&self.lost));
        let changed: Vec<_> = self
            .changed
            .iter()
            .map(|(old, new, exp)| (at(base, *old), at(base, *new), *exp))
            .collect();
        let (data, lost, changed) = (&data[..], &lost[..], &changed[..]);
        run(&match self.plan.what {
            What::Encode => ArenaJob::Encode { data, p, q },
            What::Update(_) => ArenaJob::Update { changed, p, q },
            What::Recover(_) => ArenaJob::Recover { data, p, q, lost },
            What::Check(_) => ArenaJob::Check { data, p, q },
        })
    }

    /// What a span that held `before` holds after the job, and what that reports.
    fn scalar(&self, job: &ArenaJob) -> (Vec<u8>, Mismatch) {
        thread_local! {
            static SCRATCH: std::cell::RefCell<Arena> =
                std::cell::RefCell::new(Arena::new(MAX_SPAN / 4096, 4096).expect("a scratch arena"));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            self.prepare(scratch, 0);
            let mismatch = job.run(&Engine::scalar(), scratch);
            (
                scratch.bytes(BufRange::new(0, self.span())).to_vec(),
                mismatch,
            )
        })
    }

    /// Compare the span at `base`, and what the job reported, with what must be.
    pub fn verify(&self, arena: &Arena, base: usize, found: Mismatch) -> Result<(), String> {
        let (after, mismatch, plan) = (&self.after, self.mismatch, &self.plan);
        if found != mismatch {
            return Err(format!("{found:?} instead of {mismatch:?}: {plan:?}"));
        }
        let got = arena.bytes(BufRange::new(base, self.span()));
        match got.iter().zip(after).position(|(got, want)| got != want) {
            None => Ok(()),
            Some(byte) => {
                let (got, want) = (got[byte], after[byte]);
                let whose = self.whose(byte);
                Err(format!(
                    "byte {byte} ({whose}) is {got:#04x} instead of {want:#04x}: {plan:?}"
                ))
            }
        }
    }

    fn whose(&self, byte: usize) -> String {
        let within = |range: &BufRange| (range.off..range.end()).contains(&byte);
        let mut names: HashMap<String, BufRange> = HashMap::new();
        for (i, (range, _)) in self.data.iter().enumerate() {
            names.insert(format!("data {i}"), *range);
        }
        for (i, (range, _)) in self.lost.iter().enumerate() {
            names.insert(format!("lost {i}"), *range);
        }
        names.extend(self.p.map(|p| ("P".into(), p)));
        names.extend(self.q.map(|q| ("Q".into(), q)));
        let found = names.into_iter().find(|(_, range)| within(range));
        found.map_or("nobody's".into(), |(name, range)| {
            format!("{name}, byte {}", byte - range.off)
        })
    }
}

/// How many cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Some hundred, for a run under a slow checker.
    Quick,
    /// Some thousand.
    Full,
}

const PARITIES: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

/// All operations on a stripe like this, with a few erasures, changes and corruptions of it.
fn all_of(exps: &[u8], len: usize, align: usize, seed: u64) -> Vec<Plan> {
    let mut random = Random::new(seed);
    let members = exps.len();
    let (x, step) = (random.below(members), 1 + random.below(members.max(2) - 1));
    let y = (x + step) % members;
    let mut list = Vec::new();
    let mut add = |what: What, (p, q): (bool, bool)| {
        list.push(Plan {
            what,
            exps: exps.to_vec(),
            len,
            align,
            p,
            q,
            seed: seed * 100 + list.len() as u64,
        });
    };
    for parities in PARITIES {
        add(What::Encode, parities);
        add(What::Update(vec![x]), parities);
        add(What::Recover(vec![x]), parities);
        add(What::Check(vec![]), parities);
    }
    if members > 1 {
        let mut some: Vec<usize> = (0..members)
            .filter(|_| random.below(3) == 0)
            .take(40)
            .collect();
        if random.below(2) == 0 {
            some.reverse();
        }
        add(What::Update(some), (true, true));
        add(What::Recover(vec![x, y]), (true, true));
    }
    if len > 0 {
        let mut byte = || random.below(len);
        add(What::Check(vec![(x, byte())]), (true, true));
        add(What::Check(vec![(x, byte())]), (true, false));
        add(What::Check(vec![(x, byte())]), (false, true));
        add(What::Check(vec![(members, byte())]), (true, true));
        add(What::Check(vec![(members + 1, byte())]), (true, true));
        add(
            What::Check(vec![(members, byte()), (members + 1, byte())]),
            (true, true),
        );
        add(What::Check(vec![(members, len - 1)]), (true, false));
        add(What::Check(vec![(members + 1, 0)]), (false, true));
    }
    list
}

/// All plans, made as they are asked for.
pub fn plans(effort: Effort) -> impl Iterator<Item = Plan> {
    let full = effort == Effort::Full;
    let ascending = |members: usize| -> Vec<u8> { (0..members).map(|i| i as u8).collect() };

    let counts =
        (1..=255usize).filter(move |members| full || [1, 2, 3, 6, 22, 255].contains(members));
    let members = counts.flat_map(move |members| {
        let mut random = Random::new(members as u64);
        let exps = match members % 2 {
            0 => random.exponents(members),
            _ => ascending(members),
        };
        let len = if members < 100 { 1024 } else { 512 };
        all_of(&exps, len, 512, members as u64)
    });

    let lengths = [
        512, 1024, 1536, 2048, 3584, 4096, 4608, 8192, 12288, 16384, 65536, 66048,
    ];
    let lengths = lengths.into_iter().filter(move |len| full || *len <= 4608);
    let lengths = lengths.flat_map(move |len| all_of(&[0, 1, 2, 3], len, 512, 1000 + len as u64));

    let odd = (0..600usize).filter(move |len| len % if full { 7 } else { 97 } == 1);
    let odd = odd.flat_map(|len| all_of(&[3, 4, 0, 1, 7], len, 1, 200_000 + len as u64));

    let erasures = (1..=8usize)
        .filter(move |members| full || *members == 4)
        .flat_map(move |members| {
            let mut turned = ascending(members);
            turned.rotate_left(members / 2);
            let sparse = Random::new(77 + members as u64).exponents(members);
            [ascending(members), turned, sparse]
                .into_iter()
                .flat_map(move |exps| {
                    let sets = (0..members).flat_map(move |x| {
                        let pairs = (0..members)
                            .filter(move |y| *y != x)
                            .map(move |y| vec![x, y]);
                        std::iter::once(vec![x]).chain(pairs)
                    });
                    sets.map(move |lost| Plan {
                        seed: 300_000
                            + lost
                                .iter()
                                .fold(members as u64, |sum, x| sum * 8 + *x as u64),
                        what: What::Recover(lost),
                        exps: exps.clone(),
                        len: 1536,
                        align: 512,
                        p: true,
                        q: true,
                    })
                })
        });

    let md = layouts::ALL.into_iter().flat_map(move |layout| {
        let arrays = (4..=9usize).filter(move |members| full || *members == 6);
        arrays.flat_map(move |members| {
            (0..members).flat_map(move |stripe| {
                let exps = layouts::exponents(layout, members, stripe);
                let seed = 400_000 + (members * 16 + stripe) as u64;
                let plan = move |what: What| Plan {
                    what,
                    exps: exps.clone(),
                    len: 1024,
                    align: 512,
                    p: true,
                    q: true,
                    seed,
                };
                let data = members - 2;
                [
                    plan(What::Encode),
                    plan(What::Update(vec![stripe % data])),
                    plan(What::Recover(vec![(stripe + 1) % data, stripe % data])),
                    plan(What::Check(vec![])),
                ]
            })
        })
    });

    let random = (0..if full { 100u64 } else { 6 }).flat_map(|seed| {
        let mut random = Random::new(500_000 + seed);
        let members = 1 + random.below(30);
        let exps = random.exponents(members);
        let align = [1, 4, 16, 512][random.below(4)];
        let len = match align {
            512 => 512 * (1 + random.below(16)),
            align => (1 + random.below(9000 / align)) * align,
        };
        all_of(&exps, len, align, 500_000 + seed)
    });

    members
        .chain(lengths)
        .chain(odd)
        .chain(erasures)
        .chain(md)
        .chain(random)
}

/// All cases, made as they are asked for.
pub fn cases(effort: Effort) -> impl Iterator<Item = Case> {
    plans(effort).map(Case::new)
}

/// How many cases ran, and how many the other side does not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub ran: usize,
    pub unfit: usize,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.ran += other.ran;
        self.unfit += other.unfit;
    }
}

/// Put one job after the other through `run`, which says `None` to one that it does not take.
///
/// # Panics
/// At the first wrong byte or answer.
pub fn one_by_one(
    name: &str,
    arena: &mut Arena,
    cases: impl Iterator<Item = Case>,
    mut run: impl FnMut(&mut Arena, &ArenaJob) -> Option<Mismatch>,
) -> Tally {
    let mut tally = Tally::default();
    for (i, case) in cases.enumerate() {
        tally += one(name, arena, i, &case, &mut run);
    }
    println!(
        "{name}: {} cases ran, {} were unfit",
        tally.ran, tally.unfit
    );
    tally
}

/// As [`one_by_one`], for a single case, the `i`-th.
pub fn one(
    name: &str,
    arena: &mut Arena,
    i: usize,
    case: &Case,
    mut run: impl FnMut(&mut Arena, &ArenaJob) -> Option<Mismatch>,
) -> Tally {
    // Not always at the start of a page; the alignment that the plan names holds.
    let base = 512 * (i % 9);
    case.prepare(arena, base);
    let Some(found) = case.with_job(base, |job| run(arena, job)) else {
        return Tally { ran: 0, unfit: 1 };
    };
    if let Err(wrong) = case.verify(arena, base, found) {
        panic!("{name}, case {i}: {wrong}");
    }
    Tally { ran: 1, unfit: 0 }
}

/// Put all jobs through a lane, as many at once as it and the arena hold. `wait` is called when nothing is done yet.
///
/// # Panics
/// At the first wrong byte or answer, and if the lane fails.
pub fn through_lane(
    name: &str,
    lane: &mut dyn Lane,
    arena: &mut Arena,
    cases: impl Iterator<Item = Case>,
    mut wait: impl FnMut(),
) -> Tally {
    let slots = arena.len() / MAX_SPAN;
    assert!(slots > 0, "the arena holds no case");
    let mut free: Vec<usize> = (0..slots).collect();
    let mut flying: HashMap<u32, (usize, Case)> = HashMap::new();
    let (mut tally, mut done, mut token) = (Tally::default(), Vec::new(), 7u32);
    let mut land = |lane: &mut dyn Lane,
                    arena: &mut Arena,
                    flying: &mut HashMap<u32, (usize, Case)>,
                    free: &mut Vec<usize>| {
        done.clear();
        lane.poll(arena, &mut done)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for Done { token, mismatch } in done.drain(..) {
            let (slot, case) = flying.remove(&token).expect("a token that is in flight");
            if let Err(wrong) = case.verify(arena, slot * MAX_SPAN, mismatch) {
                panic!("{name}: {wrong}");
            }
            free.push(slot);
        }
        assert_eq!(lane.in_flight(), flying.len());
        wait();
    };
    for case in cases {
        while free.is_empty() {
            land(lane, arena, &mut flying, &mut free);
        }
        let slot = free.pop().expect("a free slot");
        case.prepare(arena, slot * MAX_SPAN);
        loop {
            match case.with_job(slot * MAX_SPAN, |job| lane.submit(token, job)) {
                Ok(()) => {
                    tally.ran += 1;
                    flying.insert(token, (slot, case));
                    token = token.wrapping_add(1);
                    break;
                }
                Err(Refusal::Full) => {
                    assert!(!flying.is_empty(), "{name}: full with nothing in flight");
                    land(lane, arena, &mut flying, &mut free);
                }
                Err(Refusal::Unfit) => {
                    tally.unfit += 1;
                    free.push(slot);
                    break;
                }
            }
        }
    }
    while !flying.is_empty() {
        land(lane, arena, &mut flying, &mut free);
    }
    println!(
        "{name}: {} cases ran, {} were unfit",
        tally.ran, tally.unfit
    );
    tally
}
