//! Which queue works on which bands: one atomic word per hashed band, shared by all queues of an array.
//!
//! A queue that wants to change a band (or to decode from it) takes the band's word. If the word is free it owns it; if it
//! owns it already it counts up; if another queue owns it, the caller sends the work there. Nobody ever waits. Two bands
//! that share a word are merely worked on by the same queue at the same time.
//!
//! Only the owner may count up or release, so these need no retry loop; taking a free word is one compare-and-swap.

use std::sync::atomic::{AtomicU32, Ordering};

const COUNT: u32 = 0xffff;

/// The table of words. Word: 0 = free, else (queue + 1) << 16 | number of bands held under it.
#[derive(Debug)]
pub struct Owners {
    words: Vec<AtomicU32>,
}

impl Owners {
    /// A table of at least `size` words (rounded up to a power of two).
    pub fn new(size: usize) -> Owners {
        Owners {
            words: (0..size.next_power_of_two())
                .map(|_| AtomicU32::new(0))
                .collect(),
        }
    }

    fn word(&self, band: u64) -> &AtomicU32 {
        &self.words[band as usize & (self.words.len() - 1)]
    }

    /// Takes the band for `queue`. `Err(other)` names the queue that has it.
    pub fn take(&self, band: u64, queue: u16) -> Result<(), u16> {
        let word = self.word(band);
        let mine = (u32::from(queue) + 1) << 16;
        let mut seen = word.load(Ordering::Acquire);
        loop {
            if seen == 0 {
                // Acquire: what the last owner did to the band happened before this.
                match word.compare_exchange(0, mine | 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Ok(()),
                    Err(now) => seen = now,
                }
            } else if seen & !COUNT == mine {
                assert!(seen & COUNT < COUNT, "too many bands under one word");
                word.store(seen + 1, Ordering::Relaxed);
                return Ok(());
            } else {
                return Err((seen >> 16) as u16 - 1);
            }
        }
    }

    /// Gives the band back.
    ///
    /// # Panics
    /// If `queue` does not own it.
    pub fn release(&self, band: u64, queue: u16) {
        let word = self.word(band);
        let seen = word.load(Ordering::Relaxed);
        assert_eq!(seen >> 16, u32::from(queue) + 1, "released by its owner");
        let next = if seen & COUNT == 1 { 0 } else { seen - 1 };
        // Release: pairs with the acquire of the next owner.
        word.store(next, Ordering::Release);
    }

    /// Whether no band is owned by anyone.
    pub fn all_free(&self) -> bool {
        self.words.iter().all(|w| w.load(Ordering::Acquire) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn one_owner_counts_others_are_told_who_it_is() {
        let t = Owners::new(4);
        assert_eq!(t.take(1, 0), Ok(()));
        assert_eq!(t.take(5, 0), Ok(())); // same word
        assert_eq!(t.take(1, 3), Err(0));
        assert_eq!(t.take(2, 3), Ok(()));
        t.release(1, 0);
        assert_eq!(t.take(1, 3), Err(0));
        t.release(5, 0);
        assert_eq!(t.take(1, 3), Ok(()));
        assert!(!t.all_free());
        t.release(1, 3);
        t.release(2, 3);
        assert!(t.all_free());
    }

    #[test]
    fn two_threads_never_own_one_band_together() {
        let t = Arc::new(Owners::new(2));
        let inside = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..2u16)
            .map(|q| {
                let (t, inside) = (t.clone(), inside.clone());
                std::thread::spawn(move || {
                    let mut won = 0;
                    for _ in 0..200_000 {
                        if t.take(0, q).is_ok() {
                            assert!(!inside.swap(true, Ordering::Relaxed));
                            inside.store(false, Ordering::Relaxed);
                            t.release(0, q);
                            won += 1;
                        }
                    }
                    won
                })
            })
            .collect();
        let won: Vec<u32> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        // Which thread wins how often is the scheduler's business; that somebody did is ours.
        assert!(won.iter().sum::<u32>() > 0);
        assert!(t.all_free());
    }
}
