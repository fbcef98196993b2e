//! Which GPUs take part: all that the CUDA driver shows, whatever the daemon's configuration says.

use std::sync::Arc;

use parity_kernels::cuda::{GpuOptions, Selection, gpus};
use parity_kernels::offload::Opener;

/// A way to each GPU of this machine, or one sentence why there is none. Starts the driver, which takes up to a second.
pub fn openers() -> Result<Vec<Arc<dyn Opener>>, String> {
    let gpus = gpus(&Selection::Auto, GpuOptions::default()).map_err(|e| e.to_string())?;
    Ok(gpus.into_iter().map(|gpu| gpu as Arc<dyn Opener>).collect())
}
