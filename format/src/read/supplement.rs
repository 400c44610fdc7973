//! A supplement: blocks appended after the recording had ended. A supplement that is not whole is
//! ignored.

use super::place::{block_at, is_tail, stored};
use super::{BlockRef, Scratch, decompress};
use crate::header::{BLOCK_HEADER_LEN, BlockKind, FLAG_SUPPLEMENT, TAIL_LEN};
use std::ops::Range;

/// Whether a trace has a supplement, added after its recording had ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Supplement {
    /// No supplement was added.
    #[default]
    None,
    /// A whole supplement; its blocks are the trace's last ones.
    Whole {
        /// Bytes of the file that it takes.
        range: Range<u64>,
    },
    /// Bytes behind the recording that do not form a whole supplement. They are ignored.
    Torn {
        /// Where they lie.
        range: Range<u64>,
    },
}

/// The blocks of the supplement in `data[at..]`, behind the recording's block number `last`; `None`
/// unless all of it is sound: flagged META, BLOB and INDEX blocks, numbered without a gap, readable
/// payloads, INDEX blocks last, the tail at the end.
pub(super) fn whole(data: &[u8], at: usize, salt: u32, last: Option<u64>) -> Option<Vec<BlockRef>> {
    let mut scratch = Scratch::new();
    let mut blocks: Vec<BlockRef> = Vec::new();
    let mut at = at;
    while let Some(header) = block_at(data, at, salt) {
        let before = blocks.last().map(|block| (block.header.seq, block.header.kind));
        let in_order = match before {
            None => last.is_none_or(|last| header.seq > last),
            Some((seq, BlockKind::Index)) => {
                header.kind == BlockKind::Index && seq.checked_add(1) == Some(header.seq)
            }
            Some((seq, _)) => seq.checked_add(1) == Some(header.seq),
        };
        let kind = matches!(header.kind, BlockKind::Meta | BlockKind::Blob | BlockKind::Index);
        if !in_order || !kind || header.flags & FLAG_SUPPLEMENT == 0 {
            return None;
        }
        decompress(&mut scratch.zstd, &mut scratch.raw, &header, stored(data, at, &header)?).ok()?;
        blocks.push(BlockRef { offset: at as u64, header, metadata_known: false, confirmed_at: None });
        at += BLOCK_HEADER_LEN + header.stored_len as usize;
    }
    let ends = blocks.last()?.header.kind == BlockKind::Index && at + TAIL_LEN == data.len();
    (ends && is_tail(data, at, salt)).then_some(blocks)
}
