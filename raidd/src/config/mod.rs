//! The daemon's YAML file. Every key is optional; an unknown key or a wrong value is an error that names the file,
//! the line, the key and the remedy. Read once at start; costs nothing afterwards.
//!
//! Here: the top of the file, and reading it. `defaults` has the keys of an array, `parity` checks those of the
//! arithmetic, `found` is what stands behind a key, `value` holds the checks that several keys share, `error` makes messages of what the parser says, `keys`
//! knows all keys by name. A new key needs a field, its default, a place in `keys`, and a line in `config/raidd.yaml`; a
//! test compares them.

mod defaults;
mod error;
mod found;
mod keys;
mod parity;
#[cfg(test)]
mod tests;
mod value;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::Deserializer;

pub use defaults::{Chunk, Defaults, Queues, Resync, ZeroCopy, check_chunk};
pub use error::ConfigError;
use found::{Found, read};
use value::one_of;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people and the journal.
    Text,
    /// For machines.
    Json,
}

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

impl Default for Log {
    fn default() -> Log {
        Log {
            level: "info".into(),
            format: LogFormat::Text,
        }
    }
}

impl<'de> Deserialize<'de> for LogFormat {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<LogFormat, D::Error> {
        one_of(d, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
    }
}

fn version<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    read(d, |found| match found {
        Found::Number(1) => Ok(VERSION),
        Found::Number(n) => Err(format!(
            "version {n} is not known to this program; it reads version {VERSION}"
        )),
        other => Err(other.misfit(VERSION)),
    })
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
    let config: Config = serde_yaml::from_str(text).map_err(|e| error::wrong(path, text, &e))?;
    let ceiling = config.defaults.resync.ceiling;
    if let Some(ceiling) = ceiling.filter(|c| *c < config.defaults.resync.floor) {
        return Err(ConfigError::Wrong {
            path: path.into(),
            line: keys::line_of(text, "ceiling"),
            message: format!(
                "defaults.resync.ceiling: {ceiling} is below the floor of {}",
                config.defaults.resync.floor
            ),
            remedy: "raise the ceiling or lower the floor".into(),
        });
    }
    Ok(config)
}

/// Reads the file at `path`; without one the default file if it exists, else the defaults.
pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
    let (path, named) = path.map_or((Path::new(DEFAULT_PATH), false), |p| (p, true));
    match text_of(path) {
        Ok(text) => parse(path, &text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !named => Ok(Config::default()),
        Err(source) => Err(ConfigError::Read {
            path: path.into(),
            named,
            source,
        }),
    }
}

/// Longest configuration that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// The text of a file; what has no end (a device, a pipe) is refused before it is opened.
fn text_of(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, Read};
    let about = std::fs::metadata(path)?;
    if !about.is_file() && !about.is_dir() {
        return Err(Error::other("not a regular file"));
    }
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(LONGEST + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(Error::other("longer than 1 MiB"));
    }
    Ok(text)
}
