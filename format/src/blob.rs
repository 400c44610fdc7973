//! BLOBs: byte strings stored once, in pieces, under the hash of their content.

use alloc::vec::Vec;
use stk_schema::event::Blob;
use stk_schema::identity::ContentHash;
use stk_schema::limits;
use xxhash_rust::xxh3::xxh3_128;

/// The address of a BLOB: xxh3-128 of its bytes, little-endian.
pub fn content_hash(bytes: &[u8]) -> ContentHash {
    ContentHash(xxh3_128(bytes).to_le_bytes())
}

/// The BLOB events of `bytes`, in order: pieces of at most `piece` bytes (clamped to the format's limit). An empty
/// BLOB is one empty piece. `None` if it is longer than the format allows.
pub fn pieces<'a>(
    hash: ContentHash,
    bytes: &'a [u8],
    piece: usize,
) -> Option<impl Iterator<Item = Blob<'a>> + Clone> {
    let total = bytes.len() as u64;
    if total > limits::MAX_BLOB {
        return None;
    }
    let piece = piece.clamp(1, limits::MAX_BLOB_CHUNK);
    let count = bytes.len().div_ceil(piece).max(1);
    Some((0..count).map(move |i| {
        let start = i * piece;
        let end = (start + piece).min(bytes.len());
        Blob { hash, total, offset: start as u64, bytes: &bytes[start..end] }
    }))
}

/// Why a BLOB could not be put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// Pieces are missing.
    #[error("BLOB {hash}: {missing} of {total} bytes are not in the trace")]
    Incomplete {
        /// Its hash.
        hash: ContentHash,
        /// Bytes that are missing.
        missing: u64,
        /// Its length.
        total: u64,
    },
    /// The bytes do not have the hash.
    #[error("BLOB {hash}: its bytes do not match its hash")]
    Corrupted {
        /// Its hash.
        hash: ContentHash,
    },
    /// A piece of another BLOB, or pieces that contradict each other.
    #[error("BLOB {hash}: its pieces contradict each other")]
    Contradiction {
        /// Its hash.
        hash: ContentHash,
    },
}

/// Puts one BLOB together from its pieces, in any order, and verifies it. Memory grows with the bytes received, never
/// with the length that a piece claims.
#[derive(Debug)]
pub struct Assembly {
    hash: ContentHash,
    total: Option<u64>,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Assembly {
    /// An assembly for the BLOB with this hash.
    pub fn new(hash: ContentHash) -> Assembly {
        Assembly { hash, total: None, pieces: Vec::new() }
    }

    /// Takes a piece; pieces that were seen before are ignored.
    pub fn add(&mut self, piece: &Blob) -> Result<(), BlobError> {
        let total = *self.total.get_or_insert(piece.total);
        let end = piece.offset.checked_add(piece.bytes.len() as u64);
        if piece.hash != self.hash || piece.total != total || end.is_none_or(|end| end > total) {
            return Err(BlobError::Contradiction { hash: self.hash });
        }
        match self.pieces.binary_search_by_key(&piece.offset, |(offset, _)| *offset) {
            Ok(at) if piece.bytes.len() > self.pieces[at].1.len() => self.pieces[at].1 = piece.bytes.to_vec(),
            Ok(_) => {}
            Err(at) => self.pieces.insert(at, (piece.offset, piece.bytes.to_vec())),
        }
        Ok(())
    }

    /// The whole BLOB, verified.
    pub fn finish(self) -> Result<Vec<u8>, BlobError> {
        let Some(total) = self.total else {
            return Err(BlobError::Incomplete { hash: self.hash, missing: 0, total: 0 });
        };
        let mut bytes = Vec::new();
        for (offset, piece) in &self.pieces {
            let have = bytes.len() as u64;
            // Pieces may overlap; a hole ends what can be used.
            if *offset > have {
                break;
            }
            if let Some(new) = piece.get((have - offset) as usize..) {
                bytes.extend_from_slice(new);
            }
        }
        let missing = total - bytes.len() as u64;
        if missing > 0 {
            return Err(BlobError::Incomplete { hash: self.hash, missing, total });
        }
        if content_hash(&bytes) != self.hash {
            return Err(BlobError::Corrupted { hash: self.hash });
        }
        Ok(bytes)
    }
}
