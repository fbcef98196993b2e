//! The devices that do parity, real and simulated, and what is done to them on purpose.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parity_kernels::cuda::{Gpu, GpuOptions, Selection, gpus};
use parity_kernels::offload::simulated::{Faults, SimulatedDevice};
use parity_kernels::offload::{LaneCost, Opener};
use raidd::lane::LanePlan;
use raidd::lane::cost::{CpuCost, FlatRate, Policy};
use raidd::lane::supervisor::Pauses;

/// A processor so slow, in bytes per ns, that everything goes to the lane.
const HOPELESS: f64 = 1e-6;
/// How long a simulated device stays dead.
const DEAD: Duration = Duration::from_millis(100);

/// Devices of one kind.
#[derive(Clone)]
pub enum Devices {
    /// One that the processor plays.
    Simulated(SimulatedDevice),
    /// GPUs.
    Gpus(Vec<Arc<Gpu>>),
}

/// What is done to a device in mid-load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// The simulated device dies, in turns with half a job written and altogether.
    Simulated,
    /// A kernel runs into a fault.
    Trap,
    /// The context is destroyed.
    Destroy,
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Strike::Simulated => "simulated",
            Strike::Trap => "kernel fault",
            Strike::Destroy => "context destroyed",
        })
    }
}

impl Devices {
    /// A device whose jobs are late and overtake one another.
    pub fn simulated() -> Devices {
        let faults = Arc::new(Faults::default());
        faults.delay.store(2, Ordering::SeqCst);
        faults.jitter.store(4, Ordering::SeqCst);
        let cost = LaneCost {
            caller_ns: 500.0,
            latency_ns: 10_000.0,
            ns_per_byte: 0.02,
        };
        Devices::Simulated(SimulatedDevice {
            faults,
            cost,
            depth: 64,
        })
    }

    /// The GPUs of that choice: `auto`, or numbers and uuids with commas between.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub fn gpus(choice: &str, options: GpuOptions) -> Result<Devices, String> {
        let selection = match choice {
            "auto" => Selection::Auto,
            list => Selection::Devices(list.split(',').map(str::to_owned).collect()),
        };
        let found = gpus(&selection, options).map_err(|e| e.to_string())?;
        Ok(Devices::Gpus(found))
    }

    /// What there is, for an operator.
    pub fn describe(&self) -> Vec<String> {
        match self {
            Devices::Simulated(device) => vec![device.name()],
            Devices::Gpus(all) => {
                let one = |gpu: &Arc<Gpu>| {
                    let info = gpu.info();
                    let blocks = gpu.blocks();
                    format!(
                        "{} at {}, {blocks} block(s) a lane",
                        gpu.name(),
                        info.pci_address
                    )
                };
                all.iter().map(one).collect()
            }
        }
    }

    /// A lane for every engine, the devices in turn.
    pub fn lanes(&self, cpu: Arc<dyn CpuCost>, policy: Policy) -> Lanes {
        let openers: Vec<Arc<dyn Opener>> = match self {
            Devices::Simulated(device) => vec![Arc::new(device.clone())],
            Devices::Gpus(all) => all.iter().map(|g| g.clone() as Arc<dyn Opener>).collect(),
        };
        Lanes {
            openers,
            cpu,
            policy,
        }
    }

    /// A lane for every engine, to which everything goes.
    pub fn lanes_for_all(&self) -> Lanes {
        self.lanes(
            Arc::new(FlatRate(HOPELESS)),
            Policy {
                slack: 1e12,
                ..Policy::default()
            },
        )
    }

    /// Does it to the devices, all of them. Returns once it is done.
    ///
    /// # Errors
    /// The device does not even take the fault.
    pub fn strike(&self, strike: Strike) -> Result<(), String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        match (self, strike) {
            (Devices::Simulated(device), Strike::Simulated) => {
                if COUNT.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                    device.faults.dies_after.store(3, Ordering::SeqCst);
                } else {
                    device.faults.dead.store(true, Ordering::SeqCst);
                    std::thread::sleep(DEAD);
                    device.faults.dead.store(false, Ordering::SeqCst);
                }
                Ok(())
            }
            (Devices::Gpus(all), Strike::Trap | Strike::Destroy) => {
                for gpu in all {
                    let done = match strike {
                        Strike::Trap => gpu.inject_fault(),
                        _ => gpu.inject_loss(),
                    };
                    done.map_err(|e| e.to_string())?;
                }
                Ok(())
            }
            (Devices::Simulated(_), _) => Err(format!("a simulated device has no {strike}")),
            (Devices::Gpus(_), _) => Err("a GPU has no simulated fault".into()),
        }
    }
}

/// How engines get their lanes.
#[derive(Clone)]
pub struct Lanes {
    openers: Vec<Arc<dyn Opener>>,
    cpu: Arc<dyn CpuCost>,
    policy: Policy,
}

impl Lanes {
    /// For one engine. A lost lane is tried again soon, so that it is lost more than once in a short run.
    pub fn plan(&self, queue: u16) -> LanePlan {
        let opener = self.openers[usize::from(queue) % self.openers.len()].clone();
        let mut plan = LanePlan::new(opener, self.cpu.clone(), self.policy);
        plan.pauses = Pauses {
            first: Duration::from_millis(100),
            most: Duration::from_millis(800),
        };
        plan
    }
}
