//! What the operations do with the sums that [`crate::fold`] hands over, one type per operation.
//!
//! A parity that a type does not have (`P` or `Q` false) is an empty slice and never looked at.

use crate::fold::{self, Block, Lane, Sink};
use crate::job::Mismatch;
use crate::locate::Tracker;

/// Encode: the sums are the parity.
pub(crate) struct Put<'a, const P: bool, const Q: bool> {
    pub p: &'a mut [u8],
    pub q: &'a mut [u8],
    /// Store past the caches.
    pub streaming: bool,
}

impl<const HAS_P: bool, const HAS_Q: bool> Sink for Put<'_, HAS_P, HAS_Q> {
    const P: bool = HAS_P;
    const Q: bool = HAS_Q;

    #[inline(always)]
    fn take<L: Lane, const W: usize, const AHEAD: usize>(
        &mut self,
        lane: L,
        at: usize,
        len: usize,
        p: Block<L, W>,
        q: Block<L, W>,
    ) -> bool {
        if HAS_P {
            fold::put(lane, p, self.p, at, len, self.streaming);
        }
        if HAS_Q {
            fold::put(lane, q, self.q, at, len, self.streaming);
        }
        true
    }
}

/// Update: the sums are the difference to the parity.
pub(crate) struct Add<'a, const P: bool, const Q: bool> {
    pub p: &'a mut [u8],
    pub q: &'a mut [u8],
    /// Store past the caches.
    pub streaming: bool,
}

impl<const HAS_P: bool, const HAS_Q: bool> Sink for Add<'_, HAS_P, HAS_Q> {
    const P: bool = HAS_P;
    const Q: bool = HAS_Q;

    #[inline(always)]
    fn take<L: Lane, const W: usize, const AHEAD: usize>(
        &mut self,
        lane: L,
        at: usize,
        len: usize,
        p: Block<L, W>,
        q: Block<L, W>,
    ) -> bool {
        // All is read before anything is written: on whole pages P and Q differ in no address bit
        // that a processor compares first, and a load seems to depend on the store before it.
        let (mut p, mut q) = (p, q);
        if HAS_P {
            p = fold::add(lane, p, fold::load::<L, W, AHEAD>(lane, self.p, at, len));
        }
        if HAS_Q {
            q = fold::add(lane, q, fold::load::<L, W, AHEAD>(lane, self.q, at, len));
        }
        if HAS_P {
            fold::put(lane, p, self.p, at, len, self.streaming);
        }
        if HAS_Q {
            fold::put(lane, q, self.q, at, len, self.streaming);
        }
        true
    }
}

/// Recover one chunk from P.
pub(crate) struct FromP<'a> {
    pub p: &'a [u8],
    pub out: &'a mut [u8],
    /// Store past the caches.
    pub streaming: bool,
}

impl Sink for FromP<'_> {
    const P: bool = true;
    const Q: bool = false;

    #[inline(always)]
    fn take<L: Lane, const W: usize, const AHEAD: usize>(
        &mut self,
        lane: L,
        at: usize,
        len: usize,
        p: Block<L, W>,
        _: Block<L, W>,
    ) -> bool {
        let p = fold::add(lane, p, fold::load::<L, W, AHEAD>(lane, self.p, at, len));
        fold::put(lane, p, self.out, at, len, self.streaming);
        true
    }
}

/// Recover one chunk from Q.
pub(crate) struct FromQ<'a> {
    pub q: &'a [u8],
    pub out: &'a mut [u8],
    /// As in [`crate::coeff::Solution::FromQ`].
    pub scale: u8,
    /// Store past the caches.
    pub streaming: bool,
}

impl Sink for FromQ<'_> {
    const P: bool = false;
    const Q: bool = true;

    #[inline(always)]
    fn take<L: Lane, const W: usize, const AHEAD: usize>(
        &mut self,
        lane: L,
        at: usize,
        len: usize,
        _: Block<L, W>,
        q: Block<L, W>,
    ) -> bool {
        let q = fold::add(lane, q, fold::load::<L, W, AHEAD>(lane, self.q, at, len));
        fold::put(
            lane,
            fold::scale(lane, self.scale, q),
            self.out,
            at,
            len,
            self.streaming,
        );
        true
    }
}

/// Recover two chunks from P and Q.
pub(crate) struct FromBoth<'a> {
    pub p: &'a [u8],
    pub q: &'a [u8],
    pub x: &'a mut [u8],
    pub y: &'a mut [u8],
    /// As in [`crate::coeff::Solution::FromBoth`].
    pub a: u8,
    /// Likewise.
    pub b: u8,
    /// Store past the caches.
    pub streaming: bool,
}

impl Sink for FromBoth<'_> {
    const P: bool = true;
    const Q: bool = true;

    #[inline(always)]
    fn take<L: Lane, const W: usize, const AHEAD: usize>(
        &mut self,
        lane: L,
        at: usize,
        len: usize,
        p: Block<L, W>,
        q: Block<L, W>,
    ) -> bool {
        let p = fold::add(lane, p, fold::load::<L, W, AHEAD>(lane, self.p, at, len));
        let q = fold::add(lane, q, fold::load::<L, W, AHEAD>(lane, self.q, at, len));
        let x = fold::add(
            lane,
            fold::scale(lane, self.a, p),
            fold::scale(lane, self.b, q),
        );
        fold::put(lane, x, self.x, at, len, self.streaming);
        fold::put(lane, fold::add(lane, p, x), self.y, at, len, self.streaming);
        true
    }
}

/// Check: the sums should be the parity.
pub(crate) struct Compare<'a, const P: bool, const Q: bool> {
    pub p: &'a [u8],
    pub q: &'a [u8],
    pub mismatch: Mismatch,
}

impl<const HAS_P: bool, const HAS_Q: bool> Sink for Compare<'_, HAS_P, HAS_Q> {
    const P: bool = HAS_P;
    const Q: bool = HAS_Q;

    #[inline(always)]
    fn take<L: Lane, const W: usize, const AHEAD: usize>(
        &mut self,
        lane: L,
        at: usize,
        len: usize,
        p: Block<L, W>,
        q: Block<L, W>,
    ) -> bool {
        if HAS_P {
            let difference = fold::add(lane, p, fold::load::<L, W, AHEAD>(lane, self.p, at, len));
            self.mismatch.p |= !fold::is_zero(lane, difference);
        }
        if HAS_Q {
            let difference = fold::add(lane, q, fold::load::<L, W, AHEAD>(lane, self.q, at, len));
            self.mismatch.q |= !fold::is_zero(lane, difference);
        }
        // Nothing more to learn once everything that is compared has differed.
        self.mismatch != Mismatch { p: HAS_P, q: HAS_Q }
    }
}

/// Locate: as [`Compare`], but to the end, and what differs is looked at byte by byte.
pub(crate) struct Seek<'a, 'b, const P: bool, const Q: bool> {
    pub p: &'a [u8],
    pub q: &'a [u8],
    pub tracker: &'a mut Tracker<'b>,
}

impl<const HAS_P: bool, const HAS_Q: bool> Sink for Seek<'_, '_, HAS_P, HAS_Q> {
    const P: bool = HAS_P;
    const Q: bool = HAS_Q;

    #[inline(always)]
    fn take<L: Lane, const W: usize, const AHEAD: usize>(
        &mut self,
        lane: L,
        at: usize,
        len: usize,
        p: Block<L, W>,
        q: Block<L, W>,
    ) -> bool {
        let zero = [lane.zero(); W];
        let dp = match HAS_P {
            true => fold::add(lane, p, fold::load::<L, W, AHEAD>(lane, self.p, at, len)),
            false => zero,
        };
        let dq = match HAS_Q {
            true => fold::add(lane, q, fold::load::<L, W, AHEAD>(lane, self.q, at, len)),
            false => zero,
        };
        if !(fold::is_zero(lane, dp) && fold::is_zero(lane, dq)) {
            let (mut p, mut q) = ([0; fold::MAX_BLOCK], [0; fold::MAX_BLOCK]);
            fold::store(lane, dp, &mut p, 0, len);
            fold::store(lane, dq, &mut q, 0, len);
            self.tracker.bytes(at, &p[..len], &q[..len]);
        }
        true
    }
}
