//! What was found on a machine, as plain data.

use std::path::PathBuf;

use parity_kernels::cuda::{DeviceInfo, Unavailable};

/// Everything that is judged.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Why the configuration file cannot be used.
    pub config_error: Option<ConfigFault>,
    /// As `uname -r` gives it.
    pub kernel_release: String,
    /// The block driver.
    pub ublk: Ublk,
    /// The CPU.
    pub cpu: Cpu,
    /// GPUs.
    pub gpu: Gpus,
    /// Memory and its limits.
    pub memory: Memory,
    /// The other implementation.
    pub md: Md,
}

/// What is wrong with the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// File, line, key and what is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// The ublk driver and io_uring.
#[derive(Debug, Clone)]
pub struct Ublk {
    /// What the driver says.
    pub driver: Driver,
    /// The sysctl: 0 on, 1 for the privileged, 2 off; none where the kernel has no such switch.
    pub io_uring_disabled: Option<u32>,
    /// Whether the kernel's modules include the driver; none where there is no list of modules.
    pub module: Option<bool>,
    /// `zero_copy: auto`.
    pub zero_copy_wanted: bool,
}

/// What the ublk driver says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// Its feature mask.
    Features(u64),
    /// It is not loaded.
    Absent,
    /// We may not ask.
    Forbidden,
    /// It is older than Linux 6.5's.
    TooOld,
    /// Something else is wrong.
    Broken(String),
}

/// The CPU and what the arithmetic makes of it.
#[derive(Debug, Clone)]
pub struct Cpu {
    /// Model name.
    pub model: String,
    /// Instruction sets that matter here, of those that the kernel lists.
    pub features: Vec<String>,
    /// Engines that run on it, fastest first.
    pub engines: Vec<String>,
    /// `parity_engine:` if it names one; one that does not run here is a fault of the configuration.
    pub pinned: Option<String>,
    /// What will be used for what, as `operation: engine`.
    pub chosen: Vec<String>,
}

/// Which GPUs the configuration wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    Off,
    /// Any that is there.
    Auto,
    /// These, by number or uuid.
    These(Vec<String>),
}

/// All GPUs.
#[derive(Debug, Clone)]
pub struct Gpus {
    /// `gpu:`
    pub wanted: Wanted,
    /// PCI addresses of NVIDIA's display controllers, whether a driver serves them or not.
    pub cards: Vec<String>,
    /// Version of the kernel's NVIDIA module, such as 535.183.01.
    pub module_version: Option<String>,
    /// What the CUDA driver says; not asked where `gpu: off`.
    pub found: Result<Cuda, Unavailable>,
}

/// A CUDA driver that works.
#[derive(Debug, Clone)]
pub struct Cuda {
    /// 12040 for 12.4.
    pub version: i32,
    /// All devices.
    pub devices: Vec<Gpu>,
}

/// One GPU.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// From the CUDA driver.
    pub info: DeviceInfo,
    /// From sysfs.
    pub pci: Pci,
    /// Whether a lane opens; none where it was not tried.
    pub opens: Option<Result<(), String>>,
}

/// A device's place on the PCI bus. None where sysfs does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pci {
    /// Lanes in use.
    pub width: Option<u32>,
    /// Lanes of the card.
    pub max_width: Option<u32>,
    /// Such as `32.0 GT/s`.
    pub speed: Option<String>,
    /// The same, at most.
    pub max_speed: Option<String>,
    /// Bytes of GPU memory that the CPU can reach at once.
    pub bar1: Option<u64>,
    /// Node of memory nearest to it.
    pub numa: Option<u32>,
}

/// Memory.
#[derive(Debug, Clone)]
pub struct Memory {
    /// RLIMIT_MEMLOCK of this process; none for no limit.
    pub limit: Option<u64>,
    /// CAP_IPC_LOCK: the limit does not count.
    pub may_lock: bool,
    /// Bytes of the machine.
    pub total: u64,
    /// Queues of an array.
    pub queues: u64,
    /// Buffer memory of each queue.
    pub per_queue: u64,
    /// Transparent huge pages: always, madvise, never; none where the kernel has none.
    pub huge_pages: Option<String>,
}

/// mdadm and its udev rules.
#[derive(Debug, Clone, Default)]
pub struct Md {
    /// The rule that assembles members as they appear.
    pub rule: Option<PathBuf>,
    /// `manage_mdadm_conf:`
    pub managed: bool,
    /// Where raidd notes for mdadm which arrays are its own.
    pub note_mdadm: Option<PathBuf>,
    /// The same for udev.
    pub note_udev: Option<PathBuf>,
    /// MD arrays that are half assembled.
    pub inactive: Vec<String>,
}
