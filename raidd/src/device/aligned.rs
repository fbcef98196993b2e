//! Reads and writes of whole 4 KiB blocks for files opened with `O_DIRECT`, which wants aligned memory, offsets and
//! lengths. Allocates per call: for superblocks and signatures only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Alignment of memory, offset and length; the largest logical block we meet.
pub const BLOCK: usize = 4096;

/// A zeroed buffer whose usable part begins at a multiple of [`BLOCK`].
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Aligned { bytes, start, len }
    }
    fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Reads `len` bytes at `offset`, any alignment; stops at the end of the file, so the result may be shorter.
pub fn read(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let first = offset / BLOCK as u64 * BLOCK as u64;
    let skip = (offset - first) as usize;
    let mut buffer = Aligned::new((skip + len).next_multiple_of(BLOCK));
    let mut have = 0;
    while have < buffer.len {
        match file.read_at(&mut buffer.get_mut()[have..], first + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        // A short read of an odd length is the end of the file; going on would misalign the next one.
        if !have.is_multiple_of(512) {
            break;
        }
    }
    let end = have.min(skip + len);
    Ok(buffer.get()[skip.min(end)..end].to_vec())
}

/// Writes `data` at `offset`, both multiples of the logical block size.
pub fn write(file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
    let mut buffer = Aligned::new(data.len());
    buffer.get_mut().copy_from_slice(data);
    file.write_all_at(buffer.get(), offset)
}

/// Overwrites `range` with zeroes, widened to whole blocks of `block` bytes whose other bytes are kept.
pub fn zero(file: &File, offset: u64, len: u64, block: u32) -> io::Result<()> {
    let block = u64::from(block);
    let mut at = offset / block * block;
    let end = (offset + len).next_multiple_of(block);
    while at < end {
        let piece = (end - at).min(1 << 20);
        let mut data = read(file, at, piece as usize)?;
        if data.is_empty() {
            return Ok(());
        }
        let piece_end = at + data.len() as u64;
        let from = offset.max(at) - at;
        let to = (offset + len).min(piece_end).saturating_sub(at);
        data[from as usize..to as usize].fill(0);
        // The end of a device that is no multiple of the block cannot be written with O_DIRECT, nor does it hold data.
        data.truncate(data.len() / block as usize * block as usize);
        write(file, at, &data)?;
        at = piece_end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_across_blocks_and_the_end() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        assert_eq!(read(&file, 4000, 200).unwrap(), bytes[4000..4200]);
        assert_eq!(read(&file, 9_990, 100).unwrap(), bytes[9_990..]);
        assert!(read(&file, 20_000, 100).unwrap().is_empty());
    }

    #[test]
    fn zero_keeps_the_neighbours() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 16384], 0).unwrap();
        zero(&file, 4100, 1000, 512).unwrap();
        let mut after = vec![0; 16384];
        file.read_exact_at(&mut after, 0).unwrap();
        for (at, byte) in after.iter().enumerate() {
            assert_eq!(
                *byte,
                if (4100..5100).contains(&at) { 0 } else { 7 },
                "{at}"
            );
        }
    }
}
