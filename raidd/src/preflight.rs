//! Looks at every device that shall become a member before the first byte is written, and reports everything that
//! stands in the way at once. Opening is part of looking: only a device that we hold exclusively stays as we saw it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::control::protocol::Problem;
use crate::device::node::{DevNo, Node, inspect};
use crate::device::open::{Mode, OpenError, exclusive};
use crate::device::usage::explain_busy;
use crate::signature::{Signature, signatures};

/// A device that may become a member, held by us.
#[derive(Debug)]
pub struct Candidate {
    /// What sysfs says of it.
    pub node: Node,
    /// Held exclusively.
    pub file: File,
    /// What was found on it.
    pub signatures: Vec<Signature>,
}

/// What preflight found.
#[derive(Debug, Default)]
pub struct Report {
    /// In the order given; complete only if there are no problems.
    pub candidates: Vec<Candidate>,
    /// Each of these forbids going on.
    pub problems: Vec<Problem>,
    /// Worth a question.
    pub warnings: Vec<Problem>,
}

/// How to look.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Open for writing, or only look (dry run).
    pub mode: Mode,
    /// Old contents are no obstacle.
    pub force: bool,
    /// Tests use image files.
    pub allow_files: bool,
}

/// Name of the array of ours that has a device, if one has.
pub type Ours<'a> = &'a dyn Fn(DevNo) -> Option<String>;

/// Looks at all of them.
pub fn check(paths: &[PathBuf], terms: Terms, ours: Ours<'_>) -> Report {
    let mut report = Report::default();
    let mut nodes = Vec::new();
    for path in paths {
        match inspect(path, terms.allow_files) {
            Ok(node) => nodes.push(node),
            Err(error) => {
                report
                    .problems
                    .push(problem(path, error.to_string(), error.remedy(path)))
            }
        }
    }
    report.problems.extend(twice(&nodes));
    report.problems.extend(parts_of_others(&nodes));
    report.problems.extend(mixed_blocks(&nodes));
    report.warnings.extend(shared_disks(&nodes));
    let mut opened = BTreeMap::new();
    for node in nodes {
        // A device named twice is opened once: the second open would only say that it is busy.
        if opened.insert(node.dev, ()).is_some() {
            continue;
        }
        match look(node, terms, ours) {
            Ok(candidate) => {
                report.problems.extend(on_it(&candidate, terms));
                report.candidates.push(candidate);
            }
            Err(problems) => report.problems.extend(problems),
        }
    }
    report
}

fn problem(path: &Path, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem::new(path.display().to_string(), message, remedy)
}

fn look(node: Node, terms: Terms, ours: Ours<'_>) -> Result<Candidate, Vec<Problem>> {
    let path = node.path.clone();
    if node.name.starts_with("ublkb") {
        return Err(vec![problem(
            &path,
            "this is a ublk device; an array inside an array is not supported",
            "",
        )]);
    }
    if node.size_sectors == 0 {
        return Err(vec![problem(
            &path,
            "it has no size; nothing is attached to it",
            "check it with lsblk",
        )]);
    }
    if node.read_only {
        return Err(vec![problem(
            &path,
            "it is write protected",
            format!("blockdev --setrw {}", path.display()),
        )]);
    }
    if let Some(array) = ours(node.dev) {
        let message = format!("it is in use: a member of the running array {array}");
        return Err(vec![problem(
            &path,
            message,
            format!("raidctl stop {array}"),
        )]);
    }
    let file = exclusive(&path, terms.mode, node.is_block).map_err(|error| busy(&node, &error))?;
    let signatures = signatures(&file, node.size_sectors).map_err(|e| {
        vec![problem(
            &path,
            format!("reading it failed: {e}"),
            "replace this device",
        )]
    })?;
    Ok(Candidate {
        node,
        file,
        signatures,
    })
}

/// Why a device could not be opened, in as many problems as it has users.
pub fn busy(node: &Node, error: &OpenError) -> Vec<Problem> {
    let path = &node.path;
    match error {
        OpenError::Busy if node.is_block => explain_busy(&node.name, node.dev)
            .into_iter()
            .map(|u| problem(path, format!("it is in use: {}", u.what), u.remedy))
            .collect(),
        OpenError::ReadOnly => {
            vec![problem(
                path,
                error.to_string(),
                format!("blockdev --setrw {}", path.display()),
            )]
        }
        _ => vec![problem(path, error.to_string(), "")],
    }
}

fn on_it(candidate: &Candidate, terms: Terms) -> Vec<Problem> {
    let mut problems = Vec::new();
    let path = &candidate.node.path;
    // An exclusive open succeeds while a partition is merely present, but a partition table is then a signature;
    // while a partition is mounted the kernel refuses it.
    if !terms.force {
        for signature in &candidate.signatures {
            problems.push(problem(
                path,
                format!("it carries {}", signature.what),
                "take another device, or overwrite it with --force",
            ));
        }
    }
    problems
}

/// One device under two names.
fn twice(nodes: &[Node]) -> Vec<Problem> {
    let mut seen: BTreeMap<DevNo, &Path> = BTreeMap::new();
    let mut problems = Vec::new();
    for node in nodes {
        match seen.get(&node.dev) {
            Some(first) if *first == node.path => {
                problems.push(problem(
                    &node.path,
                    "it is given twice",
                    "name each member once",
                ));
            }
            Some(first) => problems.push(problem(
                &node.path,
                format!("it is the same device as {}", first.display()),
                "name each member once",
            )),
            None => {
                seen.insert(node.dev, &node.path);
            }
        }
    }
    problems
}

/// A disk together with one of its partitions.
fn parts_of_others(nodes: &[Node]) -> Vec<Problem> {
    nodes
        .iter()
        .filter_map(|node| {
            let disk = node.partition_of.as_deref()?;
            let whole = nodes.iter().find(|other| other.name == disk)?;
            Some(problem(
                &node.path,
                format!(
                    "it is a partition of {}, which is a member too",
                    whole.path.display()
                ),
                "give the disk or its partition, not both",
            ))
        })
        .collect()
}

/// Members of different logical block sizes.
fn mixed_blocks(nodes: &[Node]) -> Option<Problem> {
    let mut sizes: BTreeMap<u32, Vec<&Node>> = BTreeMap::new();
    for node in nodes {
        sizes.entry(node.logical_block).or_default().push(node);
    }
    if sizes.len() < 2 {
        return None;
    }
    // Those in the minority are the ones to look at.
    let fewest = sizes.values().min_by_key(|group| group.len())?;
    let text: Vec<String> = sizes
        .iter()
        .map(|(size, group)| format!("{} of {size} bytes", group.len()))
        .collect();
    let names: Vec<String> = fewest
        .iter()
        .map(|n| n.path.display().to_string())
        .collect();
    Some(Problem::new(
        names.join(", "),
        format!(
            "the members differ in logical block size: {}",
            text.join(", ")
        ),
        "use drives of one kind, or reformat NVMe drives with 'nvme format --lbaf'",
    ))
}

/// Two partitions of one disk: possible, but one failure then takes both.
fn shared_disks(nodes: &[Node]) -> Vec<Problem> {
    let mut disks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes {
        if let Some(disk) = &node.partition_of {
            disks
                .entry(disk)
                .or_default()
                .push(node.path.display().to_string());
        }
    }
    disks
        .into_iter()
        .filter(|(_, parts)| parts.len() > 1)
        .map(|(disk, parts)| {
            Problem::new(
                parts.join(", "),
                format!(
                    "these are partitions of one disk, {disk}: when it fails, all of them fail"
                ),
                "use one partition of each disk",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, minor: u64, block: u32, disk: Option<&str>) -> Node {
        Node {
            path: PathBuf::from(format!("/dev/{name}")),
            name: name.into(),
            dev: DevNo { major: 8, minor },
            size_sectors: 1 << 20,
            logical_block: block,
            read_only: false,
            partition_of: disk.map(str::to_string),
            is_block: true,
        }
    }

    #[test]
    fn the_same_device_twice_also_through_a_link() {
        let mut link = node("sda", 0, 512, None);
        link.path = PathBuf::from("/dev/disk/by-id/x");
        let problems = twice(&[
            node("sda", 0, 512, None),
            node("sdb", 16, 512, None),
            link,
            node("sdb", 16, 512, None),
        ]);
        assert_eq!(problems.len(), 2);
        assert_eq!(
            problems[0].to_string(),
            "/dev/disk/by-id/x: it is the same device as /dev/sda; name each member once"
        );
        assert!(problems[1].message.contains("twice"));
    }

    #[test]
    fn a_disk_and_its_partition() {
        let problems =
            parts_of_others(&[node("sda", 0, 512, None), node("sda1", 1, 512, Some("sda"))]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].message.contains("partition of /dev/sda"));
        assert!(
            parts_of_others(&[
                node("sda1", 1, 512, Some("sda")),
                node("sdb", 16, 512, None)
            ])
            .is_empty()
        );
    }

    #[test]
    fn partitions_of_one_disk_are_a_warning() {
        let warnings = shared_disks(&[
            node("sda1", 1, 512, Some("sda")),
            node("sda2", 2, 512, Some("sda")),
        ]);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].subject.contains("/dev/sda2"));
    }

    #[test]
    fn mixed_block_sizes_name_the_odd_one() {
        let nodes = [
            node("sda", 0, 512, None),
            node("sdb", 16, 512, None),
            node("sdc", 32, 4096, None),
        ];
        let problem = mixed_blocks(&nodes).unwrap();
        assert_eq!(problem.subject, "/dev/sdc");
        assert!(
            problem.message.contains("2 of 512 bytes, 1 of 4096 bytes"),
            "{}",
            problem.message
        );
        assert!(mixed_blocks(&nodes[..2]).is_none());
    }

    #[test]
    fn everything_is_reported_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image");
        std::fs::write(&file, vec![0; 1 << 20]).unwrap();
        let terms = Terms {
            mode: Mode::Read,
            force: false,
            allow_files: false,
        };
        let paths = [file.clone(), "/dev/no-such".into(), "/dev/null".into()];
        let report = check(&paths, terms, &|_| None);
        assert_eq!(report.problems.len(), 3, "{:?}", report.problems);
        let terms = Terms {
            allow_files: true,
            ..terms
        };
        let report = check(&[file.clone(), file], terms, &|_| None);
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        assert_eq!(report.candidates.len(), 1);
    }
}
