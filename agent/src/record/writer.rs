//! The writer turns blocks into bytes and appends each with one write; at the end it writes END,
//! INDEX and tail.

use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

use stk_format::{BlockBuffer, BlockKind, FileHeader, SealError, Sealer, TAIL_LEN, sealed_bound};
use stk_schema::event::{End, Event};

/// Room that is kept for the buffers still in use when a recording ends because of its size: all
/// buffers of all lanes, hardly compressed.
const MARGIN: u64 = 16 << 20;
/// Most bytes of an INDEX entry: offset, sequence number, two times (10 bytes each as varints),
/// kind.
const INDEX_ENTRY: u64 = 41;
/// Milliseconds within which the thread that ends the process expects a write that has begun to be
/// done: the system may report a thread as ended while it still finishes its write.
const WRITE_MS: u32 = 100;
/// Most event bytes of an END block: a copy of the file header, counters, and a text of the
/// recorder.
const END_RAW: usize = 2048;

/// Destination of the trace.
pub(crate) trait Output {
    /// Appends all of `bytes` in one write. The error is the system's error code.
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32>;

    /// Number of bytes appended so far, according to the system; `None` if it does not say.
    fn appended(&mut self) -> Option<u64>;

    /// Gives the system some milliseconds for a write that it has begun, where writes can last.
    /// Returns how many they were by the clock.
    fn wait_for_write(&mut self) -> u32 {
        WRITE_MS
    }
}

/// Why the trace can no longer be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteError {
    /// The system refused with this error code.
    System(u32),
    /// The block could not be sealed.
    Seal(SealError),
    /// The writing thread was terminated within a write.
    Interrupted,
    /// The block might exceed the size limit and was left out. So will be all later blocks except
    /// END and INDEX.
    Full,
}

/// Seals blocks in the given order and appends them. After the first error it appends nothing more,
/// so the file stays a valid, truncated trace.
pub(crate) struct Writer<O> {
    sealer: Sealer,
    out: Box<[u8]>,
    output: O,
    failed: Option<WriteError>,
    bytes: u64,
    /// Bytes at the start of `out` that are sealed but may not be appended yet; 0 between blocks.
    sealed: AtomicUsize,
    state_at: u64,
    /// Most bytes of the trace.
    limit: u64,
    /// Whether a block was left out because of the limit: later blocks may refer to its contents.
    full: bool,
}

impl<O: Output> Writer<O> {
    /// Appends the file header and prepares for blocks of up to `capacity` event bytes.
    pub(crate) fn new(header: &FileHeader, capacity: usize, mut output: O) -> Result<Writer<O>, WriteError> {
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

    /// Limits the trace to `bytes`, including its end; 0 = no limit.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = if bytes == 0 { u64::MAX } else { bytes };
    }

    /// Whether the recording should end, so that the buffers still in use fit below the limit.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let margin = (self.limit / 4).min(MARGIN) + self.end_bound();
        self.full || self.bytes.saturating_add(margin) >= self.limit
    }

    /// Appends a block, unless that might exceed the limit.
    pub(crate) fn block(&mut self, block: &BlockBuffer) -> Result<(), WriteError> {
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

    /// Continues after the thread that called [`Writer::block`] with this block was terminated, so
    /// that the file holds the block once. Usually the thread was terminated while it compressed,
    /// which leaves the sealer unchanged. In the few instructions after that, the block may be
    /// counted twice, or listed twice in the index: readers then take it for a gap and ignore the
    /// index.
    pub(crate) fn resume(&mut self, block: &BlockBuffer) -> Result<(), WriteError> {
        let sealed = self.sealed.load(Ordering::Acquire) as u64;
        if sealed == 0 {
            return self.block(block);
        }
        let (none, all) = (self.bytes, self.bytes + sealed);
        let mut appended = self.output.appended();
        let mut waited = 0;
        while waited < WRITE_MS && appended.is_some_and(|len| none < len && len < all) {
            waited += self.output.wait_for_write().max(1);
            appended = self.output.appended();
        }
        let result = match appended {
            Some(len) if len == self.bytes => self.append_sealed(),
            Some(len) if len == self.bytes + sealed => {
                self.bytes += sealed;
                self.mark_sealed(0);
                Ok(())
            }
            // Half a block: a reader could not separate it from what follows.
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

    /// Stores the state that [`Writer::resume`] relies on. Whenever the thread is terminated,
    /// everything before this call has happened and nothing after it has.
    fn mark_sealed(&self, sealed: usize) {
        compiler_fence(Ordering::SeqCst);
        self.sealed.store(sealed, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// Ends the trace: END in `block` (any free buffer), then the index and the tail.
    pub(crate) fn end(&mut self, block: &mut BlockBuffer, end: End<'_>) -> Result<(), WriteError> {
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
                // The index is only a cache: a trace without it is complete.
                Err(_) => return Ok(()),
            }
        }
    }

    #[cfg(all(test, not(windows)))]
    pub(crate) fn into_output(self) -> O {
        self.output
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes appended since the last STATE block.
    pub(crate) fn since_state(&self) -> u64 {
        self.bytes - self.state_at
    }

    /// The error after which nothing more was appended.
    pub(crate) fn failure(&self) -> Option<WriteError> {
        self.failed
    }
}

/// The writers of the files that have not ended: the present one and, while the recording continues
/// in another, the next. Whenever the writing thread is terminated, what the numbers name is whole.
pub(crate) struct Writers<O> {
    /// Each at its file's number, modulo 2.
    files: [Option<Writer<O>>; 2],
    present: AtomicUsize,
    last: AtomicUsize,
}

impl<O: Output> Writers<O> {
    /// Of the first file.
    pub(crate) fn new(writer: Writer<O>) -> Writers<O> {
        let (present, last) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Writers { files: [Some(writer), None], present, last }
    }

    /// Adds the next file. The one before the present one must be closed.
    pub(crate) fn add(&mut self, writer: Writer<O>) {
        let next = self.last.load(Ordering::Relaxed) + 1;
        if let Some(place) = self.files.get_mut(next % 2) {
            *place = Some(writer);
        }
        compiler_fence(Ordering::SeqCst);
        self.last.store(next, Ordering::Release);
    }

    /// The file with this number, until it is closed.
    pub(crate) fn of(&mut self, file: u32) -> Option<&mut Writer<O>> {
        let is_there = file as usize <= self.last.load(Ordering::Acquire);
        self.files.get_mut(file as usize % 2)?.as_mut().filter(|_| is_there)
    }

    /// The number of the first file that has not begun to end.
    pub(crate) fn number(&self) -> u32 {
        self.present.load(Ordering::Acquire) as u32
    }

    /// That file.
    pub(crate) fn present(&mut self) -> Option<&mut Writer<O>> {
        self.of(self.number())
    }

    /// The numbers of all files that have not begun to end.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + use<O> {
        self.number()..=self.last.load(Ordering::Acquire) as u32
    }

    /// The present file begins to end, and the next one is the present one. Returns its number.
    pub(crate) fn leave_present(&mut self) -> u32 {
        self.present.fetch_add(1, Ordering::AcqRel) as u32
    }

    /// Closes a file that has ended.
    pub(crate) fn close(&mut self, file: u32) {
        if let Some(place) = self.files.get_mut(file as usize % 2) {
            *place = None;
        }
    }
}
