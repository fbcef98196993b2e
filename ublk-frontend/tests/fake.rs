//! The in-memory frontend under a small engine on a real ring.

use io_uring::{IoUring, opcode, types};
use std::os::fd::AsRawFd;
use std::thread;
use ublk_frontend::{Fetched, Frontend, MemClient, MemFrontend, Op, RequestError, fake};

const WAKE: u64 = 1;

/// A disk of `sectors` sectors that runs until its frontend has stopped, polling the wake descriptor in its ring.
/// Sector 13 is bad.
fn serve(mut frontend: MemFrontend, sectors: usize) -> u64 {
    let mut disk = vec![0u8; sectors * 512];
    let mut ring = IoUring::new(8).expect("ring");
    let mut served = 0;
    frontend.prime(&mut ring.submission());
    while !frontend.stopped() {
        let fd = types::Fd(frontend.wake_fd().expect("wakes by descriptor").as_raw_fd());
        let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
        // SAFETY: a poll refers to no memory; the descriptor lives in `frontend`.
        unsafe { ring.submission().push(&poll.user_data(WAKE)) }.expect("room for one poll");
        assert_eq!(frontend.flush(&mut ring.submission()), 0);
        ring.submit_and_wait(1).expect("submit");
        for cqe in ring.completion() {
            assert_eq!(cqe.user_data(), WAKE);
        }
        while let Some(Fetched {
            tag,
            request,
            auto_buf,
        }) = frontend.next_request()
        {
            assert!(!auto_buf);
            let request = request.expect("the fake knows only good operations");
            let from = request.lba as usize * 512;
            let range = from..from + request.sectors as usize * 512;
            let bad = request.has_data() && range.contains(&(13 * 512));
            let result = if bad {
                RequestError::Medium.result()
            } else {
                let bytes = &mut disk[range];
                let copied = match request.op {
                    Op::Read => frontend.copy_out(0, tag, 0, bytes.chunks(700)),
                    Op::Write => frontend.copy_in(0, tag, 0, bytes.chunks_mut(300)),
                    Op::Discard | Op::WriteZeroes { .. } => {
                        bytes.fill(0);
                        Ok(())
                    }
                    Op::Flush => Ok(()),
                };
                copied.map_or_else(|errno| errno, |()| request.success())
            };
            served += 1;
            frontend.commit(&mut ring.submission(), tag, result);
        }
    }
    assert_eq!(frontend.in_engine(), 0);
    served
}

fn disk(depth: u16) -> (MemClient, thread::JoinHandle<u64>) {
    let (frontend, client) = fake::pair(depth).expect("eventfd");
    (client, thread::spawn(move || serve(frontend, 4096)))
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i * 7 + seed * 31 + i / 251) as u8)
        .collect()
}

#[test]
fn bytes_come_back() {
    let (client, engine) = disk(4);
    let data = pattern(1, 9 * 512);
    client.write(100, data.clone(), false).expect("write");
    assert_eq!(client.read(100, 9), Ok(data.clone()));
    assert_eq!(client.read(103, 2), Ok(data[3 * 512..5 * 512].to_vec()));
    assert_eq!(client.flush(), Ok(()));
    assert_eq!(
        client.range(Op::WriteZeroes { unmap: true }, 101, 1),
        Ok(())
    );
    assert_eq!(client.read(101, 1), Ok(vec![0; 512]));
    assert_eq!(client.read(102, 1), Ok(data[1024..1536].to_vec()));
    client.stop();
    assert_eq!(engine.join().expect("engine"), 7);
}

#[test]
fn errors_reach_the_client() {
    let (client, engine) = disk(1);
    assert_eq!(client.read(13, 1), Err(-libc::ENODATA));
    assert_eq!(client.read(14, 1), Ok(vec![0; 512]));
    client.stop();
    assert_eq!(client.read(14, 1), Err(-libc::ENODEV));
    engine.join().expect("engine");
}

#[test]
fn more_requests_than_tags_from_many_threads() {
    let (client, engine) = disk(3);
    let clients: Vec<_> = (0..8u64)
        .map(|n| {
            let client = client.clone();
            thread::spawn(move || {
                for round in 0..50 {
                    let data = pattern(n * 100 + round, 4 * 512);
                    client
                        .write(200 + n * 4, data.clone(), round % 2 == 0)
                        .expect("write");
                    assert_eq!(client.read(200 + n * 4, 4), Ok(data));
                }
            })
        })
        .collect();
    for thread in clients {
        thread.join().expect("client");
    }
    client.stop();
    assert_eq!(engine.join().expect("engine"), 8 * 50 * 2);
}

#[test]
fn a_vanished_engine_fails_its_requests() {
    let (mut frontend, client) = fake::pair(2).expect("eventfd");
    let mut ring = IoUring::new(2).expect("ring");
    frontend.prime(&mut ring.submission());
    let pending = client.submit(
        ublk_frontend::Request {
            op: Op::Flush,
            lba: 0,
            sectors: 0,
            fua: false,
        },
        Vec::new(),
    );
    assert!(frontend.next_request().is_some());
    assert!(!pending.is_done());
    drop(frontend);
    assert_eq!(pending.wait(), Err(-libc::ENODEV));
    client.stop();
}

#[test]
fn copies_outside_a_request_or_in_the_wrong_direction_are_refused() {
    let (mut frontend, client) = fake::pair(2).expect("eventfd");
    let mut ring = IoUring::new(2).expect("ring");
    frontend.prime(&mut ring.submission());
    let reader = thread::spawn(move || client.read(0, 2));
    let fetched = loop {
        if let Some(fetched) = frontend.next_request() {
            break fetched;
        }
        thread::yield_now();
    };
    let tag = fetched.tag;
    let mut bytes = [1u8; 1024];
    assert_eq!(
        frontend.copy_in(0, tag, 0, [&mut bytes[..]]),
        Err(-libc::EINVAL)
    );
    assert_eq!(
        frontend.copy_out(0, tag, 1, [&bytes[..]]),
        Err(-libc::EINVAL)
    );
    assert_eq!(
        frontend.copy_out(0, tag, 0, [&bytes[..512], &bytes[512..]]),
        Ok(())
    );
    // A length that is not the request's is an I/O error for the client.
    frontend.commit(&mut ring.submission(), tag, 512);
    assert_eq!(reader.join().expect("reader"), Err(-libc::EIO));
}

#[test]
fn queues_of_a_group_take_turns_and_serve_each_other() {
    let (mut frontends, client) = fake::group(2, 2).expect("eventfd");
    let mut ring = IoUring::new(2).expect("ring");
    for frontend in &mut frontends {
        frontend.prime(&mut ring.submission());
    }
    let (first, second) = (pattern(1, 512), pattern(2, 512));
    let write = |lba, data: &Vec<u8>| {
        let op = Op::Write;
        let request = ublk_frontend::Request {
            op,
            lba,
            sectors: 1,
            fua: false,
        };
        client.submit(request, data.clone())
    };
    let pending = [write(0, &first), write(1, &second)];
    let [a, b] = &mut frontends[..] else {
        panic!("two queues");
    };
    let at_a = a.next_request().expect("the first queue got one");
    let at_b = b.next_request().expect("the second queue got the other");
    assert!(a.next_request().is_none() && b.next_request().is_none());
    // Each copies what the other one fetched.
    let mut bytes = [0; 512];
    assert_eq!(a.copy_in(1, at_b.tag, 0, [&mut bytes[..]]), Ok(()));
    assert_eq!(bytes[..], second);
    assert_eq!(b.copy_in(0, at_a.tag, 0, [&mut bytes[..]]), Ok(()));
    assert_eq!(bytes[..], first);
    assert!(!a.stopped() && !b.stopped());
    a.commit(&mut ring.submission(), at_a.tag, 512);
    b.commit(&mut ring.submission(), at_b.tag, 512);
    for request in pending {
        assert_eq!(request.wait(), Ok(Vec::new()));
    }
    client.stop();
    assert!(a.stopped() && b.stopped());
}
