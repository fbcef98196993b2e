//! Bits of `feature_map` and their names. Owns the list of known features; costs nothing.

pub const BITMAP: u32 = 0x1;
pub const RECOVERY_OFFSET: u32 = 0x2;
pub const RESHAPE: u32 = 0x4;
pub const BAD_BLOCKS: u32 = 0x8;
pub const REPLACEMENT: u32 = 0x10;
pub const RESHAPE_BACKWARDS: u32 = 0x20;
pub const NEW_OFFSET: u32 = 0x40;
pub const RECOVERY_BITMAP: u32 = 0x80;
pub const CLUSTERED: u32 = 0x100;
pub const JOURNAL: u32 = 0x200;
pub const PPL: u32 = 0x400;
pub const MULTIPLE_PPLS: u32 = 0x800;
pub const RAID0_LAYOUT: u32 = 0x1000;
/// All bits with a meaning.
pub const KNOWN: u32 = 0x1fff;

const NAMES: [&str; 13] = [
    "bitmap",
    "recovery-offset",
    "reshape",
    "bad-blocks",
    "replacement",
    "reshape-backwards",
    "new-offset",
    "recovery-bitmap",
    "clustered",
    "journal",
    "ppl",
    "multiple-ppls",
    "raid0-layout",
];

/// The names of the bits that are set, unknown ones as hexadecimal.
pub fn names(map: u32) -> Vec<String> {
    (0..32)
        .filter(|bit| map >> bit & 1 == 1)
        .map(|bit| match NAMES.get(bit as usize) {
            Some(name) => name.to_string(),
            None => format!("{:#x}", 1u32 << bit),
        })
        .collect()
}
