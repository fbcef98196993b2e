//! What CUDA devices there are, or why there are none. Plain data; gathering costs a driver start, up to a second, and never
//! more than [`PATIENCE`]: a driver whose card has fallen off the bus may not come back from its first call.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::driver;
use crate::offload::LaneError;

/// A CUDA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, in the driver's order.
    pub ordinal: u32,
    /// The maker's name for it.
    pub name: String,
    /// Its uuid.
    pub uuid: [u8; 16],
    /// PCI address, as sysfs writes it: `0000:3b:00.0`.
    pub pci_address: String,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
}

/// The least compute capability that our kernels are made for: Volta's.
pub const LEAST_COMPUTE: (u32, u32) = (7, 0);

impl DeviceInfo {
    /// Whether our kernels can run on it.
    pub fn fits(&self) -> bool {
        self.compute >= LEAST_COMPUTE
    }

    /// The uuid as `nvidia-smi` writes it: `GPU-` and five groups of hex digits.
    pub fn uuid_text(&self) -> String {
        let hex: String = self.uuid.iter().map(|b| format!("{b:02x}")).collect();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }
}

/// Why CUDA is not to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// There is no libcuda.
    NoDriver,
    /// The library of the driver is there, and not as it should be.
    Damaged {
        /// What is wrong with it, as the rest of a sentence about it.
        what: String,
    },
    /// The driver is older than our kernels need.
    TooOld {
        /// As the driver says, 11040 for 11.4.
        version: i32,
    },
    /// The driver runs and finds no device.
    NoDevice,
    /// The driver has not come back from its first calls.
    Silent,
    /// The driver does not start.
    Failed {
        /// What it says.
        what: String,
    },
    /// Our kernels run on none of the devices, or not on the one that was asked for.
    TooWeak {
        /// Its number.
        ordinal: u32,
        /// The maker's name for it.
        name: String,
        /// Compute capability, major and minor.
        compute: (u32, u32),
    },
    /// The device that was asked for is not there.
    NoSuchDevice {
        /// As asked for.
        wanted: String,
        /// Devices that are there.
        present: Vec<String>,
    },
}

impl Unavailable {
    fn too_weak(device: &DeviceInfo) -> Unavailable {
        Unavailable::TooWeak {
            ordinal: device.ordinal,
            name: device.name.clone(),
            compute: device.compute,
        }
    }

    pub(crate) fn failed(error: LaneError) -> Unavailable {
        Unavailable::Failed { what: error.what }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::NoDriver => {
                write!(f, "no CUDA driver (libcuda.so.1) is installed")
            }
            Unavailable::Damaged { what } => {
                write!(f, "the CUDA driver's library libcuda.so.1 {what}")
            }
            Unavailable::TooWeak {
                ordinal,
                name,
                compute: (major, minor),
            } => write!(
                f,
                "GPU {ordinal} ({name}) has compute capability {major}.{minor}, and parity needs Volta (7.0) or later"
            ),
            Unavailable::TooOld { version } => write!(
                f,
                "the CUDA driver speaks CUDA {}.{}, and 12.0 is the least (NVIDIA driver R525)",
                version / 1000,
                version % 1000 / 10
            ),
            Unavailable::NoDevice => write!(f, "the CUDA driver finds no device"),
            Unavailable::Silent => write!(
                f,
                "the CUDA driver does not answer (waited {} s)",
                PATIENCE.as_secs()
            ),
            Unavailable::Failed { what } => write!(f, "the CUDA driver does not work: {what}"),
            Unavailable::NoSuchDevice { wanted, present } if present.is_empty() => {
                write!(f, "there is no GPU {wanted}, and no other")
            }
            Unavailable::NoSuchDevice { wanted, present } => {
                write!(
                    f,
                    "there is no GPU {wanted}; present are {}",
                    present.join(", ")
                )
            }
        }
    }
}

impl std::error::Error for Unavailable {}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Version of CUDA that the driver speaks, 12040 for 12.4.
    pub driver_version: i32,
    /// All devices.
    pub devices: Vec<DeviceInfo>,
}

/// How long the driver may take for its first calls.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A thread is inside the driver's first calls and has been given up.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Runs `work` in a thread of its own, which is left alone if it takes longer than [`PATIENCE`]: nothing can end a call of
/// the driver. None then, or if there is no thread to be had.
pub fn patiently<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, answer) = mpsc::channel();
    let run = move || {
        let _ = done.send(work());
    };
    std::thread::Builder::new()
        .name("cuda-probe".into())
        .spawn(run)
        .ok()?;
    answer.recv_timeout(PATIENCE).ok()
}

/// Look for devices. While a driver hangs only the first caller waits for it.
///
/// # Errors
/// Why there are none.
pub fn probe() -> Result<Probe, Unavailable> {
    if SILENT.load(Ordering::Acquire) {
        return Err(Unavailable::Silent);
    }
    let found = patiently(|| {
        let found = look();
        SILENT.store(false, Ordering::Release);
        found
    });
    found.unwrap_or_else(|| {
        SILENT.store(true, Ordering::Release);
        Err(Unavailable::Silent)
    })
}

fn look() -> Result<Probe, Unavailable> {
    let driver_version = driver::load()?;
    let devices = driver::devices().map_err(Unavailable::failed)?;
    if devices.is_empty() {
        return Err(Unavailable::NoDevice);
    }
    Ok(Probe {
        driver_version,
        devices,
    })
}

/// Which devices are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All that our kernels run on.
    Auto,
    /// These, each by number or by uuid (`GPU-…`, a unique beginning of it suffices).
    Devices(Vec<String>),
}

impl Selection {
    /// The devices of `present` that are wanted, in the order in which they are wanted.
    ///
    /// # Errors
    /// [`Unavailable::NoSuchDevice`] for the first that is not there or not unique, [`Unavailable::TooWeak`] for the first
    /// that our kernels do not run on; with [`Selection::Auto`] only if they run on none.
    pub fn choose(&self, present: &[DeviceInfo]) -> Result<Vec<DeviceInfo>, Unavailable> {
        let wanted = match self {
            Selection::Auto => {
                let fit: Vec<DeviceInfo> = present.iter().filter(|d| d.fits()).cloned().collect();
                return match present.first().filter(|_| fit.is_empty()) {
                    Some(weak) => Err(Unavailable::too_weak(weak)),
                    None => Ok(fit),
                };
            }
            Selection::Devices(wanted) => wanted,
        };
        let mut chosen: Vec<DeviceInfo> = Vec::new();
        for name in wanted {
            let is_it = |device: &&DeviceInfo| match name.parse::<u32>() {
                Ok(number) => device.ordinal == number,
                Err(_) => {
                    let (text, name) = (device.uuid_text(), name.to_ascii_lowercase());
                    let text = text.to_ascii_lowercase();
                    name.len() >= 4 && (text.starts_with(&name) || text[4..].starts_with(&name))
                }
            };
            let found: Vec<&DeviceInfo> = present.iter().filter(is_it).collect();
            let [device] = found[..] else {
                return Err(Unavailable::NoSuchDevice {
                    wanted: name.clone(),
                    present: present
                        .iter()
                        .map(|d| format!("{} ({}, {})", d.ordinal, d.name, d.uuid_text()))
                        .collect(),
                });
            };
            if !device.fits() {
                return Err(Unavailable::too_weak(device));
            }
            if !chosen.contains(device) {
                chosen.push(device.clone());
            }
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ordinal: u32, first: u8) -> DeviceInfo {
        DeviceInfo {
            ordinal,
            name: "Card".into(),
            uuid: std::array::from_fn(|i| first + i as u8),
            pci_address: format!("0000:{ordinal:02x}:00.0"),
            memory_bytes: 1 << 30,
            multiprocessors: 4,
            compute: (7, 0),
        }
    }

    #[test]
    fn devices_are_chosen_by_number_and_uuid_in_the_order_asked_for() {
        let present = [device(0, 0x10), device(1, 0xa0)];
        let choose = |list: &[&str]| {
            Selection::Devices(list.iter().map(|s| (*s).into()).collect()).choose(&present)
        };
        assert_eq!(
            present[0].uuid_text(),
            "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"
        );
        assert_eq!(Selection::Auto.choose(&present), Ok(present.to_vec()));
        assert_eq!(
            choose(&["1", "0"]),
            Ok(vec![present[1].clone(), present[0].clone()])
        );
        assert_eq!(choose(&["GPU-A0a1"]), Ok(vec![present[1].clone()]));
        assert_eq!(
            choose(&["a0a1a2a3-a4a5", "1"]),
            Ok(vec![present[1].clone()])
        );
        let error = choose(&["3"]).expect_err("there are two");
        assert_eq!(
            error.to_string(),
            "there is no GPU 3; present are 0 (Card, GPU-10111213-1415-1617-1819-1a1b1c1d1e1f), \
             1 (Card, GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf)"
        );
        assert!(choose(&["GPU"]).is_err(), "a beginning that says nothing");
    }

    #[test]
    fn an_old_driver_is_named_with_what_is_the_least() {
        let text = Unavailable::TooOld { version: 11040 }.to_string();
        assert!(
            text.contains("CUDA 11.4") && text.contains("R525"),
            "{text}"
        );
    }

    /// A Pascal card was chosen, and its owner told what the driver says of code that it cannot compile.
    #[test]
    fn devices_before_volta_are_not_chosen() {
        let (mut old, new) = (device(0, 0x10), device(1, 0xa0));
        old.compute = (6, 1);
        let auto = |present: &[DeviceInfo]| Selection::Auto.choose(present);
        assert_eq!(auto(&[old.clone(), new.clone()]), Ok(vec![new.clone()]));
        assert_eq!(auto(&[]), Ok(vec![]));
        let alone = auto(std::slice::from_ref(&old)).expect_err("it is too weak");
        let named = Selection::Devices(vec!["0".into()]).choose(&[old, new]);
        for error in [alone, named.expect_err("so it is by name")] {
            assert_eq!(
                error.to_string(),
                "GPU 0 (Card) has compute capability 6.1, and parity needs Volta (7.0) or later"
            );
        }
    }
}
