//! The sampler: stores captures in blocks, and cuts the blocks.
//!
//! * `target`: the process that is recorded, and what was captured of a thread.
//! * `passes`: which threads are looked at in which pass.
//! * `activity`: which of them must be captured.
//! * `coarse`: threads' CPU times on systems without cycle counts.
//!
//! The sampler never waits for another thread. Without a free buffer it drops and counts samples;
//! the encoder then makes a keyframe of the thread's next stored sample. Only [`Target::capture`]
//! runs while a thread is suspended; everything else here happens with all threads running.

mod activity;
mod coarse;
mod cycle_rate;
mod passes;
mod target;

pub(crate) use activity::SuspensionCost;
pub(crate) use cycle_rate::CycleRate;
pub(crate) use target::{Acceptance, Capture, CaptureOutcome, Target, ThreadCommand, TriggeredSample};

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use stk_format::{BlockBuffer, EncodeError, RawSample, SampleEncoder, SampleOutcome, ThreadImage};
use stk_schema::event::{CheckWalk, DropReason, Event, ManagedThread, Memory, RunState};
use stk_schema::registers::{IP, MAX_REGISTERS, RegisterSet, SP};
use stk_schema::{Arch, Ticks};

use activity::Activity;
use coarse::CoarseClock;

use super::code::CodeCache;
use super::cpu_budget::CpuBudget;
use super::dynamic::{self, Scanner};
use super::files::FileThread;
use super::pointers::{CaptureMoment, CapturedWords, PointerFilter};
use super::queue::Queue;
use super::shared::{Counters, Lane, Signals};

/// How often unchanged words are searched for dynamic code again: code may have appeared at
/// addresses where none was known.
const SEARCH_MS: u64 = 1000;
/// How long a triggered sample waits for its thread to be enumerated.
const ORPHAN_MS: u64 = 500;

struct ThreadEntry<T> {
    instance: u64,
    tid: u32,
    thread: T,
    /// Whether passes sample it (`--threads`).
    wanted: bool,
    image: ThreadImage,
    /// What its cycle counts showed so far.
    activity: Activity,
    /// What its coarse clock showed, on systems without cycle counts.
    coarse: CoarseClock,
    /// Registers of its last sample.
    registers: [u64; MAX_REGISTERS],
    sampled: bool,
    /// When all of its stack is due to be searched for dynamic code.
    search_due: Ticks,
}

impl<T> ThreadEntry<T> {
    /// Makes room for a stack of `words`; false if memory is short. Reserves twice as much if
    /// possible, so that a growing stack does not call this at every step.
    fn grow(&mut self, words: usize, word: usize) -> bool {
        let room = words.saturating_mul(2);
        self.image.reserve(room, word).is_ok() || self.image.reserve(words, word).is_ok()
    }
}

/// A thread's clock now: the one that its samples state.
fn read<T: Target>(target: &mut T, entry: &ThreadEntry<T::Thread>) -> Option<u64> {
    if entry.coarse.is_used() { target.cpu_time(&entry.thread) } else { target.cycles(&entry.thread) }
}

/// Why a sample that the encoder refused is lost.
fn refusal(error: &EncodeError) -> DropReason {
    match error {
        EncodeError::ImageTooSmall { .. } => DropReason::TableFull,
        _ => DropReason::NotStorable,
    }
}

/// The parts that a sampler shares with other threads.
pub(crate) struct SamplerLinks<T> {
    pub lane: Arc<Lane>,
    pub counters: Arc<Counters>,
    pub signals: &'static Signals,
    /// Threads to add and to remove.
    pub commands: Arc<Queue<ThreadCommand<T>>>,
}

/// The state of the sampler thread.
pub(crate) struct Sampler<T: Target> {
    target: T,
    links: SamplerLinks<T::Thread>,
    set: RegisterSet,
    word: usize,
    ticks_per_ms: u64,
    encoder: SampleEncoder,
    block: Option<Box<BlockBuffer>>,
    /// The file that it belongs to.
    file: u32,
    threads: Vec<ThreadEntry<T::Thread>>,
    /// Indexes in `threads` by thread id.
    places: BTreeMap<u32, usize>,
    /// Images of threads that ended, for reuse.
    spare: Vec<ThreadImage>,
    capture: Capture,
    /// The registers to store of the capture.
    registers: [u64; MAX_REGISTERS],
    /// Takes the program's data out of captures, if it is to go.
    pointers: Option<PointerFilter>,
    code: CodeCache,
    dynamic: Option<Scanner>,
    /// Whether this pass has already searched a whole stack. One per pass is enough.
    searched: bool,
    /// What a suspension costs the suspended thread, in the unit of its cycle count.
    cost: SuspensionCost,
    budget: Option<CpuBudget>,
    /// How many of `threads` passes leave out.
    unwanted: usize,
    /// Index in `threads` at which the next pass begins.
    next: usize,
    /// Indexes in `threads` of those that could not be captured in this pass.
    retry: Vec<usize>,
}

impl<T: Target> Sampler<T> {
    /// A sampler that captures up to `max_stack` bytes per sample.
    pub(crate) fn new(
        target: T,
        links: SamplerLinks<T::Thread>,
        set: RegisterSet,
        word: usize,
        ticks_per_second: u64,
        max_stack: usize,
    ) -> Sampler<T> {
        Sampler {
            file: links.lane.files().last(),
            target,
            links,
            set,
            word,
            ticks_per_ms: (ticks_per_second / 1000).max(1),
            encoder: SampleEncoder::new(),
            block: None,
            threads: Vec::new(),
            places: BTreeMap::new(),
            spare: Vec::new(),
            capture: Capture::new(max_stack),
            registers: [0; MAX_REGISTERS],
            pointers: None,
            code: CodeCache::new(),
            dynamic: None,
            searched: false,
            cost: SuspensionCost::ASSUMED,
            budget: None,
            unwanted: 0,
            next: 0,
            retry: Vec::new(),
        }
    }

    /// From now on, each stored sample is followed by the walk that the target's own unwinder made
    /// of it, of up to `frames` frames (`--check-walks`).
    pub(crate) fn check_walks(&mut self, frames: usize) {
        let frames = Vec::with_capacity(frames);
        self.capture.walk = Some(CheckWalk { thread: 0, time: Ticks::ZERO, flags: 0, frames });
    }

    /// From now on, stores only words and registers that are addresses (`--stack-words pointers`).
    pub(crate) fn keep_pointers_only(&mut self, arch: Arch) {
        self.pointers = Some(PointerFilter::new(arch, self.ticks_per_ms));
    }

    /// Sets the measured cost of a suspension.
    pub(crate) fn set_suspension_cost(&mut self, cost: SuspensionCost) {
        self.cost = cost;
    }

    /// From now on passes keep to the sampler's share of a processor; `period` is the time between
    /// two passes. `budget` is the user's own limit, in millionths of a processor.
    pub(crate) fn limit_cpu(&mut self, period: Ticks, budget: Option<u64>) {
        self.budget = Some(match budget {
            Some(budget) => CpuBudget::with_budget(period, self.ticks_per_ms, budget),
            None => CpuBudget::new(period, self.ticks_per_ms),
        });
    }

    /// Gives the limit of the sampler's CPU time the expected cost of a look at a thread.
    pub(crate) fn expect_cost(&mut self, look: Ticks) {
        if let Some(budget) = &mut self.budget {
            budget.expect(look);
        }
    }

    /// Periods from this pass to the next.
    pub(crate) fn stride(&self) -> u64 {
        self.budget.as_ref().map_or(1, |budget| budget.pace().stride)
    }

    /// From now on, searches samples for addresses of dynamic code.
    pub(crate) fn search_code(&mut self, shared: Arc<dynamic::Shared>) {
        let counters = self.links.counters.clone();
        self.dynamic = Some(Scanner::new(shared, counters, self.word, self.ticks_per_ms));
    }

    /// Whether addresses of dynamic code were found since the last call.
    pub(crate) fn take_code_found(&mut self) -> bool {
        self.dynamic.as_mut().is_some_and(Scanner::take_found)
    }

    /// States what the threads used to the end, and cuts the last block. Allocates nothing, because
    /// it also runs when the process ends; threads that still wait to be sampled then are not
    /// sampled.
    pub(crate) fn finish(&mut self) {
        self.state_cpu();
        self.cut();
    }

    /// Reads the clocks of all threads and states what they used since their last events, because
    /// no pass follows.
    fn state_cpu(&mut self) {
        for index in 0..self.threads.len() {
            self.state_cpu_of(index);
        }
    }

    /// As [`Sampler::state_cpu`] for one thread. One that has ended has a clock too, where the
    /// system keeps it; elsewhere it shows less than before, and the last reading counts.
    fn state_cpu_of(&mut self, index: usize) {
        self.links.signals.sampler_changes();
        let Some(entry) = self.threads.get_mut(index) else { return };
        let reading = read(&mut self.target, entry);
        if let Some(cpu) = reading
            && entry.image.latest_cpu().is_none_or(|latest| latest <= cpu)
        {
            entry.image.note_cpu(cpu);
        }
        let now = self.target.now();
        for _ in 0..2 {
            let unstated = self.threads.get(index).is_some_and(|entry| entry.image.has_unstated_cpu());
            if !unstated || !self.open_block() {
                break;
            }
            let (Some(block), Some(entry)) = (&mut self.block, self.threads.get_mut(index)) else { break };
            let stated = self
                .encoder
                .flush_idle(block, &mut entry.image)
                .and_then(|()| self.encoder.last_cpu(block, &mut entry.image, now));
            match stated {
                Err(EncodeError::BlockFull) => self.cut(),
                _ => break,
            }
        }
    }

    /// Hands over what is whole of the last block, after the sampler was terminated while it
    /// changed its state. Touches neither the encoder nor the list of threads.
    pub(crate) fn finish_torn(&mut self) {
        if self.block.as_mut().is_some_and(|block| block.cut_torn()) {
            self.hand_over();
        }
    }

    /// Stores a sample that a thread took of itself.
    pub(crate) fn triggered(&mut self, triggered: &mut TriggeredSample<'_>) -> Acceptance {
        self.take_commands();
        let Some(&index) = self.places.get(&triggered.tid) else {
            if self.target.now().saturating_sub(triggered.capture.time).0 < ORPHAN_MS * self.ticks_per_ms {
                return Acceptance::Later;
            }
            self.links.counters.lose(DropReason::UnknownThread, 1);
            return Acceptance::Done;
        };
        self.store_triggered(index, triggered);
        Acceptance::Done
    }

    /// As [`Sampler::triggered`] at the end of the process: no thread is added.
    pub(crate) fn triggered_last(&mut self, triggered: &mut TriggeredSample<'_>) -> Acceptance {
        match self.places.get(&triggered.tid) {
            Some(&index) => self.store_triggered(index, triggered),
            None => self.links.counters.lose(DropReason::UnknownThread, 1),
        }
        Acceptance::Done
    }

    fn store_triggered(&mut self, index: usize, triggered: &mut TriggeredSample<'_>) {
        self.registers = triggered.capture.registers;
        self.filter(index, Some(triggered.capture));
        self.store(index, Some(triggered), RunState::Running, None);
        if let Some(entry) = self.threads.get_mut(index) {
            // The last stored sample is not the one that the cycle count belongs to.
            entry.activity.forget();
            entry.registers = triggered.capture.registers;
        }
    }

    #[cfg(all(test, not(windows)))]
    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Bytes that the threads' entries and images take, those for reuse too.
    #[cfg(all(test, not(windows)))]
    pub(crate) fn memory(&self) -> usize {
        let images = self.threads.iter().map(|entry| &entry.image).chain(&self.spare);
        self.threads.capacity() * size_of::<ThreadEntry<T::Thread>>()
            + images.map(ThreadImage::memory).sum::<usize>()
    }

    /// Stores that a pass found the thread as in its last sample, with its CPU time `cpu`. Returns
    /// whether it was stored.
    fn store_same(&mut self, index: usize, state: RunState, cpu: u64) -> bool {
        self.links.signals.sampler_changes();
        for _ in 0..2 {
            if !self.open_block() {
                break;
            }
            let now = self.target.now();
            let (Some(block), Some(entry)) = (&mut self.block, self.threads.get_mut(index)) else { break };
            match self.encoder.same(block, &mut entry.image, now, state) {
                Ok(_) => {
                    entry.image.note_cpu(cpu);
                    self.links.counters.samples.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(EncodeError::BlockFull) => self.cut(),
                Err(_) => break,
            }
        }
        self.links.counters.lose(DropReason::BuffersFull, 1);
        false
    }

    /// Takes the program's data out of a capture, the sampler's own one or another's, before it is
    /// stored.
    fn filter(&mut self, index: usize, other: Option<&mut Capture>) {
        let (Some(filter), Some(entry)) = (&mut self.pointers, self.threads.get(index)) else { return };
        let capture = other.unwrap_or(&mut self.capture);
        let moment = CaptureMoment {
            now: self.target.now(),
            generation: self.links.signals.loader_generation.load(Ordering::Acquire),
            before: entry.image.last_captured(self.word),
        };
        let words = CapturedWords {
            registers: &mut self.registers,
            stack: capture.stack.get_mut(..capture.len).unwrap_or(&mut []),
            stack_start: capture.stack_start,
            stack_base: capture.stack_base,
            memory: if capture.outside_at != 0 { &mut capture.outside } else { &mut [] },
            managed: capture.managed.is_some(),
        };
        let zeroed = filter.apply(words, &moment, |address| self.target.region(address));
        self.links.counters.redacted_words.fetch_add(zeroed, Ordering::Relaxed);
    }

    /// Stores a capture, with the registers in `self.registers`. Returns whether it was stored.
    fn store(
        &mut self,
        index: usize,
        triggered: Option<&TriggeredSample<'_>>,
        state: RunState,
        cpu: Option<u64>,
    ) -> bool {
        let signals = &self.links.signals;
        let generation = signals.loader_generation.load(Ordering::Acquire);
        let tables_pending = signals.tables_pending.load(Ordering::Acquire) != 0;
        let ip = self.registers[IP];
        // Read into the cache before the attempts: the capture stays borrowed through them.
        let code = *self.code.get(ip, generation, |bytes| self.target.code(ip, bytes));
        self.search(index, triggered);
        self.links.signals.sampler_changes();
        let mut reason = DropReason::BuffersFull;
        for _ in 0..3 {
            if !self.open_block() {
                break;
            }
            let capture = triggered.map_or(&self.capture, |triggered| &*triggered.capture);
            let (Some(block), Some(entry)) = (&mut self.block, self.threads.get_mut(index)) else { break };
            let raw = RawSample {
                thread: entry.instance,
                time: capture.time,
                set: self.set,
                registers: self.registers.get(..self.set.len()).unwrap_or(&[]),
                stack_base: capture.stack_base,
                stack_start: capture.stack_start,
                stack: capture.stack.get(..capture.len).unwrap_or(&[]),
                code: code.bytes(),
                cpu,
                state,
                tag: triggered.map(|triggered| triggered.tag),
                tables_pending,
                context_reply: capture.context_reply,
                extra: &[],
            };
            match self.encoder.sample(block, &mut entry.image, &raw) {
                Ok(taken) => {
                    self.links.counters.samples.fetch_add(1, Ordering::Relaxed);
                    if taken == SampleOutcome::Written && triggered.is_none() {
                        let thread = entry.instance;
                        self.store_walk(thread);
                        self.store_managed(thread);
                    }
                    return true;
                }
                Err(EncodeError::BlockFull) => self.cut(),
                Err(EncodeError::ImageTooSmall { words }) if entry.grow(words, self.word) => {}
                Err(error) => {
                    reason = refusal(&error);
                    break;
                }
            }
        }
        self.links.counters.lose(reason, 1);
        false
    }

    /// Writes the walk of the last written sample after it, if one was made. If the block has no
    /// room, the walk is left out.
    fn store_walk(&mut self, thread: u64) {
        let (Some(block), Some(walk)) = (&mut self.block, &mut self.capture.walk) else { return };
        if walk.frames.is_empty() && walk.flags == 0 {
            return;
        }
        let frames = core::mem::take(&mut walk.frames);
        let event =
            Event::CheckWalk(CheckWalk { thread, time: self.capture.time, flags: walk.flags, frames });
        let _ = block.push(&event);
        if let Event::CheckWalk(event) = event {
            walk.frames = event.frames;
        }
    }

    /// Searches a capture for addresses of dynamic code: the parts that changed since the thread's
    /// last sample.
    fn search(&mut self, index: usize, triggered: Option<&TriggeredSample<'_>>) {
        let (Some(scanner), Some(entry)) = (&mut self.dynamic, self.threads.get_mut(index)) else { return };
        let capture = triggered.map_or(&self.capture, |triggered| &*triggered.capture);
        let all = capture.time >= entry.search_due && !self.searched;
        if all {
            entry.search_due = capture.time + Ticks(SEARCH_MS * self.ticks_per_ms);
            self.searched = true;
        }
        let view = dynamic::ScannedSample {
            time: capture.time,
            ip: capture.registers[IP],
            stack_start: capture.stack_start,
            // A foreign stack has no base.
            stack_base: capture.stack_base.max(capture.stack_start.saturating_add(capture.len as u64)),
            stack: capture.stack.get(..capture.len).unwrap_or(&[]),
            before: if all { None } else { entry.image.last_captured(self.word) },
        };
        scanner.sample(&view, |address| self.target.region(address));
    }

    /// Searches the last sample of a thread that has not run since, if a search is due.
    fn search_unchanged(&mut self, index: usize) {
        let (Some(scanner), Some(entry)) = (&mut self.dynamic, self.threads.get_mut(index)) else { return };
        let now = self.target.now();
        let Some((stack_start, stack)) = entry.image.last_captured(self.word) else { return };
        if self.searched || now < entry.search_due {
            return;
        }
        entry.search_due = now + Ticks(SEARCH_MS * self.ticks_per_ms);
        self.searched = true;
        let stack_base = stack_start.saturating_add(stack.len() as u64);
        let view = dynamic::ScannedSample {
            time: now,
            ip: entry.registers[IP],
            stack_start,
            stack_base,
            stack,
            before: None,
        };
        scanner.sample(&view, |address| self.target.region(address));
    }

    /// Writes the runtime's state of the thread after the sample that was just written. If the
    /// block has no room, the state is left out.
    fn store_managed(&mut self, thread: u64) {
        let capture = &self.capture;
        let (Some(block), Some(managed)) = (&mut self.block, capture.managed) else { return };
        // A Frame lies on the stack. One below the stack pointer was popped before the suspension.
        let none = managed.frame == 0 || managed.frame == u64::MAX >> (64 - 8 * self.word);
        if !none && !(capture.registers[SP]..capture.stack_base).contains(&managed.frame) {
            return;
        }
        let _ = block.push(&Event::ManagedThread(ManagedThread {
            thread,
            time: capture.time,
            address: managed.address,
            state: managed.state,
            preemptive_disabled: managed.preemptive_disabled,
            frame: managed.frame,
            exception: managed.exception,
        }));
        if capture.outside_at != 0 {
            let (time, address) = (capture.time, capture.outside_at);
            let _ = block.push(&Event::Memory(Memory { thread, time, address, bytes: &capture.outside }));
        }
    }

    /// Takes a free buffer if there is no block. Returns whether there is a block to write into.
    fn open_block(&mut self) -> bool {
        if self.block.is_none()
            && let Some(mut block) = self.links.lane.take_free(self.file)
        {
            self.encoder.begin(&mut block, self.target.now());
            self.block = Some(block);
        }
        self.block.is_some()
    }

    /// Hands the current block to the writer.
    fn cut(&mut self) {
        self.links.signals.sampler_changes();
        let now = self.target.now();
        // The block stays where `finish_torn` finds it until it is complete.
        let Some(block) = &mut self.block else { return };
        for entry in &mut self.threads {
            // What it used while it stood still is to be in the same block.
            if entry.image.has_pending()
                && entry.coarse.is_used()
                && entry.coarse.is_due(false, now, self.ticks_per_ms)
                && let Some(cpu) =
                    entry.coarse.read(self.target.cpu_time(&entry.thread), now, self.ticks_per_ms)
            {
                entry.image.note_cpu(cpu);
            }
            // The block reserves room for these.
            let _ = self.encoder.flush_idle(block, &mut entry.image);
        }
        self.hand_over();
    }

    fn hand_over(&mut self) {
        if let Some(block) = self.block.take() {
            let dropped = self.links.counters.dropped.load(Ordering::Relaxed);
            self.links.lane.hand_over(self.file, block, dropped);
        }
    }

    /// Turns to the next file if it is due: what the threads used is stated to the last tick in
    /// this one, and each thread's next event is a keyframe.
    pub(crate) fn turn(&mut self) {
        let files = self.links.lane.files().clone();
        if !files.is_due(FileThread::Sampler, self.file) {
            return;
        }
        self.state_cpu();
        self.cut();
        self.links.signals.sampler_changes();
        self.file += 1;
        self.encoder.renew_keyframes();
        for entry in &mut self.threads {
            entry.image.leave_file();
        }
        files.samples_before(self.file, self.links.counters.samples.load(Ordering::Relaxed));
        files.turn(FileThread::Sampler, self.file);
    }
}
