//! One SAMPLES block: a worker decodes it, walks its stacks and lists those that differ.

use super::stacks::{BaseStack, NewStacks, StackHash, StackTable, WorkerStackId, WorkerStacks};
use super::{BuildInputs, PlacedBlock};
use crate::profile::RunFlags;
use crate::stack::{Assumed, StackWalker, StopReason, ThreadStack, cost};
use crate::trace::{BlockEvents, ManagedState, ManagedTracker, Mark, SampleCopy, take_managed};
use hashbrown::HashMap;
use stk_format::{BlockError, BlockRef, ImageBudget, Same, SampleStep, Samples, Scratch};
use stk_schema::Ticks;
use stk_schema::event::kind::is_reserved;
use stk_schema::event::{Event, RunState, ThreadCpu};
use stk_unwind::{Frame, ModuleId, Stop, WalkOptions};

/// The result of one block. Ids are the block's own, those of stacks the worker's.
#[derive(Default)]
pub(super) struct BlockProfile {
    pub stacks: NewStacks,
    pub stops: Vec<StopKey>,
    pub steps: Vec<Step>,
    pub marks: Vec<Mark>,
    /// Its events for [`add_events`](crate::profile::add_events), if it was read to its end and
    /// they are few.
    pub events: Option<BlockEvents>,
    /// Samples and events that the recorder dropped: reason and count.
    pub dropped: Vec<(u64, u64)>,
    pub unknown_events: u64,
    /// Samples whose stack ended because their module's tables were never recorded.
    pub tables_pending: u64,
    /// Walks whose stack is too deep to be shown whole, and the most frames that are left out of
    /// one.
    pub too_deep: u64,
    pub most_left_out: u64,
    /// Readings of threads' clocks that are before the reading before.
    pub clock_jumps: u64,
    /// Threads whose last stack here will mean something else from a time on, since a module of it
    /// goes or comes.
    pub expires: Vec<(u64, Ticks)>,
    /// Why the block could not be read to its end.
    pub error: Option<BlockError>,
    /// Why the end of the block is left out, if it is.
    pub cut: Option<BlockLimit>,
    /// What walking its stacks cost, in the unit of [`cost`].
    pub cost: u64,
}

/// The limit that a block exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockLimit {
    /// Its results take all memory that a block may use.
    Memory,
    /// Walking its stacks takes all time that a block may use.
    Cost,
}

/// Bytes of memory that the results of a block may take, and the addition for each byte of it in
/// the file. Several blocks are in memory at once.
const MEMORY: usize = 4 << 20;
const MEMORY_PER_BYTE: usize = 32;
/// The limit for large blocks, unless `--max-memory` allows for many such blocks.
const MOST_MEMORY: usize = 32 << 20;
/// The memory for the trace is enough for this many blocks of the largest size.
const BLOCKS: u64 = 64;

/// Why stacks of a block end, and the module to blame.
pub(super) type StopKey = (StopReason, Option<ModuleId>);

/// Consecutive samples of a thread that are equal in all fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Thread instance.
    pub thread: u64,
    /// Times of the first and the last sample.
    pub first: Ticks,
    pub last: Ticks,
    /// 0: a reading of the thread's clock behind its last sample ([`StepStack::Before`]).
    pub samples: u64,
    /// In the unit of the header.
    pub cpu: i64,
    pub state: RunState,
    pub stack: StepStack,
}

impl Step {
    /// The part before `time` (maybe of no samples) and the part from then on. Samples are evenly
    /// spaced.
    pub(super) fn split(self, time: Ticks) -> (Step, Option<Step>) {
        if self.last < time {
            return (self, None);
        }
        let n = partition(self.samples, |i| self.time_of(i) < time);
        let rest = self.part(n, self.samples);
        (self.part(0, n), (rest.samples != 0).then_some(rest))
    }

    /// The samples from number `first` up to, but not including, number `end`.
    pub(super) fn part(self, first: u64, end: u64) -> Step {
        if first >= end {
            return Step { samples: 0, cpu: 0, ..self };
        }
        Step {
            first: self.time_of(first),
            last: self.time_of(end - 1),
            samples: end - first,
            cpu: (i128::from(self.cpu) * i128::from(end - first) / i128::from(self.samples)) as i64,
            ..self
        }
    }

    /// When sample number `i` was taken.
    pub(super) fn time_of(&self, i: u64) -> Ticks {
        let span = self.last.saturating_sub(self.first);
        let gaps = self.samples.saturating_sub(1).max(1);
        self.first + Ticks((u128::from(span.0) * u128::from(i) / u128::from(gaps)) as u64)
    }
}

/// How many of the numbers below `len` satisfy `before`. It must hold for the first of them and for
/// none after those.
pub(super) fn partition(len: u64, before: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StepStack {
    /// A stack of this block.
    Known(BlockStack),
    /// The stack of the thread's last sample in the SAMPLES block with this ordinal.
    LastOf(u64),
    /// That of the thread's step before. The step has no samples: it is CPU time alone.
    Before,
}

impl StepStack {
    /// Whether `stk_capture` took the sample.
    fn is_capture(self) -> bool {
        matches!(self, StepStack::Known(stack) if stack.flags.contains(RunFlags::TRIGGERED))
    }
}

/// A walked stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockStack {
    /// `None`: it has no frames.
    pub id: Option<WorkerStackId>,
    /// Index in [`BlockProfile::stops`].
    pub stop: u16,
    pub flags: RunFlags,
    /// The tag of a triggered sample; 0 for others.
    pub tag: u64,
}

impl BlockStack {
    /// The stack of samples that repeat this one without a request.
    fn repeated(self) -> BlockStack {
        BlockStack { flags: self.flags - RunFlags::TRIGGERED, tag: 0, ..self }
    }
}

/// What a worker keeps between blocks.
pub(super) struct BlockWorker<'i> {
    inputs: &'i BuildInputs<'i>,
    scratch: Scratch,
    walker: StackWalker<'i>,
    slots: Vec<Slot>,
    stacks: WorkerStacks,
}

/// The state of a thread within a block.
#[derive(Default)]
pub(super) struct Slot {
    /// Its last walk, and the hash of the stack up to each frame, outermost first.
    pub(super) stack: ThreadStack,
    pub(super) hashes: Vec<StackHash>,
    /// How many of them are of the stack before, too.
    pub(super) shared: usize,
    /// The stack that was interned last.
    pub(super) base: Option<BaseStack>,
    /// The largest number of frames that it had in this block.
    pub(super) deepest: usize,
    /// What a runtime reported about the thread at that sample.
    pub(super) managed: Option<ManagedState>,
    pub(super) flags: RunFlags,
    /// The tag of a triggered sample; 0 for others.
    pub(super) tag: u64,
    /// From when on its last walk may mean something else.
    pub(super) expires: Ticks,
    pub(super) thread: u64,
    pub(super) last: Option<BlockStack>,
    /// Index of its latest step.
    pub(super) step: Option<usize>,
    /// Whether the thread was walked in this block.
    pub(super) live: bool,
}

impl<'i> BlockWorker<'i> {
    /// A worker. No other one has its number.
    pub(super) fn new(inputs: &'i BuildInputs<'i>, budget: &ImageBudget, worker: u32) -> BlockWorker<'i> {
        let mut options = WalkOptions::default();
        options.scan = inputs.options.scan;
        if let Some(most) = inputs.options.max_frames {
            options.max_frames = most as usize;
        }
        BlockWorker {
            inputs,
            scratch: Scratch::with_budget(budget),
            walker: StackWalker::new(inputs.trace, inputs.images, &inputs.explicit, options),
            slots: Vec::new(),
            stacks: WorkerStacks::new(StackTable { worker, number: inputs.next_table() }),
        }
    }

    /// Reads a block up to its end or the first error.
    pub(super) fn block(&mut self, block: &PlacedBlock) -> BlockProfile {
        self.forget_many();
        self.read_block(block).unwrap_or_else(|| {
            // What is cut must not depend on what the worker knows: an empty table is exact.
            self.stacks.clear(self.inputs.next_table());
            self.read_block(block).unwrap_or_default()
        })
    }

    /// Forgets the stacks if they are more than are kept for another block.
    fn forget_many(&mut self) {
        if self.stacks.is_large() {
            self.stacks.clear(self.inputs.next_table());
        }
    }

    /// Reads a block. `None`: its stacks may take more memory than a block may; only a worker that
    /// knows none can decide that.
    fn read_block(&mut self, PlacedBlock { block, number, .. }: &PlacedBlock) -> Option<BlockProfile> {
        let mut events = Some(BlockEvents::new(self.inputs.trace, *number, block));
        // The view's earlier moment depends on which worker took which block, so this move is not
        // counted here. The merger counts it.
        self.walker.space(block.header.first);
        self.walker.take_cost();
        let (mut reader, samples) = self.read(block);
        match samples {
            Ok(mut samples) => loop {
                reader.out.cut = reader.is_full();
                if reader.out.cut == Some(BlockLimit::Memory) && !reader.is_exact {
                    return None;
                }
                if reader.out.cut.is_some() {
                    break;
                }
                let step = samples.next();
                if let (Some(seen), Ok(Some(step))) = (&mut events, &step) {
                    seen.see(step);
                    if seen.is_large() {
                        events = None;
                    }
                }
                // By reference: a decoded sample is large.
                match &step {
                    Ok(Some(SampleStep::Same(same))) => {
                        let same = *same;
                        reader.release();
                        reader.same(&samples, same);
                    }
                    Ok(Some(decoded)) => reader.step(decoded),
                    Ok(None) => break,
                    Err(error) => {
                        reader.out.error = Some(*error);
                        break;
                    }
                }
            },
            Err(error) => reader.out.error = Some(error),
        }
        let is_whole = reader.out.cut.is_none() && reader.out.error.is_none();
        reader.out.events = events.filter(|_| is_whole);
        reader.release();
        for slot in reader.slots.iter().filter(|slot| slot.live && slot.expires != Ticks::MAX) {
            reader.out.expires.push((slot.thread, slot.expires));
        }
        Some(reader.end())
    }

    /// Walks a thread's last sample of a block once more, among the modules of another time. The
    /// result's only step has that stack; there is none if the block does not hold what it did
    /// before.
    pub(super) fn again(&mut self, block: &BlockRef, thread: u64, time: Ticks) -> BlockProfile {
        self.forget_many();
        let (mut reader, samples) = self.read(block);
        if let Ok(mut samples) = samples {
            let mut managing = ManagedTracker::new(thread);
            while let Ok(Some(decoded)) = samples.next() {
                managing.see(&decoded);
            }
            let last = samples.slot_of(thread).and_then(|slot| samples.last_sample(slot));
            if let Some(mut sample) = last {
                sample.time = time;
                let stack = StepStack::Known(reader.walk(&sample, managing.latest));
                let expires = reader.slots[sample.slot as usize].expires;
                let step = Step {
                    thread,
                    first: time,
                    last: time,
                    samples: 0,
                    cpu: 0,
                    state: RunState::Unknown,
                    stack,
                };
                reader.out.steps.push(step);
                reader.out.expires.push((thread, expires));
            }
        }
        reader.out.cost += u64::from(block.header.raw_len) * cost::BYTES_AGAIN;
        reader.end()
    }

    fn read<'w>(&'w mut self, block: &BlockRef) -> (BlockReader<'w, 'i>, Result<Samples<'w>, BlockError>) {
        let BlockWorker { inputs, scratch, walker, slots, stacks } = self;
        // Threads of other blocks are dropped once they take as much memory as a block may.
        if slots.iter().map(Slot::memory).sum::<usize>() > MEMORY {
            slots.clear();
        }
        for slot in slots.iter_mut() {
            slot.live = false;
            slot.managed = None;
        }
        let stored = block.header.stored_len as usize;
        let most = stored.saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY).min(MOST_MEMORY);
        let is_exact = stacks.is_empty();
        stacks.begin();
        let reader = BlockReader {
            inputs,
            walker,
            slots,
            stacks,
            is_exact,
            known: block.metadata_known || inputs.options.salvage,
            assumed: Assumed::of(block),
            stop_ids: HashMap::new(),
            last_stop: None,
            walked_step: None,
            pending: None,
            idle: None,
            walked: 0,
            marked: 0,
            most: most.max(usize::try_from(inputs.trace.budget.all() / BLOCKS).unwrap_or(usize::MAX)),
            most_cost: cost::of_block(inputs.trace, block),
            out: BlockProfile::default(),
        };
        (reader, inputs.trace.blocks().samples(block, scratch))
    }
}

/// A step that is not yet in the block's list: its walk ended in a gap. It is kept until the
/// runtime's report on its thread has been read, which follows the sample.
pub(super) struct PendingStep {
    /// Its slot in the block.
    pub slot: usize,
    /// The step without its stack.
    pub step: Step,
    /// Why its walk ended.
    pub stop: Stop,
    /// A copy of the sample.
    pub copy: SampleCopy,
    /// What the runtime reported about its thread since.
    pub managed: Option<ManagedState>,
}

/// A step that is not yet in the block's list: its stack is hashed, and the processor loads the
/// memory where it is known while the next event is decoded.
pub(super) struct WalkedStep {
    /// Its slot in the block.
    pub slot: usize,
    /// The step without its stack.
    pub step: Step,
    /// Why its walk ended, or why there was none.
    pub stop: Result<Stop, StopReason>,
}

/// A block being read.
pub(super) struct BlockReader<'w, 'i> {
    pub(super) inputs: &'i BuildInputs<'i>,
    pub(super) walker: &'w mut StackWalker<'i>,
    pub(super) slots: &'w mut Vec<Slot>,
    pub(super) stacks: &'w mut WorkerStacks,
    /// Whether the memory of the block's stacks is known, not only a bound.
    is_exact: bool,
    /// Whether modules are known, or taken as known (`--salvage`).
    pub(super) known: bool,
    /// Which of its frames are assumed.
    pub(super) assumed: Assumed,
    pub(super) stop_ids: HashMap<StopKey, u16>,
    last_stop: Option<(StopKey, u16)>,
    /// The latest sample, if no event that follows it can continue its walk.
    pub(super) walked_step: Option<WalkedStep>,
    /// The latest sample, if the events that follow it may continue its walk.
    pub(super) pending: Option<PendingStep>,
    /// The latest IDLE, if the event that follows it may state its CPU time.
    pub(super) idle: Option<Step>,
    /// Frames that the slots hold.
    pub(super) walked: usize,
    /// Bytes of the marks.
    marked: usize,
    /// Bytes that the results may take.
    most: usize,
    /// Limit for the cost of walking the stacks.
    most_cost: u64,
    pub(super) out: BlockProfile,
}

impl Slot {
    /// Bytes that it takes.
    fn memory(&self) -> usize {
        FRAME_MEMORY * self.hashes.capacity()
    }
}

/// Bytes of a frame in a slot: the walked frame, how it can change, and the stack's hash.
const FRAME_MEMORY: usize = 2 * (size_of::<Frame>() + 24) + size_of::<StackHash>();

impl BlockReader<'_, '_> {
    /// Bytes that the results so far take.
    fn memory(&self) -> usize {
        let BlockProfile { steps, dropped, .. } = &self.out;
        self.stacks.memory(self.is_exact)
            + steps.len() * size_of::<Step>()
            + dropped.len() * size_of::<(u64, u64)>()
            + self.walked * FRAME_MEMORY
            + self.marked
    }

    /// Adds the cost of the walks since the last call.
    fn spend(&mut self) {
        self.out.cost += self.walker.take_cost();
    }

    /// The result.
    fn end(mut self) -> BlockProfile {
        self.spend();
        self.out.stacks = self.stacks.end();
        self.out
    }

    /// The limit that is exceeded, if one is.
    fn is_full(&mut self) -> Option<BlockLimit> {
        self.spend();
        if self.memory() > self.most {
            Some(BlockLimit::Memory)
        } else {
            (self.out.cost > self.most_cost).then_some(BlockLimit::Cost)
        }
    }

    fn step(&mut self, decoded: &SampleStep<'_>) {
        if let SampleStep::Sample(sample) = decoded {
            // It is loaded while the sample before is interned.
            self.walker.expect(sample);
        }
        if let SampleStep::Other(event) = decoded
            && let Some(pending) = &mut self.pending
            && take_managed(&mut pending.managed, pending.step.thread, pending.step.first, event)
        {
            return;
        }
        if let SampleStep::Other(Event::ThreadCpu(more)) = decoded {
            self.thread_cpu(more);
            return;
        }
        self.release();
        match decoded {
            SampleStep::Sample(sample) => {
                let at = sample.slot as usize;
                let stop = self.walk_code(sample);
                let step = Step {
                    thread: sample.thread,
                    first: sample.time,
                    last: sample.time,
                    samples: 1,
                    cpu: sample.cpu_delta.unwrap_or(0),
                    state: sample.state,
                    stack: StepStack::LastOf(0),
                };
                if let Ok(stop) = stop
                    && self.walker.may_continue(stop)
                    && let Some(copy) = SampleCopy::of(sample)
                {
                    self.pending = Some(PendingStep { slot: at, step, stop, copy, managed: None });
                    return;
                }
                if stop.is_ok() {
                    self.hash(at);
                }
                self.walked_step = Some(WalkedStep { slot: at, step, stop });
            }
            // The caller handles it, since it needs the slot's contents.
            SampleStep::Same(_) => {}
            SampleStep::Idle(idle) => {
                let step = Step {
                    thread: idle.thread,
                    first: idle.first,
                    last: idle.last,
                    samples: idle.ticks,
                    cpu: 0,
                    state: idle.state,
                    stack: StepStack::LastOf(idle.block),
                };
                self.idle = Some(step);
            }
            SampleStep::Other(event) => self.other(event),
        }
    }

    /// Takes samples that repeat the one before. Once a module of that stack is unloaded, the same
    /// words can be different frames, so the stack is walked again.
    fn same(&mut self, samples: &Samples<'_>, same: Same) {
        let at = same.slot as usize;
        let mut step = Step {
            thread: same.thread,
            first: same.first,
            last: same.last,
            samples: same.ticks,
            cpu: same.cpu_delta.unwrap_or(0),
            state: same.state,
            stack: StepStack::LastOf(0),
        };
        let mut rest = Some(step);
        while let Some(next) = rest.take() {
            let Some(slot) = self.slots.get(at).filter(|slot| slot.live) else { return };
            let Some(walked) = slot.last else { return };
            (step, rest) = next.split(slot.expires);
            if step.samples != 0 {
                step.stack = StepStack::Known(walked.repeated());
                self.push(Some(at), step);
            }
            if let Some(rest) = &rest
                && let Some(mut sample) = samples.last_sample(same.slot)
            {
                sample.time = rest.first;
                let managed = self.slots[at].managed.take();
                self.walk(&sample, managed);
            }
        }
    }

    /// Takes CPU time that belongs to the thread's event before: directly behind an IDLE, to that.
    fn thread_cpu(&mut self, more: &ThreadCpu) {
        let cpu = self.gained(more.cpu);
        if let Some(idle) = self.idle.as_mut().filter(|idle| idle.thread == more.thread) {
            idle.cpu = idle.cpu.saturating_add(cpu);
            return;
        }
        self.release();
        self.out.steps.push(Step {
            thread: more.thread,
            first: more.time,
            last: more.time,
            samples: 0,
            cpu,
            state: RunState::Unknown,
            stack: StepStack::Before,
        });
    }

    fn other(&mut self, event: &Event<'_>) {
        match event {
            Event::Mark(mark) => {
                self.marked += size_of::<Mark>() + mark.text.len();
                self.out.marks.push(Mark {
                    time: mark.time,
                    thread: mark.thread,
                    tag: mark.tag,
                    text: String::from_utf8_lossy(mark.text).into_owned(),
                });
            }
            Event::Dropped(dropped) if self.inputs.counts_drops_at(dropped.time) => {
                self.out.dropped.push((dropped.reason, dropped.count));
            }
            Event::Unknown { kind, .. } if !is_reserved(*kind) => self.out.unknown_events += 1,
            _ => {}
        }
    }

    /// What a clock gained. One that went back gained nothing, and takes nothing from other
    /// readings.
    fn gained(&mut self, cpu: i64) -> i64 {
        self.out.clock_jumps += u64::from(cpu < 0);
        cpu.max(0)
    }

    /// Adds a step, or extends the thread's latest one if the step differs only in time.
    pub(super) fn push(&mut self, slot: Option<usize>, mut step: Step) {
        step.cpu = self.gained(step.cpu);
        let latest = slot.and_then(|slot| self.slots.get(slot)?.step).map(|at| &mut self.out.steps[at]);
        if let Some(latest) = latest
            && latest.stack == step.stack
            && latest.state == step.state
            && (latest.samples == 0) == (step.samples == 0)
            // Each capture is a row of its own: it has an event of its own.
            && !step.stack.is_capture()
        {
            latest.last = latest.last.max(step.last);
            latest.samples += step.samples;
            latest.cpu = latest.cpu.saturating_add(step.cpu);
            return;
        }
        if let Some(slot) = slot.and_then(|slot| self.slots.get_mut(slot)) {
            slot.step = Some(self.out.steps.len());
        }
        self.out.steps.push(step);
    }

    pub(super) fn stop(&mut self, key: StopKey) -> u16 {
        // Mostly the one before.
        if let Some((_, id)) = self.last_stop.filter(|(last, _)| *last == key) {
            return id;
        }
        let stops = &mut self.out.stops;
        let id = *self.stop_ids.entry(key).or_insert_with(|| {
            // A block holds at most 16 MiB of events, and a process has far fewer modules than
            // 2^16, so ids run out only in a forged trace. Then the first one replaces the rest.
            if stops.len() > usize::from(u16::MAX) {
                return 0;
            }
            stops.push(key);
            (stops.len() - 1) as u16
        });
        self.last_stop = Some((key, id));
        id
    }
}
