//! One runner for all engines: every operation, byte for byte, against independent arithmetic and
//! against the scalar engine.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::layouts::{self, Layout};
use common::{Chunk, Random, Stripe, with_every_engine};
use parity_kernels::{Change, Engine, LostData, Mismatch, RecoverError, Source};
use proptest::prelude::*;

/// Which of P and Q a call is given.
const PARITY_CHOICES: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

fn assert_encodes(engine: &Engine, stripe: &Stripe) {
    for (want_p, want_q) in PARITY_CHOICES {
        let (mut p, mut q) = (stripe.p.blank(), stripe.q.blank());
        engine.encode(
            &stripe.sources(),
            want_p.then(|| p.get_mut()),
            want_q.then(|| q.get_mut()),
        );
        let name = engine.name();
        assert!(!want_p || p.get() == stripe.p.get(), "{name}: P");
        assert!(!want_q || q.get() == stripe.q.get(), "{name}: Q");
        p.assert_margin_intact();
        q.assert_margin_intact();
    }
}

/// Change the chunks `which` of `old` to those of `new`; the others must be the same in both.
fn assert_updates(engine: &Engine, old: &Stripe, new: &Stripe, which: &[usize]) {
    for (want_p, want_q) in PARITY_CHOICES {
        let (mut p, mut q) = (old.p.clone(), old.q.clone());
        engine.update(
            &old.changes(new, which),
            want_p.then(|| p.get_mut()),
            want_q.then(|| q.get_mut()),
        );
        let name = engine.name();
        assert_eq!(
            p.get(),
            if want_p { new.p.get() } else { old.p.get() },
            "{name}: P"
        );
        assert_eq!(
            q.get(),
            if want_q { new.q.get() } else { old.q.get() },
            "{name}: Q"
        );
        p.assert_margin_intact();
        q.assert_margin_intact();
    }
}

fn assert_recovers(engine: &Engine, stripe: &Stripe, lost: &[usize], p: bool, q: bool) {
    let mut chunks: Vec<Chunk> = lost.iter().map(|i| stripe.data[*i].blank()).collect();
    let mut outs: Vec<LostData> = chunks
        .iter_mut()
        .zip(lost)
        .map(|(chunk, i)| LostData {
            out: chunk.get_mut(),
            exp: stripe.exps[*i],
        })
        .collect();
    let result = engine.recover(
        &stripe.sources_without(lost),
        p.then(|| stripe.p.get()),
        q.then(|| stripe.q.get()),
        &mut outs,
    );
    assert_eq!(result, Ok(()), "{}: {lost:?}", engine.name());
    for (chunk, i) in chunks.iter().zip(lost) {
        let name = engine.name();
        assert_eq!(
            chunk.get(),
            stripe.data[*i].get(),
            "{name}: {i} of {lost:?}, {p} {q}"
        );
        chunk.assert_margin_intact();
    }
}

fn assert_checks(engine: &Engine, stripe: &Stripe, random: &mut Random) {
    let (p, q) = (stripe.p.get(), stripe.q.get());
    let sources = stripe.sources();
    for (use_p, use_q) in PARITY_CHOICES {
        let found = engine.check(&sources, use_p.then_some(p), use_q.then_some(q));
        assert_eq!(found, Mismatch::default(), "{}", engine.name());
    }
    if p.is_empty() {
        return;
    }
    let (mut bad_p, mut bad_q) = (p.to_vec(), q.to_vec());
    bad_p[random.below(p.len())] ^= 1 << random.below(8);
    bad_q[random.below(q.len())] ^= 1 << random.below(8);
    let check = |p: Option<&[u8]>, q: Option<&[u8]>| {
        let found = engine.check(&sources, p, q);
        (found.p, found.q)
    };
    assert_eq!(
        check(Some(&bad_p), Some(q)),
        (true, false),
        "{}",
        engine.name()
    );
    assert_eq!(
        check(Some(p), Some(&bad_q)),
        (false, true),
        "{}",
        engine.name()
    );
    assert_eq!(
        check(Some(&bad_p), Some(&bad_q)),
        (true, true),
        "{}",
        engine.name()
    );
    assert_eq!(
        check(Some(&bad_p), None),
        (true, false),
        "{}",
        engine.name()
    );
    assert_eq!(
        check(None, Some(&bad_q)),
        (false, true),
        "{}",
        engine.name()
    );
}

/// Everything that can be done to a stripe, with a few erasures of it.
fn assert_all(engine: &Engine, stripe: &Stripe, seed: u64) {
    let mut random = Random::new(seed);
    let members = stripe.data.len();
    assert_encodes(engine, stripe);
    assert_checks(engine, stripe, &mut random);
    let x = random.below(members);
    assert_recovers(engine, stripe, &[x], true, false);
    assert_recovers(engine, stripe, &[x], false, true);
    assert_recovers(engine, stripe, &[x], true, true);
    if members > 1 {
        let y = (x + 1 + random.below(members - 1)) % members;
        assert_recovers(engine, stripe, &[x, y], true, true);
    }
}

/// `stripe` with new content in some of its chunks, and which those are.
fn overwritten(stripe: &Stripe, seed: u64) -> (Stripe, Vec<usize>) {
    let mut random = Random::new(seed);
    let len = stripe.p.get().len();
    let mut which: Vec<usize> = (0..stripe.data.len())
        .filter(|_| random.below(3) == 0)
        .collect();
    if random.below(2) == 0 {
        which.reverse();
    }
    let contents: Vec<Vec<u8>> = (0..stripe.data.len())
        .map(|i| match which.contains(&i) {
            true => random.bytes(len),
            false => stripe.data[i].get().to_vec(),
        })
        .collect();
    (Stripe::new(&contents, &stripe.exps, &mut random), which)
}

#[test]
fn every_member_count() {
    let ascending: Vec<u8> = (0..=254).collect();
    for members in 1..=255 {
        let stripe = Stripe::random(members, 333, &ascending[..members], members as u64);
        with_every_engine(|engine| assert_all(engine, &stripe, members as u64));
    }
}

#[test]
fn every_length_up_to_some_blocks() {
    for len in 0..=600 {
        // Right after the wrap of a rotated layout, and with a hole.
        let stripe = Stripe::random(5, len, &[3, 4, 0, 1, 7], len as u64);
        let (new, which) = overwritten(&stripe, len as u64);
        with_every_engine(|engine| {
            assert_all(engine, &stripe, len as u64);
            assert_updates(engine, &stripe, &new, &which);
        });
    }
}

#[test]
fn every_erasure_of_small_stripes() {
    for members in 1..=8usize {
        let ascending: Vec<u8> = (0..members as u8).collect();
        let mut rotated = ascending.clone();
        rotated.rotate_left(members / 2);
        let descending: Vec<u8> = ascending.iter().rev().copied().collect();
        let sparse = Random::new(members as u64).exponents(members);
        for exps in [ascending, rotated, descending, sparse] {
            let stripe = Stripe::random(members, 291, &exps, members as u64);
            with_every_engine(|engine| {
                for x in 0..members {
                    assert_recovers(engine, &stripe, &[x], true, false);
                    assert_recovers(engine, &stripe, &[x], false, true);
                    assert_recovers(engine, &stripe, &[x], true, true);
                    for y in (0..members).filter(|y| *y != x) {
                        assert_recovers(engine, &stripe, &[x, y], true, true);
                    }
                }
            });
        }
    }
}

#[test]
fn every_pair_of_exponents() {
    let contents = vec![
        (0..=255).collect::<Vec<u8>>(),
        (0..=255).rev().map(|x| x ^ 0x35).collect(),
    ];
    let mut random = Random::new(7);
    for x in 0..=254 {
        for y in (0..=254).filter(|y| *y != x) {
            let stripe = Stripe::new(&contents, &[x, y], &mut random);
            for engine in [Engine::detect(), Engine::by_name("swar").unwrap()] {
                assert_encodes(&engine, &stripe);
                assert_recovers(&engine, &stripe, &[0, 1], true, true);
            }
        }
    }
}

#[test]
fn check_sees_every_byte() {
    let stripe = Stripe::random(3, 300, &[0, 1, 2], 5);
    let sources = stripe.sources();
    with_every_engine(|engine| {
        let (mut p, mut q) = (stripe.p.get().to_vec(), stripe.q.get().to_vec());
        for i in 0..300 {
            for bit in [1, 0x80] {
                p[i] ^= bit;
                let found = engine.check(&sources, Some(&p), Some(&q));
                assert_eq!(
                    found,
                    Mismatch { p: true, q: false },
                    "{} {i}",
                    engine.name()
                );
                q[i] ^= bit;
                p[i] ^= bit;
                let found = engine.check(&sources, Some(&p), Some(&q));
                assert_eq!(
                    found,
                    Mismatch { p: false, q: true },
                    "{} {i}",
                    engine.name()
                );
                q[i] ^= bit;
            }
        }
    });
}

#[test]
fn nothing_is_a_sum_too() {
    with_every_engine(|engine| {
        let (mut p, mut q) = ([1; 70], [1; 70]);
        engine.encode(&[], Some(&mut p), Some(&mut q));
        assert_eq!((p, q), ([0; 70], [0; 70]));
        engine.update(&[], Some(&mut p), Some(&mut q));
        assert_eq!((p, q), ([0; 70], [0; 70]));
        engine.encode(
            &[Source {
                data: &[1, 2],
                exp: 0,
            }],
            None,
            None,
        );
        assert_eq!(engine.recover(&[], None, None, &mut []), Ok(()));
        assert!(!engine.check(&[], Some(&p), Some(&q)).any());
        assert!(!engine.check(&[], None, None).any());
    });
}

#[test]
fn recovery_that_is_impossible_is_refused() {
    let stripe = Stripe::random(4, 64, &[0, 1, 2, 3], 9);
    let (p, q) = (Some(stripe.p.get()), Some(stripe.q.get()));
    with_every_engine(|engine| {
        let refuse = |lost: usize, p: Option<&[u8]>, q: Option<&[u8]>| {
            let mut outs = vec![[7u8; 64]; lost];
            let mut list: Vec<LostData> = outs
                .iter_mut()
                .enumerate()
                .map(|(i, out)| LostData { out, exp: i as u8 })
                .collect();
            let gone: Vec<usize> = (0..lost).collect();
            let error = engine
                .recover(&stripe.sources_without(&gone), p, q, &mut list)
                .unwrap_err();
            assert!(
                outs.iter().flatten().all(|byte| *byte == 7),
                "written to in spite of {error}"
            );
            error
        };
        let missing = |lost, parities| RecoverError::ParityMissing { lost, parities };
        assert_eq!(refuse(1, None, None), missing(1, 0));
        assert_eq!(refuse(2, None, None), missing(2, 0));
        assert_eq!(refuse(2, p, None), missing(2, 1));
        assert_eq!(refuse(2, None, q), missing(2, 1));
        assert_eq!(refuse(3, p, q), RecoverError::TooManyLost { lost: 3 });
    });
}

/// RAID 6 of 8 members in the layouts of Linux MD: data k is k + 1, so P is 7, and Q depends on
/// the walk that gives the exponents. Known answers from arrays that MD itself had made.
#[test]
fn q_as_linux_md_makes_it() {
    let known = [
        (Layout::Symmetric, [0xb9; 8]),
        (
            Layout::LeftAsymmetric,
            [0xb9, 0xb9, 0xf4, 0xad, 0x5e, 0x7f, 0x7c, 0xb9],
        ),
        (
            Layout::RightAsymmetric,
            [0xb9, 0x7c, 0x7f, 0x5e, 0xad, 0xf4, 0xb9, 0xb9],
        ),
        (
            Layout::DdfZeroRestart,
            [0xde, 0xdb, 0xcf, 0xf3, 0x53, 0x5e, 0xb9, 0x6f],
        ),
        (
            Layout::DdfNRestart,
            [0xb9, 0x5e, 0x53, 0xf3, 0xcf, 0xdb, 0xde, 0x6f],
        ),
        (
            Layout::DdfNContinue,
            [0xb9, 0xdc, 0x72, 0x2b, 0xa3, 0xe9, 0xde, 0x6f],
        ),
    ];
    let chunks: Vec<Vec<u8>> = (1..=6).map(|value| vec![value; 100]).collect();
    with_every_engine(|engine| {
        for (layout, expected) in known {
            for (stripe, expected) in expected.into_iter().enumerate() {
                let exps = layouts::exponents(layout, 8, stripe);
                let sources: Vec<Source> = chunks
                    .iter()
                    .zip(&exps)
                    .map(|(data, exp)| Source { data, exp: *exp })
                    .collect();
                let (mut p, mut q) = ([0; 100], [0; 100]);
                engine.encode(&sources, Some(&mut p), Some(&mut q));
                assert_eq!(p, [7; 100], "{layout:?}, stripe {stripe}");
                assert_eq!(q, [expected; 100], "{layout:?}, stripe {stripe}, {exps:?}");
            }
        }
        let two = [
            Source {
                data: &[1; 9],
                exp: 0,
            },
            Source {
                data: &[2; 9],
                exp: 1,
            },
        ];
        let (mut p, mut q) = ([0; 9], [0; 9]);
        engine.encode(&two, Some(&mut p), Some(&mut q));
        assert_eq!((p, q), ([3; 9], [5; 9]));
    });
}

#[test]
#[should_panic(expected = "an operand has 63 bytes where others have 64")]
fn unequal_lengths_are_refused() {
    Engine::detect().encode(
        &[Source {
            data: &[0; 63],
            exp: 0,
        }],
        Some(&mut [0; 64]),
        None,
    );
}

#[test]
#[should_panic(expected = "an operand has 65 bytes where others have 64")]
fn unequal_parities_are_refused() {
    let data = [Source {
        data: &[0; 64],
        exp: 0,
    }];
    Engine::detect().encode(&data, Some(&mut [0; 64]), Some(&mut [0; 65]));
}

#[test]
#[should_panic(expected = "exponent 255 is above 254")]
fn exponent_255_is_refused() {
    Engine::detect().encode(
        &[Source {
            data: &[0; 64],
            exp: 255,
        }],
        None,
        Some(&mut [0; 64]),
    );
}

#[test]
#[should_panic(expected = "share the exponent 3")]
fn lost_chunks_with_one_exponent_are_refused() {
    let (mut x, mut y) = ([0; 8], [0; 8]);
    let mut lost = [
        LostData {
            out: &mut x,
            exp: 3,
        },
        LostData {
            out: &mut y,
            exp: 3,
        },
    ];
    let _ = Engine::detect().recover(&[], Some(&[0; 8]), Some(&[0; 8]), &mut lost);
}

#[test]
fn exponents_may_repeat_only_without_q() {
    let chunks = [[1; 64], [6; 64]];
    with_every_engine(|engine| {
        for exp in [0, 63, 64, 254] {
            let sources = chunks.each_ref().map(|data| Source { data, exp });
            let mut p = [0; 64];
            engine.encode(&sources, Some(&mut p), None);
            assert_eq!(p, [7; 64]);
            let mut out = [0; 64];
            let lost = &mut [LostData { out: &mut out, exp }];
            assert_eq!(
                engine.recover(&sources[1..], Some(&p), Some(&[0; 64]), lost),
                Ok(())
            );
            assert_eq!(out, [1; 64]);

            let refused = |job: &mut dyn FnMut()| {
                catch_unwind(AssertUnwindSafe(job)).expect_err("a repeated exponent went through");
            };
            refused(&mut || engine.encode(&sources, None, Some(&mut [0; 64])));
            refused(&mut || {
                engine.check(&sources, Some(&p), Some(&p));
            });
            refused(&mut || {
                let change = Change {
                    old: &[0; 64],
                    new: &[1; 64],
                    exp,
                };
                engine.update(&[change, change], None, Some(&mut [0; 64]));
            });
            refused(&mut || {
                let lost = &mut [LostData {
                    out: &mut [0; 64],
                    exp,
                }];
                let _ = engine.recover(&sources[1..], None, Some(&p), lost);
            });
        }
    });
}

#[test]
fn names_lead_to_engines() {
    for name in Engine::NAMES {
        assert!(Engine::by_name(name).is_none_or(|engine| engine.name() == *name));
    }
    assert_eq!(Engine::scalar().name(), "scalar");
    assert!(Engine::by_name("abacus").is_none());
    let fastest = Engine::NAMES
        .iter()
        .find(|name| Engine::by_name(name).is_some());
    assert_eq!(fastest, Some(&Engine::detect().name()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    /// Any member count, length, alignment and assignment of exponents.
    #[test]
    fn any_stripe(members in 1usize..=255, len in 0usize..1500, seed: u64) {
        let exps = Random::new(seed).exponents(members);
        let stripe = Stripe::random(members, len, &exps, seed);
        let (new, which) = overwritten(&stripe, seed);
        with_every_engine(|engine| {
            assert_all(engine, &stripe, seed);
            assert_updates(engine, &stripe, &new, &which);
        });
    }

    /// The stripes that arrays mostly have: few members, exponents in some rotation, many erasures.
    #[test]
    fn usual_stripe(members in 1usize..=20, len in 0usize..5000, turn in 0usize..20, seed: u64) {
        let mut exps: Vec<u8> = (0..members as u8).collect();
        exps.rotate_left(turn % members);
        let stripe = Stripe::random(members, len, &exps, seed);
        let (new, which) = overwritten(&stripe, seed);
        with_every_engine(|engine| {
            assert_all(engine, &stripe, seed);
            assert_all(engine, &stripe, seed.rotate_left(32));
            assert_updates(engine, &stripe, &new, &which);
        });
    }
}
