//! The last events of a run, kept only when a seed is run again to be looked at. Costs nothing otherwise.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// How many events are kept unless all are printed.
const KEEP: usize = 400;

/// A place to put events; clones share it, so that it outlives a panic.
#[derive(Clone, Debug, Default)]
pub struct Log {
    lines: Option<Arc<Mutex<VecDeque<String>>>>,
    print: bool,
}

impl Log {
    /// Keeps nothing.
    pub fn off() -> Log {
        Log::default()
    }

    /// Keeps the last events; with `print` all go to the standard error too.
    pub fn on(print: bool) -> Log {
        Log {
            lines: Some(Arc::default()),
            print,
        }
    }

    /// Adds an event.
    pub fn add(&self, line: impl FnOnce() -> String) {
        let Some(lines) = &self.lines else { return };
        let line = line();
        if self.print {
            eprintln!("{line}");
        }
        let mut lines = lines.lock().expect("one thread");
        if lines.len() == KEEP {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The last `n` events.
    pub fn tail(&self, n: usize) -> String {
        let Some(lines) = &self.lines else {
            return String::new();
        };
        let lines = match lines.lock() {
            Ok(lines) => lines,
            Err(poisoned) => poisoned.into_inner(),
        };
        let skip = lines.len().saturating_sub(n);
        lines.iter().skip(skip).map(|l| format!("{l}\n")).collect()
    }
}
