//! Member I/O without parity: healthy reads of every level, and everything of RAID 0.
//!
//! A request whose pages are registered goes to the members as it is, one vectored I/O per member and contiguous range.
//! Otherwise its bytes pass through frames, a frame full at a time ([`OpKind::Linear`]). Chunks that turn out unreadable are
//! decoded by their band and delivered afterwards.

use super::ops::{OpKind, OpState, Phase};
use super::queue::{Io, IoOwner, QueueCore, Req};
use super::types::*;

/// One chunk's share of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    slot: u16,
    sector: u64,
    /// Byte offset within the range.
    off: u32,
    sectors: u32,
}

/// Sectors of a member that have to be decoded for a request of this queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoverJob {
    tag: u16,
    slot: u16,
    sector: u64,
    sectors: u32,
}

/// What the buffers of a range are.
#[derive(Clone, Copy)]
enum Base {
    /// The request's pages, from this byte on.
    Request(u16, u32),
    /// The arena, from this byte on.
    Arena(u64),
    /// None: a range command.
    Nothing,
}

impl QueueCore {
    /// Turns a read, or any RAID 0 request, into member I/O. False if the pools are empty: go on later.
    pub(crate) fn admit_range(&mut self, tag: u16, out: &mut Actions) -> bool {
        let Req { request, .. } = self.req(tag);
        let Request {
            op,
            lba,
            sectors,
            direct,
        } = request;
        let kind = match op {
            Op::Read => IoKind::Read,
            Op::Write => IoKind::Write,
            Op::Discard => IoKind::Discard,
            Op::WriteZeroes => IoKind::WriteZeroes,
            Op::Flush => unreachable!("a flush has no range"),
        };
        let range_command = matches!(op, Op::Discard | Op::WriteZeroes);
        if direct || range_command {
            let need = (sectors / self.layout.geometry.chunk_sectors()) as usize + 2;
            // A huge discard has more pieces than the pool: it is cut into what fits when nothing else is in flight.
            let most = (self.direct_limit - 1) as u64
                * u64::from(self.layout.geometry.chunk_sectors())
                / 2;
            let mut cursor = self.req(tag).cursor;
            while cursor < sectors {
                let part = u64::from(sectors - cursor).min(most) as u32;
                let need = need.min((part / self.layout.geometry.chunk_sectors()) as usize + 2);
                if self.direct_ios + need > self.direct_limit {
                    return false;
                }
                let base = if direct && !range_command {
                    Base::Request(tag, cursor * SECTOR)
                } else {
                    Base::Nothing
                };
                self.reqs[usize::from(tag)].cursor += part;
                self.emit_range(
                    IoOwner::Req(tag),
                    tag,
                    kind,
                    lba + u64::from(cursor),
                    part,
                    base,
                    out,
                );
                cursor += part;
            }
            return true;
        }
        let frame_sectors = u32::from(self.layout.members) * self.layout.rows;
        loop {
            let cursor = self.req(tag).cursor;
            if cursor == sectors {
                return true;
            }
            if self.frames.is_empty() || self.ops.available() == 0 {
                return false;
            }
            let mut state = OpState::new(OpKind::Linear, 0, self.view.missing);
            state.tag = tag;
            state.req_off = cursor * SECTOR;
            state.sectors = frame_sectors.min(sectors - cursor);
            state.write = op == Op::Write;
            state.count = 1;
            state.frames[0] = self.frames.pop().expect("checked above");
            let req = &mut self.reqs[usize::from(tag)];
            req.cursor += state.sectors;
            req.pending += 1;
            let write = state.write;
            let op = self.ops.insert(state).expect("checked above");
            if write {
                self.ops[op].phase = Phase::Building;
                let mark = out.mark();
                out.bufs.push(self.linear_slice(op));
                let bufs = out.since(mark);
                let OpState { req_off: off, .. } = self.ops[op];
                out.list.push(Action::CopyIn {
                    queue: self.cfg.queue,
                    tag,
                    off,
                    bufs,
                });
                out.list.push(Action::Fence { op });
            } else {
                self.linear_io(op, IoKind::Read, out);
            }
        }
    }

    fn req(&self, tag: u16) -> Req {
        self.reqs[usize::from(tag)]
    }

    fn linear_slice(&self, op: u32) -> BufSlice {
        let state = &self.ops[op];
        let frame = u64::from(state.frames[0]) * self.layout.frame_bytes();
        BufSlice {
            buf: Buf::Arena,
            off: frame,
            len: state.sectors * SECTOR,
        }
    }

    fn linear_io(&mut self, op: u32, kind: IoKind, out: &mut Actions) {
        let OpState {
            tag,
            req_off,
            sectors,
            ..
        } = self.ops[op];
        let base = Base::Arena(self.linear_slice(op).off);
        let lba = self.req(tag).request.lba + u64::from(req_off / SECTOR);
        self.emit_range(IoOwner::Op(op), tag, kind, lba, sectors, base, out);
        if self.ops[op].pending == 0 {
            match kind {
                IoKind::Read => self.linear_read_done(op, out),
                _ => self.linear_write_done(op, out),
            }
        }
    }

    /// One member I/O per member and contiguous range of the array range.
    fn emit_range(
        &mut self,
        owner: IoOwner,
        tag: u16,
        kind: IoKind,
        lba: u64,
        sectors: u32,
        base: Base,
        out: &mut Actions,
    ) {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        let mut done = 0;
        let mut present = SlotSet::EMPTY;
        while done < sectors {
            let at = self.layout.geometry.locate(lba + u64::from(done));
            let count = at.left_in_chunk.min(sectors - done);
            pieces.push(Piece {
                slot: at.slot,
                sector: at.sector,
                off: done.wrapping_mul(SECTOR),
                sectors: count,
            });
            present.insert(at.slot);
            done += count;
        }
        for slot in present.iter() {
            let mut run: Option<(u64, u32, u32)> = None; // sector, sectors, mark
            for piece in pieces.iter().filter(|p| p.slot == slot) {
                let joins = run.is_some_and(|(s, n, m)| {
                    s + u64::from(n) == piece.sector && out.bufs.len() as u32 - m < 256
                });
                if !joins && let Some((sector, count, mark)) = run.take() {
                    self.emit_run(owner, tag, kind, slot, sector, count, mark, out);
                }
                let (sector, count, mark) = run.unwrap_or((piece.sector, 0, out.mark()));
                let len = piece.sectors * SECTOR;
                match base {
                    Base::Request(tag, off) => {
                        out.bufs.push(BufSlice {
                            buf: Buf::Request(tag),
                            off: u64::from(off + piece.off),
                            len,
                        });
                    }
                    Base::Arena(off) => {
                        out.bufs.push(BufSlice {
                            buf: Buf::Arena,
                            off: off + u64::from(piece.off),
                            len,
                        });
                    }
                    Base::Nothing => {}
                }
                run = Some((sector, count + piece.sectors, mark));
            }
            if let Some((sector, count, mark)) = run {
                self.emit_run(owner, tag, kind, slot, sector, count, mark, out);
            }
        }
        self.pieces = pieces;
    }

    fn emit_run(
        &mut self,
        owner: IoOwner,
        tag: u16,
        kind: IoKind,
        slot: u16,
        sector: u64,
        sectors: u32,
        mark: u32,
        out: &mut Actions,
    ) {
        let mut sectors = sectors;
        if self.doubtful.contains(slot) {
            sectors = self.readable(owner, tag, slot, sector, sectors, mark, out);
            if sectors == 0 {
                return;
            }
        }
        match owner {
            IoOwner::Req(tag) => {
                self.reqs[usize::from(tag)].pending += 1;
                self.direct_ios += 1;
            }
            IoOwner::Op(op) => self.ops[op].pending += 1,
        }
        self.member_io(owner, kind, slot, sector, sectors, mark, out);
    }

    /// How many sectors of the run can be read from a member that is missing or being filled; the rest is decoded.
    #[cold]
    fn readable(
        &mut self,
        owner: IoOwner,
        tag: u16,
        slot: u16,
        sector: u64,
        sectors: u32,
        mark: u32,
        out: &mut Actions,
    ) -> u32 {
        let whole = match self.view.missing.contains(slot) {
            true => 0,
            false => self.layout.member_sector(self.view.filled),
        };
        #[cfg(feature = "planted-bugs")]
        let whole = match self.bug(super::queue::Bug::ReadBeyondFrontier) && whole > 0 {
            true => u64::MAX,
            false => whole,
        };
        let fits = whole.saturating_sub(sector).min(u64::from(sectors)) as u32;
        if fits == sectors {
            return fits;
        }
        match owner {
            // Delivered after the frame, see linear_fenced.
            IoOwner::Op(op) => {
                self.ops[op].bad.insert(slot);
            }
            IoOwner::Req(_) if self.layout.parity => {
                self.want_recover(tag, slot, sector + u64::from(fits), sectors - fits);
                // The buffers of what is left.
                let mut left = fits * SECTOR;
                let mut at = mark as usize;
                while left > 0 {
                    let len = &mut out.bufs[at].len;
                    *len = (*len).min(left);
                    left -= *len;
                    at += 1;
                }
                out.bufs.truncate(at);
                return fits;
            }
            IoOwner::Req(_) => self.reqs[usize::from(tag)].result = Err(RequestError::Io),
        }
        out.bufs.truncate(mark as usize);
        0
    }

    fn want_recover(&mut self, tag: u16, slot: u16, sector: u64, sectors: u32) {
        self.reqs[usize::from(tag)].pending += 1;
        self.recover_jobs.push_back(RecoverJob {
            tag,
            slot,
            sector,
            sectors,
        });
    }

    /// A direct member I/O or a flush of a request has failed.
    pub(crate) fn direct_failed(
        &mut self,
        tag: u16,
        io: Io,
        error: MemberError,
        out: &mut Actions,
    ) {
        let lost = match error {
            MemberError::Medium => RequestError::Medium,
            MemberError::Gone | MemberError::Unsupported | MemberError::Removed => RequestError::Io,
        };
        let late = self.late(&io);
        let req = &mut self.reqs[usize::from(tag)];
        match io.kind {
            IoKind::Read if self.layout.parity => {
                self.want_recover(tag, io.slot, io.sector, io.sectors)
            }
            IoKind::Flush if error == MemberError::Unsupported => {}
            IoKind::Flush if late => {}
            IoKind::Flush if self.layout.parity => {
                req.failed.insert(io.slot);
                self.report_failed(io.slot, error, out);
            }
            IoKind::Discard if error == MemberError::Unsupported => {}
            IoKind::WriteZeroes if error == MemberError::Unsupported => {
                req.result = Err(RequestError::Unsupported)
            }
            _ => req.result = Err(lost),
        }
    }

    /// Turns sectors that cannot be read into segs of their bands, as far as there is room.
    pub(crate) fn run_recover_jobs(&mut self, out: &mut Actions) {
        while let Some(job) = self.recover_jobs.front().copied() {
            let RecoverJob {
                tag,
                slot,
                mut sector,
                mut sectors,
            } = job;
            while sectors > 0 {
                if !self.seg_room() {
                    self.recover_jobs[0] = RecoverJob {
                        tag,
                        slot,
                        sector,
                        sectors,
                    };
                    return;
                }
                let place = self
                    .layout
                    .place_on_member(slot, sector)
                    .expect("reads are of data chunks");
                let lba = self
                    .layout
                    .geometry
                    .inverse(slot, sector)
                    .expect("reads are of data chunks");
                let count = place.left.min(sectors);
                let req = &mut self.reqs[usize::from(tag)];
                req.pending += 1;
                let seg = Seg {
                    origin: self.cfg.queue,
                    tag,
                    kind: SegKind::Recover,
                    k: place.k,
                    first: place.first as u8,
                    count: count as u8,
                    req_off: (lba - req.request.lba) as u32 * SECTOR,
                    large: false,
                };
                self.route(place.band, seg, out);
                sector += u64::from(count);
                sectors -= count;
            }
            self.recover_jobs.pop_front();
            self.piece_done(tag, Ok(()), out);
        }
    }

    pub(crate) fn linear_read_done(&mut self, op: u32, out: &mut Actions) {
        self.ops[op].phase = Phase::Delivering;
        let OpState {
            tag, req_off: off, ..
        } = self.ops[op];
        let mark = out.mark();
        out.bufs.push(self.linear_slice(op));
        let bufs = out.since(mark);
        out.list.push(Action::CopyOut {
            queue: self.cfg.queue,
            tag,
            off,
            bufs,
        });
        out.list.push(Action::Fence { op });
    }

    pub(crate) fn linear_fenced(&mut self, op: u32, ok: bool, out: &mut Actions) {
        let OpState {
            tag,
            req_off,
            sectors,
            write,
            bad,
            ..
        } = self.ops[op];
        if !ok {
            self.ops[op].result = Err(RequestError::Io);
            return self.linear_finish(op, out);
        }
        if write {
            self.ops[op].phase = Phase::Writing;
            return self.linear_io(op, IoKind::Write, out);
        }
        if !bad.is_empty() {
            let lba = self.req(tag).request.lba + u64::from(req_off / SECTOR);
            let mut done = 0;
            while done < sectors {
                let at = self.layout.geometry.locate(lba + u64::from(done));
                let count = at.left_in_chunk.min(sectors - done);
                if bad.contains(at.slot) {
                    if self.layout.parity {
                        self.want_recover(tag, at.slot, at.sector, count);
                    } else {
                        self.ops[op].result = Err(RequestError::Medium);
                    }
                }
                done += count;
            }
        }
        self.linear_finish(op, out);
    }

    pub(crate) fn linear_write_done(&mut self, op: u32, out: &mut Actions) {
        let state = &mut self.ops[op];
        if !state.failed.is_empty() || !state.bad.is_empty() {
            state.result = Err(RequestError::Io);
        }
        self.linear_finish(op, out);
    }

    fn linear_finish(&mut self, op: u32, out: &mut Actions) {
        self.free_frames(op);
        let state = self.ops.remove(op);
        self.piece_done(state.tag, state.result, out);
    }
}
