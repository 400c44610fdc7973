//! The writer: blocks to bytes, appended with one write each; in the end END, INDEX and tail.

use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

use stk_format::{BlockBuffer, BlockKind, FileHeader, SealError, Sealer, TAIL_LEN, sealed_bound};
use stk_schema::event::{End, Event};

/// Room that is kept for what is on its way when a recording ends for its size: all buffers of all
/// lanes, hardly compressed.
const MARGIN: u64 = 16 << 20;
/// Most bytes of an INDEX entry: offset, sequence number, two times (10 bytes each as varints),
/// kind.
const INDEX_ENTRY: u64 = 41;
/// Most event bytes of an END block: a copy of the file header, counters, a text of the recorder's.
const END_RAW: usize = 2048;

/// Where the trace goes.
pub trait Output {
    /// Appends all of `bytes` in one write, or tells the system's error code.
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32>;

    /// How many bytes were appended so far, by the system's own word; `None` if it does not say.
    fn appended(&mut self) -> Option<u64>;
}

/// Why the trace cannot be written any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// The system refused, with this error code.
    System(u32),
    /// The block could not be sealed.
    Seal(SealError),
    /// The thread that wrote was terminated within a write.
    Interrupted,
    /// The block might pass the size limit and was left out, and so will all that follow but END
    /// and INDEX.
    Full,
}

/// Seals blocks in the order in which they are given and appends them. After the first error
/// nothing more is appended: what is in the file stays a valid, truncated trace.
pub struct Writer<O> {
    sealer: Sealer,
    out: Box<[u8]>,
    output: O,
    failed: Option<WriteError>,
    bytes: u64,
    /// Bytes at the beginning of `out` that are sealed and may not be appended yet; 0 between
    /// blocks.
    sealed: AtomicUsize,
    state_at: u64,
    /// Most bytes of the trace.
    limit: u64,
    /// Whether a block was left out for the limit: those behind it may refer to what it said.
    full: bool,
}

impl<O: Output> Writer<O> {
    /// Appends the file header and makes everything ready for blocks of up to `capacity` event
    /// bytes.
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
            sealed: AtomicUsize::new(0),
            state_at: 0,
            limit: u64::MAX,
            full: false,
        })
    }

    /// Limits the trace to `bytes`, its end included; 0 = no limit.
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = if bytes == 0 { u64::MAX } else { bytes };
    }

    /// Whether the recording should end, so that what is on its way still has room below the limit.
    pub fn is_nearly_full(&self) -> bool {
        let margin = (self.limit / 4).min(MARGIN) + self.end_bound();
        self.full || self.bytes.saturating_add(margin) >= self.limit
    }

    /// Appends a block, unless that might pass the limit.
    pub fn block(&mut self, block: &BlockBuffer) -> Result<(), WriteError> {
        let needed = sealed_bound(block.len()) as u64 + self.end_bound();
        self.full = self.full || self.bytes.saturating_add(needed) > self.limit;
        if self.full && self.failed.is_none() {
            return Err(WriteError::Full);
        }
        self.append(block)
    }

    /// Bytes that END, the index and the tail may need after one more block.
    fn end_bound(&self) -> u64 {
        let entries = (self.sealer.blocks() + 2) * INDEX_ENTRY;
        let end = sealed_bound(END_RAW) + 2 * sealed_bound(0) + TAIL_LEN;
        end as u64 + entries + entries / 128
    }

    fn append(&mut self, block: &BlockBuffer) -> Result<(), WriteError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = match self.sealer.seal(block, &mut self.out).map(<[u8]>::len) {
            Ok(sealed) => {
                self.mark_sealed(sealed);
                self.append_sealed()
            }
            Err(error) => Err(WriteError::Seal(error)),
        };
        if block.kind() == BlockKind::State {
            self.state_at = self.bytes;
        }
        self.failed = result.err();
        result
    }

    /// Goes on where the thread that called [`Writer::block`] with this block was terminated, so
    /// that the block is in the file once. It was terminated while it compressed, as a rule: that
    /// leaves the sealer as it was. Within the few instructions behind that, the block may be
    /// counted twice, or the index list it twice: readers then take it for a gap and do without an
    /// index.
    pub fn resume(&mut self, block: &BlockBuffer) -> Result<(), WriteError> {
        let sealed = self.sealed.load(Ordering::Acquire) as u64;
        if sealed == 0 {
            return self.block(block);
        }
        let result = match self.output.appended() {
            Some(len) if len == self.bytes => self.append_sealed(),
            Some(len) if len == self.bytes + sealed => {
                self.bytes += sealed;
                self.mark_sealed(0);
                Ok(())
            }
            // Half a block: what follows could not be told from it.
            _ => Err(WriteError::Interrupted),
        };
        self.failed = result.err();
        result
    }

    fn append_sealed(&mut self) -> Result<(), WriteError> {
        let sealed = self.sealed.load(Ordering::Relaxed);
        let result = self.output.append(&self.out[..sealed]).map_err(WriteError::System);
        self.bytes += sealed as u64;
        self.mark_sealed(0);
        result
    }

    /// What [`Writer::resume`] goes by: everything before it has happened, and nothing behind it,
    /// whenever the thread is terminated.
    fn mark_sealed(&self, sealed: usize) {
        compiler_fence(Ordering::SeqCst);
        self.sealed.store(sealed, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// Ends the trace: END in `block` (any free buffer), then the index and the tail.
    pub fn end(&mut self, block: &mut BlockBuffer, end: End<'_>) -> Result<(), WriteError> {
        block.begin(BlockKind::End, end.time);
        block.set_dropped(end.dropped);
        // A buffer that was just emptied has room for one small event.
        let _ = block.push(&Event::End(end));
        self.append(block)?;
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
