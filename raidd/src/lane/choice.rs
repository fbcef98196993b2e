//! The `gpu:` key of the configuration: `auto`, `off`, a number, a name, or a list of these. Pure.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};

/// One device, as an operator names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuName {
    /// By the driver's number.
    Index(u32),
    /// By the driver's name for it, `GPU-` and a uuid.
    Uuid(String),
}

/// Which devices may compute parity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuChoice {
    /// All that can, if there are any.
    #[default]
    Auto,
    /// None.
    Off,
    /// These.
    These(Vec<GpuName>),
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuName::Index(n) => write!(f, "{n}"),
            GpuName::Uuid(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuChoice::Auto => f.write_str("auto"),
            GpuChoice::Off => f.write_str("off"),
            GpuChoice::These(names) => {
                for (i, name) in names.iter().enumerate() {
                    write!(f, "{}{name}", if i > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

const EXPECTED: &str =
    "auto, off, the number of a GPU, its name as in GPU-8f6d..., or a list of these";

fn index<E: Error>(n: u64) -> Result<GpuName, E> {
    let known = u32::try_from(n).ok().filter(|n| *n < 1024);
    known
        .map(GpuName::Index)
        .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(n), &EXPECTED))
}

fn uuid<E: Error>(text: &str) -> Result<GpuName, E> {
    let part = |c: char| c.is_ascii_hexdigit() || c == '-';
    match text.strip_prefix("GPU-") {
        Some(rest) if rest.len() >= 8 && rest.chars().all(part) => {
            Ok(GpuName::Uuid(text.to_string()))
        }
        _ => Err(E::invalid_value(Unexpected::Str(text), &EXPECTED)),
    }
}

struct Name;
impl Visitor<'_> for Name {
    type Value = GpuName;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a GPU or its name as in GPU-8f6d...")
    }
    fn visit_u64<E: Error>(self, n: u64) -> Result<GpuName, E> {
        index(n)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<GpuName, E> {
        uuid(text)
    }
}

impl<'de> Deserialize<'de> for GpuName {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<GpuName, D::Error> {
        d.deserialize_any(Name)
    }
}

struct Choice;
impl<'de> Visitor<'de> for Choice {
    type Value = GpuChoice;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }
    fn visit_u64<E: Error>(self, n: u64) -> Result<GpuChoice, E> {
        Ok(GpuChoice::These(vec![index(n)?]))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<GpuChoice, E> {
        match text {
            "auto" => Ok(GpuChoice::Auto),
            "off" => Ok(GpuChoice::Off),
            name => Ok(GpuChoice::These(vec![uuid(name)?])),
        }
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<GpuChoice, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = list.next_element()? {
            if names.contains(&name) {
                return Err(A::Error::custom(format!("{name} is listed twice")));
            }
            names.push(name);
        }
        match names.is_empty() {
            true => Err(A::Error::custom(
                "the list is empty; write off to use no GPU",
            )),
            false => Ok(GpuChoice::These(names)),
        }
    }
}

impl<'de> Deserialize<'de> for GpuChoice {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<GpuChoice, D::Error> {
        d.deserialize_any(Choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GpuChoice, String> {
        serde_yaml::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn what_can_be_written() {
        let name = || GpuName::Uuid("GPU-8f6d0a12-aa".into());
        assert_eq!(parse("auto"), Ok(GpuChoice::Auto));
        assert_eq!(parse("off"), Ok(GpuChoice::Off));
        assert_eq!(parse("3"), Ok(GpuChoice::These(vec![GpuName::Index(3)])));
        assert_eq!(parse("GPU-8f6d0a12-aa"), Ok(GpuChoice::These(vec![name()])));
        let both = GpuChoice::These(vec![GpuName::Index(0), name()]);
        assert_eq!(parse("[0, GPU-8f6d0a12-aa]"), Ok(both.clone()));
        assert_eq!(both.to_string(), "0, GPU-8f6d0a12-aa");
    }

    #[test]
    fn what_cannot() {
        for text in [
            "on", "-1", "99999", "GPU-x", "[]", "[0, 0]", "[auto]", "{a: 1}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
