//! What `raidctl` says of NVIDIA drivers and cards that are not as they should be, with a stand-in for the driver's library that
//! is compiled here. It says nothing of real ones.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Folders with a `libcuda.so.1` of each kind.
struct Fakes(tempfile::TempDir);

impl Fakes {
    fn new() -> Fakes {
        let fakes = Fakes(tempfile::tempdir().unwrap());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-cuda/libcuda.c");
        fakes.compile("whole", &source);
        let nothing = fakes.0.path().join("nothing.c");
        std::fs::write(&nothing, "int nothing;\n").unwrap();
        fakes.compile("lacking", &nothing);
        for (name, text) in [("empty", ""), ("text", "not a library\n")] {
            std::fs::write(fakes.folder(name).join("libcuda.so.1"), text).unwrap();
        }
        // The bindings try this name first; where it is a real one, the stand-in must come before it.
        for name in ["whole", "lacking", "empty", "text"] {
            let folder = fakes.folder(name);
            std::fs::copy(folder.join("libcuda.so.1"), folder.join("libcuda.so")).unwrap();
        }
        fakes
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.0.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn compile(&self, name: &str, source: &Path) {
        let library = self.folder(name).join("libcuda.so.1");
        let built = Command::new("cc")
            .args(["-std=gnu11", "-shared", "-fPIC", "-o"])
            .args([&library, source])
            .output()
            .expect("cc, which links Rust programs too");
        assert!(built.status.success(), "{built:?}");
    }

    fn raidctl(&self, folder: &str, wrong: &str, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_raidctl"))
            .args(words)
            .env("LD_LIBRARY_PATH", self.folder(folder))
            .env("FAKE_CUDA", wrong)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .output()
            .unwrap()
    }

    /// Findings about GPUs, with `gpu:` as given.
    fn doctor(&self, folder: &str, wrong: &str, gpu: &str) -> Vec<(String, String, String)> {
        let config = self.0.path().join("raidd.yaml");
        std::fs::write(&config, format!("defaults:\n  gpu: {gpu}\n")).unwrap();
        let config = config.to_str().unwrap();
        let words = ["doctor", "--config", config, "--output", "json"];
        let output = self.raidctl(folder, wrong, &words);
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{folder} {wrong}: {e}: {output:?}"));
        let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_string();
        let findings = report["findings"].as_array().unwrap();
        // The CPU computes in each of these cases.
        let cpu = findings.iter().find(|f| f["check"] == "parity on the CPU");
        assert_eq!(cpu.unwrap()["status"], "ok");
        findings
            .iter()
            .filter(|f| text(f, "check").starts_with("GPU") && f["check"] != "GPU driver")
            .map(|f| (text(f, "status"), text(f, "found"), text(f, "fix")))
            .collect()
    }
}

#[test]
fn each_trouble_is_one_line_with_its_remedy() {
    let fakes = Fakes::new();
    let again = "install NVIDIA's driver again";
    let nvidia_smi = "see what nvidia-smi";
    for (folder, wrong, found, fix) in [
        ("empty", "", "is there but cannot be loaded: ", again),
        ("text", "", "is there but cannot be loaded: ", again),
        ("lacking", "", "libcuda.so.1 lacks cu", again),
        (
            "whole",
            "old",
            "speaks CUDA 11.4, and 12.0 is the least",
            "R525 or newer",
        ),
        ("whole", "unknown", "CUDA_ERROR_UNKNOWN", nvidia_smi),
        (
            "whole",
            "mismatch",
            "DRIVER_MISMATCH",
            "start the machine again",
        ),
        ("whole", "full", "OUT_OF_MEMORY", "end other programs on it"),
        (
            "whole",
            "",
            "the GPU program has ended with work undone",
            nvidia_smi,
        ),
    ] {
        for (gpu, status) in [("auto", "warn"), ("0", "fail")] {
            let findings = fakes.doctor(folder, wrong, gpu);
            let [finding] = &findings[..] else {
                panic!("{folder} {wrong}: {findings:?}");
            };
            assert_eq!(finding.0, status, "{finding:?}");
            assert!(finding.1.contains(found), "{finding:?}");
            assert!(finding.1.ends_with("parity runs on the CPU"), "{finding:?}");
            assert!(finding.2.contains(fix), "{finding:?}");
        }
        // Asked for by name it must not be missing without a word.
        let words = ["bench", "parity", "--quick", "--bytes", "4K", "--memory"];
        let words = [&words[..], &["16M", "--engine", "scalar,gpu"]].concat();
        let output = fakes.raidctl(folder, wrong, &words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{folder} {wrong}: {said}");
        assert!(output.stdout.is_empty());
        assert!(said.contains("--engine gpu gives no figure: "), "{said}");
        assert!(said.contains(found) && said.contains(fix), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let output = fakes.raidctl(folder, wrong, &[&words[..], &["-o", "json"]].concat());
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(error["error"]["kind"], "usage");
    }
}

#[test]
fn a_card_that_is_not_there_or_too_old() {
    let fakes = Fakes::new();
    let findings = fakes.doctor("whole", "full", "3");
    assert_eq!(findings[0].0, "fail");
    let missing = "there is no GPU 3; present are 0 (Fake, GPU-11111111-";
    assert!(findings[0].1.starts_with(missing), "{findings:?}");
    assert!(
        findings[0].2.starts_with("name a GPU that is present"),
        "{findings:?}"
    );
    for (gpu, status) in [("auto", "none"), ("0", "fail")] {
        let findings = fakes.doctor("whole", "pascal", gpu);
        assert_eq!(findings[0].0, status);
        assert!(
            findings
                .iter()
                .all(|f| f.1.contains("needs Volta (7.0) or later")),
            "{findings:?}"
        );
    }
    let findings = fakes.doctor("whole", "no-device", "0");
    assert_eq!(findings[0].0, "fail");
    assert!(!findings[0].2.starts_with("nothing"), "{findings:?}");
    // Somebody would have waited for hours.
    let findings = fakes.doctor("whole", "endless", "auto");
    assert_eq!(findings.len(), 256);
}

#[test]
fn a_driver_that_hangs_is_waited_for_once() {
    // A card that had fallen off the bus kept the first call of its driver for good, and with it doctor, create and stop.
    let fakes = Fakes::new();
    let begun = std::time::Instant::now();
    let findings = fakes.doctor("whole", "hangs", "auto");
    assert!(begun.elapsed().as_secs() >= 10, "it did hang");
    let [finding] = &findings[..] else {
        panic!("{findings:?}");
    };
    assert_eq!(finding.0, "warn");
    assert!(finding.1.contains("does not answer"), "{finding:?}");
    assert!(finding.2.contains("dmesg"), "{finding:?}");
}
