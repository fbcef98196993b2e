//! Why a file cannot be used: what the parser says, in the words of an operator, with the line, the key and a remedy.

use std::path::{Path, PathBuf};

use super::keys::{closest, keys_of, line_of};

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

pub(super) fn wrong(path: &Path, text: &str, error: &serde_yaml::Error) -> ConfigError {
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
