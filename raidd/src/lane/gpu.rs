//! The GPUs that the configuration allows and the driver has. Asked once per array start; costs what loading the driver costs.

use std::sync::Arc;

use parity_kernels::offload::Opener;

use super::choice::GpuChoice;

/// A device that lanes can be opened to.
#[derive(Clone)]
pub struct Device {
    /// Opens them.
    pub opener: Arc<dyn Opener>,
    /// NUMA node that it hangs on, where known.
    pub node: Option<u32>,
}

/// The devices to use; an empty list if none is wanted.
///
/// # Errors
/// One sentence for an operator: why there is none, or which of the wanted ones is not there.
pub fn devices(choice: &GpuChoice) -> Result<Vec<Device>, String> {
    match choice {
        GpuChoice::Off => Ok(Vec::new()),
        GpuChoice::Auto | GpuChoice::These(_) => {
            Err("this program has no GPU code for this machine".into())
        }
    }
}
