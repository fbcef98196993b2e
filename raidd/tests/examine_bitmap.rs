//! `raidctl examine --bitmap` on images of real members, against what mdadm said of the same ones
//! (`core/tests/golden/bitmap`), and on everything that has no bitmap.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("core/tests/golden/bitmap")
        .join(name)
}

/// Images of an array's members: superblock and bitmap where they belong, nothing else.
fn images(folder: &Path, name: &str) -> Vec<PathBuf> {
    let bytes = std::fs::read(golden(&format!("{name}.bin"))).unwrap();
    let images = bytes.chunks(8192).enumerate().map(|(slot, member)| {
        let path = folder.join(format!("{name}.{slot}"));
        let mut file = std::fs::File::create(&path).unwrap();
        file.seek(SeekFrom::Start(4096)).unwrap();
        file.write_all(member).unwrap();
        file.set_len(1 << 30).unwrap();
        path
    });
    images.collect()
}

fn raidctl(words: &[&str], paths: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_raidctl"))
        .args(words)
        .args(paths)
        .output()
        .unwrap()
}

fn json(paths: &[PathBuf], code: i32) -> Vec<Value> {
    let output = raidctl(&["examine", "--bitmap", "--output", "json"], paths);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    value["bitmaps"].as_array().unwrap().clone()
}

/// The values of one key in the text of `mdadm -X`, one for each member.
fn said<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(" : "))
        .filter(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
        .collect()
}

#[test]
fn shows_what_mdadm_shows() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "raid5-3-fresh",
        "raid5-3-clean",
        "raid5-3-dirty",
        "raid6-4-default-dirty",
        "raid6-4-unsynced",
        "raid6-5-4k-dirty",
        "raid6-5-degraded",
        "big-130T",
        "big-8T",
    ] {
        let text = std::fs::read_to_string(golden(&format!("{name}.txt"))).unwrap();
        let paths = images(folder.path(), name);
        let all = json(&paths, 0);
        assert_eq!(all.len(), paths.len());
        for (slot, one) in all.iter().enumerate() {
            assert_eq!(one["kind"], "bitmap", "{name}");
            let b = &one["bitmap"];
            let is = |key: &str, value: String| {
                assert!(
                    said(&text, key)[slot].starts_with(&value),
                    "{name} {slot}: {key}: {value}"
                );
            };
            let number = |key: &str| b[key].as_u64().unwrap();
            is("Version", number("version").to_string());
            is("UUID", b["uuid"].as_str().unwrap().to_string());
            is("Events", number("events").to_string());
            is("Events Cleared", number("events_cleared").to_string());
            assert_eq!(
                (said(&text, "State")[slot], &b["state"]),
                ("OK", &"ok".into())
            );
            let chunk = number("chunk_bytes");
            is(
                "Chunksize",
                match chunk < 1 << 20 {
                    true => format!("{} KB", chunk >> 10),
                    false => format!("{} MB", chunk >> 20),
                },
            );
            is(
                "Daemon",
                format!("{}s flush period", number("flush_seconds")),
            );
            assert_eq!(number("write_behind"), 0);
            is("Sync Size", format!("{} (", number("sync_bytes") / 1024));
            let (chunks, dirty) = (number("chunks"), number("dirty"));
            is("Bitmap", format!("{chunks} bits (chunks), {dirty} dirty ("));
            assert!(number("dirty_bytes") <= dirty * chunk);
            assert_eq!(number("offset_bytes"), 8192);
            assert_eq!(b["stale"], Value::Null);
        }
    }
    let paths = images(folder.path(), "raid5-3-dirty");
    let output = raidctl(&["examine", "-X"], &paths[..1]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "raid5-3-dirty.0: 6 of 4096 chunks are dirty",
        "Version : 4",
        "Chunk : 64 KiB",
        "Flush period : 60 s",
        "Write mode : normal",
        "Covers : 256 MiB of each member",
        "Place : 4 KiB from 8 KiB",
        "Chunks : 4096, 6 dirty (0.1%), 384 KiB of each member",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn says_what_stands_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = images(folder.path(), "raid5-3-dirty").remove(0);
    let good = std::fs::read(&path).unwrap()[..16384].to_vec();
    let with = |at: usize, bytes: &[u8]| {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(&path, &image).unwrap();
        path.clone()
    };
    let word = |one: &Value, kind: &str, part: &str| {
        assert_eq!(one["kind"], kind, "{one}");
        assert!(one["summary"].as_str().unwrap().contains(part), "{one}");
    };
    // The bitmap's events are behind the superblock's: shown, and not to be believed.
    let stale = &json(&[with(8192 + 24, &[0])], 0)[0];
    word(stale, "bitmap", "every chunk counts as dirty");
    assert!(
        stale["bitmap"]["stale"]
            .as_str()
            .unwrap()
            .contains("out of date")
    );
    let flagged = &json(&[with(8192 + 48, &[2])], 0)[0];
    assert_eq!(flagged["bitmap"]["state"], "out-of-date");
    for (at, bytes, part) in [
        (8192, &[0u8][..], "no bitmap here"),
        (8192 + 4, &[6][..], "lockless"),
        (8192 + 52, &[3][..], "power of two"),
        (8192 + 8, &[0xff, 0xfe][..], "another array"),
        (8192 + 42, &[9][..], "covers"),
        (4096 + 60, &[1][..], "checksum"),
    ] {
        word(&json(&[with(at, bytes)], 1)[0], "damaged", part);
    }
    // Cut short inside the bits.
    let large = images(folder.path(), "big-130T").remove(0);
    std::fs::File::options()
        .write(true)
        .open(&large)
        .unwrap()
        .set_len(16384)
        .unwrap();
    word(&json(&[large], 1)[0], "damaged", "could be read");
    // An empty file, no member at all, none there; and one good one among them is still shown.
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let paths = [
        path,
        "/no/such".into(),
        images(folder.path(), "raid5-3-clean").remove(1),
    ];
    let all = json(&paths, 1);
    word(&all[0], "none", "no MD superblock");
    word(&all[1], "unreadable", "cannot be opened");
    word(&all[2], "bitmap", "0 of 4096 chunks are dirty");
    let output = raidctl(&["examine", "--bitmap"], &paths);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("2 of 3 devices have no bitmap"), "{text}");
}

/// Whatever bytes there are, it ends with a sentence.
#[test]
fn survives_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = images(folder.path(), "raid6-4-unsynced").remove(0);
    let good = std::fs::read(&path).unwrap()[..16384].to_vec();
    let mut seed = 7u64;
    for round in 0..80usize {
        let mut bytes = good.clone();
        for _ in 0..=round % 4 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            bytes[8192 + (seed >> 33) as usize % 140] = (seed >> 20) as u8;
        }
        bytes.truncate(16384 - (round % 3) * 3999);
        std::fs::write(&path, &bytes).unwrap();
        let output = raidctl(&["examine", "--bitmap"], std::slice::from_ref(&path));
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        assert!(!output.stdout.is_empty());
    }
}
