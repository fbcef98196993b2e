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
