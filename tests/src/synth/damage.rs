//! Damages traces in given ways, to test readers.

use stk_format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, CODEC_ZSTD, FileHeader, Trace};
use stk_schema::Ticks;
use xxhash_rust::xxh3::xxh3_64;

/// A file of `header` and one SAMPLES block of any event bytes, as an attacker would make it: the
/// checksums are right and the contents wrong. `stored` replaces the compressed bytes; `forge`
/// changes the block's header before it is checksummed.
pub fn forged(
    header: &FileHeader,
    raw: &[u8],
    stored: Option<&[u8]>,
    forge: impl Fn(&mut BlockHeader),
) -> Vec<u8> {
    let compressed = compressed(raw);
    let stored = stored.unwrap_or(&compressed);
    let mut block = BlockHeader {
        salt: header.salt(),
        seq: 0,
        stored_len: stored.len() as u32,
        raw_len: raw.len() as u32,
        first: Ticks::ZERO,
        last: Ticks::ZERO,
        kind: BlockKind::Samples,
        codec: CODEC_ZSTD,
        flags: 0,
        events: 1,
        dropped: 0,
        last_meta: u64::MAX,
        ordinal: 0,
        samples: 1,
        stack_bytes: 0,
        payload_hash: xxh3_64(stored),
    };
    forge(&mut block);
    let mut file = header.encode().to_vec();
    file.extend_from_slice(&block.encode());
    file.extend_from_slice(stored);
    file
}

/// `raw` as a block stores it.
pub(super) fn compressed(raw: &[u8]) -> Vec<u8> {
    let mut out = vec![0; zstd_safe::compress_bound(raw.len())];
    let len = zstd_safe::compress(&mut out[..], raw, 1).expect("room for what was requested");
    out.truncate(len);
    out
}

/// Where the block with this sequence number is in `file`, header included.
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
