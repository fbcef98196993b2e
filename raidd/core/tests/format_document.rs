//! Holds `docs/format.md` and the code together: fields, features, layouts and signatures.

use raid_core::bitmap;
use raid_core::geometry::{Level, layout_name, layout_numbers};
use raid_core::superblock::{FIELDS, Field, feature};

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    std::fs::read_to_string(path).unwrap()
}

/// The rows of the table whose header has these first cells.
fn table(header: &[&str]) -> Vec<Vec<String>> {
    let document = document();
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner
            .split('|')
            .map(|cell| cell.trim().to_string())
            .collect()
    };
    let mut lines = document.lines();
    lines
        .find(|line| {
            line.starts_with('|')
                && cells(line)
                    .starts_with(&header.iter().map(|h| h.to_string()).collect::<Vec<_>>())
        })
        .unwrap_or_else(|| panic!("no table {header:?}"));
    lines
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect()
}

/// The rows of a table of fields whose header begins with this cell: offset, size, name.
fn written_fields(first: &str) -> Vec<(usize, usize, String)> {
    table(&[first, "size", "field"])
        .into_iter()
        .map(|row| {
            (
                row[0].parse().unwrap(),
                row[1].parse().unwrap(),
                row[2].clone(),
            )
        })
        .collect()
}

fn coded_fields(fields: &[Field]) -> Vec<(usize, usize, String)> {
    fields
        .iter()
        .map(|field| (field.offset, field.size, field.name.to_string()))
        .collect()
}

#[test]
fn fields() {
    assert_eq!(written_fields("offset"), coded_fields(&FIELDS));
}

#[test]
fn bitmap_fields() {
    assert_eq!(written_fields("byte"), coded_fields(&bitmap::FIELDS));
    let mut end = 0;
    for field in &bitmap::FIELDS {
        assert_eq!(field.offset, end, "{}: no gaps", field.name);
        end += field.size;
    }
    assert!(document().contains(&format!(
        "The bytes from {end} to {} are zero.",
        bitmap::HEADER_BYTES - 1
    )));
    assert!(document().contains(&format!("`{:x}`, the letters `bitm`", bitmap::MAGIC)));
    assert!(document().contains(&format!("internal bitmap, version {}", bitmap::VERSION)));
}

#[test]
fn features() {
    let written: Vec<(u32, String)> = table(&["bit", "feature"])
        .into_iter()
        .map(|row| {
            (
                u32::from_str_radix(row[0].trim_start_matches("0x"), 16).unwrap(),
                row[1].clone(),
            )
        })
        .collect();
    let all = written.iter().fold(0, |map, (bit, _)| map | bit);
    assert_eq!(all, feature::KNOWN);
    let names: Vec<String> = written.into_iter().map(|(_, name)| name).collect();
    assert_eq!(feature::names(feature::KNOWN), names);
}

#[test]
fn layouts() {
    let written = table(&["level", "number", "name"]);
    let mut count = 0;
    for row in &written {
        let level = Level::from_md(row[0].parse().unwrap()).unwrap();
        assert_eq!(
            layout_name(level, row[1].parse().unwrap()),
            Some(row[2].as_str())
        );
        count += 1;
    }
    let levels = [Level::Raid0, Level::Raid5, Level::Raid6];
    assert_eq!(
        count,
        levels
            .iter()
            .map(|&level| layout_numbers(level).len())
            .sum::<usize>()
    );
}
