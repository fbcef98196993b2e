//! The cases that issue reports are made of, on made-up machines: each is one clear line, and parity stays on the CPU.

use super::facts::*;
use super::*;
use parity_kernels::cuda::{DeviceInfo, Unavailable};

fn device(ordinal: u32) -> Gpu {
    Gpu {
        info: DeviceInfo {
            ordinal,
            name: "Card".into(),
            uuid: [ordinal as u8 + 1; 16],
            pci_address: format!("0000:{ordinal:02x}:00.0"),
            memory_bytes: 80 << 30,
            multiprocessors: 100,
            compute: (9, 0),
        },
        pci: Pci {
            width: Some(16),
            max_width: Some(16),
            speed: Some("2.5 GT/s".into()),
            max_speed: Some("32.0 GT/s".into()),
            bar1: Some(128 << 30),
            numa: Some(0),
        },
        opens: Some(Ok(())),
    }
}

fn good() -> Facts {
    Facts {
        config_error: None,
        kernel_release: "7.3.4".into(),
        ublk: Ublk {
            driver: Driver::Features(0x1f_ffff),
            io_uring_disabled: Some(0),
            module: Some(true),
            zero_copy_wanted: true,
        },
        cpu: Cpu {
            model: "Some CPU".into(),
            features: vec!["avx2".into()],
            engines: vec!["avx2".into(), "swar".into(), "scalar".into()],
            pinned: None,
            chosen: vec!["encode: avx2".into()],
        },
        gpu: Gpus {
            wanted: Wanted::Auto,
            cards: vec!["0000:00:00.0".into()],
            module_version: Some("535.183.01".into()),
            found: Ok(Cuda {
                version: 12020,
                devices: vec![device(0)],
            }),
        },
        memory: Memory {
            limit: None,
            may_lock: true,
            total: 64 << 30,
            queues: 8,
            per_queue: 64 << 20,
            huge_pages: Some("madvise".into()),
        },
        md: Md::default(),
    }
}

fn these(name: &str) -> Wanted {
    Wanted::These(vec![name.into()])
}

/// The findings about GPUs, for the same trouble with `gpu: auto` and with `gpu: 0`.
fn gpu_trouble(change: impl Fn(&mut Gpus)) -> [Finding; 2] {
    [Wanted::Auto, these("0")].map(|wanted| {
        let mut facts = good();
        facts.gpu.wanted = wanted;
        change(&mut facts.gpu);
        let findings = examine(&facts);
        let worst = findings
            .iter()
            .filter(|f| f.check.starts_with("GPU") && f.status != Status::Ok)
            .collect::<Vec<_>>();
        assert_eq!(worst.len(), 1, "{findings:?}");
        assert_eq!(passes(&findings), worst[0].status != Status::Fail);
        worst[0].clone()
    })
}

/// One line that says where parity runs, and what to do, which is something where something has failed.
fn is_clear(finding: &Finding) {
    if finding.status == Status::Fail {
        assert!(!finding.fix.starts_with("nothing"), "{finding:?}");
        assert!(finding.fix.ends_with("in the configuration"), "{finding:?}");
    }
    // What is wrong is told in one column, what to do in the other.
    for word in ["install N", "install the", "update the", "see what"] {
        assert!(!finding.found.contains(word), "{finding:?}");
    }
    assert!(
        !finding.found.contains('\n') && !finding.fix.is_empty(),
        "{finding:?}"
    );
    assert!(
        finding.found.ends_with("parity runs on the CPU"),
        "{finding:?}"
    );
}

#[test]
fn a_good_machine_passes() {
    let findings = examine(&good());
    assert!(passes(&findings));
    let bad = |f: &&Finding| matches!(f.status, Status::Warn | Status::Fail);
    assert_eq!(findings.iter().find(bad), None);
    let gpu = findings.iter().find(|f| f.check == "GPU 0").unwrap();
    for part in [
        "GPU-01010101",
        "80 GiB",
        "0000:00:00.0",
        "PCIe x16 2.5 GT/s (at most x16 32.0 GT/s)",
        "BAR1 128 GiB",
        "NUMA node 0",
    ] {
        assert!(gpu.found.contains(part), "{part} in {}", gpu.found);
    }
    let driver = findings.iter().find(|f| f.check == "GPU driver").unwrap();
    assert!(driver.found.contains("535.183.01") && driver.found.contains("CUDA 12.2"));
}

#[test]
fn without_libcuda() {
    let [auto, named] = gpu_trouble(|g| {
        g.found = Err(Unavailable::NoDriver);
        g.cards.clear();
    });
    assert_eq!((auto.status, named.status), (Status::None, Status::Fail));
    is_clear(&auto);
    is_clear(&named);
    assert!(auto.found.contains("libcuda.so.1"), "{auto:?}");
    // With a card in the machine something is missing.
    let [auto, named] = gpu_trouble(|g| g.found = Err(Unavailable::NoDriver));
    assert_eq!((auto.status, named.status), (Status::Warn, Status::Fail));
    assert!(
        auto.found.contains("0000:00:00.0") && auto.fix.contains("R525"),
        "{auto:?}"
    );
}

#[test]
fn a_driver_that_is_too_old() {
    let [auto, named] = gpu_trouble(|g| {
        g.found = Err(Unavailable::TooOld { version: 11040 });
        g.module_version = Some("470.256.02".into());
    });
    assert_eq!((auto.status, named.status), (Status::Warn, Status::Fail));
    for finding in [&auto, &named] {
        is_clear(finding);
        assert!(finding.found.contains("CUDA 11.4"), "{finding:?}");
        assert!(finding.found.contains("470.256.02"), "{finding:?}");
        assert!(finding.fix.contains("R525"), "{finding:?}");
    }
}

#[test]
fn a_gpu_without_memory_left() {
    let [auto, named] = gpu_trouble(|g| {
        let error = "memory for the ring: CUDA_ERROR_OUT_OF_MEMORY, out of memory";
        g.found.as_mut().unwrap().devices[0].opens = Some(Err(error.into()));
    });
    assert_eq!((auto.status, named.status), (Status::Warn, Status::Fail));
    for finding in [&auto, &named] {
        is_clear(finding);
        assert!(finding.found.contains("OUT_OF_MEMORY"), "{finding:?}");
        assert!(finding.fix.contains("nvidia-smi"), "{finding:?}");
    }
}

#[test]
fn gpu_3_on_a_machine_with_one() {
    let mut facts = good();
    facts.gpu.wanted = these("3");
    let findings = examine(&facts);
    assert!(!passes(&findings));
    let finding = findings.iter().find(|f| f.status == Status::Fail).unwrap();
    is_clear(finding);
    assert!(
        finding.found.contains("no GPU 3; present are 0 (Card"),
        "{finding:?}"
    );
    assert!(
        finding.fix.contains("a GPU that is present; or gpu: auto"),
        "{finding:?}"
    );
    // The card that is there is shown, and not used.
    let card = findings.iter().find(|f| f.check == "GPU 0").unwrap();
    assert!(
        card.status == Status::None && card.found.contains("not chosen"),
        "{card:?}"
    );
}

/// It was called not installed, and nothing to be worried about.
#[test]
fn a_driver_that_is_there_and_broken() {
    for what in [
        "is there but cannot be loaded: libcuda.so.1: file too short",
        "lacks cuCtxCreate_v2",
    ] {
        let [auto, named] = gpu_trouble(|g| {
            g.found = Err(Unavailable::Damaged { what: what.into() });
            g.cards.clear();
        });
        assert_eq!((auto.status, named.status), (Status::Warn, Status::Fail));
        for finding in [&auto, &named] {
            is_clear(finding);
            assert!(finding.found.contains(what), "{finding:?}");
            assert!(finding.fix.contains("driver again"), "{finding:?}");
        }
    }
}

/// It was loaded with code that it cannot run.
#[test]
fn a_card_before_volta() {
    let weak = |g: &mut Gpus| {
        let gpu = &mut g.found.as_mut().unwrap().devices[0];
        (gpu.info.compute, gpu.opens) = ((6, 1), None);
    };
    for wanted in [Wanted::Auto, these("0")] {
        let mut facts = good();
        facts.gpu.wanted = wanted.clone();
        weak(&mut facts.gpu);
        let findings = examine(&facts);
        assert_eq!(passes(&findings), wanted == Wanted::Auto);
        let gpu = findings.iter().find(|f| f.check == "GPU").unwrap();
        assert!(gpu.found.contains("6.1"), "{gpu:?}");
        assert!(gpu.found.contains("needs Volta (7.0) or later"), "{gpu:?}");
        let card = findings.iter().find(|f| f.check == "GPU 0").unwrap();
        assert!(card.found.contains("Volta (7.0) or later"), "{card:?}");
        assert_eq!(card.status, Status::None);
    }
    // Beside a better one it is no more than a remark.
    let mut facts = good();
    weak(&mut facts.gpu);
    facts.gpu.found.as_mut().unwrap().devices.push(device(1));
    let findings = examine(&facts);
    assert!(passes(&findings) && findings.iter().all(|f| f.check != "GPU"));
    let used = findings.iter().find(|f| f.check == "GPU 1").unwrap();
    assert_eq!(used.status, Status::Ok);
}

#[test]
fn advice_fits_what_the_driver_says() {
    let mismatch = Unavailable::Failed {
        what: "starting the driver: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH".into(),
    };
    let (status, fix) = advice(&mismatch, false, true);
    assert!(status == Status::Warn && fix.contains("different versions"));
    assert!(lane_advice("making a context: CUDA_ERROR_OUT_OF_MEMORY").contains("other programs"));
    assert!(lane_advice("the device has not answered").contains("nvidia-smi"));
}

#[test]
fn a_driver_that_does_not_work_or_sees_nothing() {
    let failed = Unavailable::Failed {
        what: "cuInit: CUDA_ERROR_UNKNOWN".into(),
    };
    let [auto, named] = gpu_trouble(|g| g.found = Err(failed.clone()));
    assert_eq!((auto.status, named.status), (Status::Warn, Status::Fail));
    is_clear(&auto);
    let [auto, named] = gpu_trouble(|g| g.found = Err(Unavailable::NoDevice));
    assert_eq!((auto.status, named.status), (Status::Warn, Status::Fail));
    is_clear(&auto);
    let [auto, _] = gpu_trouble(|g| {
        g.found = Err(Unavailable::NoDevice);
        g.cards.clear();
    });
    assert_eq!(auto.status, Status::None);
}

#[test]
fn switched_off_is_no_fault() {
    let mut facts = good();
    facts.gpu.wanted = Wanted::Off;
    facts.gpu.found = Err(Unavailable::NoDriver);
    let findings = examine(&facts);
    assert!(passes(&findings));
    let gpu: Vec<_> = findings
        .iter()
        .filter(|f| f.check.starts_with("GPU"))
        .collect();
    assert_eq!((gpu.len(), gpu[0].status), (1, Status::None));
}

#[test]
fn a_narrow_link_is_a_warning() {
    let mut facts = good();
    facts.gpu.found.as_mut().unwrap().devices[0].pci.width = Some(8);
    let findings = examine(&facts);
    let link = findings.iter().find(|f| f.check == "GPU 0 link").unwrap();
    assert_eq!(link.status, Status::Warn);
    assert!(link.found.contains("8 of 16"));
}

#[test]
fn a_bad_configuration_fails_and_the_rest_is_still_judged() {
    let mut facts = good();
    facts.config_error = Some(ConfigFault {
        problem: "raidd.yaml:2: unknown key".into(),
        remedy: "remove it".into(),
    });
    let findings = examine(&facts);
    assert!(!passes(&findings) && findings.len() > 5);
    assert!(findings[0].found.starts_with("raidd.yaml:2: unknown key;"));
    assert_eq!(findings[0].fix, "remove it");
}
