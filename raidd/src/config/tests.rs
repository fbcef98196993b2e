//! The example file is the defaults, and each wrong value is told with file, line, key and remedy.

use super::keys::all_keys;
use super::*;
use crate::units::Bytes;

fn error(text: &str) -> String {
    parse(Path::new("raidd.yaml"), text)
        .unwrap_err()
        .to_string()
}

#[test]
fn every_key_is_optional() {
    assert_eq!(parse(Path::new("x"), "").unwrap(), Config::default());
    assert_eq!(
        parse(Path::new("x"), "# nothing\n---\n").unwrap(),
        Config::default()
    );
    let c = parse(
        Path::new("x"),
        "version: 1\ndefaults:\n  chunk: 128K\n  resync: {ceiling: 1G}\n",
    )
    .unwrap();
    assert_eq!(c.defaults.chunk, Chunk(128 << 10));
    assert_eq!(c.defaults.resync.ceiling, Some(Bytes(1 << 30)));
    assert_eq!(c.defaults.depth, 128);
}

#[test]
fn the_example_is_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/raidd.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(parse(&path, &text).unwrap(), Config::default());
    // Every key is shown in it, commented or not, and the table of keys agrees with the structs.
    for (parent, keys) in all_keys() {
        for key in keys {
            let shown = text.lines().any(|l| {
                l.trim_start_matches(['#', ' '])
                    .starts_with(&format!("{key}:"))
            });
            assert!(shown, "{parent}.{key} is not in config/raidd.yaml");
            let mut one = String::new();
            for (depth, part) in parent.split('.').filter(|p| !p.is_empty()).enumerate() {
                one += &format!("{}{part}:\n", "  ".repeat(depth));
            }
            let indent = "  ".repeat(if parent.is_empty() {
                0
            } else {
                parent.split('.').count()
            });
            one += &format!("{indent}{key}: [wrong, type]\n");
            let message = error(&one);
            assert!(!message.contains("unknown key"), "{message}");
        }
    }
}

#[test]
fn errors_name_line_key_and_remedy() {
    let e = error("version: 1\ndefaults:\n  chunck: 64K\n");
    assert!(
        e.starts_with("raidd.yaml:3: unknown key 'defaults.chunck'"),
        "{e}"
    );
    assert!(e.contains("did you mean 'defaults.chunk'"), "{e}");
    let e = error("socket: {path: /run/x}\nchunk: 64K\n");
    assert!(
        e.starts_with("raidd.yaml:2: unknown key 'chunk'") && e.contains("defaults.chunk"),
        "{e}"
    );
    let e = error("defaults:\n  depth: 32\n  chunk: 100K\n");
    assert!(
        e.starts_with("raidd.yaml:3: defaults.chunk: 100 KiB is no chunk size"),
        "{e}"
    );
    let e = error("defaults:\n  safe_mode_delay: 200\n");
    assert!(
        e.starts_with("raidd.yaml:2: defaults.safe_mode_delay") && e.contains("200ms"),
        "{e}"
    );
    let e = error("defaults:\n  depth: 0\n");
    assert!(
        e.starts_with("raidd.yaml:2: defaults.depth") && e.contains("from 1 to 4096"),
        "{e}"
    );
    let e = error("defaults:\n  gpu: fast\n");
    assert!(
        e.starts_with("raidd.yaml:2: defaults.gpu") && e.contains("auto, off"),
        "{e}"
    );
    let e = error("defaults:\n  queues: many\n");
    assert!(e.starts_with("raidd.yaml:2: defaults.queues"), "{e}");
    let e = error("log:\n  format: xml\n");
    assert!(
        e.starts_with("raidd.yaml:2: log.format") && e.contains("json"),
        "{e}"
    );
    let e = error("version: 2\n");
    assert!(
        e.starts_with("raidd.yaml:1: version") && e.contains("reads version 1"),
        "{e}"
    );
    let e = error("defaults:\n  resync:\n    floor: 10M\n    ceiling: 1M\n");
    assert!(
        e.starts_with("raidd.yaml:4: defaults.resync.ceiling"),
        "{e}"
    );
    let e = error("socket:\n  path: /run/x\n group: disk\n");
    assert!(
        e.starts_with("raidd.yaml:3:") || e.starts_with("raidd.yaml:4:"),
        "{e}"
    );
    let e = load(Some(Path::new("/nonexistent/raidd.yaml")))
        .unwrap_err()
        .to_string();
    assert!(e.starts_with("/nonexistent/raidd.yaml: "), "{e}");
}

/// A range was told as "expected a number" to one who had written a number, an empty section as "unit value, expected
/// struct Log".
#[test]
fn wrong_values_are_told_in_plain_words() {
    let jargon = [
        "invalid type",
        "invalid value",
        "struct",
        "unit value",
        "u64",
        "u128",
        "integer",
        "sequence",
        "variant",
        "floating point",
        "0000000000000000000000000",
        "expected",
    ];
    let values = [
        "~", "-1", "1.5", ".nan", "-.inf", "1e99", "[a]", "{a: b}", "true", "''", "x y", "",
    ];
    let values = values
        .into_iter()
        .chain(["99999999999999999999", "0", "1001"]);
    for value in values {
        for (parent, keys) in all_keys() {
            for key in keys {
                let path: Vec<&str> = parent.split('.').chain([*key]).collect();
                let path: Vec<&str> = path.into_iter().filter(|p| !p.is_empty()).collect();
                let mut text = String::new();
                for (depth, part) in path.iter().enumerate() {
                    text += &format!("\n{}{part}:", "  ".repeat(depth));
                }
                text += &format!(" {value}\n");
                let Err(error) = parse(Path::new("raidd.yaml"), &text) else {
                    continue;
                };
                let line = error.to_string();
                let dotted = path.join(".");
                assert!(line.starts_with("raidd.yaml:"), "{line}");
                assert!(
                    line.contains(&dotted) || line.contains("unknown key"),
                    "{line}"
                );
                assert!(!error.remedy().is_empty(), "{line}");
                assert!(line.len() < 300 && !line.contains('\n'), "{line}");
                for word in jargon {
                    assert!(!line.contains(word), "{value:?}: {line}");
                }
            }
        }
        let whole = parse(Path::new("raidd.yaml"), &format!("{value}\n"));
        if let Err(error) = whole {
            let line = error.to_string();
            assert!(!jargon.iter().any(|word| line.contains(word)), "{line}");
        }
    }
    for (key, value, wanted) in [
        (
            "gpu_slack",
            "-5",
            "-5 does not fit; write a whole number from 1 to 1000",
        ),
        (
            "gpu_slack",
            ".inf",
            ".inf does not fit; write a whole number from 1 to 1000",
        ),
        (
            "gpu_slack",
            "1e99",
            "1e99 does not fit; write a whole number from 1 to 1000",
        ),
        (
            "gpu_blocks",
            "1025",
            "1025 does not fit; write a whole number from 1 to 1024",
        ),
        (
            "gpu",
            "",
            "is empty; write auto, off, a number or a UUID of a GPU, or a list of these",
        ),
        (
            "gpu",
            "99999999999999999999",
            "99999999999999999999 does not fit; write auto, off",
        ),
        ("gpu", "GPU-xyz", "'GPU-xyz' is no UUID; write a full UUID"),
        ("parity_engine", "avx9", "'avx9' does not fit; write auto,"),
        (
            "buffer_memory",
            "1K",
            "1 KiB does not fit; write a size from 8 MiB to 1 TiB",
        ),
    ] {
        let e = error(&format!("defaults:\n  {key}: {value}\n"));
        let begin = format!("raidd.yaml:2: defaults.{key}: {wanted}");
        assert!(e.starts_with(&begin), "{e}");
    }
    let e = error("log: 3\n");
    assert_eq!(
        e,
        "raidd.yaml:1: log: 3 does not fit; write keys below it, of level, format"
    );
    let e = error("manage_mdadm_conf: 3\n");
    assert!(
        e.ends_with("manage_mdadm_conf: 3 does not fit; write true or false"),
        "{e}"
    );
    let e = error("defaults:\n  depth: 1\n  depth: 2\n");
    assert!(e.contains("twice; write it once"), "{e}");
}

/// Two remedies stood in one line, the second impossible for a file that is not there.
#[test]
fn files_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| load(Some(path)).unwrap_err();
    let missing = error(&folder.path().join("none"));
    assert!(missing.remedy().contains("a file that exists"), "{missing}");
    let folder_itself = error(folder.path());
    assert!(
        folder_itself.remedy().contains("the file itself"),
        "{folder_itself}"
    );
    let latin = folder.path().join("latin");
    std::fs::write(&latin, b"# \xe4\n").unwrap();
    assert!(error(&latin).remedy().contains("UTF-8"));
    for error in [&missing, &folder_itself, &error(&latin)] {
        assert_eq!(
            error.to_string(),
            format!("{}; {}", error.problem(), error.remedy())
        );
    }
}
