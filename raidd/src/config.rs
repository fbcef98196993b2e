//! The daemon's YAML file. Every key is optional; an unknown key or a wrong value is an error that names the file,
//! the line, the key and the remedy. Read once at start; costs nothing afterwards.
//!
//! Checks of one value live in that value's type, so that the parser still knows the line when they fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use raid_core::geometry::{Level, parse_layout};
use serde::Deserialize;
use serde::de::Deserializer;

use crate::array_api::ArrayOptions;
use crate::lane::choice::GpuChoice;
use crate::units::{Bytes, Scalar, Span, checked_size, scalar};

/// Read when `--config` is not given, if it exists.
pub const DEFAULT_PATH: &str = "/etc/raidd/raidd.yaml";
/// Where daemon and raidctl meet unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/raidd/raidd.sock";
/// The only version of the file so far.
pub const VERSION: u32 = 1;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Version of this file's keys.
    #[serde(deserialize_with = "version")]
    pub version: u32,
    /// The control socket.
    pub socket: Socket,
    /// What `create` and `assemble` use unless told otherwise.
    pub defaults: Defaults,
    /// What the daemon writes to standard error.
    pub log: Log,
    /// Where the daemon keeps what must survive a reboot and is not on the members (nothing precious).
    pub state_dir: PathBuf,
    /// Keep udev and mdadm from assembling our members behind our back.
    pub manage_mdadm_conf: bool,
}

/// `socket:`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Socket {
    /// Path of the unix socket.
    pub path: PathBuf,
    /// Members of this group may use it, besides root.
    pub group: Option<String>,
}

/// `defaults:`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Chunk of new arrays.
    pub chunk: Chunk,
    /// Layout of new RAID 5 and 6 arrays, by MD's name.
    #[serde(deserialize_with = "layout")]
    pub layout: String,
    /// ublk queues per array.
    pub queues: Queues,
    /// Requests in flight per queue.
    #[serde(deserialize_with = "depth")]
    pub depth: u16,
    /// Largest request of the block device.
    #[serde(deserialize_with = "max_request")]
    pub max_request: Bytes,
    /// Whether a request's own pages may go to the members.
    pub zero_copy: ZeroCopy,
    /// Idle time before an array is marked clean.
    pub safe_mode_delay: Span,
    /// Buffer memory per queue.
    #[serde(deserialize_with = "buffer_memory")]
    pub buffer_memory: Bytes,
    /// Parity engine by name, or `auto`.
    #[serde(deserialize_with = "engine")]
    pub parity_engine: Option<String>,
    /// GPUs that may compute parity.
    pub gpu: GpuChoice,
    /// How many times later than on the CPU a job may end on a GPU.
    #[serde(deserialize_with = "slack")]
    pub gpu_slack: u32,
    /// Most multiprocessors of one GPU that an array keeps while it gives it work.
    #[serde(deserialize_with = "blocks")]
    pub gpu_blocks: u16,
    /// Speed of background walks.
    pub resync: Resync,
}

/// `defaults.resync:`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resync {
    /// Kept up while the foreground is busy, per second.
    pub floor: Bytes,
    /// Never exceeded, per second.
    pub ceiling: Option<Bytes>,
}

/// `log:`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// A `tracing` filter: a level, or `raidd=debug,info`. The variable RUST_LOG wins over it.
    pub level: String,
    /// One line of text or one JSON object per event.
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people and the journal.
    Text,
    /// For machines.
    Json,
}

/// `zero_copy:`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopy {
    /// Where the kernel can.
    Auto,
    /// Never.
    Off,
}

/// A chunk: a power of two from 4 KiB to 64 MiB, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk(pub u32);

/// `queues:` a number or `auto` (one per CPU, at most 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues(pub Option<u16>);

impl Default for Config {
    fn default() -> Config {
        Config {
            version: VERSION,
            socket: Socket::default(),
            defaults: Defaults::default(),
            log: Log::default(),
            state_dir: PathBuf::from("/var/lib/raidd"),
            manage_mdadm_conf: true,
        }
    }
}

impl Default for Socket {
    fn default() -> Socket {
        Socket {
            path: PathBuf::from(DEFAULT_SOCKET),
            group: None,
        }
    }
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            chunk: Chunk(64 << 10),
            layout: "left-symmetric".into(),
            queues: Queues(None),
            depth: 128,
            max_request: Bytes(4 << 20),
            zero_copy: ZeroCopy::Auto,
            safe_mode_delay: Span(Duration::from_millis(200)),
            buffer_memory: Bytes(64 << 20),
            parity_engine: None,
            gpu: GpuChoice::Auto,
            gpu_slack: 2,
            gpu_blocks: 16,
            resync: Resync::default(),
        }
    }
}

impl Default for Resync {
    fn default() -> Resync {
        Resync {
            floor: Bytes(10 << 20),
            ceiling: None,
        }
    }
}

impl Default for Log {
    fn default() -> Log {
        Log {
            level: "info".into(),
            format: LogFormat::Text,
        }
    }
}

impl Defaults {
    /// The options of one array start.
    pub fn options(&self, read_only: bool) -> ArrayOptions {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get().min(8) as u16);
        ArrayOptions {
            queues: self.queues.0.unwrap_or(cpus),
            depth: self.depth,
            max_request_bytes: self.max_request.0 as u32,
            zero_copy: self.zero_copy == ZeroCopy::Auto,
            read_only,
            safe_mode_delay_ms: self.safe_mode_delay.0.as_millis() as u64,
            resync_floor_bytes: self.resync.floor.0,
            resync_ceiling_bytes: self.resync.ceiling.map(|b| b.0),
            parity_engine: self.parity_engine.clone(),
            gpu: self.gpu.clone(),
            gpu_slack: self.gpu_slack,
            gpu_blocks: self.gpu_blocks,
            device_id: None,
            frame_bytes: self.buffer_memory.0,
        }
    }
}

fn in_range(
    name: &str,
    value: u64,
    low: u64,
    high: u64,
    show: impl Fn(u64) -> String,
) -> Result<u64, String> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(format!(
        "{} is out of range: {name} is from {} to {}",
        show(value),
        show(low),
        show(high)
    ))
}

fn plain(n: u64) -> String {
    n.to_string()
}

fn size(n: u64) -> String {
    Bytes(n).to_string()
}

fn number<'de, D, T>(d: D, check: impl Fn(u64) -> Result<T, String>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    scalar(d, "a number", |s| match s {
        Scalar::Number(n) => Some(check(n)),
        Scalar::Word(_) => None,
    })
}

fn version<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    number(d, |n| match n {
        1 => Ok(VERSION),
        n => Err(format!(
            "version {n} is not known to this program; it reads version {VERSION}"
        )),
    })
}

fn depth<'de, D: Deserializer<'de>>(d: D) -> Result<u16, D::Error> {
    number(d, |n| {
        in_range("depth", n, 1, 4096, plain).map(|n| n as u16)
    })
}

fn blocks<'de, D: Deserializer<'de>>(d: D) -> Result<u16, D::Error> {
    number(d, |n| {
        in_range("gpu_blocks", n, 1, 1024, plain).map(|n| n as u16)
    })
}

fn slack<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    number(d, |n| {
        in_range("gpu_slack", n, 1, 1000, plain).map(|n| n as u32)
    })
}

fn max_request<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
    checked_size(d, |n| {
        let bytes = in_range("max_request", n, 1 << 20, 32 << 20, size)?;
        if !bytes.is_multiple_of(4096) {
            return Err("max_request must be a multiple of 4 KiB".into());
        }
        Ok(Bytes(bytes))
    })
}

fn buffer_memory<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
    checked_size(d, |n| {
        in_range("buffer_memory", n, 8 << 20, 1 << 40, size).map(Bytes)
    })
}

fn engine<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(d)?;
    Ok((name != "auto").then_some(name))
}

fn layout<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    scalar(d, "the name of a layout", |s| match s {
        Scalar::Word(name) if parse_layout(Level::Raid6, name).is_some() => {
            Some(Ok(name.to_string()))
        }
        Scalar::Word(name) => Some(Err(format!(
            "'{name}' is no layout: use left-symmetric or another of mdadm's names"
        ))),
        Scalar::Number(_) => None,
    })
}

/// Whether a chunk can be used; the message says what can.
pub fn check_chunk(bytes: u64) -> Result<Chunk, String> {
    if !bytes.is_power_of_two() || !(4096..=64 << 20).contains(&bytes) {
        return Err(format!(
            "{} is no chunk size: use a power of two from 4K to 64M",
            Bytes(bytes)
        ));
    }
    Ok(Chunk(bytes as u32))
}

impl<'de> Deserialize<'de> for Chunk {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Chunk, D::Error> {
        checked_size(d, check_chunk)
    }
}

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Queues, D::Error> {
        scalar(d, "a number of queues or auto", |s| match s {
            Scalar::Number(n) => {
                Some(in_range("queues", n, 1, 128, plain).map(|n| Queues(Some(n as u16))))
            }
            Scalar::Word("auto") => Some(Ok(Queues(None))),
            Scalar::Word(_) => None,
        })
    }
}

/// Why the file cannot be used. `Display` is one line: file, line, what, remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{path}: {source}; check --config, or start without it for the defaults")]
    Read {
        /// Which file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The file could be read and is wrong.
    #[error("{path}:{line}: {message}{remedy}")]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// One-based line.
        line: usize,
        /// Key and what is wrong with it.
        message: String,
        /// Empty or a sentence that begins with a semicolon.
        remedy: String,
    },
}

/// Reads a file; `text` is its content, `path` is for messages.
pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    // An empty file, or one with nothing but comments, is the defaults.
    let only_comments = text.lines().all(|l| {
        let l = l.trim();
        l.is_empty() || l.starts_with('#') || l == "---"
    });
    if only_comments {
        return Ok(Config::default());
    }
    let config: Config = serde_yaml::from_str(text).map_err(|error| wrong(path, text, &error))?;
    let ceiling = config.defaults.resync.ceiling;
    if let Some(ceiling) = ceiling.filter(|c| *c < config.defaults.resync.floor) {
        return Err(ConfigError::Wrong {
            path: path.into(),
            line: line_of(text, "ceiling"),
            message: format!(
                "defaults.resync.ceiling: {ceiling} is below the floor of {}",
                config.defaults.resync.floor
            ),
            remedy: "; raise the ceiling or lower the floor".into(),
        });
    }
    Ok(config)
}

/// Reads the file at `path`; without one the default file if it exists, else the defaults.
pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
    let (path, required) = path.map_or((Path::new(DEFAULT_PATH), false), |p| (p, true));
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !required => Ok(Config::default()),
        Err(source) => Err(ConfigError::Read {
            path: path.into(),
            source,
        }),
    }
}

fn wrong(path: &Path, text: &str, error: &serde_yaml::Error) -> ConfigError {
    let full = error.to_string();
    // The parser ends its message with the position, which we give in front.
    let message = full
        .find(" at line ")
        .map_or(full.as_str(), |at| &full[..at])
        .to_string();
    let key = backquoted(&message).map(str::to_string);
    let mut line = error.location().map_or(1, |l| l.line());
    let mut remedy = String::new();
    let mut shown = message;
    if let Some(key) = key.filter(|_| shown.contains("unknown field")) {
        line = line_of(text, &key).max(1);
        let parent = shown
            .split(": ")
            .next()
            .filter(|p| !p.contains('`'))
            .unwrap_or("")
            .to_string();
        remedy = match (closest(&key, &parent), parent.as_str()) {
            (Some(near), _) => format!("; did you mean '{near}'?"),
            (None, "") => "; remove it, or see config/raidd.yaml for all keys".into(),
            (None, p) => format!("; keys of '{p}' are: {}", keys_of(p).join(", ")),
        };
        let dotted = if parent.is_empty() {
            key
        } else {
            format!("{parent}.{key}")
        };
        shown = format!("unknown key '{dotted}'");
    } else if shown.contains("did not find expected")
        || shown.contains("mapping values are not allowed")
    {
        remedy =
            "; the file is not YAML at this place, check indentation, colons and quotes".into();
    }
    ConfigError::Wrong {
        path: path.into(),
        line,
        message: shown,
        remedy,
    }
}

fn backquoted(text: &str) -> Option<&str> {
    let start = text.find('`')? + 1;
    let end = text[start..].find('`')?;
    Some(&text[start..start + end])
}

fn line_of(text: &str, key: &str) -> usize {
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
fn all_keys() -> BTreeMap<&'static str, &'static [&'static str]> {
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

fn keys_of(parent: &str) -> &'static [&'static str] {
    all_keys().get(parent).copied().unwrap_or(&[])
}

/// A key of the same parent within two edits, or the same key under another parent.
fn closest(key: &str, parent: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
