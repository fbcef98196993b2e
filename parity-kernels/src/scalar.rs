//! What every operation means, one byte at a time. This is the oracle: dull on purpose, some
//! hundred times slower than the fast engines, and right wherever no vector unit is at hand.
//!
//! Callers go through [`crate::Engine::scalar`], which checks the lengths first.

use crate::coeff::Solution;
use crate::gf;
use crate::job::{Change, LostData, Mismatch, Source};
use crate::locate::{Findings, Place, Wrong};

/// P and Q of byte `i` of the data.
fn parity_of(data: &[Source], i: usize) -> (u8, u8) {
    let (mut p, mut q) = (0, 0);
    for source in data {
        p ^= source.data[i];
        q ^= gf::mul(gf::power(source.exp as usize), source.data[i]);
    }
    (p, q)
}

pub(crate) fn encode(
    data: &[Source],
    len: usize,
    mut p: Option<&mut [u8]>,
    mut q: Option<&mut [u8]>,
) {
    for i in 0..len {
        let (data_p, data_q) = parity_of(data, i);
        if let Some(p) = &mut p {
            p[i] = data_p;
        }
        if let Some(q) = &mut q {
            q[i] = data_q;
        }
    }
}

pub(crate) fn update(
    changed: &[Change],
    len: usize,
    mut p: Option<&mut [u8]>,
    mut q: Option<&mut [u8]>,
) {
    for i in 0..len {
        for change in changed {
            let difference = change.old[i] ^ change.new[i];
            if let Some(p) = &mut p {
                p[i] ^= difference;
            }
            if let Some(q) = &mut q {
                q[i] ^= gf::mul(gf::power(change.exp as usize), difference);
            }
        }
    }
}

pub(crate) fn recover(
    data: &[Source],
    len: usize,
    p: Option<&[u8]>,
    q: Option<&[u8]>,
    lost: &mut [LostData],
    solution: Solution,
) {
    for i in 0..len {
        let (data_p, data_q) = parity_of(data, i);
        let p = p.map_or(0, |p| p[i] ^ data_p);
        let q = q.map_or(0, |q| q[i] ^ data_q);
        match solution {
            Solution::Nothing => {}
            Solution::FromP => lost[0].out[i] = p,
            Solution::FromQ { scale } => lost[0].out[i] = gf::mul(scale, q),
            Solution::FromBoth { a, b } => {
                let x = gf::mul(a, p) ^ gf::mul(b, q);
                lost[0].out[i] = x;
                lost[1].out[i] = p ^ x;
            }
        }
    }
}

pub(crate) fn check(data: &[Source], len: usize, p: Option<&[u8]>, q: Option<&[u8]>) -> Mismatch {
    let mut mismatch = Mismatch::default();
    for i in 0..len {
        let (data_p, data_q) = parity_of(data, i);
        mismatch.p |= p.is_some_and(|p| p[i] != data_p);
        mismatch.q |= q.is_some_and(|q| q[i] != data_q);
    }
    mismatch
}

/// Tries every member in turn: who explains all differences of a granule alone is the one.
pub(crate) fn locate(
    data: &[Source],
    len: usize,
    p: Option<&[u8]>,
    q: Option<&[u8]>,
    granule: usize,
    each: &mut dyn FnMut(&Place),
) -> Findings {
    let differences = |i: usize| {
        let (data_p, data_q) = parity_of(data, i);
        (
            p.map_or(0, |p| p[i] ^ data_p),
            q.map_or(0, |q| q[i] ^ data_q),
        )
    };
    let mut findings = Findings::NONE;
    for off in (0..len).step_by(granule) {
        let bytes = off..len.min(off + granule);
        let differs = |i: &usize| differences(*i) != (0, 0);
        let Some(first) = bytes.clone().find(differs) else {
            continue;
        };
        let last = bytes.clone().rev().find(differs).unwrap_or(first);
        let all = |guilty: &dyn Fn(u8, u8) -> bool| {
            bytes.clone().all(|i| {
                let (dp, dq) = differences(i);
                guilty(dp, dq)
            })
        };
        let mismatch = Mismatch {
            p: !all(&|dp, _| dp == 0),
            q: !all(&|_, dq| dq == 0),
        };
        let explains =
            |source: &Source| all(&|dp, dq| dq == gf::mul(gf::power(source.exp as usize), dp));
        let wrong = match mismatch {
            _ if p.is_none() || q.is_none() => Wrong::Unknown,
            Mismatch { q: false, .. } => Wrong::P,
            Mismatch { p: false, .. } => Wrong::Q,
            _ => match data.iter().position(explains) {
                Some(index) => Wrong::Data {
                    index,
                    exp: data[index].exp,
                },
                None => Wrong::Unknown,
            },
        };
        let place = Place {
            off,
            len: bytes.len(),
            mismatch,
            first,
            last,
            wrong,
        };
        findings.add(&place);
        each(&place);
    }
    findings
}
