//! Decodes a SAMPLES block. Each sample updates the stack image of its thread.

use super::BlockError;
use super::budget::ImageBudget;
use crate::DecodeError;
use crate::bytes::{Cursor, unzigzag};
use crate::event::{self, Split};
use crate::header::BlockHeader;
use crate::sample::{MAX_IMAGE_WORDS, flag};
use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use stk_schema::Ticks;
use stk_schema::event::{Event, Idle, RunState, kind};
use stk_schema::limits;
use stk_schema::registers::{IP, MAX_REGISTERS, RegisterSet};

/// One step of a SAMPLES block, in stored order.
#[derive(Debug)]
pub enum SampleStep<'a> {
    /// A thread's registers and stack.
    Sample(Sample<'a>),
    /// Passes that found a thread as in its last [`SampleStep::Sample`] of this block.
    Same(Same),
    /// Passes that found a thread as in its last sample of an earlier block, which `block` names.
    Idle(Idle),
    /// Any other event.
    Other(Event<'a>),
}

/// A sample, decoded.
#[derive(Clone, Debug)]
pub struct Sample<'a> {
    /// Thread instance id.
    pub thread: u64,
    /// The thread's slot in this block: small numbers, for tables.
    pub slot: u32,
    /// When its context was obtained.
    pub time: Ticks,
    /// Which registers `registers` holds.
    pub set: RegisterSet,
    /// Register values in the set's order.
    pub registers: &'a [u64],
    /// Highest address of the thread's stack, exclusive; 0 if the stack is a foreign one: not the
    /// thread's own, its base unknown.
    pub stack_base: u64,
    /// Address of the first byte of `stack`.
    pub stack_start: u64,
    /// The captured words, as bytes, from `stack_start` up.
    pub stack: &'a [u8],
    /// Whether `stack` ends below `stack_base`; always so for a foreign stack.
    pub truncated: bool,
    /// Lowest address from which on, to the end of `stack`, nothing changed since the slot's
    /// previous sample in this block; the end of `stack` if there is none.
    pub unchanged_from: u64,
    /// The words of the stack that were stored with the sample, the lowest first, as bytes: those
    /// that may differ from the slot's previous sample in this block.
    pub changed: &'a [u8],
    /// Code bytes at the instruction pointer as last recorded in this block.
    pub code_at_ip: Option<&'a [u8]>,
    /// What the thread was doing.
    pub state: RunState,
    /// CPU time since the thread's clock was read before (for a SAMPLE, a SAME or a THREAD_CPU), in
    /// the header's unit, if known and not zero.
    pub cpu_delta: Option<i64>,
    /// Given by the caller of a triggered sample.
    pub tag: Option<u64>,
    /// The unwind tables of the module at the instruction pointer were not recorded yet.
    pub tables_pending: bool,
    /// The answer to CONTEXT_EXCEPTION_REQUEST.
    pub context_reply: Option<u32>,
    /// Address ranges beside the main stack.
    pub extra: Extra<'a>,
}

/// Passes that found a thread unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Same {
    /// Thread instance id.
    pub thread: u64,
    /// The thread's slot in this block.
    pub slot: u32,
    /// Time of the first such pass.
    pub first: Ticks,
    /// Time of the last such pass.
    pub last: Ticks,
    /// Number of such passes.
    pub ticks: u64,
    /// The thread's state, as far as it is known.
    pub state: RunState,
    /// CPU time since the thread's clock was read before (for a SAMPLE, a SAME or a THREAD_CPU), in
    /// the header's unit, if known and not zero.
    pub cpu_delta: Option<i64>,
}

/// Address ranges of a sample: an iterator of (address, bytes).
#[derive(Clone, Debug, Default)]
pub struct Extra<'a> {
    stored: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Extra<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let mut cursor = Cursor::new(self.stored);
        // Checked when the sample was decoded.
        let range = (cursor.varint().ok()?, cursor.bytes(usize::MAX).ok()?);
        self.stored = &self.stored[cursor.position()..];
        Some(range)
    }
}

/// A thread slot while its block is decoded.
struct Slot {
    thread: u64,
    set: RegisterSet,
    registers: [u64; MAX_REGISTERS],
    image: Vec<u8>,
    /// Which pages of the image may not be zero, counted from its end.
    dirty: Vec<u64>,
    anchor: u64,
    stack_base: u64,
    depth: usize,
    captured: usize,
    /// Whether it had a keyframe. Samples before the first keyframe cannot be decoded.
    keyed: bool,
}

/// Consecutive words of a sample that differ from the image, in bytes.
#[derive(Clone, Copy)]
struct Run {
    /// From the sample's first word.
    at: u32,
    len: u32,
}

impl Slot {
    /// Writes the words of `runs`, which `words` holds one after the other, into the image. The
    /// sample's first word is at `start` of it.
    fn write(&mut self, start: usize, runs: &[Run], mut words: &[u8]) {
        let Slot { image, dirty, .. } = self;
        let image_len = image.len();
        // Each run lies above the one before, and pages count from the image's end.
        let mut marked = usize::MAX;
        for &Run { at, len } in runs {
            let (at, len) = (start + at as usize, len as usize);
            let (new, rest) = words.split_at(len);
            words = rest;
            let place = &mut image[at..at + len];
            // Most runs are one word, for which a call of memcpy is dear.
            match (<&mut [u8; 8]>::try_from(&mut *place), <&[u8; 8]>::try_from(new)) {
                (Ok(place), Ok(new)) => *place = *new,
                _ => place.copy_from_slice(new),
            }
            let (first, last) = ((image_len - at - len) / PAGE, (image_len - at - 1) / PAGE);
            if first < marked {
                mark(dirty, first..=last.min(marked - 1));
                marked = first;
            }
        }
    }

    /// Zeroes the image; returns how many bytes it wrote.
    fn clear(&mut self) -> u64 {
        let mut zeroed = 0;
        let len = self.image.len();
        for (i, group) in self.dirty.iter_mut().enumerate() {
            while *group != 0 {
                let page = i * 64 + group.trailing_zeros() as usize;
                let range = len - ((page + 1) * PAGE).min(len)..len - page * PAGE;
                zeroed += range.len() as u64;
                self.image[range].fill(0);
                *group &= *group - 1;
            }
        }
        zeroed
    }

    /// Bytes at the image's end that may not be zero.
    fn used(&self) -> usize {
        let last = self.dirty.iter().rposition(|group| *group != 0);
        let pages = last.map_or(0, |i| (i + 1) * 64 - self.dirty[i].leading_zeros() as usize);
        (pages * PAGE).min(self.image.len())
    }
}

/// Marks pages as not zero.
fn mark(dirty: &mut Vec<u64>, pages: RangeInclusive<usize>) {
    for page in pages {
        if page / 64 >= dirty.len() {
            dirty.resize(page / 64 + 1, 0);
        }
        dirty[page / 64] |= 1 << (page % 64);
    }
}

/// All slots of a block; their image memory is kept for the next block.
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// Slots in use in the current block.
    live: usize,
    budget: ImageBudget,
    /// Image bytes taken from the budget.
    held: usize,
    runs: Vec<Run>,
    /// Image bytes that keyframes of the current block zeroed.
    zeroed: u64,
    /// Where the code bytes last recorded for an instruction pointer are in the payload.
    code: HashMap<u64, Range<usize>>,
}

/// Image bytes that a scratch keeps between blocks.
const KEEP: usize = 16 << 20;
/// Image bytes that the keyframes of one block may zero, whatever its size, and for each of its
/// stored bytes: far more than a recorder's keyframes need, since only pages with words are zeroed.
const ZEROED: u64 = 8 << 20;
const ZEROED_PER_BYTE: u64 = 4096;
/// Bytes that are zeroed at once.
const PAGE: usize = 4096;
/// Smallest image allocation.
const LEAST_IMAGE: usize = 16 << 10;

impl Slots {
    pub(crate) fn new(budget: ImageBudget) -> Slots {
        Slots {
            slots: Vec::new(),
            live: 0,
            budget,
            held: 0,
            runs: Vec::new(),
            code: HashMap::new(),
            zeroed: 0,
        }
    }

    fn restart(&mut self) {
        if self.held > KEEP {
            self.slots.clear();
            self.budget.give(self.held);
            self.held = 0;
        }
        self.live = 0;
        self.zeroed = 0;
        self.code.clear();
    }

    fn assign(&mut self, slot: u64, thread: u64, set: RegisterSet) -> bool {
        if slot != self.live as u64 || self.live == limits::MAX_SLOTS {
            return false;
        }
        if self.live == self.slots.len() {
            self.slots.push(Slot {
                thread,
                set,
                registers: [0; MAX_REGISTERS],
                image: Vec::new(),
                dirty: Vec::new(),
                anchor: 0,
                stack_base: 0,
                depth: 0,
                captured: 0,
                keyed: false,
            });
        }
        let entry = &mut self.slots[self.live];
        entry.thread = thread;
        entry.set = set;
        entry.keyed = false;
        self.live += 1;
        true
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.budget.give(self.held);
    }
}

/// The samples and other events of a SAMPLES block, in stored order.
pub struct Samples<'s> {
    split: Split<'s>,
    raw: &'s [u8],
    header: BlockHeader,
    word: usize,
    slots: &'s mut Slots,
    time: Ticks,
    /// Stack bytes decoded so far.
    stack_bytes: u64,
    failed: bool,
}

impl<'s> Samples<'s> {
    pub(crate) fn new(raw: &'s [u8], header: &BlockHeader, word: usize, slots: &'s mut Slots) -> Samples<'s> {
        slots.restart();
        Samples {
            split: Split::new(raw),
            raw,
            header: *header,
            word,
            slots,
            time: header.first,
            stack_bytes: 0,
            failed: false,
        }
    }

    /// The next step, or `None` at the block's end. Its borrows are valid until the next call.
    /// After an error there are no further steps.
    #[allow(clippy::should_implement_trait)] // it lends, which Iterator cannot
    pub fn next(&mut self) -> Result<Option<SampleStep<'_>>, BlockError> {
        if self.failed {
            return Ok(None);
        }
        // Set again below unless the step succeeds.
        self.failed = true;
        let header = self.header;
        let error = move |malformed| BlockError::event(&header, malformed);
        loop {
            let Some((kind, body, at)) = self.split.next_event().map_err(error)? else {
                self.failed = false;
                return Ok(None);
            };
            let within = move |malformed: DecodeError| error(DecodeError { at: at + malformed.at });
            match kind {
                kind::SLOT => self.slot(body).map_err(within)?,
                kind::SAMPLE => {
                    let decoded = self.sample(body, at)?;
                    // Reborrows `self` for the caller, because the slot holds the decoded sample.
                    self.failed = false;
                    return Ok(Some(match decoded {
                        Step::Same(same) => SampleStep::Same(same),
                        Step::Sample(facts) => SampleStep::Sample(self.view(facts)),
                    }));
                }
                kind => {
                    let event = event::decode(kind, body, self.header.first).map_err(within)?;
                    self.failed = false;
                    return Ok(Some(match event {
                        Event::Idle(idle) => SampleStep::Idle(idle),
                        other => SampleStep::Other(other),
                    }));
                }
            }
        }
    }

    fn slot(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let mut c = Cursor::new(body);
        let (slot, thread, set) = (c.varint()?, c.varint()?, c.varint()?);
        let set = RegisterSet::from_id(set).ok_or(c.malformed())?;
        if self.slots.assign(slot, thread, set) { Ok(()) } else { Err(c.malformed()) }
    }

    fn sample(&mut self, body: &'s [u8], at: usize) -> Result<Step<'s>, BlockError> {
        let header = self.header;
        let within =
            move |malformed: DecodeError| BlockError::Event { seq: header.seq, at: at + malformed.at };
        let mut c = Cursor::new(body);
        let head = Head::read(&mut c).map_err(within)?;
        if head.slot >= self.slots.live as u64 {
            return Err(within(DecodeError { at: 0 }));
        }
        let slot = head.slot as usize;
        self.time = Ticks(self.time.0.wrapping_add(head.delta as u64));
        if head.flags & flag::SAME != 0 {
            let entry = &self.slots.slots[slot];
            let (ticks, span) = c.varints().map_err(within)?;
            if ticks == 0 || !entry.keyed {
                return Err(within(c.malformed()));
            }
            return Ok(Step::Same(Same {
                thread: entry.thread,
                slot: slot as u32,
                first: self.time,
                last: Ticks(self.time.0.wrapping_add(span)),
                ticks,
                state: head.state,
                cpu_delta: head.cpu,
            }));
        }
        let word = self.word;
        let shape = self.slots.registers_and_shape(slot, &head, &mut c, word).map_err(within)?;
        self.stack_bytes += (shape.captured * word) as u64;
        if self.stack_bytes > limits::MAX_BLOCK_STACK {
            return Err(BlockError::Limit { seq: header.seq, what: "stack bytes" });
        }
        if !self.slots.grow(slot, shape.depth * word) {
            return Err(BlockError::Budget { seq: header.seq });
        }
        if self.slots.zeroed > ZEROED + ZEROED_PER_BYTE * u64::from(header.stored_len) {
            return Err(BlockError::Limit { seq: header.seq, what: "keyframes" });
        }
        let (unchanged_from, changed) = self.slots.apply(slot, &shape, &mut c, word).map_err(within)?;
        let entry = &self.slots.slots[slot];
        let ip = entry.registers[IP];
        if head.flags & flag::CODE != 0 {
            let code = c.bytes(limits::MAX_CODE_BYTES).map_err(within)?;
            let end = at + c.position();
            self.slots.code.insert(ip, end - code.len()..end);
        }
        let extra = if head.flags & flag::EXTRA != 0 {
            extra(&mut c, body).map_err(within)?
        } else {
            Extra::default()
        };
        let stated = if head.flags & flag::CPU_STATED != 0 { c.signed().map_err(within)? } else { 0 };
        let cpu = head.cpu.map(|cpu| cpu.wrapping_sub(stated)).filter(|&cpu| cpu != 0);
        let code = self.slots.code.get(&ip).filter(|range| !range.is_empty());
        Ok(Step::Sample(Facts {
            slot,
            time: self.time,
            unchanged_from,
            changed,
            code: code.map(|range| &self.raw[range.clone()]),
            state: head.state,
            cpu,
            tag: head.tag,
            context_reply: head.context_reply,
            tables_pending: head.flags & flag::TABLES_PENDING != 0,
            truncated: head.flags & flag::TRUNCATED != 0,
            extra,
        }))
    }

    /// The latest sample of a slot, for which a [`SampleStep::Same`] or a later IDLE stands. The
    /// fields that describe one moment (`time`, `state`, `cpu_delta`, `tag`, `extra`) do not hold
    /// that sample's values. `None` if the slot had no sample yet.
    pub fn last_sample(&self, slot: u32) -> Option<Sample<'_>> {
        let at = slot as usize;
        let entry = self.slots.slots[..self.slots.live].get(at).filter(|entry| entry.keyed)?;
        let code = self.slots.code.get(&entry.registers[IP]).filter(|range| !range.is_empty());
        let end = entry.anchor - ((entry.depth - entry.captured) * self.word) as u64;
        let facts = Facts {
            slot: at,
            time: self.time,
            unchanged_from: u64::MAX,
            changed: &[],
            code: code.map(|range| &self.raw[range.clone()]),
            state: RunState::Unknown,
            cpu: None,
            tag: None,
            context_reply: None,
            tables_pending: false,
            truncated: end < entry.stack_base || entry.stack_base == 0,
            extra: Extra::default(),
        };
        Some(self.view(facts))
    }

    /// The slot of a thread, if it has had a sample in this block so far.
    pub fn slot_of(&self, thread: u64) -> Option<u32> {
        let slots = &self.slots.slots[..self.slots.live];
        slots.iter().rposition(|slot| slot.keyed && slot.thread == thread).map(|slot| slot as u32)
    }

    fn view<'a>(&'a self, facts: Facts<'a>) -> Sample<'a> {
        let slot = &self.slots.slots[facts.slot];
        let start = slot.image.len() - slot.depth * self.word;
        Sample {
            thread: slot.thread,
            slot: facts.slot as u32,
            time: facts.time,
            set: slot.set,
            registers: &slot.registers[..slot.set.len()],
            stack_base: slot.stack_base,
            stack_start: slot.anchor - (slot.depth * self.word) as u64,
            stack: &slot.image[start..start + slot.captured * self.word],
            truncated: facts.truncated,
            unchanged_from: facts.unchanged_from,
            changed: facts.changed,
            code_at_ip: facts.code,
            state: facts.state,
            cpu_delta: facts.cpu,
            tag: facts.tag,
            tables_pending: facts.tables_pending,
            context_reply: facts.context_reply,
            extra: facts.extra,
        }
    }
}

/// The result of decoding one SAMPLE event.
enum Step<'s> {
    Same(Same),
    Sample(Facts<'s>),
}

/// The fields of a sample that its slot does not hold.
struct Facts<'s> {
    slot: usize,
    time: Ticks,
    unchanged_from: u64,
    changed: &'s [u8],
    code: Option<&'s [u8]>,
    state: RunState,
    cpu: Option<i64>,
    tag: Option<u64>,
    context_reply: Option<u32>,
    tables_pending: bool,
    truncated: bool,
    extra: Extra<'s>,
}

/// The fields that every SAMPLE begins with.
struct Head {
    slot: u64,
    delta: i64,
    flags: u64,
    state: RunState,
    tag: Option<u64>,
    cpu: Option<i64>,
    context_reply: Option<u32>,
}

impl Head {
    fn read(c: &mut Cursor) -> Result<Head, DecodeError> {
        let ((slot, delta), flags) = (c.varints()?, c.varint()?);
        Ok(Head {
            slot,
            delta: unzigzag(delta),
            flags,
            state: RunState::from_code((flags & flag::STATE) >> flag::STATE_SHIFT),
            tag: if flags & flag::TRIGGERED != 0 { Some(c.varint()?) } else { None },
            cpu: if flags & flag::CPU != 0 { Some(c.signed()?) } else { None },
            context_reply: if flags & flag::CONTEXT_REPLY != 0 { Some(c.varint32()?) } else { None },
        })
    }
}

/// Where a sample's words lie.
struct Shape {
    anchor: u64,
    stack_base: u64,
    depth: usize,
    captured: usize,
    keyframe: bool,
}

impl Slots {
    /// Reads changed registers (into the slot) and the sample's shape (checked, but not yet the
    /// slot's).
    fn registers_and_shape(
        &mut self,
        slot: usize,
        head: &Head,
        c: &mut Cursor,
        word: usize,
    ) -> Result<Shape, DecodeError> {
        let entry = &mut self.slots[slot];
        let keyframe = head.flags & flag::KEYFRAME != 0;
        if !keyframe && !entry.keyed {
            return Err(c.malformed());
        }
        if keyframe {
            entry.registers = [0; MAX_REGISTERS];
            entry.keyed = true;
        }
        let mut mask = c.varint()?;
        if mask >> entry.set.len() != 0 {
            return Err(c.malformed());
        }
        for bytes in c.take(mask.count_ones() as usize * word)?.chunks_exact(word) {
            let value = match (bytes.try_into(), bytes.try_into()) {
                (Ok(value), _) => u64::from_le_bytes(value),
                (_, Ok(value)) => u64::from(u32::from_le_bytes(value)),
                _ => return Err(c.malformed()),
            };
            entry.registers[mask.trailing_zeros() as usize] = value;
            mask &= mask - 1;
        }
        let (mut anchor, mut stack_base) = (entry.anchor, entry.stack_base);
        if keyframe {
            anchor = c.varint()?;
            let gap = c.varint()?.checked_mul(word as u64);
            stack_base = gap.and_then(|gap| anchor.checked_add(gap)).ok_or(c.malformed())?;
        }
        if head.flags & flag::FOREIGN != 0 {
            stack_base = 0;
        }
        let previous = if keyframe { 0 } else { entry.depth as i64 };
        let depth = previous.checked_add(c.signed()?).and_then(|depth| usize::try_from(depth).ok());
        let depth = depth.filter(|&depth| depth <= MAX_IMAGE_WORDS && (depth * word) as u64 <= anchor);
        let depth = depth.ok_or(c.malformed())?;
        let mut captured = depth;
        if head.flags & flag::TRUNCATED != 0 {
            captured = usize::try_from(c.varint()?).map_err(|_| c.malformed())?;
        } else if anchor != stack_base {
            return Err(c.malformed());
        }
        if captured > depth || captured > limits::MAX_SAMPLE_WORDS {
            return Err(c.malformed());
        }
        Ok(Shape { anchor, stack_base, depth, captured, keyframe })
    }

    /// Makes a slot's image hold at least `len` bytes; `false` if the budget does not allow it.
    fn grow(&mut self, slot: usize, len: usize) -> bool {
        let entry = &mut self.slots[slot];
        let have = entry.image.len();
        if len <= have {
            return true;
        }
        let want = len.next_power_of_two().max(LEAST_IMAGE);
        if !self.budget.take(want - have) {
            return false;
        }
        self.held += want - have;
        let used = entry.used();
        let mut image = vec![0; want];
        image[want - used..].copy_from_slice(&entry.image[have - used..]);
        entry.image = image;
        true
    }

    /// Reads the runs and the changed words into the slot's image. Returns the lowest address from
    /// which on nothing changed since the slot's previous sample, and the words.
    fn apply<'s>(
        &mut self,
        slot: usize,
        shape: &Shape,
        c: &mut Cursor<'s>,
        word: usize,
    ) -> Result<(u64, &'s [u8]), DecodeError> {
        let captured = shape.captured;
        self.runs.clear();
        let (mut at, mut changed_words, mut changed_to) = (0, 0, 0);
        while at < captured {
            let left = captured - at;
            let (changed, same) = c.varints()?;
            // Both are compared before they are added, because neither need be small.
            if changed > left as u64 || same > left as u64 - changed || changed + same == 0 {
                return Err(c.malformed());
            }
            let changed = changed as usize;
            if changed > 0 {
                self.runs.push(Run { at: (at * word) as u32, len: (changed * word) as u32 });
                changed_words += changed;
                changed_to = at + changed;
            }
            at += changed + same as usize;
        }
        let words = c.take(changed_words * word)?;
        let entry = &mut self.slots[slot];
        if shape.keyframe {
            self.zeroed += entry.clear();
        }
        let address = |depth: usize| shape.anchor - (depth * word) as u64;
        let before = (address(entry_depth(entry, shape)), entry.captured);
        let start = entry.image.len() - shape.depth * word;
        entry.write(start, &self.runs, words);
        let now = address(shape.depth);
        let end = now + (captured * word) as u64;
        let ends_as_before = before.0 + (before.1 * word) as u64 == end;
        entry.anchor = shape.anchor;
        entry.stack_base = shape.stack_base;
        entry.depth = shape.depth;
        entry.captured = captured;
        if shape.keyframe || !ends_as_before {
            return Ok((end, words));
        }
        // Words below the previous sample's stack pointer may equal the image although that sample
        // did not hold them.
        Ok(((now + (changed_to * word) as u64).max(before.0).min(end), words))
    }
}

/// Depth of the slot's previous sample; 0 at a keyframe.
fn entry_depth(entry: &Slot, shape: &Shape) -> usize {
    if shape.keyframe { 0 } else { entry.depth }
}

/// Checks the address ranges at the cursor.
fn extra<'s>(c: &mut Cursor<'s>, body: &'s [u8]) -> Result<Extra<'s>, DecodeError> {
    let left = c.count(limits::MAX_EXTRA_RANGES, 2)?;
    let start = c.position();
    for _ in 0..left {
        c.varint()?;
        c.bytes(usize::MAX)?;
    }
    Ok(Extra { stored: &body[start..c.position()], left })
}
