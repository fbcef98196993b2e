//! Judges the GPUs. A GPU that the configuration names and that cannot be used is a failure; one that `auto` does without is
//! not. Parity runs on the CPU in each of these cases.

use parity_kernels::cuda::{Selection, Unavailable};

use super::facts::{Cuda, Gpu, Gpus, Pci, Wanted};
use super::{Finding, Status};
use crate::units::Bytes;

const ON_CPU: &str = "parity runs on the CPU";

pub(super) fn judge(gpus: &Gpus) -> Vec<Finding> {
    if gpus.wanted == Wanted::Off {
        return vec![Finding::new(
            Status::None,
            "GPU",
            format!("off in the configuration; {ON_CPU}"),
            "",
        )];
    }
    match &gpus.found {
        Ok(cuda) => present(gpus, cuda),
        Err(why) => vec![absent(gpus, why)],
    }
}

/// How bad it is that a GPU cannot be used.
fn severity(named: bool, for_auto: Status) -> Status {
    match named {
        true => Status::Fail,
        false => for_auto,
    }
}

/// How bad it is that there is no GPU to use, and what to do about it, one thing. `named`: somebody asked for a certain one;
/// `card`: there is a card of NVIDIA's in the machine. For the doctor, the daemon's log and the benchmark alike.
pub fn advice(why: &Unavailable, named: bool, card: bool) -> (Status, &'static str) {
    let (for_auto, fix) = match why {
        Unavailable::NoDriver if card => (
            Status::Warn,
            "install NVIDIA's driver, R525 or newer, with its CUDA library (libcuda1 on Debian)",
        ),
        Unavailable::NoDriver if named => (
            Status::Fail,
            "put in an NVIDIA card and install its driver, R525 or newer",
        ),
        Unavailable::NoDevice if card => (
            Status::Warn,
            "see dmesg for NVRM, whether the nodes /dev/nvidia* are there, and that CUDA_VISIBLE_DEVICES does not hide it",
        ),
        Unavailable::NoDevice if named => (
            Status::Fail,
            "see whether lspci shows the card, and that CUDA_VISIBLE_DEVICES does not hide it",
        ),
        Unavailable::NoDriver | Unavailable::NoDevice => {
            (Status::None, "nothing, unless a GPU should be there")
        }
        Unavailable::Damaged { .. } => (
            Status::Warn,
            "install NVIDIA's driver again as a whole, R525 or newer, for 64 bits",
        ),
        Unavailable::TooOld { .. } => (Status::Warn, "install NVIDIA's driver R525 or newer"),
        // One half was updated, and the other is still loaded.
        Unavailable::Failed { what } if what.contains("MISMATCH") => (
            Status::Warn,
            "start the machine again: the driver's library and its kernel module are of different versions",
        ),
        Unavailable::Silent => (
            Status::Warn,
            "see what dmesg says (NVRM, Xid): a card that has fallen off the bus needs a reset or a start of the machine",
        ),
        Unavailable::Failed { .. } => (Status::Warn, "see what nvidia-smi and dmesg (NVRM) say"),
        Unavailable::TooWeak { .. } if named => {
            (Status::Fail, "name a card of Volta (7.0) or later")
        }
        Unavailable::TooWeak { .. } => (
            Status::None,
            "nothing, or put in a card of Volta (7.0) or later",
        ),
        Unavailable::NoSuchDevice { .. } => (Status::Fail, "name a GPU that is present"),
    };
    (severity(named, for_auto), fix)
}

/// What to do about a device on which no lane opens, by what the driver said.
pub fn lane_advice(error: &str) -> &'static str {
    let short = error.to_lowercase().replace('_', " ");
    if short.contains("out of memory") {
        "end other programs on it (nvidia-smi lists them), or use another GPU"
    } else {
        "see what nvidia-smi and dmesg (NVRM) say"
    }
}

/// Somebody who asked for a certain GPU may also do without.
fn or_auto(status: Status, fix: &str) -> String {
    match status {
        Status::Fail => format!("{fix}; or gpu: auto in the configuration"),
        _ => fix.to_string(),
    }
}

fn absent(gpus: &Gpus, why: &Unavailable) -> Finding {
    let (named, card) = (
        matches!(gpus.wanted, Wanted::These(_)),
        !gpus.cards.is_empty(),
    );
    let mut found = why.to_string();
    let module = gpus.module_version.as_ref().filter(|_| {
        use Unavailable::{Damaged, Failed, NoDevice, TooOld};
        matches!(
            why,
            TooOld { .. } | NoDevice | Failed { .. } | Damaged { .. }
        )
    });
    if let Some(version) = module {
        found += &format!("; NVIDIA's kernel module is {version}");
    }
    match why {
        Unavailable::NoDriver | Unavailable::NoDevice if card => {
            found += &format!("; there is a card of NVIDIA's at {}", gpus.cards.join(", "));
        }
        Unavailable::NoDriver => found += ", and no card of NVIDIA's is seen",
        _ => {}
    }
    let (status, fix) = advice(why, named, card);
    let fix = or_auto(status, fix);
    Finding::new(status, "GPU", format!("{found}; {ON_CPU}"), fix)
}

fn present(gpus: &Gpus, cuda: &Cuda) -> Vec<Finding> {
    let driver = gpus
        .module_version
        .as_ref()
        .map_or(String::new(), |v| format!("NVIDIA driver {v}, "));
    let mut findings = vec![Finding::ok(
        "GPU driver",
        format!(
            "{driver}CUDA {}.{}",
            cuda.version / 1000,
            cuda.version % 1000 / 10
        ),
    )];
    let infos: Vec<_> = cuda.devices.iter().map(|gpu| gpu.info.clone()).collect();
    let selection = match &gpus.wanted {
        Wanted::These(names) => Selection::Devices(names.clone()),
        _ => Selection::Auto,
    };
    let chosen = match selection.choose(&infos) {
        Ok(chosen) => chosen,
        Err(error) => {
            findings.push(absent(gpus, &error));
            Vec::new()
        }
    };
    for gpu in &cuda.devices {
        let used = chosen.contains(&gpu.info);
        findings.extend(one(gpus, gpu, used));
    }
    findings
}

fn one(gpus: &Gpus, gpu: &Gpu, used: bool) -> Vec<Finding> {
    let (info, pci) = (&gpu.info, &gpu.pci);
    let check = format!("GPU {}", info.ordinal);
    let mut found = format!(
        "{}, {}, {} of memory, at {}{}",
        info.name,
        info.uuid_text(),
        Bytes(info.memory_bytes),
        info.pci_address,
        link(pci)
    );
    if let Some(bar1) = pci.bar1 {
        found += &format!(", BAR1 {}", Bytes(bar1));
    }
    if let Some(numa) = pci.numa {
        found += &format!(", NUMA node {numa}");
    }
    if !used {
        let (major, minor) = info.compute;
        found += &match info.fits() {
            true => "; not chosen by the configuration".into(),
            false => format!(
                "; not used: its compute capability is {major}.{minor}, and parity needs Volta (7.0) or later"
            ),
        };
        return vec![Finding::new(Status::None, check, found, "")];
    }
    let mut findings = Vec::new();
    match &gpu.opens {
        Some(Err(error)) => {
            let named = matches!(gpus.wanted, Wanted::These(_));
            let status = severity(named, Status::Warn);
            findings.push(Finding::new(
                status,
                check.clone(),
                format!("{found}; it cannot be used: {error}; {ON_CPU}"),
                or_auto(status, lane_advice(error)),
            ));
        }
        _ => findings.push(Finding::ok(
            check.clone(),
            format!("{found}; takes part in parity where that pays"),
        )),
    }
    if let (Some(width), Some(most)) = (pci.width, pci.max_width)
        && width < most
    {
        findings.push(Finding::new(
            Status::Warn,
            format!("{check} link"),
            format!("{width} of {most} PCIe lanes are in use"),
            "check the slot and the firmware's settings: parity moves over this link",
        ));
    }
    findings
}

/// Width and speed; an idle card often slows its link down, which is no fault.
fn link(pci: &Pci) -> String {
    let (Some(width), Some(speed)) = (pci.width, &pci.speed) else {
        return String::new();
    };
    let most = match (pci.max_width, &pci.max_speed) {
        (Some(w), Some(s)) if (w, s) != (width, speed) => format!(" (at most x{w} {s})"),
        _ => String::new(),
    };
    format!(", PCIe x{width} {speed}{most}")
}
