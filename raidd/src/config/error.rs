//! Why a file cannot be used: what the parser says, in the words of an operator, with the line, the key and a remedy.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::found::{Found, real};
use super::keys::{closest, keys_of, line_of};

/// Why the file cannot be used. `Display` is one line: file, line, what, remedy.
#[derive(Debug, thiserror::Error)]
#[error("{}; {}", self.problem(), self.remedy())]
pub enum ConfigError {
    /// The file could not be read.
    Read {
        /// Which file.
        path: PathBuf,
        /// Somebody asked for this file, rather than for the default one.
        named: bool,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The file could be read and is wrong.
    Wrong {
        /// Which file.
        path: PathBuf,
        /// One-based line.
        line: usize,
        /// Key and what is wrong with it.
        message: String,
        /// What to do.
        remedy: String,
    },
}

impl ConfigError {
    /// File, line, key and what is wrong, without the remedy.
    pub fn problem(&self) -> String {
        match self {
            ConfigError::Read { path, source, .. } => format!("{}: {source}", path.display()),
            ConfigError::Wrong {
                path,
                line,
                message,
                ..
            } => format!("{}:{line}: {message}", path.display()),
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &str {
        let (named, source) = match self {
            ConfigError::Wrong { remedy, .. } => return remedy,
            ConfigError::Read { named, source, .. } => (*named, source),
        };
        match (source.kind(), named) {
            (ErrorKind::NotFound, _) => {
                "name a file that exists with --config, or leave it out for the defaults"
            }
            (ErrorKind::PermissionDenied, _) => "let root read it, and run this as root",
            (ErrorKind::InvalidData, _) => "write it as plain text in UTF-8",
            (_, true) => "name the file itself with --config, or leave it out for the defaults",
            (_, false) => "put a file there, or nothing at all for the defaults",
        }
    }
}

pub(super) fn wrong(path: &Path, text: &str, error: &serde_yaml::Error) -> ConfigError {
    let full = error.to_string();
    // The parser ends its message with the position, which we give in front.
    let message = full
        .find(" at line ")
        .map_or(full.as_str(), |at| &full[..at])
        .to_string();
    let key = backquoted(&message).map(str::to_string);
    let mut line = error.location().map_or(1, |l| l.line());
    let (mut shown, mut remedy) = plain(&message);
    if let Some(key) = key.filter(|_| shown.contains("unknown field")) {
        line = line_of(text, &key).max(1);
        let parent = shown
            .split(": ")
            .next()
            .filter(|p| !p.contains('`'))
            .unwrap_or("")
            .to_string();
        remedy = match (closest(&key, &parent), parent.as_str()) {
            (Some(near), _) => format!("did you mean '{near}'?"),
            (None, "") => "remove it, or see config/raidd.yaml for all keys".into(),
            (None, p) => format!("keys of '{p}' are: {}", keys_of(p).join(", ")),
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
        remedy = "the file is not YAML at this place, check indentation, colons and quotes".into();
    }
    ConfigError::Wrong {
        path: path.into(),
        line,
        message: shown,
        remedy,
    }
}

/// The parser's sentence in plain words, and the remedy. Sentences of our own checks end with theirs.
fn plain(message: &str) -> (String, String) {
    if let Some((what, fits)) = message.rsplit_once(": write ") {
        return (what.into(), format!("write {fits}"));
    }
    let otherwise = || (message.to_string(), "correct this line".to_string());
    let (path, rest) = match message.split_once(": ") {
        Some((path, rest)) if !path.contains(' ') => (path, rest),
        _ => ("", message),
    };
    let at = |what: String| match path {
        "" => format!("the file {what}"),
        path => format!("{path}: {what}"),
    };
    if let Some(key) = rest.strip_prefix("duplicate field ") {
        let key = key.trim_matches('`');
        return (
            at(format!("has the key '{key}' twice")),
            "write it once".into(),
        );
    }
    let Some((found, wanted)) = rest
        .strip_prefix("invalid type: ")
        .and_then(|r| r.rsplit_once(", expected "))
    else {
        return otherwise();
    };
    let found = match backquoted(found) {
        _ if found == "unit value" => Found::Empty,
        _ if found == "sequence" => Found::List(Vec::new()),
        _ if found == "map" => Found::Other("a value with keys of its own".into()),
        Some(number) if found.starts_with("floating point") => {
            Found::Other(number.parse().map_or(number.into(), real))
        }
        Some(value) => Found::Other(value.into()),
        None => Found::Word(
            found
                .trim_start_matches("string ")
                .trim_matches('"')
                .to_string(),
        ),
    };
    let wanted = match wanted {
        "a boolean" => "true or false".to_string(),
        "a string" => "a word or a text".into(),
        "path string" => "a path".into(),
        section if section.starts_with("struct ") => {
            format!("keys below it, of {}", keys_of(path).join(", "))
        }
        other => other.into(),
    };
    let sentence = found.misfit(&wanted);
    let what = sentence.split(": write ").next().unwrap_or_default();
    (at(what.into()), format!("write {wanted}"))
}

fn backquoted(text: &str) -> Option<&str> {
    let start = text.find('`')? + 1;
    let end = text[start..].find('`')?;
    Some(&text[start..start + end])
}
