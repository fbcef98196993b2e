//! The members' write-intent bitmaps, read when an array starts (`keeper/bitmap` writes them while it runs).
//!
//! What every member says is taken together: after a crash one may lack what another has. Costs one read of header and bits
//! on each member, usually at most 128 KiB.

use raid_core::assemble::AssembledArray;
use raid_core::bitmap::{self, HEADER_BYTES, Header, Map};
use raid_core::path::intent_manager::IntentManager;
use raid_core::path::layout::Layout;
use raid_core::superblock::feature;
use raid_core::units::{PAGE_SECTORS, SECTOR_BYTES};

use crate::array_api::{MemberDevice, StartError};
use crate::device::aligned;

/// Bytes of a block of the bitmap, where it lies so that this is possible.
const BLOCK: u32 = 4096;

/// The bitmap of an array that is about to start; none if it has none.
///
/// # Errors
/// No member has a bitmap that can be used, or one lies where this device cannot write it.
pub fn load(
    verdict: &AssembledArray,
    members: &[MemberDevice],
    layout: &Layout,
) -> Result<Option<IntentManager>, StartError> {
    let filling = |m: &MemberDevice| {
        verdict
            .filling
            .iter()
            .any(|(slot, _)| m.slot == Some(*slot))
    };
    let present = || {
        let with_slot = members.iter().filter(|m| m.slot.is_some());
        with_slot.filter(|m| !filling(m))
    };
    if !layout.parity || !present().any(|m| m.superblock.has(feature::BITMAP)) {
        return Ok(None);
    }
    let mut block = BLOCK;
    let mut fresh: Option<(Header, Map)> = None;
    let mut stale: Option<(Header, String)> = None;
    let mut trouble = None;
    for member in present() {
        let (header, place, map) = match read(member) {
            Ok(found) => found,
            Err(why) => {
                trouble = Some(format!("{}: {why}", member.path.display()));
                continue;
            }
        };
        if !place.sectors.is_multiple_of(PAGE_SECTORS) {
            block = 512;
        }
        let unit = u64::from(block.min(member.logical_block));
        if !(place.sector * SECTOR_BYTES).is_multiple_of(u64::from(member.logical_block))
            || unit < u64::from(member.logical_block)
        {
            return Err(StartError::Unsupported(format!(
                "the bitmap on {} does not begin at a block of the device; take it away with mdadm --grow --bitmap=none",
                member.path.display()
            )));
        }
        match (header.stale(verdict.events), &mut fresh) {
            (Some(why), _) => stale = Some((header, why.to_string())),
            (None, None) => fresh = Some((header, map)),
            (None, Some((first, all))) if first.chunk_bytes == header.chunk_bytes => {
                for range in map.dirty() {
                    all.mark(range);
                }
                first.events = first.events.max(header.events);
                first.events_cleared = first.events_cleared.max(header.events_cleared);
            }
            (None, Some(_)) => {
                return Err(unusable(
                    "the members' bitmaps have chunks of different sizes",
                ));
            }
        }
    }
    let (header, map) = match (fresh, stale, trouble) {
        (Some((header, map)), ..) => (header, map),
        (None, Some((header, why)), _) => {
            tracing::warn!(array = %verdict.name, "{why}: every chunk counts as dirty");
            let map = Map::all_dirty(&header).map_err(|e| unusable(&e.to_string()))?;
            (header, map)
        }
        (None, None, why) => return Err(unusable(&why.unwrap_or_default())),
    };
    let (dirty, chunks) = (map.count(), map.chunks());
    tracing::info!(array = %verdict.name, chunk_bytes = header.chunk_bytes, chunks, dirty, clean = verdict.clean, "write-intent bitmap");
    let resync = verdict.resync_offset;
    Ok(Some(IntentManager::new(
        header, map, layout, resync, block, 0,
    )))
}

fn unusable(why: &str) -> StartError {
    StartError::Unsupported(format!(
        "the write-intent bitmap cannot be used: {why}; take it away with mdadm --assemble --update=no-bitmap"
    ))
}

fn read(member: &MemberDevice) -> Result<(Header, bitmap::Extent, Map), String> {
    let block = &member.superblock;
    let sector = block.bitmap_sector().ok_or("it has no bitmap")?;
    let at = sector * SECTOR_BYTES;
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let head = aligned::read(&member.file, at, HEADER_BYTES).map_err(|e| text(&e))?;
    let header = Header::decode(&head).map_err(|e| text(&e))?;
    let place = bitmap::locate(block, &header).map_err(|e| text(&e))?;
    let area = aligned::read(&member.file, at, header.bytes() as usize).map_err(|e| text(&e))?;
    let map = Map::decode(&header, &area).map_err(|e| text(&e))?;
    Ok((header, place, map))
}
