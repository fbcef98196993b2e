//! The copying and computing lane of a queue: copies between requests and buffers, parity by the scalar engine, fences.

use parity_kernels::{Change, LostData, Source};
use raid_core::path::types::*;

use super::world::{Lane, Outcome, SCALE, World, index};

impl World {
    /// Runs the lane of a queue up to and including the next fence.
    pub fn run_lane(&mut self, q: usize) -> Outcome {
        while let Some(item) = self.queues[q].lane.pop_front() {
            match item {
                Lane::Copy {
                    out,
                    queue,
                    tag,
                    off,
                    bufs,
                } => self.copy(q, out, usize::from(queue), tag, off, &bufs)?,
                Lane::Zero(slice) => {
                    let (at, len) = index(&slice);
                    self.queues[q].arena[at..at + len].fill(0);
                }
                Lane::Compute(job, srcs) => self.compute(q, job, &srcs),
                Lane::Fence(op) => {
                    let queue = &mut self.queues[q];
                    queue.ready.push(Event::Fenced {
                        op,
                        ok: queue.lane_ok,
                        mismatch: queue.lane_mismatch,
                    });
                    (queue.lane_ok, queue.lane_mismatch) = (true, false);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        q: usize,
        out: bool,
        origin: usize,
        tag: u16,
        off: u32,
        bufs: &[BufSlice],
    ) -> Outcome {
        let fail = self.setup.copy_errors && self.faults_on && self.rng.chance(2);
        let Some(mut active) = self.queues[origin].tags[usize::from(tag)].take() else {
            return Err(format!(
                "q{q} copies for q{origin} tag {tag}, which is not in flight"
            ));
        };
        if fail {
            self.queues[q].lane_ok = false;
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
        Ok(())
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

    fn compute(&mut self, q: usize, job: Job, srcs: &[(BufSlice, u8)]) {
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
                queue.lane_mismatch |= found.any();
            }
        }
        for (slice, bytes) in put {
            let (at, len) = index(&slice);
            queue.arena[at..at + len].copy_from_slice(&bytes);
        }
    }
}
