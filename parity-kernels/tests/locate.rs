//! Where differences are and who is to blame: every engine against the scalar one, which tries all members in turn, and
//! both against corruption planted by the test.

mod common;

use common::{Random, Stripe, with_every_engine};
use parity_kernels::locate::SECTOR;
use parity_kernels::{Engine, Findings, Place, Source, Wrong};
use proptest::prelude::*;

fn locate(
    engine: &Engine,
    data: &[Source],
    p: Option<&[u8]>,
    q: Option<&[u8]>,
    granule: usize,
) -> (Findings, Vec<Place>) {
    let mut places = Vec::new();
    let findings = engine.locate(data, p, q, granule, &mut |place| places.push(*place));
    (findings, places)
}

/// A stripe whose content may be damaged: members 0.. are data, then P, then Q.
struct Damaged {
    chunks: Vec<Vec<u8>>,
    exps: Vec<u8>,
}

impl Damaged {
    fn new(members: usize, len: usize, seed: u64) -> Damaged {
        let exps = Random::new(seed).exponents(members);
        let stripe = Stripe::random(members, len, &exps, seed);
        let data = stripe.data.iter().map(|chunk| chunk.get().to_vec());
        let chunks = data.chain([stripe.p.get().to_vec(), stripe.q.get().to_vec()]);
        Damaged {
            chunks: chunks.collect(),
            exps,
        }
    }

    fn members(&self) -> usize {
        self.exps.len()
    }

    fn sources(&self) -> Vec<Source<'_>> {
        let pairs = self.chunks.iter().zip(&self.exps);
        pairs.map(|(data, &exp)| Source { data, exp }).collect()
    }

    fn locate(
        &self,
        engine: &Engine,
        parities: (bool, bool),
        granule: usize,
    ) -> (Findings, Vec<Place>) {
        let (p, q) = (
            &self.chunks[self.members()],
            &self.chunks[self.members() + 1],
        );
        let (p, q) = (parities.0.then_some(&p[..]), parities.1.then_some(&q[..]));
        locate(engine, &self.sources(), p, q, granule)
    }

    fn name(&self, chunk: usize) -> Wrong {
        match chunk {
            i if i == self.members() => Wrong::P,
            i if i > self.members() => Wrong::Q,
            index => Wrong::Data {
                index,
                exp: self.exps[index],
            },
        }
    }

    /// All engines must say what the scalar one says.
    fn assert_all_agree(&self, parities: (bool, bool), granule: usize) -> (Findings, Vec<Place>) {
        let expected = self.locate(&Engine::scalar(), parities, granule);
        with_every_engine(|engine| {
            assert_eq!(
                self.locate(engine, parities, granule),
                expected,
                "{}",
                engine.name()
            );
        });
        // It sees what `check` sees.
        let (p, q) = (
            &self.chunks[self.members()],
            &self.chunks[self.members() + 1],
        );
        let (p, q) = (parities.0.then_some(&p[..]), parities.1.then_some(&q[..]));
        let found = Engine::detect().check(&self.sources(), p, q);
        assert_eq!(found, expected.0.mismatch);
        expected
    }
}

#[test]
fn an_intact_stripe_has_no_places() {
    for len in [0, 1, 511, 512, 5000] {
        let stripe = Damaged::new(5, len, len as u64);
        for parities in [(true, true), (true, false), (false, true)] {
            let (findings, places) = stripe.assert_all_agree(parities, SECTOR);
            assert_eq!(findings, Findings::NONE);
            assert!(places.is_empty());
        }
    }
    let none = Engine::detect().locate(&[], None, None, SECTOR, &mut |_| {
        panic!("nothing to compare")
    });
    assert_eq!(none, Findings::NONE);
}

#[test]
fn each_single_member_is_named_exactly() {
    for members in [1, 2, 6, 22, 255] {
        for chunk in 0..members + 2 {
            let mut stripe = Damaged::new(members, 1300, (members * 300 + chunk) as u64);
            stripe.chunks[chunk][700] ^= 0x40;
            stripe.chunks[chunk][1029] ^= 0x01;
            let (findings, places) = if members == 255 {
                stripe.locate(&Engine::detect(), (true, true), SECTOR)
            } else {
                stripe.assert_all_agree((true, true), SECTOR)
            };
            let name = stripe.name(chunk);
            assert_eq!(findings.wrong, Some(name));
            assert_eq!((findings.granules, findings.range), (2, Some((700, 1029))));
            assert_eq!(findings.mismatch.p, name != Wrong::Q);
            assert_eq!(findings.mismatch.q, name != Wrong::P);
            let spans: Vec<_> = places
                .iter()
                .map(|p| (p.off, p.len, p.first, p.last))
                .collect();
            assert_eq!(spans, [(512, 512, 700, 700), (1024, 276, 1029, 1029)]);
        }
    }
}

#[test]
fn one_parity_alone_accuses_nobody() {
    let mut stripe = Damaged::new(4, 600, 3);
    stripe.chunks[2][5] ^= 1;
    for parities in [(true, false), (false, true)] {
        let (findings, places) = stripe.assert_all_agree(parities, SECTOR);
        assert_eq!(findings.wrong, Some(Wrong::Unknown));
        assert_eq!(findings.range, Some((5, 5)));
        assert_eq!(places.len(), 1);
    }
}

#[test]
fn two_members_in_one_sector_are_not_told_apart_but_in_two_they_are() {
    let mut stripe = Damaged::new(6, 2048, 9);
    stripe.chunks[1][100] ^= 7;
    stripe.chunks[4][300] ^= 7;
    stripe.chunks[4][1000] ^= 9;
    stripe.chunks[6][2000] ^= 9;
    let (findings, places) = stripe.assert_all_agree((true, true), SECTOR);
    let wrong: Vec<_> = places.iter().map(|place| place.wrong).collect();
    assert_eq!(wrong, [Wrong::Unknown, stripe.name(4), Wrong::P]);
    assert_eq!(findings.wrong, Some(Wrong::Unknown));
    // In granules of a byte each is named.
    let (_, places) = stripe.assert_all_agree((true, true), 1);
    let wrong: Vec<_> = places.iter().map(|place| place.wrong).collect();
    assert_eq!(
        wrong,
        [stripe.name(1), stripe.name(4), stripe.name(4), Wrong::P]
    );
}

#[test]
fn a_member_that_is_not_there_is_not_named() {
    // P and Q off as if the data with exponent 9 were wrong, and there is none.
    let exps = [0, 1, 2];
    let stripe = Stripe::random(3, 64, &exps, 1);
    let (mut p, mut q) = (stripe.p.get().to_vec(), stripe.q.get().to_vec());
    p[3] ^= 1;
    q[3] ^= parity_kernels::gf::power(9);
    with_every_engine(|engine| {
        let (findings, _) = locate(engine, &stripe.sources(), Some(&p), Some(&q), SECTOR);
        assert_eq!(findings.wrong, Some(Wrong::Unknown), "{}", engine.name());
    });
}

#[test]
#[should_panic(expected = "at least one byte")]
fn no_granule_is_refused() {
    locate(&Engine::detect(), &[], Some(&[0]), None, 0);
}

#[test]
fn an_arena_locates_too() {
    let mut arena = parity_kernels::Arena::new(8, 4096).unwrap();
    let data: Vec<_> = (0..4).map(|i| (arena.frame(i), i as u8)).collect();
    for (range, exp) in &data {
        arena.bytes_mut(*range).fill(17 + exp);
    }
    let (p, q) = (Some(arena.frame(4)), Some(arena.frame(5)));
    arena.encode(&Engine::detect(), &data, p, q);
    arena.bytes_mut(data[2].0)[4000] = 0;
    let mut sectors = Vec::new();
    let findings = arena.locate(&Engine::detect(), &data, p, q, SECTOR, &mut |place| {
        sectors.push(place.off)
    });
    assert_eq!(findings.wrong, Some(Wrong::Data { index: 2, exp: 2 }));
    assert_eq!(sectors, [3584]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Any damage to at most one member per granule is named; any other is at least found, and all engines agree.
    #[test]
    fn any_damage(
        members in 1usize..40,
        len in 1usize..3000,
        granule in prop_oneof![Just(SECTOR), Just(1), Just(4096), 1usize..700],
        hits in prop::collection::vec((0usize..42, 0usize..3000, 1u8..), 0..12),
        seed: u64,
    ) {
        let mut stripe = Damaged::new(members, len, seed);
        let intact = stripe.chunks.clone();
        for (chunk, byte, flip) in hits {
            let (chunk, byte) = (chunk % (members + 2), byte % len);
            stripe.chunks[chunk][byte] ^= flip;
        }
        let (findings, places) = stripe.assert_all_agree((true, true), granule);
        stripe.assert_all_agree((true, false), granule);
        stripe.assert_all_agree((false, true), granule);

        for off in (0..len).step_by(granule) {
            let end = len.min(off + granule);
            let hurt: Vec<usize> = (0..members + 2)
                .filter(|i| stripe.chunks[*i][off..end] != intact[*i][off..end])
                .collect();
            let place = places.iter().find(|place| place.off == off);
            match hurt[..] {
                [] => prop_assert!(place.is_none()),
                [one] => prop_assert_eq!(place.map(|place| place.wrong), Some(stripe.name(one))),
                // Two or more bad bytes can cancel in one parity, never in both, unless there are more than two.
                [_, _] => prop_assert!(place.is_some()),
                _ => {}
            }
        }
        prop_assert_eq!(findings.granules, places.len());
        prop_assert_eq!(findings.range.is_some(), !places.is_empty());
    }

    /// The hints change nothing but the speed: every engine, aligned or not, long enough for the look-ahead.
    #[test]
    fn hints_do_not_change_results(members in 1usize..12, len in 0usize..6000, seed: u64) {
        let exps = Random::new(seed).exponents(members);
        let stripe = Stripe::random(members, len, &exps, seed);
        let lost: Vec<usize> = (0..members.min(2)).collect();
        with_every_engine(|plain| {
            for (cold, streaming) in [(true, false), (false, true), (true, true)] {
                let engine = plain.with(parity_kernels::Hints { cold, streaming });
                let (mut p, mut q) = (stripe.p.blank(), stripe.q.blank());
                engine.encode(&stripe.sources(), Some(p.get_mut()), Some(q.get_mut()));
                assert_eq!((p.get(), q.get()), (stripe.p.get(), stripe.q.get()), "{}", engine.name());
                // Out and back again.
                let back: Vec<_> = stripe.changes(&stripe, &lost).into_iter().map(|change| {
                    parity_kernels::Change { new: stripe.p.get(), ..change }
                }).collect();
                engine.update(&back, Some(p.get_mut()), Some(q.get_mut()));
                let forth: Vec<_> = back.iter().map(|change| {
                    parity_kernels::Change { old: change.new, new: change.old, exp: change.exp }
                }).collect();
                engine.update(&forth, Some(p.get_mut()), Some(q.get_mut()));
                assert_eq!((p.get(), q.get()), (stripe.p.get(), stripe.q.get()), "{}", engine.name());
                assert!(!engine.check(&stripe.sources(), Some(p.get()), Some(q.get())).any());
                let mut outs: Vec<_> = lost.iter().map(|i| stripe.data[*i].blank()).collect();
                let mut list: Vec<_> = outs.iter_mut().zip(&lost).map(|(out, i)| {
                    parity_kernels::LostData { out: out.get_mut(), exp: exps[*i] }
                }).collect();
                let rest = stripe.sources_without(&lost);
                engine.recover(&rest, Some(p.get()), Some(q.get()), &mut list).unwrap();
                for (out, i) in outs.iter().zip(&lost) {
                    assert_eq!(out.get(), stripe.data[*i].get(), "{}", engine.name());
                    out.assert_margin_intact();
                }
                p.assert_margin_intact();
                q.assert_margin_intact();
            }
        });
    }
}
