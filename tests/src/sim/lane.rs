//! The copying and computing lane of a queue: copies between requests and buffers, parity by the scalar engine, fences.
//!
//! What stands before one fence is done in order, now or in two steps: the copies first, the jobs later, as with a device that
//! computes. The groups of several fences are done in any order.

use parity_kernels::{Change, LostData, Source};
use raid_core::path::types::*;

use super::setup::EdgeBug;
use super::world::{BYTES, Group, Lane, Outcome, SCALE, World, index};

impl World {
    /// Runs what stands before one fence of a queue, or only the copies of it.
    pub fn run_lane(&mut self, q: usize) -> Outcome {
        let waiting = self.queues[q].groups.len();
        if waiting == 0 {
            return Ok(());
        }
        let at = match self.rng.chance(50) {
            true => 0,
            false => self.rng.index(waiting),
        };
        let copies_only = self.rng.chance(30);
        let mut group = self.queues[q].groups.remove(at);
        while let Some(item) = group.items.pop_front() {
            match item {
                Lane::Copy {
                    out,
                    queue,
                    tag,
                    off,
                    bufs,
                } => group.ok &= self.copy(q, out, usize::from(queue), tag, off, &bufs)?,
                Lane::Zero(slice) => {
                    let (at, len) = index(&slice);
                    self.queues[q].arena[at..at + len].fill(0);
                }
                Lane::Compute(..) if copies_only => {
                    group.items.push_front(item);
                    if self.setup.edge_bug == Some(EdgeBug::EarlyFence) {
                        self.report(q, &mut group);
                    }
                    self.queues[q].groups.insert(at, group);
                    return Ok(());
                }
                Lane::Locate {
                    op,
                    srcs,
                    p,
                    q: q_slice,
                } => {
                    let found = self.locate(q, op, &srcs, p, q_slice);
                    group.located.extend(found);
                }
                Lane::Compute(job, srcs) => group.mismatch |= self.compute(q, job, &srcs),
            }
        }
        self.report(q, &mut group);
        Ok(())
    }

    fn report(&mut self, q: usize, group: &mut Group) {
        // In this order: what is located counts before the fence.
        let located = std::mem::take(&mut group.located);
        self.queues[q].located.extend(located);
        if let Some(op) = group.op.take() {
            self.queues[q].ready.push(Event::Fenced {
                op,
                ok: group.ok,
                mismatch: group.mismatch,
            });
        }
    }

    fn copy(
        &mut self,
        q: usize,
        out: bool,
        origin: usize,
        tag: u16,
        off: u32,
        bufs: &[BufSlice],
    ) -> Outcome<bool> {
        let fail = self.setup.copy_errors && self.faults_on && self.rng.chance(2);
        let Some(mut active) = self.queues[origin].tags[usize::from(tag)].take() else {
            return Err(format!(
                "q{q} copies for q{origin} tag {tag}, which is not in flight"
            ));
        };
        if fail {
            self.spoil_all();
            active.spoiled = true;
        } else {
            let mut at = (u64::from(off) / SCALE) as usize;
            for slice in bufs {
                let (a, len) = index(slice);
                let arena = &mut self.queues[q].arena[a..a + len];
                if out {
                    active.buf[at..at + len].copy_from_slice(arena);
                } else {
                    arena.copy_from_slice(&active.buf[at..at + len]);
                }
                at += len;
            }
        }
        self.queues[origin].tags[usize::from(tag)] = Some(active);
        Ok(!fail)
    }

    /// A failed copy fails every request that was merged with it.
    fn spoil_all(&mut self) {
        for active in self
            .queues
            .iter_mut()
            .flat_map(|q| q.tags.iter_mut().flatten())
        {
            active.spoiled = true;
        }
    }

    /// Runs of sectors that differ in one way.
    fn locate(
        &self,
        q: usize,
        op: u32,
        srcs: &[(BufSlice, u8)],
        p: Option<BufSlice>,
        q_slice: Option<BufSlice>,
    ) -> Vec<Event> {
        let arena = &self.queues[q].arena;
        let get = |s: &BufSlice| {
            let (at, len) = index(s);
            &arena[at..at + len]
        };
        let sources: Vec<Source> = srcs
            .iter()
            .map(|(s, exp)| Source {
                data: get(s),
                exp: *exp,
            })
            .collect();
        let mut found: Vec<(u32, u32, Wrong)> = Vec::new();
        let mut each = |place: &parity_kernels::Place| {
            let at = (place.off / BYTES) as u32;
            let wrong = match place.wrong {
                parity_kernels::Wrong::Data { index, .. } => Wrong::Data(index as u16),
                parity_kernels::Wrong::P => Wrong::P,
                parity_kernels::Wrong::Q => Wrong::Q,
                parity_kernels::Wrong::Unknown => Wrong::Unknown,
            };
            match found.last_mut() {
                Some((_, end, same)) if *end == at && *same == wrong => *end += 1,
                _ => found.push((at, at + 1, wrong)),
            }
        };
        let (p, q) = (p.as_ref().map(get), q_slice.as_ref().map(get));
        self.engine.locate(&sources, p, q, BYTES, &mut each);
        found
            .into_iter()
            .map(|(lo, hi, wrong)| Event::Located { op, lo, hi, wrong })
            .collect()
    }

    /// True if a check found a difference.
    fn compute(&mut self, q: usize, job: Job, srcs: &[(BufSlice, u8)]) -> bool {
        let mut mismatch = false;
        let engine = self.engine;
        let queue = &mut self.queues[q];
        let arena = &queue.arena;
        let get = |s: &BufSlice| {
            let (at, len) = index(s);
            &arena[at..at + len]
        };
        let own = |s: &Option<BufSlice>| s.as_ref().map(|s| get(s).to_vec());
        let sources: Vec<Source> = srcs
            .iter()
            .map(|(s, exp)| Source {
                data: get(s),
                exp: *exp,
            })
            .collect();
        let mut put: Vec<(BufSlice, Vec<u8>)> = Vec::new();
        match job {
            Job::Encode { p, q, .. } => {
                let (mut pb, mut qb) = (own(&p), own(&q));
                engine.encode(&sources, pb.as_deref_mut(), qb.as_deref_mut());
                put.extend(p.zip(pb));
                put.extend(q.zip(qb));
            }
            Job::Update {
                old,
                new,
                exp,
                p,
                q,
            } => {
                let (mut pb, mut qb) = (own(&p), own(&q));
                let change = Change {
                    old: get(&old),
                    new: get(&new),
                    exp,
                };
                engine.update(&[change], pb.as_deref_mut(), qb.as_deref_mut());
                put.extend(p.zip(pb));
                put.extend(q.zip(qb));
            }
            Job::Recover {
                p,
                q,
                first,
                second,
                ..
            } => {
                let (pb, qb) = (own(&p), own(&q));
                let mut a = get(&first.0).to_vec();
                let mut b = second.map(|s| get(&s.0).to_vec());
                let mut lost = vec![LostData {
                    out: &mut a,
                    exp: first.1,
                }];
                if let (Some(second), Some(b)) = (&second, &mut b) {
                    lost.push(LostData {
                        out: b,
                        exp: second.1,
                    });
                }
                engine
                    .recover(&sources, pb.as_deref(), qb.as_deref(), &mut lost)
                    .expect("the core asks for what is possible");
                put.push((first.0, a));
                put.extend(second.map(|s| s.0).zip(b));
            }
            Job::Check { p, q, .. } => {
                let found = engine.check(&sources, p.as_ref().map(get), q.as_ref().map(get));
                mismatch = found.any();
            }
        }
        for (slice, bytes) in put {
            let (at, len) = index(&slice);
            queue.arena[at..at + len].copy_from_slice(&bytes);
        }
        mismatch
    }
}
