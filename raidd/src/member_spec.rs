//! Expands the way people name a row of members: `/dev/nvme<0..7>n1`, `{0..7}`, `{a,b,c}`, `[0-7]`, `[abc]`, several
//! of them in one word, zero padded if written so. Pure and eager; at most [`MAX_NAMES`] names come out.

/// No array has more members than this; a longer list is a slip of the finger.
pub const MAX_NAMES: usize = 1024;

/// Why a word could not be expanded. Positions are not given: the word is short and is shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A bracket without its partner.
    #[error(
        "'{spec}': '{open}' has no matching '{close}'; quote the word, as in '/dev/nvme<0..7>n1'"
    )]
    Unclosed {
        /// The word.
        spec: String,
        /// The bracket found.
        open: char,
        /// The bracket missed.
        close: char,
    },
    /// Something in brackets that is no range and no list.
    #[error("'{spec}': '{body}' is not a range; write first{dots}last, as in {example}")]
    NotARange {
        /// The word.
        spec: String,
        /// What stood in the brackets.
        body: String,
        /// `..` or `-`.
        dots: &'static str,
        /// A right one.
        example: &'static str,
    },
    /// A range whose end comes before its start.
    #[error(
        "'{spec}': the range '{body}' runs backwards; members are given in slot order, lowest first"
    )]
    Backwards {
        /// The word.
        spec: String,
        /// What stood in the brackets.
        body: String,
    },
    /// More names than any array takes.
    #[error("'{spec}' names more than {MAX_NAMES} members")]
    TooMany {
        /// The word.
        spec: String,
    },
    /// Nothing at all.
    #[error("an empty member name")]
    Empty,
}

/// Expands one word into the names it stands for, the rightmost range running fastest, as a shell does.
pub fn expand(spec: &str) -> Result<Vec<String>, SpecError> {
    if spec.trim().is_empty() {
        return Err(SpecError::Empty);
    }
    let mut names = vec![String::new()];
    let mut rest = spec;
    while let Some(start) = rest.find(['<', '{', '[', '>', '}', ']']) {
        let open = rest[start..]
            .chars()
            .next()
            .expect("find gave a character's start");
        let close = match open {
            '<' => '>',
            '{' => '}',
            '[' => ']',
            // A closing bracket on its own: say which opening one is missed.
            lone => {
                let partner = match lone {
                    '>' => '<',
                    '}' => '{',
                    _ => '[',
                };
                return Err(SpecError::Unclosed {
                    spec: spec.into(),
                    open: lone,
                    close: partner,
                });
            }
        };
        let body_start = start + 1;
        let Some(length) = rest[body_start..].find(close) else {
            return Err(SpecError::Unclosed {
                spec: spec.into(),
                open,
                close,
            });
        };
        let body = &rest[body_start..body_start + length];
        let choices = choices(spec, open, body)?;
        if names.len() * choices.len() > MAX_NAMES {
            return Err(SpecError::TooMany { spec: spec.into() });
        }
        names = names
            .iter()
            .flat_map(|name| {
                choices
                    .iter()
                    .map(move |choice| format!("{name}{}{choice}", &rest[..start]))
            })
            .collect();
        rest = &rest[body_start + length + 1..];
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

/// Expands a list of words and keeps their order.
pub fn expand_all<S: AsRef<str>>(specs: &[S]) -> Result<Vec<String>, SpecError> {
    let mut names = Vec::new();
    for spec in specs {
        names.extend(expand(spec.as_ref())?);
        if names.len() > MAX_NAMES {
            return Err(SpecError::TooMany {
                spec: spec.as_ref().into(),
            });
        }
    }
    Ok(names)
}

/// What one pair of brackets stands for.
fn choices(spec: &str, open: char, body: &str) -> Result<Vec<String>, SpecError> {
    let square = open == '[';
    let (dots, example) = match open {
        '<' => ("..", "<0..7>"),
        '{' => ("..", "{0..7}"),
        _ => ("-", "[0-7]"),
    };
    let wrong = || SpecError::NotARange {
        spec: spec.into(),
        body: body.into(),
        dots,
        example,
    };
    if body.contains(',') {
        // A list; each item may be a range of its own in square brackets and angle brackets.
        let mut all = Vec::new();
        for item in body.split(',') {
            match item.split_once(dots) {
                Some((first, last)) => {
                    all.extend(range(spec, item, first, last)?.ok_or_else(wrong)?)
                }
                None if !item.is_empty() && !item.contains(['<', '{', '[']) => {
                    all.push(item.to_string())
                }
                None => return Err(wrong()),
            }
        }
        return Ok(all);
    }
    if let Some((first, last)) = body.split_once(dots) {
        return range(spec, body, first, last)?.ok_or_else(wrong);
    }
    // A shell's character class without a range: [abc].
    if square && !body.is_empty() && body.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Ok(body.chars().map(String::from).collect());
    }
    Err(wrong())
}

/// Numbers or single letters from first to last; `None` if the ends are neither.
fn range(
    spec: &str,
    body: &str,
    first: &str,
    last: &str,
) -> Result<Option<Vec<String>>, SpecError> {
    let backwards = || SpecError::Backwards {
        spec: spec.into(),
        body: body.into(),
    };
    let number = |s: &str| !s.is_empty() && s.len() <= 9 && s.bytes().all(|b| b.is_ascii_digit());
    if number(first) && number(last) {
        let low: u32 = first.parse().expect("at most nine digits fit");
        let high: u32 = last.parse().expect("at most nine digits fit");
        if low > high {
            return Err(backwards());
        }
        if (high - low) as usize >= MAX_NAMES {
            return Err(SpecError::TooMany { spec: spec.into() });
        }
        // As in a shell: a leading zero on either end pads all to the wider of the two.
        let padded = |s: &str| s.len() > 1 && s.starts_with('0');
        let width = if padded(first) || padded(last) {
            first.len().max(last.len())
        } else {
            0
        };
        return Ok(Some((low..=high).map(|n| format!("{n:0width$}")).collect()));
    }
    let letter = |s: &str| s.len() == 1 && s.bytes().all(|b| b.is_ascii_alphabetic());
    if letter(first) && letter(last) {
        let (low, high) = (first.as_bytes()[0], last.as_bytes()[0]);
        if low.is_ascii_lowercase() != high.is_ascii_lowercase() {
            return Ok(None);
        }
        if low > high {
            return Err(backwards());
        }
        return Ok(Some(
            (low..=high).map(|b| char::from(b).to_string()).collect(),
        ));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(spec: &str) -> Vec<String> {
        expand(spec).unwrap()
    }

    #[test]
    fn the_three_spellings_mean_the_same() {
        let want: Vec<String> = (0..8).map(|n| format!("/dev/nvme{n}n1")).collect();
        for spec in ["/dev/nvme<0..7>n1", "/dev/nvme{0..7}n1", "/dev/nvme[0-7]n1"] {
            assert_eq!(ok(spec), want, "{spec}");
        }
        assert_eq!(ok("/dev/sda"), ["/dev/sda"]);
        assert_eq!(ok("/dev/sd{a..c}"), ["/dev/sda", "/dev/sdb", "/dev/sdc"]);
        assert_eq!(ok("/dev/sd[abd]"), ["/dev/sda", "/dev/sdb", "/dev/sdd"]);
        assert_eq!(
            ok("/dev/nvme{0,2,5}n1"),
            ["/dev/nvme0n1", "/dev/nvme2n1", "/dev/nvme5n1"]
        );
        assert_eq!(ok("/dev/sd[a-b,x]"), ["/dev/sda", "/dev/sdb", "/dev/sdx"]);
    }

    #[test]
    fn several_ranges_and_padding() {
        assert_eq!(
            ok("/dev/c<0..1>d<0..1>"),
            ["/dev/c0d0", "/dev/c0d1", "/dev/c1d0", "/dev/c1d1"]
        );
        assert_eq!(ok("disk<08..11>"), ["disk08", "disk09", "disk10", "disk11"]);
        assert_eq!(ok("disk<0..10>").len(), 11);
        assert_eq!(ok("disk<0..10>")[10], "disk10");
        assert_eq!(ok("disk<000..2>"), ["disk000", "disk001", "disk002"]);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(matches!(
            expand("/dev/nvme<0..7n1"),
            Err(SpecError::Unclosed { open: '<', .. })
        ));
        assert!(matches!(
            expand("/dev/nvme0..7>n1"),
            Err(SpecError::Unclosed { open: '>', .. })
        ));
        assert!(matches!(
            expand("/dev/nvme<7..0>n1"),
            Err(SpecError::Backwards { .. })
        ));
        for spec in [
            "a<>", "a<0>", "a<0-7>", "a{0}", "a[0..7]", "a<a..7>", "a<a..Z>", "a{,b}", "a<..>",
            "a[]",
        ] {
            assert!(
                matches!(expand(spec), Err(SpecError::NotARange { .. })),
                "{spec}: {:?}",
                expand(spec)
            );
        }
        assert!(matches!(
            expand("a<0..999999999>"),
            Err(SpecError::TooMany { .. })
        ));
        assert!(matches!(
            expand("a<0..99>b<0..99>"),
            Err(SpecError::TooMany { .. })
        ));
        assert_eq!(expand(" "), Err(SpecError::Empty));
        let message = expand("/dev/nvme<0-7>n1").unwrap_err().to_string();
        assert!(message.contains("<0..7>"), "{message}");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(spec in "[a-z0-9<>{}\\[\\].,é-]{0,24}") {
            if let Ok(names) = expand(&spec) {
                proptest::prop_assert!(names.len() <= MAX_NAMES);
            }
        }
    }
}
