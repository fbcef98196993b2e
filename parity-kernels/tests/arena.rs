//! The arena: its ranges, its refusals, and that its parity calls are the engine's.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::Random;
use parity_kernels::{Arena, BufRange, Engine, Mismatch, RecoverError, Source};

const FRAME: usize = 8192;

fn filled(frames: usize, seed: u64) -> Arena {
    let mut arena = Arena::new(frames, FRAME).unwrap();
    let all = BufRange::new(0, arena.len());
    let content = Random::new(seed).bytes(all.len);
    arena.bytes_mut(all).copy_from_slice(&content);
    arena
}

fn sources<'a>(arena: &'a Arena, data: &[(BufRange, u8)]) -> Vec<Source<'a>> {
    data.iter()
        .map(|(range, exp)| Source {
            data: arena.bytes(*range),
            exp: *exp,
        })
        .collect()
}

fn message<T>(job: impl FnOnce() -> T) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(job()))).err()?;
    Some(match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or(String::new(), |text| text.to_string()),
    })
}

#[track_caller]
fn assert_refused<T>(expected: &str, job: impl FnOnce() -> T) {
    let message = message(job).expect("should have panicked");
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_new_arena_is_aligned_zero_and_as_large_as_asked() {
    for (frames, frame_bytes) in [(1, 4096), (3, 8192), (7, 1 << 20), (2, 3 << 20)] {
        let arena = Arena::new(frames, frame_bytes).unwrap();
        assert_eq!(arena.frames(), frames);
        assert_eq!(arena.frame_bytes(), frame_bytes);
        assert_eq!(arena.len(), frames * frame_bytes);
        assert!(arena.base_ptr().addr().is_multiple_of(2 << 20));
        assert!(
            arena
                .bytes(BufRange::new(0, arena.len()))
                .iter()
                .all(|byte| *byte == 0)
        );
    }
}

#[test]
fn impossible_sizes_are_refused() {
    for (frames, frame_bytes) in [
        (0, 4096),
        (4, 0),
        (4, 4097),
        (4, 512),
        (usize::MAX, 4096),
        (1 << 50, 1 << 12),
    ] {
        let error = Arena::new(frames, frame_bytes).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::InvalidInput,
            "{frames} {frame_bytes}"
        );
    }
}

#[test]
fn ranges_name_bytes() {
    let mut arena = filled(3, 1);
    assert_eq!(arena.frame(2), BufRange::new(2 * FRAME, FRAME));
    let range = arena.slice(1, 100, 7);
    assert_eq!(range, BufRange::new(FRAME + 100, 7));
    assert_eq!(range.slice(2, 5), BufRange::new(FRAME + 102, 5));
    assert_eq!(range.end(), FRAME + 107);
    arena.bytes_mut(range).copy_from_slice(b"seven..");
    assert_eq!(arena.bytes(range.slice(0, 5)), b"seven");
    let iovec = arena.iovec(range);
    assert_eq!(iovec.iov_base.addr(), arena.base_ptr().addr() + range.off);
    assert_eq!(iovec.iov_len, 7);
    let to = arena.slice(0, 0, 7);
    arena.copy(range, to);
    assert_eq!(arena.bytes(to), b"seven..");
}

#[test]
fn overlap_is_a_shared_byte() {
    let overlaps = |a: (usize, usize), b: (usize, usize)| {
        let (a, b) = (BufRange::new(a.0, a.1), BufRange::new(b.0, b.1));
        assert_eq!(a.overlaps(b), b.overlaps(a));
        a.overlaps(b)
    };
    for (a, b) in [
        ((0, 4), (3, 1)),
        ((0, 4), (0, 4)),
        ((2, 2), (0, 8)),
        ((2, 2), (1, 2)),
    ] {
        assert!(overlaps(a, b), "{a:?} {b:?}");
    }
    for (a, b) in [
        ((0, 4), (4, 1)),
        ((0, 0), (0, 4)),
        ((2, 0), (0, 8)),
        ((2, 0), (2, 0)),
    ] {
        assert!(!overlaps(a, b), "{a:?} {b:?}");
    }
}

#[test]
fn ranges_outside_are_refused() {
    let mut arena = filled(2, 1);
    let outside = [
        BufRange::new(0, 2 * FRAME + 1),
        BufRange::new(2 * FRAME, 1),
        BufRange::new(2 * FRAME + 1, 0),
        BufRange::new(1, usize::MAX),
        BufRange::new(usize::MAX, 2),
    ];
    let inside = BufRange::new(0, 1);
    let engine = Engine::detect();
    for range in outside {
        assert_refused("outside", || arena.bytes(range).len());
        assert_refused("outside", || arena.bytes_mut(range).len());
        assert_refused("outside", || arena.iovec(range).iov_len);
        assert_refused("outside", || arena.copy(range, inside));
        assert_refused("outside", || arena.copy(inside, range));
        assert_refused("outside", || {
            arena.encode(&engine, &[(range, 0)], Some(inside), None)
        });
        assert_refused("outside", || {
            arena.encode(&engine, &[(inside, 0)], Some(range), None)
        });
        assert_refused("outside", || {
            arena.encode(&engine, &[(inside, 0)], None, Some(range))
        });
        assert_refused("outside", || {
            arena.update(&engine, &[(range, range, 0)], None, None)
        });
        assert_refused("outside", || {
            let _ = arena.recover(&engine, &[], Some(inside), None, &[(range, 0)]);
        });
        assert_refused("outside", || {
            let _ = arena.recover(&engine, &[], Some(range), None, &[(inside, 0)]);
        });
        assert_refused("outside", || {
            arena.check(&engine, &[(range, 0)], None, None);
        });
    }
    assert_refused("frame 2 of 2", || arena.frame(2).len);
    assert_refused("outside", || arena.slice(0, FRAME, 1).len);
    assert_refused("outside", || arena.slice(0, 1, usize::MAX).len);
    assert_refused("outside", || inside.slice(2, 0).len);
}

#[test]
fn overlapping_writes_are_refused() {
    let mut arena = filled(4, 2);
    let engine = Engine::detect();
    let at = |off: usize| BufRange::new(off, 512);
    // Apart, adjacent, overlapping by one byte, equal.
    for (distance, allowed) in [
        (4096, true),
        (512, true),
        (511, false),
        (1, false),
        (0, false),
    ] {
        for (a, b) in [
            (at(5000), at(5000 + distance)),
            (at(5000 + distance), at(5000)),
        ] {
            let far = at(20000);
            let check = |result: Option<String>| match result {
                None => assert!(allowed, "{a:?} and {b:?} were let through"),
                Some(text) => assert!(!allowed && text.contains("overlap"), "{text}"),
            };
            check(message(|| {
                arena.encode(&engine, &[(far, 0)], Some(a), Some(b))
            }));
            check(message(|| {
                arena.encode(&engine, &[(far, 1), (a, 0)], Some(b), None)
            }));
            check(message(|| {
                arena.encode(&engine, &[(far, 1), (a, 0)], None, Some(b))
            }));
            check(message(|| {
                arena.update(&engine, &[(a, far, 0)], Some(b), None)
            }));
            check(message(|| {
                arena.update(&engine, &[(far, a, 0)], None, Some(b))
            }));
            check(message(|| {
                arena.update(&engine, &[(far, far, 0)], Some(a), Some(b))
            }));
            check(message(|| arena.copy(a, b)));
            check(message(|| {
                arena
                    .recover(&engine, &[(a, 0)], Some(far), None, &[(b, 1)])
                    .unwrap();
            }));
            check(message(|| {
                arena
                    .recover(&engine, &[(far, 0)], Some(a), None, &[(b, 1)])
                    .unwrap();
            }));
            check(message(|| {
                arena
                    .recover(&engine, &[], Some(far), Some(at(24000)), &[(a, 0), (b, 1)])
                    .unwrap();
            }));
            check(message(|| {
                arena
                    .recover(&engine, &[], Some(far), Some(a), &[(at(24000), 0), (b, 1)])
                    .unwrap();
            }));
        }
    }
    // A refused call has written nothing: repeat the last, overlapping one.
    let before = arena.bytes(BufRange::new(0, arena.len())).to_vec();
    assert_refused("overlap", || arena.copy(at(100), at(101)));
    assert_refused("overlap", || {
        arena.encode(&engine, &[(at(0), 0)], Some(at(9)), None)
    });
    assert_eq!(arena.bytes(BufRange::new(0, arena.len())), before);
}

/// Random jobs over random places of one arena against the engine on copies of the bytes.
#[test]
fn calls_do_what_the_engine_does() {
    let mut random = Random::new(11);
    let mut arena = filled(64, 3);
    let (fast, oracle) = (Engine::detect(), Engine::scalar());
    for _ in 0..300 {
        let members = 1 + random.below(20);
        let len = random.below(FRAME + 1);
        let exps = random.exponents(members);
        // One range in each frame, so that none overlap; frames in any order.
        let mut frames: Vec<usize> = (0..64).collect();
        for i in 0..members + 4 {
            let j = i + random.below(64 - i);
            frames.swap(i, j);
        }
        let mut place = |i: usize| arena.slice(frames[i], random.below(FRAME - len + 1), len);
        let data: Vec<_> = (0..members).map(|i| (place(i), exps[i])).collect();
        let (p, q, new, spare) = (
            place(members),
            place(members + 1),
            place(members + 2),
            place(members + 3),
        );

        arena.encode(&fast, &data, Some(p), Some(q));
        let (mut want_p, mut want_q) = (vec![0; len], vec![0; len]);
        oracle.encode(
            &sources(&arena, &data),
            Some(&mut want_p),
            Some(&mut want_q),
        );
        assert_eq!(arena.bytes(p), want_p);
        assert_eq!(arena.bytes(q), want_q);
        assert!(!arena.check(&fast, &data, Some(p), Some(q)).any());

        // Overwrite one chunk by way of an update.
        let (old, exp) = data[0];
        arena.update(&fast, &[(old, new, exp)], Some(p), Some(q));
        let mut changed = data.clone();
        changed[0].0 = new;
        assert!(!arena.check(&oracle, &changed, Some(p), Some(q)).any());
        let stale = arena.bytes(old) != arena.bytes(new);
        let found = arena.check(&fast, &data, Some(p), Some(q));
        assert_eq!(found, Mismatch { p: stale, q: stale });

        // Lose one, then two.
        arena
            .recover(&fast, &changed[1..], None, Some(q), &[(spare, exp)])
            .unwrap();
        assert_eq!(arena.bytes(spare), arena.bytes(new));
        if members > 1 {
            let kept = &changed[2..];
            let lost = [(spare, exp), (old, changed[1].1)];
            arena.recover(&fast, kept, Some(p), Some(q), &lost).unwrap();
            assert_eq!(arena.bytes(spare), arena.bytes(new));
            assert_eq!(arena.bytes(old), arena.bytes(changed[1].0));
            let error = arena
                .recover(&fast, kept, Some(p), None, &lost)
                .unwrap_err();
            assert_eq!(
                error,
                RecoverError::ParityMissing {
                    lost: 2,
                    parities: 1
                }
            );
        }
    }
}

#[test]
fn the_most_members_fit_and_one_more_does_not() {
    let mut arena = filled(64, 4);
    let engine = Engine::detect();
    let data: Vec<_> = (0..255)
        .map(|i| (BufRange::new(512 * i, 512), i as u8))
        .collect();
    let (p, q) = (BufRange::new(512 * 256, 512), BufRange::new(512 * 257, 512));
    arena.encode(&engine, &data, Some(p), Some(q));
    assert!(
        !arena
            .check(&Engine::scalar(), &data, Some(p), Some(q))
            .any()
    );
    let changes: Vec<_> = data
        .iter()
        .map(|(range, exp)| (*range, *range, *exp))
        .collect();
    arena.update(&engine, &changes, Some(p), Some(q));
    assert!(!arena.check(&engine, &data, Some(p), Some(q)).any());

    let mut more = data.clone();
    more.push((BufRange::new(512 * 255, 512), 254));
    assert_refused("256 operands", || {
        arena.encode(&engine, &more, Some(p), Some(q))
    });
    let three = [(p, 0), (q, 1), (BufRange::new(512 * 258, 512), 2)];
    let error = arena
        .recover(&engine, &data[3..], Some(p), Some(q), &three)
        .unwrap_err();
    assert_eq!(error, RecoverError::TooManyLost { lost: 3 });
    assert_eq!(arena.recover(&engine, &data, Some(p), Some(q), &[]), Ok(()));
}

#[test]
fn an_arena_moves_to_another_thread() {
    let mut arena = filled(4, 5);
    let range = arena.slice(1, 10, 1000);
    let expected = arena.bytes(range).to_vec();
    let arena = std::thread::spawn(move || {
        let to = arena.slice(3, 10, 1000);
        arena.copy(range, to);
        arena
    })
    .join()
    .unwrap();
    assert_eq!(arena.bytes(arena.slice(3, 10, 1000)), expected);
}

#[test]
fn locking_succeeds_or_says_why() {
    let arena = Arena::new(1, 4096).unwrap();
    if let Err(error) = arena.lock() {
        let reasons = [Some(libc::EPERM), Some(libc::ENOMEM), Some(libc::EAGAIN)];
        assert!(reasons.contains(&error.raw_os_error()), "{error}");
    }
}

/// What is only read may overlap as it likes, for every engine.
#[test]
fn operands_that_are_only_read_may_share_bytes() {
    let mut arena = filled(8, 6);
    let at = |off: usize| BufRange::new(off, 3000);
    let (p, q, out) = (at(5 * FRAME), at(6 * FRAME), at(7 * FRAME));
    // The same, by a byte, and by all but a byte.
    let data = [(at(100), 0), (at(100), 1), (at(3099), 2), (at(101), 3)];
    let before = arena.bytes(BufRange::new(0, 5 * FRAME)).to_vec();
    common::with_every_engine(|engine| {
        arena.encode(engine, &data, Some(p), Some(q));
        let mut oracle = (vec![0; 3000], vec![0; 3000]);
        let list = sources(&arena, &data);
        Engine::scalar().encode(&list, Some(&mut oracle.0), Some(&mut oracle.1));
        assert_eq!(
            (arena.bytes(p), arena.bytes(q)),
            (&oracle.0[..], &oracle.1[..])
        );
        assert!(!arena.check(engine, &data, Some(p), Some(q)).any());

        // Old and new the same: nothing changes. One byte apart, and back: nothing has changed.
        arena.update(engine, &[(at(500), at(500), 9)], Some(p), Some(q));
        arena.update(engine, &[(at(500), at(501), 9)], Some(p), Some(q));
        arena.update(engine, &[(at(501), at(500), 9)], Some(p), Some(q));
        assert!(!arena.check(engine, &data, Some(p), Some(q)).any());

        arena
            .recover(engine, &data[1..], None, Some(q), &[(out, 0)])
            .unwrap();
        assert_eq!(arena.bytes(out), arena.bytes(at(100)));
    });
    assert_eq!(arena.bytes(BufRange::new(0, 5 * FRAME)), before);
}

/// What a successor relies on: the bytes are in the file as soon as they are stored, without a word to the kernel.
#[test]
fn an_arena_over_a_file_is_the_file() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile_dir();
    let path = dir.join("arena");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    let mut arena = Arena::over(&file, 4, FRAME).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4 * FRAME as u64);
    assert!(
        arena
            .bytes(BufRange::new(0, 4 * FRAME))
            .iter()
            .all(|b| *b == 0)
    );
    let range = BufRange::new(FRAME + 100, 300);
    arena.bytes_mut(range).fill(7);
    let mut seen = [0; 300];
    file.read_exact_at(&mut seen, range.off as u64).unwrap();
    assert_eq!(seen, [7; 300]);

    let path = dir.join("words");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    let words = parity_kernels::Words::over(&file, 1000).unwrap();
    words[999].store(0x0102_0304, std::sync::atomic::Ordering::Release);
    let mut seen = [0; 8];
    file.read_exact_at(&mut seen, 999 * 8).unwrap();
    assert_eq!(u64::from_ne_bytes(seen), 0x0102_0304);
    assert!(parity_kernels::Words::over(&file, 0).is_err());
    std::fs::remove_dir_all(dir).unwrap();
}

fn tempfile_dir() -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("raidd-arena-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
