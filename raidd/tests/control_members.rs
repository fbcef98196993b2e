//! Members that come and go, from raidctl to superblocks on image files, with a simulated data path: what each verb refuses,
//! and that nothing is written then.

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use raid_core::superblock::{SlotRole, Superblock};
use raidd::config::Config;
use raidd::control::commands::Control;
use raidd::control::listen::listen;
use raidd::control::peer::Policy;
use raidd::control::server::{Limits, Server};
use raidd::guard::Guard;
use serde_json::Value;
use support::SimStarter;

struct Bed {
    folder: tempfile::TempDir,
    server: Option<Server>,
}

impl Bed {
    /// A daemon with one running RAID 6 array `data` on m0 to m3, and images x0, x1 beside it.
    fn new() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            state_dir: folder.path().join("state"),
            ..Config::default()
        };
        let starter = Arc::new(SimStarter::default());
        let control = Arc::new(Control::with_files(config, starter, Guard::default()));
        let policy = Policy {
            daemon_uid: nix::unistd::geteuid().as_raw(),
            group: None,
        };
        let listening = listen(&folder.path().join("s"), None).unwrap();
        let server = Server::start(listening, policy, Limits::default(), control).unwrap();
        let bed = Bed {
            folder,
            server: Some(server),
        };
        for name in ["m0", "m1", "m2", "m3", "x0", "x1"] {
            bed.image(name, 64 << 20);
        }
        let members = format!("{}/m<0..3>", bed.folder.path().display());
        bed.json(&["create", "--level", "6", "--name", "data", &members]);
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn image(&self, name: &str, bytes: u64) {
        let file = std::fs::File::create(self.path(name)).unwrap();
        file.set_len(bytes).unwrap();
    }

    fn expect(&self, code: i32, words: &[&str]) -> (String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_raidctl"))
            .args(words)
            .env("RAIDD_SOCKET", self.path("s"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}\n{out}\n{err}");
        (out, err)
    }

    fn refused(&self, words: &[&str], pattern: &str) {
        let (_, err) = self.expect(1, words);
        assert!(err.contains(pattern), "{words:?}: {err}");
    }

    fn json(&self, words: &[&str]) -> Value {
        let (out, _) = self.expect(0, &[words, &["--output", "json"]].concat());
        serde_json::from_str(&out).unwrap()
    }

    fn states(&self) -> Vec<String> {
        let detail = self.json(&["detail", "data"]);
        let members = detail["members"].as_array().unwrap();
        members
            .iter()
            .map(|m| m["state"].as_str().unwrap().into())
            .collect()
    }

    fn block(&self, name: &str) -> Superblock {
        let bytes = std::fs::read(self.path(name)).unwrap();
        Superblock::decode(&bytes[4096..8192], 8).unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.close();
        }
    }
}

#[test]
fn a_spare_comes_and_goes() {
    let bed = Bed::new();
    let x0 = bed.text("x0");
    let before = std::fs::read(bed.path("x0")).unwrap();
    let planned = bed.json(&["add", "--dry-run", "data", &x0]);
    assert_eq!(planned["outcome"], "planned");
    assert_eq!(std::fs::read(bed.path("x0")).unwrap(), before);
    let added = bed.json(&["add", "data", &x0]);
    assert_eq!(
        (
            &added["members"][0]["number"],
            &added["members"][0]["state"]
        ),
        (&4.into(), &"spare".into())
    );
    let block = bed.block("x0");
    let member = bed.block("m1");
    assert_eq!((block.dev_number, block.slot()), (4, SlotRole::Spare));
    assert_eq!(
        (block.uuid, block.events, block.data_offset),
        (member.uuid, member.events, member.data_offset)
    );
    assert_ne!(block.device_uuid, member.device_uuid);
    assert_eq!(bed.states().len(), 5);
    bed.refused(&["add", "data", &x0], "a member of the running array data");
    bed.refused(&["spare", "remove", "data", &bed.text("m2")], "no spare");
    let (out, _) = bed.expect(0, &["spare", "remove", "data", &x0]);
    assert!(out.contains("removed"), "{out}");
    assert_eq!(bed.states().len(), 4);
    // It is known as a spare of the array, so that nobody takes it by mistake.
    bed.refused(&["add", "data", &x0], "--force");
    bed.json(&["spare", "add", "--force", "data", &x0]);
    assert_eq!(bed.block("x0").dev_number, 4, "its number was free again");
}

#[test]
fn what_add_refuses_it_does_not_write() {
    let bed = Bed::new();
    bed.image("small", 8 << 20);
    let mut old = std::fs::read(bed.path("x1")).unwrap();
    old[1080..1082].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(bed.path("x1"), &old).unwrap();
    bed.refused(&["add", "data", &bed.text("small")], "sectors too small");
    bed.refused(&["add", "data", &bed.text("x1")], "--force");
    bed.refused(&["add", "data", &bed.text("x0"), &bed.text("x0")], "twice");
    bed.refused(&["add", "data", &bed.text("nope")], "no such device");
    bed.refused(&["add", "other", &bed.text("x0")], "no array 'other'");
    // One that does not fit keeps all others out.
    bed.refused(
        &["add", "data", &bed.text("x0"), &bed.text("small")],
        "too small",
    );
    assert!(
        std::fs::read(bed.path("x0"))
            .unwrap()
            .iter()
            .all(|b| *b == 0)
    );
    assert_eq!(std::fs::read(bed.path("x1")).unwrap(), old);
    assert_eq!(bed.states().len(), 4);
}

#[test]
fn fail_and_remove_and_add_again() {
    let bed = Bed::new();
    let m1 = bed.text("m1");
    bed.refused(&["remove", "data", &m1], "fail it first");
    bed.refused(&["fail", "data", &bed.text("x0")], "no device of data");
    let three = [bed.text("m0"), bed.text("m1"), bed.text("m2")];
    let three: Vec<&str> = three.iter().map(String::as_str).collect();
    bed.refused(
        &[&["fail", "data"], &three[..]].concat(),
        "the array would fail",
    );
    let planned = bed.json(&["fail", "--dry-run", "data", &m1]);
    assert_eq!(planned["outcome"], "planned");
    assert_eq!(bed.states()[1], "in_sync");
    bed.json(&["fail", "data", &m1]);
    assert_eq!(bed.states()[1], "faulty");
    let again = bed.json(&["fail", "data", &m1]);
    assert_eq!(again["outcome"], "unchanged");
    bed.refused(&["add", "data", &m1], "member of the running array");
    let gone = bed.json(&["remove", "data", "failed"]);
    assert_eq!(gone["members"][0]["path"], m1);
    assert_eq!(bed.states()[1], "missing");
    let (out, _) = bed.expect(0, &["remove", "data", "detached"]);
    assert!(out.contains("nothing to be removed"), "{out}");
    // It carries data that was this array's: only its own verb takes it, or force.
    let uuid = bed.block("m1").device_uuid;
    bed.refused(&["add", "data", &m1], &format!("raidctl re-add data {m1}"));
    bed.refused(&["re-add", "data", &bed.text("x0")], "no superblock");
    let back = bed.json(&["re-add", "data", &m1]);
    assert_eq!(back["members"][0]["number"], 4);
    assert!(
        back["problems"][0]["message"]
            .as_str()
            .unwrap()
            .contains("from the start")
    );
    assert_eq!(bed.block("m1").device_uuid, uuid);
    assert_eq!(bed.block("m1").slot(), SlotRole::Spare);
}

#[test]
fn a_member_of_another_array_is_not_added_again() {
    let bed = Bed::new();
    let m0 = bed.text("m0");
    bed.expect(0, &["stop", "data"]);
    for name in ["y0", "y1", "y2"] {
        bed.image(name, 64 << 20);
    }
    let members = format!("{}/y<0..2>", bed.folder.path().display());
    bed.json(&["create", "--level", "5", "--name", "other", &members]);
    bed.refused(&["re-add", "other", &m0], "a member of another array, data");
    bed.refused(
        &["re-add", "other", &bed.text("y1")],
        "member of the running array other",
    );
}

#[test]
fn progress_for_people_and_programs() {
    let bed = Bed::new();
    let (out, _) = bed.expect(0, &["status"]);
    assert!(out.contains("data (/dev/ublkb0): raid6 [4/4]"), "{out}");
    assert!(
        out.contains("resync [=======>") && out.contains("25.0%"),
        "{out}"
    );
    let status = bed.json(&["status", "data"]);
    assert_eq!(status["arrays"][0]["resync"]["kind"], "resync");
    assert_eq!(
        bed.json(&["resync", "status", "data"])["resync"]["percent"],
        25.0
    );
    assert!(bed.json(&["rebuild", "status", "data"])["rebuild"].is_null());
    let (out, _) = bed.expect(0, &["rebuild", "status", "data"]);
    assert!(out.contains("no rebuild runs"), "{out}");
    bed.expect(0, &["stop", "data"]);
    let members = format!("{}/m<0..3>", bed.folder.path().display());
    bed.json(&[
        "create",
        "--level",
        "6",
        "--force",
        "--assume-clean",
        "--name",
        "clean",
        &members,
    ]);
    // As mdadm --wait: there was nothing to wait for.
    bed.expect(1, &["wait", "clean"]);
    bed.refused(&["wait", "nope"], "no array 'nope'");
}

#[test]
fn scrubs_and_limits() {
    let bed = Bed::new();
    let (out, _) = bed.expect(0, &["scrub", "status", "data"]);
    assert!(out.contains("no scrub since"), "{out}");
    let started = bed.json(&["scrub", "start", "data", "--repair"]);
    assert_eq!(started["scrubs"][0]["policy"], "locate");
    assert_eq!(started["scrubs"][0]["kind"], "repair");
    let (out, _) = bed.expect(0, &["scrub", "stop", "data"]);
    assert!(
        out.contains("repair, stopped before the end, took"),
        "{out}"
    );
    let set = bed.json(&["set", "data", "resync.floor=20M", "resync.ceiling=1G"]);
    assert_eq!(set["limits"]["floor"], 20 << 20);
    assert_eq!(set["limits"]["ceiling"], 1 << 30);
    let (out, _) = bed.expect(0, &["set", "data", "resync.paused=yes"]);
    assert!(out.contains("at most 1 GiB/s, paused"), "{out}");
    bed.refused(&["set", "data", "resync.speed=1"], "resync.floor=SIZE");
    bed.refused(&["set", "data", "resync.floor=much"], "not a size");
}
