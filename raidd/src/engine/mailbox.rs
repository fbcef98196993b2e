//! Messages between engine threads: a bounded channel and an eventfd that is written only when the receiver sleeps.
//!
//! The capacity covers everything that can be under way at once (every queue limits what it forwards), so a sender never
//! waits; nothing is allocated after creation.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use nix::sys::eventfd::{EfdFlags, EventFd};
use raid_core::path::types::Msg;

use super::files::MemberChange;

struct Bell {
    fd: EventFd,
    sleeping: AtomicBool,
}

impl Bell {
    fn wake(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        self.ring();
    }

    fn ring(&self) {
        // Pairs with the fence in `may_sleep`: either we see it asleep, or it sees our message.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::AcqRel) && self.fd.write(1).is_err() {
            tracing::error!("an engine could not be woken");
        }
    }
}

/// The sending end; any number of clones.
#[derive(Clone)]
pub struct Postbox {
    sender: Sender<Msg>,
    changes: Sender<MemberChange>,
    bell: Arc<Bell>,
}

/// The receiving end, owned by one engine thread.
pub struct Mailbox {
    receiver: Receiver<Msg>,
    changes: Receiver<MemberChange>,
    bell: Arc<Bell>,
}

/// A mailbox for `capacity` messages.
///
/// # Errors
/// What eventfd says.
pub fn mailbox(capacity: usize) -> io::Result<(Postbox, Mailbox)> {
    let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(io::Error::from)?;
    let (sender, receiver) = crossbeam_channel::bounded(capacity);
    // A few in the life of an array.
    let (to_change, changes) = crossbeam_channel::unbounded();
    let bell = Arc::new(Bell {
        fd,
        sleeping: AtomicBool::new(false),
    });
    Ok((
        Postbox {
            sender,
            changes: to_change,
            bell: bell.clone(),
        },
        Mailbox {
            receiver,
            changes,
            bell,
        },
    ))
}

impl Postbox {
    /// Delivers a message and wakes the receiver if it sleeps. A receiver that is gone needs no messages.
    pub fn send(&self, msg: Msg) {
        let mut msg = msg;
        loop {
            match self.sender.try_send(msg) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => break,
                Err(TrySendError::Full(back)) => {
                    // Beyond what the queues' own limits allow; wait rather than lose it.
                    msg = back;
                    self.ring();
                    std::thread::yield_now();
                }
            }
        }
        self.ring();
    }

    /// Delivers a change of a slot's file. It may overtake messages and be overtaken by them, so that its sender waits for
    /// the answer where that matters. A receiver that is gone does not answer.
    pub fn change(&self, change: MemberChange) {
        let _ = self.changes.send(change);
        self.ring();
    }

    /// Wakes the receiver without a message.
    pub fn wake(&self) {
        self.bell.wake();
    }

    fn ring(&self) {
        self.bell.ring();
    }
}

impl Mailbox {
    /// The next message, if there is one.
    pub fn take(&self) -> Option<Msg> {
        self.receiver.try_recv().ok()
    }

    /// The next change of a slot's file, if there is one.
    pub fn take_change(&self) -> Option<MemberChange> {
        self.changes.try_recv().ok()
    }

    /// Whether neither a message nor a change is there.
    pub fn is_empty(&self) -> bool {
        self.receiver.is_empty() && self.changes.is_empty()
    }

    /// Something that wakes the receiver, for whoever has no message for it.
    pub fn waker(&self) -> impl Fn() + Send + 'static {
        let bell = self.bell.clone();
        move || bell.wake()
    }

    /// Announces sleep. False if a message came in between: then do not sleep.
    pub fn may_sleep(&self) -> bool {
        self.bell.sleeping.store(true, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.is_empty() {
            return true;
        }
        self.bell.sleeping.store(false, Ordering::Relaxed);
        false
    }

    /// Takes the announcement back.
    pub fn awake(&self) {
        self.bell.sleeping.store(false, Ordering::Relaxed);
    }

    /// What becomes readable when a sleeper is woken.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }
}
