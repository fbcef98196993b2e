//! Where P and Q disagree with the data, and which member is to blame.
//!
//! Write `dp` for "stored P plus the P of the data" at one byte and `dq` likewise. If exactly one
//! chunk holds a wrong byte, off by `e`, then `dp = e, dq = 0` for P, `dp = 0, dq = e` for Q, and
//! `dp = e, dq = 2^z e` for the data chunk with exponent z. So z is the logarithm of `dq / dp`.
//! All wrong bytes of one granule must tell the same story, or nobody is named. Two wrong chunks
//! can look like a third one; with P and Q alone nothing can tell.
//!
//! Owns no memory. Costs what [`Engine::check`] costs over the whole length, since it does not end
//! at the first difference, and a nanosecond or so for each byte of a block that differs.

use crate::buf::{Arena, BufRange};
use crate::engine::Engine;
use crate::gf;
use crate::job::{Mismatch, Source};

/// The granule that storage speaks of: a sector of 512 bytes.
pub const SECTOR: usize = 512;

/// Who is wrong, if exactly one member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// One data chunk.
    Data {
        /// Its place in the list of data given.
        index: usize,
        /// Its exponent.
        exp: u8,
    },
    /// P.
    P,
    /// Q.
    Q,
    /// More than one member is wrong, or there is only one parity to judge by.
    Unknown,
}

/// One granule with a difference in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First byte of the granule.
    pub off: usize,
    /// Bytes in the granule; fewer than asked for only at the end.
    pub len: usize,
    /// Which parities disagree here.
    pub mismatch: Mismatch,
    /// First byte that differs, counted from the start of the chunk.
    pub first: usize,
    /// Last byte that differs, likewise.
    pub last: usize,
    /// Who is wrong in this granule.
    pub wrong: Wrong,
}

/// All differences together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Which parities disagree anywhere.
    pub mismatch: Mismatch,
    /// Granules with a difference.
    pub granules: usize,
    /// First and last byte that differ; `None` if nothing does.
    pub range: Option<(usize, usize)>,
    /// Who is wrong, if it is the same member in all granules; `None` if nothing differs.
    pub wrong: Option<Wrong>,
}

impl Findings {
    /// Nothing differs.
    pub const NONE: Findings = Findings {
        mismatch: Mismatch { p: false, q: false },
        granules: 0,
        range: None,
        wrong: None,
    };

    /// Take in one more place, which lies behind all before.
    pub(crate) fn add(&mut self, place: &Place) {
        self.mismatch.p |= place.mismatch.p;
        self.mismatch.q |= place.mismatch.q;
        self.granules += 1;
        let first = self.range.map_or(place.first, |(first, _)| first);
        self.range = Some((first, place.last));
        self.wrong = Some(match self.wrong {
            None => place.wrong,
            Some(wrong) if wrong == place.wrong => wrong,
            Some(_) => Wrong::Unknown,
        });
    }
}

/// What is known of the granule at hand.
#[derive(Clone, Copy)]
struct Open {
    off: usize,
    mismatch: Mismatch,
    first: usize,
    last: usize,
    story: Story,
}

/// What the wrong bytes of a granule have told so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Story {
    P,
    Q,
    Data { exp: u8 },
    Contradiction,
}

/// Takes differences byte by byte in ascending order and hands over each granule once.
pub(crate) struct Tracker<'a> {
    granule: usize,
    len: usize,
    /// Whether both parities are compared; one alone accuses nobody.
    both: bool,
    /// Place in the caller's list by exponent.
    exps: &'a dyn Fn(u8) -> Option<usize>,
    each: &'a mut dyn FnMut(&Place),
    open: Option<Open>,
    findings: Findings,
}

impl<'a> Tracker<'a> {
    pub fn new(
        granule: usize,
        len: usize,
        both: bool,
        exps: &'a dyn Fn(u8) -> Option<usize>,
        each: &'a mut dyn FnMut(&Place),
    ) -> Tracker<'a> {
        Tracker {
            granule,
            len,
            both,
            exps,
            each,
            open: None,
            findings: Findings::NONE,
        }
    }

    /// The differences of the bytes from `at` on; where neither has one, nothing happens.
    pub fn bytes(&mut self, at: usize, dp: &[u8], dq: &[u8]) {
        for (i, (&dp, &dq)) in dp.iter().zip(dq).enumerate() {
            if dp | dq != 0 {
                self.byte(at + i, dp, dq);
            }
        }
    }

    fn byte(&mut self, at: usize, dp: u8, dq: u8) {
        let story = match (dp, dq) {
            (_, 0) => Story::P,
            (0, _) => Story::Q,
            (dp, dq) => Story::Data {
                exp: gf::log(gf::mul(dq, gf::inverse(dp))),
            },
        };
        match &mut self.open {
            Some(open) if at - open.off < self.granule => {
                open.last = at;
                open.mismatch.p |= dp != 0;
                open.mismatch.q |= dq != 0;
                if open.story != story {
                    open.story = Story::Contradiction;
                }
            }
            _ => {
                self.close();
                self.open = Some(Open {
                    off: at - at % self.granule,
                    mismatch: Mismatch {
                        p: dp != 0,
                        q: dq != 0,
                    },
                    first: at,
                    last: at,
                    story,
                });
            }
        }
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let wrong = match open.story {
            _ if !self.both => Wrong::Unknown,
            Story::P => Wrong::P,
            Story::Q => Wrong::Q,
            Story::Data { exp } => match (self.exps)(exp) {
                Some(index) => Wrong::Data { index, exp },
                None => Wrong::Unknown,
            },
            Story::Contradiction => Wrong::Unknown,
        };
        let place = Place {
            off: open.off,
            len: self.granule.min(self.len - open.off),
            mismatch: open.mismatch,
            first: open.first,
            last: open.last,
            wrong,
        };
        self.findings.add(&place);
        (self.each)(&place);
    }

    /// Hand over the last granule, and sum up.
    pub fn finish(mut self) -> Findings {
        self.close();
        self.findings
    }
}

impl Arena {
    /// [`Engine::locate`] on ranges of this arena; `data` holds ranges and exponents.
    ///
    /// # Panics
    /// As [`Engine::locate`]; and if a range is not within the arena, or there are more than 255
    /// data.
    pub fn locate(
        &self,
        engine: &Engine,
        data: &[(BufRange, u8)],
        p: Option<BufRange>,
        q: Option<BufRange>,
        granule: usize,
        each: &mut dyn FnMut(&Place),
    ) -> Findings {
        const MOST: usize = gf::ORDER;
        let mut sources = [Source { data: &[], exp: 0 }; MOST];
        assert!(data.len() <= MOST, "{} operands", data.len());
        for (source, (range, exp)) in sources.iter_mut().zip(data) {
            *source = Source {
                data: self.bytes(*range),
                exp: *exp,
            };
        }
        let (p, q) = (p.map(|p| self.bytes(p)), q.map(|q| self.bytes(q)));
        engine.locate(&sources[..data.len()], p, q, granule, each)
    }
}
