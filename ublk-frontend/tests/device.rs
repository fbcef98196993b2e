//! A real device, where there is a driver: without /dev/ublk-control every test says that it was skipped.
//! Run as root with `--test-threads=1`, for instance in the user-mode kernel.

use io_uring::{IoUring, cqueue, squeue};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use ublk_frontend::existing::{existing, remove};
use ublk_frontend::{
    Device, DeviceSpec, DiscardLimits, Event, Features, Frontend, Op, Queue, RequestError,
    StopError, UBLK_KEY, UblkError,
};

const SECTORS: u64 = 8192;
const COOKIE: u64 = 0x7465_7374;

/// The driver's features, or `None` after saying so.
fn driver(test: &str) -> Option<Features> {
    match Features::probe() {
        Ok(features) => Some(features),
        Err(UblkError::NoDriver) => {
            eprintln!("{test}: SKIPPED, no ublk driver");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn spec() -> DeviceSpec {
    DeviceSpec {
        queues: 2,
        depth: 16,
        sectors: SECTORS,
        discard: Some(DiscardLimits {
            max_sectors: u32::MAX,
            granularity: 512,
        }),
        write_zeroes_max_sectors: u32::MAX,
        cookie: COOKIE,
        ..DeviceSpec::default()
    }
}

/// Memory that O_DIRECT takes.
#[repr(align(4096))]
struct Page([u8; 4096]);

type Disk = Arc<Mutex<Vec<u8>>>;

/// Serves a queue from memory; sector 13 is bad. The ring has room for 4 entries only.
fn serve(mut queue: Queue, disk: Disk) {
    let mut ring = IoUring::<squeue::Entry, cqueue::Entry>::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(64)
        .build(4)
        .expect("ring");
    if queue.auto_buf() {
        let depth = u32::from(queue.depth());
        ring.submitter()
            .register_buffers_sparse(depth)
            .expect("buffer table");
    }
    let qid = queue.qid();
    queue.prime(&mut ring.submission());
    let mut events = Vec::new();
    while !queue.stopped() {
        while queue.flush(&mut ring.submission()) > 0 {
            ring.submit().expect("submit");
        }
        ring.submit_and_wait(1).expect("wait");
        events.extend(ring.completion().map(|c| (c.user_data(), c.result())));
        for (key, res) in events.drain(..) {
            assert!(key & UBLK_KEY != 0);
            let Event::Request(fetched) = queue.on_cqe(key, res) else {
                continue;
            };
            let request = fetched.request.expect("known operation");
            let from = request.lba as usize * 512;
            let range = from..from + request.sectors as usize * 512;
            let result = if request.has_data() && range.contains(&(13 * 512)) {
                RequestError::Medium.result()
            } else {
                let bytes = &mut disk.lock().expect("disk")[range];
                let copied = match request.op {
                    // More spans than one system call takes, some of them empty.
                    Op::Read => queue.copy_out(
                        qid,
                        fetched.tag,
                        0,
                        bytes.chunks(100).flat_map(|c| [c, &[]]),
                    ),
                    Op::Write => queue.copy_in(qid, fetched.tag, 0, bytes.chunks_mut(100)),
                    Op::Discard | Op::WriteZeroes { .. } => {
                        bytes.fill(0);
                        Ok(())
                    }
                    Op::Flush => Ok(()),
                };
                copied.map_or_else(|errno| errno, |()| request.success())
            };
            queue.commit(&mut ring.submission(), fetched.tag, result);
        }
    }
    assert_eq!(queue.fault(), None);
    assert_eq!(queue.in_engine(), 0);
}

fn start(spec: &DeviceSpec, features: &Features) -> (Device, Vec<thread::JoinHandle<()>>) {
    let device = Device::add(spec, features).expect("add");
    let disk: Disk = Arc::new(Mutex::new(vec![0; SECTORS as usize * 512]));
    let threads = (0..device.queues())
        .map(|qid| {
            let (queue, disk) = (device.queue(qid).expect("queue"), disk.clone());
            thread::spawn(move || serve(queue, disk))
        })
        .collect();
    device.start().expect("start");
    (device, threads)
}

fn finish(device: Device, threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("queue thread");
    }
    let id = device.id();
    device.delete().expect("delete");
    assert!(existing().expect("list").iter().all(|d| d.id != id));
}

/// The partition scan keeps a new device open for a moment.
fn stop_when_idle(device: &Device) {
    let begin = Instant::now();
    while let Err(StopError::Busy) = device.stop() {
        assert!(begin.elapsed() < Duration::from_secs(10), "still busy");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn bytes_errors_and_refused_stop() {
    let Some(features) = driver("bytes_errors_and_refused_stop") else {
        return;
    };
    for zero_copy in [false, true] {
        let (device, threads) = start(
            &DeviceSpec {
                zero_copy,
                ..spec()
            },
            &features,
        );
        assert_eq!(device.auto_buf(), zero_copy && features.auto_buf_reg());
        let file = File::options()
            .read(true)
            .write(true)
            .open(device.path())
            .expect("open");
        let data: Vec<u8> = (0..1 << 20).map(|i: u32| (i ^ i >> 9) as u8).collect();
        file.write_all_at(&data, 1 << 20).expect("write");
        file.sync_all().expect("flush");
        drop(file);
        let file = File::open(device.path()).expect("open");
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 1 << 20).expect("read");
        assert!(data == back);
        // Past the page cache, which would make every error EIO.
        let direct = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(device.path())
            .expect("open");
        let mut page = Page([0; 4096]);
        let bad = direct.read_exact_at(&mut page.0, 8 * 512);
        assert_eq!(
            bad.expect_err("sector 13 is bad").raw_os_error(),
            Some(libc::ENODATA)
        );
        direct.read_exact_at(&mut page.0, 1 << 20).expect("read");
        assert!(page.0 == data[..4096]);
        drop(direct);
        assert!(matches!(device.stop(), Err(StopError::Busy)));
        file.read_exact_at(&mut back[..4096], 2 << 20)
            .expect("serves after a refused stop");
        drop(file);
        stop_when_idle(&device);
        assert!(!device.path().exists());
        finish(device, threads);
    }
}

#[test]
fn a_forced_stop_works_on_an_open_device() {
    let Some(features) = driver("a_forced_stop_works_on_an_open_device") else {
        return;
    };
    let (device, threads) = start(&spec(), &features);
    let file = File::open(device.path()).expect("open");
    device.stop_forced().expect("stop");
    assert!(file.read_exact_at(&mut [0; 4096], 1 << 20).is_err());
    drop(file);
    finish(device, threads);
}

#[test]
fn numbers_in_use_and_taken_queues_are_refused() {
    let Some(features) = driver("numbers_in_use_and_taken_queues_are_refused") else {
        return;
    };
    let wanted = DeviceSpec {
        id: Some(7),
        ..spec()
    };
    let device = Device::add(&wanted, &features).expect("add");
    assert_eq!(device.id(), 7);
    assert!(matches!(
        Device::add(&wanted, &features),
        Err(UblkError::IdInUse(7))
    ));
    let queue = device.queue(0).expect("queue");
    assert!(matches!(device.queue(0), Err(UblkError::Queue(0))));
    assert!(matches!(device.queue(99), Err(UblkError::Queue(99))));
    let seen = existing().expect("list");
    assert!(seen.iter().any(|d| d.id == 7 && d.cookie == COOKIE));
    // Not started, so the driver knows no server; its open char device protects it.
    assert!(matches!(remove(7), Err(UblkError::Alive { id: 7, .. })));
    drop(queue);
    drop(device);
    assert!(existing().expect("list").iter().all(|d| d.id != 7));
}

#[test]
fn a_start_without_engines_ends_and_leaves_nothing() {
    let Some(features) = driver("a_start_without_engines_ends_and_leaves_nothing") else {
        return;
    };
    let device = Device::add(&spec(), &features).expect("add");
    let id = device.id();
    let queue = device.queue(0).expect("queue");
    match device.start() {
        Err(UblkError::NotPrimed { primed: 0, .. }) => {}
        other => panic!("{other:?}"),
    }
    // A queue that is still there delays the removal but not the drop.
    let begin = Instant::now();
    drop(device);
    assert!(begin.elapsed() < Duration::from_secs(8));
    drop(queue);
    while existing().expect("list").iter().any(|d| d.id == id) {
        assert!(
            begin.elapsed() < Duration::from_secs(15),
            "device {id} is left"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_dropped_device_is_stopped_and_gone() {
    let Some(features) = driver("a_dropped_device_is_stopped_and_gone") else {
        return;
    };
    let (device, threads) = start(&spec(), &features);
    let id = device.id();
    drop(device);
    for thread in threads {
        thread.join().expect("queue thread");
    }
    let begin = Instant::now();
    while existing().expect("list").iter().any(|d| d.id == id) {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "device {id} is left"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// One thread, two queues: each copies what the other one fetched.
fn serve_crossed(mut queues: [Queue; 2], mut disk: Vec<u8>) -> [u64; 2] {
    let mut rings = [(); 2].map(|()| IoUring::new(32).expect("ring"));
    let mut copied = [0; 2];
    for (queue, ring) in queues.iter_mut().zip(&mut rings) {
        queue.prime(&mut ring.submission());
    }
    while !queues.iter().all(Queue::stopped) {
        for at in 0..2 {
            assert_eq!(queues[at].flush(&mut rings[at].submission()), 0);
            rings[at].submit().expect("submit");
            let events: Vec<_> = rings[at]
                .completion()
                .map(|c| (c.user_data(), c.result()))
                .collect();
            for (key, res) in events {
                let Event::Request(fetched) = queues[at].on_cqe(key, res) else {
                    continue;
                };
                let request = fetched.request.expect("known operation");
                let from = request.lba as usize * 512;
                let bytes = &mut disk[from..from + request.sectors as usize * 512];
                let (tag, lender) = (fetched.tag, &mut queues[1 - at]);
                let result = match request.op {
                    Op::Read => lender.copy_out(at as u16, tag, 0, [&*bytes]),
                    Op::Write => lender.copy_in(at as u16, tag, 0, [bytes]),
                    _ => Ok(()),
                };
                copied[at] += u64::from(request.has_data());
                let result = result.map_or_else(|errno| errno, |()| request.success());
                queues[at].commit(&mut rings[at].submission(), tag, result);
            }
        }
        thread::sleep(Duration::from_micros(200));
    }
    copied
}

#[test]
fn a_queue_copies_for_another_one() {
    let Some(features) = driver("a_queue_copies_for_another_one") else {
        return;
    };
    let device = Device::add(&spec(), &features).expect("add");
    if device.queues() < 2 {
        eprintln!("a_queue_copies_for_another_one: SKIPPED, one CPU");
        return;
    }
    let queues = [0, 1].map(|qid| device.queue(qid).expect("queue"));
    let disk = vec![0; SECTORS as usize * 512];
    let server = thread::spawn(move || serve_crossed(queues, disk));
    device.start().expect("start");
    let file = File::options()
        .read(true)
        .write(true)
        .open(device.path())
        .expect("open");
    let data: Vec<u8> = (0..3 << 20).map(|i: u32| (i ^ i >> 11) as u8).collect();
    file.write_all_at(&data, 0).expect("write");
    file.sync_all().expect("flush");
    drop(file);
    let mut back = vec![0; data.len()];
    let file = File::open(device.path()).expect("open");
    file.read_exact_at(&mut back, 0).expect("read");
    drop(file);
    assert!(data == back);
    stop_when_idle(&device);
    let copied = server.join().expect("server");
    assert!(copied.iter().sum::<u64>() >= 6, "{copied:?}");
    device.delete().expect("delete");
}

/// Before Linux 7.0 the driver does not refuse by itself; an exclusive holder is found all the same.
#[test]
fn without_safe_stop_an_exclusive_holder_still_prevents_it() {
    let Some(features) = driver("without_safe_stop_an_exclusive_holder_still_prevents_it") else {
        return;
    };
    let old = Features::from_bits(features.bits() & !(1 << 17));
    assert!(!old.safe_stop());
    let (device, threads) = start(&spec(), &old);
    let holder = File::options()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(device.path())
        .expect("open");
    assert!(matches!(device.stop(), Err(StopError::Busy)));
    assert!(device.path().exists());
    drop(holder);
    stop_when_idle(&device);
    assert!(!device.path().exists());
    finish(device, threads);
}
