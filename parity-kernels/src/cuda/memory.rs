//! Memory that a CUDA device works with: its own, and the host's that it can reach.
//!
//! Owns what it takes or registers, and gives it back on drop unless the context has gone before. Giving back waits for the
//! kernels that run on the device.

use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use cudarc::driver::sys;

use super::driver::Context;
use crate::buf::{Arena, Memory};
use crate::offload::LaneError;

/// Memory of the device.
pub(crate) struct DeviceMemory {
    pub(crate) address: u64,
    context: Arc<Context>,
}

impl DeviceMemory {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory, LaneError> {
        let _still = context.quiet.stillness();
        let _here = context.enter()?;
        let mut address = 0;
        // SAFETY: `address` outlives the call.
        context.check("taking memory of the device", unsafe {
            sys::cuMemAlloc_v2(&mut address, bytes)
        })?;
        Ok(DeviceMemory {
            address,
            context: context.clone(),
        })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _still = self.context.quiet.stillness();
        if let Ok(_here) = self.context.enter() {
            // SAFETY: ours; the driver waits for work that uses it.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Host memory that the device can reach.
pub(crate) struct Registered {
    /// Whether this one has registered it and must undo that.
    owned: bool,
    /// Its first byte, as the device names it.
    pub(crate) address: u64,
    memory: Arc<Memory>,
    context: Arc<Context>,
}

impl Registered {
    pub(crate) fn new(
        context: &Arc<Context>,
        memory: Arc<Memory>,
    ) -> Result<Registered, LaneError> {
        let _still = context.quiet.stillness();
        let _here = context.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        let start = memory.address().cast();
        // SAFETY: a mapping of that length, which `memory` keeps until it is unregistered or the context is gone.
        let code = unsafe { sys::cuMemHostRegister_v2(start, memory.len(), flags) };
        context.check("registering memory", code)?;
        Registered::map(context, memory, true)
    }

    /// Memory that a lane has registered and keeps so for as long as the result lives.
    pub(crate) fn already(
        context: &Arc<Context>,
        memory: Arc<Memory>,
    ) -> Result<Registered, LaneError> {
        let _here = context.enter()?;
        Registered::map(context, memory, false)
    }

    fn map(
        context: &Arc<Context>,
        memory: Arc<Memory>,
        owned: bool,
    ) -> Result<Registered, LaneError> {
        let start = memory.address().cast();
        let mut registered = Registered {
            owned,
            address: 0,
            memory,
            context: context.clone(),
        };
        // SAFETY: registered; `address` outlives the call. Nothing happens if it is not.
        context.check("mapping memory", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut registered.address, start, 0)
        })?;
        Ok(registered)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let _still = self.context.quiet.stillness();
        if let Ok(_here) = self.context.enter() {
            // SAFETY: registered by `new`; the driver waits for work that uses it.
            unsafe { sys::cuMemHostUnregister(self.memory.address().cast()) };
        }
    }
}

/// Host memory of a lane's own for words that it and the device exchange.
pub(crate) struct Shared {
    registered: Registered,
    memory: Arc<Memory>,
}

impl Shared {
    /// At least `bytes` of zeroes.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Shared, LaneError> {
        let arena = Arena::new(bytes.div_ceil(4096), 4096)
            .map_err(|e| LaneError::new(format!("taking memory for the lane: {e}")))?;
        let memory = arena.memory();
        let registered = Registered::new(context, memory.clone())?;
        Ok(Shared { registered, memory })
    }

    /// As the device names it.
    pub(crate) fn address(&self) -> u64 {
        self.registered.address
    }

    /// `count` words from byte `off`.
    pub(crate) fn words32(&self, off: usize, count: usize) -> &[AtomicU32] {
        self.check(off, count * mem::size_of::<u32>());
        // SAFETY: within the mapping and aligned (checked). Both sides use these words by atomic operations alone.
        unsafe { std::slice::from_raw_parts(self.memory.address().add(off).cast(), count) }
    }

    /// `count` words from byte `off`.
    pub(crate) fn words64(&self, off: usize, count: usize) -> &[AtomicU64] {
        self.check(off, count * mem::size_of::<u64>());
        // SAFETY: within the mapping and aligned (checked). Both sides use these words by atomic operations alone.
        unsafe { std::slice::from_raw_parts(self.memory.address().add(off).cast(), count) }
    }

    /// Copy bytes that the device has written, and is known to be done with.
    pub(crate) fn read(&self, off: usize, to: &mut [u8]) {
        self.check(off / 16 * 16, to.len());
        let from = self.memory.address().wrapping_add(off);
        // SAFETY: within the mapping (checked), apart from `to`, which is not of this mapping.
        unsafe { ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
    }

    /// Write bytes that the device does not look at meanwhile.
    pub(crate) fn write(&self, off: usize, from: &[u8]) {
        self.check(off / 16 * 16, from.len());
        let to = self.memory.address().wrapping_add(off);
        // SAFETY: within the mapping (checked), apart from `from`, which is not of this mapping.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    fn check(&self, off: usize, len: usize) {
        assert!(
            off.is_multiple_of(16) && off <= self.memory.len() && len <= self.memory.len() - off,
            "{off}+{len} is no place in {} shared bytes",
            self.memory.len()
        );
    }
}
