//! The same contract in memory, for engine tests on machines without ublk.
//!
//! [`pair`] gives a [`MemFrontend`] for the engine and a [`MemClient`] for the test; [`group`] gives several queues of
//! one device. Owns the data of requests in flight (one vector each) and per queue an eventfd that wakes the engine's
//! ring. Allocates per request and takes a lock per call: it is for tests, not for speed.

#![forbid(unsafe_code)]

use crate::convert::{Op, Request};
use crate::frontend::{Event, Fetched, Frontend};
use io_uring::squeue::SubmissionQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

struct Slot {
    request: Request,
    data: Vec<u8>,
    ticket: u64,
    with_engine: bool,
}

struct MemQueue {
    slots: Vec<Option<Slot>>,
    arrived: VecDeque<u16>,
    primed: bool,
}

impl MemQueue {
    fn idle(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }
}

struct State {
    queues: Vec<MemQueue>,
    done: Vec<(u64, Result<Vec<u8>, i32>)>,
    next_ticket: u64,
    stopping: bool,
    /// A frontend was dropped; its requests will never be answered.
    gone: bool,
}

impl State {
    /// Like a device before its start: nothing arrives until all queues are primed.
    fn started(&self) -> bool {
        self.queues.iter().all(|q| q.primed)
    }

    fn slot(&mut self, qid: u16, tag: u16) -> Option<&mut Option<Slot>> {
        let queue = self.queues.get_mut(usize::from(qid))?;
        queue.slots.get_mut(usize::from(tag))
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    wakes: Vec<EventFd>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        guard: MutexGuard<'a, State>,
        blocked: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.changed
            .wait_while(guard, blocked)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, queue: usize) {
        // Fails only when the counter is full, and then the reader is awake anyway.
        let _ = self.wakes[queue].write(1);
    }

    fn wake_all(&self) {
        (0..self.wakes.len()).for_each(|queue| self.wake(queue));
    }
}

/// The engine's end.
pub struct MemFrontend {
    shared: Arc<Shared>,
    qid: u16,
    depth: u16,
    in_engine: u16,
}

/// The test's end; clone it for more threads.
#[derive(Clone)]
pub struct MemClient {
    shared: Arc<Shared>,
}

/// A request that was submitted.
#[must_use = "wait for the answer"]
pub struct Pending {
    shared: Arc<Shared>,
    ticket: u64,
}

/// A frontend of `depth` tags and its client.
///
/// # Errors
/// From eventfd.
pub fn pair(depth: u16) -> io::Result<(MemFrontend, MemClient)> {
    let (mut frontends, client) = group(1, depth)?;
    let frontend = frontends.pop().expect("a group of one has a member");
    Ok((frontend, client))
}

/// Frontends for `queues` queues of `depth` tags each and their common client, whose requests take turns among the
/// queues.
///
/// # Errors
/// From eventfd.
pub fn group(queues: u16, depth: u16) -> io::Result<(Vec<MemFrontend>, MemClient)> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let queue = |_| MemQueue {
        slots: (0..depth).map(|_| None).collect(),
        arrived: VecDeque::new(),
        primed: false,
    };
    let wake = |_| EventFd::from_flags(flags).map_err(io::Error::from);
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            queues: (0..queues).map(queue).collect(),
            done: Vec::new(),
            next_ticket: 0,
            stopping: false,
            gone: false,
        }),
        changed: Condvar::new(),
        wakes: (0..queues).map(wake).collect::<io::Result<_>>()?,
    });
    let frontend = |qid| MemFrontend {
        shared: shared.clone(),
        qid,
        depth,
        in_engine: 0,
    };
    let frontends = (0..queues).map(frontend).collect();
    Ok((frontends, MemClient { shared }))
}

impl MemClient {
    /// Submits a request; waits for a free tag. `data` is what a write carries, and is ignored otherwise.
    ///
    /// # Panics
    /// If the data of a write has not the length of the request.
    pub fn submit(&self, request: Request, data: Vec<u8>) -> Pending {
        let data = match request.op {
            Op::Write => {
                assert_eq!(data.len(), request.data_bytes() as usize);
                data
            }
            // Not zeroes, so that bytes an engine forgot to fill are seen.
            _ => vec![0xa5; request.data_bytes() as usize],
        };
        let free = |s: &State, queue: usize| s.queues[queue].slots.iter().position(Option::is_none);
        let queues = self.shared.wakes.len();
        let any_free = |s: &State| (0..queues).any(|queue| free(s, queue).is_some());
        let mut state = self.shared.wait(self.shared.lock(), |s| {
            !(s.stopping || s.gone || s.started() && any_free(s))
        });
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        // Turns start at another queue each time; a full queue passes the turn on.
        let place = (0..queues)
            .map(|turn| (ticket as usize + turn) % queues)
            .find_map(|queue| Some((queue, free(&state, queue)?)));
        match place {
            Some((queue, tag)) if !state.stopping && !state.gone => {
                state.queues[queue].slots[tag] = Some(Slot {
                    request,
                    data,
                    ticket,
                    with_engine: false,
                });
                state.queues[queue].arrived.push_back(tag as u16);
                self.shared.wake(queue);
            }
            _ => state.done.push((ticket, Err(-libc::ENODEV))),
        }
        Pending {
            shared: self.shared.clone(),
            ticket,
        }
    }

    /// Reads sectors and waits.
    ///
    /// # Errors
    /// The negative errno that the engine committed.
    pub fn read(&self, lba: u64, sectors: u32) -> Result<Vec<u8>, i32> {
        self.submit(request(Op::Read, lba, sectors, false), Vec::new())
            .wait()
    }

    /// Writes whole sectors and waits.
    ///
    /// # Errors
    /// The negative errno that the engine committed.
    pub fn write(&self, lba: u64, data: Vec<u8>, fua: bool) -> Result<(), i32> {
        let sectors = (data.len() >> 9) as u32;
        self.submit(request(Op::Write, lba, sectors, fua), data)
            .wait()
            .map(|_| ())
    }

    /// Flushes and waits.
    ///
    /// # Errors
    /// The negative errno that the engine committed.
    pub fn flush(&self) -> Result<(), i32> {
        self.submit(request(Op::Flush, 0, 0, false), Vec::new())
            .wait()
            .map(|_| ())
    }

    /// Discards or zeroes a range and waits.
    ///
    /// # Errors
    /// The negative errno that the engine committed.
    pub fn range(&self, op: Op, lba: u64, sectors: u32) -> Result<(), i32> {
        self.submit(request(op, lba, sectors, false), Vec::new())
            .wait()
            .map(|_| ())
    }

    /// Like STOP_DEV: later requests fail, those in flight are answered first; waits for them.
    pub fn stop(&self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        self.shared.changed.notify_all();
        drop(
            self.shared
                .wait(state, |s| !(s.gone || s.queues.iter().all(MemQueue::idle))),
        );
        self.shared.wake_all();
    }
}

fn request(op: Op, lba: u64, sectors: u32, fua: bool) -> Request {
    Request {
        op,
        lba,
        sectors,
        fua,
    }
}

impl Pending {
    /// Waits for the answer: the bytes of a read, nothing for others.
    ///
    /// # Errors
    /// The negative errno that the engine committed; -EIO for a short result, -ENODEV if the engine is gone.
    pub fn wait(self) -> Result<Vec<u8>, i32> {
        let ticket = self.ticket;
        let find = |s: &State| s.done.iter().position(|(t, _)| *t == ticket);
        let mut state = self
            .shared
            .wait(self.shared.lock(), |s| find(s).is_none() && !s.gone);
        match find(&state) {
            Some(at) => state.done.swap_remove(at).1,
            None => Err(-libc::ENODEV),
        }
    }

    /// Whether the answer is there.
    pub fn is_done(&self) -> bool {
        let state = self.shared.lock();
        state.done.iter().any(|(t, _)| *t == self.ticket)
    }
}

impl MemFrontend {
    /// Runs `copy` on the data of a request with the engine, after checking the direction.
    fn with_data(
        &self,
        qid: u16,
        tag: u16,
        op: Op,
        copy: impl FnOnce(&mut [u8]) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let mut state = self.shared.lock();
        match state.slot(qid, tag) {
            Some(Some(slot)) if slot.with_engine => {
                if slot.request.op != op {
                    return Err(-libc::EINVAL);
                }
                copy(&mut slot.data)
            }
            _ => panic!("copy for tag {tag} of queue {qid}, which is not with the engine"),
        }
    }
}

impl Frontend for MemFrontend {
    fn depth(&self) -> u16 {
        self.depth
    }

    fn auto_buf(&self) -> bool {
        false
    }

    fn prime(&mut self, _sq: &mut SubmissionQueue<'_>) {
        let mut state = self.shared.lock();
        let queue = &mut state.queues[usize::from(self.qid)];
        assert!(!queue.primed, "primed twice");
        queue.primed = true;
        self.shared.changed.notify_all();
    }

    fn flush(&mut self, _sq: &mut SubmissionQueue<'_>) -> usize {
        0
    }

    fn on_cqe(&mut self, user_data: u64, res: i32) -> Event {
        panic!("completion {user_data:#x} ({res}) for a frontend that submits nothing")
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.wakes[usize::from(self.qid)].as_fd())
    }

    fn next_request(&mut self) -> Option<Fetched> {
        // Drained before looking, so that a request which arrives afterwards wakes again.
        let _ = self.shared.wakes[usize::from(self.qid)].read();
        let mut state = self.shared.lock();
        let queue = &mut state.queues[usize::from(self.qid)];
        let tag = queue.arrived.pop_front()?;
        let slot = queue.slots[usize::from(tag)]
            .as_mut()
            .expect("an arrived tag has a slot");
        slot.with_engine = true;
        self.in_engine += 1;
        Some(Fetched {
            tag,
            request: Ok(slot.request),
            auto_buf: false,
        })
    }

    fn commit(&mut self, _sq: &mut SubmissionQueue<'_>, tag: u16, result: i32) {
        let mut state = self.shared.lock();
        let slot = match state.slot(self.qid, tag).map(Option::take) {
            Some(Some(slot)) if slot.with_engine => slot,
            _ => panic!("commit of tag {tag}, which is not with the engine"),
        };
        self.in_engine -= 1;
        let answer = match result {
            errno if errno < 0 => Err(errno),
            length if length == slot.request.success() => Ok(match slot.request.op {
                Op::Read => slot.data,
                _ => Vec::new(),
            }),
            _ => Err(-libc::EIO),
        };
        state.done.push((slot.ticket, answer));
        self.shared.changed.notify_all();
    }

    fn copy_in<'a>(
        &mut self,
        qid: u16,
        tag: u16,
        offset: u32,
        dst: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Result<(), i32> {
        self.with_data(qid, tag, Op::Write, |data| {
            let mut at = offset as usize;
            for span in dst {
                let from = data.get(at..at + span.len()).ok_or(-libc::EINVAL)?;
                span.copy_from_slice(from);
                at += span.len();
            }
            Ok(())
        })
    }

    fn copy_out<'a>(
        &mut self,
        qid: u16,
        tag: u16,
        offset: u32,
        src: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), i32> {
        self.with_data(qid, tag, Op::Read, |data| {
            let mut at = offset as usize;
            for span in src {
                let to = data.get_mut(at..at + span.len()).ok_or(-libc::EINVAL)?;
                to.copy_from_slice(span);
                at += span.len();
            }
            Ok(())
        })
    }

    fn in_engine(&self) -> u16 {
        self.in_engine
    }

    fn stopped(&self) -> bool {
        let state = self.shared.lock();
        state.stopping && state.queues[usize::from(self.qid)].idle()
    }

    fn fault(&self) -> Option<i32> {
        None
    }
}

impl Drop for MemFrontend {
    fn drop(&mut self) {
        self.shared.lock().gone = true;
        self.shared.changed.notify_all();
    }
}
