//! Our kernels beside others' on the same memory, in interleaved pairs. `compare/run` builds the others and calls this:
//!
//! `compare KERNEL_RAID6.so LABEL=ISAL.so...`
//!
//! One thread. Every row is a job; in each round both sides do it for a few milliseconds, one after the other, who goes
//! first alternating. The ratio is the median over the rounds of ours / theirs within a round; the spread is the range from
//! the 10th to the 90th percentile. Rates count bytes of data (chunks that are encoded, or that one side of an update
//! or a recovery deals with), never parity. Of the kernel's algorithms the one that is fastest at the row's own job is taken.
//! Owns a few GiB of memory; takes about two minutes.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hint::black_box;
use std::time::Duration;

use parity_kernels::{Arena, BufRange, Change, Engine, Hints, LostData, Source};

/// Far more than the largest third-level cache.
const COLD_BYTES: usize = 3 << 30;
const ROUNDS: usize = 61;

type Gen = unsafe extern "C" fn(c_int, usize, *mut *mut c_void);
type Xor = unsafe extern "C" fn(c_int, c_int, c_int, usize, *mut *mut c_void);
type Data2 = unsafe extern "C" fn(c_int, usize, c_int, c_int, *mut *mut c_void);
type PqGen = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;

/// `struct raid6_calls` of Linux.
#[repr(C)]
struct KernelCalls {
    gen_syndrome: Option<Gen>,
    xor_syndrome: Option<Xor>,
    valid: Option<unsafe extern "C" fn() -> c_int>,
    name: *const c_char,
    priority: c_int,
}

/// A loaded library; never unloaded.
struct Library(*mut c_void);

impl Library {
    fn open(path: &str) -> Library {
        let path = CString::new(path).expect("a path without zero bytes");
        // SAFETY: a zero-terminated path; the library is one that the script has just built.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        // SAFETY: the message, if there is one, is a zero-terminated string that lives until the next call.
        let error = || unsafe { CStr::from_ptr(libc::dlerror()) };
        assert!(!handle.is_null(), "{:?}", error());
        Library(handle)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a live handle and a zero-terminated name.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "no {name:?}");
        symbol
    }
}

struct Algorithm {
    name: String,
    generate: Gen,
    xor: Option<Xor>,
}

struct Kernel {
    algorithms: Vec<Algorithm>,
    data2: Data2,
}

impl Kernel {
    fn load(path: &str) -> Kernel {
        let library = Library::open(path);
        let select = library.symbol(c"raid6_select_algo");
        // SAFETY: `int raid6_select_algo(void)`; it sets the library's own choice, which `data2` uses.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(select)() };
        let mut list = library.symbol(c"raid6_algos").cast::<*const KernelCalls>();
        let mut algorithms = Vec::new();
        // SAFETY: `const struct raid6_calls * const raid6_algos[]`, ended by a null.
        unsafe {
            while let Some(calls) = (*list).as_ref() {
                list = list.add(1);
                if calls.valid.is_none_or(|valid| valid() != 0) {
                    algorithms.push(Algorithm {
                        name: CStr::from_ptr(calls.name).to_string_lossy().into_owned(),
                        generate: calls.gen_syndrome.expect("every algorithm generates"),
                        xor: calls.xor_syndrome,
                    });
                }
            }
        }
        // SAFETY: `void (*raid6_2data_recov)(int, int, int, size_t, void **)`, set by the selection.
        let data2 = unsafe { *library.symbol(c"raid6_2data_recov").cast::<Option<Data2>>() };
        Kernel {
            algorithms,
            data2: data2.expect("the selection sets it"),
        }
    }
}

fn isal(path: &str) -> PqGen {
    let symbol = Library::open(path).symbol(c"pq_gen");
    // SAFETY: `int pq_gen(int vects, int len, void **array)`.
    unsafe { std::mem::transmute::<*mut c_void, PqGen>(symbol) }
}

/// A stripe in the arena: data, P, Q, and two spare chunks.
struct Stripe {
    ranges: Vec<BufRange>,
    /// Addresses of data, P and Q, as C wants them.
    pointers: Vec<*mut c_void>,
}

fn stripes(arena: &Arena, data: usize, chunk: usize, cold: bool) -> Vec<Stripe> {
    // Chunks of one stripe lie a page further apart than their length, so that they do not compete for the same
    // sets of the first cache, for either side.
    let pitch = chunk + 4096;
    let most = if cold { usize::MAX } else { 1 };
    let step = pitch * (data + 4);
    (0..(arena.len() / step).min(most))
        .map(|i| {
            let ranges: Vec<BufRange> = (0..data + 4)
                .map(|k| BufRange::new(i * step + k * pitch, chunk))
                .collect();
            let address = |r: &BufRange| arena.base_ptr().wrapping_add(r.off).cast();
            let pointers = ranges[..data + 2].iter().map(address).collect();
            Stripe { ranges, pointers }
        })
        .collect()
}

/// One side of a row.
type Job<'a> = Box<dyn FnMut(usize) + 'a>;

/// Processor time of this thread: what other work on the machine takes away does not count.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the one struct it is given.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Bytes per second times 10^-9 of `job`, which does `bytes` at each call, over about `time`.
fn rate(bytes: usize, stripes: usize, next: &mut usize, time: Duration, job: &mut Job) -> f64 {
    // Reading that clock costs as much as a small job; so some data lie between two readings.
    let batch = ((1 << 20) / bytes).max(1);
    let (start, mut calls) = (thread_time(), 0);
    loop {
        for _ in 0..batch {
            job(*next);
            *next = (*next + 1) % stripes;
        }
        calls += batch;
        let spent = thread_time() - start;
        if spent >= time {
            return (bytes * calls) as f64 / spent.as_secs_f64() / 1e9;
        }
    }
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}

struct Row<'a> {
    name: String,
    bytes: usize,
    stripes: usize,
    cold: bool,
    ours: (String, Job<'a>),
    theirs: (String, Job<'a>),
}

impl Row<'_> {
    fn run(mut self) {
        // For a look at a single row.
        if std::env::var("ROWS").is_ok_and(|rows| !self.name.contains(&rows)) {
            return;
        }
        let time = Duration::from_micros(if self.cold { 8000 } else { 1500 });
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = 0;
        for round in 0..ROUNDS + 2 {
            let (mut a, mut b) = (0.0, 0.0);
            for side in [round % 2, 1 - round % 2] {
                match side {
                    0 => a = rate(self.bytes, self.stripes, &mut next, time, &mut self.ours.1),
                    _ => {
                        b = rate(
                            self.bytes,
                            self.stripes,
                            &mut next,
                            time,
                            &mut self.theirs.1,
                        )
                    }
                }
            }
            // The first rounds warm up.
            if round >= 2 {
                ours.push(a);
                theirs.push(b);
                ratios.push(a / b);
            }
        }
        println!(
            "| {} | {} | {:.1} | {} | {:.1} | **{:.2}** | {:.2}-{:.2} |",
            self.name,
            self.ours.0,
            quantile(&mut ours, 0.5),
            self.theirs.0,
            quantile(&mut theirs, 0.5),
            quantile(&mut ratios, 0.5),
            quantile(&mut ratios, 0.1),
            quantile(&mut ratios, 0.9),
        );
    }
}

/// Slices of the arena without borrowing it.
fn bytes<'a>(base: *mut u8, range: BufRange) -> &'a [u8] {
    // SAFETY: within the arena, which outlives every job; one thread, and no job reads what it writes.
    unsafe { std::slice::from_raw_parts(base.add(range.off), range.len) }
}

fn bytes_mut<'a>(base: *mut u8, range: BufRange) -> &'a mut [u8] {
    // SAFETY: as for `bytes`; what a job writes overlaps none of its other slices.
    unsafe { std::slice::from_raw_parts_mut(base.add(range.off), range.len) }
}

struct Bench {
    arena: Arena,
    engine: Engine,
    kernel: Kernel,
    isals: Vec<(String, PqGen)>,
}

/// Room for the operands of a call.
const MOST: usize = 32;

impl Bench {
    fn label(&self, hints: Hints) -> String {
        let mut label = self.engine.name().to_string();
        for (set, name) in [(hints.cold, "cold"), (hints.streaming, "streaming")] {
            if set {
                label += " ";
                label += name;
            }
        }
        label
    }

    /// The lists of data, made beforehand as the lists of addresses for the others are. The first `skip` are left out.
    fn sources<'a>(&self, stripes: &'a [Stripe], data: usize, skip: usize) -> Vec<Vec<Source<'a>>> {
        let base = self.arena.base_ptr();
        let source = |stripe: &'a Stripe, k: usize| Source {
            data: bytes(base, stripe.ranges[k]),
            exp: k as u8,
        };
        let list = |stripe: &'a Stripe| (skip..data).map(|k| source(stripe, k)).collect();
        stripes.iter().map(list).collect()
    }

    fn our_encode<'a>(&self, stripes: &'a [Stripe], data: usize, hints: Hints) -> Job<'a> {
        let (base, engine) = (self.arena.base_ptr(), self.engine.with(hints));
        let lists = self.sources(stripes, data, 0);
        Box::new(move |i| {
            let ranges = &stripes[i].ranges;
            let (p, q) = (
                bytes_mut(base, ranges[data]),
                bytes_mut(base, ranges[data + 1]),
            );
            engine.encode(black_box(&lists[i]), Some(p), Some(q));
        })
    }

    fn our_update<'a>(
        &self,
        stripes: &'a [Stripe],
        data: usize,
        which: usize,
        hints: Hints,
    ) -> Job<'a> {
        let (base, engine) = (self.arena.base_ptr(), self.engine.with(hints));
        Box::new(move |i| {
            let ranges = &stripes[i].ranges;
            let change = Change {
                old: bytes(base, ranges[which]),
                new: bytes(base, ranges[data + 2]),
                exp: which as u8,
            };
            let (p, q) = (
                bytes_mut(base, ranges[data]),
                bytes_mut(base, ranges[data + 1]),
            );
            engine.update(black_box(&[change]), Some(p), Some(q));
        })
    }

    fn our_recover<'a>(&self, stripes: &'a [Stripe], data: usize, hints: Hints) -> Job<'a> {
        let (base, engine) = (self.arena.base_ptr(), self.engine.with(hints));
        let lists = self.sources(stripes, data, 2);
        Box::new(move |i| {
            let ranges = &stripes[i].ranges;
            let mut lost = [0, 1].map(|k| LostData {
                out: bytes_mut(base, ranges[k]),
                exp: k as u8,
            });
            let (p, q) = (bytes(base, ranges[data]), bytes(base, ranges[data + 1]));
            let done = engine.recover(black_box(&lists[i]), Some(p), Some(q), &mut lost);
            done.expect("both parities are there");
        })
    }

    /// The kernel algorithm that does `job` fastest.
    fn best_kernel<'a>(
        &'a self,
        bytes: usize,
        stripes: usize,
        cold: bool,
        job: impl Fn(&'a Algorithm) -> Option<Job<'a>>,
    ) -> (String, Job<'a>) {
        let time = Duration::from_millis(if cold { 8 } else { 1 });
        let (mut best, mut next) = (None::<(f64, &Algorithm)>, 0);
        for algorithm in &self.kernel.algorithms {
            let Some(mut run) = job(algorithm) else {
                continue;
            };
            let mut rates: Vec<f64> = (0..9)
                .map(|_| rate(bytes, stripes, &mut next, time, &mut run))
                .collect();
            let median = quantile(&mut rates, 0.5);
            if best.is_none_or(|(rate, _)| median > rate) {
                best = Some((median, algorithm));
            }
        }
        let (_, algorithm) = best.expect("the kernel has an algorithm for this");
        let label = format!("kernel {}", algorithm.name);
        (label, job(algorithm).expect("it had it before"))
    }

    fn encode_rows(&self, data: usize, chunk: usize, cold: bool, hints: &[Hints]) {
        let stripes = stripes(&self.arena, data, chunk, cold);
        let where_ = if cold { "DRAM" } else { "cache" };
        let row = |hints: Hints, theirs: (String, Job)| {
            Row {
                name: format!("encode {data}+2, {} KiB chunks, {where_}", chunk >> 10),
                bytes: data * chunk,
                stripes: stripes.len(),
                cold,
                ours: (self.label(hints), self.our_encode(&stripes, data, hints)),
                theirs,
            }
            .run();
        };
        for &hints in hints {
            row(
                hints,
                self.best_kernel(data * chunk, stripes.len(), cold, |algorithm| {
                    let generate = algorithm.generate;
                    let stripes = &stripes;
                    Some(Box::new(move |i: usize| {
                        let pointers = stripes[i].pointers.as_ptr().cast_mut();
                        // SAFETY: data + 2 chunks of `chunk` bytes, a multiple of all widths, on whole pages.
                        unsafe { generate(data as c_int + 2, chunk, pointers) };
                    }) as Job)
                }),
            );
            for (label, pq_gen) in &self.isals {
                let stripes = &stripes;
                let job: Job = Box::new(move |i: usize| {
                    let pointers = stripes[i].pointers.as_ptr().cast_mut();
                    // SAFETY: as for the kernel.
                    let result = unsafe { pq_gen(data as c_int + 2, chunk as c_int, pointers) };
                    assert_eq!(result, 0);
                });
                row(hints, (label.clone(), job));
            }
        }
    }

    fn update_row(&self, data: usize, which: usize, chunk: usize, cold: bool, hints: Hints) {
        let stripes = stripes(&self.arena, data, chunk, cold);
        let base = self.arena.base_ptr();
        let theirs = self.best_kernel(chunk, stripes.len(), cold, |algorithm| {
            let xor = algorithm.xor?;
            let stripes = &stripes;
            Some(Box::new(move |i: usize| {
                let stripe = &stripes[i];
                let mut pointers = [std::ptr::null_mut(); MOST];
                pointers[..data + 2].copy_from_slice(&stripe.pointers);
                let pointers = black_box(&mut pointers);
                let (disks, which) = (data as c_int + 2, which as c_int);
                // SAFETY: as for encode; the first pass takes the old chunk out, the second puts the new one in.
                unsafe {
                    xor(disks, which, which, chunk, pointers.as_mut_ptr());
                    pointers[which as usize] = base.add(stripe.ranges[data + 2].off).cast();
                    xor(disks, which, which, chunk, pointers.as_mut_ptr());
                }
            }) as Job)
        });
        Row {
            name: format!(
                "update of chunk {which} of {data}+2, {} KiB, {}",
                chunk >> 10,
                if cold { "DRAM" } else { "cache" }
            ),
            bytes: chunk,
            stripes: stripes.len(),
            cold,
            ours: (
                self.label(hints),
                self.our_update(&stripes, data, which, hints),
            ),
            theirs,
        }
        .run();
    }

    fn recover_rows(&self, data: usize, chunk: usize, cold: bool, hints: Hints) {
        let stripes = stripes(&self.arena, data, chunk, cold);
        let name = format!(
            "2 lost of {data}+2, {} KiB, {}",
            chunk >> 10,
            if cold { "DRAM" } else { "cache" }
        );
        let row = |theirs: (String, Job)| {
            Row {
                name: name.clone(),
                bytes: data * chunk,
                stripes: stripes.len(),
                cold,
                ours: (self.label(hints), self.our_recover(&stripes, data, hints)),
                theirs,
            }
            .run();
        };
        row(("own encode".into(), self.our_encode(&stripes, data, hints)));
        let (data2, list) = (self.kernel.data2, &stripes);
        let job: Job = Box::new(move |i: usize| {
            // It takes a page at a time: what it puts in place of lost chunks is a page of zeroes.
            for page in (0..chunk).step_by(4096) {
                let mut pointers = [std::ptr::null_mut(); MOST];
                for (to, from) in pointers.iter_mut().zip(&list[i].pointers) {
                    *to = from.wrapping_byte_add(page);
                }
                let pointers = black_box(&mut pointers).as_mut_ptr();
                // SAFETY: as for encode; it writes the two lost chunks.
                unsafe { data2(data as c_int + 2, 4096, 0, 1, pointers) };
            }
        });
        row(("kernel's selection".into(), job));
    }

    /// Everyone must come to the same P and Q, or the rates mean nothing.
    fn assert_same_bytes(&mut self) {
        let (data, chunk) = (6, 4096);
        let stripes = stripes(&self.arena, data, chunk, false);
        let base = self.arena.base_ptr();
        let ranges = &stripes[0].ranges;
        let parities = || {
            [
                bytes(base, ranges[data]).to_vec(),
                bytes(base, ranges[data + 1]).to_vec(),
            ]
        };
        self.our_encode(&stripes, data, Hints::default())(0);
        let ours = parities();
        let pointers = stripes[0].pointers.as_ptr().cast_mut();
        for algorithm in &self.kernel.algorithms {
            bytes_mut(base, ranges[data + 1]).fill(0);
            // SAFETY: as in the rows.
            unsafe { (algorithm.generate)(data as c_int + 2, chunk, pointers) };
            assert_eq!(parities(), ours, "kernel {}", algorithm.name);
        }
        for (label, pq_gen) in &self.isals {
            bytes_mut(base, ranges[data + 1]).fill(0);
            // SAFETY: as in the rows.
            unsafe { pq_gen(data as c_int + 2, chunk as c_int, pointers) };
            assert_eq!(parities(), ours, "{label}");
        }
    }
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (kernel, isals) = arguments
        .split_first()
        .expect("usage: compare KERNEL.so LABEL=ISAL.so...");
    let mut arena = Arena::new(COLD_BYTES >> 21, 2 << 20)?;
    let all = BufRange::new(0, arena.len());
    for (i, word) in arena
        .bytes_mut(all)
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .enumerate()
    {
        *word = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    }
    let mut bench = Bench {
        arena,
        engine: Engine::detect(),
        kernel: Kernel::load(kernel),
        isals: isals
            .iter()
            .map(|isal_| {
                let (label, path) = isal_.split_once('=').expect("LABEL=PATH");
                (label.to_string(), isal(path))
            })
            .collect(),
    };
    bench.assert_same_bytes();
    println!("| job | ours | GB/s | theirs | GB/s | ours / theirs | 10th-90th percentile |");
    println!("|---|---|---|---|---|---|---|");
    let plain = Hints::default();
    let cold = Hints {
        cold: true,
        ..plain
    };
    let streaming = Hints {
        cold: true,
        streaming: true,
    };
    for (data, chunk) in [
        (6, 4096),
        (6, 16 << 10),
        (6, 64 << 10),
        (4, 64 << 10),
        (22, 16 << 10),
    ] {
        bench.encode_rows(data, chunk, false, &[plain]);
    }
    for which in [0, 5] {
        bench.update_row(6, which, 4096, false, plain);
        bench.update_row(6, which, 64 << 10, false, plain);
    }
    bench.update_row(22, 21, 4096, false, plain);
    bench.recover_rows(6, 4096, false, plain);
    bench.recover_rows(6, 64 << 10, false, plain);
    bench.encode_rows(6, 64 << 10, true, &[plain, cold, streaming]);
    bench.encode_rows(22, 64 << 10, true, &[streaming]);
    for hints in [plain, cold, streaming] {
        bench.update_row(6, 3, 64 << 10, true, hints);
    }
    bench.update_row(6, 3, 4096, true, cold);
    bench.recover_rows(6, 64 << 10, true, streaming);
    Ok(())
}
