//! The scheduler: one random step after another. Every choice comes from the run's own stream, so a seed is a whole story.

use raid_core::path::manager::{ManagerEvent, Scrub};
use raid_core::path::types::*;

use super::disk::Super;
use super::rng::mix;
use super::setup::EdgeBug;
use super::world::{Active, BYTES, Outcome, World};

/// Steps within which something has to get done: a request, a window of the sweep, a superblock.
const BOUND: u64 = 500_000;
/// Sectors that the core reads again by themselves.
const PIECE: u64 = 8;

impl World {
    /// Sends this many requests, faults included.
    pub fn load(&mut self, requests: u32, until_done: bool) -> Outcome {
        self.requests_left = requests;
        self.faults_on = true;
        while self.requests_left > 0 {
            self.step()?;
            self.check_progress()?;
        }
        if until_done { self.drain() } else { Ok(()) }
    }

    /// Lets everything come to rest.
    pub fn drain(&mut self) -> Outcome {
        self.requests_left = 0;
        self.faults_on = false;
        self.manager_event(ManagerEvent::Pause(false))?;
        if self.setup.rejoin && self.rng.chance(50) {
            self.rejoin_all = true;
        }
        self.progress = (0, self.tally.steps);
        while !self.quiet() {
            if self.rejoin_all && self.rng.chance(5) {
                self.rejoin()?;
            }
            self.step()?;
            self.check_progress()?;
        }
        self.rejoin_all = false;
        self.clear_holes();
        Ok(())
    }

    /// Nothing is lost: as long as something is in flight, something ends.
    pub fn check_progress(&mut self) -> Outcome {
        // Medium errors that come faster than I/O ends can hold up a request for long.
        let oldest = self.oldest();
        if oldest != self.waiting.0 {
            self.waiting = (oldest, self.tally.steps);
        } else if oldest != u64::MAX && self.tally.steps > self.waiting.1 + 20 * BOUND {
            return Err(format!("a request is never answered: {}", self.stuck()));
        }
        let done = self.now + self.manager.headway() + self.tally.records;
        if done != self.progress.0 {
            self.progress = (done, self.tally.steps);
        } else if self.tally.steps > self.progress.1 + BOUND {
            return Err(format!("nothing happens any more: {}", self.stuck()));
        }
        Ok(())
    }

    /// Nothing is in flight or due.
    pub fn quiet(&self) -> bool {
        self.records.is_empty()
            && self.manager_mail.is_empty()
            && self.queues.iter().all(|q| {
                q.mail.is_empty()
                    && q.ready.is_empty()
                    && q.groups.is_empty()
                    && q.open.items.is_empty()
                    && q.ios.is_empty()
                    && q.tags.iter().all(Option::is_none)
                    && q.core.idle()
            })
            && (self.manager.settled() || self.beyond || self.setup.read_only)
            && (!self.manager.sweeping() || self.beyond)
            && self.bits_quiet()
            && self.owners.all_free()
    }

    fn stuck(&self) -> String {
        let mut out = format!(
            "records {} manager mail {} settled {} sweeping {} dirty {} progress {:?} owners free {}\n",
            self.records.len(),
            self.manager_mail.len(),
            self.manager.settled(),
            self.manager.sweeping(),
            self.manager.dirty(),
            self.manager.progress(),
            self.owners.all_free(),
        );
        for (i, q) in self.queues.iter().enumerate() {
            let waiting: Vec<_> = q
                .tags
                .iter()
                .enumerate()
                .filter_map(|(t, a)| a.as_ref().map(|a| (t, a.request)))
                .collect();
            out += &format!(
                "q{i}: idle {} mail {} ready {} fences {} ios {} view {:?} requests {waiting:?}\n",
                q.core.idle(),
                q.mail.len(),
                q.ready.len(),
                q.groups.len(),
                q.ios.len(),
                q.core.view(),
            );
        }
        out
    }

    /// One step of some kind.
    pub fn step(&mut self) -> Outcome {
        self.tally.steps += 1;
        if self.faults_on && self.rng.chance(2) {
            self.fault()?;
        }
        let w = self.setup.weights;
        let mut at = self.rng.below(w.iter().sum());
        let kind = w
            .iter()
            .position(|w| {
                let here = at < *w;
                at = at.wrapping_sub(*w);
                here
            })
            .expect("below the sum");
        let q = self.rng.index(self.queues.len());
        match kind {
            0 if !self.queues[q].ios.is_empty() => {
                let at = self.rng.index(self.queues[q].ios.len());
                self.finish_io(q, at);
            }
            1 if !self.queues[q].ios.is_empty() => {
                let at = self.rng.index(self.queues[q].ios.len());
                let mut io = self.queues[q].ios.swap_remove(at);
                if !self.disks[usize::from(io.slot)].gone {
                    self.transfer(q, &mut io, false);
                }
                self.queues[q].ios.push(io);
            }
            2 => self.run_lane(q)?,
            4 => {
                if let Some(msg) = self.manager_mail.pop_front() {
                    self.manager_event(ManagerEvent::Msg(msg))?;
                }
            }
            5 if self.bits_under_way() && (self.records.is_empty() || self.rng.chance(50)) => {
                self.bits_step()?;
            }
            5 if !self.records.is_empty() => self.record_step()?,
            6 => {
                self.clock_ms += self.rng.range(0, 20);
                self.manager_event(ManagerEvent::Tick)?;
            }
            7 if self.requests_left > 0 => self.new_request(q),
            _ => self.pass(q)?,
        }
        Ok(())
    }

    /// Feeds a queue some of what waits for it and carries out what it wants.
    pub fn pass(&mut self, q: usize) -> Outcome {
        let queue = &mut self.queues[q];
        let waiting = queue.ready.len() + queue.mail.len();
        let most = if self.rng.chance(50) {
            waiting
        } else {
            self.rng.index(waiting + 1)
        };
        for _ in 0..most {
            let from_mail =
                queue.ready.is_empty() || (!queue.mail.is_empty() && self.rng.chance(50));
            let event = if from_mail {
                Event::Msg(queue.mail.pop_front().expect("counted"))
            } else {
                let at = self.rng.index(queue.ready.len());
                queue.ready.swap_remove(at)
            };
            if let Event::Fenced { op: fence, .. } = event {
                let mine = |e: &mut Event| matches!(e, Event::Located { op, .. } if *op == fence);
                for located in queue.located.extract_if(.., mine) {
                    self.log.add(|| format!("q{q} <- {located:?}"));
                    queue.core.event(located, &mut queue.out);
                }
            }
            self.log.add(|| format!("q{q} <- {event:?}"));
            queue.core.event(event, &mut queue.out);
        }
        queue.core.end_of_pass(&mut queue.out);
        self.execute(q)?;
        if self.rng.chance(30) {
            self.run_lane(q)?;
        }
        Ok(())
    }

    pub fn manager_event(&mut self, event: ManagerEvent) -> Outcome {
        if !matches!(event, ManagerEvent::Tick) {
            self.log.add(|| format!("manager <- {event:?}"));
        }
        let mut out = Vec::new();
        let was_dirty = self.manager.dirty();
        self.manager.event(self.clock_ms, event, &mut out);
        self.tally.cleans += u64::from(was_dirty && !self.manager.dirty());
        self.manager_actions(out)
    }

    fn record_step(&mut self) -> Outcome {
        let at = self.rng.index(self.records.len());
        let io = self.records[at];
        let sb = Super::of(&io.record, io.slot);
        let slot = usize::from(io.slot);
        let only_first = self.setup.edge_bug == Some(EdgeBug::RecordOne)
            && io.record.targets.iter().next() != Some(io.slot);
        let ok = if self.disks[slot].gone {
            false
        } else if !io.written {
            let filling = self.manager.view().filling.contains(io.slot);
            let may = self.may_lose(io.slot) || (filling && self.setup.rejoin);
            let fail = self.faults_on && self.rng.chance(2) && may;
            if fail {
                self.lose(io.slot);
            }
            let unwritten = only_first || (fail && self.rng.chance(50));
            if !unwritten {
                self.disks[slot].write_super(sb);
            }
            if !fail {
                self.records[at].written = true;
                return Ok(());
            }
            false
        } else {
            if self.setup.edge_bug != Some(EdgeBug::RecordWithoutFlush) {
                self.disks[slot].flush();
                self.flush_bits(io.slot);
            }
            true
        };
        self.records.swap_remove(at);
        self.manager_event(ManagerEvent::Recorded { slot: io.slot, ok })
    }

    fn fault(&mut self) -> Outcome {
        match self.rng.below(12) {
            0 => {
                let slot = self.rng.below(u64::from(self.layout.members)) as u16;
                if self.may_lose(slot) {
                    self.strike(slot)?;
                }
            }
            1..5 if self.setup.medium > 0 => self.medium_error(),
            5..9 if self.setup.rejoin => self.rejoin()?,
            9 if self.setup.rejoin => {
                let filling: Vec<u16> = self.manager.view().filling.iter().collect();
                if !filling.is_empty() && self.rng.chance(30) {
                    let slot = filling[self.rng.index(filling.len())];
                    self.strike(slot)?;
                }
            }
            10 if self.setup.scrub => self.scrub_step()?,
            11 if self.setup.rejoin || self.setup.scrub => {
                let pause = self.rng.chance(30);
                self.manager_event(ManagerEvent::Pause(pause))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A member fails in one way or another.
    fn strike(&mut self, slot: u16) -> Outcome {
        let disk = &mut self.disks[usize::from(slot)];
        match self.rng.below(10) {
            0..5 => disk.gone = true,
            5..8 => disk.fail_write = true,
            _ if self.setup.losses > self.parities => disk.gone = true,
            _ => {
                self.lose(slot);
                return self.manager_event(ManagerEvent::Leave { slot });
            }
        }
        self.lose(slot);
        Ok(())
    }

    /// A slot that is known as missing gets a new member.
    fn rejoin(&mut self) -> Outcome {
        let view = self.manager.view();
        // Before that a queue may still write to what is in the slot.
        if view.failed || view.recorded != view.epoch {
            return Ok(());
        }
        let missing: Vec<u16> = view.missing.iter().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let slot = missing[self.rng.index(missing.len())];
        if !self.exchange_bits(slot) {
            return Ok(());
        }
        self.disks[usize::from(slot)].exchange(&mut self.rng);
        self.manager_event(ManagerEvent::Join { slot, from: 0 })
    }

    fn scrub_step(&mut self) -> Outcome {
        if self.rng.chance(20) {
            return self.manager_event(ManagerEvent::ScrubStop);
        }
        let bands = self.layout.bands();
        let first = self.rng.below(bands) * self.rng.below(2);
        let kind = match self.rng.below(3) {
            0 => Scrub::Check,
            1 => Scrub::Repair {
                policy: Policy::Locate,
            },
            _ => Scrub::Repair {
                policy: Policy::Parity,
            },
        };
        self.manager_event(ManagerEvent::Scrub {
            kind,
            first,
            end: u64::MAX,
        })
    }

    /// Members that have been made whole count as never lost.
    pub fn rebuilt(&mut self, slots: &SlotSet) {
        for slot in slots.iter() {
            self.tally.rebuilt += 1;
            if self.disks[usize::from(slot)].present() {
                self.lost.remove(slot);
            }
        }
    }

    /// A sector becomes unreadable: on one member for each piece that is read again by itself, on up to three members of a
    /// band, so that no more than one is ever lost in a row and no operation has more suspects than it can remember.
    fn medium_error(&mut self) {
        let rows = self.holes.len() as u64;
        let sector = match self.setup.hot {
            0 => self.rng.below(rows),
            hot => self
                .rng
                .below((hot * u64::from(self.setup.geometry.chunk_sectors())).min(rows)),
        };
        let band = sector / u64::from(self.layout.rows);
        let slot = mix(band ^ self.setup.seed) + mix(sector / PIECE) % 3;
        let slot = (slot % u64::from(self.layout.members)) as u16;
        self.log
            .add(|| format!("fault: medium error, slot {slot} sector {sector}"));
        self.disks[usize::from(slot)].bad.insert(sector);
        self.clear_holes();
        self.blur(slot, sector);
        self.tally.medium += 1;
    }

    /// An unreadable sector is computed together with its piece. Where parity does not match, these sectors are garbage.
    pub fn blur(&mut self, slot: u16, sector: u64) {
        let now = self.tick();
        let first = sector / PIECE * PIECE;
        for row in first..first + PIECE {
            if self.holes[row as usize]
                && let Some(lba) = self.setup.geometry.inverse(slot, row)
            {
                self.oracle.undefined(lba, now);
            }
        }
    }

    pub fn may_lose(&self, slot: u16) -> bool {
        !self.lost.contains(slot) && self.lost.len() < usize::from(self.setup.losses)
    }

    /// A member fails. What its parity did not cover yet is lost with it.
    pub fn lose(&mut self, slot: u16) {
        self.log.add(|| format!("fault: slot {slot} is lost"));
        self.tally.losses += 1;
        self.lost.insert(slot);
        self.beyond |= self.lost.len() > usize::from(self.parities);
        self.clear_holes();
        let now = self.tick();
        for row in (0..self.holes.len() as u64).filter(|r| self.holes[*r as usize]) {
            if let Some(lba) = self.setup.geometry.inverse(slot, row) {
                self.oracle.undefined(lba, now);
            }
        }
        self.miss_holes();
    }

    /// What does not match now will not match a lost member that comes back, whatever the others agree on meanwhile.
    pub fn miss_holes(&mut self) {
        for (missed, hole) in self.missed.iter_mut().zip(&self.holes) {
            *missed |= *hole;
        }
    }

    /// What the sweep has passed is covered by parity.
    pub fn clear_holes(&mut self) {
        let synced = self.manager.view().synced;
        let rows = synced.saturating_mul(u64::from(self.layout.rows));
        let rows = rows.min(self.holes.len() as u64) as usize;
        self.holes[..rows].fill(false);
    }

    fn new_request(&mut self, q: usize) {
        let free: Vec<usize> = (0..self.queues[q].tags.len())
            .filter(|t| self.queues[q].tags[*t].is_none())
            .collect();
        if free.is_empty() {
            return;
        }
        let tag = free[self.rng.index(free.len())];
        let Some(request) = self.draw_request(q) else {
            return;
        };
        self.requests_left -= 1;
        self.send(q, tag as u16, request);
    }

    /// Sends a request to a queue.
    pub fn send(&mut self, q: usize, tag: u16, request: Request) {
        self.tally.requests += 1;
        let sent = self.tick();
        let id = self.next_id;
        self.next_id += 1;
        let mut buf = vec![0u8; request.sectors as usize * BYTES];
        if request.op == Op::Write {
            for (i, sector) in buf.chunks_mut(BYTES).enumerate() {
                sector.copy_from_slice(&mix(id << 24 | i as u64).to_ne_bytes());
            }
        }
        if matches!(request.op, Op::Write | Op::WriteZeroes | Op::Discard) {
            for i in 0..u64::from(request.sectors) {
                let at = i as usize * BYTES;
                let value = u64::from_ne_bytes(buf[at..at + BYTES].try_into().expect("a sector"));
                self.oracle.sent(request.lba + i, id, value, sent);
            }
        }
        let queue = &mut self.queues[q];
        queue.tags[usize::from(tag)] = Some(Active {
            request,
            id,
            sent,
            buf,
            spoiled: false,
        });
        self.log
            .add(|| format!("q{q} tag {tag} new {request:?} id {id}"));
        queue.ready.push(Event::Request { tag, request });
    }

    fn draw_request(&mut self, q: usize) -> Option<Request> {
        let g = &self.setup.geometry;
        let total = g.array_sectors();
        let r = &mut self.rng;
        let op = if r.chance(self.setup.reads) {
            Op::Read
        } else {
            match r.below(20) {
                0 | 1 => Op::Flush,
                2 | 3 => Op::WriteZeroes,
                4 if !self.layout.parity => Op::Discard,
                _ => Op::Write,
            }
        };
        if op == Op::Flush {
            return Some(Request {
                op,
                lba: 0,
                sectors: 0,
                direct: false,
            });
        }
        let chunk = u64::from(g.chunk_sectors());
        let stripe = chunk * u64::from(g.data_members());
        for _ in 0..4 {
            let lba = match r.below(10) {
                0..4 => self.position[q] % total,
                4..7 => (r.below(total) / chunk) * chunk,
                7 if stripe <= self.setup.longest => (r.below(total) / stripe) * stripe,
                _ => r.below(total),
            };
            let lba = match self.setup.hot {
                0 => lba,
                hot => lba % (hot * stripe).min(total),
            };
            let sectors = match r.below(5) {
                0 => r.range(1, self.setup.longest),
                1 => chunk.min(self.setup.longest),
                2 => stripe.min(self.setup.longest),
                3 => r.range(1, 8.min(self.setup.longest)),
                _ => self.setup.longest,
            };
            let sectors = sectors.min(total - lba) as u32;
            let write = op != Op::Read;
            let clash = write
                && self
                    .queues
                    .iter()
                    .flat_map(|q| q.tags.iter().flatten())
                    .any(|a| {
                        !matches!(a.request.op, Op::Read | Op::Flush)
                            && a.request.lba < lba + u64::from(sectors)
                            && lba < a.request.lba + u64::from(a.request.sectors)
                    });
            if clash && !r.chance(10) {
                self.position[q] = r.below(total);
                continue;
            }
            self.position[q] = lba + u64::from(sectors);
            return Some(Request {
                op,
                lba,
                sectors,
                direct: r.chance(self.setup.direct),
            });
        }
        None
    }
}
