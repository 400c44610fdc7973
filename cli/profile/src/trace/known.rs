//! BLOB blocks that traces before had: traces of one program mostly carry the same tables.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use stk_format::BlockHeader;
use stk_schema::identity::ContentHash;
use xxhash_rust::xxh3::Xxh3;

/// Blocks that are kept at most.
const MOST: usize = 1 << 14;

/// The BLOBs of a block, each once with its length.
pub(super) type Pieces = Arc<[(ContentHash, u64)]>;

/// What is in blocks that hold whole events of BLOBs and no others.
#[derive(Debug)]
pub struct KnownBlocks {
    /// Whoever writes a trace does not know it, so no block passes for another.
    seed: u64,
    blocks: Mutex<HashMap<BlockId, Pieces>>,
}

/// A hash of a block's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockId(u128);

impl Default for KnownBlocks {
    fn default() -> Self {
        KnownBlocks { seed: RandomState::new().hash_one(0), blocks: Mutex::default() }
    }
}

impl KnownBlocks {
    /// The id of a block with these stored bytes. Of its header, all counts by which its bytes are
    /// decompressed.
    pub(super) fn id(&self, header: &BlockHeader, stored: &[u8]) -> BlockId {
        let BlockHeader { codec, raw_len, stack_bytes, payload_hash, .. } = *header;
        let mut hash = Xxh3::with_seed(self.seed);
        hash.update(format!("{codec} {raw_len} {stack_bytes} {payload_hash} ").as_bytes());
        hash.update(stored);
        BlockId(hash.digest128())
    }

    pub(super) fn get(&self, id: BlockId) -> Option<Pieces> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(super) fn add(&self, id: BlockId, pieces: &Pieces) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.len() >= MOST {
            blocks.clear();
        }
        blocks.insert(id, pieces.clone());
    }
}
