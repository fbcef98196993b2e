//! Who computes the parity of an array: the engines of the CPU, chosen by a measurement of less than a tenth of a second once
//! per process, and lanes to GPUs where there are any. What is chosen is logged, and shown by `detail`.

use std::sync::{Arc, OnceLock};

use parity_kernels::Engine;
use parity_kernels::calibrate::{Calibration, Op};
use parity_kernels::cuda::Unavailable;

use crate::array_api::{ArrayOptions, GpuStatus, ParityChoice, StartError};
use crate::doctor::{self, Status, gather};
use crate::lane::choice::GpuChoice;
use crate::lane::cost::Policy;
use crate::lane::spread::{blocks_each, kernel_distance, node_of_cpu, spread};
use crate::lane::{LanePlan, gpu};
use crate::units::Bytes;

/// See the module comment.
pub(super) struct ParitySetup {
    pub calibration: Arc<Calibration>,
    gpu: GpuChoice,
    policy: Policy,
    /// Of one device.
    most_blocks: usize,
    unavailable: Option<String>,
    /// One per queue that has one; or none at all.
    pub plans: Vec<Option<LanePlan>>,
}

fn measured() -> Arc<Calibration> {
    static MEASURED: OnceLock<Arc<Calibration>> = OnceLock::new();
    let make = || {
        let calibration = Calibration::measure();
        tracing::info!("parity on this CPU: {}", sentence(&choices(&calibration)));
        Arc::new(calibration)
    };
    MEASURED.get_or_init(make).clone()
}

/// Operation by operation, as the measurement has it.
fn choices(calibration: &Calibration) -> Vec<ParityChoice> {
    let mut out: Vec<ParityChoice> = Vec::new();
    for op in Op::ALL {
        for row in calibration.rows().iter().filter(|row| row.op == op) {
            out.push(ParityChoice {
                operation: op.name().into(),
                engine: row.engine.name().into(),
                up_to_bytes: row.up_to.map(|b| b as u64),
            });
        }
    }
    out
}

/// The choices in one line: `encode avx2 up to 64 KiB, else avx512; update avx2`.
pub fn sentence(choices: &[ParityChoice]) -> String {
    let mut out = String::new();
    let mut last = "";
    for choice in choices {
        let first = last != choice.operation;
        let lead = match (out.is_empty(), first) {
            (true, _) => "",
            (false, true) => "; ",
            (false, false) => ", ",
        };
        out += lead;
        if first {
            out += &format!("{} ", choice.operation);
        }
        out += &match choice.up_to_bytes {
            Some(bytes) => format!("{} up to {}", choice.engine, Bytes(bytes)),
            None if first => choice.engine.clone(),
            None => format!("else {}", choice.engine),
        };
        last = &choice.operation;
    }
    out
}

impl ParitySetup {
    /// Who could compute parity, by the options. Looks for no GPU yet.
    ///
    /// # Errors
    /// The engine of that name is not known, or not for this machine.
    pub fn new(options: &ArrayOptions, parity: bool) -> Result<ParitySetup, StartError> {
        let calibration = match &options.parity_engine {
            Some(name) => Arc::new(Calibration::pinned_by_name(name).ok_or_else(|| {
                let here = Engine::names_here().join(", ");
                StartError::Unsupported(format!(
                    "this CPU cannot run the parity engine {name:?}; it can run {here}"
                ))
            })?),
            None if parity => measured(),
            // Nothing to compute.
            None => Arc::new(Calibration::from_samples(&[], Engine::detect())),
        };
        Ok(ParitySetup {
            calibration,
            gpu: match parity {
                true => options.gpu.clone(),
                false => GpuChoice::Off,
            },
            policy: Policy {
                slack: f64::from(options.gpu_slack),
                ..Policy::default()
            },
            most_blocks: usize::from(options.gpu_blocks),
            unavailable: None,
            plans: Vec::new(),
        })
    }

    /// Looks for GPUs and gives each queue one, by the CPUs that it runs on. That there is none is no error.
    pub fn find_gpus(&mut self, queue_cpus: &[&[usize]]) {
        let devices = match gpu::devices(&self.gpu) {
            Ok(devices) => devices,
            Err(why) => {
                self.tell_absence(&why);
                self.unavailable = Some(why.to_string());
                return;
            }
        };
        let queues: Vec<Option<u32>> = queue_cpus
            .iter()
            .map(|cpus| cpus.first().and_then(|cpu| node_of_cpu(*cpu)))
            .collect();
        let nodes: Vec<Option<u32>> = devices.iter().map(|d| d.node).collect();
        let dealt = spread(&queues, &nodes, self.most_blocks, kernel_distance);
        let lanes = |device| dealt.iter().filter(|at| **at == Some(device)).count();
        self.plans = dealt
            .iter()
            .map(|at| {
                let device = (*at)?;
                let blocks = blocks_each(lanes(device), self.most_blocks);
                let opener = devices[device].gpu.with_blocks(blocks);
                Some(LanePlan::new(opener, self.calibration.clone(), self.policy))
            })
            .collect();
    }

    /// As the doctor would, and as loud.
    fn tell_absence(&self, why: &Unavailable) {
        let named = self.gpu != GpuChoice::Auto;
        let card = !gather::Tree::new("/").nvidia_cards().is_empty();
        match (doctor::advice(why, named, card), named) {
            // A machine without a GPU is as it should be.
            ((Status::None | Status::Ok, _), _) => {
                tracing::info!("no GPU computes parity, the CPU does: {why}");
            }
            ((_, fix), false) => {
                tracing::warn!("no GPU computes parity, the CPU does: {why}; {fix}");
            }
            ((_, fix), true) => tracing::warn!(
                "no GPU computes parity, the CPU does, although the configuration asks for gpu: {}: {why}; {fix}",
                self.gpu
            ),
        }
    }

    /// For `detail`.
    pub fn facts(&self, parity: bool) -> ParityFacts {
        let choices = match parity {
            true => choices(&self.calibration),
            false => Vec::new(),
        };
        let mut names: Vec<&str> = choices.iter().map(|c| c.engine.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        ParityFacts {
            engine: match names.is_empty() {
                true => "none".into(),
                false => names.join("+"),
            },
            choices,
            setting: self.gpu.to_string(),
            unavailable: self.unavailable.clone(),
            lanes: self
                .plans
                .iter()
                .flatten()
                .map(|p| p.shared.clone())
                .collect(),
        }
    }
}

/// What `detail` shows of it.
pub(super) struct ParityFacts {
    /// One name, or several with a plus between.
    pub engine: String,
    pub choices: Vec<ParityChoice>,
    setting: String,
    unavailable: Option<String>,
    lanes: Vec<Arc<crate::lane::status::Shared>>,
}

impl ParityFacts {
    /// The GPUs as they are now.
    pub fn gpu(&self) -> GpuStatus {
        GpuStatus {
            setting: self.setting.clone(),
            unavailable: self.unavailable.clone(),
            lanes: self.lanes.iter().map(|l| l.read()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(operation: &str, engine: &str, up_to_bytes: Option<u64>) -> ParityChoice {
        ParityChoice {
            operation: operation.into(),
            engine: engine.into(),
            up_to_bytes,
        }
    }

    #[test]
    fn choices_in_a_sentence() {
        let list = [
            choice("encode", "avx2", Some(65536)),
            choice("encode", "avx512", None),
            choice("update", "avx2", None),
        ];
        assert_eq!(
            sentence(&list),
            "encode avx2 up to 64 KiB, else avx512; update avx2"
        );
        assert_eq!(sentence(&[]), "");
    }

    #[test]
    fn a_missing_gpu_is_named_and_nothing_else_happens() {
        let options = ArrayOptions {
            gpu: GpuChoice::These(vec![crate::lane::choice::GpuName::Index(1023)]),
            ..crate::config::Defaults::default().options(false)
        };
        let mut setup = ParitySetup::new(&options, true).expect("a CPU");
        setup.find_gpus(&[&[0], &[0]]);
        assert!(setup.plans.is_empty());
        let facts = setup.facts(true);
        let gpu = facts.gpu();
        assert_eq!(gpu.setting, "1023");
        assert!(gpu.unavailable.is_some_and(|why| !why.is_empty()));
        assert!(gpu.lanes.is_empty());
        assert_eq!(
            facts
                .choices
                .iter()
                .filter(|c| c.up_to_bytes.is_none())
                .count(),
            4
        );
    }

    #[test]
    fn an_engine_that_is_not_there_is_refused() {
        let options = ArrayOptions {
            parity_engine: Some("abacus".into()),
            ..crate::config::Defaults::default().options(false)
        };
        let error = ParitySetup::new(&options, true).err().expect("refused");
        assert!(error.to_string().contains("abacus"), "{error}");
    }
}
