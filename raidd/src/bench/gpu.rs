//! Which GPUs take part: all that the CUDA driver shows, whatever the daemon's configuration says.

use std::sync::Arc;

use parity_kernels::cuda::{GpuOptions, Selection, gpus};
use parity_kernels::offload::Opener;

use crate::doctor;

/// Why no GPU takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// What is wrong.
    pub why: String,
    /// What to do about it.
    pub remedy: &'static str,
}

/// A way to each GPU of this machine, or why there is none. Starts the driver, which takes up to a second.
pub fn openers() -> Result<Vec<Arc<dyn Opener>>, Absence> {
    let gpus = gpus(&Selection::Auto, GpuOptions::default()).map_err(|why| {
        let card = !doctor::gather::Tree::new("/").nvidia_cards().is_empty();
        Absence {
            why: why.to_string(),
            remedy: doctor::advice(&why, true, card).1,
        }
    })?;
    Ok(gpus.into_iter().map(|gpu| gpu as Arc<dyn Opener>).collect())
}
