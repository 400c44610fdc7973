//! Makes a supplement after the recording has ended: SPEC.md, section 11.

use crate::block::{BlockBuffer, EncodeError};
use crate::compressor::SealError;
use crate::header::{BlockKind, FileHeader};
use crate::read::{Supplement, Trace};
use crate::seal::{Sealer, sealed_bound};
use stk_schema::Ticks;
use stk_schema::event::Event;
use stk_schema::limits;

/// Why a supplement cannot be added to a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSupplement {
    /// The trace has one already.
    #[error("the trace has a supplement already")]
    Present,
    /// The trace is damaged, and damaged traces are not changed.
    #[error("the trace is damaged")]
    Damaged,
    /// The trace holds no blocks to add to.
    #[error("the trace has no whole block")]
    Empty,
    /// No memory, or the compressor failed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// An event breaks a limit of the format.
    #[error(transparent)]
    Event(#[from] EncodeError),
}

/// The change to make to the file: cut it at `keep` bytes, then append `bytes`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addition {
    /// Length of the recording: whole blocks, and its tail if it has one. Bytes behind it are torn.
    pub keep: u64,
    /// The supplement.
    pub bytes: Vec<u8>,
}

/// Collects the blocks of a supplement in memory.
pub struct SupplementWriter {
    header: FileHeader,
    sealer: Sealer,
    block: BlockBuffer,
    time: Ticks,
    keep: u64,
    bytes: Vec<u8>,
    sealed: Vec<u8>,
}

impl SupplementWriter {
    /// A supplement for `trace`, which may be cut off but not damaged otherwise.
    ///
    /// # Errors
    ///
    /// When it has a whole supplement, is damaged, or holds nothing.
    pub fn new(trace: &Trace<'_>) -> Result<SupplementWriter, NoSupplement> {
        if matches!(trace.supplement(), Supplement::Whole { .. }) {
            return Err(NoSupplement::Present);
        }
        if !trace.damage().is_empty() {
            return Err(NoSupplement::Damaged);
        }
        let time = trace.blocks().iter().map(|block| block.header.last).max().ok_or(NoSupplement::Empty)?;
        let (header, keep) = (*trace.header(), trace.recorded_len());
        let blocks = trace.blocks().iter().map(|block| (block.offset, block.header));
        let mut block = BlockBuffer::new(2 * limits::CUT_RAW, &header)
            .map_err(|_| NoSupplement::Seal(SealError::NoMemory))?;
        block.start(BlockKind::Meta, None, time);
        let sealer = Sealer::resume(&header, blocks, keep)?;
        let sealed = vec![0; sealed_bound(2 * limits::CUT_RAW)];
        Ok(SupplementWriter { header, sealer, block, time, keep, bytes: Vec::new(), sealed })
    }

    /// Appends an event to blocks of `kind` (META or BLOB).
    ///
    /// # Errors
    ///
    /// When the event breaks a limit of the format.
    pub fn event(&mut self, kind: BlockKind, event: &Event<'_>) -> Result<(), NoSupplement> {
        if kind != self.block.kind() {
            self.cut(kind)?;
        }
        if self.block.push(event) == Err(EncodeError::BlockFull) {
            self.cut(kind)?;
            self.block.push(event)?;
        }
        if self.block.len() >= limits::CUT_RAW {
            self.cut(kind)?;
        }
        Ok(())
    }

    /// The file header of the trace.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Adds index and tail. Returns all bytes to write.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn finish(mut self) -> Result<Addition, NoSupplement> {
        self.cut(BlockKind::Meta)?;
        while let Some(bytes) = self.sealer.finish(&mut self.sealed)? {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(Addition { keep: self.keep, bytes: self.bytes })
    }

    fn cut(&mut self, next: BlockKind) -> Result<(), NoSupplement> {
        if !self.block.is_empty() {
            let bytes = self.sealer.seal(&self.block, &mut self.sealed)?;
            self.bytes.extend_from_slice(bytes);
        }
        self.block.start(next, None, self.time);
        Ok(())
    }
}
