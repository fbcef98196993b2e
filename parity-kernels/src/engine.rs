//! The choice of instruction set, made once at start, and the four operations.
//!
//! Owns the argument checks, so that an engine may rely on equal lengths. A call costs one match
//! on top of the arithmetic.

use crate::coeff::{self, Solution};
use crate::fold::{self, Sink, Term};
use crate::gf;
use crate::job::{Change, Hints, LostData, Mismatch, RecoverError, Source};
use crate::locate::{Findings, Place, Tracker};
#[cfg(target_arch = "aarch64")]
use crate::neon::Neon;
use crate::scalar;
use crate::sink::{Add, Compare, FromBoth, FromP, FromQ, Put, Seek};
use crate::swar::Swar;
#[cfg(target_arch = "x86_64")]
use crate::x86::{Avx2, Avx2Gfni, Avx512, Avx512Gfni, Ssse3};

/// An instruction set to do parity arithmetic with. Copy it freely; it holds no state.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    kind: Kind,
    hints: Hints,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Scalar,
    Swar,
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    #[cfg(target_arch = "x86_64")]
    Ssse3(Ssse3),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx2Gfni(Avx2Gfni),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx512Gfni(Avx512Gfni),
}

impl Engine {
    /// The name of every engine, fastest first. Not all exist on every machine.
    pub const NAMES: &'static [&'static str] = &[
        "avx512-gfni",
        "avx2-gfni",
        "avx512",
        "avx2",
        "ssse3",
        "neon",
        "swar",
        "scalar",
    ];

    /// The names of the engines that this machine can run, fastest first.
    pub fn names_here() -> Vec<&'static str> {
        let here = |name: &&&str| Engine::by_name(name).is_some();
        Engine::NAMES.iter().filter(here).copied().collect()
    }

    /// The fastest engine of this machine.
    pub fn detect() -> Engine {
        Engine::NAMES
            .iter()
            .find_map(|name| Engine::by_name(name))
            .unwrap_or(Engine::scalar())
    }

    /// The engine that defines what the others must compute.
    pub fn scalar() -> Engine {
        Engine {
            kind: Kind::Scalar,
            hints: Hints::default(),
        }
    }

    /// The engine of that name, one of [`Engine::NAMES`]; `None` if there is no such engine or
    /// this machine lacks its instructions.
    pub fn by_name(name: &str) -> Option<Engine> {
        let kind = match name {
            "scalar" => Kind::Scalar,
            "swar" => Kind::Swar,
            #[cfg(target_arch = "aarch64")]
            "neon" => Kind::Neon(Neon::detect()?),
            #[cfg(target_arch = "x86_64")]
            "ssse3" => Kind::Ssse3(Ssse3::detect()?),
            #[cfg(target_arch = "x86_64")]
            "avx2" => Kind::Avx2(Avx2::detect()?),
            #[cfg(target_arch = "x86_64")]
            "avx2-gfni" => Kind::Avx2Gfni(Avx2Gfni::detect()?),
            #[cfg(target_arch = "x86_64")]
            "avx512" => Kind::Avx512(Avx512::detect()?),
            #[cfg(target_arch = "x86_64")]
            "avx512-gfni" => Kind::Avx512Gfni(Avx512Gfni::detect()?),
            _ => return None,
        };
        let hints = Hints::default();
        Some(Engine { kind, hints })
    }

    /// The name, one of [`Engine::NAMES`].
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Scalar => "scalar",
            Kind::Swar => "swar",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(_) => "neon",
            #[cfg(target_arch = "x86_64")]
            Kind::Ssse3(_) => "ssse3",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Gfni(_) => "avx2-gfni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Gfni(_) => "avx512-gfni",
        }
    }

    /// The same engine for operands of which this is known.
    #[must_use]
    pub fn with(self, hints: Hints) -> Engine {
        Engine { hints, ..self }
    }

    /// What it takes to be known of its operands.
    pub fn hints(&self) -> Hints {
        self.hints
    }

    /// Make P and Q of the data, in one pass. A parity that is `None` is not computed.
    ///
    /// # Panics
    /// If two slices differ in length, an exponent is above 254, or Q is used and two chunks share
    /// an exponent.
    pub fn encode(&self, data: &[Source], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        let Some(len) = p.as_deref().or(q.as_deref()).map(<[u8]>::len) else {
            return;
        };
        let mut operands = Operands::new(len, q.is_some());
        operands.sources(data);
        operands.parities(p.as_deref(), q.as_deref());
        if let Kind::Scalar = self.kind {
            return scalar::encode(data, len, p, q);
        }
        let streaming = self.hints.streaming;
        match (p, q) {
            (Some(p), Some(q)) => self.fold(data, len, &mut Put::<true, true> { p, q, streaming }),
            (Some(p), None) => self.fold(
                data,
                len,
                &mut Put::<true, false> {
                    p,
                    q: &mut [],
                    streaming,
                },
            ),
            (None, Some(q)) => self.fold(
                data,
                len,
                &mut Put::<false, true> {
                    p: &mut [],
                    q,
                    streaming,
                },
            ),
            (None, None) => {}
        }
    }

    /// Adjust P and Q, made from the old data, to the new data, in one pass.
    ///
    /// # Panics
    /// If two slices differ in length, an exponent is above 254, or Q is used and two chunks share
    /// an exponent.
    pub fn update(&self, changed: &[Change], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        let Some(len) = p.as_deref().or(q.as_deref()).map(<[u8]>::len) else {
            return;
        };
        let mut operands = Operands::new(len, q.is_some());
        for change in changed {
            operands.data(change.old, change.exp);
            operands.length(change.new);
        }
        operands.parities(p.as_deref(), q.as_deref());
        if let Kind::Scalar = self.kind {
            return scalar::update(changed, len, p, q);
        }
        let streaming = self.hints.streaming;
        match (p, q) {
            (Some(p), Some(q)) => {
                self.fold(changed, len, &mut Add::<true, true> { p, q, streaming })
            }
            (Some(p), None) => self.fold(
                changed,
                len,
                &mut Add::<true, false> {
                    p,
                    q: &mut [],
                    streaming,
                },
            ),
            (None, Some(q)) => self.fold(
                changed,
                len,
                &mut Add::<false, true> {
                    p: &mut [],
                    q,
                    streaming,
                },
            ),
            (None, None) => {}
        }
    }

    /// Restore one or two lost data chunks from all other data and from P, Q or both. A parity
    /// that is lost or not to be trusted is `None`; one lost chunk is restored from P if it is
    /// given. To restore P or Q itself, use [`Engine::encode`] once all data are there.
    ///
    /// # Errors
    /// There are more lost chunks than parities; nothing has been written then.
    ///
    /// # Panics
    /// If two slices differ in length, an exponent is above 254, or Q is used and two chunks, lost
    /// or not, share an exponent.
    pub fn recover(
        &self,
        data: &[Source],
        p: Option<&[u8]>,
        q: Option<&[u8]>,
        lost: &mut [LostData],
    ) -> Result<(), RecoverError> {
        let solution = match &*lost {
            [] => return Ok(()),
            [x] => coeff::solve(&[x.exp], p.is_some(), q.is_some())?,
            [x, y] => coeff::solve(&[x.exp, y.exp], p.is_some(), q.is_some())?,
            more => return Err(RecoverError::TooManyLost { lost: more.len() }),
        };
        let len = lost[0].out.len();
        let mut operands = Operands::new(len, solution != Solution::FromP);
        operands.sources(data);
        operands.parities(p, q);
        for lost in &*lost {
            operands.data(lost.out, lost.exp);
        }
        if let Kind::Scalar = self.kind {
            scalar::recover(data, len, p, q, lost, solution);
            return Ok(());
        }
        let streaming = self.hints.streaming;
        match (solution, p, q, lost) {
            (Solution::FromP, Some(p), _, [lost]) => {
                self.fold(
                    data,
                    len,
                    &mut FromP {
                        p,
                        out: lost.out,
                        streaming,
                    },
                );
            }
            (Solution::FromQ { scale }, _, Some(q), [lost]) => {
                self.fold(
                    data,
                    len,
                    &mut FromQ {
                        q,
                        out: lost.out,
                        scale,
                        streaming,
                    },
                );
            }
            (Solution::FromBoth { a, b }, Some(p), Some(q), [x, y]) => {
                self.fold(
                    data,
                    len,
                    &mut FromBoth {
                        p,
                        q,
                        x: x.out,
                        y: y.out,
                        a,
                        b,
                        streaming,
                    },
                );
            }
            (solution, _, _, lost) => {
                unreachable!("{solution:?} does not fit {} lost chunks", lost.len())
            }
        }
        Ok(())
    }

    /// Compare P and Q with the data, in one pass that may end at the first difference.
    ///
    /// # Panics
    /// If two slices differ in length, an exponent is above 254, or Q is used and two chunks share
    /// an exponent.
    pub fn check(&self, data: &[Source], p: Option<&[u8]>, q: Option<&[u8]>) -> Mismatch {
        let Some(len) = p.or(q).map(<[u8]>::len) else {
            return Mismatch::default();
        };
        let mut operands = Operands::new(len, q.is_some());
        operands.sources(data);
        operands.parities(p, q);
        if let Kind::Scalar = self.kind {
            return scalar::check(data, len, p, q);
        }
        match (p, q) {
            (Some(p), Some(q)) => self.compare::<true, true>(data, len, p, q),
            (Some(p), None) => self.compare::<true, false>(data, len, p, &[]),
            (None, Some(q)) => self.compare::<false, true>(data, len, &[], q),
            (None, None) => Mismatch::default(),
        }
    }

    /// Find every granule of `granule` bytes in which P or Q disagrees with the data, tell `each`
    /// of it in ascending order, and sum up: one pass, nothing allocated. With both P and Q the
    /// member that is wrong is named if exactly one is; see [`crate::locate`] for the limits.
    ///
    /// # Panics
    /// If `granule` is zero; otherwise as [`Engine::check`].
    pub fn locate(
        &self,
        data: &[Source],
        p: Option<&[u8]>,
        q: Option<&[u8]>,
        granule: usize,
        each: &mut dyn FnMut(&Place),
    ) -> Findings {
        assert!(granule > 0, "a granule has at least one byte");
        let Some(len) = p.or(q).map(<[u8]>::len) else {
            return Findings::NONE;
        };
        let mut operands = Operands::new(len, q.is_some());
        operands.sources(data);
        operands.parities(p, q);
        if let Kind::Scalar = self.kind {
            return scalar::locate(data, len, p, q, granule, each);
        }
        let index = |exp: u8| data.iter().position(|source| source.exp == exp);
        let both = p.is_some() && q.is_some();
        let mut tracker = Tracker::new(granule, len, both, &index, each);
        match (p, q) {
            (Some(p), Some(q)) => self.seek::<true, true>(data, len, p, q, &mut tracker),
            (Some(p), None) => self.seek::<true, false>(data, len, p, &[], &mut tracker),
            (None, Some(q)) => self.seek::<false, true>(data, len, &[], q, &mut tracker),
            (None, None) => {}
        }
        tracker.finish()
    }

    fn seek<const P: bool, const Q: bool>(
        &self,
        data: &[Source],
        len: usize,
        p: &[u8],
        q: &[u8],
        tracker: &mut Tracker,
    ) {
        self.fold(data, len, &mut Seek::<P, Q> { p, q, tracker });
    }

    fn compare<const P: bool, const Q: bool>(
        &self,
        data: &[Source],
        len: usize,
        p: &[u8],
        q: &[u8],
    ) -> Mismatch {
        let mut compare = Compare::<P, Q> {
            p,
            q,
            mismatch: Mismatch::default(),
        };
        self.fold(data, len, &mut compare);
        compare.mismatch
    }

    fn fold<T: Term, S: Sink>(&self, terms: &[T], len: usize, sink: &mut S) {
        let hints = self.hints;
        match self.kind {
            Kind::Scalar => unreachable!("the scalar engine has its own loops"),
            Kind::Swar => fold::fold::<_, _, _, 4>(Swar, terms, len, hints, sink),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon(token) => token.fold(terms, len, hints, sink),
            #[cfg(target_arch = "x86_64")]
            Kind::Ssse3(token) => token.fold(terms, len, hints, sink),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(token) => token.fold(terms, len, hints, sink),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Gfni(token) => token.fold(terms, len, hints, sink),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(token) => token.fold(terms, len, hints, sink),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Gfni(token) => token.fold(terms, len, hints, sink),
        }
    }
}

/// Drop these bytes from all caches, so that the next access goes to memory; for measuring. `false` if this machine
/// offers no way.
pub(crate) fn flush(data: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    return crate::x86::flush(data);
    #[cfg(target_arch = "aarch64")]
    return crate::neon::flush(data);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return {
        let _ = data;
        false
    };
}

/// Checks that all operands of one call are equally long and, if Q is used, that no two chunks
/// have the same exponent.
struct Operands {
    len: usize,
    uses_q: bool,
    /// A bit for each exponent met below 64, where those of most arrays are.
    low: u64,
    /// A bit for each other exponent met.
    high: [u64; 3],
}

impl Operands {
    fn new(len: usize, uses_q: bool) -> Operands {
        Operands {
            len,
            uses_q,
            low: 0,
            high: [0; 3],
        }
    }

    #[inline]
    fn length(&self, data: &[u8]) {
        let len = self.len;
        assert!(
            data.len() == len,
            "an operand has {} bytes where others have {len}",
            data.len()
        );
    }

    #[inline]
    fn data(&mut self, data: &[u8], exp: u8) {
        self.length(data);
        assert!((exp as usize) < gf::ORDER, "exponent {exp} is above 254");
        let word = match exp {
            0..64 => &mut self.low,
            _ => &mut self.high[exp as usize / 64 - 1],
        };
        let bit = 1 << (exp % 64);
        assert!(
            !self.uses_q || *word & bit == 0,
            "two chunks share the exponent {exp}"
        );
        *word |= bit;
    }

    fn sources(&mut self, data: &[Source]) {
        for source in data {
            self.data(source.data, source.exp);
        }
    }

    fn parities(&self, p: Option<&[u8]>, q: Option<&[u8]>) {
        for parity in [p, q].into_iter().flatten() {
            self.length(parity);
        }
    }
}
