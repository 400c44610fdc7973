//! What happened in a trace, event by event in time: captures, marks, exceptions, modules that come
//! and go, threads that begin and end.
//!
//! The first pass knows all of them but captures, and marks and exceptions beside samples: those
//! are in SAMPLES blocks. Whoever walks these collects them as [`SeenEvents`]; [`events`] decodes
//! the blocks that nobody has read, without walking a stack.

use super::{Trace, beyond_memory};
use rayon::prelude::*;
use std::collections::HashMap;
use stk_format::{BlockError, BlockRef, ImageBudget, SampleStep, Scratch};
use stk_schema::Ticks;
use stk_schema::event::{Dropped, Event, Exception, ModuleFlags, ThreadFlags};

/// The events of a trace.
#[derive(Default, Debug)]
pub struct TraceEvents {
    /// By time. Events of one time are sorted by thread instance, those of no thread first, then as
    /// [`EventKind`] lists them, then as they are stored.
    pub list: Vec<TraceEvent>,
    /// What the recorder dropped, as reported among samples.
    pub dropped: Vec<Dropped>,
    /// SAMPLES blocks that could not be read to their end, by their numbers among those blocks.
    pub damaged_blocks: Vec<u32>,
    /// Why events of blocks of samples are missing, one sentence each.
    pub damage: Vec<String>,
    /// Events that were left out for lack of memory.
    pub left_out: u64,
}

/// Something that happened at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// Its number among all events of the trace, from 1. The same for every reading of a trace.
    pub number: u64,
    pub time: Ticks,
    /// Thread instance; `None` = the process.
    pub thread: Option<u64>,
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// The module (index in [`Timeline::modules`](super::Timeline::modules)) went.
    Unload { module: u32 },
    /// The module (index in [`Timeline::modules`](super::Timeline::modules)) came.
    Load { module: u32 },
    /// The thread began.
    ThreadStart,
    /// The thread got another name: its renaming with this number
    /// ([`Thread::renaming`](super::Thread::renaming)).
    ThreadName { number: u32 },
    /// The program marked this time.
    Mark { tag: u64, text: String },
    /// An exception was seen.
    Exception { code: u32, address: u64 },
    /// The thread called `stk_capture(tag)`.
    Capture { tag: u64, place: SamplePlace },
    /// The thread ended.
    ThreadExit,
}

/// Where in a trace a sample is stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SamplePlace {
    /// Number of its block among the SAMPLES blocks of the trace.
    pub block: u32,
    /// Its number among the block's samples, without those that repeat one.
    pub number: u32,
}

impl EventKind {
    /// Stable name for outputs.
    pub fn as_str(&self) -> &'static str {
        match self {
            EventKind::Unload { .. } => "unload",
            EventKind::Load { .. } => "load",
            EventKind::ThreadStart => "thread-start",
            EventKind::ThreadName { .. } => "thread-name",
            EventKind::Mark { .. } => "mark",
            EventKind::Exception { .. } => "exception",
            EventKind::Capture { .. } => "capture",
            EventKind::ThreadExit => "thread-exit",
        }
    }

    /// The tag of a capture or a mark.
    pub fn tag(&self) -> Option<u64> {
        match self {
            EventKind::Capture { tag, .. } | EventKind::Mark { tag, .. } => Some(*tag),
            _ => None,
        }
    }

    /// The order of events of one time and one thread.
    fn rank(&self) -> u8 {
        match self {
            EventKind::Unload { .. } => 0,
            EventKind::Load { .. } => 1,
            EventKind::ThreadStart => 2,
            EventKind::ThreadName { .. } => 3,
            EventKind::Mark { .. } => 4,
            EventKind::Exception { .. } => 5,
            EventKind::Capture { .. } => 6,
            EventKind::ThreadExit => 7,
        }
    }
}

/// Bytes that an event takes with what is written of it (some 400 bytes of JSON, twice in memory),
/// beside its texts.
const EVENT: usize = 1280;
/// Bytes that each byte of an event's texts takes with what is written of it (JSON writes a control
/// character as six).
const TEXT: usize = 16;

/// The events of a trace. Runs in the caller's rayon pool. The result does not depend on the size
/// of that pool.
pub fn events(trace: &Trace<'_>) -> TraceEvents {
    events_beside(trace, SeenEvents::default())
}

/// As [`events`], but does not read the blocks again whose events were seen.
pub(crate) fn events_beside(trace: &Trace<'_>, mut seen: SeenEvents) -> TraceEvents {
    let mut found = TraceEvents::default();
    of_timeline(trace, &mut found);
    let blocks: Vec<(u32, &BlockRef)> = (0..).zip(trace.sample_blocks()).collect();
    for blocks in blocks.chunks(4 * rayon::current_num_threads()) {
        let unread: Vec<(u32, &BlockRef)> =
            blocks.iter().copied().filter(|(at, _)| !seen.blocks.contains_key(at)).collect();
        let mut read = read_blocks(trace, &unread).into_iter();
        let in_order = |(at, _): &(u32, _)| seen.blocks.remove(at).or_else(|| read.next());
        for block in blocks.iter().filter_map(in_order) {
            block.events.into_iter().for_each(|event| found.add(trace, event));
            found.dropped.extend(block.dropped);
            if let Some(error) = block.error {
                found.damage.push(error.to_string());
                found.damaged_blocks.push(block.at);
            }
            if block.left_out > 0 {
                found.damage.push(format!(
                    "block {}: {} events are left out: they take more memory than a block may (--max-memory)",
                    block.seq, block.left_out
                ));
            }
        }
        if let Some((_, block)) = unread.last() {
            trace.release(block.offset as usize);
        }
    }
    found.damage.extend(trace.lost().filter(|lost| !trace.damage.contains(lost)));
    found.list.sort_by_key(|event| (event.time, event.thread, event.kind.rank()));
    for (number, event) in (1..).zip(&mut found.list) {
        event.number = number;
    }
    found
}

impl TraceEvents {
    /// What is missing, one sentence each.
    pub fn problems(&self, trace: &Trace<'_>) -> Vec<String> {
        let mut problems = self.damage.clone();
        if self.left_out > 0 {
            problems.push(beyond_memory(self.left_out, "events", &trace.budget));
        }
        problems
    }

    /// Adds an event, if there is memory for it.
    fn add(&mut self, trace: &Trace<'_>, event: TraceEvent) {
        let timeline = &trace.timeline;
        let thread = event.thread.and_then(|thread| timeline.thread(thread));
        let name = thread.map_or(0, |thread| thread.name_at(event.time).len());
        let text = match &event.kind {
            EventKind::Load { module } | EventKind::Unload { module } => {
                timeline.images[timeline.modules[*module as usize].image.0 as usize].image.path.len()
            }
            EventKind::Mark { text, .. } => text.len(),
            EventKind::ThreadName { number } => {
                thread.map_or(0, |thread| thread.renaming(*number as usize).map(str::len).iter().sum())
            }
            _ => 0,
        };
        if trace.budget.take(EVENT + TEXT * (name + text)) {
            self.list.push(event);
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }
}

/// Adds what the first pass has read. What was there at the start of the recording did not come,
/// and the recorder's own threads are left out.
fn of_timeline(trace: &Trace<'_>, found: &mut TraceEvents) {
    let timeline = &trace.timeline;
    let mut add = |time, thread, kind| found.add(trace, TraceEvent { number: 0, time, thread, kind });
    for (module, at) in (0..).zip(&timeline.modules) {
        if !at.flags.contains(ModuleFlags::AT_START) {
            add(at.load, None, EventKind::Load { module });
        }
        if let Some(time) = at.unload {
            add(time, None, EventKind::Unload { module });
        }
    }
    for thread in timeline.threads.iter().filter(|thread| !thread.flags.contains(ThreadFlags::RECORDER)) {
        if !thread.flags.contains(ThreadFlags::AT_START) {
            add(thread.start, Some(thread.instance), EventKind::ThreadStart);
        }
        for (number, (time, _)) in (0..).zip(&thread.earlier_names) {
            add(*time, Some(thread.instance), EventKind::ThreadName { number });
        }
        if let Some(time) = thread.exit {
            add(time, Some(thread.instance), EventKind::ThreadExit);
        }
    }
    for mark in &timeline.marks {
        add(mark.time, of_thread(mark.thread), EventKind::Mark { tag: mark.tag, text: mark.text.clone() });
    }
    for exception in &timeline.exceptions {
        let kind = EventKind::Exception { code: exception.code, address: exception.address };
        add(exception.time, of_thread(exception.thread), kind);
    }
}

/// The thread of an event whose thread may be 0, the process.
fn of_thread(instance: u64) -> Option<u64> {
    (instance != 0).then_some(instance)
}

/// The events of blocks that were read for their samples.
#[derive(Default, Debug)]
pub struct SeenEvents {
    /// By their numbers among the SAMPLES blocks.
    blocks: HashMap<u32, BlockEvents>,
    /// Bytes that they take.
    memory: usize,
}

/// Bytes that the seen events of a block and of all blocks may take. Blocks beyond are read again.
const MOST_SEEN_OF_BLOCK: usize = 1 << 20;
const MOST_SEEN: usize = 8 << 20;

impl SeenEvents {
    /// Adds the events of a whole block.
    pub(crate) fn add(&mut self, block: BlockEvents) {
        let memory = self.memory + block.memory_used();
        if memory <= MOST_SEEN {
            self.memory = memory;
            self.blocks.insert(block.at, block);
        }
    }
}

/// The events of one block.
#[derive(Debug)]
pub(crate) struct BlockEvents {
    /// Sequence number of the block.
    seq: u64,
    /// Its number among the SAMPLES blocks.
    at: u32,
    events: Vec<TraceEvent>,
    dropped: Vec<Dropped>,
    /// Events that were left out for lack of memory.
    left_out: u64,
    /// Why the block could not be read to its end.
    error: Option<BlockError>,
    /// Samples so far, without those that repeat one.
    samples: u32,
    /// Bytes that its events may take, and those that they may still take.
    most_memory: usize,
    memory: usize,
}

/// Bytes of memory that the events of a block may take, and the addition for each byte of it in the
/// file. A recorder's block has far fewer events.
const MEMORY: usize = 4 << 20;
const MEMORY_PER_BYTE: usize = 32;
/// The limit for large blocks, unless `--max-memory` allows for many such blocks.
const MOST_MEMORY: usize = 32 << 20;
/// The memory for the trace is enough for this many blocks of the largest size.
const BLOCKS: u64 = 64;

/// Reads blocks, each as one task.
fn read_blocks(trace: &Trace<'_>, blocks: &[(u32, &BlockRef)]) -> Vec<BlockEvents> {
    let budget = ImageBudget::default();
    let read = |scratch: &mut Scratch, &(at, block): &(u32, &BlockRef)| {
        let mut events = BlockEvents::new(trace, at, block);
        events.error = events.read(trace, block, scratch).err();
        events
    };
    let all = blocks.par_iter().map_init(|| Scratch::with_budget(&budget), read);
    let mut all: Vec<BlockEvents> = all.collect();
    for (events, block) in all.iter_mut().zip(blocks) {
        if matches!(events.error, Some(BlockError::Budget { .. })) {
            // The other workers had used the memory budget.
            *events = read(&mut Scratch::new(), block);
        }
    }
    all
}

impl BlockEvents {
    /// Those of a block with this number among the SAMPLES blocks.
    pub(crate) fn new(trace: &Trace<'_>, at: u32, block: &BlockRef) -> BlockEvents {
        let stored = block.header.stored_len as usize;
        let own = stored.saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY).min(MOST_MEMORY);
        let allowed = usize::try_from(trace.budget.all() / BLOCKS).unwrap_or(usize::MAX);
        let seq = block.header.seq;
        let memory = own.max(allowed);
        BlockEvents {
            seq,
            at,
            events: Vec::new(),
            dropped: Vec::new(),
            left_out: 0,
            error: None,
            samples: 0,
            most_memory: memory,
            memory,
        }
    }

    /// Bytes that it takes.
    fn memory_used(&self) -> usize {
        size_of::<(u32, BlockEvents)>() + self.most_memory - self.memory
    }

    /// Whether the block's events are so many that it has to be read again for them.
    pub(crate) fn is_large(&self) -> bool {
        self.memory_used() > MOST_SEEN_OF_BLOCK || self.left_out > 0
    }

    /// Reads the block up to its end or the first error.
    fn read(&mut self, trace: &Trace<'_>, block: &BlockRef, scratch: &mut Scratch) -> Result<(), BlockError> {
        let mut samples = trace.blocks().samples(block, scratch)?;
        while let Some(step) = samples.next()? {
            self.see(&step);
        }
        Ok(())
    }

    /// Takes the event of the block's next step, if it is one.
    pub(crate) fn see(&mut self, step: &SampleStep<'_>) {
        match step {
            SampleStep::Sample(sample) => {
                if let Some(tag) = sample.tag {
                    let place = SamplePlace { block: self.at, number: self.samples };
                    self.add(sample.time, sample.thread, EventKind::Capture { tag, place });
                }
                self.samples += 1;
            }
            SampleStep::Other(Event::Mark(mark)) => {
                let text = String::from_utf8_lossy(mark.text).into_owned();
                self.add(mark.time, mark.thread, EventKind::Mark { tag: mark.tag, text });
            }
            SampleStep::Other(Event::Exception(Exception { thread, time, code, address })) => {
                self.add(*time, *thread, EventKind::Exception { code: *code, address: *address });
            }
            SampleStep::Other(Event::Dropped(dropped)) => self.drop(*dropped),
            _ => {}
        }
    }

    fn drop(&mut self, dropped: Dropped) {
        if let Some(rest) = self.memory.checked_sub(size_of::<Dropped>()) {
            self.memory = rest;
            self.dropped.push(dropped);
        } else {
            self.left_out += 1;
        }
    }

    fn add(&mut self, time: Ticks, thread: u64, kind: EventKind) {
        let text = if let EventKind::Mark { text, .. } = &kind { text.len() } else { 0 };
        match self.memory.checked_sub(size_of::<TraceEvent>() + text) {
            Some(rest) => {
                self.memory = rest;
                self.events.push(TraceEvent { number: 0, time, thread: of_thread(thread), kind });
            }
            None => self.left_out += 1,
        }
    }
}
