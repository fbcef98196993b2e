//! The GPUs that the configuration allows and the driver has. Asked once per array start; costs what starting the driver costs,
//! up to a second the first time.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::choice::GpuChoice;
use parity_kernels::cuda::{Gpu, GpuOptions, Selection, Unavailable, gpus};

/// A device that lanes can be opened to.
#[derive(Clone)]
pub struct Device {
    /// Itself; see [`Gpu::with_blocks`] for what opens them.
    pub gpu: Arc<Gpu>,
    /// NUMA node that it hangs on, where known.
    pub node: Option<u32>,
}

/// Devices that some array has asked for before: all lanes of a device share what the driver keeps for it.
static KNOWN: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());

/// The devices to use; an empty list if none is wanted.
///
/// # Errors
/// Why there is none, or which of the wanted ones is not there.
pub fn devices(choice: &GpuChoice) -> Result<Vec<Device>, Unavailable> {
    let selection = match choice {
        GpuChoice::Off => return Ok(Vec::new()),
        GpuChoice::Auto => Selection::Auto,
        GpuChoice::These(names) => {
            Selection::Devices(names.iter().map(ToString::to_string).collect())
        }
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = Vec::new();
    for gpu in gpus(&selection, GpuOptions::default())? {
        let same = known.iter().find(|k| k.info().uuid == gpu.info().uuid);
        let gpu = match same {
            Some(gpu) => gpu.clone(),
            None => {
                known.push(gpu.clone());
                gpu
            }
        };
        found.push(Device {
            node: node(&gpu.info().pci_address),
            gpu,
        });
    }
    Ok(found)
}

/// NUMA node of a PCI device; -1 in sysfs means unknown.
fn node(pci_address: &str) -> Option<u32> {
    let file = Path::new("/sys/bus/pci/devices")
        .join(pci_address.to_ascii_lowercase())
        .join("numa_node");
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_asks_no_driver() {
        assert!(devices(&GpuChoice::Off).is_ok_and(|d| d.is_empty()));
    }

    #[test]
    fn a_gpu_that_is_not_there_is_named() {
        let choice = GpuChoice::These(vec![super::super::choice::GpuName::Index(1000)]);
        let text = devices(&choice).err().expect("no such device").to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text}");
    }
}
