//! Measurements on a device that no lane needs: what a trivial kernel reaches, and what ours do when launched at once
//! over all of an arena, in host memory or in a copy of it on the device.
//!
//! Owns a stream and what it allocates for one measurement. Times are those of the device's own clock, from before the
//! first to after the last kernel of a repetition.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::driver::{Context, Event, Kernel, Stream, pointer};
use super::lane::Gpu;
use super::memory::{DeviceMemory, Registered, Shared};
use super::shape::{self, COLUMN, describe};
use super::shapes::Shapes;
use crate::buf::Arena;
use crate::job::Mismatch;
use crate::offload::{ArenaJob, LaneError};

/// Where the jobs of a measurement find their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the arena itself, reached over the bus.
    Host,
    /// In a copy of it in the device's memory, from which it is copied back at the end.
    Device,
}

/// See the module.
pub struct Yardstick {
    context: Arc<Context>,
    stream: Stream,
    start: Event,
    end: Event,
}

/// One measurement of a list of jobs.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Seconds of each repetition.
    pub seconds: Vec<f64>,
    /// What the checks found in the last one, by job.
    pub mismatches: Vec<Mismatch>,
}

impl Yardstick {
    /// On that device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Yardstick, LaneError> {
        let context = gpu.context()?;
        Ok(Yardstick {
            stream: Stream::new(&context)?,
            start: Event::new(&context, true)?,
            end: Event::new(&context, true)?,
            context,
        })
    }

    fn time(&self, work: impl FnOnce() -> Result<(), LaneError>) -> Result<f64, LaneError> {
        self.start.record(&self.stream)?;
        work()?;
        self.end.record(&self.stream)?;
        self.stream.wait()?;
        self.end.seconds_since(&self.start)
    }

    /// Seconds in which a kernel that does nothing else reads the arena over the bus.
    ///
    /// # Errors
    /// What the driver says.
    pub fn read(&self, arena: &Arena, blocks: u32, repeats: usize) -> Result<Vec<f64>, LaneError> {
        let host = Registered::new(&self.context, arena.memory())?;
        let sink = DeviceMemory::new(&self.context, 4096)?;
        let (mut from, mut columns, mut to) =
            (host.address, (arena.len() / COLUMN) as u64, sink.address);
        (0..repeats)
            .map(|_| {
                let mut arguments = [pointer(&mut from), pointer(&mut columns), pointer(&mut to)];
                // SAFETY: the parameters of `raidd_read`; both memories outlive the wait in `time`.
                self.time(|| unsafe {
                    self.stream
                        .launch(Kernel::Read, blocks, 256, &mut arguments)
                })
            })
            .collect()
    }

    /// Seconds in which the copy engine brings the arena to the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bring(&self, arena: &Arena, repeats: usize) -> Result<Vec<f64>, LaneError> {
        let host = Registered::new(&self.context, arena.memory())?;
        let device = DeviceMemory::new(&self.context, arena.len())?;
        (0..repeats)
            .map(|_| {
                // SAFETY: both memories are as long as the arena, and outlive the wait in `time`.
                self.time(|| unsafe { self.stream.copy(device.address, host.address, arena.len()) })
            })
            .collect()
    }

    /// Seconds in which `bytes` of the device's memory are copied to another place there, by the driver's own copy and by
    /// a kernel.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy(&self, bytes: usize, repeats: usize) -> Result<(Vec<f64>, Vec<f64>), LaneError> {
        let from = DeviceMemory::new(&self.context, bytes)?;
        let to = DeviceMemory::new(&self.context, bytes)?;
        // SAFETY: within the memory just taken.
        unsafe { self.stream.fill(from.address, 0x9e37_79b9, bytes / 4)? };
        let (mut kernels, mut copies) = (Vec::new(), Vec::new());
        let blocks = self.context.info.multiprocessors * 4;
        for _ in 0..repeats {
            // SAFETY: both are that long, and outlive the wait in `time`.
            copies
                .push(self.time(|| unsafe { self.stream.copy(to.address, from.address, bytes) })?);
            let (mut a, mut b, mut columns) = (from.address, to.address, (bytes / COLUMN) as u64);
            let mut arguments = [pointer(&mut a), pointer(&mut b), pointer(&mut columns)];
            kernels.push(self.time(|| {
                // SAFETY: the parameters of `raidd_copy`; as above.
                unsafe {
                    self.stream
                        .launch(Kernel::Copy, blocks, 256, &mut arguments)
                }
            })?);
        }
        Ok((copies, kernels))
    }

    /// Run the jobs in one launch, `repeats` times, with `unit` bytes of each range to a block at a time.
    ///
    /// # Errors
    /// What the driver says, or that a job cannot be described.
    pub fn jobs(
        &self,
        arena: &mut Arena,
        place: Place,
        jobs: &[ArenaJob],
        unit: usize,
        blocks: u32,
        repeats: usize,
    ) -> Result<Timed, LaneError> {
        let host = Registered::new(&self.context, arena.memory())?;
        let device = match place {
            Place::Host => None,
            Place::Device => Some(DeviceMemory::new(&self.context, arena.len())?),
        };
        let mut shapes = Shapes::new(&self.context)?;
        let mut units = Vec::new();
        let mut owners = Vec::new();
        let mut words = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            let placed = describe(job, &mut words)
                .map_err(|e| LaneError::new(format!("a job cannot be described: {e:?}")))?;
            if placed.aside {
                return Err(LaneError::new("updates are not measured this way"));
            }
            let shape = shapes.number_now(&words)?;
            for at in (0..placed.len).step_by(unit) {
                let len = unit.min(placed.len - at);
                units.push(shape::unit(u32::from(shape), placed.base + at, len));
                owners.push(index);
            }
        }
        let list = Shared::new(&self.context, units.len() * 16)?;
        let answers = Shared::new(&self.context, units.len() * 8)?;
        for (word, [low, high]) in list.words64(0, units.len() * 2).chunks(2).zip(&units) {
            word[0].store(*low, Ordering::Relaxed);
            word[1].store(*high, Ordering::Relaxed);
        }
        // From the device's memory, so that reading the list is not what is measured.
        let near = DeviceMemory::new(&self.context, units.len() * 16)?;
        // SAFETY: both are that long, and outlive the wait at the end.
        unsafe {
            self.stream
                .copy(near.address, list.address(), units.len() * 16)?
        };
        let base = device
            .as_ref()
            .map_or(host.address, |device| device.address);
        if let Some(device) = &device {
            // SAFETY: both are as long as the arena.
            unsafe {
                self.stream
                    .copy(device.address, host.address, arena.len())?
            };
        }
        let (mut from, mut count, mut answers_at) =
            (near.address, units.len() as u32, answers.address());
        let (mut shapes_at, mut memory) = (shapes.address(), base);
        let mut seconds = Vec::new();
        for _ in 0..repeats {
            let mut arguments = [
                pointer(&mut from),
                pointer(&mut count),
                pointer(&mut answers_at),
                pointer(&mut shapes_at),
                pointer(&mut memory),
            ];
            seconds.push(self.time(|| {
                // SAFETY: the parameters of `raidd_bulk`; all memory outlives the wait in `time`, and `arena` is
                // borrowed mutably, so that nobody else uses what the jobs name.
                unsafe {
                    self.stream
                        .launch(Kernel::Bulk, count.min(blocks), 256, &mut arguments)
                }
            })?);
        }
        if let Some(device) = &device {
            // SAFETY: as on the way in.
            unsafe {
                self.stream
                    .copy(host.address, device.address, arena.len())?
            };
        }
        self.stream.wait()?;
        let mut mismatches = vec![Mismatch::default(); jobs.len()];
        let found = answers.words32(0, units.len() * 2);
        for (unit, owner) in owners.into_iter().enumerate() {
            mismatches[owner].p |= found[2 * unit].load(Ordering::Acquire) != 0;
            mismatches[owner].q |= found[2 * unit + 1].load(Ordering::Acquire) != 0;
        }
        Ok(Timed {
            seconds,
            mismatches,
        })
    }

    /// Seconds of the calling thread from starting a kernel for one job over host memory to knowing that it is done: by
    /// `asking` again and again, or by the driver's own wait, which spins. A lane of the same device is open for the arena.
    ///
    /// # Errors
    /// As [`Yardstick::jobs`].
    pub fn launch_and_wait(
        &self,
        arena: &mut Arena,
        job: &ArenaJob,
        unit: usize,
        asking: bool,
        repeats: usize,
    ) -> Result<Vec<f64>, LaneError> {
        let host = Registered::already(&self.context, arena.memory())?;
        let mut shapes = Shapes::new(&self.context)?;
        let mut words = Vec::new();
        let placed = describe(job, &mut words)
            .map_err(|e| LaneError::new(format!("a job cannot be described: {e:?}")))?;
        let shape = shapes.number_now(&words)?;
        let count = placed.len.div_ceil(unit);
        let list = Shared::new(&self.context, count * 16)?;
        let answers = Shared::new(&self.context, count * 8)?;
        for (i, word) in list.words64(0, 2 * count).chunks(2).enumerate() {
            let at = i * unit;
            let len = unit.min(placed.len - at);
            let [low, high] = shape::unit(u32::from(shape), placed.base + at, len);
            word[0].store(low, Ordering::Relaxed);
            word[1].store(high, Ordering::Relaxed);
        }
        let near = DeviceMemory::new(&self.context, count * 16)?;
        // SAFETY: both are that long, and outlive the wait.
        unsafe { self.stream.copy(near.address, list.address(), count * 16)? };
        self.stream.wait()?;
        let (mut from, mut units, mut answers_at) = (near.address, count as u32, answers.address());
        let (mut shapes_at, mut memory) = (shapes.address(), host.address);
        (0..repeats)
            .map(|_| {
                let mut arguments = [
                    pointer(&mut from),
                    pointer(&mut units),
                    pointer(&mut answers_at),
                    pointer(&mut shapes_at),
                    pointer(&mut memory),
                ];
                let start = Instant::now();
                // SAFETY: the parameters of `raidd_bulk`; waited for at once, with `arena` borrowed mutably.
                unsafe {
                    self.stream
                        .launch(Kernel::Bulk, units, 256, &mut arguments)?
                };
                match asking {
                    true => while !self.stream.idle()? {},
                    false => self.stream.wait()?,
                }
                Ok(start.elapsed().as_secs_f64())
            })
            .collect()
    }
}
