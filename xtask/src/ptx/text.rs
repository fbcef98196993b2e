//! The PTX as text: what the compiler adds that says nothing about the kernels goes, a line that says where the rest
//! comes from is put in front.

use crate::sh;
use anyhow::{Context, Result};
use std::io::Write;
use std::process::Stdio;

const STAMP: &str = "// sources sha256 ";
/// Constants of NVRTC's built-in headers, which it declares in every program, used or not.
const BUILT_IN: &str = "nv6target6detail";

/// The checked-in form of what NVRTC gave.
pub fn tidy(raw: &str, source: &str, version: &str, stamp: &str) -> String {
    let built_in = |line: &str| line.starts_with(".global ") && line.contains("nv6target");
    // Only what nothing else refers to may go.
    let unused = !raw
        .lines()
        .any(|line| line.contains("nv6target") && !built_in(line));
    let drop_built_in = unused && raw.contains(BUILT_IN);
    let mut text = format!(
        "// Made from kernels/{source} by `cargo xtask ptx` with NVRTC {version}; do not edit.\n{STAMP}{stamp}\n"
    );
    let mut empty = true;
    for line in raw.lines().map(str::trim_end) {
        // Whole-line comments carry the compiler's build and repeat what the next line says.
        if line.trim_start().starts_with("//") || (drop_built_in && built_in(line)) {
            continue;
        }
        if line.is_empty() && empty {
            continue;
        }
        empty = line.is_empty();
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// The checksum that [`tidy`] put in.
pub fn stamp(ptx: &str) -> Option<&str> {
    ptx.lines().find_map(|line| line.strip_prefix(STAMP))
}

/// The sha256 of a text, in hexadecimal.
pub fn digest(text: &str) -> Result<String> {
    let mut child = sh::cmd("sha256sum", ["-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start sha256sum")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes())?;
    }
    let out = child.wait_with_output()?;
    let out = String::from_utf8_lossy(&out.stdout);
    let digest = out
        .split_whitespace()
        .next()
        .context("sha256sum said nothing")?;
    Ok(digest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{digest, stamp, tidy};

    #[test]
    fn comments_and_unused_constants_go() {
        let raw = "//\n// Compiler Build ID: CL-1\n//\n\n.version 8.0\n.target sm_70\n\t// .globl\tf\n\
            .global .align 8 .u64 _ZN1nv6target6detail5sm_70E = 70;\n\n\n.visible .entry f()\n{\n\tret;\n}\n\n";
        let text = tidy(raw, "f.cu", "12.0.76", "abc");
        assert_eq!(stamp(&text), Some("abc"));
        let kept: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            kept,
            [
                ".version 8.0",
                ".target sm_70",
                "",
                ".visible .entry f()",
                "{",
                "\tret;",
                "}",
                ""
            ]
        );
    }

    #[test]
    fn constants_in_use_stay() {
        let raw = ".global .align 8 .u64 _ZN1nv6target6detail5sm_70E = 70;\n\tld.u64 %rd1, [_ZN1nv6target6detail5sm_70E];\n";
        assert!(tidy(raw, "f.cu", "1", "x").contains("= 70;"));
    }

    #[test]
    fn digest_is_sha256() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest("").expect("sha256sum runs"), empty);
    }
}
