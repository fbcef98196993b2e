//! A lane to a CUDA device: small and medium jobs through the ring, large ones in batches; and the device that opens lanes.
//!
//! Owns, per lane, the registration of one arena. All lanes of a device share one context, since kernels of different
//! contexts take turns on a device rather than run side by side. When anything fails in a context, all its lanes fail;
//! the first to be closed destroys the context, and with it whatever still runs there; the next to be opened makes a new
//! one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::bulk::Bulk;
use super::driver::{Context, Kernel, Stream};
use super::memory::{DeviceMemory, Registered};
use super::probe::{DeviceInfo, Selection, Unavailable, probe};
use super::ring::{Ring, RingOptions};
use crate::buf::{Arena, BufRange, Memory};
use crate::offload::{ArenaJob, Done, Lane, LaneCost, LaneError, Opener, Refusal};

/// From this many bytes of data on, a check goes in a batch: these come from sweeps, where a batch costs no multiprocessor
/// its time, and nobody waits for the 200 us that it takes.
const BULK_CHECK: usize = 256 << 10;
/// The same for what a read or a write waits for.
const BULK_REQUEST: usize = 4 << 20;

/// How lanes use a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// See [`RingOptions`].
    pub ring: RingOptions,
    /// Take every job in batches, or none. `None`: by size.
    pub bulk: Option<bool>,
}

/// One CUDA device, and the context that its lanes share.
pub struct Gpu {
    info: DeviceInfo,
    options: GpuOptions,
    context: Mutex<Option<Arc<Context>>>,
}

/// The devices selected, ready to open lanes on.
///
/// # Errors
/// Why there are none, or that one is not there.
pub fn gpus(selection: &Selection, options: GpuOptions) -> Result<Vec<Arc<Gpu>>, Unavailable> {
    let found = probe()?;
    let chosen = selection.choose(&found.devices)?;
    Ok(chosen
        .into_iter()
        .map(|info| Arc::new(Gpu::new(info, options)))
        .collect())
}

impl Gpu {
    /// The device, untouched until the first lane is opened.
    pub fn new(info: DeviceInfo, options: GpuOptions) -> Gpu {
        Gpu {
            info,
            options,
            context: Mutex::new(None),
        }
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Blocks of the kernels of its lanes, unless they are opened otherwise.
    pub fn blocks(&self) -> u32 {
        self.options.ring.blocks
    }

    /// Opens lanes on it whose kernels have so many blocks, a power of two (see [`RingOptions::blocks`]).
    pub fn with_blocks(self: &Arc<Gpu>, blocks: u32) -> Arc<dyn Opener> {
        let mut options = self.options;
        options.ring.blocks = blocks;
        let gpu = self.clone();
        Arc::new(WithBlocks { gpu, options })
    }

    /// The context of new lanes: the present one, unless something failed there.
    pub(crate) fn context(&self) -> Result<Arc<Context>, LaneError> {
        let mut held = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = held.as_ref().filter(|context| !context.failed()) {
            return Ok(context.clone());
        }
        let context = Context::new(&self.info)?;
        *held = Some(context.clone());
        Ok(context)
    }

    /// Have a kernel fault on the device, as a bug or a broken card would. Every lane on it fails. For tests of what
    /// happens then.
    ///
    /// # Errors
    /// No kernel could be started.
    pub fn inject_fault(&self) -> Result<(), LaneError> {
        let context = self.context()?;
        let stream = Stream::new(&context)?;
        // SAFETY: the kernel has no parameters and touches no memory.
        unsafe { stream.launch(Kernel::Trap, 1, 1, &mut []) }
    }

    /// Destroy the context under its lanes. Every lane on it fails. For tests of what happens then.
    ///
    /// # Errors
    /// What the driver says.
    pub fn inject_loss(&self) -> Result<(), LaneError> {
        self.context()?.destroy()
    }

    /// Take all memory that the device has left, until the result is dropped. For tests of what happens then.
    ///
    /// # Errors
    /// There is no context.
    pub fn inject_shortage(&self) -> Result<Shortage, LaneError> {
        let context = self.context()?;
        let mut held = Vec::new();
        let mut bytes = 1usize << 38;
        while bytes >= 1 << 12 {
            match DeviceMemory::new(&context, bytes) {
                Ok(memory) => held.push(memory),
                Err(_) => bytes /= 2,
            }
        }
        Ok(Shortage { _held: held })
    }

    /// A lane, as itself.
    ///
    /// # Errors
    /// As [`Opener::open`].
    pub fn lane(&self, memory: Arc<Memory>) -> Result<CudaLane, LaneError> {
        self.lane_as(memory, self.options)
    }

    fn lane_as(&self, memory: Arc<Memory>, options: GpuOptions) -> Result<CudaLane, LaneError> {
        let context = self.context()?;
        let result = CudaLane::new(context.clone(), memory, options);
        if result.is_err() && context.failed() {
            // So that the next attempt finds a fresh one.
            context.destroy()?;
        }
        result
    }
}

/// See [`Gpu::inject_shortage`].
pub struct Shortage {
    _held: Vec<DeviceMemory>,
}

/// Opens lanes on a device whose kernels have another number of blocks than the device's own.
struct WithBlocks {
    gpu: Arc<Gpu>,
    options: GpuOptions,
}

impl Opener for WithBlocks {
    fn name(&self) -> String {
        self.gpu.name()
    }

    fn open(&self, memory: Arc<Memory>) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(self.gpu.lane_as(memory, self.options)?))
    }
}

impl Opener for Gpu {
    fn name(&self) -> String {
        format!("GPU {} ({})", self.info.ordinal, self.info.name)
    }

    fn open(&self, memory: Arc<Memory>) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(self.lane(memory)?))
    }
}

/// See the module.
pub struct CudaLane {
    ring: Ring,
    bulk: Bulk,
    choice: Option<bool>,
    cost: LaneCost,
    context: Arc<Context>,
    /// Set once [`Lane::close`] has done its work, or there is nothing for it to do.
    closed: bool,
}

impl CudaLane {
    fn new(
        context: Arc<Context>,
        memory: Arc<Memory>,
        options: GpuOptions,
    ) -> Result<CudaLane, LaneError> {
        let bytes = memory.len();
        let arena = Arc::new(Registered::new(&context, memory)?);
        let mut lane = CudaLane {
            ring: Ring::new(&context, arena.clone(), bytes, options.ring)?,
            bulk: Bulk::new(&context, arena)?,
            choice: options.bulk,
            cost: LaneCost {
                caller_ns: 0.0,
                latency_ns: 0.0,
                ns_per_byte: 0.0,
            },
            context,
            closed: false,
        };
        let measured = lane.measure(bytes);
        lane.ring.park();
        match measured {
            Ok(cost) => lane.cost = cost,
            Err(error) => {
                lane.shut()?;
                return Err(error);
            }
        }
        Ok(lane)
    }

    /// Time some checks. They read the arena, whatever is in it, and write nothing.
    fn measure(&mut self, bytes: usize) -> Result<LaneCost, LaneError> {
        // A small job says what a trip costs, larger ones what a byte costs.
        let chunk = |most: usize| (bytes / 8 / 512 * 512).clamp(512, most);
        let (small, large) = (chunk(4 << 10), chunk(16 << 10));
        if bytes < 7 * large {
            return Err(LaneError::new("the arena is too small for a lane"));
        }
        let data = |chunk: usize| -> [(BufRange, u8); 6] {
            std::array::from_fn(|i| (BufRange::new(i * chunk, chunk), i as u8))
        };
        let (small_data, large_data) = (data(small), data(large));
        let check = |data, chunk| ArenaJob::Check {
            data,
            p: Some(BufRange::new(6 * chunk, chunk)),
            q: None,
        };
        let mut done = Vec::with_capacity(64);
        let mut single = Vec::new();
        for _ in 0..64 {
            let start = Instant::now();
            self.one(&check(&small_data[..], small), &mut done)?;
            single.push(start.elapsed().as_nanos() as f64);
        }
        single.sort_by(f64::total_cmp);
        let latency_ns = single[single.len() / 2];
        let job = check(&large_data[..], large);
        self.one(&job, &mut done)?;
        // As many as the ring takes, for as long as it takes to see a rate.
        const JOBS: u32 = 500;
        let (mut taken, mut finished) = (0u32, 0u32);
        let mut handing = std::time::Duration::ZERO;
        let start = Instant::now();
        while finished < JOBS {
            let begin = Instant::now();
            while taken < JOBS && taken - finished < 64 {
                if self.ring.submit(taken, &job).is_err() {
                    break;
                }
                taken += 1;
            }
            done.clear();
            self.ring.poll(None, &mut done)?;
            if !done.is_empty() {
                handing += begin.elapsed();
            }
            finished += done.len() as u32;
        }
        let each = start.elapsed().as_nanos() as f64 / f64::from(JOBS);
        Ok(LaneCost {
            caller_ns: (handing.as_nanos() as f64 / f64::from(JOBS)).min(each),
            latency_ns,
            ns_per_byte: each / job.data_bytes() as f64,
        })
    }

    /// One job through the ring, waited for.
    fn one(&mut self, job: &ArenaJob, done: &mut Vec<Done>) -> Result<(), LaneError> {
        while self.ring.submit(0, job).is_err() {
            self.settle()?;
            self.ring.poll(None, done)?;
        }
        done.clear();
        while done.is_empty() {
            self.ring.poll(None, done)?;
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Wait until shapes that were refused for being new are there. For measurements and tests.
    ///
    /// # Errors
    /// What the driver says.
    pub fn settle(&mut self) -> Result<(), LaneError> {
        let context = self.context.clone();
        let _turn = loop {
            if let Some(turn) = context.quiet.turn() {
                break turn;
            }
            self.ring.step_aside();
            std::thread::yield_now();
        };
        self.ring.settle()?;
        self.bulk.settle()
    }

    /// Clock readings of the last unit through the ring, if the kernels were compiled with RAIDD_PROFILE: when the question
    /// was sent, the unit found, known to all threads, the first column done, all columns done, the answer sent.
    pub fn profile(&self) -> [u32; 6] {
        self.ring.profile()
    }

    fn is_bulk(&self, job: &ArenaJob) -> bool {
        self.choice.unwrap_or_else(|| {
            let bytes = job.data_bytes();
            match job {
                ArenaJob::Update { .. } => false,
                ArenaJob::Encode { .. } | ArenaJob::Recover { .. } => bytes >= BULK_REQUEST,
                ArenaJob::Check { .. } => bytes >= BULK_CHECK,
            }
        })
    }

    fn shut(&mut self) -> Result<(), LaneError> {
        if self.closed {
            return Ok(());
        }
        let ended = match self.context.failed() {
            true => Err(LaneError::new("the context has failed")),
            false => self.ring.close().and_then(|()| self.bulk.close()),
        };
        if ended.is_err() {
            self.context.destroy()?;
        }
        self.closed = true;
        Ok(())
    }
}

impl Lane for CudaLane {
    fn submit(&mut self, token: u32, job: &ArenaJob) -> Result<(), Refusal> {
        match self.is_bulk(job) {
            true => self.bulk.submit(token, job),
            false => self.ring.submit(token, job),
        }
    }

    fn poll(&mut self, arena: &mut Arena, done: &mut Vec<Done>) -> Result<(), LaneError> {
        if self.context.failed() {
            return Err(LaneError::new("the context has failed"));
        }
        let result = match self.ring.poll(Some(arena), done) {
            Ok(()) => self.bulk.poll(done),
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.context.fail();
        }
        result
    }

    fn in_flight(&self) -> usize {
        self.ring.in_flight() + self.bulk.in_flight()
    }

    fn queued_bytes(&self) -> u64 {
        self.ring.queued_bytes() + self.bulk.queued_bytes()
    }

    fn cost(&self) -> LaneCost {
        self.cost
    }

    fn park(&mut self) {
        self.ring.park();
    }

    fn awake(&self) -> bool {
        self.ring.awake()
    }

    fn close(mut self: Box<Self>) -> Result<(), LaneError> {
        let result = self.shut();
        if result.is_err() {
            // The device may still be using what would be given back now: keep it all, for good.
            std::mem::forget(self);
        }
        result
    }
}

impl Drop for CudaLane {
    fn drop(&mut self) {
        // Nobody closed it, a panic perhaps. What is in flight must not outlive the memory it works in.
        if self.shut().is_err() {
            std::process::abort();
        }
    }
}
