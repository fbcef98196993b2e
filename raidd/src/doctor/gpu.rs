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
fn severity(gpus: &Gpus, for_auto: Status) -> Status {
    match gpus.wanted {
        Wanted::These(_) => Status::Fail,
        _ => for_auto,
    }
}

fn absent(gpus: &Gpus, why: &Unavailable) -> Finding {
    let there = !gpus.cards.is_empty();
    let cards = || format!("; there is a card of NVIDIA's at {}", gpus.cards.join(", "));
    let module = || {
        let version = gpus.module_version.as_ref();
        version.map_or(String::new(), |v| format!(" (NVIDIA driver {v})"))
    };
    let (for_auto, found, fix) = match why {
        Unavailable::NoDriver if there => (
            Status::Warn,
            format!("{why}{}", cards()),
            "install NVIDIA's driver, R525 or newer, with its CUDA library (libcuda1 on Debian)",
        ),
        Unavailable::NoDriver => (
            Status::None,
            format!("{why}, and no card of NVIDIA's is seen"),
            "nothing, unless a GPU should be there",
        ),
        Unavailable::TooOld { .. } => (
            Status::Warn,
            format!("{why}{}", module()),
            "install NVIDIA's driver R525 or newer",
        ),
        Unavailable::NoDevice if there => (
            Status::Warn,
            format!("{why}{}{}", module(), cards()),
            "see dmesg for NVRM, whether the nodes /dev/nvidia* are there, and that CUDA_VISIBLE_DEVICES does not hide it",
        ),
        Unavailable::NoDevice => (
            Status::None,
            why.to_string(),
            "nothing, unless a GPU should be there",
        ),
        Unavailable::Failed { .. } => (
            Status::Warn,
            format!("{why}{}", module()),
            "see what nvidia-smi and dmesg (NVRM) say",
        ),
        Unavailable::NoSuchDevice { .. } => (
            Status::Fail,
            why.to_string(),
            "correct gpu: in the configuration",
        ),
    };
    let status = severity(gpus, for_auto);
    let fix = match status {
        Status::Fail => format!("{fix}; or gpu: auto in the configuration"),
        _ => fix.to_string(),
    };
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
        found += "; not chosen by the configuration";
        return vec![Finding::new(Status::None, check, found, "")];
    }
    let mut findings = Vec::new();
    match &gpu.opens {
        Some(Err(error)) => {
            let short = error.to_lowercase();
            let fix = if short.contains("out of memory") || short.contains("out_of_memory") {
                "end other programs on it (nvidia-smi lists them), or choose another GPU with gpu:"
            } else {
                "see what nvidia-smi and dmesg (NVRM) say"
            };
            let status = severity(gpus, Status::Warn);
            findings.push(Finding::new(
                status,
                check.clone(),
                format!("{found}; it cannot be used: {error}; {ON_CPU}"),
                fix,
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
