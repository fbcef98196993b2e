//! `raidctl examine`: decodes what is on devices or image files, without a daemon and without holding them. Whatever
//! bytes there are, it ends with a sentence.

use std::path::{Path, PathBuf};

use raid_core::geometry::{Level, layout_name};
use raid_core::superblock::{SlotRole, Superblock, decode_bad_blocks, feature, uuid_text};
use raid_core::units::SECTOR_BYTES;
use serde::Serialize;

use super::exit::{self, Failure};
use super::show;
use crate::device::aligned;
use crate::device::open::look;
use crate::discover::{Located, candidate, locate};
use crate::signature::signatures;
use crate::units::Bytes;

/// Everything about one member, in the shape of the JSON output.
#[derive(Debug, Serialize)]
struct Examined {
    path: PathBuf,
    /// `member`, `unsupported`, `damaged`, `other`, `empty` or `unreadable`.
    kind: &'static str,
    /// What it is and, where something is to be done, what.
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    superblock: Option<View>,
    /// Other things found on the device.
    signatures: Vec<String>,
}

/// A superblock for people and programs.
#[derive(Debug, Serialize)]
struct View {
    metadata: &'static str,
    name: String,
    uuid: String,
    device_uuid: String,
    level: i32,
    layout: String,
    chunk_bytes: u64,
    members: u32,
    /// Used bytes per member; 0 for RAID 0.
    member_bytes: u64,
    data_offset_bytes: u64,
    data_bytes: u64,
    slot: Option<u16>,
    role: String,
    dev_number: u32,
    events: u64,
    clean: bool,
    /// Bytes of each member in sync; null when clean.
    resync_offset_bytes: Option<u64>,
    /// Bytes of this member that a rebuild has filled; null where none is under way.
    recovery_offset_bytes: Option<u64>,
    created: u64,
    updated: u64,
    features: Vec<String>,
    logical_block_size: u32,
    bad_blocks: usize,
    /// One letter per slot as mdadm shows it: A active, `.` missing, R replacement.
    array_state: String,
}

/// Examines all of them; the exit status is 0 only if each is a member that can be used.
pub fn run(paths: &[PathBuf], json: bool) -> exit::Outcome {
    let examined: Vec<Examined> = paths.iter().map(|path| examine(path)).collect();
    if json {
        show::json(&serde_json::json!({ "members": examined }));
    } else {
        for one in &examined {
            print(one);
        }
    }
    let good = examined.iter().filter(|e| e.kind == "member").count();
    if good == examined.len() {
        return Ok(exit::DONE);
    }
    if json {
        return Ok(exit::FAILED);
    }
    let message = format!(
        "{} of {} devices are no usable members",
        examined.len() - good,
        examined.len()
    );
    Err(Failure::new(exit::FAILED, "not_members", message))
}

fn examine(path: &Path) -> Examined {
    let unreadable = |summary: String| Examined {
        path: path.into(),
        kind: "unreadable",
        summary,
        superblock: None,
        signatures: Vec::new(),
    };
    let file = match look(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            return unreadable("permission denied; run raidctl as root".into());
        }
        Err(e) => return unreadable(format!("it cannot be opened: {e}")),
    };
    // The end of a block device or a file; other things (terminals, folders) have none or fail to read.
    let size = match std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0)) {
        Ok(bytes) => bytes / SECTOR_BYTES,
        Err(e) => return unreadable(format!("it has no size: {e}")),
    };
    let found = match locate(&file, size) {
        Ok(found) => found,
        Err(e) => return unreadable(format!("it cannot be read: {e}")),
    };
    let others = signatures(&file, size).unwrap_or_default();
    let others = others
        .into_iter()
        .filter(|s| !s.is_md)
        .map(|s| match s.advice {
            "" => s.what,
            advice => format!("{}; {advice}", s.what),
        });
    judge(path, &file, size, found, others.collect())
}

fn judge(
    path: &Path,
    file: &std::fs::File,
    size: u64,
    found: Vec<Located>,
    signatures: Vec<String>,
) -> Examined {
    let path = path.to_path_buf();
    let damage = found
        .iter()
        .find_map(|l| l.block.as_ref().err().map(|e| (l.placement, e.to_string())));
    let Some(superblock) = found.into_iter().find_map(|l| l.block.ok()) else {
        let (kind, summary) = match damage {
            Some((placement, error)) => (
                "damaged",
                format!("MD superblock {}: {error}", placement.version()),
            ),
            None if signatures.is_empty() => (
                "empty",
                "no MD superblock and nothing else that is known".into(),
            ),
            None => (
                "other",
                format!(
                    "no MD superblock of version 1; it carries {}",
                    signatures.join(" and ")
                ),
            ),
        };
        return Examined {
            path,
            kind,
            summary,
            superblock: None,
            signatures,
        };
    };
    let bad_blocks = bad_blocks(file, &superblock);
    let (kind, summary) = verdict(file, size, &superblock);
    Examined {
        path,
        kind,
        summary,
        superblock: Some(view(&superblock, bad_blocks)),
        signatures,
    }
}

/// Whether this member, taken for itself, is one that assemble accepts; the core has the sentences.
fn verdict(file: &std::fs::File, size: u64, block: &Superblock) -> (&'static str, String) {
    let name = if block.short_name().is_empty() {
        "(no name)"
    } else {
        block.short_name()
    };
    let what = match block.slot() {
        SlotRole::Slot(slot) => format!("slot {slot} of the raid{} array {name}", block.level),
        SlotRole::Spare => format!("a spare of the raid{} array {name}", block.level),
        SlotRole::Faulty => format!("a failed member of the raid{} array {name}", block.level),
        SlotRole::Journal => format!("the journal of the raid{} array {name}", block.level),
    };
    match crate::discover::refusal_of_one(candidate(file, size, block.clone())) {
        None => ("member", what),
        Some(refusal) => ("unsupported", format!("{what}; {refusal}")),
    }
}

fn bad_blocks(file: &std::fs::File, block: &Superblock) -> usize {
    if !block.has(feature::BAD_BLOCKS) {
        return 0;
    }
    let log = block.bad_block_log().and_then(|(sector, sectors)| {
        let offset = sector.checked_mul(SECTOR_BYTES)?;
        aligned::read(
            file,
            offset,
            usize::from(sectors.min(8)) * SECTOR_BYTES as usize,
        )
        .ok()
    });
    log.map_or(0, |log| decode_bad_blocks(&log, block.bblog_shift).len())
}

fn view(b: &Superblock, bad_blocks: usize) -> View {
    let slot = match b.slot() {
        SlotRole::Slot(slot) => Some(slot),
        _ => None,
    };
    let layout = Level::from_md(b.level).and_then(|l| layout_name(l, b.layout));
    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
    View {
        metadata: b.placement().version(),
        name: b.name.clone(),
        uuid: uuid_text(&b.uuid),
        device_uuid: uuid_text(&b.device_uuid),
        level: b.level,
        layout: layout.map_or_else(|| b.layout.to_string(), str::to_string),
        chunk_bytes: bytes(u64::from(b.chunk_sectors)),
        members: b.raid_disks,
        member_bytes: bytes(b.size),
        data_offset_bytes: bytes(b.data_offset),
        data_bytes: bytes(b.data_size),
        slot,
        role: match b.slot() {
            SlotRole::Slot(slot) => format!("active, slot {slot}"),
            SlotRole::Spare => "spare".into(),
            SlotRole::Faulty => "faulty".into(),
            SlotRole::Journal => "journal".into(),
        },
        dev_number: b.dev_number,
        events: b.events,
        clean: b.is_clean(),
        resync_offset_bytes: (!b.is_clean()).then(|| bytes(b.resync_offset)),
        recovery_offset_bytes: b
            .has(feature::RECOVERY_OFFSET)
            .then(|| bytes(b.recovery_offset)),
        created: b.ctime & 0xff_ffff_ffff,
        updated: b.utime & 0xff_ffff_ffff,
        features: feature::names(b.feature_map),
        logical_block_size: b.logical_block_size,
        bad_blocks,
        array_state: array_state(b),
    }
}

fn array_state(b: &Superblock) -> String {
    let slots = b
        .raid_disks
        .min(u32::from(raid_core::geometry::MAX_MEMBERS)) as u16;
    (0..slots)
        .map(|slot| {
            let holders = b
                .roles
                .iter()
                .filter(|r| SlotRole::from_raw(**r) == SlotRole::Slot(slot))
                .count();
            match holders {
                0 => '.',
                1 => 'A',
                _ => 'R',
            }
        })
        .collect()
}

fn role(v: &View) -> String {
    let filled = v.recovery_offset_bytes.map_or(String::new(), |done| {
        format!(", rebuilt up to {}", Bytes(done))
    });
    format!("{} (device number {}){filled}", v.role, v.dev_number)
}

fn print(one: &Examined) {
    show::line(format_args!("{}: {}", one.path.display(), one.summary));
    for other in one.signatures.iter().filter(|_| one.superblock.is_some()) {
        show::line(format_args!("  it also carries {other}"));
    }
    let Some(v) = &one.superblock else { return };
    let state = match v.resync_offset_bytes {
        None => "clean".to_string(),
        Some(0) => "active, parity not in sync".to_string(),
        Some(done) => format!(
            "active, parity in sync up to {} of each member",
            Bytes(done)
        ),
    };
    let rows = [
        ("Metadata", v.metadata.to_string()),
        ("Name", v.name.clone()),
        ("Array UUID", v.uuid.clone()),
        ("Device UUID", v.device_uuid.clone()),
        (
            "Level",
            format!(
                "raid{}, {} members, chunk {}, {}",
                v.level,
                v.members,
                Bytes(v.chunk_bytes),
                v.layout
            ),
        ),
        (
            "Data",
            format!(
                "{} from {}",
                Bytes(v.data_bytes),
                Bytes(v.data_offset_bytes)
            ),
        ),
        ("Role", role(v)),
        ("State", format!("{state}, events {}", v.events)),
        (
            "Features",
            if v.features.is_empty() {
                "none".into()
            } else {
                v.features.join(" ")
            },
        ),
        ("Array state", v.array_state.clone()),
    ];
    for (key, value) in rows {
        show::line(format_args!("{key:>14} : {value}"));
    }
    if v.bad_blocks > 0 {
        show::line(format_args!(
            "{:>14} : {} ranges",
            "Bad blocks", v.bad_blocks
        ));
    }
    if v.logical_block_size != 0 {
        show::line(format_args!(
            "{:>14} : {} bytes (kernel 6.19 or newer)",
            "Logical block", v.logical_block_size
        ));
    }
}
