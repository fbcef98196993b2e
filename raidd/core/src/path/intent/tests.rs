//! Every schedule of two writers and the manager on one unit, played through with the byte's changes one atomic step at a
//! time. The state is small enough to visit each that can be reached; the tests state how many there are.

use super::*;
use std::collections::HashSet;

/// What a queue does for one write, step by step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Writer {
    /// Not begun; may look at its mail.
    Idle,
    /// Has loaded the byte, in the middle of `begin`.
    Seen(u8),
    /// `begin` has said no; about to set WANTED.
    Refused,
    /// Waits for the manager's word.
    Parked,
    /// Writing to the members.
    Writing,
    /// The write has ended (not flushed); may look at its mail.
    Done,
}

/// What the manager does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Manager {
    Idle,
    /// The bit is being written to the members.
    Setting,
    /// CLEARING is set, the queues that have not answered.
    Asking(u8),
    Flushing,
    /// The bit is being cleared on the members.
    Wiping,
}

/// Changes of the rules that must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Writers may begin while CLEARING is set.
    BeginWhileClearing,
    /// The manager does not wait for writes that had begun.
    NoBarrier,
    /// The manager publishes before the bit is durable.
    PublishFirst,
    /// WANTED survives what the manager publishes.
    KeepWanted,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    byte: u8,
    /// The bit on the members.
    disk: bool,
    /// Data on the members that is not flushed, by writer.
    loose: [bool; 2],
    writers: [Writer; 2],
    left: [u8; 2],
    /// Questions and releases on their way to each queue, in order (2 bits each: 1 question, 2 release).
    mail: [u16; 2],
    /// A question was taken while writing: answered when the write ends.
    owes: [bool; 2],
    /// Messages to the manager: requests for the bit, answers by queue.
    asked: u8,
    answered: u8,
    manager: Manager,
    rounds: u8,
}

fn post(mail: &mut u16, word: u16) {
    let mut at = 0;
    while *mail >> at & 3 != 0 {
        at += 2;
    }
    *mail |= word << at;
}

/// All states that one step leads to. An error is a broken promise.
fn steps(s: &State, fault: Fault, out: &mut Vec<State>) -> Result<(), String> {
    for w in 0..2 {
        let mut n = *s;
        match s.writers[w] {
            Writer::Idle if s.left[w] > 0 => {
                n.writers[w] = Writer::Seen(s.byte);
                n.left[w] -= 1;
                out.push(n);
            }
            Writer::Seen(seen) => {
                let seen_as = match fault {
                    Fault::BeginWhileClearing => seen & !CLEARING,
                    _ => seen,
                };
                match look(seen_as) {
                    Found::Go => n.writers[w] = Writer::Writing,
                    Found::Wait => n.writers[w] = Writer::Refused,
                    Found::Touch(_) if s.byte != seen => n.writers[w] = Writer::Seen(s.byte),
                    Found::Touch(next) => {
                        n.byte = next;
                        n.writers[w] = Writer::Writing;
                    }
                }
                if n.writers[w] == Writer::Writing {
                    n.loose[w] = true;
                }
                out.push(n);
            }
            Writer::Refused => {
                if s.byte & WANTED == 0 {
                    n.asked += 1;
                }
                n.byte |= WANTED;
                n.writers[w] = Writer::Parked;
                out.push(n);
            }
            Writer::Writing => {
                n.writers[w] = Writer::Done;
                if s.owes[w] {
                    n.owes[w] = false;
                    n.answered |= 1 << w;
                }
                out.push(n);
            }
            Writer::Done => {
                n.writers[w] = Writer::Idle;
                out.push(n);
            }
            Writer::Idle | Writer::Parked => {}
        }
        // Mail is looked at only between operations; a write may be in flight.
        let free = matches!(
            s.writers[w],
            Writer::Idle | Writer::Parked | Writer::Writing | Writer::Done
        );
        if free && s.mail[w] != 0 {
            let mut n = *s;
            n.mail[w] >>= 2;
            match s.mail[w] & 3 {
                1 if s.writers[w] == Writer::Writing && fault != Fault::NoBarrier => {
                    n.owes[w] = true;
                }
                1 => n.answered |= 1 << w,
                _ if s.writers[w] == Writer::Parked => n.writers[w] = Writer::Seen(s.byte),
                _ => {}
            }
            out.push(n);
        }
    }
    manager(s, fault, out);
    for n in out.iter() {
        if n.loose.contains(&true) && !n.disk {
            return Err(format!("data without a bit: {n:?}"));
        }
    }
    Ok(())
}

fn manager(s: &State, fault: Fault, out: &mut Vec<State>) {
    let release = |n: &mut State| {
        n.byte = match fault {
            Fault::KeepWanted => set(n.byte) | (n.byte & WANTED),
            _ => set(n.byte),
        };
        for mail in &mut n.mail {
            post(mail, 2);
        }
    };
    let mut n = *s;
    if s.asked > 0 {
        match s.manager {
            Manager::Idle if s.byte & DIRTY == 0 => {
                n.asked -= 1;
                n.manager = Manager::Setting;
                if fault == Fault::PublishFirst {
                    release(&mut n);
                }
                out.push(n);
            }
            // The bit is there still.
            Manager::Idle | Manager::Asking(_) | Manager::Flushing => {
                n.asked -= 1;
                n.manager = Manager::Idle;
                release(&mut n);
                out.push(n);
            }
            Manager::Setting | Manager::Wiping => {}
        }
    }
    let mut n = *s;
    match s.manager {
        Manager::Idle if s.rounds > 0 => {
            n.rounds -= 1;
            n.byte = aged(s.byte);
            if n.byte & !s.byte & CLEARING != 0 {
                n.manager = Manager::Asking(0);
                // What was answered to an older question does not count: rounds have numbers.
                n.answered = 0;
                n.owes = [false; 2];
                for mail in &mut n.mail {
                    post(mail, 1);
                }
            }
            out.push(n);
        }
        Manager::Asking(_) if s.answered == 3 => {
            n.manager = Manager::Flushing;
            out.push(n);
        }
        Manager::Flushing => {
            // Writes of before have ended; their data leaves the caches.
            for w in 0..2 {
                if s.writers[w] != Writer::Writing {
                    n.loose[w] = false;
                }
            }
            n.manager = Manager::Wiping;
            out.push(n);
        }
        Manager::Wiping => {
            n.disk = false;
            n.byte = s.byte & WANTED;
            n.manager = Manager::Idle;
            out.push(n);
        }
        Manager::Setting => {
            n.disk = true;
            n.manager = Manager::Idle;
            if fault != Fault::PublishFirst {
                release(&mut n);
            }
            out.push(n);
        }
        Manager::Idle | Manager::Asking(_) => {}
    }
}

/// Visits everything; gives the number of states, or the first promise that is broken.
fn explore(start: State, fault: Fault) -> Result<usize, String> {
    let mut seen = HashSet::from([start]);
    let mut todo = vec![start];
    let mut next = Vec::new();
    while let Some(state) = todo.pop() {
        next.clear();
        steps(&state, fault, &mut next)?;
        if next.is_empty() {
            let waits = |w: &Writer| !matches!(w, Writer::Idle);
            if state.writers.iter().any(waits) || state.left != [0, 0] {
                return Err(format!("a write waits for ever: {state:?}"));
            }
        }
        for n in &next {
            if seen.insert(*n) {
                todo.push(*n);
            }
        }
    }
    Ok(seen.len())
}

fn start(byte: u8, writes: u8, rounds: u8) -> State {
    State {
        byte,
        disk: byte & DIRTY != 0,
        loose: [false; 2],
        writers: [Writer::Idle; 2],
        left: [writes; 2],
        mail: [0; 2],
        owes: [false; 2],
        asked: 0,
        answered: 0,
        manager: Manager::Idle,
        rounds,
    }
}

#[test]
fn no_schedule_writes_without_a_bit_or_waits_for_ever() {
    let mut states = 0;
    for byte in [0, DIRTY, DIRTY | TOUCHED] {
        states += explore(start(byte, 2, 3), Fault::None).unwrap();
    }
    eprintln!("{states} states");
    assert!(states > 10_000, "{states}");
}

#[test]
fn each_broken_rule_shows() {
    for (fault, like) in [
        (Fault::BeginWhileClearing, "without a bit"),
        (Fault::NoBarrier, "without a bit"),
        (Fault::PublishFirst, "without a bit"),
        (Fault::KeepWanted, "waits for ever"),
    ] {
        let found = [0, DIRTY, DIRTY | TOUCHED]
            .into_iter()
            .find_map(|byte| explore(start(byte, 2, 3), fault).err());
        let text = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
        assert!(text.contains(like), "{fault:?}: {text}");
    }
}

#[test]
fn a_unit_that_is_needed_is_never_cleared() {
    assert_eq!(aged(DIRTY | NEEDED), DIRTY | NEEDED);
    assert_eq!(aged(DIRTY | NEEDED | TOUCHED), DIRTY | NEEDED);
    assert_eq!(aged(DIRTY | TOUCHED), DIRTY);
    assert_eq!(aged(DIRTY | WANTED), DIRTY | WANTED | CLEARING);
    assert_eq!(aged(0), 0);
    assert_eq!(set(NEEDED | WANTED | CLEARING), NEEDED | DIRTY | TOUCHED);
}

#[test]
fn bands_and_units() {
    let intent = Intent::new(1001, 8);
    assert_eq!(intent.units(), 126);
    assert_eq!(
        (intent.unit(0), intent.unit(7), intent.unit(1000)),
        (0, 0, 125)
    );
    assert_eq!(intent.first_band(125), 1000);
    assert!(!intent.begin(3));
    assert!(intent.want(3), "the first tells the manager");
    assert!(!intent.want(3));
    intent.publish(3);
    assert!(intent.begin(3) && intent.dirty(3) && !intent.dirty(4));
    assert_eq!(intent.count_dirty(), 1);
    assert!(!intent.age(3), "touched");
    assert!(intent.age(3));
    assert!(!intent.begin(3), "no write begins while it is cleared");
    intent.keep(3);
    assert!(intent.begin(3));
    assert!(intent.retire(3));
    intent.cleared(3);
    assert!(!intent.begin(3) && !intent.dirty(3));
}

/// The real thing under threads: two writers and a clearer, the disk's bit a flag of its own.
#[test]
fn threads_never_write_without_a_bit() {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    let intent = Intent::new(1, 1);
    let disk = AtomicBool::new(false);
    let asked = AtomicBool::new(false);
    // Even: no write in flight; odd: one. By writer.
    let flights = [AtomicU64::new(0), AtomicU64::new(0)];
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|w| {
                let (intent, disk, asked, flight) = (&intent, &disk, &asked, &flights[w]);
                scope.spawn(move || {
                    let mut done = 0;
                    while done < 20_000 {
                        // Takes the place of mail: the manager sees a write before it sees that `begin` was asked.
                        flight.fetch_add(1, Ordering::SeqCst);
                        if intent.begin(0) {
                            assert!(disk.load(Ordering::SeqCst), "data without a bit");
                            done += 1;
                        } else if intent.want(0) {
                            asked.store(true, Ordering::SeqCst);
                        }
                        flight.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                if asked.swap(false, Ordering::SeqCst) {
                    disk.store(true, Ordering::SeqCst);
                    intent.publish(0);
                } else if intent.retire(0) {
                    for flight in &flights {
                        let at = flight.load(Ordering::SeqCst);
                        while at % 2 == 1 && flight.load(Ordering::SeqCst) == at {
                            std::hint::spin_loop();
                        }
                    }
                    disk.store(false, Ordering::SeqCst);
                    intent.cleared(0);
                    // One that asked in the meantime has to be heard.
                    if intent.at(0).load(Ordering::SeqCst) & WANTED != 0 {
                        asked.store(true, Ordering::SeqCst);
                    }
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        end.store(true, Ordering::SeqCst);
    });
}
