//! A disk in memory, or over backing devices as a plain stripe set, on this crate alone.
//!
//! It shows the loop that an engine runs and is what the tests with a real driver use. Not a product: no redundancy,
//! no recovery of its own. Run it as root:
//!
//!     memdisk --size-mib 256                                  # in memory
//!     memdisk --back /dev/ram0 --back /dev/ram1 --zero-copy   # striped, pages go straight to the backing devices
//!
//! For tests: `--entries N` makes the ring small, `--small-table` registers too few buffers so that half the tags fall
//! back to copying, `--mixed` copies for every second backing device only, `--no-defer` leaves DEFER_TASKRUN out.
//!
//! SIGTERM stops it unless the device is in use, SIGINT stops it anyway. It prints the device path when it serves.

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use nix::sys::signal::{SigSet, Signal};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use ublk_frontend::{
    Device, DeviceSpec, DiscardLimits, Event, Features, Fetched, Frontend, Op, Queue, Request,
    RequestError, StopError, UBLK_KEY,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, Copy)]
struct RingOptions {
    defer: bool,
    small_table: bool,
    mixed: bool,
    entries: Option<u32>,
}

/// Memory is locked in pieces of this size.
const PIECE: usize = 1 << 20;

struct Options {
    size: u64,
    queues: u16,
    depth: u16,
    max_request: u32,
    chunk: u64,
    backs: Vec<String>,
    id: Option<u32>,
    zero_copy: bool,
    recovery: bool,
    cycles: u32,
    ring: RingOptions,
}

fn options() -> Result<Options> {
    let mut o = Options {
        size: 64 << 20,
        queues: 1,
        depth: 64,
        max_request: 1 << 20,
        chunk: 64 << 10,
        backs: Vec::new(),
        id: None,
        zero_copy: false,
        recovery: false,
        cycles: 0,
        ring: RingOptions {
            defer: true,
            small_table: false,
            mixed: false,
            entries: None,
        },
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let mut value = || args.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--size-mib" => o.size = value()?.parse::<u64>()? << 20,
            "--queues" => o.queues = value()?.parse()?,
            "--depth" => o.depth = value()?.parse()?,
            "--max-request" => o.max_request = value()?.parse()?,
            "--chunk" => o.chunk = value()?.parse()?,
            "--back" => o.backs.push(value()?),
            "--id" => o.id = Some(value()?.parse()?),
            "--zero-copy" => o.zero_copy = true,
            "--recovery" => o.recovery = true,
            "--no-defer" => o.ring.defer = false,
            "--small-table" => o.ring.small_table = true,
            "--mixed" => o.ring.mixed = true,
            "--entries" => o.ring.entries = Some(value()?.parse()?),
            "--cycles" => o.cycles = value()?.parse()?,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    Ok(o)
}

/// Where the bytes are.
enum Store {
    Memory(Vec<Mutex<Box<[u8]>>>),
    Striped { files: Vec<File>, chunk: u64 },
}

impl Store {
    fn open(o: &Options) -> Result<(Store, u64)> {
        if o.backs.is_empty() {
            let pieces = o.size as usize / PIECE;
            let piece = || Mutex::new(vec![0; PIECE].into_boxed_slice());
            return Ok((
                Store::Memory((0..pieces).map(|_| piece()).collect()),
                o.size,
            ));
        }
        let mut files = Vec::new();
        let mut least = u64::MAX;
        for path in &o.backs {
            let file = File::options()
                .read(true)
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(path)?;
            let bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
            least = least.min(bytes / o.chunk * o.chunk);
            files.push(file);
        }
        let size = least * files.len() as u64;
        let chunk = o.chunk;
        Ok((Store::Striped { files, chunk }, size))
    }
}

/// Page-aligned memory for one request.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new(len: usize) -> Buffer {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Buffer { bytes, start }
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

/// State of a request that waits for backing devices.
struct Slot {
    request: Option<Request>,
    /// The request's pages are registered; copying for some members all the same is `mixed`.
    auto_buf: bool,
    left: u32,
    bytes: u64,
    error: i32,
    /// Per backing device, kept until its completion.
    spans: Vec<Vec<libc::iovec>>,
    buffer: Buffer,
}

struct Server {
    queue: Queue,
    store: Arc<Store>,
    options: RingOptions,
    slots: Vec<Slot>,
    requests: u64,
    not_registered: u64,
}

impl Server {
    fn new(queue: Queue, store: Arc<Store>, options: RingOptions, max_request: usize) -> Server {
        let (members, bytes) = match &*store {
            Store::Memory(_) => (0, 0),
            Store::Striped { files, .. } => (files.len(), max_request),
        };
        let slot = |_| Slot {
            request: None,
            auto_buf: false,
            left: 0,
            bytes: 0,
            error: 0,
            spans: vec![Vec::new(); members],
            buffer: Buffer::new(bytes),
        };
        Server {
            slots: (0..queue.depth()).map(slot).collect(),
            queue,
            store,
            options,
            requests: 0,
            not_registered: 0,
        }
    }

    fn run(mut self) -> Result<()> {
        let depth = u32::from(self.queue.depth());
        let entries = self
            .options
            .entries
            .unwrap_or(depth * 2)
            .next_power_of_two();
        let mut builder = IoUring::<squeue::Entry, cqueue::Entry>::builder();
        builder.setup_cqsize((depth * 8).next_power_of_two());
        if self.options.defer {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        let mut ring = builder.build(entries)?;
        if self.queue.auto_buf() {
            let size = if self.options.small_table {
                depth / 2
            } else {
                depth
            };
            ring.submitter().register_buffers_sparse(size.max(1))?;
        }
        self.queue.prime(&mut ring.submission());
        while !self.queue.stopped() {
            let (submitter, mut sq, mut cq) = ring.split();
            loop {
                let waiting = self.queue.flush(&mut sq);
                sq.sync();
                match submitter.submit_and_wait(usize::from(waiting == 0)) {
                    Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                    Err(e) => return Err(e.into()),
                    Ok(_) if waiting == 0 => break,
                    Ok(_) => {}
                }
                sq.sync();
            }
            sq.sync();
            cq.sync();
            for cqe in &mut cq {
                if cqe.user_data() & UBLK_KEY != 0 {
                    if let Event::Request(f) = self.queue.on_cqe(cqe.user_data(), cqe.result()) {
                        self.serve(&submitter, &mut sq, f)?;
                    }
                } else {
                    self.member_done(&mut sq, cqe.user_data(), cqe.result());
                }
            }
        }
        match self.queue.fault() {
            Some(errno) => Err(format!("queue fault: errno {errno}").into()),
            None => {
                eprintln!(
                    "queue {}: {} requests, {} without registered pages",
                    self.queue.qid(),
                    self.requests,
                    self.not_registered
                );
                Ok(())
            }
        }
    }

    fn serve(
        &mut self,
        submitter: &io_uring::Submitter<'_>,
        sq: &mut squeue::SubmissionQueue<'_>,
        fetched: Fetched,
    ) -> Result<()> {
        self.requests += 1;
        let request = match fetched.request {
            Ok(request) => request,
            Err(errno) => {
                self.queue.commit(sq, fetched.tag, errno);
                return Ok(());
            }
        };
        let store = self.store.clone();
        match &*store {
            Store::Memory(pieces) => {
                let result = self.in_memory(pieces, fetched.tag, request);
                let result = result.map_or_else(|errno| errno, |()| request.success());
                self.queue.commit(sq, fetched.tag, result);
            }
            Store::Striped { files, chunk } if request.has_data() => {
                if self.queue.auto_buf() && !fetched.auto_buf {
                    self.not_registered += 1;
                }
                self.striped(submitter, sq, files, *chunk, fetched, request)?;
            }
            Store::Striped { files, .. } => {
                let synced = files.iter().try_for_each(File::sync_data);
                let result = synced.map_or(RequestError::Io.result(), |()| 0);
                self.queue.commit(sq, fetched.tag, result);
            }
        }
        Ok(())
    }

    fn in_memory(
        &mut self,
        pieces: &[Mutex<Box<[u8]>>],
        tag: u16,
        request: Request,
    ) -> std::result::Result<(), i32> {
        let mut at = request.lba as usize * 512;
        let end = at + request.sectors as usize * 512;
        let mut offset = 0;
        while at < end {
            let (from, len) = (at % PIECE, (end - at).min(PIECE - at % PIECE));
            let mut piece = pieces[at / PIECE].lock().map_err(|_| -libc::EIO)?;
            let bytes = &mut piece[from..from + len];
            match request.op {
                // Several spans per call, to exercise the vectors.
                Op::Read => {
                    self.queue
                        .copy_out(self.queue.qid(), tag, offset, bytes.chunks(3 * 4096))?
                }
                Op::Write => {
                    self.queue
                        .copy_in(self.queue.qid(), tag, offset, bytes.chunks_mut(512))?
                }
                Op::Discard | Op::WriteZeroes { .. } => bytes.fill(0),
                Op::Flush => {}
            }
            at += len;
            offset += len as u32;
        }
        Ok(())
    }

    fn striped(
        &mut self,
        submitter: &io_uring::Submitter<'_>,
        sq: &mut squeue::SubmissionQueue<'_>,
        files: &[File],
        chunk: u64,
        fetched: Fetched,
        request: Request,
    ) -> Result<()> {
        let tag = fetched.tag;
        let slot = &mut self.slots[usize::from(tag)];
        let len = request.data_bytes() as usize;
        let mixed = self.options.mixed;
        let fixed = |member: usize| fetched.auto_buf && !(mixed && member % 2 == 1);
        let buffer = slot.buffer.get(len);
        if request.op == Op::Write && (!fetched.auto_buf || mixed) {
            self.queue
                .copy_in(self.queue.qid(), tag, 0, [&mut *buffer])
                .map_err(fail)?;
        }
        let base = buffer.as_mut_ptr();
        let n = files.len() as u64;
        let mut starts = vec![None; files.len()];
        slot.spans.iter_mut().for_each(Vec::clear);
        let (mut at, mut offset) = (request.lba * 512, 0);
        while offset < len {
            let index = at / chunk;
            let part = (chunk - at % chunk).min((len - offset) as u64);
            let member = (index % n) as usize;
            starts[member].get_or_insert(index / n * chunk + at % chunk);
            // With registered pages, addresses are offsets in the request.
            let base = if fixed(member) {
                std::ptr::null_mut()
            } else {
                base
            };
            slot.spans[member].push(libc::iovec {
                iov_base: base.wrapping_byte_add(offset).cast(),
                iov_len: part as usize,
            });
            at += part;
            offset += part as usize;
        }
        slot.request = Some(request);
        slot.auto_buf = fetched.auto_buf;
        (slot.left, slot.bytes, slot.error) = (0, 0, 0);
        for (member, start) in starts.iter().enumerate() {
            let Some(start) = *start else { continue };
            let fd = types::Fd(files[member].as_raw_fd());
            let spans = &slot.spans[member];
            let (list, count) = (spans.as_ptr(), spans.len() as u32);
            let entry = match (request.op, fixed(member)) {
                (Op::Read, true) => opcode::ReadvFixed::new(fd, list, count, tag)
                    .offset(start)
                    .build(),
                (Op::Read, false) => opcode::Readv::new(fd, list, count).offset(start).build(),
                (_, true) => opcode::WritevFixed::new(fd, list, count, tag)
                    .offset(start)
                    .build(),
                (_, false) => opcode::Writev::new(fd, list, count).offset(start).build(),
            }
            .user_data((member as u64) << 16 | u64::from(tag));
            // SAFETY: the span list and the buffer stay in the slot, untouched, until the last completion of this
            // request; with registered pages the spans are offsets and the kernel checks them. The server lives
            // until its queue has stopped, hence longer than any request.
            while unsafe { sq.push(&entry) }.is_err() {
                sq.sync();
                submitter.submit()?;
                sq.sync();
            }
            slot.left += 1;
        }
        Ok(())
    }

    fn member_done(&mut self, sq: &mut squeue::SubmissionQueue<'_>, key: u64, res: i32) {
        let tag = key as u16;
        let slot = &mut self.slots[usize::from(tag)];
        slot.left -= 1;
        if res < 0 {
            if slot.error == 0 {
                eprintln!("backing device {}: errno {}", key >> 16, -res);
            }
            slot.error = RequestError::Io.result();
        } else {
            slot.bytes += res as u64;
        }
        if slot.left > 0 {
            return;
        }
        let Some(request) = slot.request.take() else {
            return;
        };
        let mut result = request.success();
        if slot.error != 0 || slot.bytes != u64::from(request.data_bytes()) {
            result = RequestError::Io.result();
        } else if request.op == Op::Read
            && let Err(errno) = self.copy_back(tag, request)
        {
            result = errno;
        }
        self.queue.commit(sq, tag, result);
    }

    /// Hands bytes that were read into the buffer to the client.
    fn copy_back(&mut self, tag: u16, request: Request) -> std::result::Result<(), i32> {
        let Store::Striped { files, chunk } = &*self.store else {
            return Ok(());
        };
        let slot = &mut self.slots[usize::from(tag)];
        let buffer = slot.buffer.get(request.data_bytes() as usize);
        if !slot.auto_buf {
            return self.queue.copy_out(self.queue.qid(), tag, 0, [&*buffer]);
        }
        if !self.options.mixed {
            return Ok(());
        }
        let (mut at, mut offset) = (request.lba * 512, 0);
        while offset < buffer.len() {
            let part = ((chunk - at % chunk) as usize).min(buffer.len() - offset);
            if at / chunk % files.len() as u64 % 2 == 1 {
                let bytes = &buffer[offset..offset + part];
                self.queue
                    .copy_out(self.queue.qid(), tag, offset as u32, [bytes])?;
            }
            at += part as u64;
            offset += part;
        }
        Ok(())
    }
}

fn fail(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(-errno)
}

fn serve(o: &Options, store: &Arc<Store>, size: u64, features: &Features) -> Result<Running> {
    let memory = o.backs.is_empty();
    let spec = DeviceSpec {
        id: o.id,
        queues: o.queues,
        depth: o.depth,
        max_request_bytes: o.max_request,
        sectors: size / 512,
        discard: memory.then_some(DiscardLimits {
            max_sectors: u32::MAX,
            granularity: 4096,
        }),
        write_zeroes_max_sectors: if memory { u32::MAX } else { 0 },
        zero_copy: o.zero_copy,
        recovery: o.recovery,
        dma_alignment_mask: if o.zero_copy { 511 } else { 0 },
        cookie: u64::from_ne_bytes(*b"memdisk\0"),
        ..DeviceSpec::default()
    };
    let device = Device::add(&spec, features)?;
    let mut threads = Vec::new();
    for qid in 0..device.queues() {
        let queue = device.queue(qid)?;
        let ring = o.ring;
        let store = store.clone();
        let max_request = o.max_request as usize;
        threads.push(std::thread::spawn(move || {
            Server::new(queue, store, ring, max_request).run()
        }));
    }
    device.start()?;
    Ok(Running { device, threads })
}

struct Running {
    device: Device,
    threads: Vec<std::thread::JoinHandle<Result<()>>>,
}

impl Running {
    fn finish(self) -> Result<()> {
        for thread in self.threads {
            thread.join().map_err(|_| "a queue thread panicked")??;
        }
        Ok(self.device.delete()?)
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn main() -> Result<()> {
    let o = options()?;
    let features = Features::probe()?;
    eprintln!("driver {:#x}: {:?}", features.bits(), features.names());
    for old in ublk_frontend::existing::existing()? {
        eprintln!("existing: {old:?}");
        if !old.alive && old.cookie == u64::from_ne_bytes(*b"memdisk\0") {
            ublk_frontend::existing::remove(old.id)?;
            eprintln!("removed {}", old.id);
        }
    }
    let (store, size) = Store::open(&o)?;
    let store = Arc::new(store);
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;

    for cycle in 0..o.cycles {
        let begin = Instant::now();
        let running = serve(&o, &store, size, &features)?;
        let mut first = [0; 4096];
        File::open(running.device.path())?.read_exact_at(&mut first, 0)?;
        running.device.stop()?;
        running.finish()?;
        let (ms, files) = (begin.elapsed().as_millis(), open_files());
        println!("cycle {cycle}: {ms} ms, {files} open files");
    }
    if o.cycles > 0 {
        return Ok(());
    }

    let running = serve(&o, &store, size, &features)?;
    eprintln!(
        "queues {} depth {} auto_buf {} flags {:#x} cpus {:?}",
        running.device.queues(),
        running.device.depth(),
        running.device.auto_buf(),
        running.device.features().bits(),
        running.device.queue_cpus(0)
    );
    println!("{}", running.device.path().display());
    loop {
        let signal = signals.wait()?;
        if signal == Signal::SIGINT {
            running.device.stop_forced()?;
            break;
        }
        match running.device.stop() {
            Ok(()) => break,
            Err(StopError::Busy) => println!("busy"),
            Err(e) => return Err(e.into()),
        }
    }
    running.finish()?;
    println!("stopped");
    Ok(())
}
