//! The keys of `defaults:` that say who computes parity: engines of the CPU, and GPUs.

use parity_kernels::Engine;
use serde::de::Deserializer;

use super::found::{Found, read};
use super::value::whole;
use crate::lane::choice::{GpuChoice, GpuName};

/// Numbers of devices that are believed; no machine has as many.
const MOST_GPUS: u64 = 1024;

pub(super) fn blocks<'de, D: Deserializer<'de>>(d: D) -> Result<u16, D::Error> {
    whole(d, 1..=1024).map(|n| n as u16)
}

pub(super) fn slack<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    whole(d, 1..=1000).map(|n| n as u32)
}

/// `auto`, or an engine that this CPU can run.
pub(super) fn engine<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    read(d, |found| {
        let wanted = || {
            let here = Engine::names_here().join(", ");
            format!("auto, or an engine of this CPU: {here}")
        };
        let Found::Word(word) = &found else {
            return Err(found.misfit(wanted()));
        };
        let name = word.to_ascii_lowercase();
        if name == "auto" {
            return Ok(None);
        }
        match Engine::by_name(&name) {
            Some(_) => Ok(Some(name)),
            None if Engine::NAMES.contains(&name.as_str()) => Err(format!(
                "this CPU lacks the instructions of '{name}': write {}",
                wanted()
            )),
            None => Err(found.misfit(wanted())),
        }
    })
}

/// Which GPUs.
pub(super) fn gpu<'de, D: Deserializer<'de>>(d: D) -> Result<GpuChoice, D::Error> {
    read(d, |found| match found {
        Found::Word(word) if word.eq_ignore_ascii_case("auto") => Ok(GpuChoice::Auto),
        Found::Word(word) if word.eq_ignore_ascii_case("off") => Ok(GpuChoice::Off),
        Found::List(list) if list.is_empty() => {
            Err("the list is empty: write off to use no GPU".into())
        }
        Found::List(list) => {
            let mut names = Vec::new();
            for found in list {
                let name = gpu_name(&found, "in a list the number or the UUID of each GPU")?;
                if names.contains(&name) {
                    return Err(format!("{name} is listed twice: write it once"));
                }
                names.push(name);
            }
            Ok(GpuChoice::These(names))
        }
        one => gpu_name(
            &one,
            "auto, off, a number or a UUID of a GPU, or a list of these",
        )
        .map(|name| GpuChoice::These(vec![name])),
    })
}

fn gpu_name(found: &Found, wanted: &str) -> Result<GpuName, String> {
    match found {
        Found::Number(n) if *n < MOST_GPUS => Ok(GpuName::Index(*n as u32)),
        Found::Number(n) => Err(format!(
            "there is no GPU {n}: numbers are from 0 to {}",
            MOST_GPUS - 1
        )),
        Found::Word(word) if word.to_ascii_uppercase().starts_with("GPU-") => {
            // The driver compares without regard to case, and takes a beginning that fits only one device.
            let digits = &word[4..];
            let hex = digits.bytes().filter(u8::is_ascii_hexdigit).count();
            let all = digits.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
            match all && (8..=32).contains(&hex) {
                true => Ok(GpuName::Uuid(format!(
                    "GPU-{}",
                    digits.to_ascii_lowercase()
                ))),
                false => Err(format!(
                    "'{word}' is no UUID: write a full UUID, GPU- and 32 hex digits, as nvidia-smi -L shows it"
                )),
            }
        }
        other => Err(other.misfit(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GpuChoice, String> {
        gpu(serde_yaml::Deserializer::from_str(text)).map_err(|e| e.to_string())
    }

    #[test]
    fn gpus_that_can_be_written() {
        for text in ["auto", "Auto", "AUTO", "'auto'"] {
            assert_eq!(parse(text), Ok(GpuChoice::Auto), "{text}");
        }
        for text in ["off", "Off", "OFF"] {
            assert_eq!(parse(text), Ok(GpuChoice::Off), "{text}");
        }
        let name = || GpuName::Uuid("GPU-8f6d0a12-aa".into());
        assert_eq!(parse("3"), Ok(GpuChoice::These(vec![GpuName::Index(3)])));
        assert_eq!(parse("GPU-8F6d0a12-aa"), Ok(GpuChoice::These(vec![name()])));
        let both = GpuChoice::These(vec![GpuName::Index(0), name()]);
        assert_eq!(parse("[0, GPU-8f6d0a12-aa]"), Ok(both));
    }

    #[test]
    fn gpus_that_cannot() {
        for text in [
            "on", "-1", "99999", "[]", "[0, 0]", "[auto]", "{a: 1}", "true", "1.5", "MIG-1",
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.contains("write") || error.contains("numbers"),
                "{text}: {error}"
            );
        }
        for text in ["GPU-xyz", "GPU-", "GPU-12", "gpu-ü", "GPU--------------"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("a full UUID"), "{text}: {error}");
        }
        let twice = parse("[GPU-8f6d0a12, gpu-8F6D0A12]").unwrap_err();
        assert!(twice.contains("listed twice"), "{twice}");
    }

    #[test]
    fn only_engines_of_this_cpu() {
        let parse = |text: &str| {
            engine(serde_yaml::Deserializer::from_str(text)).map_err(|e| e.to_string())
        };
        assert_eq!(parse("auto"), Ok(None));
        assert_eq!(parse("Auto"), Ok(None));
        for name in Engine::names_here() {
            assert_eq!(parse(name), Ok(Some(name.to_string())));
            assert_eq!(
                parse(&name.to_uppercase()),
                Ok(Some(name.to_string())),
                "{name}"
            );
        }
        let elsewhere = Engine::NAMES.iter().copied();
        let elsewhere = elsewhere.filter(|name| Engine::by_name(name).is_none());
        for name in elsewhere.chain(["avx9", "''", "5", "", "[swar]"]) {
            let error = parse(name).unwrap_err();
            let list = error.split(": write ").nth(1).unwrap();
            let here = format!("engine of this CPU: {}", Engine::names_here().join(", "));
            assert!(list.contains(&here), "{name}: {error}");
        }
    }
}
