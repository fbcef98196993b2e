//! Which member is wrong, sector by sector: what a scrub asks for where it has met a difference. Done at once and on the CPU; it
//! costs about what a check of the same bytes costs, and is rare.

use parity_kernels::{Arena, BufRange, Engine, Wrong as Found};
use raid_core::path::types::{BufSlice, SECTOR, Wrong};

use super::work::range;

/// Tells each run of sectors that differ in the same way: first, first after, and who is wrong.
pub(super) fn sectors(
    arena: &Arena,
    srcs: &[(BufSlice, u8)],
    p: Option<BufSlice>,
    q: Option<BufSlice>,
    mut tell: impl FnMut(u32, u32, Wrong),
) {
    let mut data = [(BufRange::default(), 0u8); 256];
    for (range_of, (slice, exp)) in data.iter_mut().zip(srcs) {
        *range_of = (range(slice), *exp);
    }
    let mut run: Option<(u32, u32, Wrong)> = None;
    let mut each = |place: &parity_kernels::Place| {
        let at = place.off as u32 / SECTOR;
        let wrong = match place.wrong {
            Found::Data { index, .. } => Wrong::Data(index as u16),
            Found::P => Wrong::P,
            Found::Q => Wrong::Q,
            Found::Unknown => Wrong::Unknown,
        };
        match &mut run {
            Some((_, end, same)) if *end == at && *same == wrong => *end = at + 1,
            other => {
                if let Some((lo, hi, wrong)) = other.replace((at, at + 1, wrong)) {
                    tell(lo, hi, wrong);
                }
            }
        }
    };
    arena.locate(
        &Engine::detect(),
        &data[..srcs.len()],
        p.as_ref().map(range),
        q.as_ref().map(range),
        SECTOR as usize,
        &mut each,
    );
    if let Some((lo, hi, wrong)) = run {
        tell(lo, hi, wrong);
    }
}
