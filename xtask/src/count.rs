//! Counts of what passed, failed and was skipped, over unit tests, checks and end-to-end scripts alike.

use std::ops::AddAssign;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: u32,
    pub failed: u32,
    pub skipped: u32,
}

impl Count {
    pub fn pass() -> Count {
        Count {
            passed: 1,
            ..Count::default()
        }
    }

    pub fn fail() -> Count {
        Count {
            failed: 1,
            ..Count::default()
        }
    }

    pub fn skip() -> Count {
        Count {
            skipped: 1,
            ..Count::default()
        }
    }

    /// What one line of an end-to-end script says: `ok NAME`, `not ok NAME # why`, `skip NAME # why`.
    pub fn of_script_line(line: &str) -> Option<Count> {
        [
            ("ok ", Count::pass()),
            ("not ok ", Count::fail()),
            ("skip ", Count::skip()),
        ]
        .into_iter()
        .find_map(|(begin, count)| line.starts_with(begin).then_some(count))
    }

    /// What one line of `cargo test` says: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    pub fn of_cargo_line(line: &str) -> Option<Count> {
        let rest = line.trim_start().strip_prefix("test result: ")?;
        let (_, figures) = rest.split_once(". ")?;
        let mut count = Count::default();
        for figure in figures.split("; ") {
            match figure.split_once(' ') {
                Some((number, "passed")) => count.passed = number.parse().ok()?,
                Some((number, "failed")) => count.failed = number.parse().ok()?,
                Some((number, "ignored")) => count.skipped = number.parse().ok()?,
                _ => {}
            }
        }
        Some(count)
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn reads_both_kinds_of_lines() {
        assert_eq!(Count::of_script_line("ok 00-bed/root"), Some(Count::pass()));
        assert_eq!(
            Count::of_script_line("not ok x # broken"),
            Some(Count::fail())
        );
        assert_eq!(
            Count::of_script_line("skip x # no mdadm"),
            Some(Count::skip())
        );
        assert_eq!(Count::of_script_line("# ok"), None);
        let line = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        let count = Count {
            passed: 12,
            failed: 2,
            skipped: 1,
        };
        assert_eq!(Count::of_cargo_line(line), Some(count));
        assert_eq!(Count::of_cargo_line("running 3 tests"), None);
    }
}
