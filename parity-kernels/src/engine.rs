//! The choice of instruction set, made once at start, and the four operations.
//!
//! Owns the argument checks, so that an engine may rely on equal lengths. A call costs one match
//! on top of the arithmetic.

use crate::coeff;
use crate::gf;
use crate::job::{Change, LostData, Mismatch, RecoverError, Source};
use crate::scalar;

/// An instruction set to do parity arithmetic with. Copy it freely; it holds no state.
#[derive(Clone, Copy, Debug)]
pub struct Engine(Kind);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Scalar,
}

impl Engine {
    /// Every engine name, fastest first. Not all exist on every machine.
    pub const NAMES: &'static [&'static str] = &["scalar"];

    /// The fastest engine of this machine.
    pub fn detect() -> Engine {
        Engine::NAMES
            .iter()
            .find_map(|name| Engine::by_name(name))
            .unwrap_or(Engine::scalar())
    }

    /// The engine that defines what the others must compute.
    pub fn scalar() -> Engine {
        Engine(Kind::Scalar)
    }

    /// The engine of that name; `None` if there is none or this machine lacks it.
    pub fn by_name(name: &str) -> Option<Engine> {
        match name {
            "scalar" => Some(Engine(Kind::Scalar)),
            _ => None,
        }
    }

    /// The name, one of [`Engine::NAMES`].
    pub fn name(&self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
        }
    }

    /// Make P and Q of the data, in one pass. A parity that is `None` is not computed.
    ///
    /// # Panics
    /// If two slices differ in length, or an exponent is above 254.
    pub fn encode(&self, data: &[Source], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        let Some(len) = p.as_deref().or(q.as_deref()).map(<[u8]>::len) else {
            return;
        };
        check_sources(data, len);
        check_parities(p.as_deref(), q.as_deref(), len);
        match self.0 {
            Kind::Scalar => scalar::encode(data, len, p, q),
        }
    }

    /// Adjust P and Q, made from the old data, to the new data, in one pass.
    ///
    /// # Panics
    /// If two slices differ in length, or an exponent is above 254.
    pub fn update(&self, changed: &[Change], p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        let Some(len) = p.as_deref().or(q.as_deref()).map(<[u8]>::len) else {
            return;
        };
        for change in changed {
            check_operand(change.old, change.exp, len);
            check_operand(change.new, change.exp, len);
        }
        check_parities(p.as_deref(), q.as_deref(), len);
        match self.0 {
            Kind::Scalar => scalar::update(changed, len, p, q),
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
    /// If two slices differ in length, an exponent is above 254, or two lost chunks share one.
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
        check_sources(data, len);
        check_parities(p, q, len);
        for lost in &*lost {
            check_operand(lost.out, lost.exp, len);
        }
        match self.0 {
            Kind::Scalar => scalar::recover(data, len, p, q, lost, solution),
        }
        Ok(())
    }

    /// Compare P and Q with the data, in one pass that may end at the first difference.
    ///
    /// # Panics
    /// If two slices differ in length, or an exponent is above 254.
    pub fn check(&self, data: &[Source], p: Option<&[u8]>, q: Option<&[u8]>) -> Mismatch {
        let Some(len) = p.or(q).map(<[u8]>::len) else {
            return Mismatch::default();
        };
        check_sources(data, len);
        check_parities(p, q, len);
        match self.0 {
            Kind::Scalar => scalar::check(data, len, p, q),
        }
    }
}

fn check_operand(data: &[u8], exp: u8, len: usize) {
    assert!(
        data.len() == len,
        "an operand has {} bytes where others have {len}",
        data.len()
    );
    assert!((exp as usize) < gf::ORDER, "exponent {exp} is above 254");
}

fn check_sources(data: &[Source], len: usize) {
    for source in data {
        check_operand(source.data, source.exp, len);
    }
}

fn check_parities(p: Option<&[u8]>, q: Option<&[u8]>, len: usize) {
    for parity in [p, q].into_iter().flatten() {
        assert!(
            parity.len() == len,
            "a parity has {} bytes where others have {len}",
            parity.len()
        );
    }
}
