//! Images that traces before had.

use crate::trace::{BlockId, ImageRecord, KnownBlocks, Trace};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use stk_schema::event::ImageTable;
use stk_unwind::Arch;

/// Bytes of tables that are kept at most.
const MOST: u64 = 64 << 20;

/// Images of which all facts come from the blocks of traces, for other traces with such blocks.
#[derive(Debug)]
pub struct Shared<I> {
    blocks: Arc<KnownBlocks>,
    images: Mutex<KnownImages<I>>,
}

#[derive(Debug)]
struct KnownImages<I> {
    by_key: HashMap<ImageKey, KnownImage<I>>,
    /// Of their tables.
    bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct KnownImage<I> {
    pub image: I,
    /// Whether its code is among the tables.
    pub code: bool,
}

/// All that the facts about an image come from.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(super) struct ImageKey {
    arch: Arch,
    size: u32,
    tables: Vec<(ImageTable, Vec<BlockId>)>,
}

impl ImageKey {
    /// `None` if the trace does not have all its tables in blocks with ids.
    pub(super) fn of(trace: &Trace<'_>, record: &ImageRecord, arch: Arch) -> Option<ImageKey> {
        let blocks = |table: &ImageTable| Some((*table, trace.blobs.block_ids(table.hash)?));
        let tables = record.tables.iter().map(blocks).collect::<Option<_>>()?;
        Some(ImageKey { arch, size: record.image.size, tables })
    }
}

impl<I> Default for Shared<I> {
    fn default() -> Self {
        let images = Mutex::new(KnownImages { by_key: HashMap::new(), bytes: 0 });
        Shared { blocks: Arc::default(), images }
    }
}

impl<I: Clone> Shared<I> {
    /// For [`TraceFile::knowing`](crate::trace::TraceFile::knowing).
    pub fn blocks(&self) -> Arc<KnownBlocks> {
        self.blocks.clone()
    }

    pub(super) fn get(&self, key: &ImageKey) -> Option<KnownImage<I>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner).by_key.get(key).cloned()
    }

    pub(super) fn add(&self, key: ImageKey, known: KnownImage<I>) {
        let bytes: u64 = key.tables.iter().map(|(table, _)| u64::from(table.len)).sum();
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if images.bytes.saturating_add(bytes) > MOST {
            *images = KnownImages { by_key: HashMap::new(), bytes: 0 };
        }
        if bytes <= MOST && images.by_key.insert(key, known).is_none() {
            images.bytes += bytes;
        }
    }
}
