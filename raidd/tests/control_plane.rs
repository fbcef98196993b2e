//! The control plane from raidctl to superblocks on image files, with a simulated data path.

mod support;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use raidd::config::Config;
use raidd::control::commands::Control;
use raidd::control::lines::{Lines, Patience};
use raidd::control::listen::listen;
use raidd::control::peer::Policy;
use raidd::control::server::{Limits, Server};
use raidd::guard::Guard;
use serde_json::Value;
use support::SimStarter;

struct Bed {
    folder: tempfile::TempDir,
    starter: Arc<SimStarter>,
    control: Arc<Control>,
    server: Option<Server>,
}

const PATIENCE: Patience = Patience {
    idle: Duration::from_secs(5),
    line: Duration::from_millis(300),
};

impl Bed {
    fn new() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let starter = Arc::new(SimStarter::default());
        let config = Config {
            state_dir: folder.path().join("state"),
            ..Config::default()
        };
        let guard = Guard {
            mdadm: Some(folder.path().join("raidd.conf")),
            udev: Some(folder.path().join("63-raidd-members.rules")),
            reload: false,
        };
        let control = Arc::new(Control::with_files(config, starter.clone(), guard));
        let mut bed = Bed {
            folder,
            starter,
            control,
            server: None,
        };
        bed.serve();
        bed
    }

    fn serve(&mut self) {
        let policy = Policy {
            daemon_uid: nix::unistd::geteuid().as_raw(),
            group: None,
        };
        let limits = Limits {
            patience: PATIENCE,
            write: Duration::from_secs(5),
        };
        let listening = listen(&self.socket(), None).unwrap();
        self.server = Some(Server::start(listening, policy, limits, self.control.clone()).unwrap());
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("raidd.sock")
    }

    fn images(&self, count: usize, bytes: u64) -> Vec<PathBuf> {
        (0..count)
            .map(|n| {
                let path = self.folder.path().join(format!("member{n}"));
                let file = std::fs::File::create(&path).unwrap();
                file.set_len(bytes).unwrap();
                path
            })
            .collect()
    }

    fn raidctl(&self, words: &[&str]) -> Output {
        raidctl(&self.socket(), words)
    }

    /// Runs raidctl, expects this exit status, and gives both outputs.
    fn expect(&self, code: i32, words: &[&str]) -> (String, String) {
        let output = self.raidctl(words);
        let out = String::from_utf8(output.stdout).unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}\n{out}\n{err}");
        (out, err)
    }

    fn json(&self, words: &[&str]) -> Value {
        let (out, _) = self.expect(0, &[words, &["--output", "json"]].concat());
        serde_json::from_str(&out).unwrap()
    }

    /// `member<0..N>` as raidctl takes it.
    fn range(&self, count: usize) -> String {
        format!("{}/member<0..{}>", self.folder.path().display(), count - 1)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.close();
        }
    }
}

fn raidctl(socket: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_raidctl"))
        .args(words)
        .env("RAIDD_SOCKET", socket)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn contents(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    paths.iter().map(|p| std::fs::read(p).unwrap()).collect()
}

#[test]
fn create_list_detail_stop_assemble() {
    let bed = Bed::new();
    let members = bed.images(4, 64 << 20);
    let made = bed.json(&["create", "--level", "6", "--name", "data", &bed.range(4)]);
    assert_eq!(made["name"], "data");
    assert_eq!(made["level"], 6);
    assert_eq!(made["chunk_bytes"], 65536);
    assert_eq!(made["device"], "/dev/ublkb0");
    assert_eq!(made["outcome"], "changed");
    assert_eq!(made["state"], "active, resyncing");
    assert_eq!(made["members"][3]["path"], members[3].to_str().unwrap());
    assert_eq!(made["members"][3]["slot"], 3);
    let size = made["size_bytes"].as_u64().unwrap();
    assert!(size > 120 << 20 && size < 128 << 20, "{size}");
    let uuid = made["uuid"].as_str().unwrap();

    let list = bed.json(&["list"]);
    assert_eq!(list["arrays"][0]["uuid"], uuid);
    for key in ["data", uuid, "/dev/ublkb0"] {
        let detail = bed.json(&["detail", key]);
        assert_eq!(detail["layout"], "left-symmetric");
        assert_eq!(detail["degraded"], 0);
        assert_eq!(detail["resync"]["percent"], 25.0);
        assert_eq!(detail["resync"]["eta_seconds"], 3);
        assert_eq!(detail["ublk_features"][0], "USER_COPY");
        assert_eq!(detail["parity_engine"], "simulated");
    }
    let (table, _) = bed.expect(0, &["list"]);
    assert!(
        table.contains("data") && table.contains("raid6") && table.contains("4/4"),
        "{table}"
    );

    // mdadm and udev are kept off for as long as the array is ours.
    let conf = bed.folder.path().join("raidd.conf");
    assert!(std::fs::read_to_string(&conf).unwrap().contains(uuid));
    let examined = bed.json(&["examine", &bed.range(4)]);
    assert_eq!(examined["members"][2]["superblock"]["uuid"], uuid);
    assert_eq!(examined["members"][2]["superblock"]["array_state"], "AAAA");

    // Members are held: nobody else may write to them.
    let (_, err) = bed.expect(1, &["zero", members[0].to_str().unwrap()]);
    assert!(err.contains("in use"), "{err}");

    assert_eq!(
        bed.json(&["stop", "data", "--dry-run"])["outcome"],
        "planned"
    );
    assert_eq!(bed.json(&["stop", "data"])["outcome"], "changed");
    assert!(conf.exists(), "a stopped array is still ours");
    assert_eq!(bed.json(&["list"])["arrays"], serde_json::json!([]));
    let again = bed.json(&["assemble", &bed.range(4)]);
    assert_eq!(again["arrays"][0]["uuid"], uuid);
    assert_eq!(again["arrays"][0]["outcome"], "changed");
    assert_eq!(
        again["arrays"][0]["device"], "/dev/ublkb0",
        "the device it had before"
    );
    let again = bed.json(&["assemble", &bed.range(4)]);
    assert_eq!(again["arrays"][0]["outcome"], "unchanged");
    assert_eq!(bed.json(&["stop", uuid, "--release"])["released"], true);
    assert!(!conf.exists());
}

#[test]
fn a_missing_member_and_the_exit_codes_of_test() {
    let bed = Bed::new();
    let members = bed.images(3, 64 << 20);
    bed.expect(
        0,
        &["create", "--level", "5", "--assume-clean", &bed.range(3)],
    );
    bed.expect(0, &["detail", "r0", "--test"]);
    bed.expect(0, &["stop", "r0"]);
    let words = [
        "assemble",
        members[0].to_str().unwrap(),
        members[2].to_str().unwrap(),
    ];
    let (out, err) = bed.expect(0, &words);
    assert!(out.contains("degraded"), "{out}");
    assert!(err.contains("1 of 3 members are missing"), "{err}");
    bed.expect(1, &["detail", "r0", "--test"]);
    bed.expect(4, &["detail", "r9", "--test"]);
    bed.expect(0, &["stop", "r0"]);
    let (_, err) = bed.expect(1, &["assemble", members[1].to_str().unwrap()]);
    assert!(err.contains("missing"), "{err}");
    let (_, err) = bed.expect(
        1,
        &[
            "assemble",
            members[1].to_str().unwrap(),
            members[1].to_str().unwrap(),
        ],
    );
    assert!(err.contains("twice"), "{err}");
}

#[test]
fn refused_creates_write_nothing_and_name_everything() {
    let bed = Bed::new();
    let members = bed.images(4, 64 << 20);
    std::fs::File::options()
        .write(true)
        .open(&members[1])
        .unwrap()
        .write_all(b"XFSB")
        .unwrap();
    let before = contents(&members);
    let first = members[0].to_str().unwrap();
    let third = members[2].to_str().unwrap();
    let second = members[1].to_str().unwrap();
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--level", "6", first, third], &["at least 4 members"]),
        (&["--level", "5", first, third, first], &["given twice"]),
        (
            &[
                "--level",
                "5",
                first,
                second,
                third,
                "/dev/no-such",
                "/dev/null",
            ],
            &["XFS", "no such device", "not a block"],
        ),
        (
            &[
                "--level",
                "5",
                "--name",
                "a/b",
                first,
                third,
                members[3].to_str().unwrap(),
            ],
            &["name"],
        ),
        (
            &["--level", "5", "--layout", "spiral", first, third],
            &["no layout 'spiral'", "left-symmetric"],
        ),
        (
            &["--level", "0", "--layout", "left-symmetric", first, third],
            &["raid0 has no layout"],
        ),
        (
            &["--level", "5", "--chunk", "64M", first, third],
            &["64 MiB"],
        ),
        (&["--level", "5", first, third], &["--yes", "mirror"]),
    ];
    for (words, wanted) in cases {
        let (out, err) = bed.expect(1, &[&["create"], words].concat());
        assert_eq!(out, "");
        for text in wanted {
            assert!(err.contains(text), "{words:?}: no '{text}' in: {err}");
        }
        assert_eq!(contents(&members), before, "{words:?}");
    }
    assert!(!bed.folder.path().join("raidd.conf").exists());
    // The dry run writes nothing either, with or without --force.
    let range = bed.range(4);
    let plan = bed.json(&["create", "--level", "6", "--force", "--dry-run", &range]);
    assert_eq!(plan["outcome"], "planned");
    assert_eq!(plan["device"], Value::Null);
    assert_eq!(contents(&members), before);
    // In JSON the reasons are there one by one.
    let output = bed.raidctl(&[
        "create",
        "--level",
        "5",
        "--output",
        "json",
        second,
        "/dev/null",
        third,
    ]);
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "preflight");
    assert_eq!(error["error"]["problems"].as_array().unwrap().len(), 2);
    // And with --force the old file system is gone.
    bed.expect(0, &["create", "--level", "6", "--force", &range]);
    assert_eq!(&contents(&members)[1][..4], &[0; 4]);
}

#[test]
fn a_start_that_fails_leaves_the_members_as_they_were() {
    let bed = Bed::new();
    let members = bed.images(3, 64 << 20);
    std::fs::File::options()
        .write(true)
        .open(&members[1])
        .unwrap()
        .write_all(b"XFSB")
        .unwrap();
    let before = contents(&members);
    let range = bed.range(3);
    bed.starter.no_ublk.store(true, Ordering::SeqCst);
    let (_, err) = bed.expect(1, &["create", "--level", "5", "--force", &range]);
    assert!(err.contains("modprobe ublk_drv"), "{err}");
    bed.starter.no_ublk.store(false, Ordering::SeqCst);
    bed.starter.fail_start.store(true, Ordering::SeqCst);
    let (_, err) = bed.expect(1, &["create", "--level", "5", "--force", &range]);
    assert!(
        err.contains("told to fail") && err.contains("as it was before"),
        "{err}"
    );
    assert_eq!(contents(&members), before);
    assert!(!bed.folder.path().join("raidd.conf").exists());
    bed.expect(0, &["create", "--level", "5", "--force", &range]);
}

#[test]
fn unequal_members_need_a_yes() {
    let bed = Bed::new();
    let members = bed.images(3, 64 << 20);
    std::fs::File::options()
        .write(true)
        .open(&members[2])
        .unwrap()
        .set_len(96 << 20)
        .unwrap();
    let range = bed.range(3);
    let (_, err) = bed.expect(1, &["create", "--level", "5", &range]);
    assert!(
        err.contains("--yes") && err.contains("stay unused") && err.contains("member2"),
        "{err}"
    );
    let (_, err) = bed.expect(0, &["create", "--level", "5", "--yes", &range]);
    assert!(err.contains("warning"), "{err}");
}

#[test]
fn names_are_unique_and_given_in_turn() {
    let bed = Bed::new();
    bed.images(4, 64 << 20);
    let dir = bed.folder.path().display();
    let (a, b) = (
        format!("{dir}/member[0-1]"),
        format!("{dir}/member{{2..3}}"),
    );
    assert_eq!(bed.json(&["create", "--level", "0", &a])["name"], "r0");
    let (_, err) = bed.expect(1, &["create", "--level", "0", "--name", "r0", &b]);
    assert!(err.contains("runs already"), "{err}");
    assert_eq!(bed.json(&["create", "--level", "0", &b])["name"], "r1");
    let (_, err) = bed.expect(1, &["stop", "r7"]);
    assert!(
        err.contains("no array 'r7'") && err.contains("r0, r1"),
        "{err}"
    );
}

#[test]
fn an_array_in_use_is_not_stopped() {
    let bed = Bed::new();
    bed.images(2, 64 << 20);
    bed.expect(0, &["create", "--level", "0", &bed.range(2)]);
    bed.starter.busy.store(true, Ordering::SeqCst);
    let (_, err) = bed.expect(1, &["stop", "r0"]);
    assert!(err.contains("r0") && err.contains("/dev/ublkb0"), "{err}");
    assert_eq!(bed.control.arrays().stop_all().len(), 1);
    bed.expect(0, &["detail", "r0"]);
    bed.starter.busy.store(false, Ordering::SeqCst);
    assert!(bed.control.arrays().stop_all().is_empty());
}

#[test]
fn zero_takes_ours_and_asks_before_the_rest() {
    let bed = Bed::new();
    let members = bed.images(3, 64 << 20);
    bed.expect(0, &["create", "--level", "5", &bed.range(3)]);
    bed.expect(0, &["stop", "r0"]);
    let planned = bed.json(&["zero", "--dry-run", &bed.range(3)]);
    assert_eq!(planned["members"][0]["outcome"], "planned");
    bed.expect(0, &["examine", &bed.range(3)]);
    // A damaged superblock is not known to be ours, and then nothing at all is erased.
    let mut bytes = std::fs::read(&members[1]).unwrap();
    bytes[4096 + 40] ^= 0x55;
    std::fs::write(&members[1], &bytes).unwrap();
    let (_, err) = bed.expect(1, &["zero", &bed.range(3)]);
    assert!(err.contains("member1") && err.contains("--force"), "{err}");
    bed.expect(0, &["examine", members[0].to_str().unwrap()]);
    bed.expect(0, &["zero", "--force", &bed.range(3)]);
    let (out, _) = bed.expect(1, &["examine", members[0].to_str().unwrap()]);
    assert!(out.contains("no MD superblock"), "{out}");
    let again = bed.json(&["zero", &bed.range(3)]);
    assert_eq!(again["members"][0]["outcome"], "unchanged");
}

#[test]
fn examine_survives_everything() {
    let bed = Bed::new();
    let members = bed.images(2, 64 << 20);
    bed.expect(0, &["create", "--level", "0", &bed.range(2)]);
    bed.expect(0, &["stop", "r0"]);
    let good = std::fs::read(&members[0]).unwrap()[..16384].to_vec();
    let path = bed.folder.path().join("fuzzed");
    let mut seed = 1u64;
    for round in 0..60 {
        let mut bytes = good.clone();
        for _ in 0..=round % 5 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            bytes[4096 + (seed >> 33) as usize % 512] = (seed >> 20) as u8;
        }
        bytes.truncate(16384 - (round % 3) * 4321);
        std::fs::write(&path, &bytes).unwrap();
        let output = bed.raidctl(&["examine", path.to_str().unwrap()]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        assert!(!output.stdout.is_empty());
    }
    for path in ["/dev/null", "/", "/no/such", "/dev/zero"] {
        bed.expect(1, &["examine", path]);
    }
}

#[test]
fn bad_clients_hurt_nobody() {
    let bed = Bed::new();
    bed.images(2, 64 << 20);
    bed.expect(0, &["create", "--level", "0", &bed.range(2)]);
    let answer = |stream: &UnixStream| {
        let line = Lines::new(stream, 1 << 20, PATIENCE)
            .next_line()
            .unwrap()
            .unwrap();
        serde_json::from_slice::<Value>(&line).unwrap()
    };
    // Half a line and then silence; meanwhile everybody else is served.
    let slow = UnixStream::connect(bed.socket()).unwrap();
    (&slow).write_all(b"{\"protocol\":1,").unwrap();
    bed.expect(0, &["list"]);
    assert_eq!(answer(&slow)["error"]["kind"], "bad_request");
    // A line without end.
    let mut long = UnixStream::connect(bed.socket()).unwrap();
    let _ = long.write_all(&vec![b'x'; 300 << 10]);
    assert!(
        answer(&long)["error"]["message"]
            .as_str()
            .unwrap()
            .contains("longer")
    );
    // Garbage, then a proper request on the same connection.
    let mut odd = UnixStream::connect(bed.socket()).unwrap();
    odd.write_all(b"\xff\x00{[\n").unwrap();
    assert_eq!(answer(&odd)["error"]["kind"], "bad_request");
    odd.write_all(b"{\"protocol\":1,\"id\":5,\"command\":{\"verb\":\"version\"}}\n")
        .unwrap();
    assert_eq!(answer(&odd)["id"], 5);
    // Those who connect and say nothing do not use up the places of those who speak for long.
    let idle: Vec<UnixStream> = (0..40)
        .map(|_| UnixStream::connect(bed.socket()).unwrap())
        .collect();
    drop(idle);
    std::thread::sleep(Duration::from_millis(200));
    bed.expect(0, &["list"]);
}

#[test]
fn no_daemon_and_waiting_for_one() {
    let mut bed = Bed::new();
    bed.server.take().unwrap().close();
    assert!(!bed.socket().exists());
    let (_, err) = bed.expect(3, &["list"]);
    assert!(err.contains("no raidd answers"), "{err}");
    bed.expect(3, &["create", "--level", "5", "/dev/sd{a..c}"]);
    let socket = bed.socket();
    let waiting = std::thread::spawn(move || raidctl(&socket, &["list", "--wait-daemon", "10"]));
    std::thread::sleep(Duration::from_millis(300));
    bed.serve();
    assert_eq!(waiting.join().unwrap().status.code(), Some(0));
}

#[test]
fn usage_is_exit_2() {
    let bed = Bed::new();
    for words in [
        &["create", "--level", "7", "a", "b"][..],
        &["create", "--level", "5"],
        &["create", "--level", "5", "/dev/nvme<0..7n1"],
        &["create", "--level", "5", "/dev/nvme<7..0>n1"],
        &["create", "--level", "5", "--chunk", "100K", "a", "b", "c"],
        &["assemble"],
        &["assemble", "--scan", "/dev/sda"],
        &["levitate"],
        &[],
    ] {
        let output = bed.raidctl(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
    bed.expect(1, &["assemble", "--uuid", "xyz"]);
    bed.expect(0, &["--help"]);
    bed.expect(0, &["--version"]);
}

/// A daemon was killed while a file system was mounted on its array. The next one waited for the kernel to let the
/// dead device go before it served, and the kernel waited for the umount: raidctl never got an answer.
#[test]
fn a_mounted_device_of_a_dead_daemon_does_not_keep_the_next_from_serving() {
    let bed = Bed::new();
    bed.images(3, 64 << 20);
    bed.json(&["create", "--level", "5", "--name", "data", &bed.range(3)]);
    bed.expect(0, &["stop", "data"]);
    bed.starter.leftovers_used.store(true, Ordering::SeqCst);
    bed.control.remove_leftovers(vec![0]).unwrap();
    assert_eq!(
        bed.json(&["list"])["arrays"].as_array().unwrap().len(),
        0,
        "list waits for nothing"
    );
    let range = bed.range(3);
    let again = bed.json(&["assemble", &range]);
    assert_eq!(
        again["arrays"][0]["device"], "/dev/ublkb1",
        "its old number is the dead device's"
    );
    bed.expect(0, &["stop", "data"]);
    bed.starter.leftovers_used.store(false, Ordering::SeqCst);
    bed.json(&["assemble", &range]);
}

/// With an array mounted a daemon that was told to end stays. It still made arrays in that time, and the umount took
/// them away again without a word.
#[test]
fn an_ending_daemon_starts_nothing() {
    let bed = Bed::new();
    let members = bed.images(3, 64 << 20);
    let before = contents(&members);
    let range = bed.range(3);
    bed.control.end();
    for words in [
        ["create", "--level", "5", &range].as_slice(),
        &["assemble", &range],
    ] {
        let (_, err) = bed.expect(1, words);
        assert!(err.contains("told to end"), "{err}");
    }
    assert_eq!(contents(&members), before);
    bed.expect(0, &["list"]);
}

/// `stop` and only then the thought of going back to mdadm: there was no array any more to release. And when the
/// notes could not be removed, "stopped" and status 0 hid it, and a second try found no array.
#[test]
fn an_array_that_does_not_run_can_still_be_released() {
    let bed = Bed::new();
    bed.images(3, 64 << 20);
    let conf = bed.folder.path().join("raidd.conf");
    let range = bed.range(3);
    bed.json(&["create", "--level", "5", "--name", "data", &range]);
    bed.expect(0, &["stop", "data"]);
    assert!(conf.exists());
    let (out, _) = bed.expect(0, &["stop", "--release", "--dry-run", "data"]);
    assert!(conf.exists(), "{out}");
    let (out, _) = bed.expect(0, &["stop", "--release", "data"]);
    assert!(
        out.contains("does not run") && out.contains("mdadm's"),
        "{out}"
    );
    assert!(!conf.exists());
    let (_, err) = bed.expect(1, &["stop", "--release", "data"]);
    assert!(err.contains("no array 'data'"), "{err}");

    bed.json(&["assemble", &range]);
    // Even root cannot read a folder as a file.
    std::fs::remove_file(&conf).unwrap();
    std::fs::create_dir(&conf).unwrap();
    let (out, err) = bed.expect(1, &["stop", "--release", "data"]);
    assert!(out.contains("data stopped"), "{out}");
    assert!(
        err.contains("raidd.conf") && err.contains("not released"),
        "{err}"
    );
    std::fs::remove_dir(&conf).unwrap();
    let udev = bed.folder.path().join("63-raidd-members.rules");
    assert!(!udev.exists(), "the other note is gone");
    // The next assembly writes both again, and now it can be repeated.
    bed.json(&["assemble", &range]);
    bed.expect(0, &["stop", "data"]);
    bed.expect(0, &["stop", "--release", "data"]);
    assert!(!conf.exists() && !udev.exists());
}

/// /etc was full or read-only: create and assemble said nothing, only the log of the daemon did.
#[test]
fn notes_that_cannot_be_written_are_a_warning() {
    let bed = Bed::new();
    bed.images(3, 64 << 20);
    let conf = bed.folder.path().join("raidd.conf");
    std::fs::create_dir(&conf).unwrap();
    let range = bed.range(3);
    let told = |(out, err): (String, String)| {
        assert!(out.contains("/dev/ublkb0"), "{out}");
        assert!(
            err.contains("raidd.conf") && err.contains("docs/mdadm.md"),
            "{err}"
        );
    };
    told(bed.expect(0, &["create", "--level", "5", "--name", "data", &range]));
    bed.expect(0, &["stop", "data"]);
    told(bed.expect(0, &["assemble", &range]));
    let left = std::fs::read_dir(bed.folder.path()).unwrap().flatten();
    let left: Vec<_> = left
        .filter(|f| f.file_name().to_string_lossy().ends_with("-new"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The dry run of a forced start of a dirty, degraded array called it an array of as many members as were there, and
/// had no word of the risk.
#[test]
fn a_dry_run_tells_what_the_start_would_tell() {
    let bed = Bed::new();
    let members = bed.images(3, 64 << 20);
    bed.expect(
        0,
        &["create", "--level", "5", "--name", "data", &bed.range(3)],
    );
    bed.expect(0, &["stop", "data"]);
    let before = contents(&members);
    let (first, last) = (members[0].to_str().unwrap(), members[2].to_str().unwrap());
    bed.expect(1, &["assemble", "--dry-run", first, last]);
    let (out, err) = bed.expect(0, &["assemble", "--dry-run", "--force", first, last]);
    assert!(out.contains("raid5 of 3 members"), "{out}");
    assert!(out.contains("missing"), "{out}");
    assert!(err.contains("1 of 3 members are missing"), "{err}");
    assert!(err.contains("not stopped cleanly"), "{err}");
    assert_eq!(contents(&members), before);
}

/// "data stopped" was all that the stop of an array said that had refused writes for an hour.
#[test]
fn the_stop_of_a_failed_array_says_so() {
    let bed = Bed::new();
    bed.images(3, 64 << 20);
    bed.expect(
        0,
        &["create", "--level", "5", "--name", "data", &bed.range(3)],
    );
    bed.starter.failed.store(true, Ordering::SeqCst);
    let (out, err) = bed.expect(0, &["stop", "data"]);
    assert!(out.contains("data stopped"), "{out}");
    assert!(err.contains("had failed"), "{err}");
}

/// The notes of an array whose members became those of another stayed for ever.
#[test]
fn an_overwritten_array_leaves_no_notes() {
    let bed = Bed::new();
    bed.images(3, 64 << 20);
    let range = bed.range(3);
    let old = bed.json(&["create", "--level", "5", "--name", "old", &range]);
    bed.expect(0, &["stop", "old"]);
    let words = ["create", "--force", "--level", "5", "--name", "new", &range];
    let new = bed.json(&words);
    let conf = std::fs::read_to_string(bed.folder.path().join("raidd.conf")).unwrap();
    assert!(conf.contains(new["uuid"].as_str().unwrap()), "{conf}");
    assert!(!conf.contains(old["uuid"].as_str().unwrap()), "{conf}");
}
