//! A block while it is being filled: events in one preallocated buffer, and the counters of its
//! header.

use crate::bytes::LimitedBuffer;
use crate::event;
use crate::header::{BlockKind, FileHeader};
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};
use stk_schema::Ticks;
use stk_schema::event::{Event, Metadata};
use stk_schema::limits;

/// Key of the METADATA event, first in every STATE and END block and in the META blocks of the
/// first second, whose value is a copy of the file header's 128 bytes: readers use it if the file's
/// own header is damaged.
pub const HEADER_KEY: &[u8] = b"stk.header";

/// Most bytes that a pending SAME, or IDLE with its THREAD_CPU, takes: type and length of each, and
/// at most six and three varints of ten bytes.
pub(crate) const PENDING_MAX: usize = 96;

/// Why an event or a sample was rejected. Nothing was written, and both block and image stay
/// consistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// No room left: cut the block and try again in an empty one. If that is refused too, drop it
    /// and count it.
    #[error("the block is full")]
    BlockFull,
    /// The thread's image is too small:
    /// [`ThreadImage::reserve`](crate::sample::ThreadImage::reserve) `words`, then try again.
    #[error("the stack image needs room for {words} words")]
    ImageTooSmall {
        /// Words that the image must hold.
        words: usize,
    },
    /// The thread has no sample yet that a pass could be the same as.
    #[error("the thread has no earlier sample")]
    NoSample,
    /// The arguments break a limit or contradict each other.
    #[error("against the format's limits: {0}")]
    Invalid(LimitError),
}

/// Which limit of the format an event or a sample breaks, or in what its arguments contradict each
/// other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A path, name or text has more than [`limits::MAX_NAME`] bytes.
    #[error("name too long")]
    NameTooLong,
    /// More than 64 identities of one image.
    #[error("too many identities")]
    TooManyIdentities,
    /// More than [`limits::MAX_WALK_FRAMES`] frames.
    #[error("too many frames")]
    TooManyFrames,
    /// A BLOB of more than [`limits::MAX_BLOB`] bytes, or a piece of more than
    /// [`limits::MAX_BLOB_CHUNK`].
    #[error("BLOB too large")]
    BlobTooLarge,
    /// A piece of a BLOB ends beyond the BLOB.
    #[error("BLOB piece beyond its end")]
    BlobPieceBeyondEnd,
    /// A sample in a block of another kind.
    #[error("not a SAMPLES block")]
    NotSamplesBlock,
    /// More or fewer registers than the register set has.
    #[error("register count")]
    RegisterCount,
    /// The length or an address of the stack is no multiple of a stack word.
    #[error("stack not made of whole words")]
    BrokenStackWord,
    /// The captured stack ends above the stack base.
    #[error("stack beyond its base")]
    StackBeyondBase,
    /// More than [`limits::MAX_CODE_BYTES`] bytes of code.
    #[error("too many code bytes")]
    TooMuchCode,
    /// More than [`limits::MAX_EXTRA_RANGES`] ranges of memory beside the stack.
    #[error("too many address ranges")]
    TooManyRanges,
}

/// Remembered code bytes: see [`BlockBuffer::code_known`].
#[derive(Clone, Copy, Default)]
struct CodeAt {
    ip: u64,
    at: u32,
    len: u32,
}

/// What a block's header says after one of its events.
#[derive(Clone, Copy, Default)]
struct Checkpoint {
    len: usize,
    last: Ticks,
    events: u32,
    samples: u32,
    stack_bytes: u32,
}

/// The value of [`BlockBuffer::whole`] while the block is being begun.
const NO_CHECKPOINT: usize = 2;

/// Instruction pointers whose recorded code bytes are remembered per block; a power of two. If one
/// is forgotten, its bytes are written once more.
const CODE_SLOTS: usize = 2048;

/// One block's events and counters; allocated once and used again for block after block.
pub struct BlockBuffer {
    pub(crate) buf: Vec<u8>,
    capacity: usize,
    header: FileHeader,
    pub(crate) kind: BlockKind,
    pub(crate) ordinal: Option<u64>,
    pub(crate) first: Ticks,
    pub(crate) last: Ticks,
    pub(crate) events: u32,
    /// The number of events that `begin` itself pushed.
    preface: u32,
    pub(crate) samples: u32,
    pub(crate) stack_bytes: u32,
    pub(crate) dropped: u64,
    /// Thread slots assigned so far.
    pub(crate) slots: u32,
    /// Time of the last SAMPLE event.
    pub(crate) sample_time: Ticks,
    /// Thread images that still owe this block an event.
    pub(crate) pending: u32,
    code: Vec<CodeAt>,
    /// The block after its last whole event, and before.
    checkpoints: [Checkpoint; 2],
    /// Index in `checkpoints` of the newer one.
    whole: AtomicUsize,
}

impl BlockBuffer {
    /// A buffer for up to `capacity` event bytes (at most [`limits::MAX_BLOCK_RAW`]).
    /// [`limits::CUT_RAW`] plus the largest sample that shall never be dropped is a good size. This
    /// is the only allocation it ever makes.
    pub fn new(capacity: usize, header: &FileHeader) -> Result<BlockBuffer, TryReserveError> {
        let capacity = capacity.clamp(4096, limits::MAX_BLOCK_RAW);
        let mut buf = Vec::new();
        buf.try_reserve_exact(capacity)?;
        let mut code = Vec::new();
        code.try_reserve_exact(CODE_SLOTS)?;
        code.resize(CODE_SLOTS, CodeAt::default());
        Ok(BlockBuffer {
            buf,
            capacity,
            header: *header,
            kind: BlockKind::Meta,
            ordinal: None,
            first: Ticks::ZERO,
            last: Ticks::ZERO,
            events: 0,
            preface: 0,
            samples: 0,
            stack_bytes: 0,
            dropped: 0,
            slots: 0,
            sample_time: Ticks::ZERO,
            pending: 0,
            code,
            checkpoints: [Checkpoint::default(); 2],
            whole: AtomicUsize::new(NO_CHECKPOINT),
        })
    }

    /// The following blocks belong to the file with this header, of the same process and clock.
    pub fn set_header(&mut self, header: &FileHeader) {
        self.header = *header;
    }

    /// Empties the buffer for a block of `kind` that begins at `now`. A SAMPLES block is begun by
    /// [`SampleEncoder::begin`](crate::sample::SampleEncoder::begin) instead, which numbers it.
    pub fn begin(&mut self, kind: BlockKind, now: Ticks) {
        self.start(kind, None, now);
        // Not in all META blocks: where threads come and go all the time, copies would be a tenth
        // of the file.
        let early = now.0.wrapping_sub(self.header.clock_start.0) < self.header.clock_frequency;
        if matches!(kind, BlockKind::State | BlockKind::End) || kind == BlockKind::Meta && early {
            let copy = self.header.encode();
            // The smallest buffer has room for it.
            let _ = self.push(&Event::Metadata(Metadata { key: HEADER_KEY, value: &copy }));
            self.preface = self.events;
        }
    }

    pub(crate) fn start(&mut self, kind: BlockKind, ordinal: Option<u64>, now: Ticks) {
        self.set_whole(NO_CHECKPOINT);
        self.buf.clear();
        self.kind = kind;
        self.ordinal = ordinal;
        self.first = now;
        self.last = now;
        self.events = 0;
        self.preface = 0;
        self.samples = 0;
        self.stack_bytes = 0;
        self.slots = 0;
        self.sample_time = now;
        self.pending = 0;
        if kind == BlockKind::Samples {
            self.code.fill(CodeAt::default());
        }
        self.mark_whole();
    }

    /// Notes that the last event is whole, for [`BlockBuffer::cut_torn`].
    pub(crate) fn mark_whole(&mut self) {
        let older = usize::from(self.whole.load(Ordering::Relaxed) == 0);
        self.checkpoints[older] = Checkpoint {
            len: self.buf.len(),
            last: self.last,
            events: self.events,
            samples: self.samples,
            stack_bytes: self.stack_bytes,
        };
        self.set_whole(older);
    }

    /// Whenever the thread is terminated, everything before this call has happened and nothing
    /// after it has.
    fn set_whole(&self, index: usize) {
        compiler_fence(Ordering::SeqCst);
        self.whole.store(index, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// After the thread that filled the block was terminated, within an event or not: takes back
    /// what follows the last whole event, and the coalesced passes that waited. Returns whether
    /// there are events.
    pub fn cut_torn(&mut self) -> bool {
        let whole = self.whole.load(Ordering::Acquire);
        let checkpoint = self.checkpoints.get(whole).copied().unwrap_or_default();
        self.buf.truncate(checkpoint.len);
        self.last = checkpoint.last;
        self.events = checkpoint.events;
        self.samples = checkpoint.samples;
        self.stack_bytes = checkpoint.stack_bytes;
        self.pending = 0;
        self.events > self.preface
    }

    /// Appends an event.
    pub fn push(&mut self, event: &Event) -> Result<(), EncodeError> {
        event::check(event).map_err(EncodeError::Invalid)?;
        let start = self.buf.len();
        let limit = self.limit();
        let mut out = LimitedBuffer { buf: &mut self.buf, limit };
        if event::put(event, self.first, &mut out).is_err() {
            self.buf.truncate(start);
            return Err(EncodeError::BlockFull);
        }
        self.events += 1;
        if let Some(time) = event::time_of(event) {
            self.last = self.last.max(time);
        }
        self.mark_whole();
        Ok(())
    }

    /// The running total of dropped samples that the block's header will carry.
    pub fn set_dropped(&mut self, total: u64) {
        self.dropped = total;
    }

    /// Whether the block holds nothing since `begin`: no event, and no coalesced pass that waits to
    /// be written.
    pub fn is_empty(&self) -> bool {
        self.events == self.preface && self.pending == 0
    }

    /// Event bytes so far.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Samples that the block stands for so far, without coalesced passes that are still pending.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Kind of the block.
    pub fn kind(&self) -> BlockKind {
        self.kind
    }

    /// Whether the block is due to be cut: by size, by the stack it stands for, or by age at `now`.
    pub fn wants_cut(&self, now: Ticks) -> bool {
        let span = |ms: u64| Ticks(self.header.clock_frequency.saturating_mul(ms) / 1000);
        let (age, stack) = (now.saturating_sub(self.first), u64::from(self.stack_bytes));
        !self.is_empty()
            && (self.buf.len() >= limits::CUT_RAW
                || stack >= limits::CUT_STACK
                || age >= span(limits::CUT_MS) && stack >= limits::CUT_STACK_SETTLED
                || age >= span(limits::CUT_MS_MOST))
    }

    /// Bytes of a stack word.
    pub(crate) fn word(&self) -> usize {
        self.header.word()
    }

    /// How far events may fill the buffer. The rest stays free for pending coalesced passes.
    pub(crate) fn limit(&self) -> usize {
        self.capacity.saturating_sub(self.pending as usize * PENDING_MAX)
    }

    /// The buffer's whole capacity, including the reserve for pending passes.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether a reader would assume `code` at `ip` without another record of it.
    pub(crate) fn code_known(&self, ip: u64, code: &[u8]) -> bool {
        let known = self.code[code_slot(ip)];
        let (at, len) = (known.at as usize, known.len as usize);
        known.ip == ip && len != 0 && self.buf.get(at..at + len) == Some(code)
    }

    /// Remembers that the code at `ip` was recorded at `at` in the buffer.
    pub(crate) fn remember_code(&mut self, ip: u64, at: usize, len: usize) {
        self.code[code_slot(ip)] = CodeAt { ip, at: at as u32, len: len as u32 };
    }
}

fn code_slot(ip: u64) -> usize {
    (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize % CODE_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_schema::{Arch, Os};

    #[test]
    fn a_torn_event_is_taken_back_and_the_whole_ones_before_it_are_not() {
        let header = FileHeader::new(Arch::X64, Os::Windows, [7; 16], 1000);
        let mut block = BlockBuffer::new(64 << 10, &header).expect("memory");
        block.begin(BlockKind::Meta, Ticks(5));
        assert!(!block.cut_torn(), "the copy of the file header alone");
        for value in [b"a", b"b", b"c"] {
            block.push(&Event::Metadata(Metadata { key: b"key", value })).expect("room");
        }
        let whole = (block.buf.clone(), block.events, block.last);
        block.buf.extend([1, 2, 3]);
        block.events += 1;
        block.last = Ticks(99);
        block.pending = 2;
        assert!(block.cut_torn());
        assert_eq!((block.buf.clone(), block.events, block.last), whole);
        assert_eq!(block.pending, 0);
        // Terminated while it began the next block.
        block.set_whole(NO_CHECKPOINT);
        assert!(!block.cut_torn());
        assert_eq!(block.len(), 0);
    }
}
