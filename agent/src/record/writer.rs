//! The writer: blocks to bytes, appended with one write each; in the end END, INDEX and tail.

use alloc::boxed::Box;
use alloc::vec;

use stk_format::{BlockBuffer, BlockKind, FileHeader, SealError, Sealer, sealed_bound};
use stk_schema::event::{End, Event};

/// Where the trace goes.
pub trait Output {
    /// Appends all of `bytes` in one write, or tells the system's error code.
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32>;
}

/// Why the trace cannot be written any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// The system refused, with this error code.
    System(u32),
    /// The block could not be sealed.
    Seal(SealError),
}

/// Seals blocks in the order in which they are given and appends them. After the first error nothing more is
/// appended: what is in the file stays a valid, truncated trace.
pub struct Writer<O> {
    sealer: Sealer,
    out: Box<[u8]>,
    output: O,
    failed: Option<WriteError>,
    bytes: u64,
    state_at: u64,
}

impl<O: Output> Writer<O> {
    /// Appends the file header and makes everything ready for blocks of up to `capacity` event bytes.
    pub fn new(header: &FileHeader, capacity: usize, mut output: O) -> Result<Writer<O>, WriteError> {
        let sealer = Sealer::new(header).map_err(WriteError::Seal)?;
        let bytes = header.encode();
        output.append(&bytes).map_err(WriteError::System)?;
        Ok(Writer {
            sealer,
            // An INDEX block holds up to a megabyte.
            out: vec![0; sealed_bound(capacity.max(1 << 20))].into_boxed_slice(),
            output,
            failed: None,
            bytes: bytes.len() as u64,
            state_at: 0,
        })
    }

    /// Appends a block.
    pub fn block(&mut self, block: &BlockBuffer) -> Result<(), WriteError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = match self.sealer.seal(block, &mut self.out) {
            Ok(sealed) => {
                self.bytes += sealed.len() as u64;
                self.output.append(sealed).map_err(WriteError::System)
            }
            Err(error) => Err(WriteError::Seal(error)),
        };
        if block.kind() == BlockKind::State {
            self.state_at = self.bytes;
        }
        self.failed = result.err();
        result
    }

    /// Ends the trace: END in `block` (any free buffer), then the index and the tail.
    pub fn end(&mut self, block: &mut BlockBuffer, end: End<'_>) -> Result<(), WriteError> {
        block.begin(BlockKind::End, end.time);
        block.set_dropped(end.dropped);
        // A buffer that was just emptied has room for one small event.
        let _ = block.push(&Event::End(end));
        self.block(block)?;
        loop {
            match self.sealer.finish(&mut self.out) {
                Ok(Some(piece)) => {
                    self.bytes += piece.len() as u64;
                    self.output.append(piece).map_err(WriteError::System)?;
                }
                Ok(None) => return Ok(()),
                // The index is a cache: a trace without it is whole.
                Err(_) => return Ok(()),
            }
        }
    }

    /// Where the trace went.
    pub fn into_output(self) -> O {
        self.output
    }

    /// Bytes appended.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes appended since the last STATE block.
    pub fn since_state(&self) -> u64 {
        self.bytes - self.state_at
    }

    /// The error after which nothing was appended any more.
    pub fn failure(&self) -> Option<WriteError> {
        self.failed
    }
}
