//! Judges the CPU and the choice of parity engine.

use super::facts::Cpu;
use super::{Finding, Status};

pub(super) fn judge(cpu: &Cpu) -> Vec<Finding> {
    let features = match cpu.features.is_empty() {
        true => "nothing wide".to_string(),
        false => cpu.features.join(" "),
    };
    let mut findings = vec![Finding::ok("CPU", format!("{}: {features}", cpu.model))];
    let check = "parity on the CPU";
    findings.push(match (&cpu.pinned, cpu.engines.first()) {
        (Some(pinned), Some(best)) if pinned != best => Finding::new(
            Status::Warn,
            check,
            format!("{pinned}, as the configuration has it; {best} runs here too"),
            "parity_engine: auto, unless this is for a measurement",
        ),
        (_, Some(best)) if best == "swar" || best == "scalar" => Finding::new(
            Status::Warn,
            check,
            format!("{best}: this CPU has no vector instructions that raidd knows"),
            "in a virtual machine, pass the host's CPU model through",
        ),
        _ => Finding::ok(check, cpu.chosen.join(", ")),
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(engines: &[&str], pinned: Option<&str>) -> Cpu {
        Cpu {
            model: "Some CPU".into(),
            features: vec!["avx2".into()],
            engines: engines.iter().map(|e| e.to_string()).collect(),
            pinned: pinned.map(Into::into),
            chosen: vec!["all: avx2".into()],
        }
    }

    #[test]
    fn pins_and_weak_cpus() {
        let status = |engines, pinned| judge(&cpu(engines, pinned))[1].status;
        let all = &["avx2", "swar", "scalar"];
        assert_eq!(status(all, None), Status::Ok);
        assert_eq!(status(all, Some("avx2")), Status::Ok);
        assert_eq!(status(all, Some("scalar")), Status::Warn);
        assert_eq!(status(&["swar", "scalar"], None), Status::Warn);
    }
}
