//! One thread per lane that does what must not be done on an engine's thread: opens the lane, closes it when it has failed or
//! the engine ends, opens it again after a pause. Sleeps otherwise.
//!
//! The lane itself moves: to the engine in a [`Note`], back in an [`Order`]. So at every moment one thread has it, and the
//! jobs in flight on a failed lane are done again only after its close has succeeded.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parity_kernels::Memory;
use parity_kernels::offload::{Lane, LaneError, Opener};

use super::status::{LaneState, Shared};

/// How long to wait before a lane is tried again: at first, and at most. Doubles from one to the other.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// After the first failure.
    pub first: Duration,
    /// At most.
    pub most: Duration,
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses {
            first: Duration::from_secs(1),
            most: Duration::from_secs(60),
        }
    }
}

/// From the engine.
pub enum Order {
    /// This lane has failed; close it, say so, open another.
    Lost(Box<dyn Lane>, LaneError),
    /// The engine ends, with this lane if it has one.
    End(Option<Box<dyn Lane>>),
}

/// To the engine.
pub enum Note {
    /// Use this lane.
    Opened(Box<dyn Lane>),
    /// The lost lane is closed: its jobs may be done again.
    Closed,
    /// The lost lane could not be closed: its jobs must stay as they are.
    Stuck,
}

/// The engine's end.
pub struct Link {
    orders: Sender<Order>,
    notes: Receiver<Note>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts the thread; it begins to open the lane. `wake` makes the engine look for notes.
    ///
    /// # Errors
    /// What the kernel says to one thread more.
    pub fn start(
        opener: Arc<dyn Opener>,
        memory: Arc<Memory>,
        shared: Arc<Shared>,
        pauses: Pauses,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Link> {
        let (orders, order_inbox) = bounded(4);
        let (note_outbox, notes) = bounded(4);
        let supervisor = Supervisor {
            opener,
            memory,
            shared,
            pauses,
            orders: order_inbox,
            notes: note_outbox,
            wake: Box::new(wake),
        };
        let thread = std::thread::Builder::new()
            .name("raidd-lane".into())
            .spawn(move || supervisor.run())?;
        Ok(Link {
            orders,
            notes,
            thread: Some(thread),
        })
    }

    /// The next note, if there is one.
    pub fn note(&self) -> Option<Note> {
        self.notes.try_recv().ok()
    }

    /// Gives a failed lane away.
    pub fn lost(&self, lane: Box<dyn Lane>, error: LaneError) {
        if let Err(back) = self.orders.send(Order::Lost(lane, error)) {
            // Only if that thread has panicked. The lane's jobs then wait for good, which is safe.
            tracing::error!("nobody is left to close a failed GPU lane");
            std::mem::forget(back);
        }
    }

    /// Ends the lane. Waits for `patience` at most; a device that takes longer is left to the thread, which keeps the
    /// memory.
    pub fn end(mut self, lane: Option<Box<dyn Lane>>, patience: Duration) {
        let until = Instant::now() + patience;
        let mut given = self.orders.send(Order::End(lane)).is_ok();
        while given {
            match self.notes.recv_deadline(until) {
                // It was opened while we were on the way out.
                Ok(Note::Opened(lane)) => {
                    given = self.orders.send(Order::End(Some(lane))).is_ok();
                }
                Ok(Note::Closed | Note::Stuck) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if let Some(thread) = self.thread.take()
                        && thread.join().is_err()
                    {
                        tracing::error!("the thread of a GPU lane panicked");
                    }
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!("a GPU lane is not closed after {patience:?}; its memory stays");
                    return;
                }
            }
        }
    }
}

struct Supervisor {
    opener: Arc<dyn Opener>,
    memory: Arc<Memory>,
    shared: Arc<Shared>,
    pauses: Pauses,
    orders: Receiver<Order>,
    notes: Sender<Note>,
    wake: Box<dyn Fn() + Send>,
}

/// The engine is gone.
struct Over;

impl Supervisor {
    fn run(self) {
        // Requests wait for the close of a lost lane.
        crate::engine::mark_io_flusher();
        let mut pause = self.pauses.first;
        let mut opens = 0u64;
        let mut said = String::new();
        loop {
            match self.opener.open(self.memory.clone()) {
                Ok(lane) => {
                    let cost = lane.cost();
                    let again = if opens > 0 { " again" } else { "" };
                    tracing::info!(
                        caller_ns = cost.caller_ns,
                        latency_ns = cost.latency_ns,
                        ns_per_byte = cost.ns_per_byte,
                        "GPU lane to {} is open{again}",
                        self.opener.name()
                    );
                    opens += 1;
                    said.clear();
                    self.shared.set(LaneState::Active, None);
                    let since = Instant::now();
                    if let Err(Over) = self.lend(lane) {
                        break;
                    }
                    if since.elapsed() >= self.pauses.most {
                        pause = self.pauses.first;
                    }
                }
                Err(error) => {
                    let reason = error.to_string();
                    if reason != said {
                        tracing::warn!(
                            "GPU lane to {}: {reason}; parity is computed on the CPU, and the lane tried again; {}",
                            self.opener.name(),
                            crate::doctor::lane_advice(&reason)
                        );
                        said.clone_from(&reason);
                    }
                    self.shared.not_opened(reason);
                }
            }
            match self.orders.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(self.pauses.most),
                Ok(Order::End(lane)) => {
                    lane.into_iter().for_each(|lane| self.close(lane));
                    break;
                }
                Ok(Order::Lost(..)) => unreachable!("the engine has no lane"),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if self.shared.read().state != LaneState::Stuck {
            self.shared.set(LaneState::Closed, None);
        }
    }

    /// Gives the lane to the engine and waits until it comes back.
    fn lend(&self, lane: Box<dyn Lane>) -> Result<(), Over> {
        if let Err(back) = self.notes.send(Note::Opened(lane)) {
            if let Note::Opened(lane) = back.0 {
                self.close(lane);
            }
            return Err(Over);
        }
        (self.wake)();
        loop {
            match self.orders.recv() {
                Ok(Order::Lost(lane, error)) => return self.lost(lane, error),
                Ok(Order::End(Some(lane))) => {
                    self.close(lane);
                    return Err(Over);
                }
                // The note is still on its way; the engine answers it.
                Ok(Order::End(None)) => {}
                Err(_) => return Err(Over),
            }
        }
    }

    fn lost(&self, lane: Box<dyn Lane>, error: LaneError) -> Result<(), Over> {
        let (name, jobs) = (self.opener.name(), lane.in_flight());
        tracing::warn!(
            "GPU lane to {name} is lost: {error}; {jobs} jobs are done again on the CPU"
        );
        self.shared.set(LaneState::Lost, Some(error.to_string()));
        match lane.close() {
            Ok(()) => {
                let _ = self.notes.send(Note::Closed);
                (self.wake)();
                Ok(())
            }
            Err(close) => {
                tracing::error!(
                    "GPU lane to {name}: {close}; the device may still write, so {jobs} jobs can never be done again, \
                     and the requests behind them wait until raidd ends"
                );
                let reason = format!("{error}; and then: {close}; {jobs} jobs wait for good");
                self.shared.set(LaneState::Stuck, Some(reason));
                // For good: the device may still reach it.
                std::mem::forget(self.memory.clone());
                let _ = self.notes.send(Note::Stuck);
                (self.wake)();
                // Nothing more to do here but to know when the engine is gone.
                while self
                    .orders
                    .recv()
                    .is_ok_and(|o| !matches!(o, Order::End(_)))
                {}
                Err(Over)
            }
        }
    }

    fn close(&self, lane: Box<dyn Lane>) {
        if let Err(error) = lane.close() {
            tracing::error!(
                "GPU lane to {}: {error}; its memory stays",
                self.opener.name()
            );
            std::mem::forget(self.memory.clone());
        }
    }
}
