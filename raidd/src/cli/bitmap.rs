//! `raidctl examine --bitmap`: the write-intent bitmap of members, without a daemon and without holding them: what
//! `mdadm --examine-bitmap` shows, and whether it can be believed. Reads the superblock and the whole bitmap, usually
//! at most 128 KiB.

use std::fs::File;
use std::path::{Path, PathBuf};

use raid_core::bitmap::{self, HEADER_BYTES, Header, Map, VERSION, state};
use raid_core::superblock::{Superblock, uuid_text};
use raid_core::units::SECTOR_BYTES;
use serde::Serialize;

use super::exit::{self, Failure};
use super::show;
use crate::device::aligned;
use crate::device::open::look;
use crate::discover::{best, locate};
use crate::units::Bytes;

/// One member's bitmap, in the shape of the JSON output.
#[derive(Debug, Serialize)]
struct Examined {
    path: PathBuf,
    /// `bitmap`, `none`, `damaged` or `unreadable`; `none` also for what is no member.
    kind: &'static str,
    /// What was found, or why nothing can be shown.
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bitmap: Option<View>,
}

/// A bitmap for people and programs.
#[derive(Debug, Serialize)]
struct View {
    version: u32,
    uuid: String,
    events: u64,
    events_cleared: u64,
    /// Of the same member's superblock.
    superblock_events: u64,
    /// `ok`, `out-of-date` or `write-error`.
    state: &'static str,
    /// Why all chunks count as dirty whatever the bits say; null when they are to be believed.
    stale: Option<String>,
    chunk_bytes: u64,
    flush_seconds: u32,
    write_behind: u32,
    /// Bytes of each member that it covers.
    sync_bytes: u64,
    /// Where it lies on the member, and how long it is there.
    offset_bytes: u64,
    bytes: u64,
    chunks: u64,
    /// Bits that are set.
    dirty: u64,
    /// Bytes of each member under them.
    dirty_bytes: u64,
}

/// Shows the bitmaps of all of them; the exit status is 0 only if each has one that can be read.
pub fn run(paths: &[PathBuf], json: bool) -> exit::Outcome {
    let examined: Vec<Examined> = paths.iter().map(|path| examine(path)).collect();
    if json {
        show::json(&serde_json::json!({ "bitmaps": examined }));
    } else {
        for one in &examined {
            print(one);
        }
    }
    let good = examined.iter().filter(|e| e.bitmap.is_some()).count();
    if good == examined.len() {
        return Ok(exit::DONE);
    }
    if json {
        return Ok(exit::FAILED);
    }
    let message = format!(
        "{} of {} devices have no bitmap that can be shown",
        examined.len() - good,
        examined.len()
    );
    Err(Failure::new(exit::FAILED, "no_bitmap", message))
}

fn examine(path: &Path) -> Examined {
    match read(path) {
        Ok((summary, view)) => Examined {
            path: path.into(),
            kind: "bitmap",
            summary,
            bitmap: Some(view),
        },
        Err((kind, summary)) => Examined {
            path: path.into(),
            kind,
            summary,
            bitmap: None,
        },
    }
}

/// The summary and the bitmap of one device, or kind and summary of what stands in the way.
fn read(path: &Path) -> Result<(String, View), (&'static str, String)> {
    let unreadable = |e: std::io::Error| ("unreadable", format!("it cannot be read: {e}"));
    let damaged = |e: &dyn std::fmt::Display| ("damaged", e.to_string());
    let file = look(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => (
            "unreadable",
            "permission denied; run raidctl as root".to_string(),
        ),
        _ => ("unreadable", format!("it cannot be opened: {e}")),
    })?;
    let size = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0)).map_err(unreadable)?;
    let found = locate(&file, size / SECTOR_BYTES).map_err(unreadable)?;
    let damage = found.iter().find_map(|l| l.block.as_ref().err().cloned());
    let superblock = match (best(found), damage) {
        (Some(superblock), _) => superblock,
        (None, Some(error)) => return Err(damaged(&error)),
        (None, None) => return Err(("none", "no MD superblock of version 1".into())),
    };
    let Some(sector) = superblock.bitmap_sector() else {
        return Err(("none", "the array has no bitmap".into()));
    };
    let offset = sector
        .checked_mul(SECTOR_BYTES)
        .filter(|offset| *offset < size)
        .ok_or_else(|| damaged(&"the superblock puts the bitmap outside the device"))?;
    let header = aligned::read(&file, offset, HEADER_BYTES).map_err(unreadable)?;
    let header = Header::decode(&header).map_err(|e| damaged(&e))?;
    let place = bitmap::locate(&superblock, &header).map_err(|e| damaged(&e))?;
    let map = bits(&file, offset, size, &header)?;
    let view = view(&superblock, &header, place, &map);
    let summary = match &view.stale {
        Some(why) => format!("{why}: every chunk counts as dirty"),
        None => format!("{} of {} chunks are dirty", view.dirty, view.chunks),
    };
    Ok((summary, view))
}

fn bits(
    file: &File,
    offset: u64,
    size: u64,
    header: &Header,
) -> Result<Map, (&'static str, String)> {
    // Never more than the device has: a damaged header must not make us ask for memory.
    let length = header.bytes().min(size - offset) as usize;
    let area = aligned::read(file, offset, length)
        .map_err(|e| ("unreadable", format!("its bitmap cannot be read: {e}")))?;
    Map::decode(header, &area).map_err(|e| ("damaged", e.to_string()))
}

fn view(superblock: &Superblock, header: &Header, place: bitmap::Extent, map: &Map) -> View {
    let dirty: u64 = map.dirty().map(|range| range.end - range.start).sum();
    View {
        version: VERSION,
        uuid: uuid_text(&header.uuid),
        events: header.events,
        events_cleared: header.events_cleared,
        superblock_events: superblock.events,
        state: match header.state {
            0 => "ok",
            s if s & state::STALE != 0 => "out-of-date",
            _ => "write-error",
        },
        stale: header.stale(superblock.events).map(|why| why.to_string()),
        chunk_bytes: header.chunk_bytes.into(),
        flush_seconds: header.daemon_sleep,
        write_behind: header.write_behind,
        sync_bytes: header.sync_size.saturating_mul(SECTOR_BYTES),
        offset_bytes: place.sector.saturating_mul(SECTOR_BYTES),
        bytes: place.sectors.saturating_mul(SECTOR_BYTES),
        chunks: map.chunks(),
        dirty: map.count(),
        dirty_bytes: dirty.saturating_mul(SECTOR_BYTES),
    }
}

fn print(one: &Examined) {
    show::line(format_args!("{}: {}", one.path.display(), one.summary));
    let Some(v) = &one.bitmap else { return };
    let percent = 100.0 * v.dirty as f64 / v.chunks as f64;
    let rows = [
        ("Version", v.version.to_string()),
        ("Array UUID", v.uuid.clone()),
        (
            "Events",
            format!("{} (superblock {})", v.events, v.superblock_events),
        ),
        ("Events cleared", v.events_cleared.to_string()),
        ("State", v.state.to_string()),
        ("Chunk", Bytes(v.chunk_bytes).to_string()),
        ("Flush period", format!("{} s", v.flush_seconds)),
        (
            "Write mode",
            match v.write_behind {
                0 => "normal".into(),
                writes => format!("write behind, at most {writes}"),
            },
        ),
        ("Covers", format!("{} of each member", Bytes(v.sync_bytes))),
        (
            "Place",
            format!("{} from {}", Bytes(v.bytes), Bytes(v.offset_bytes)),
        ),
        (
            "Chunks",
            format!(
                "{}, {} dirty ({percent:.1}%), {} of each member",
                v.chunks,
                v.dirty,
                Bytes(v.dirty_bytes)
            ),
        ),
    ];
    for (key, value) in rows {
        show::line(format_args!("{key:>14} : {value}"));
    }
}
