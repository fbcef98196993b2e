//! The CUDA driver, as far as lanes need it: contexts, streams, launches; `memory` has the rest. Nothing else calls it.
//!
//! Owns what it makes and gives it back on drop, unless the context has gone before: a destroyed context has taken all
//! with it. Every call first takes the context's gate (a read lock, a few nanoseconds), so that none can meet a context
//! that another thread is just destroying. Calls cost from under a microsecond (launch, query) to a second (creation).

use std::ffi::{CStr, CString, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError, Weak};

use cudarc::driver::sys;

use super::memory::Shared;
use super::probe::{DeviceInfo, Unavailable};
use super::quiet::Quiet;
use crate::offload::LaneError;

/// The oldest driver that loads our PTX: CUDA 12.0, R525.
pub(crate) const LEAST_DRIVER: i32 = 12000;

/// What the driver's library is called on every Linux.
const LIBRARY: &CStr = c"libcuda.so.1";

const PTX: &str = include_str!("../../ptx/parity.ptx");

/// The driver's own name for a result.
fn name(code: sys::CUresult) -> String {
    let mut text = ptr::null();
    // SAFETY: the driver sets `text` to a string of its own, or leaves it null for a code that it does not know.
    let known = unsafe { sys::cuGetErrorName(code, &mut text) } == sys::CUresult::CUDA_SUCCESS;
    if known && !text.is_null() {
        // SAFETY: a static, zero-terminated string of the driver's.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    } else {
        format!("error {}", code as u32)
    }
}

fn check(what: &str, code: sys::CUresult) -> Result<(), LaneError> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(LaneError::new(format!("{what}: {}", name(code)))),
    }
}

/// Every function of the driver that is called here and in `memory`. A test compares the list with the files.
const CALLED: [&str; 34] = [
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuGetErrorName",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyAsync",
    "cuMemsetD32Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// A function of the driver that the library lacks. The bindings would panic when they come to call it.
fn missing() -> Option<&'static str> {
    // SAFETY: `is_culib_present` has loaded the library before, so this finds it again rather than panic.
    let library = unsafe { sys::culib() };
    CALLED.into_iter().find(|name| {
        // SAFETY: the symbol is only looked up, and not called as what it is taken for here.
        unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err()
    })
}

/// Whether a kernel's fault, or the device's, is behind a result. The driver says so again in all that follows.
fn is_fault(code: sys::CUresult) -> bool {
    use sys::CUresult as Code;
    matches!(
        code,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
    )
}

/// What the dynamic linker says when asked for the driver's library, which has not been loaded.
fn why_not_loaded() -> String {
    // SAFETY: a zero-terminated name. Should the library load this time, its initialisers are NVIDIA's; it stays.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return "it was loaded only at the second attempt".into();
    }
    // SAFETY: no arguments; the text is this thread's until its next call of the linker.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic linker gives no reason".into();
    }
    // SAFETY: zero-terminated, see above.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().replace('\n', " ")
}

/// Whether the library is missing, or is there and bad: half installed, for another architecture, without something that it
/// needs.
fn not_loaded(linker: &str) -> Unavailable {
    let library = LIBRARY.to_string_lossy();
    let missing = linker.strip_prefix(&*library).is_some_and(|rest| {
        rest.starts_with(": cannot open shared object file: No such file or directory")
    });
    match missing {
        true => Unavailable::NoDriver,
        false => Unavailable::Damaged {
            what: format!("is there but cannot be loaded: {linker}"),
        },
    }
}

/// Load the driver, once. Answers its version, as 12000 for 12.0.
///
/// # Errors
/// There is none, it is too old, or it finds no device.
pub(crate) fn load() -> Result<i32, Unavailable> {
    // SAFETY: opens and closes libcuda.so; its initialisers are NVIDIA's, and run in every CUDA program.
    if !unsafe { sys::is_culib_present() } {
        return Err(not_loaded(&why_not_loaded()));
    }
    if let Some(name) = missing() {
        return Err(Unavailable::Damaged {
            what: format!("lacks {name}"),
        });
    }
    let mut version = 0;
    // SAFETY: the library is there, and this call is allowed before anything else. `version` outlives it.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    check("asking for the driver's version", code).map_err(Unavailable::failed)?;
    if version < LEAST_DRIVER {
        return Err(Unavailable::TooOld { version });
    }
    // SAFETY: no pointers.
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Err(Unavailable::NoDevice),
        code => check("starting the driver", code)
            .map(|()| version)
            .map_err(Unavailable::failed),
    }
}

/// All devices. [`load`] has succeeded before.
pub(crate) fn devices() -> Result<Vec<DeviceInfo>, LaneError> {
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    check("counting devices", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    // No machine has more; a driver that says so is broken, and asking for each would take hours.
    (0..count.min(256)).map(device).collect()
}

fn device(ordinal: i32) -> Result<DeviceInfo, LaneError> {
    use sys::CUdevice_attribute as Attribute;
    let mut handle = 0;
    // SAFETY: `handle` outlives the call.
    check("opening a device", unsafe {
        sys::cuDeviceGet(&mut handle, ordinal)
    })?;
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: `value` outlives the call, and `handle` is a device.
        check("asking a device", unsafe {
            sys::cuDeviceGetAttribute(&mut value, which, handle)
        })
        .map(|()| value)
    };
    let mut text = [0; 128];
    // SAFETY: the driver writes at most the length given, and ends it with a zero.
    check("asking a device's name", unsafe {
        sys::cuDeviceGetName(text.as_mut_ptr(), text.len() as i32, handle)
    })?;
    // SAFETY: zero-terminated, see above.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_string_lossy()
        .into_owned();
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` outlives the call.
    check("asking a device's uuid", unsafe {
        sys::cuDeviceGetUuid(&mut uuid, handle)
    })?;
    let mut memory_bytes = 0;
    // SAFETY: `memory_bytes` outlives the call.
    check("asking a device's memory", unsafe {
        sys::cuDeviceTotalMem_v2(&mut memory_bytes, handle)
    })?;
    Ok(DeviceInfo {
        ordinal: ordinal as u32,
        name,
        uuid: uuid.bytes.map(|b| b as u8),
        pci_address: format!(
            "{:04x}:{:02x}:{:02x}.0",
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ),
        memory_bytes: memory_bytes as u64,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        compute: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
    })
}

/// A kernel's argument, for [`Stream::launch`].
pub(super) fn pointer<T>(value: &mut T) -> *mut c_void {
    ptr::from_mut(value).cast()
}

/// A kernel of `kernels/parity.cu`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    Serve,
    ServeShared,
    Bulk,
    Read,
    Copy,
    Trap,
}

const KERNELS: usize = 6;

/// One context on one device, shared by everything that works there.
pub(crate) struct Context {
    raw: sys::CUcontext,
    /// Whether it still exists.
    gate: RwLock<bool>,
    /// Somebody has met an error: nothing new shall begin here.
    failed: AtomicBool,
    kernels: [sys::CUfunction; KERNELS],
    /// Keeps lanes out of the driver while somebody waits for their kernels.
    pub(crate) quiet: Quiet,
    /// Where the kernels that stay look for an order to end, see [`Context::on_destroy`].
    stops: Mutex<Vec<(Weak<Shared>, usize)>>,
    /// The device it is on.
    pub(crate) info: DeviceInfo,
}

// SAFETY: the driver's handles may be used from any thread; whether the context exists is guarded by `gate`.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The context is there and current on this thread, as long as this lives.
pub(crate) struct Entered<'a> {
    _open: RwLockReadGuard<'a, bool>,
}

impl Context {
    /// A new context with all kernels loaded.
    pub(crate) fn new(info: &DeviceInfo) -> Result<Arc<Context>, LaneError> {
        let mut raw = ptr::null_mut();
        let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_SPIN as c_uint
            | sys::CUctx_flags_enum::CU_CTX_MAP_HOST as c_uint;
        // SAFETY: `raw` outlives the call; the ordinal is the handle of a device, as `cuDeviceGet` defines it.
        let code = unsafe { sys::cuCtxCreate_v2(&mut raw, flags, info.ordinal as i32) };
        check("making a context", code).map_err(|mut error| {
            if is_fault(code) {
                error.what += "; a GPU program has faulted, and the driver does no more work in this process: restart it";
            }
            error
        })?;
        let mut context = Context {
            raw,
            gate: RwLock::new(true),
            failed: AtomicBool::new(false),
            quiet: Quiet::default(),
            kernels: [ptr::null_mut(); KERNELS],
            stops: Mutex::default(),
            info: info.clone(),
        };
        context.kernels = context.load_kernels()?;
        Ok(Arc::new(context))
    }

    fn load_kernels(&self) -> Result<[sys::CUfunction; KERNELS], LaneError> {
        let _here = self.enter()?;
        let text = CString::new(PTX).expect("PTX is text");
        let mut module = ptr::null_mut();
        // SAFETY: a zero-terminated text; `module` outlives the call. The module is unloaded with the context.
        check("loading the GPU programs", unsafe {
            sys::cuModuleLoadData(&mut module, text.as_ptr().cast())
        })?;
        let mut kernels = [ptr::null_mut(); KERNELS];
        let names = [
            c"raidd_serve",
            c"raidd_serve_shared",
            c"raidd_bulk",
            c"raidd_read",
            c"raidd_copy",
            c"raidd_trap",
        ];
        for (kernel, name) in kernels.iter_mut().zip(names) {
            // SAFETY: the module was just loaded; `kernel` outlives the call.
            check("finding a GPU program", unsafe {
                sys::cuModuleGetFunction(kernel, module, name.as_ptr())
            })?;
            let mut registers = 0;
            // Asking makes the driver load the code now. Later it might wait for a kernel that never ends.
            // SAFETY: a function of the module; `registers` outlives the call.
            check("loading a GPU program", unsafe {
                sys::cuFuncGetAttribute(
                    &mut registers,
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS,
                    *kernel,
                )
            })?;
        }
        Ok(kernels)
    }

    /// Make it current on this thread.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, LaneError> {
        // The gate is taken for writing only to destroy the context, which can take long: no reason to wait here.
        let open = match self.gate.try_read() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(open)) => open.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(LaneError::new("the context is being destroyed"));
            }
        };
        if !*open {
            return Err(LaneError::new("the context was destroyed"));
        }
        // SAFETY: the context exists, and does so as long as the gate is held.
        self.check("entering the context", unsafe {
            sys::cuCtxSetCurrent(self.raw)
        })?;
        Ok(Entered { _open: open })
    }

    /// As [`check`], remembering that the context is not to be trusted any more.
    pub(super) fn check(&self, what: &str, code: sys::CUresult) -> Result<(), LaneError> {
        let result = check(what, code);
        if result.is_err() && !matches!(code, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
            self.fail();
        }
        result
    }

    /// Nothing new shall begin here.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Whether something went wrong here.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Have the word at byte `off` of `shared` set to 1 before the context is destroyed: the driver waits for what runs, and
    /// a kernel that stays has to be told.
    pub(crate) fn on_destroy(&self, shared: &Arc<Shared>, off: usize) {
        let mut stops = self.stops.lock().unwrap_or_else(PoisonError::into_inner);
        stops.retain(|(shared, _)| shared.strong_count() > 0);
        stops.push((Arc::downgrade(shared), off));
    }

    fn stop_kernels(&self) {
        let stops = self.stops.lock().unwrap_or_else(PoisonError::into_inner);
        // Let go of only when all are told: giving back the last of one waits for kernels.
        let mut told = Vec::with_capacity(stops.len());
        for (shared, off) in stops.iter() {
            if let Some(shared) = shared.upgrade() {
                shared.words32(*off, 1)[0].store(1, Ordering::Release);
                told.push(shared);
            }
        }
        drop(stops);
    }

    /// Destroy it, and with it everything that runs on the device on its behalf. When this returns `Ok`, the device
    /// writes no more. May block; later calls find it done.
    pub(crate) fn destroy(&self) -> Result<(), LaneError> {
        self.fail();
        // Somebody inside may be waiting for a kernel to end; and then for those that were started meanwhile.
        self.stop_kernels();
        let mut open = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if !*open {
            return Ok(());
        }
        self.stop_kernels();
        // SAFETY: the context exists, and nobody is inside: the gate is ours alone. A context that met a fault of a kernel
        // answers with that fault, and is gone nevertheless: the fault has ended all that ran in it.
        let code = unsafe { sys::cuCtxDestroy_v2(self.raw) };
        *open = false;
        match code {
            sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => Ok(()),
            code if is_fault(code) => Ok(()),
            code => check("destroying the context", code),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nothing refers to it any more. If the driver refuses there is nobody left to tell.
        let _ = self.destroy();
    }
}

/// An order of work on the device.
pub(crate) struct Stream {
    raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: a handle; see `Context`.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of the lowest priority, so that others on the device come first.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Stream, LaneError> {
        let _still = context.quiet.stillness();
        let _here = context.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both outlive the call.
        context.check("asking for priorities", unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: `raw` outlives the call.
        context.check("making a stream", unsafe {
            sys::cuStreamCreateWithPriority(&mut raw, flags, least)
        })?;
        Ok(Stream {
            raw,
            context: context.clone(),
        })
    }

    /// Whether all work given to it is done.
    pub(crate) fn idle(&self) -> Result<bool, LaneError> {
        let _here = self.context.enter()?;
        // SAFETY: the stream exists as long as its context does.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => self.context.check("working", code).map(|()| true),
        }
    }

    /// Wait until all work given to it is done.
    pub(crate) fn wait(&self) -> Result<(), LaneError> {
        let _here = self.context.enter()?;
        // SAFETY: the stream exists as long as its context does.
        self.context
            .check("waiting", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Start a kernel.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in order and of its types, and the memory that they name is mapped for the
    /// device until the kernel has ended, with nobody else using it in a way that the kernel's contract forbids.
    pub(crate) unsafe fn launch(
        &self,
        kernel: Kernel,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), LaneError> {
        let _here = self.context.enter()?;
        let function = self.context.kernels[kernel as usize];
        // SAFETY: by the caller's promise; the driver copies the arguments before it returns.
        self.context.check("starting a GPU program", unsafe {
            sys::cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.raw,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    /// Copy between registered host memory and the device's.
    ///
    /// # Safety
    /// Both ranges are mapped for the device and unused by others until the copy is done.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), LaneError> {
        let _here = self.context.enter()?;
        // SAFETY: by the caller's promise.
        self.context.check("copying", unsafe {
            sys::cuMemcpyAsync(to, from, bytes, self.raw)
        })
    }

    /// Set words of device memory.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    pub(crate) unsafe fn fill(&self, at: u64, word: u32, count: usize) -> Result<(), LaneError> {
        let _here = self.context.enter()?;
        // SAFETY: by the caller's promise.
        self.context.check("filling", unsafe {
            sys::cuMemsetD32Async(at, word, count, self.raw)
        })
    }

    /// Have this stream wait for what `event` marks.
    pub(crate) fn after(&self, event: &Event) -> Result<(), LaneError> {
        let _here = self.context.enter()?;
        // SAFETY: both exist as long as their context does.
        self.context.check("ordering streams", unsafe {
            sys::cuStreamWaitEvent(self.raw, event.raw, 0)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _still = self.context.quiet.stillness();
        if let Ok(_here) = self.context.enter() {
            // SAFETY: the stream exists; the driver keeps what it needs until its work is done.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A mark in a stream.
pub(crate) struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: a handle; see `Context`.
unsafe impl Send for Event {}

impl Event {
    /// A mark, nowhere yet; `timed` ones can measure.
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Event, LaneError> {
        let _still = context.quiet.stillness();
        let _here = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = match timed {
            true => sys::CUevent_flags_enum::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
        };
        // SAFETY: `raw` outlives the call.
        context.check("making an event", unsafe {
            sys::cuEventCreate(&mut raw, flags as c_uint)
        })?;
        Ok(Event {
            raw,
            context: context.clone(),
        })
    }

    /// Put it after all that `stream` has been given so far.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), LaneError> {
        let _here = self.context.enter()?;
        // SAFETY: both exist as long as their context does.
        self.context.check("marking a stream", unsafe {
            sys::cuEventRecord(self.raw, stream.raw)
        })
    }

    /// Whether the device has come past it.
    pub(crate) fn passed(&self) -> Result<bool, LaneError> {
        let _here = self.context.enter()?;
        // SAFETY: the event exists as long as its context does.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => self.context.check("working", code).map(|()| true),
        }
    }

    /// Seconds between two timed marks that the device has passed.
    pub(crate) fn seconds_since(&self, start: &Event) -> Result<f64, LaneError> {
        let _here = self.context.enter()?;
        let mut ms = 0.0;
        // SAFETY: `ms` outlives the call; both events exist.
        self.context.check("reading a time", unsafe {
            sys::cuEventElapsedTime(&mut ms, start.raw, self.raw)
        })?;
        Ok(f64::from(ms) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _still = self.context.quiet.stillness();
        if let Ok(_here) = self.context.enter() {
            // SAFETY: the event exists.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Unavailable, not_loaded};

    /// A library that was there and broken was called not installed, and nothing was said to be wrong.
    #[test]
    fn a_library_that_does_not_load_is_not_a_missing_one() {
        let missing = "libcuda.so.1: cannot open shared object file: No such file or directory";
        assert_eq!(not_loaded(missing), Unavailable::NoDriver);
        for broken in [
            "/x/libcuda.so.1: file too short",
            "/x/libcuda.so.1: invalid ELF header",
            "libcuda.so.1: wrong ELF class: ELFCLASS32",
            "libcuda.so.1: cannot open shared object file: Permission denied",
            "libnvidia-x.so.1: cannot open shared object file: No such file or directory",
        ] {
            let text = not_loaded(broken).to_string();
            let end = format!("libcuda.so.1 is there but cannot be loaded: {broken}");
            assert!(text.ends_with(&end), "{text}");
        }
    }

    /// The bindings panic at a call that the library lacks, so the list that is looked up before must be whole.
    #[test]
    fn every_call_is_looked_up() {
        let files = [include_str!("driver.rs"), include_str!("memory.rs")];
        let mut called: Vec<&str> = files
            .iter()
            .flat_map(|file| file.split("sys::").skip(1))
            .filter_map(|rest| {
                rest.split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
            })
            .filter(|name| name.starts_with("cu") && name[2..].starts_with(char::is_uppercase))
            .collect();
        called.sort_unstable();
        called.dedup();
        assert_eq!(called, super::CALLED);
    }
}
