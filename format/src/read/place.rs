//! What a file has at an offset.

use crate::header::{BLOCK_HEADER_LEN, BlockHeader, TAIL_LEN, Tail};

/// The block at `at`, if its header is sound and its payload lies within the file.
pub(super) fn block_at(data: &[u8], at: usize, salt: u32) -> Option<BlockHeader> {
    let header = BlockHeader::decode_of(data.get(at..)?, salt)?;
    stored(data, at, &header).is_some().then_some(header)
}

/// The stored payload behind the header at `at`.
pub(super) fn stored<'a>(data: &'a [u8], at: usize, header: &BlockHeader) -> Option<&'a [u8]> {
    let start = at.checked_add(BLOCK_HEADER_LEN)?;
    data.get(start..start.checked_add(header.stored_len as usize)?)
}

/// Whether a tail lies at `at`.
pub(super) fn is_tail(data: &[u8], at: usize, salt: u32) -> bool {
    let bytes = data.get(at..).and_then(|rest| rest.get(..TAIL_LEN)).unwrap_or(&[]);
    Tail::decode(bytes).is_ok_and(|tail| tail.salt == salt)
}
