//! Damage made to order: for tests of what readers do with it.

use crate::header::BLOCK_HEADER_LEN;
use crate::read::Trace;

/// Where the block with this sequence number lies in `file`, header included.
///
/// # Panics
///
/// If `file` does not open or has no such block.
pub fn extent(file: &[u8], seq: u64) -> std::ops::Range<usize> {
    let trace = Trace::open(file).expect("a trace");
    let block = trace.blocks().iter().find(|block| block.header.seq == seq).expect("a block of the trace");
    let at = block.offset as usize;
    at..at + BLOCK_HEADER_LEN + block.header.stored_len as usize
}

/// Damages the header of a block, so that the block cannot be found.
pub fn lose(file: &mut [u8], seq: u64) {
    let at = extent(file, seq).start;
    file[at + 16] ^= 0xff;
}

/// Damages the payload of a block, so that it is found but cannot be read.
pub fn corrupt(file: &mut [u8], seq: u64) {
    let at = extent(file, seq).start + BLOCK_HEADER_LEN;
    file[at] ^= 0xff;
}

/// Cuts the file within a block, as a kill during a write does.
pub fn cut_within(file: &mut Vec<u8>, seq: u64) {
    let range = extent(file, seq);
    file.truncate(range.start + range.len() / 2);
}
