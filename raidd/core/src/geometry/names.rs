//! Names of the layouts, as mdadm spells them in lower case, and their numbers.
//! Owns the three tables of names; costs a walk over at most 14 entries.

use super::{LAYOUT_ALTERNATE, LAYOUT_ORIGINAL, Level};

const NAMES_5: [(&str, &str, u32); 6] = [
    ("left-asymmetric", "la", 0),
    ("right-asymmetric", "ra", 1),
    ("left-symmetric", "ls", 2),
    ("right-symmetric", "rs", 3),
    ("parity-first", "", 4),
    ("parity-last", "", 5),
];
const NAMES_6: [(&str, &str, u32); 8] = [
    ("ddf-zero-restart", "", 8),
    ("ddf-n-restart", "", 9),
    ("ddf-n-continue", "", 10),
    ("left-asymmetric-6", "", 16),
    ("right-asymmetric-6", "", 17),
    ("left-symmetric-6", "", 18),
    ("right-symmetric-6", "", 19),
    ("parity-first-6", "", 20),
];
const NAMES_0: [(&str, &str, u32); 2] = [
    ("original", "", LAYOUT_ORIGINAL),
    ("alternate", "", LAYOUT_ALTERNATE),
];

fn layouts(level: Level) -> impl Iterator<Item = (&'static str, &'static str, u32)> {
    let (first, second): (&[_], &[_]) = match level {
        Level::Raid0 => (&NAMES_0, &[]),
        Level::Raid4 => (&[], &[]),
        Level::Raid5 => (&NAMES_5, &[]),
        Level::Raid6 => (&NAMES_5, &NAMES_6),
    };
    first.iter().chain(second).copied()
}

/// All layout numbers of a level.
pub fn layout_numbers(level: Level) -> Vec<u32> {
    match level {
        Level::Raid4 => vec![0],
        _ => layouts(level).map(|(_, _, number)| number).collect(),
    }
}

/// The name of a layout, as mdadm spells it but in lower case; `None` when the level has no such layout
/// (or, level 4, no names).
pub fn layout_name(level: Level, layout: u32) -> Option<&'static str> {
    layouts(level)
        .find(|&(_, _, number)| number == layout)
        .map(|(name, _, _)| name)
}

/// The number of a layout given its name (any case), its alias (`la ra ls rs`), its number, or `default`.
pub fn parse_layout(level: Level, text: &str) -> Option<u32> {
    let text = text.trim().to_ascii_lowercase();
    if text == "default" {
        return Some(level.default_layout());
    }
    if let Ok(number) = text.parse() {
        return layout_numbers(level).contains(&number).then_some(number);
    }
    layouts(level)
        .find(|&(name, alias, _)| text == name || (!alias.is_empty() && text == alias))
        .map(|(_, _, number)| number)
}
