//! Writes a trace of some blocks of another one: numbered anew, so that what was left out on
//! purpose does not show as lost.

use crate::block::BlockBuffer;
use crate::compressor::SealError;
use crate::header::{BlockHeader, BlockKind, FileHeader};
use crate::seal::{Sealer, sealed_bound};
use alloc::vec::Vec;
use stk_schema::Ticks;
use stk_schema::event::{End, Event};
use stk_schema::limits;

/// Bytes of the END block's events: a copy of the file header, counters and a text.
const END_RAW: usize = 64 << 10;

/// Writes blocks of another trace in their order. SAMPLES blocks keep their ordinals, because IDLE
/// events cite them.
pub struct TraceExcerpt {
    header: FileHeader,
    sealer: Sealer,
    sealed: Vec<u8>,
    /// Samples that were dropped before the excerpt.
    before: u64,
    /// Those that were dropped in the files before the present one.
    earlier: u64,
    dropped: u64,
    samples: u64,
}

impl TraceExcerpt {
    /// An excerpt with this header, whose bytes come first. `dropped` samples were lost before it
    /// and are not counted in it.
    pub fn new(header: &FileHeader, dropped: u64) -> Result<TraceExcerpt, SealError> {
        let sealer = Sealer::new(header)?;
        let header = *header;
        Ok(TraceExcerpt {
            header,
            sealer,
            sealed: Vec::new(),
            before: dropped,
            earlier: 0,
            dropped: 0,
            samples: 0,
        })
    }

    /// The following blocks are of the file that continues the one of the blocks before, which
    /// counts its dropped samples from its own start.
    pub fn next_file(&mut self) {
        (self.before, self.earlier) = (0, self.dropped);
    }

    /// The bytes of a block with its stored payload as it is.
    pub fn stored(&mut self, like: &BlockHeader, payload: &[u8]) -> &[u8] {
        let header = self.numbered(like);
        self.sealed.clear();
        self.sealed.extend_from_slice(&self.sealer.number(header));
        self.sealed.extend_from_slice(payload);
        &self.sealed
    }

    /// The bytes of a block like `like` with other events: `raw`, `events` in number.
    pub fn events(&mut self, like: &BlockHeader, raw: &[u8], events: u32) -> Result<&[u8], SealError> {
        let header = self.numbered(like);
        self.room(raw.len());
        self.sealer.reseal(&header, raw, events, &mut self.sealed)
    }

    /// The bytes of the END block. Counts the samples of the blocks before.
    pub fn end(&mut self, time: Ticks, reason: u64, detail: &[u8]) -> Result<&[u8], SealError> {
        let mut block = BlockBuffer::new(END_RAW, &self.header).map_err(|_| SealError::NoMemory)?;
        block.begin(BlockKind::End, time);
        block.set_dropped(self.dropped);
        let end = End { time, reason, samples: self.samples, dropped: self.dropped, detail };
        block.push(&Event::End(end)).map_err(|_| SealError::NoMemory)?;
        self.room(END_RAW);
        self.sealer.seal(&block, &mut self.sealed)
    }

    /// The next piece behind END: index and tail; then `None`.
    pub fn index(&mut self) -> Result<Option<&[u8]>, SealError> {
        self.room(limits::CUT_RAW);
        self.sealer.finish(&mut self.sealed)
    }

    /// Samples that the blocks so far stand for.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    fn numbered(&mut self, like: &BlockHeader) -> BlockHeader {
        let mut header = self.sealer.next_like(like);
        header.dropped = self.earlier.saturating_add(like.dropped.saturating_sub(self.before));
        self.dropped = self.dropped.max(header.dropped);
        self.samples += u64::from(like.samples);
        header
    }

    fn room(&mut self, raw: usize) {
        let bound = sealed_bound(raw);
        if self.sealed.len() < bound {
            self.sealed.resize(bound, 0);
        }
    }
}
