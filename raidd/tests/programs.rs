//! The two programs as a shell sees them, as far as that needs no root and no devices.

use std::process::{Command, Output};

fn raidd(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_raidd"))
        .args(words)
        .env_remove("RUST_LOG")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_wrong_config_names_file_line_key_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("raidd.yaml");
    let cases = [
        (
            "defaults:\n  chunck: 64K\n",
            ":2: unknown key 'defaults.chunck'; did you mean 'defaults.chunk'?",
        ),
        ("version: 1\nlog:\n  format: xml\n", ":3: log.format"),
        (
            "log: {level: 'raidd=loud'}\n",
            "log.level: 'raidd=loud' is no filter",
        ),
        ("defaults:\n\tchunk: 64K\n", ":2: "),
        // Once the daemon started with it, and no array could be made.
        (
            "defaults:\n  parity_engine: avx9\n",
            ":2: defaults.parity_engine: 'avx9' does not fit; write auto, or an engine of this CPU: ",
        ),
        (
            "defaults:\n  parity_engine: ''\n",
            ":2: defaults.parity_engine: '' does not fit; write auto, or an engine of this CPU: ",
        ),
        (
            "defaults:\n  gpu_slack: 1.5\n",
            ":2: defaults.gpu_slack: 1.5 does not fit; write a whole number from 1 to 1000",
        ),
        (
            "defaults:\n  gpu:\n",
            ":2: defaults.gpu: is empty; write auto, off, a number or a UUID",
        ),
    ];
    for (yaml, wanted) in cases {
        std::fs::write(&config, yaml).unwrap();
        let socket = folder.path().join("raidd.sock");
        let output = raidd(&[
            "--config",
            config.to_str().unwrap(),
            "--socket",
            socket.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(1), "{yaml}");
        assert!(
            text(&output.stderr).contains(wanted),
            "{yaml}: {}",
            text(&output.stderr)
        );
        assert!(!socket.exists());
    }
    let output = raidd(&["--config", "/no/such/file.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/no/such/file.yaml"));
}

#[test]
fn help_and_usage() {
    assert_eq!(raidd(&["--help"]).status.code(), Some(0));
    assert_eq!(raidd(&["--version"]).status.code(), Some(0));
    assert_eq!(raidd(&["--levitate"]).status.code(), Some(2));
}

#[test]
fn every_verb_prints_json_errors_in_one_shape() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nobody.sock");
    for words in [
        &["list"][..],
        &["detail", "r0"],
        &["stop", "r0"],
        &["assemble", "--scan"],
        &["create", "--level", "5", "/dev/a", "/dev/b", "/dev/c"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_raidctl"))
            .args(words)
            .args(["--output", "json", "--socket"])
            .arg(&socket)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(3), "{words:?}");
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(error["error"]["kind"], "no_daemon");
        assert!(
            error["error"]["message"]
                .as_str()
                .unwrap()
                .contains("systemctl start raidd")
        );
    }
}

/// A timer that publishes figures piled up behind a daemon that did not answer.
#[test]
fn no_verb_waits_for_a_daemon_that_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("stuck.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let began = std::time::Instant::now();
    let verbs = [
        &["metrics"][..],
        &["list"],
        &["detail", "r0"],
        &["stop", "r0"],
        &["assemble", "--scan"],
        &["create", "--level", "5", "/dev/a", "/dev/b", "/dev/c"],
    ];
    let running = verbs.map(|words| {
        Command::new(env!("CARGO_BIN_EXE_raidctl"))
            .args(words)
            .arg("--socket")
            .arg(&socket)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    });
    for (child, words) in running.into_iter().zip(verbs) {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains("has not answered for 10 s"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(60));
}

/// A table without a figure in it came out, and status 0.
#[test]
fn what_cannot_be_measured_is_refused() {
    for (words, wanted) in [
        (
            &["--data", "1", "--job", "recover-two"][..],
            "--job: recover-two needs 2",
        ),
        (
            &["--engine", "avx9"],
            "--engine: there is no 'avx9'; choose from ",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_raidctl"))
            .args(["bench", "parity", "--quick"])
            .args(words)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains(wanted) && said.lines().count() == 1, "{said}");
    }
}

/// It measured on for a quarter of an hour, for a reader that had gone, and after a signal that ends other programs.
#[test]
fn bench_ends_with_its_reader() {
    use nix::sys::signal::{Signal, kill};
    let bench = ["bench", "parity", "--engine", "scalar", "--rounds", "1000"];
    for by_signal in [false, true] {
        let began = std::time::Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_raidctl"))
            .args(bench)
            .args(["--memory", "16M", "--bytes", "4K"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(child.try_wait().unwrap(), None, "it measures");
        if !by_signal {
            drop(child.stdout.take());
        }
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if by_signal {
                // Again and again: before it watches for it, it is ignored.
                let pid = nix::unistd::Pid::from_raw(child.id() as i32);
                kill(pid, Signal::SIGPIPE).unwrap();
            }
            assert!(began.elapsed() < std::time::Duration::from_secs(60));
            std::thread::sleep(std::time::Duration::from_millis(50));
        };
        assert_eq!(status.code(), Some(141), "{status:?}");
    }
}

/// It printed its text and said nothing of the wish, while its errors were JSON.
#[test]
fn metrics_knows_one_form() {
    let output = Command::new(env!("CARGO_BIN_EXE_raidctl"))
        .args(["metrics", "--output", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "usage");
    assert!(output.stdout.is_empty());
}

/// The figures for Prometheus went to a full disk, `raidctl` said that all was well, and half a file took the place of
/// a whole one.
#[test]
fn a_full_disk_is_a_failure() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full");
    let bench = ["bench", "parity", "--quick", "--engine", "scalar"];
    let bench = [&bench[..], &["--bytes", "4K", "--memory", "16M"]].concat();
    for words in [&bench[..], &["doctor"], &["doctor", "--output", "json"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_raidctl"))
            .args(words)
            .stdout(full().unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        // A doctor that has found something has failed anyway.
        if words[0] == "bench" {
            let said = text(&output.stderr);
            assert!(said.contains("standard output: No space left"), "{said}");
        }
    }
}
