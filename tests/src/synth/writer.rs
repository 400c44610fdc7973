//! Writes a trace to any `io::Write`. The agent combines the same
//! parts itself.

use std::io::{self, Write};
use stk_format::{BlockBuffer, BlockKind, EncodeError, FileHeader, SealError, Sealer, sealed_bound};
use stk_schema::Ticks;
use stk_schema::event::{End, Event};
use stk_schema::limits;

/// Writes a trace: push only, never seeks.
pub struct TraceWriter<W: Write> {
    out: W,
    header: FileHeader,
    sealer: Sealer,
    sealed: Vec<u8>,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the file header.
    pub fn new(mut out: W, header: &FileHeader) -> io::Result<TraceWriter<W>> {
        out.write_all(&header.encode())?;
        let sealer = Sealer::new(header).map_err(seal_error)?;
        Ok(TraceWriter { out, header: *header, sealer, sealed: vec![0; sealed_bound(limits::CUT_RAW)] })
    }

    /// Appends a block. Skips an empty one.
    pub fn block(&mut self, block: &BlockBuffer) -> io::Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        let bound = sealed_bound(block.len());
        if self.sealed.len() < bound {
            self.sealed.resize(bound, 0);
        }
        let bytes = self.sealer.seal(block, &mut self.sealed).map_err(seal_error)?;
        self.out.write_all(bytes)
    }

    /// Appends a block of `kind` that begins at `now` and holds `events`.
    pub fn events<'e>(
        &mut self,
        kind: BlockKind,
        now: Ticks,
        events: impl IntoIterator<Item = Event<'e>>,
    ) -> io::Result<()> {
        let mut block = BlockBuffer::new(limits::MAX_BLOCK_RAW, &self.header).map_err(io::Error::other)?;
        block.begin(kind, now);
        events.into_iter().try_for_each(|event| block.push(&event)).map_err(rejected)?;
        self.block(&block)
    }

    /// Appends END, index and tail; returns the output.
    pub fn finish(mut self, end: &End) -> io::Result<W> {
        self.events(BlockKind::End, end.time, [Event::End(*end)])?;
        while let Some(bytes) = self.sealer.finish(&mut self.sealed).map_err(seal_error)? {
            self.out.write_all(bytes)?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    /// Leaves the trace as a killed recorder would: without END, index and tail.
    pub fn abandon(self) -> W {
        self.out
    }

    /// The header that the trace was begun with.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Bytes of the file so far.
    pub fn file_len(&self) -> u64 {
        self.sealer.file_len()
    }
}

fn seal_error(error: SealError) -> io::Error {
    io::Error::other(error)
}

fn rejected(error: EncodeError) -> io::Error {
    io::Error::other(error)
}
