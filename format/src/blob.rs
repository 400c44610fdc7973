//! BLOBs: byte strings stored once, in pieces, under the hash of their content.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use stk_schema::event::Blob;
use stk_schema::identity::ContentHash;
use stk_schema::limits;
use xxhash_rust::xxh3::xxh3_128;

/// The address of a BLOB: xxh3-128 of its bytes, little-endian.
pub fn content_hash(bytes: &[u8]) -> ContentHash {
    ContentHash(xxh3_128(bytes).to_le_bytes())
}

/// The count of a set of instances and the hash of their ids: what MODULE_STATE says of them. In
/// any order, each once.
pub fn instances_hash(ids: impl IntoIterator<Item = u64>) -> (u64, ContentHash) {
    let mut ids: Vec<u64> = ids.into_iter().collect();
    ids.sort_unstable();
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    (ids.len() as u64, content_hash(&bytes))
}

/// The BLOB events of `bytes`, in order: pieces of at most `piece` bytes (clamped to the format's
/// limit). An empty BLOB is one empty piece. `None` if it is longer than the format allows.
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

/// Why a BLOB could not be assembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// Pieces are missing.
    #[error("BLOB {hash}: {missing} of {total} bytes are not in the trace")]
    Incomplete {
        /// Hash of the BLOB.
        hash: ContentHash,
        /// Bytes that are missing.
        missing: u64,
        /// Length of the BLOB, in bytes.
        total: u64,
    },
    /// The bytes do not have the hash.
    #[error("BLOB {hash}: its bytes do not match its hash")]
    Corrupted {
        /// Hash of the BLOB.
        hash: ContentHash,
    },
    /// A piece of another BLOB, or pieces that contradict each other.
    #[error("BLOB {hash}: its pieces contradict each other")]
    Contradiction {
        /// Hash of the BLOB.
        hash: ContentHash,
    },
}

/// Assembles one BLOB from its pieces, in any order, and verifies it. Memory grows with the bytes
/// received, never with the length that a piece claims.
#[derive(Debug)]
pub struct Assembly {
    hash: ContentHash,
    total: Option<u64>,
    pieces: BTreeMap<u64, Vec<u8>>,
}

impl Assembly {
    /// An assembly for the BLOB with this hash.
    pub fn new(hash: ContentHash) -> Assembly {
        Assembly { hash, total: None, pieces: BTreeMap::new() }
    }

    /// Adds a piece; a piece that was added before is ignored. Pieces may not overlap, so the
    /// stored bytes never exceed the BLOB's length.
    pub fn add(&mut self, piece: &Blob) -> Result<(), BlobError> {
        let total = *self.total.get_or_insert(piece.total);
        let end = piece.offset.checked_add(piece.bytes.len() as u64);
        if piece.hash != self.hash || piece.total != total || end.is_none_or(|end| end > total) {
            return Err(BlobError::Contradiction { hash: self.hash });
        }
        if self.pieces.get(&piece.offset).is_some_and(|bytes| bytes == piece.bytes) {
            return Ok(());
        }
        let before = self.pieces.range(..piece.offset).next_back();
        let after = self.pieces.range(piece.offset..).next();
        if before.is_some_and(|(offset, bytes)| offset + bytes.len() as u64 > piece.offset)
            || after.is_some_and(|(offset, _)| end.is_some_and(|end| end > *offset))
        {
            return Err(BlobError::Contradiction { hash: self.hash });
        }
        if !piece.bytes.is_empty() {
            self.pieces.insert(piece.offset, piece.bytes.to_vec());
        }
        Ok(())
    }

    /// The whole BLOB, verified.
    pub fn finish(self) -> Result<Vec<u8>, BlobError> {
        let Some(total) = self.total else {
            return Err(BlobError::Incomplete { hash: self.hash, missing: 0, total: 0 });
        };
        let missing = total - self.pieces.values().map(|piece| piece.len() as u64).sum::<u64>();
        if missing > 0 {
            return Err(BlobError::Incomplete { hash: self.hash, missing, total });
        }
        let mut pieces = self.pieces.into_values();
        let mut bytes = pieces.next().unwrap_or_default();
        pieces.for_each(|piece| bytes.extend_from_slice(&piece));
        if content_hash(&bytes) != self.hash {
            return Err(BlobError::Corrupted { hash: self.hash });
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assemble(hash: ContentHash, pieces: &[Blob]) -> Result<Vec<u8>, BlobError> {
        let mut assembly = Assembly::new(hash);
        pieces.iter().try_for_each(|piece| assembly.add(piece))?;
        assembly.finish()
    }

    #[test]
    fn the_hash_is_xxh3_128() {
        // The reference implementation's value of the empty input (xxHash, seed 0), byte by byte
        // from the lowest.
        let reference: u128 = 0x99aa_06d3_0147_98d8_6001_c324_468d_497f;
        assert_eq!(content_hash(b"").0, reference.to_le_bytes());
    }

    #[test]
    fn pieces_come_together_in_any_order_and_more_than_once() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let hash = content_hash(&bytes);
        let mut parts: Vec<Blob> = pieces(hash, &bytes, 300).unwrap().collect();
        assert_eq!(parts.iter().map(|part| part.bytes.len()).collect::<Vec<_>>(), [300, 300, 300, 100]);
        parts.reverse();
        parts.push(parts[1]);
        assert_eq!(assemble(hash, &parts), Ok(bytes));
        let none: Vec<Blob> = pieces(content_hash(b""), b"", 300).unwrap().collect();
        assert_eq!((none.len(), assemble(content_hash(b""), &none)), (1, Ok(Vec::new())));
    }

    #[test]
    fn missing_changed_and_contradicting_pieces_give_different_errors() {
        let bytes = [5u8; 100];
        let hash = content_hash(&bytes);
        let parts: Vec<Blob> = pieces(hash, &bytes, 40).unwrap().collect();
        let missing = Err(BlobError::Incomplete { hash, missing: 40, total: 100 });
        assert_eq!(assemble(hash, &[parts[0], parts[2]]), missing);
        let changed = Blob { bytes: &[6; 40], ..parts[1] };
        assert_eq!(assemble(hash, &[parts[0], changed, parts[2]]), Err(BlobError::Corrupted { hash }));
        let contradiction = Err(BlobError::Contradiction { hash });
        assert_eq!(assemble(hash, &[parts[0], Blob { total: 99, ..parts[1] }]), contradiction);
        assert_eq!(
            assemble(hash, &[parts[0], Blob { hash: ContentHash([1; 16]), ..parts[1] }]),
            contradiction
        );
        assert_eq!(assemble(hash, &[parts[0], Blob { offset: 39, ..parts[1] }]), contradiction);
        assert_eq!(assemble(hash, &[parts[1], Blob { offset: 1, ..parts[0] }]), contradiction);
        assert_eq!(assemble(hash, &[Blob { offset: u64::MAX, ..parts[1] }]), contradiction);
    }
}
