//! All keys by name, for messages about those that are not known.

use std::collections::BTreeMap;

pub(super) fn line_of(text: &str, key: &str) -> usize {
    text.lines()
        .position(|l| {
            l.trim_start()
                .trim_start_matches(['"', '\''])
                .strip_prefix(key)
                .is_some_and(|r| {
                    r.trim_start_matches(['"', '\''])
                        .trim_start()
                        .starts_with(':')
                })
        })
        .map_or(1, |n| n + 1)
}

/// All keys, by parent, as the structs above have them (a test compares).
pub(super) fn all_keys() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        (
            "",
            &[
                "version",
                "socket",
                "defaults",
                "log",
                "state_dir",
                "manage_mdadm_conf",
            ][..],
        ),
        ("socket", &["path", "group"][..]),
        (
            "defaults",
            &[
                "chunk",
                "layout",
                "queues",
                "depth",
                "max_request",
                "zero_copy",
                "safe_mode_delay",
                "buffer_memory",
                "parity_engine",
                "gpu",
                "gpu_slack",
                "gpu_blocks",
                "resync",
            ][..],
        ),
        ("defaults.resync", &["floor", "ceiling"][..]),
        ("log", &["level", "format"][..]),
    ])
}

pub(super) fn keys_of(parent: &str) -> &'static [&'static str] {
    all_keys().get(parent).copied().unwrap_or(&[])
}

/// A key of the same parent within two edits, or the same key under another parent.
pub(super) fn closest(key: &str, parent: &str) -> Option<String> {
    let near = keys_of(parent)
        .iter()
        .map(|k| (distance(key, k), *k))
        .min()?;
    if near.0 <= 2 {
        return Some(if parent.is_empty() {
            near.1.into()
        } else {
            format!("{parent}.{}", near.1)
        });
    }
    all_keys()
        .iter()
        .find(|(_, keys)| keys.contains(&key))
        .map(|(p, _)| {
            if p.is_empty() {
                key.to_string()
            } else {
                format!("{p}.{key}")
            }
        })
}

/// Edits between two short words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let next = (diagonal + usize::from(ca != *cb))
                .min(row[j] + 1)
                .min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}
