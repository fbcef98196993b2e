//! Checks on the repository's own text that no compiler makes: where `unsafe` may be, how long a file may get, what
//! must not be left behind in a commit.

use crate::{paths, sh};
use anyhow::Result;
use std::path::Path;

/// Longest source file, in lines, that a reader still takes in at one go.
const LONGEST: usize = 700;

const UNSAFE_FILES: &str = include_str!("../unsafe-files.txt");

/// All findings, each as `file: what`; files that git does not know are not looked at.
pub fn findings() -> Result<Vec<String>> {
    let list = sh::output(sh::cmd("git", ["ls-files", "-z"]).current_dir(paths::repo()))?;
    let allowed: Vec<&str> = UNSAFE_FILES
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let mut used = vec![false; allowed.len()];
    let mut found = Vec::new();
    // The folder around this checkout, if it is telling at all: nothing in the repository may depend on it.
    let around = paths::repo()
        .parent()
        .map(|dir| format!("{}/", dir.display()));
    let around = around.filter(|dir| dir.matches('/').count() >= 2 && dir != "/tmp/");
    for file in list.split('\0').filter(|file| !file.is_empty()) {
        let Ok(text) = std::fs::read_to_string(paths::repo().join(file)) else {
            continue;
        };
        if Path::new(file).extension().is_some_and(|end| end == "rs") {
            let lines = text.lines().count();
            if lines > LONGEST {
                found.push(format!(
                    "{file}: {lines} lines; is there more than one job in it?"
                ));
            }
            if !text.starts_with("//!") && !text.starts_with("#![") {
                found.push(format!(
                    "{file}: does not begin with a comment that says what it owns"
                ));
            }
            if text.lines().any(is_unsafe) {
                match allowed.iter().position(|entry| covers(entry, file)) {
                    Some(index) => used[index] = true,
                    None => found.push(format!("{file}: unsafe code; see xtask/unsafe-files.txt")),
                }
            }
        }
        if let Some(dir) = &around
            && mentions(&text, dir)
        {
            found.push(format!("{file}: names the folder {dir} of this machine"));
        }
        for mark in [
            concat!("FIX", "ME"),
            concat!("XX", "X:"),
            concat!("<<<<", "<<<"),
        ] {
            if text.contains(mark) {
                found.push(format!("{file}: {mark} left in"));
            }
        }
    }
    for (entry, used) in allowed.iter().zip(used) {
        if !used {
            found.push(format!(
                "xtask/unsafe-files.txt: {entry} is not needed any more"
            ));
        }
    }
    let core = std::fs::read_to_string(paths::repo().join("raidd/core/src/lib.rs"))?;
    if !core.contains("#![forbid(unsafe_code)]") {
        found.push("raidd/core/src/lib.rs: does not forbid unsafe code".to_owned());
    }
    Ok(found)
}

fn covers(entry: &str, file: &str) -> bool {
    if entry.ends_with('/') {
        file.starts_with(entry) && !file.starts_with("raidd/core/")
    } else {
        entry == file
    }
}

/// A line of code that opens unsafe code; comments and attributes do not count.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe trait",
        "unsafe extern",
    ]
    .iter()
    .any(|form| code.contains(form) && !code.contains(&format!("\"{form}")))
}

/// Whether an absolute path below `dir` stands in the text, not merely a longer path that contains it.
fn mentions(text: &str, dir: &str) -> bool {
    text.match_indices(dir).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}/".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::{covers, is_unsafe, mentions};

    #[test]
    fn finds_unsafe_code_only() {
        // Put together, so that this file is not found itself.
        let word = concat!("un", "safe");
        assert!(is_unsafe(&format!("    let x = {word} {{ *p }};")));
        assert!(is_unsafe(&format!("{word} impl Send for X {{}}")));
        assert!(!is_unsafe(&format!("// {word} {{ is a word")));
        assert!(!is_unsafe("#![forbid(unsafe_code)]"));
        assert!(covers("raidd/src/", "raidd/src/member_io.rs"));
        assert!(!covers("raidd/src/a.rs", "raidd/src/b.rs"));
    }

    #[test]
    fn finds_machine_paths_only() {
        assert!(mentions("see /build/here/x", "/build/here/"));
        assert!(!mentions("/mnt/build/here/x", "/build/here/"));
    }
}
