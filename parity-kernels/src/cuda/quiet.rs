//! Who may call the driver when. Some calls (to give memory back, for one) wait for all that runs in the context, kernels that stay
//! included, and let no other thread into the driver meanwhile. A thread that is kept out cannot end the kernel that the
//! call waits for, and both would wait for good.
//!
//! So who makes such a call takes [`Quiet::stillness`]; a lane takes a [`Quiet::turn`] to call the driver while its kernel may
//! run, and where it gets none, it ends the kernel, which needs no call. To ask whether somebody waits costs one load.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// See the module. One for each context.
#[derive(Default)]
pub(crate) struct Quiet {
    /// Threads that have stillness, or wait for it.
    waiting: AtomicU32,
    calls: RwLock<()>,
}

/// As long as this lives, no lane is in the driver while its kernel runs.
pub(crate) struct Stillness<'a> {
    quiet: &'a Quiet,
    _calls: RwLockWriteGuard<'a, ()>,
}

impl Drop for Stillness<'_> {
    fn drop(&mut self) {
        self.quiet.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Quiet {
    /// For a call that may wait for kernels. Waits for those who have a turn; not to be taken by a thread that has one, or has
    /// this already.
    pub(crate) fn stillness(&self) -> Stillness<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Stillness {
            quiet: self,
            _calls: self.calls.write().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Whether somebody waits for the kernels to end.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Leave to call the driver while a kernel of this thread's may run. `None`: not now. Does not wait.
    pub(crate) fn turn(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.is_wanted() {
            return None;
        }
        match self.calls.try_read() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_keeps_others_out() {
        let quiet = Quiet::default();
        let (first, second) = (quiet.turn(), quiet.turn());
        assert!(first.is_some() && second.is_some(), "turns are shared");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(quiet.stillness()));
            while !quiet.is_wanted() {
                std::thread::yield_now();
            }
            assert!(quiet.turn().is_none(), "no new turn while one waits");
            assert!(!waits.is_finished(), "a turn is waited for");
            drop((first, second));
        });
        assert!(!quiet.is_wanted() && quiet.turn().is_some());
        let still = quiet.stillness();
        assert!(quiet.is_wanted() && quiet.turn().is_none());
        drop(still);
        assert!(quiet.turn().is_some());
    }
}
