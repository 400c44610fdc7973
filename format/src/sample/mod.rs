//! Samples: the per-thread stack image, and how a sample is written as a difference to it.
//! `format/SPEC.md` draws the bodies.
//!
//! The writer keeps, per thread, an image of its stack anchored at the stack base. A sample is the
//! runs of words that differ from the image; the image then holds the sample. A pass that finds a
//! thread unchanged is counted, not written. Passes in the block of the thread's last sample become
//! one SAMPLE with the flag SAME, passes in later blocks one IDLE. A THREAD_CPU follows an IDLE in
//! which the thread used CPU time, and the thread's next SAMPLE says how much of its CPU delta was
//! stated so. Only [`ThreadImage::new`] and
//! [`ThreadImage::reserve`] allocate.
//!
//! ```text
//! encoder.begin(&mut block, now)
//!   encoder.sample(&mut block, &mut image, &raw)      a captured thread
//!   encoder.same(&mut block, &mut image, now, state)  a thread known not to have run
//! encoder.flush_idle(&mut block, &mut image)          every image, before the block is cut
//!                                                     (and when a thread ends)
//! encoder.last_cpu(&mut block, &mut image, now)       when no pass of the thread follows
//! ```
//!
//! `put` writes the stored form. This file keeps each thread's image and decides how a sample is
//! written.

mod put;

use crate::block::{BlockBuffer, EncodeError, LimitError, PENDING_MAX};
use crate::bytes::LimitedBuffer;
use crate::header::BlockKind;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use put::{put_cpu, put_idle, put_same, put_sample, put_slot};
use stk_schema::Ticks;
use stk_schema::event::RunState;
use stk_schema::limits;
use stk_schema::registers::{IP, MAX_REGISTERS, RegisterSet};

/// Most image words: an image reaches from the stack base (or the anchor of a truncated one) to the
/// lowest word that a sample held. Twice [`limits::MAX_SAMPLE_WORDS`].
pub const MAX_IMAGE_WORDS: usize = 2 * limits::MAX_SAMPLE_WORDS;

/// Bits of a SAMPLE's flags; `format/SPEC.md` gives the order of the fields that they announce.
pub(crate) mod flag {
    /// Passes that found the thread as in its previous sample of this block.
    pub(crate) const SAME: u64 = 1;
    /// Image and registers start from zero.
    pub(crate) const KEYFRAME: u64 = 1 << 1;
    /// Run state: two bits.
    pub(crate) const STATE_SHIFT: u32 = 2;
    #[cfg(feature = "std")]
    pub(crate) const STATE: u64 = 3 << STATE_SHIFT;
    /// Code bytes at the instruction pointer follow.
    pub(crate) const CODE: u64 = 1 << 4;
    /// A CPU delta follows.
    pub(crate) const CPU: u64 = 1 << 5;
    /// The captured words end below the stack base.
    pub(crate) const TRUNCATED: u64 = 1 << 6;
    /// A tag follows, because the program requested the sample.
    pub(crate) const TRIGGERED: u64 = 1 << 7;
    /// The unwind tables of the module at the instruction pointer were not recorded yet.
    pub(crate) const TABLES_PENDING: u64 = 1 << 8;
    /// The answer to CONTEXT_EXCEPTION_REQUEST follows.
    pub(crate) const CONTEXT_REPLY: u64 = 1 << 9;
    /// Address ranges beside the main stack follow.
    pub(crate) const EXTRA: u64 = 1 << 10;
    /// The stack is not the thread's own, and its base is unknown.
    pub(crate) const FOREIGN: u64 = 1 << 11;
    /// The part of the CPU delta that THREAD_CPU events have stated already follows.
    pub(crate) const CPU_STATED: u64 = 1 << 12;
}

/// The most words that the image of a foreign stack spans. If a thread switches between such stacks
/// that lie further apart, it starts a new image.
const MAX_FOREIGN_IMAGE_WORDS: usize = 1 << 16;

/// No SAMPLES block has this ordinal.
const NO_BLOCK: u64 = u64::MAX;

/// The data captured from a thread at one moment.
#[derive(Clone, Copy, Debug)]
pub struct RawSample<'a> {
    /// Thread instance id.
    pub thread: u64,
    /// When its context was obtained.
    pub time: Ticks,
    /// Which registers `registers` holds.
    pub set: RegisterSet,
    /// Register values, as many as the set has.
    pub registers: &'a [u64],
    /// Highest address of the thread's stack, exclusive; 0 if the stack pointer lies outside of the
    /// thread's stack, on one whose base is not known (a foreign stack).
    pub stack_base: u64,
    /// Address of the first captured byte, a multiple of the word size; the stack pointer rounded
    /// down to a word.
    pub stack_start: u64,
    /// The stack from `stack_start` up: whole words, to `stack_base` unless truncated.
    pub stack: &'a [u8],
    /// Code bytes at the instruction pointer, at most [`limits::MAX_CODE_BYTES`]; `None` if they
    /// were not read.
    pub code: Option<&'a [u8]>,
    /// The thread's CPU time or cycle count so far, in the header's unit; `None` if not known.
    pub cpu: Option<u64>,
    /// What the thread was doing.
    pub state: RunState,
    /// Given by the caller of a triggered sample.
    pub tag: Option<u64>,
    /// The unwind tables of the module at the instruction pointer are not recorded yet.
    pub tables_pending: bool,
    /// The answer to CONTEXT_EXCEPTION_REQUEST, if it was requested: CONTEXT flags.
    pub context_reply: Option<u32>,
    /// Address ranges beside the main stack, at most [`limits::MAX_EXTRA_RANGES`].
    pub extra: &'a [(u64, &'a [u8])],
}

/// How a sample was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SampleOutcome {
    /// It was written in full.
    Written,
    /// The thread was as in its last sample. The pass was counted; [`SampleEncoder::flush_idle`]
    /// writes it.
    Unchanged,
}

/// The writer's state of a thread: its last sample, and the passes that found it unchanged since.
pub struct ThreadImage {
    /// The stack's highest words, ending at the anchor.
    image: Vec<u8>,
    /// Bytes at the image's end that may not be zero.
    used: usize,
    registers: [u64; MAX_REGISTERS],
    set: RegisterSet,
    thread: u64,
    /// Address at which the image ends: the stack base, or below it if the stack is deeper than an
    /// image can be.
    anchor: u64,
    stack_base: u64,
    /// Words from the anchor down to the first captured word of the last sample.
    depth: usize,
    /// Words captured by the last sample.
    captured: usize,
    tables_pending: bool,
    /// Whether the fields above describe a sample that is in the trace.
    valid: bool,
    /// Keyframe epoch of that sample.
    epoch: u64,
    /// Ordinal of the SAMPLES block that holds it ...
    block: u64,
    /// ... and the thread's slot there.
    slot: u32,
    /// CPU reading when the last SAMPLE of this thread was written, and the latest.
    cpu_written: Option<u64>,
    cpu_now: Option<u64>,
    /// The part of the CPU time between the two that THREAD_CPU events have stated.
    cpu_stated: u64,
    pending: Option<Pending>,
}

/// Passes that found the thread unchanged and are not written yet.
#[derive(Clone, Copy)]
struct Pending {
    ticks: u64,
    first: Ticks,
    last: Ticks,
    state: RunState,
    /// Ordinal of the SAMPLES block that reserves space for it.
    block: u64,
}

impl ThreadImage {
    /// An image with room for `words` stack words.
    pub fn new(words: usize, word: usize) -> Result<ThreadImage, TryReserveError> {
        let mut image = ThreadImage {
            image: Vec::new(),
            used: 0,
            registers: [0; MAX_REGISTERS],
            set: RegisterSet::X64,
            thread: 0,
            anchor: 0,
            stack_base: 0,
            depth: 0,
            captured: 0,
            tables_pending: false,
            valid: false,
            epoch: 0,
            block: NO_BLOCK,
            slot: 0,
            cpu_written: None,
            cpu_now: None,
            cpu_stated: 0,
            pending: None,
        };
        image.reserve(words, word)?;
        Ok(image)
    }

    /// Makes room for `words` stack words of `word` bytes and keeps the image's contents. It
    /// allocates, so do not call it in the hot path.
    pub fn reserve(&mut self, words: usize, word: usize) -> Result<(), TryReserveError> {
        let len = words.min(MAX_IMAGE_WORDS) * word;
        if len > self.image.len() {
            let mut image = Vec::new();
            image.try_reserve_exact(len)?;
            image.resize(len - self.used, 0);
            image.extend_from_slice(&self.image[self.image.len() - self.used..]);
            self.image = image;
        }
        Ok(())
    }

    /// Records the thread's CPU time at a pass that [`SampleEncoder::same`] took, or after it. The
    /// thread's next event states it.
    pub fn note_cpu(&mut self, cpu: u64) {
        self.cpu_now = Some(cpu);
    }

    /// The thread's CPU time is `cpu` now. What it used since the last reading belongs to no
    /// sample, because it was not sampled meanwhile.
    pub fn skip_cpu(&mut self, cpu: u64) {
        let unwritten = match (self.cpu_now, self.cpu_written) {
            (Some(now), Some(written)) => now.wrapping_sub(written),
            _ => 0,
        };
        self.cpu_now = Some(cpu);
        self.cpu_written = self.cpu_written.map(|_| cpu.wrapping_sub(unwritten));
    }

    /// Whether passes that found the thread unchanged wait to be written.
    pub fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The latest reading of the thread's clock.
    pub fn latest_cpu(&self) -> Option<u64> {
        self.cpu_now
    }

    /// Whether the latest reading of the thread's clock shows CPU time that no event has stated.
    pub fn has_unstated_cpu(&self) -> bool {
        put::unstated_cpu(self).is_some()
    }

    /// Makes the image ready for another thread, keeping its memory. Pending passes are lost unless
    /// flushed before.
    pub fn reset(&mut self) {
        self.valid = false;
        self.block = NO_BLOCK;
        self.cpu_written = None;
        self.cpu_now = None;
        self.cpu_stated = 0;
        self.pending = None;
    }

    /// The next event goes into another file, which begins with a keyframe of every thread
    /// ([`SampleEncoder::renew_keyframes`]) and continues the ordinals. The readings of the
    /// thread's clock stay: its first SAMPLE there counts from the last reading here.
    pub fn leave_file(&mut self) {
        self.block = NO_BLOCK;
        let stated = self.cpu_stated;
        self.cpu_written = self.cpu_written.map(|written| written.wrapping_add(stated));
        self.cpu_stated = 0;
    }

    /// Bytes of memory that the image holds.
    pub fn memory(&self) -> usize {
        self.image.len()
    }

    /// Whether a pass could be the same as this thread's last sample, so that
    /// [`SampleEncoder::same`] can be used.
    pub fn has_sample(&self) -> bool {
        self.valid
    }

    /// The stack of the last sample, as far as it was captured: the address of its first byte, and
    /// its bytes.
    pub fn last_captured(&self, word: usize) -> Option<(u64, &[u8])> {
        let start = self.anchor.wrapping_sub((self.depth * word) as u64);
        self.valid.then(|| (start, &self.image[self.last_stack(word)]))
    }

    /// Zeroes all words that the last sample did not capture, as a keyframe has them.
    fn forget_uncaptured(&mut self, word: usize) {
        let stack = self.last_stack(word);
        let from = self.image.len() - self.used;
        self.image[from..stack.start].fill(0);
        self.image[stack.end..].fill(0);
        self.used = self.depth * word;
    }

    /// Where the last sample's captured words are in the image.
    fn last_stack(&self, word: usize) -> core::ops::Range<usize> {
        let start = self.image.len() - self.depth * word;
        start..start + self.captured * word
    }

    /// Whether `raw` shows the thread exactly as its last sample did.
    fn is_same(&self, raw: &RawSample, captured: usize, word: usize) -> bool {
        self.thread == raw.thread
            && self.set == raw.set
            && self.stack_base == raw.stack_base
            && self.captured == captured
            && self.tables_pending == raw.tables_pending
            && self.anchor.wrapping_sub((self.depth * word) as u64) == raw.stack_start
            && self.registers[..raw.registers.len()] == *raw.registers
            && self.image[self.last_stack(word)] == raw.stack[..captured * word]
    }
}

/// The previous sample, to which the next one is written as a difference.
struct PreviousSample<'a> {
    words: Words<'a>,
    keyframe: bool,
    /// Depth of the sample before, in words; 0 at a keyframe.
    previous: usize,
    /// Registers of the sample before; zero at a keyframe.
    old: &'a [u64; MAX_REGISTERS],
}

/// The source of a sample's words.
#[derive(Clone, Copy)]
enum Words<'a> {
    Captured(&'a [u8]),
    /// The image itself, for an unchanged thread whose keyframe is due.
    Image,
}

/// The fields of a SAMPLE that do not come from the image.
struct Extras<'a> {
    time: Ticks,
    code: Option<&'a [u8]>,
    state: RunState,
    tag: Option<u64>,
    context_reply: Option<u32>,
    extra: &'a [(u64, &'a [u8])],
}

/// Numbers the SAMPLES blocks and writes samples into them.
#[derive(Default)]
pub struct SampleEncoder {
    /// Ordinal of the next SAMPLES block.
    next_block: u64,
    /// Samples of an earlier epoch may no longer be cited.
    epoch: u64,
}

impl SampleEncoder {
    /// An encoder for a new trace.
    pub fn new() -> SampleEncoder {
        SampleEncoder::default()
    }

    /// Begins a SAMPLES block at `now`.
    pub fn begin(&mut self, block: &mut BlockBuffer, now: Ticks) {
        block.start(BlockKind::Samples, Some(self.next_block), now);
        self.next_block += 1;
    }

    /// Makes the next event of every thread a keyframe. Call it after each STATE block, and when a
    /// whole SAMPLES block was dropped, so that no later IDLE cites a missing block.
    pub fn renew_keyframes(&mut self) {
        self.epoch += 1;
    }

    /// Takes a captured sample. Writes it in full, or counts it if the thread is as in its last
    /// sample. On an error nothing of the sample is in the block, and the thread's next sample is a
    /// keyframe if necessary.
    pub fn sample(
        &mut self,
        block: &mut BlockBuffer,
        image: &mut ThreadImage,
        raw: &RawSample,
    ) -> Result<SampleOutcome, EncodeError> {
        let word = block.word();
        let captured = check(block, raw, word)?;
        let renewed = image.valid && image.epoch == self.epoch;
        let plain = raw.tag.is_none() && raw.context_reply.is_none() && raw.extra.is_empty();
        if renewed && plain && image.is_same(raw, captured, word) {
            self.count(block, image, raw.time, raw.state)?;
            image.cpu_now = raw.cpu.or(image.cpu_now);
            return Ok(SampleOutcome::Unchanged);
        }
        self.flush_idle(block, image)?;

        let same_stack = image.valid && image.thread == raw.thread && image.stack_base == raw.stack_base;
        let end = raw.stack_start + (captured * word) as u64;
        let mut keyframe = !(renewed && same_stack) || image.set != raw.set || image.block != ordinal(block);
        let most_words = if raw.stack_base == 0 { MAX_FOREIGN_IMAGE_WORDS } else { MAX_IMAGE_WORDS };
        keyframe |= end > image.anchor || (image.anchor - raw.stack_start) as usize / word > most_words;
        let anchor = if keyframe { anchor(raw, end, word) } else { image.anchor };
        let depth = (anchor - raw.stack_start) as usize / word;
        if depth * word > image.image.len() {
            return Err(EncodeError::ImageTooSmall { words: depth });
        }

        let previous = if keyframe { 0 } else { image.depth };
        if keyframe {
            // A keyframe's image is all zero before its runs are applied.
            let from = image.image.len() - image.used;
            image.image[from..].fill(0);
            image.used = 0;
        }
        if image.thread != raw.thread || image.set != raw.set {
            image.reset();
        }
        let old = if keyframe { [0; MAX_REGISTERS] } else { image.registers };
        image.thread = raw.thread;
        image.set = raw.set;
        image.stack_base = raw.stack_base;
        image.tables_pending = raw.tables_pending;
        image.registers[..raw.registers.len()].copy_from_slice(raw.registers);
        image.anchor = anchor;
        image.depth = depth;
        image.captured = captured;
        image.used = image.used.max(depth * word);
        image.cpu_now = raw.cpu.or(image.cpu_now);
        image.valid = false;
        let extras = Extras {
            time: raw.time,
            code: raw.code,
            state: raw.state,
            tag: raw.tag,
            context_reply: raw.context_reply,
            extra: raw.extra,
        };
        let words = Words::Captured(&raw.stack[..captured * word]);
        self.write(block, image, &extras, PreviousSample { words, keyframe, previous, old: &old })?;
        Ok(SampleOutcome::Written)
    }

    /// Takes a pass at `time` that knows, without looking, that the thread has not run since its
    /// last sample. [`EncodeError::NoSample`] if there is none: capture it.
    pub fn same(
        &mut self,
        block: &mut BlockBuffer,
        image: &mut ThreadImage,
        time: Ticks,
        state: RunState,
    ) -> Result<SampleOutcome, EncodeError> {
        if block.kind != BlockKind::Samples {
            return Err(EncodeError::Invalid(LimitError::NotSamplesBlock));
        }
        if !image.valid {
            return Err(EncodeError::NoSample);
        }
        if image.epoch == self.epoch {
            self.count(block, image, time, state)?;
            return Ok(SampleOutcome::Unchanged);
        }
        // The last sample may no longer be cited, so write it again from the image.
        self.flush_idle(block, image)?;
        image.valid = false;
        image.forget_uncaptured(block.word());
        let extras = Extras { time, code: None, state, tag: None, context_reply: None, extra: &[] };
        let zero = [0; MAX_REGISTERS];
        let against = PreviousSample { words: Words::Image, keyframe: true, previous: 0, old: &zero };
        let written = self.write(block, image, &extras, against);
        // Without room, the next block gets it: of the older epoch, the image is no sample to cite.
        image.valid = true;
        written.map(|()| SampleOutcome::Written)
    }

    /// Writes the passes that were counted for this thread: one SAMPLE with the flag SAME, or one
    /// IDLE, with the CPU time that the thread used. Call it for every image before the block is
    /// cut, and before an image is given to another thread. The block has space reserved for it.
    pub fn flush_idle(
        &mut self,
        block: &mut BlockBuffer,
        image: &mut ThreadImage,
    ) -> Result<(), EncodeError> {
        let Some(pending) = image.pending else { return Ok(()) };
        let reserved = pending.block == ordinal(block);
        let limit = if reserved { block.capacity() } else { block.limit() };
        let start = block.buf.len();
        let written = if image.valid && image.block == ordinal(block) {
            put_same(block, image, &pending, limit).map(|()| false)
        } else {
            put_idle(block, image, &pending, limit).and_then(|()| put_cpu(block, image, pending.last, limit))
        };
        let Ok(with_cpu) = written else {
            block.buf.truncate(start);
            return Err(EncodeError::BlockFull);
        };
        image.pending = None;
        if reserved {
            block.pending -= 1;
        }
        block.events += 1 + u32::from(with_cpu);
        block.samples = block.samples.saturating_add(u32::try_from(pending.ticks).unwrap_or(u32::MAX));
        block.last = block.last.max(pending.last);
        block.mark_whole();
        Ok(())
    }

    /// Writes what the thread used since its last event, by the latest reading of its clock
    /// ([`ThreadImage::note_cpu`]) at `time`: call it when no pass of the thread follows. Its
    /// passes are flushed before.
    pub fn last_cpu(
        &mut self,
        block: &mut BlockBuffer,
        image: &mut ThreadImage,
        time: Ticks,
    ) -> Result<(), EncodeError> {
        let (start, limit) = (block.buf.len(), block.limit());
        match put_cpu(block, image, time, limit) {
            Ok(false) => {}
            Ok(true) => {
                block.events += 1;
                block.last = block.last.max(time);
                block.mark_whole();
            }
            Err(_) => {
                block.buf.truncate(start);
                return Err(EncodeError::BlockFull);
            }
        }
        Ok(())
    }

    /// Counts a pass that found the thread unchanged.
    fn count(
        &mut self,
        block: &mut BlockBuffer,
        image: &mut ThreadImage,
        time: Ticks,
        state: RunState,
    ) -> Result<(), EncodeError> {
        if let Some(pending) = &mut image.pending
            && pending.state == state
            && pending.block == ordinal(block)
            && time >= pending.last
        {
            pending.ticks += 1;
            pending.last = time;
            return Ok(());
        }
        self.flush_idle(block, image)?;
        if block.limit() < block.buf.len() + PENDING_MAX {
            return Err(EncodeError::BlockFull);
        }
        image.pending = Some(Pending { ticks: 1, first: time, last: time, state, block: ordinal(block) });
        block.pending += 1;
        Ok(())
    }

    /// Writes a full sample from `image`'s fields. Sets `image.valid` if it succeeds.
    fn write(
        &mut self,
        block: &mut BlockBuffer,
        image: &mut ThreadImage,
        extras: &Extras,
        against: PreviousSample,
    ) -> Result<(), EncodeError> {
        let stack = (image.captured * block.word()) as u64;
        if u64::from(block.stack_bytes) + stack > limits::MAX_BLOCK_STACK {
            return Err(EncodeError::BlockFull);
        }
        let has_slot = image.block == ordinal(block);
        let slot = if has_slot { image.slot } else { block.slots };
        if slot as usize >= limits::MAX_SLOTS {
            return Err(EncodeError::BlockFull);
        }
        let start = block.buf.len();
        let written = (|| {
            if !has_slot {
                let limit = block.limit();
                put_slot(&mut LimitedBuffer { buf: &mut block.buf, limit }, slot, image)?;
            }
            put_sample(block, image, slot, extras, against)
        })();
        let Ok(code) = written else {
            block.buf.truncate(start);
            return Err(EncodeError::BlockFull);
        };
        if let Some((at, len)) = code {
            block.remember_code(image.registers[IP], at, len);
        }
        block.slots += u32::from(!has_slot);
        block.events += 1 + u32::from(!has_slot);
        block.samples = block.samples.saturating_add(1);
        block.stack_bytes += stack as u32;
        block.sample_time = extras.time;
        block.last = block.last.max(extras.time);
        block.mark_whole();
        image.slot = slot;
        image.block = ordinal(block);
        image.epoch = self.epoch;
        image.cpu_written = image.cpu_now;
        image.cpu_stated = 0;
        image.valid = true;
        Ok(())
    }
}

/// The block's ordinal, which identifies it among all SAMPLES blocks.
fn ordinal(block: &BlockBuffer) -> u64 {
    block.ordinal.unwrap_or(u64::MAX)
}

/// Checks a raw sample against the limits. Returns the number of words that it will hold.
fn check(block: &BlockBuffer, raw: &RawSample, word: usize) -> Result<usize, EncodeError> {
    if block.kind != BlockKind::Samples {
        return Err(EncodeError::Invalid(LimitError::NotSamplesBlock));
    }
    if raw.registers.len() != raw.set.len() {
        return Err(EncodeError::Invalid(LimitError::RegisterCount));
    }
    let whole = |value: u64| value.is_multiple_of(word as u64);
    if !(whole(raw.stack.len() as u64) && whole(raw.stack_start) && whole(raw.stack_base)) {
        return Err(EncodeError::Invalid(LimitError::BrokenStackWord));
    }
    let end = raw.stack_start.checked_add(raw.stack.len() as u64);
    if end.is_none_or(|end| end > raw.stack_base && raw.stack_base != 0) {
        return Err(EncodeError::Invalid(LimitError::StackBeyondBase));
    }
    if raw.code.is_some_and(|code| code.len() > limits::MAX_CODE_BYTES) {
        return Err(EncodeError::Invalid(LimitError::TooMuchCode));
    }
    if raw.extra.len() > limits::MAX_EXTRA_RANGES {
        return Err(EncodeError::Invalid(LimitError::TooManyRanges));
    }
    Ok((raw.stack.len() / word).min(limits::MAX_SAMPLE_WORDS))
}

/// Where the image of a keyframe ends: at the stack base. A truncated or foreign sample has no
/// words there, so its image ends no further above the sample's end than the sample is long. The
/// image stays small, and the stack pointer can rise.
fn anchor(raw: &RawSample, end: u64, word: usize) -> u64 {
    let slack = (end - raw.stack_start).max(64 * word as u64);
    let anchor = end.saturating_add(slack) & !(word as u64 - 1);
    if raw.stack_base == 0 { anchor } else { raw.stack_base.min(anchor) }
}
