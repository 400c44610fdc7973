//! Merges the blocks in order: into one call tree, and one list of runs per thread.

use super::block::{BlockLimit, BlockProfile, BlockStack, BlockWorker, Step, StepStack};
use super::facts::{dropped, trace_info};
use super::stacks::TraceStacks;
use super::thread_clock::{ClockBound, ClockGain, ThreadClock};
use super::unread::UnreadTime;
use super::{BuildInputs, PlacedBlock};
use crate::image::holder_name;
use crate::profile::{
    Activity, CodeInfo, FrameSymbols, Losses, MarkInfo, ModuleInstance, NodeId, Processes, Profile, Run,
    RunFlags, Runs, StopId, StopInfo, ThreadInfo,
};
use crate::stack::{StopReason, cost};
use crate::trace::{Mark, Pauses, SeenEvents, TimelineCursor, Trace, beyond_cost, beyond_memory};
use hashbrown::HashMap;
use std::collections::{BTreeMap, HashSet};
use std::io;
use stk_format::ImageBudget;
use stk_schema::Ticks;
use stk_schema::event::{ModuleFlags, RunState, ThreadFlags};

/// Merges block after block.
pub(super) struct Merger<'i> {
    inputs: &'i BuildInputs<'i>,
    thread_clock: ThreadClock,
    /// What all threads together can have used, and on how many processors.
    process_clock: ClockBound,
    processors: u64,
    pauses: Pauses,
    stacks: TraceStacks,
    stops: Vec<StopInfo>,
    stop_ids: HashMap<StopInfo, StopId>,
    threads: Vec<ThreadInfo>,
    states: Vec<ThreadState>,
    thread_ids: HashMap<u64, u32>,
    runs: Runs,
    marks: Vec<Mark>,
    events: SeenEvents,
    dropped: BTreeMap<u64, u64>,
    losses: Losses,
    /// Of a trace of version 1.0: time in which the threads' clocks were not read.
    unread: Option<UnreadTime>,
    /// Bytes of the marks.
    marked: usize,
    /// Bytes taken from the trace's budget so far.
    paid: usize,
    /// Whether the memory budget is used up.
    full: bool,
    /// Samples left out after that.
    left_out: u64,
    /// What is left of the allowance for walking.
    cost_left: u64,
    /// Moves from block to block, to count the cost of the moves.
    view: TimelineCursor<'i>,
    /// Samples left out after that allowance was used up.
    not_walked: u64,
    /// Ordinals of blocks that were not read to their end: a thread's last sample in them is not
    /// known.
    broken: HashSet<u64>,
    /// Of the block that is being merged. Kept to reuse its memory.
    local: BlockIds,
    /// Walks the stacks of idle threads again after a module was unloaded. Made when it is first
    /// needed.
    walker: Option<BlockWorker<'i>>,
}

/// Bytes of memory that things take together with what is made of them later: a stack, a frame with
/// its names but without their texts, a thread, a reason why stacks end.
const NODE: usize = 96;
const FRAME: usize = 192;
const THREAD: usize = 320;
const STOP: usize = 128;

/// A clock that is so far from where it should be was set. Time servers adjust it by less.
const CLOCK_SET_NS: u64 = 500_000_000;

/// State of a thread while the blocks are merged.
#[derive(Default)]
struct ThreadState {
    /// The run that its next sample ends or extends. Its weight is not known yet.
    open: Option<Run>,
    last: Option<LastSample>,
    clock: ClockBound,
    /// Of a trace of version 1.0: IDLE samples since its last SAMPLE, whose CPU time that of the
    /// next SAMPLE holds.
    idle_samples: u64,
}

/// A thread's last sample.
#[derive(Clone, Copy)]
struct LastSample {
    /// Ordinal of the block that holds it.
    block: u64,
    stack: ProfileStack,
    /// From when on the stack may mean something else.
    expires: Ticks,
}

/// A stack in the profile's ids.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ProfileStack {
    node: Option<NodeId>,
    stop: StopId,
    flags: RunFlags,
    /// The tag of a triggered sample; 0 for others.
    tag: u64,
}

impl<'i> Merger<'i> {
    pub(super) fn new(inputs: &'i BuildInputs<'i>) -> Merger<'i> {
        let clock = inputs.trace.clock;
        let mut process_clock = ClockBound::default();
        inputs.trace.sampled_ns().into_iter().for_each(|(first, _)| process_clock.begin(first));
        let processors = inputs.trace.fact("cpu.count").and_then(|count| count.parse::<u64>().ok());
        let threads: Vec<ThreadInfo> = inputs
            .trace
            .timeline
            .threads
            .iter()
            .filter(|thread| !thread.flags.contains(ThreadFlags::RECORDER))
            .map(|thread| ThreadInfo {
                instance: thread.instance,
                tid: thread.tid,
                name: thread.name.clone(),
                created_utc_ns: thread.created_utc_ns,
                start_ns: (!thread.flags.contains(ThreadFlags::AT_START)).then(|| clock.ns(thread.start)),
                exit_ns: thread.exit.map(|exit| clock.ns(exit)),
                ..ThreadInfo::default()
            })
            .collect();
        let thread_ids = threads.iter().enumerate().map(|(i, thread)| (thread.instance, i as u32)).collect();
        let states = threads.iter().map(|_| ThreadState::default()).collect();
        // The timeline has already paid for its threads.
        let paid = THREAD * threads.len();
        Merger {
            inputs,
            thread_clock: ThreadClock::of(inputs.trace),
            process_clock,
            // Not known: without a bound.
            processors: processors.filter(|&count| count > 0).unwrap_or(u64::MAX),
            pauses: Pauses::of(inputs.trace),
            stacks: TraceStacks::default(),
            stops: Vec::new(),
            stop_ids: HashMap::new(),
            threads,
            states,
            thread_ids,
            runs: inputs.options.runs_limit.map_or_else(Runs::default, Runs::with_limit),
            marks: Vec::new(),
            events: SeenEvents::default(),
            dropped: inputs.trace.timeline.dropped_when(|time| inputs.counts_drops_at(time)),
            losses: Losses::default(),
            unread: UnreadTime::of(inputs.trace),
            marked: 0,
            paid,
            full: false,
            left_out: 0,
            cost_left: cost::of_trace(inputs.trace),
            view: inputs.trace.timeline.view(),
            not_walked: 0,
            broken: HashSet::new(),
            local: BlockIds::default(),
            walker: None,
        }
    }

    /// Whether memory or time is used up. Further blocks are then only counted.
    pub(super) fn is_full(&self) -> bool {
        self.full || self.cost_left == 0
    }

    /// Counts a block as left out.
    pub(super) fn leave_out(&mut self, placed: &PlacedBlock) {
        let left_out = if self.full { &mut self.left_out } else { &mut self.not_walked };
        *left_out = left_out.saturating_add(placed.block.header.samples.into());
    }

    /// Takes memory for what was added since the last call. `false`: the budget is too small for
    /// it.
    fn pay(&mut self) -> bool {
        let now = NODE * self.stacks.nodes.len()
            + FRAME * self.stacks.frames.keys().len()
            + THREAD * self.threads.len()
            + STOP * self.stops.len()
            + self.marked;
        self.full |= now > self.paid && !self.inputs.trace.budget.take(now - self.paid);
        self.paid = self.paid.max(now);
        !self.full
    }

    /// Merges the next block.
    pub(super) fn block(&mut self, placed: &PlacedBlock, block: BlockProfile) -> io::Result<()> {
        if self.is_full() {
            self.leave_out(placed);
            return Ok(());
        }
        self.view.go(placed.block.header.first);
        self.cost_left = self.cost_left.saturating_sub(block.cost + self.view.take_cost());
        if placed.after_loss {
            self.break_runs()?;
        }
        let ordinal = placed.block.header.ordinal;
        let mut local = std::mem::take(&mut self.local);
        local.begin(&mut self.stacks, &block);
        for (n, step) in block.steps.iter().enumerate() {
            if !self.pay() {
                let left_out =
                    block.steps[n..].iter().fold(0u64, |sum, step| sum.saturating_add(step.samples));
                self.left_out = self.left_out.saturating_add(left_out);
                return self.break_runs();
            }
            let thread = self.thread(step.thread);
            match step.stack {
                StepStack::Known(walked) => {
                    let stack = self.merged(&block, &mut local, walked);
                    self.states[thread as usize].last =
                        Some(LastSample { block: ordinal, stack, expires: Ticks::MAX });
                    let behind_call = stack.flags.contains(RunFlags::BEHIND_CALL);
                    if let Some(unread) = &mut self.unread {
                        unread.read(step.thread, step.last, behind_call);
                    }
                    let step = self.without_idle_cpu(thread, *step);
                    self.step(thread, &step, stack)?;
                }
                StepStack::LastOf(cited) => {
                    self.idle(thread, *step, cited)?;
                    if let Some(unread) = self.unread.as_mut().filter(|_| step.samples != 0) {
                        unread.idle(step.thread, (step.first, step.last), step.samples, step.state);
                        let idle = &mut self.states[thread as usize].idle_samples;
                        *idle = idle.saturating_add(step.samples);
                    }
                }
                StepStack::Before => self.add_cpu(thread, step.cpu, 0, step.last),
            }
        }
        self.stacks.end(&block.stacks);
        self.local = local;
        for &(thread, expires) in &block.expires {
            let thread = self.thread(thread);
            if let Some(last) = &mut self.states[thread as usize].last {
                last.expires = expires;
            }
        }
        self.marked +=
            block.marks.iter().map(|mark| 2 * (size_of::<Mark>() + mark.text.len())).sum::<usize>();
        self.marks.extend(block.marks);
        block.events.into_iter().for_each(|events| self.events.add(events));
        for (reason, count) in block.dropped {
            *self.dropped.entry(reason).or_default() += count;
        }
        self.losses.unknown_events += block.unknown_events;
        self.losses.tables_pending += block.tables_pending;
        self.losses.clock_jumps = self.losses.clock_jumps.saturating_add(block.clock_jumps);
        self.losses.too_deep += block.too_deep;
        self.losses.most_left_out = self.losses.most_left_out.max(block.most_left_out);
        if let Some(error) = block.error {
            self.losses.damaged_blocks.push(error.to_string());
            self.broken.insert(ordinal);
            self.break_runs()?;
        }
        if let Some(cut) = block.cut {
            let seq = placed.block.header.seq;
            self.losses.damaged_blocks.push(match cut {
                BlockLimit::Memory => format!(
                    "block {seq}: its end is left out: its stacks take more memory than a block may (--max-memory)"
                ),
                BlockLimit::Cost => cost::beyond_block(&placed.block),
            });
            self.broken.insert(ordinal);
            self.break_runs()?;
        }
        Ok(())
    }

    /// The finished profile, without names.
    pub(super) fn finish(mut self) -> io::Result<(Profile, Runs)> {
        self.break_runs()?;
        self.runs.end()?;
        let trace = self.inputs.trace;
        if self.left_out > 0 {
            let left_out = beyond_memory(self.left_out, "samples", &trace.budget);
            self.losses.damaged_blocks.push(left_out);
        }
        if self.not_walked > 0 {
            self.losses.damaged_blocks.push(beyond_cost(self.not_walked, trace));
        }
        self.losses.clock_set_ns = clock_set(trace);
        self.losses.unread_ns = self.unread.as_ref().map_or(0, |unread| unread.ns(trace));
        let (clock, timeline) = (trace.clock, &trace.timeline);
        let modules = timeline
            .modules
            .iter()
            .map(|module| ModuleInstance {
                instance: module.instance,
                image: module.image,
                base: module.base,
                size: module.size,
                load_ns: (!module.flags.contains(ModuleFlags::AT_START)).then(|| clock.ns(module.load)),
                unload_ns: module.unload.map(|unload| clock.ns(unload)),
            })
            .collect();
        let code = timeline
            .code
            .iter()
            .map(|code| CodeInfo {
                instance: code.instance,
                base: code.base,
                size: code.size,
                remove_ns: code.remove.map(|remove| clock.ns(remove)),
            })
            .collect();
        let mut marks: Vec<&Mark> = timeline.marks.iter().chain(&self.marks).collect();
        marks.sort_by_key(|mark| (mark.time, mark.thread));
        let marks = marks
            .into_iter()
            .map(|mark| MarkInfo {
                time_ns: clock.ns(mark.time),
                thread: self.thread_ids.get(&mark.thread).copied(),
                tag: mark.tag,
                text: mark.text.clone(),
            })
            .collect();
        self.losses.unknown_events += timeline.unknown_events;
        self.losses.damaged_blocks.splice(0..0, trace.damage.iter().cloned());
        // The running total has no times.
        let total = if self.inputs.options.window.is_none() { trace.dropped() } else { 0 };
        (self.losses.dropped_samples, self.losses.dropped) = dropped(&self.dropped, total);
        let (frames, tree) = self.stacks.finish();
        let profile = Profile {
            trace: trace_info(trace),
            processes: Processes::default(),
            images: timeline.images.iter().map(|record| record.image.clone()).collect(),
            modules,
            code,
            threads: self.threads,
            marks,
            events: Vec::new(),
            gaps: Vec::new(),
            rates: Vec::new(),
            seen_events: self.events,
            frames,
            tree,
            stops: self.stops,
            symbols: FrameSymbols::default(),
            losses: self.losses,
            window: None,
            selection: None,
        };
        Ok((profile, self.runs))
    }

    /// What a thread's clock gained up to a reading, as far as the thread can have used that.
    fn gain(&mut self, thread: u32, delta: i64, samples: u64, read: Ticks) -> ClockGain {
        let read_ns = self.inputs.trace.clock.ns(read);
        let gain = self.thread_clock.gain(delta, samples);
        let own_ns = self.states[thread as usize].clock.take(self.thread_clock, gain.own_ns, read_ns, 1);
        let own_ns = self.process_clock.take(self.thread_clock, own_ns, read_ns, self.processors);
        if own_ns < gain.own_ns {
            self.losses.clock_jumps = self.losses.clock_jumps.saturating_add(1);
            let excess = &mut self.losses.clock_excess_ns;
            *excess = excess.saturating_add(gain.own_ns - own_ns);
        }
        ClockGain { own_ns, ..gain }
    }

    /// Adds what a thread's clock gained while the thread's last samples were taken.
    fn add_cpu(&mut self, thread: u32, delta: i64, samples: u64, read: Ticks) {
        let gain = self.gain(thread, delta, samples, read);
        let Some(open) = &mut self.states[thread as usize].open else { return };
        open.cpu_ns = open.cpu_ns.saturating_add(gain.own_ns);
        let sampling = &mut self.threads[thread as usize].sampling_cpu_ns;
        *sampling = sampling.saturating_add(gain.sampling_ns);
    }

    /// In a trace of version 1.0, the CPU time of the first SAMPLE behind an IDLE holds what the
    /// thread used during that. More than there is time between the two was used there: it goes to
    /// the stack that stood there.
    fn without_idle_cpu(&mut self, thread: u32, step: Step) -> Step {
        let state = &mut self.states[thread as usize];
        let idle_samples = std::mem::take(&mut state.idle_samples);
        let Some(open) = state.open.filter(|_| idle_samples != 0 && step.samples != 0) else { return step };
        let trace = self.inputs.trace;
        let (first, interval) = (trace.clock.ns(step.first), trace.interval_ns());
        let gap = match self.pauses.cut(open.last_ns, first) {
            Some(_) => interval,
            None => first.saturating_sub(open.last_ns).max(interval),
        };
        let span = trace.clock.span_ns(step.last.saturating_sub(step.first));
        let own = self.thread_clock.most(gap.saturating_add(span)).min(step.cpu);
        self.add_cpu(thread, step.cpu.saturating_sub(own), idle_samples, step.first);
        Step { cpu: own, ..step }
    }

    /// Adds samples of a thread.
    fn step(&mut self, thread: u32, step: &Step, stack: ProfileStack) -> io::Result<()> {
        if step.samples == 0 {
            return Ok(());
        }
        let clock = self.inputs.trace.clock;
        let i = thread as usize;
        self.states[i].clock.begin(clock.ns(step.first));
        let gain = self.gain(thread, step.cpu, step.samples, step.last);
        let samples = u32::try_from(step.samples).unwrap_or(u32::MAX);
        let info = &mut self.threads[i];
        info.samples += u64::from(samples);
        let Losses { assumed, modules_unknown, code_unknown, .. } = &mut self.losses;
        let counted = match self.stops[stack.stop.0 as usize].reason {
            _ if stack.flags.contains(RunFlags::ASSUMED) => Some(assumed),
            StopReason::ModulesUnknown => Some(modules_unknown),
            StopReason::CodeUnknown => Some(code_unknown),
            _ => None,
        };
        counted.into_iter().for_each(|sum| *sum = sum.saturating_add(u64::from(samples)));
        info.sampling_cpu_ns = info.sampling_cpu_ns.saturating_add(gain.sampling_ns);
        if step.state != RunState::Waiting {
            info.active_samples += u64::from(samples);
        }
        // A clock that goes back (a forged time) must not end a run before it begins.
        let earliest = self.states[i].open.map_or(0, |open| open.last_ns);
        let first_ns = clock.ns(step.first).max(earliest);
        let run = Run {
            node: stack.node,
            stop: stack.stop,
            first_ns,
            last_ns: clock.ns(step.last).max(first_ns),
            weight_ns: 0,
            samples,
            cpu_ns: gain.own_ns,
            state: step.state,
            activity: Activity::Unknown,
            flags: stack.flags,
            capture_tag: stack.tag,
        };
        let open = &mut self.states[i].open;
        let pause = open.and_then(|open| self.pauses.cut(open.last_ns, run.first_ns));
        match open {
            Some(open)
                if pause.is_none()
                    && (open.node, open.stop, open.state, open.flags, open.capture_tag)
                        == (run.node, run.stop, run.state, run.flags, run.capture_tag)
                    && run.tag().is_none() =>
            {
                open.last_ns = run.last_ns;
                open.samples = open.samples.saturating_add(run.samples);
                open.cpu_ns = open.cpu_ns.saturating_add(run.cpu_ns);
                Ok(())
            }
            _ => {
                let Some(mut before) = open.replace(run) else { return Ok(()) };
                before.weight_ns = pause.unwrap_or(run.first_ns) - before.first_ns;
                self.runs.push(thread, before)
            }
        }
    }

    /// Ends all open runs one interval after their last samples, since it is not known what
    /// followed.
    fn break_runs(&mut self) -> io::Result<()> {
        let interval = self.inputs.trace.interval_ns();
        for (i, state) in self.states.iter_mut().enumerate() {
            if let Some(mut run) = state.open.take() {
                let exit = self.threads[i].exit_ns.unwrap_or(u64::MAX);
                let end = run.last_ns.saturating_add(interval);
                let end = self.pauses.cut(run.last_ns, end).unwrap_or(end);
                let end = end.min(exit).max(run.last_ns);
                run.weight_ns = end - run.first_ns;
                self.runs.push(i as u32, run)?;
            }
        }
        Ok(())
    }

    /// Adds samples of a thread with the same stack as in the block that its IDLE cites. Once a
    /// module of that stack is unloaded, the same words can be different frames, so the stack is
    /// walked again.
    fn idle(&mut self, thread: u32, step: Step, cited: u64) -> io::Result<()> {
        let mut rest = Some(step);
        while let Some(next) = rest.take() {
            if self.cost_left == 0 {
                self.not_walked = self.not_walked.saturating_add(next.samples);
                return Ok(());
            }
            let last = self.states[thread as usize].last.filter(|last| last.block == cited);
            let Some(last) = last.filter(|_| !self.broken.contains(&cited)) else {
                self.losses.lost_idle_spans += 1;
                let stop = self.stop(StopInfo { reason: StopReason::StackLost, module: String::new() });
                return self.step(
                    thread,
                    &next,
                    ProfileStack { node: None, stop, flags: RunFlags::STACK_LOST, tag: 0 },
                );
            };
            let stack = ProfileStack { flags: last.stack.flags - RunFlags::TRIGGERED, tag: 0, ..last.stack };
            let (before, from) = next.split(last.expires);
            self.step(thread, &before, stack)?;
            if let Some(from) = &from {
                self.states[thread as usize].last = self.walk_again(cited, from);
            }
            rest = from;
        }
        Ok(())
    }

    /// Walks a thread's last sample of a block with the modules of a later time.
    fn walk_again(&mut self, cited: u64, step: &Step) -> Option<LastSample> {
        let inputs = self.inputs;
        let block = inputs.trace.blocks().samples_block(cited)?;
        let walker = self
            .walker
            .get_or_insert_with(|| BlockWorker::new(inputs, &ImageBudget::default(), super::AGAIN));
        let again = walker.again(block, step.thread, step.first);
        self.cost_left = self.cost_left.saturating_sub(again.cost);
        let mut local = BlockIds::default();
        local.begin(&mut self.stacks, &again);
        let StepStack::Known(walked) = again.steps.first()?.stack else { return None };
        let stack = self.merged(&again, &mut local, walked);
        let expires = again.expires.first().map_or(Ticks::MAX, |(_, expires)| *expires);
        Some(LastSample { block: cited, stack, expires })
    }

    /// Converts a block's stack to the profile's ids.
    fn merged(&mut self, block: &BlockProfile, local: &mut BlockIds, walked: BlockStack) -> ProfileStack {
        let stop = match local.stops[usize::from(walked.stop)] {
            Some(stop) => stop,
            None => {
                let (reason, module) = block.stops[usize::from(walked.stop)];
                let timeline = &self.inputs.trace.timeline;
                let module = module.map_or("", |module| holder_name(timeline, module)).to_owned();
                let stop = self.stop(StopInfo { reason, module });
                local.stops[usize::from(walked.stop)] = Some(stop);
                stop
            }
        };
        ProfileStack {
            node: walked.id.map(|id| self.stacks.node(&block.stacks, id)),
            stop,
            flags: walked.flags,
            tag: walked.tag,
        }
    }

    fn stop(&mut self, stop: StopInfo) -> StopId {
        let stops = &mut self.stops;
        *self.stop_ids.entry(stop).or_insert_with_key(|stop| {
            // As in a block, only a forged trace has more distinct reasons than ids.
            if stops.len() > usize::from(u16::MAX) {
                return StopId(0);
            }
            stops.push(stop.clone());
            StopId((stops.len() - 1) as u16)
        })
    }

    /// Index of a thread. If no block describes the thread (its META is lost), only its instance id
    /// is known.
    fn thread(&mut self, instance: u64) -> u32 {
        *self.thread_ids.entry(instance).or_insert_with(|| {
            self.threads.push(ThreadInfo {
                instance,
                name: format!("unknown thread {instance}"),
                ..ThreadInfo::default()
            });
            self.states.push(ThreadState::default());
            (self.threads.len() - 1) as u32
        })
    }
}

/// By how much the system's clock was set while the trace was recorded, at most; 0 if it kept time.
fn clock_set(trace: &Trace<'_>) -> i64 {
    let start = i128::from(trace.header().utc_start);
    let apart = |&(time, utc): &(Ticks, u64)| i128::from(utc) - start - i128::from(trace.clock.ns(time));
    let most = trace.timeline.clocks.iter().map(apart).max_by_key(|ns| ns.abs()).unwrap_or(0);
    let ns = i64::try_from(most).unwrap_or(if most < 0 { i64::MIN } else { i64::MAX });
    if ns.unsigned_abs() < CLOCK_SET_NS { 0 } else { ns }
}

/// The profile's ids of what is already merged of a block.
#[derive(Default)]
struct BlockIds {
    stops: Vec<Option<StopId>>,
}

impl BlockIds {
    /// Forgets the block before.
    fn begin(&mut self, stacks: &mut TraceStacks, block: &BlockProfile) {
        stacks.begin(&block.stacks);
        self.stops.clear();
        self.stops.resize(block.stops.len(), None);
    }
}
