//! What can go wrong between us and the ublk driver, each with its remedy. Costs nothing.

use std::io;

/// Why a control operation failed. Errno values are positive.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The driver is not loaded.
    #[error("/dev/ublk-control does not exist; load the ublk_drv module: modprobe ublk_drv")]
    NoDriver,
    /// The control node may not be opened.
    #[error("no permission to open /dev/ublk-control; run as root (CAP_SYS_ADMIN)")]
    NoPermission,
    /// The control node cannot be opened for another reason.
    #[error("cannot open /dev/ublk-control: {0}")]
    OpenControl(#[source] io::Error),
    /// io_uring cannot be set up.
    #[error("cannot set up io_uring: {0} (see the sysctl kernel.io_uring_disabled)")]
    Ring(#[source] io::Error),
    /// GET_FEATURES is unknown, or user copy is missing.
    #[error("this kernel's ublk driver has no user copy; Linux 6.5 or newer is needed")]
    KernelTooOld,
    /// A field of the device description cannot be expressed to the driver.
    #[error("device description: {0}")]
    Spec(&'static str),
    /// The wanted device number exists.
    #[error("ublk device {0} exists already; choose another number or remove it")]
    IdInUse(u32),
    /// ADD_DEV did not return. Some 6.17 and 6.18 kernels crash inside this command.
    #[error(
        "the kernel did not answer ADD_DEV; look for an oops in dmesg (some 6.17 and 6.18 kernels fail here until rebooted)"
    )]
    AddTimeout,
    /// The control thread could not be created.
    #[error("cannot start the control thread: {0}")]
    Thread(#[source] io::Error),
    /// A control command failed.
    #[error("ublk command {command} failed: {}", io::Error::from_raw_os_error(*errno))]
    Command {
        /// Name of the command in the kernel's header.
        command: &'static str,
        /// Positive errno.
        errno: i32,
    },
    /// A queue never called [`crate::Frontend::prime`].
    #[error("{primed} of {queues} queues fetched requests in time; the device was not started")]
    NotPrimed {
        /// Queues that did.
        primed: u16,
        /// Queues of the device.
        queues: u16,
    },
    /// The kernel refused a fetch command.
    #[error("the kernel refused a FETCH command: {}", io::Error::from_raw_os_error(*errno))]
    Fetch {
        /// Positive errno.
        errno: i32,
    },
    /// A control command did not return in time; it may still finish later.
    #[error("ublk command {command} did not finish in time")]
    Timeout {
        /// Name of the command in the kernel's header.
        command: &'static str,
    },
    /// The queue number is out of range or was handed out before.
    #[error("queue {0} does not exist or is in use")]
    Queue(u16),
    /// The descriptor area of a queue cannot be mapped.
    #[error("cannot map the request descriptors of queue {qid}: {source}")]
    Map {
        /// Queue number.
        qid: u16,
        /// From mmap.
        source: io::Error,
    },
    /// The device has no block device that waits for a server.
    #[error("ublk device {0} does not wait for a new server")]
    NotRecoverable(u32),
    /// The server of this device is alive.
    #[error("ublk device {id} is served by process {pid}")]
    Alive {
        /// Device number.
        id: u32,
        /// Its server.
        pid: i32,
    },
}

/// Why a device could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// Somebody has the block device open or mounted.
    #[error("the device is open or mounted")]
    Busy,
    /// The command failed.
    #[error(transparent)]
    Failed(#[from] UblkError),
}
