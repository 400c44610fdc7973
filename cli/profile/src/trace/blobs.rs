//! Byte strings that the trace, or a folder beside it, stores once each, under the hash of their
//! content.

use super::beyond_memory;
use super::budget::Budget;
use super::known::{BlockId, KnownBlocks, Pieces};
use super::tables::{TableFolders, TableProblem};
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap};
use stk_format::blob::{Assembly, BlobError};
use stk_format::{BlockError, BlockKind, BlockRef, Scratch};
use stk_schema::event::Event;
use stk_schema::identity::ContentHash;

/// Where the BLOBs of a trace lie. They are decoded on demand.
#[derive(Default, Debug)]
pub struct Blobs {
    known: HashMap<ContentHash, BlobLocation>,
    /// Folders to read the BLOBs from that the trace does not carry.
    folders: TableFolders,
    /// The ids of blocks, by their indexes, where they may be [`KnownBlocks`].
    ids: HashMap<usize, BlockId>,
    /// Bytes that BLOB blocks take in the file.
    pub stored_bytes: u64,
}

#[derive(Default, Debug)]
struct BlobLocation {
    total: u64,
    /// Indexes into the trace's list of blocks, ascending.
    blocks: Vec<usize>,
}

/// Why a BLOB cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobProblem {
    /// No block that can be read holds a piece of it, and no folder of tables has it.
    #[error("table {0} is neither in the trace nor in a folder given with --tables")]
    Missing(ContentHash),
    /// Its pieces do not add up to the whole BLOB.
    #[error(transparent)]
    Bad(#[from] BlobError),
    /// The folder that has it could not be read, or its bytes do not match the hash.
    #[error(transparent)]
    Folder(#[from] TableProblem),
}

/// Where a BLOB lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlobPlace {
    /// In the trace, at least partly.
    Trace,
    /// In a folder of tables.
    Folder,
    /// Neither in the trace nor in a folder.
    Nowhere,
}

impl Blobs {
    /// Finds the BLOBs; each block is one task. Those in `known` are not decompressed.
    pub(super) fn locate(
        trace: &stk_format::Trace<'_>,
        budget: &Budget,
        known: Option<&KnownBlocks>,
        damage: &mut Vec<String>,
    ) -> Blobs {
        let blocks: Vec<(usize, &BlockRef)> = blob_blocks(trace).collect();
        let mut blobs = Blobs::default();
        let mut left_out = 0;
        let threads = rayon::current_num_threads().min(blocks.len().max(1));
        let mut scratches: Vec<Scratch> = (0..threads).map(|_| Scratch::new()).collect();
        // A few blocks at a time, since what they list is kept only as far as the budget allows.
        for some in blocks.chunks(threads) {
            let each = some.par_iter().zip(&mut scratches);
            let found: Vec<BlockBlobs> =
                each.map(|((_, block), scratch)| blobs_of(trace, block, scratch, known)).collect();
            for ((at, block), BlockBlobs { pieces, id, error }) in some.iter().zip(found) {
                blobs.stored_bytes += u64::from(block.header.stored_len);
                damage.extend(error.map(|error| error.to_string()));
                blobs.ids.extend(id.map(|id| (*at, id)));
                for &(hash, total) in pieces.iter() {
                    left_out += u64::from(!blobs.note(hash, total, *at, budget));
                }
            }
        }
        if left_out > 0 {
            damage.push(beyond_memory(left_out, "pieces of tables", budget));
        }
        blobs
    }

    /// Notes that a block holds a piece of a BLOB; `false` if there is no memory for it.
    fn note(&mut self, hash: ContentHash, total: u64, block: usize, budget: &Budget) -> bool {
        let known = self.known.get(&hash).and_then(|location| location.blocks.last());
        if known != Some(&block) && !budget.take(PIECE) {
            return false;
        }
        let location = self.known.entry(hash).or_default();
        location.total = total;
        if location.blocks.last() != Some(&block) {
            location.blocks.push(block);
        }
        true
    }

    /// Reads BLOBs that the trace does not carry from these folders.
    pub fn use_folders(&mut self, folders: TableFolders) {
        self.folders = folders;
    }

    /// Where a BLOB lies. Reads nothing.
    pub fn place_of(&self, hash: ContentHash) -> BlobPlace {
        if self.known.contains_key(&hash) {
            BlobPlace::Trace
        } else if self.folders.len_of(hash).is_some() {
            BlobPlace::Folder
        } else {
            BlobPlace::Nowhere
        }
    }

    /// Length of a BLOB, if any of it is in the trace.
    pub fn len_of(&self, hash: ContentHash) -> Option<u64> {
        self.known.get(&hash).map(|location| location.total)
    }

    /// The blocks of a BLOB, if all of them have ids, which say what its bytes are.
    pub(crate) fn block_ids(&self, hash: ContentHash) -> Option<Vec<BlockId>> {
        self.known.get(&hash)?.blocks.iter().map(|at| self.ids.get(at).copied()).collect()
    }

    /// Number of distinct BLOBs.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Reads BLOBs. Each block that holds a piece is decoded once. BLOBs that the trace does not
    /// carry come from the folders.
    pub fn read(
        &self,
        trace: &stk_format::Trace<'_>,
        wanted: impl IntoIterator<Item = ContentHash>,
    ) -> HashMap<ContentHash, Result<Vec<u8>, BlobProblem>> {
        let mut result = HashMap::new();
        let mut assemblies: HashMap<ContentHash, Assembly> = HashMap::new();
        let mut blocks: BTreeSet<usize> = BTreeSet::new();
        for hash in wanted {
            match self.known.get(&hash) {
                Some(location) => {
                    assemblies.insert(hash, Assembly::new(hash));
                    blocks.extend(&location.blocks);
                }
                None => {
                    result.entry(hash).or_insert_with(|| self.in_folders(hash));
                }
            }
        }
        let mut scratch = Scratch::new();
        let mut contradicted: HashMap<ContentHash, BlobError> = HashMap::new();
        for at in blocks {
            // A block that cannot be read to its end was reported when the trace was opened. The
            // assembly then lacks its pieces.
            let _ = each_event(trace, &trace.blocks()[at], &mut scratch, |event| {
                if let Event::Blob(blob) = event
                    && let Some(assembly) = assemblies.get_mut(&blob.hash)
                    && let Err(error) = assembly.add(blob)
                {
                    contradicted.insert(blob.hash, error);
                }
            });
        }
        for (hash, assembly) in assemblies {
            let bytes = assembly.finish().or_else(|error| match self.folders.read(hash) {
                Some(Ok(bytes)) => Ok(bytes),
                // A contradicting piece matters only if the other pieces do not make the BLOB
                // whole.
                _ => Err(BlobProblem::Bad(contradicted.get(&hash).copied().unwrap_or(error))),
            });
            result.insert(hash, bytes);
        }
        result
    }

    fn in_folders(&self, hash: ContentHash) -> Result<Vec<u8>, BlobProblem> {
        match self.folders.read(hash) {
            Some(read) => Ok(read?),
            None => Err(BlobProblem::Missing(hash)),
        }
    }
}

/// What is in a block.
struct BlockBlobs {
    pieces: Pieces,
    id: Option<BlockId>,
    /// What ended the reading early.
    error: Option<BlockError>,
}

/// Bytes that it costs to keep the location of one piece.
const PIECE: usize = 160;

fn blobs_of(
    trace: &stk_format::Trace<'_>,
    block: &BlockRef,
    scratch: &mut Scratch,
    known: Option<&KnownBlocks>,
) -> BlockBlobs {
    let known = known.and_then(|known| Some((known, known.id(&block.header, trace.stored(block).ok()?))));
    if let Some((known, id)) = known
        && let Some(pieces) = known.get(id)
    {
        return BlockBlobs { pieces, id: Some(id), error: None };
    }
    let mut pieces: Vec<(ContentHash, u64)> = Vec::new();
    let mut others = false;
    let error = each_event(trace, block, scratch, |event| {
        let Event::Blob(blob) = event else {
            others = true;
            return;
        };
        let piece = (blob.hash, blob.total);
        if pieces.last() != Some(&piece) {
            pieces.push(piece);
        }
    });
    let (pieces, error) = (Pieces::from(pieces), error.err());
    // Events with times depend on more than these bytes.
    let known = known.filter(|_| error.is_none() && !others);
    known.iter().for_each(|(known, id)| known.add(*id, &pieces));
    BlockBlobs { pieces, id: known.map(|(_, id)| id), error }
}

fn blob_blocks<'t>(trace: &'t stk_format::Trace<'_>) -> impl Iterator<Item = (usize, &'t BlockRef)> {
    trace.blocks().iter().enumerate().filter(|(_, block)| block.header.kind == BlockKind::Blob)
}

fn each_event(
    trace: &stk_format::Trace<'_>,
    block: &BlockRef,
    scratch: &mut Scratch,
    mut visit: impl FnMut(&Event<'_>),
) -> Result<(), BlockError> {
    for event in trace.events(block, scratch)? {
        visit(&event?);
    }
    Ok(())
}
