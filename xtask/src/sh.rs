//! Running other programs: one place that prints what is run, checks exit codes and names missing tools.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The first folder of `$PATH` (and the sbin folders, which users often lack) that holds `program`.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Builds a command from a program and its arguments.
pub fn cmd<I, S>(program: impl AsRef<OsStr>, args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Runs a command to its end; an error if it does not exit with 0.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Runs a command to its end and returns its standard output; an error if it does not exit with 0.
pub fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !out.status.success() {
        bail!(
            "{command:?} ended with {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Quotes a word for a POSIX shell.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A new empty folder of our own. Not below /tmp, which the beds replace by their own.
pub fn temp_dir(prefix: &str) -> Result<PathBuf> {
    let template = Path::new("/var/tmp").join(format!("{prefix}.XXXXXX"));
    nix::unistd::mkdtemp(&template).context("cannot make a folder in /var/tmp")
}

/// True for the superuser.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quoting_survives_a_shell() {
        for word in [
            "",
            "plain",
            "two words",
            "it's",
            "$HOME",
            "a\"b",
            "*",
            "nvme{0..7}n1",
        ] {
            let out = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quote(word))])
                .output()
                .expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&out.stdout), word);
        }
    }
}
