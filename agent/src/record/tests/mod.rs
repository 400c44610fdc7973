//! Tests the portable half with a fake process: a reader must find what was there.

mod clocks;
mod crowd;
mod dotnet;
mod faults;
mod figures;
mod files;
mod pauses;
mod size_limit;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::record::code::{CODE_BYTES, CodeRead};
use crate::record::dynamic::{Region, RegionUse};
use crate::record::event_writer::{self, EventWriter, Pace, StoredBlobs, TableStore};
use crate::record::files::Files;
use crate::record::modules::Events as _;
use crate::record::pass_times::next_random;
use crate::record::queue::Queue;
use crate::record::sampler::{
    Acceptance, Capture, CaptureOutcome, Sampler, SamplerLinks, SuspensionCost, Target, ThreadCommand,
    TriggeredSample,
};
use crate::record::shared::{Counters, Lane, Signals};
use crate::record::writer::{Output, WriteError, Writer};
use stk_format::{BlockBuffer, BlockKind, FileHeader, SampleStep, Scratch, Trace, blob};
use stk_schema::event::{CheckWalk, DropReason, End, EndReason, Event, Metadata, RunState, TableKind};
use stk_schema::identity::ContentHash;
use stk_schema::registers::{IP, MAX_REGISTERS, RegisterSet, SP};
use stk_schema::{Arch, Os, Ticks, limits};

/// Ticks per second: a tick is a microsecond.
const FREQUENCY: u64 = 1_000_000;
const MS: u64 = 1000;
const STACK_BASE: u64 = 0x7000_0000;
const MAX_STACK: usize = 64 << 10;
/// Addresses of the fake process's image.
const IMAGE: std::ops::Range<u64> = 0x40_0000..0x50_0000;

/// Numbers that are the same for the same seed, which must not be 0.
pub(crate) fn random(mut state: u64) -> impl FnMut() -> u64 {
    move || next_random(&mut state)
}

/// A thread of the fake process.
#[derive(Clone)]
struct FakeThread {
    registers: [u64; MAX_REGISTERS],
    /// Its whole stack, ending at the base.
    stack: Vec<u8>,
    cycles: Option<u64>,
    cpu_time: Option<u64>,
    outcome: CaptureOutcome,
    /// Whether the next capture succeeds.
    recovers: bool,
    captures: u32,
    /// Cycles that a capture costs the thread.
    capture_cycles: u64,
    walk_flags: u64,
}

/// The fake process: its clock and threads.
#[derive(Default)]
struct World {
    now: u64,
    threads: BTreeMap<u64, FakeThread>,
    code_reads: u32,
    /// CPU time of the sampler, in ticks.
    own_cpu: u64,
    /// CPU ticks that a look at a thread costs it.
    look_cpu: u64,
    /// Threads in the order of their looks.
    looks: Vec<u64>,
    /// The recording is to end after that many more captures.
    stops: Option<(u32, &'static Signals)>,
}

struct Fake(Rc<RefCell<World>>);

impl Target for Fake {
    type Thread = u64;

    fn now(&mut self) -> Ticks {
        Ticks(self.0.borrow().now)
    }

    fn cycles(&mut self, thread: &u64) -> Option<u64> {
        let mut world = self.0.borrow_mut();
        world.own_cpu += world.look_cpu;
        world.now += world.look_cpu;
        if world.look_cpu != 0 {
            world.looks.push(*thread);
        }
        world.threads[thread].cycles
    }

    fn own_cpu(&mut self) -> Ticks {
        Ticks(self.0.borrow().own_cpu)
    }

    fn cpu_time(&mut self, thread: &u64) -> Option<u64> {
        self.0.borrow().threads[thread].cpu_time
    }

    fn capture(&mut self, thread: &u64, into: &mut Capture) -> CaptureOutcome {
        let mut world = self.0.borrow_mut();
        world.now += 10;
        if let Some((left, signals)) = &mut world.stops {
            *left -= 1;
            if *left == 0 {
                signals.request_stop(EndReason::Stopped);
                world.stops = None;
            }
        }
        let now = world.now;
        let thread = world.threads.get_mut(thread).unwrap();
        thread.captures += 1;
        thread.cycles = thread.cycles.map(|cycles| cycles + thread.capture_cycles);
        fill(thread, now, into);
        let outcome = thread.outcome;
        if thread.recovers {
            thread.outcome = CaptureOutcome::Captured;
        }
        outcome
    }

    fn code(&mut self, ip: u64, into: &mut [u8; CODE_BYTES]) -> CodeRead {
        self.0.borrow_mut().code_reads += 1;
        into.fill(ip as u8);
        CodeRead { len: CODE_BYTES, image: true }
    }

    fn region(&mut self, address: u64) -> Region {
        let used = if IMAGE.contains(&address) { RegionUse::Image { base: 0 } } else { RegionUse::Nothing };
        Region { start: address, end: address + 1, used }
    }
}

fn fill(thread: &FakeThread, now: u64, into: &mut Capture) {
    into.time = Ticks(now);
    into.registers = thread.registers;
    into.stack_base = STACK_BASE;
    into.stack_start = STACK_BASE - thread.stack.len() as u64;
    into.len = thread.stack.len().min(into.stack.len());
    into.stack[..into.len].copy_from_slice(&thread.stack[..into.len]);
    if let Some(walk) = &mut into.walk {
        walk.flags = thread.walk_flags;
        walk.frames.clear();
        let room = walk.frames.capacity();
        walk.frames.extend((0..4).map(|frame| (thread.registers[IP] + frame, STACK_BASE - frame)).take(room));
    }
}

/// A sampler over a fake process, with its writer.
struct Rig {
    world: Rc<RefCell<World>>,
    sampler: Sampler<Fake>,
    lane: Arc<Lane>,
    counters: Arc<Counters>,
    signals: &'static Signals,
    commands: Arc<Queue<ThreadCommand<u64>>>,
    writer: Writer<Memory>,
    header: FileHeader,
}

/// The trace's file.
#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>, Option<usize>);

impl Output for Memory {
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32> {
        let mut file = self.0.borrow_mut();
        if self.1.is_some_and(|room| file.len() + bytes.len() > room) {
            return Err(112);
        }
        file.extend_from_slice(bytes);
        Ok(())
    }

    fn appended(&mut self) -> Option<u64> {
        Some(self.0.borrow().len() as u64)
    }
}

/// A file in which one write terminates the writing thread. A panic simulates that.
#[derive(Clone, Default)]
struct Deadly {
    file: Memory,
    /// How many bytes of the next write reach the file, if that write is the last.
    last: Rc<Cell<Option<usize>>>,
    /// The rest of that write, if the system still finishes it after the thread has ended.
    late: Option<Rc<RefCell<Vec<u8>>>>,
    /// How often that was waited for.
    waits: Rc<Cell<u32>>,
}

impl Output for Deadly {
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32> {
        match self.last.take() {
            None => self.file.append(bytes),
            Some(written) => {
                let (now, late) = bytes.split_at(written.min(bytes.len()));
                self.file.append(now)?;
                if let Some(rest) = &self.late {
                    rest.replace(late.to_vec());
                }
                panic!("terminated");
            }
        }
    }

    fn appended(&mut self) -> Option<u64> {
        self.file.appended()
    }

    fn wait_for_write(&mut self) -> u32 {
        // Each sleep lasts until the system's next clock interrupt.
        self.waits.set(self.waits.get() + 1);
        let Some(late) = &self.late else { return 16 };
        let mut late = late.borrow_mut();
        let len = late.len().min(1000);
        let bytes: Vec<u8> = late.drain(..len).collect();
        self.file.append(&bytes).expect("memory");
        2
    }
}

impl Rig {
    fn new(buffers: usize) -> Rig {
        let mut header = FileHeader::new(Arch::X64, Os::Windows, [7; 16], FREQUENCY);
        header.clock_start = Ticks(0);
        let world = Rc::new(RefCell::new(World { now: 1, ..World::default() }));
        let lane = Arc::new(Lane::new(buffers, 4 << 20, &Arc::new(Files::new(&header))).unwrap());
        let counters = Arc::new(Counters::default());
        let signals: &'static Signals = Box::leak(Box::default());
        let commands = Arc::new(Queue::new(512));
        let links = SamplerLinks {
            lane: lane.clone(),
            counters: counters.clone(),
            signals,
            commands: commands.clone(),
        };
        let sampler = Sampler::new(Fake(world.clone()), links, RegisterSet::X64, 8, FREQUENCY, MAX_STACK);
        let writer = Writer::new(&header, 4 << 20, Memory::default()).unwrap();
        Rig { world, sampler, lane, counters, signals, commands, writer, header }
    }

    fn add(&mut self, instance: u64, words: usize) {
        let mut thread = FakeThread {
            registers: [0; MAX_REGISTERS],
            stack: Vec::new(),
            cycles: None,
            cpu_time: None,
            outcome: CaptureOutcome::Captured,
            recovers: false,
            captures: 0,
            capture_cycles: 0,
            walk_flags: 0,
        };
        set_stack(&mut thread, words, instance);
        self.world.borrow_mut().threads.insert(instance, thread);
        self.announce(instance, true);
    }

    /// Announces the thread to the sampler, and whether passes sample it.
    fn announce(&mut self, instance: u64, wanted: bool) {
        let add = ThreadCommand::Add { instance, tid: instance as u32 * 4, thread: instance, wanted };
        assert!(self.commands.push(add).is_ok());
    }

    /// Reports the thread's end to the sampler.
    fn remove(&mut self, instance: u64) {
        let remove = ThreadCommand::Remove { instance, tid: instance as u32 * 4 };
        assert!(self.commands.push(remove).is_ok());
    }

    fn thread(&self, instance: u64, change: impl FnOnce(&mut FakeThread)) {
        change(self.world.borrow_mut().threads.get_mut(&instance).unwrap());
    }

    /// Makes a pass at `ms`.
    fn pass(&mut self, ms: u64) {
        let now = self.world.borrow().now.max(ms * MS);
        self.world.borrow_mut().now = now;
        self.sampler.pass();
    }

    fn write(&mut self) {
        while let Some((_, block)) = self.lane.take_full() {
            self.writer.block(&block).unwrap();
            self.lane.put_back(block);
        }
    }

    /// Ends the trace and returns the file.
    fn finish(mut self) -> Vec<u8> {
        self.sampler.finish();
        self.write();
        let mut block = BlockBuffer::new(64 << 10, &self.header).unwrap();
        let end = End {
            time: Ticks(self.world.borrow().now),
            reason: EndReason::Stopped as u64,
            samples: self.counters.samples.load(Ordering::Relaxed),
            dropped: self.counters.dropped.load(Ordering::Relaxed),
            detail: b"",
        };
        self.writer.end(&mut block, end).unwrap();
        self.writer.into_output().0.take()
    }
}

/// A stack of `words` words whose contents depend on `seed`.
fn set_stack(thread: &mut FakeThread, words: usize, seed: u64) {
    thread.stack = (0..words as u64).flat_map(|word| (word * 31 + seed).to_le_bytes()).collect();
    thread.registers[SP] = STACK_BASE - thread.stack.len() as u64;
    thread.registers[IP] = 0x40_0000 + seed * 16;
}

/// The samples that a reader finds, in stored order.
#[derive(Clone, PartialEq, Debug)]
enum StoredSample {
    Sample {
        thread: u64,
        time: u64,
        ip: u64,
        stack: Vec<u8>,
        truncated: bool,
        state: RunState,
        tag: Option<u64>,
    },
    Same {
        thread: u64,
        ticks: u64,
    },
    Idle {
        thread: u64,
        ticks: u64,
        block: u64,
    },
}

fn read(file: &[u8]) -> Vec<(u64, StoredSample)> {
    let trace = Trace::open(file).unwrap();
    assert!(trace.is_complete(), "{:?}", trace.damage());
    let mut scratch = Scratch::new();
    let mut found = Vec::new();
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let ordinal = block.header.ordinal;
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().unwrap() {
            let one = match decoded {
                SampleStep::Sample(sample) => StoredSample::Sample {
                    thread: sample.thread,
                    time: sample.time.0,
                    ip: sample.registers[IP],
                    stack: sample.stack.to_vec(),
                    truncated: sample.truncated,
                    state: sample.state,
                    tag: sample.tag,
                },
                SampleStep::Same(same) => StoredSample::Same { thread: same.thread, ticks: same.ticks },
                SampleStep::Idle(idle) => {
                    StoredSample::Idle { thread: idle.thread, ticks: idle.ticks, block: idle.block }
                }
                SampleStep::Other(Event::ThreadCpu(_)) => continue,
                SampleStep::Other(other) => panic!("{other:?}"),
            };
            found.push((ordinal, one));
        }
    }
    found
}

fn samples(found: &[(u64, StoredSample)]) -> Vec<(u64, Vec<u8>)> {
    found
        .iter()
        .filter_map(|(_, one)| match one {
            StoredSample::Sample { thread, stack, .. } => Some((*thread, stack.clone())),
            _ => None,
        })
        .collect()
}

/// At the end of the process the arena has little memory, and a thread that waits to be sampled
/// would need some, though it will not be sampled.
#[test]
fn finishing_the_sampler_adds_no_waiting_threads() {
    let mut rig = Rig::new(1000);
    rig.add(1, 100);
    rig.pass(1);
    rig.add(2, 100);
    rig.sampler.finish();
    assert_eq!(rig.sampler.threads(), 1);
    assert!(rig.commands.pop().is_some());
}

#[test]
fn a_sample_is_followed_by_its_walk_and_an_unchanged_pass_by_none() {
    let mut rig = Rig::new(4);
    rig.sampler.check_walks(3);
    rig.add(1, 10);
    rig.add(2, 20);
    rig.thread(2, |thread| thread.walk_flags = CheckWalk::DISCARDED);
    rig.pass(1);
    rig.pass(2);
    rig.thread(1, |thread| set_stack(thread, 11, 5));
    rig.pass(3);
    let file = rig.finish();

    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    let mut found = Vec::new();
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let mut last = None;
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().unwrap() {
            match decoded {
                SampleStep::Sample(sample) => last = Some((sample.thread, sample.time, sample.registers[IP])),
                SampleStep::Other(Event::CheckWalk(walk)) => {
                    let (thread, time, ip) = last.take().expect("a walk stands behind its sample");
                    assert_eq!((walk.thread, walk.time), (thread, time));
                    let frames: Vec<(u64, u64)> = (0..3).map(|n| (ip + n, STACK_BASE - n)).collect();
                    assert_eq!(walk.frames, frames, "as many frames as there was room for");
                    found.push((thread, walk.flags));
                }
                _ => {}
            }
        }
    }
    assert_eq!(found, [(1, 0), (2, CheckWalk::DISCARDED), (1, 0)]);
}

#[test]
fn stacks_that_grow_shrink_and_change_read_back_word_for_word() {
    let mut rig = Rig::new(4);
    rig.add(1, 40);
    rig.add(2, 3);
    let mut expected = Vec::new();
    // Depths that grow beyond the first image, shrink, and span several block cuts.
    for step in 0..400u64 {
        let words = (step * 37 % 5000) as usize + 1;
        rig.thread(1, |thread| set_stack(thread, words, step));
        rig.thread(2, |thread| set_stack(thread, 3, step));
        for thread in [1, 2] {
            expected.push((thread, rig.world.borrow().threads[&thread].stack.clone()));
        }
        rig.pass(step * 2);
        rig.write();
    }
    let file = rig.finish();
    assert_eq!(samples(&read(&file)), expected);
}

#[test]
fn a_thread_with_unchanged_cycles_is_not_suspended_again() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    rig.thread(1, |thread| thread.cycles = Some(100));
    for ms in 0..50 {
        rig.pass(ms);
    }
    assert_eq!(rig.world.borrow().threads[&1].captures, 1);
    rig.thread(1, |thread| {
        thread.cycles = Some(1_000_000);
        set_stack(thread, 10, 9);
    });
    rig.pass(50);
    assert_eq!(rig.world.borrow().threads[&1].captures, 2);
    assert_eq!(rig.counters.samples.load(Ordering::Relaxed), 51);
    let found = read(&rig.finish());
    assert!(matches!(found[1].1, StoredSample::Same { ticks: 49, .. }), "{found:?}");
    assert!(matches!(found[2].1, StoredSample::Sample { state: RunState::Running, .. }), "{found:?}");
}

/// States of all samples, in stored order. A SAME appears as often as it counts passes.
fn states(file: &[u8]) -> Vec<RunState> {
    let trace = Trace::open(file).unwrap();
    let mut scratch = Scratch::new();
    let mut states = Vec::new();
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().unwrap() {
            match decoded {
                SampleStep::Sample(sample) => states.push(sample.state),
                SampleStep::Same(same) => states.extend((0..same.ticks).map(|_| same.state)),
                SampleStep::Idle(idle) => states.extend((0..idle.ticks).map(|_| idle.state)),
                SampleStep::Other(Event::ThreadCpu(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    states
}

#[test]
fn the_cost_of_sampling_does_not_make_a_waiting_thread_running() {
    let mut rig = Rig::new(4);
    rig.sampler.set_suspension_cost(SuspensionCost { p50: 8_000, p95: 14_000 });
    rig.add(1, 10);
    rig.thread(1, |thread| (thread.cycles, thread.capture_cycles) = (Some(1_000_000), 12_000));
    for (ms, own) in [(0, 0), (1, 0), (2, 0), (3, 0), (4, 2_000_000), (5, 0), (6, 0), (7, 0)] {
        rig.thread(1, |thread| thread.cycles = thread.cycles.map(|cycles| cycles + own));
        rig.pass(ms);
    }
    let captures = rig.world.borrow().threads[&1].captures;
    let mut expected = [RunState::Waiting; 8];
    expected[0] = RunState::Unknown;
    // It ran without changing a register.
    expected[4] = RunState::Running;
    assert_eq!(states(&rig.finish()), expected);
    assert_eq!(captures, 4, "at first and to be sure of it; after the run, and to be sure of that");
}

#[test]
fn an_idle_thread_is_suspended_at_most_three_times_and_one_that_runs_in_every_pass() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    rig.add(2, 10);
    for instance in [1, 2] {
        rig.thread(instance, |thread| (thread.cycles, thread.capture_cycles) = (Some(7), 12_000));
    }
    for ms in 0..100 {
        rig.thread(2, |thread| thread.cycles = thread.cycles.map(|cycles| cycles + 1_000_000));
        rig.pass(ms);
        rig.write();
    }
    let captures = |instance| rig.world.borrow().threads[&instance].captures;
    assert!(captures(1) <= 3, "{}", captures(1));
    assert_eq!(captures(2), 100);
    assert_eq!(rig.counters.samples.load(Ordering::Relaxed), 200);
}

#[test]
fn three_hundred_waiting_threads_are_suspended_at_most_three_times_each() {
    let mut rig = Rig::new(4);
    for instance in 1..=300 {
        rig.add(instance, 10);
        // The cost of a capture differs between threads and between captures.
        let cost = 2_000 + instance * 7919 % 40_000;
        rig.thread(instance, |thread| (thread.cycles, thread.capture_cycles) = (Some(7), cost));
    }
    for ms in 0..10_000 {
        rig.pass(ms);
        rig.write();
    }
    let world = rig.world.borrow();
    let most = world.threads.values().map(|thread| thread.captures).max().unwrap();
    assert!(most <= 3, "{most}");
    // No sample is missing because of this.
    assert_eq!(rig.counters.samples.load(Ordering::Relaxed), 300 * 10_000);
}

#[test]
fn cycles_are_stored_with_samples_even_for_passes_without_a_capture() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    rig.thread(1, |thread| (thread.cycles, thread.capture_cycles) = (Some(1_000), 12_000));
    for ms in 0..10 {
        rig.pass(ms);
    }
    rig.thread(1, |thread| thread.cycles = thread.cycles.map(|cycles| cycles + 5_000_000));
    rig.pass(10);
    let spent = rig.world.borrow().threads[&1].cycles.unwrap() - 1_000;
    let file = rig.finish();
    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    let block = trace.blocks().iter().find(|block| block.header.kind == BlockKind::Samples).unwrap();
    let mut samples = trace.samples(block, &mut scratch).unwrap();
    let mut deltas = Vec::new();
    while let Some(decoded) = samples.next().unwrap() {
        match decoded {
            SampleStep::Sample(sample) => deltas.push(sample.cpu_delta.unwrap_or(0)),
            SampleStep::Same(same) => deltas.push(same.cpu_delta.unwrap_or(0)),
            SampleStep::Other(Event::ThreadCpu(more)) => deltas.push(more.cpu),
            other => panic!("{other:?}"),
        }
    }
    // The first sample has nothing before it; the last capture's own cost comes after the last
    // pass.
    assert_eq!(deltas.iter().sum::<i64>() as u64, spent, "{deltas:?}");
    assert_eq!(
        *deltas.last().unwrap(),
        5_012_000,
        "the cost of the captures is in the passes before: {deltas:?}"
    );
}

#[test]
fn a_limited_sampler_gives_every_thread_its_turn_and_counts_skipped_passes() {
    const THREADS: u64 = 400;
    let mut rig = Rig::new(4);
    rig.sampler.limit_cpu(Ticks(MS), None);
    rig.world.borrow_mut().look_cpu = 100;
    for instance in 1..=THREADS {
        rig.add(instance, 10);
        rig.thread(instance, |thread| thread.cycles = Some(7));
    }
    let (mut ms, mut from, mut brief) = (0, 0, None);
    while ms < 10_000 {
        rig.pass(ms);
        rig.write();
        if ms < 1_000 {
            from = rig.world.borrow().own_cpu;
            rig.world.borrow_mut().looks.clear();
        }
        ms = (ms + rig.sampler.stride()).max(rig.world.borrow().now.div_ceil(MS));
        // Threads that come and go delay no other thread's turn.
        if let Some(instance) = brief.take() {
            rig.remove(instance);
        } else if ms % 3 == 0 {
            let instance = THREADS + 1 + ms;
            rig.add(instance, 10);
            rig.thread(instance, |thread| thread.cycles = Some(7));
            brief = Some(instance);
        }
    }
    let world = rig.world.borrow();
    let share = (world.own_cpu - from) * 100 / (9_000 * MS);
    assert!((15..=26).contains(&share), "{share} % of a core");
    let mut turns = BTreeMap::<u64, u64>::new();
    for &thread in world.looks.iter().filter(|&&thread| thread <= THREADS) {
        *turns.entry(thread).or_default() += 1;
    }
    assert_eq!(turns.len() as u64, THREADS);
    let (least, most) = (turns.values().min().unwrap(), turns.values().max().unwrap());
    assert!(most - least <= 1, "{least} to {most} turns");
    assert!(rig.counters.lost(DropReason::DutyLimit as usize) > 9_000 / 2);
    assert_eq!(
        rig.counters.dropped.load(Ordering::Relaxed),
        0,
        "no samples are missing of the passes that were made"
    );
    let rate = rig.counters.rate.load(Ordering::Acquire);
    assert!((1..250_000).contains(&rate), "{rate} millionths");
}

#[test]
fn passes_leave_unwanted_threads_alone_until_they_are_wanted() {
    let mut rig = Rig::new(4);
    for instance in 1..=4 {
        rig.add(instance, 10);
    }
    for unwanted in [1, 3] {
        rig.remove(unwanted);
        rig.announce(unwanted, false);
    }
    let captures = |rig: &Rig| -> Vec<u32> {
        rig.world.borrow().threads.values().map(|thread| thread.captures).collect()
    };
    rig.pass(0);
    assert_eq!(captures(&rig), [0, 1, 0, 1]);
    assert_eq!(rig.sampler.pass_missing(), 0, "unwanted threads do not lack a sample");
    // What an unwanted thread captures of itself is stored.
    let mut capture = Capture::new(MAX_STACK);
    fill(&rig.world.borrow().threads[&3], 5, &mut capture);
    let mut triggered = TriggeredSample { tid: 12, tag: 77, capture: &mut capture };
    assert_eq!(rig.sampler.triggered(&mut triggered), Acceptance::Done);
    rig.announce(3, true);
    rig.pass(1);
    assert_eq!(captures(&rig), [0, 2, 1, 2]);
    assert_eq!(rig.sampler.threads(), 4);
    rig.remove(1);
    rig.pass(2);
    assert_eq!(captures(&rig), [0, 3, 2, 3]);
    let stored = samples(&read(&rig.finish()));
    assert!(stored.iter().all(|(thread, _)| *thread != 1));
    assert!(stored.iter().any(|(thread, _)| *thread == 3));
}

#[test]
fn a_thread_that_cannot_be_captured_is_tried_again_at_the_end_of_the_pass() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    rig.add(2, 10);
    rig.thread(1, |thread| (thread.outcome, thread.recovers) = (CaptureOutcome::OwnsExitLocks, true));
    rig.thread(2, |thread| thread.outcome = CaptureOutcome::NoContext);
    rig.add(3, 10);
    rig.thread(3, |thread| thread.outcome = CaptureOutcome::NotStopped);
    rig.pass(0);
    let lost = |reason| rig.counters.lost(reason as usize);
    assert_eq!((lost(DropReason::OwnsExitLocks), lost(DropReason::NoContext)), (0, 1));
    assert_eq!(lost(DropReason::NotStopped), 1);
    let captures: Vec<u32> = rig.world.borrow().threads.values().map(|thread| thread.captures).collect();
    // The sampler does not wait twice for a thread that does not stop.
    assert_eq!(captures, [2, 2, 1]);
    let threads: Vec<u64> = samples(&read(&rig.finish())).into_iter().map(|(thread, _)| thread).collect();
    assert_eq!(threads, [1]);
}

#[test]
fn without_cycle_counts_an_unchanged_thread_is_unknown_and_a_changed_one_ran() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    rig.pass(0);
    rig.thread(1, |thread| set_stack(thread, 10, 5));
    rig.pass(1);
    let states: Vec<_> = read(&rig.finish())
        .into_iter()
        .map(|(_, one)| match one {
            StoredSample::Sample { state, .. } => state,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(states, [RunState::Unknown, RunState::Running]);
}

#[test]
fn a_block_is_cut_in_time_even_if_nothing_ran() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    for ms in 0..5 * limits::CUT_MS_MOST {
        rig.pass(ms);
        rig.write();
    }
    let found = read(&rig.finish());
    let idle: Vec<_> = found.iter().filter(|(_, one)| matches!(one, StoredSample::Idle { .. })).collect();
    // The first block holds the sample; the last may be short.
    assert!(idle.len() >= 4, "{found:?}");
    // Every IDLE names the block of the one sample there is.
    assert!(idle.iter().all(|(_, one)| matches!(one, StoredSample::Idle { block: 0, .. })), "{idle:?}");
    let passes: u64 = found
        .iter()
        .map(|(_, one)| match one {
            StoredSample::Same { ticks, .. } | StoredSample::Idle { ticks, .. } => *ticks,
            StoredSample::Sample { .. } => 1,
        })
        .sum();
    assert_eq!(passes, 5 * limits::CUT_MS_MOST);
}

#[test]
fn idle_events_after_a_state_block_refer_to_no_earlier_block() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    for ms in 0..600 {
        if ms == 300 {
            rig.signals.renew.store(true, Ordering::Release);
        }
        rig.pass(ms);
        rig.write();
    }
    let found = read(&rig.finish());
    let keyframes: Vec<_> = found
        .iter()
        .filter(|(_, one)| matches!(one, StoredSample::Sample { .. }))
        .map(|(block, _)| *block)
        .collect();
    assert_eq!(keyframes.len(), 2, "{found:?}");
    for (block, one) in &found {
        if let StoredSample::Idle { block: cited, .. } = one {
            assert!(*block < keyframes[1] || *cited >= keyframes[1], "{found:?}");
        }
    }
}

#[test]
fn samples_without_a_free_buffer_are_counted_and_later_ones_are_complete() {
    let mut rig = Rig::new(2);
    rig.add(1, 2000);
    let mut expected = Vec::new();
    for ms in 0..2000u64 {
        rig.thread(1, |thread| set_stack(thread, 2000, ms * ms));
        let before = rig.counters.samples.load(Ordering::Relaxed);
        rig.pass(ms);
        if rig.counters.samples.load(Ordering::Relaxed) != before {
            expected.push((1, rig.world.borrow().threads[&1].stack.clone()));
        }
        // The disk is slow for a while.
        if !(400..1200).contains(&ms) {
            rig.write();
        }
    }
    let dropped = rig.counters.dropped.load(Ordering::Relaxed);
    assert!(dropped > 100, "{dropped}");
    assert_eq!(dropped, rig.counters.lost(DropReason::BuffersFull as usize));
    assert_eq!(expected.len() as u64 + dropped, 2000);
    let file = rig.finish();
    assert_eq!(samples(&read(&file)), expected);
}

#[test]
fn a_stack_beyond_the_limit_is_cut_at_its_base_and_flagged() {
    let mut rig = Rig::new(4);
    rig.add(1, MAX_STACK / 8 + 100);
    rig.pass(0);
    let stack = rig.world.borrow().threads[&1].stack.clone();
    match &read(&rig.finish())[0].1 {
        StoredSample::Sample { stack: found, truncated, .. } => {
            assert!(truncated);
            assert!(*found == stack[..MAX_STACK], "the words from the stack pointer up");
        }
        other => panic!("{other:?}"),
    };
}

#[test]
fn only_pointers_are_stored_if_asked_for_of_every_kind_of_sample() {
    let mut rig = Rig::new(4);
    rig.sampler.keep_pointers_only(Arch::X64);
    rig.add(1, 0);
    let words = |data: u64| -> Vec<u8> {
        let words = [data, IMAGE.start + 0x123, 0x1234_5678_9abc_def0, STACK_BASE - 16, !data, 0];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    let pointers = {
        let words = [0, IMAGE.start + 0x123, 0, STACK_BASE - 16, 0, 0];
        words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    for data in 1..4 {
        rig.thread(1, |thread| {
            thread.stack = words(data);
            thread.registers = [0; MAX_REGISTERS];
            thread.registers[..4].copy_from_slice(&[IMAGE.start + data, STACK_BASE - 48, data, IMAGE.start]);
        });
        rig.pass(data);
    }
    // Nothing but data changes: for the trace, the thread is as before.
    rig.thread(1, |thread| thread.stack = words(9));
    rig.pass(4);
    let mut capture = Capture::new(MAX_STACK);
    let mut own = rig.world.borrow().threads[&1].clone();
    own.stack = words(0x7777);
    fill(&own, 5 * MS, &mut capture);
    let mut triggered = TriggeredSample { tid: 4, tag: 42, capture: &mut capture };
    rig.sampler.triggered(&mut triggered);
    // Three words of data and a register in each of five samples; of the unchanged ones, only what
    // is not in the sample before.
    assert_eq!(rig.counters.redacted_words.load(Ordering::Relaxed), 5 * 4);
    let found = read(&rig.finish());
    let stacks = samples(&found);
    assert_eq!(stacks.len(), 4, "{found:?}");
    assert!(stacks.iter().all(|(_, stack)| *stack == pointers), "{stacks:x?}");
    assert!(found.iter().any(|(_, one)| matches!(one, StoredSample::Same { ticks: 1, .. })), "{found:?}");
}

#[test]
fn a_triggered_sample_carries_its_tag_and_forces_the_next_capture() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    rig.thread(1, |thread| thread.cycles = Some(5));
    rig.pass(0);
    let mut capture = Capture::new(MAX_STACK);
    let mut own = rig.world.borrow().threads[&1].clone();
    set_stack(&mut own, 20, 77);
    fill(&own, 3 * MS, &mut capture);
    let mut triggered = TriggeredSample { tid: 4, tag: 42, capture: &mut capture };
    assert_eq!(rig.sampler.triggered(&mut triggered), Acceptance::Done);
    // The cycle count has not changed since the last look, but another sample was stored last.
    rig.pass(4);
    assert_eq!(rig.world.borrow().threads[&1].captures, 2);
    let found = read(&rig.finish());
    let tags: Vec<_> = found
        .iter()
        .map(|(_, one)| match one {
            StoredSample::Sample { tag, stack, .. } => (*tag, stack.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(tags, [(None, 80), (Some(42), 160), (None, 80)]);
}

#[test]
fn a_triggered_sample_waits_for_its_thread_and_is_counted_if_it_never_comes() {
    let mut rig = Rig::new(4);
    let mut capture = Capture::new(64);
    let mut triggered = TriggeredSample { tid: 8, tag: 1, capture: &mut capture };
    assert_eq!(rig.sampler.triggered(&mut triggered), Acceptance::Later);
    rig.world.borrow_mut().now = 2000 * MS;
    assert_eq!(rig.sampler.triggered(&mut triggered), Acceptance::Done);
    assert_eq!(rig.counters.lost(DropReason::UnknownThread as usize), 1);
}

#[test]
fn losses_are_counted_by_their_reason_and_an_ended_thread_is_no_loss() {
    let mut rig = Rig::new(4);
    let outcomes = [
        (CaptureOutcome::Ended, None),
        (CaptureOutcome::NotSuspended, Some(DropReason::NoThread)),
        (CaptureOutcome::NoContext, Some(DropReason::NoContext)),
        (CaptureOutcome::OwnsExitLocks, Some(DropReason::OwnsExitLocks)),
        (CaptureOutcome::NotStopped, Some(DropReason::NotStopped)),
    ];
    for (instance, (outcome, _)) in (1..).zip(outcomes) {
        rig.add(instance, 10);
        rig.thread(instance, |thread| thread.outcome = outcome);
    }
    rig.pass(0);
    for reason in outcomes.into_iter().filter_map(|(_, reason)| reason) {
        assert_eq!(rig.counters.lost(reason as usize), 1, "{reason:?}");
    }
    assert_eq!(rig.counters.dropped.load(Ordering::Relaxed), 4);
    assert_eq!(rig.counters.samples.load(Ordering::Relaxed), 0);
}

#[test]
fn a_one_shot_retries_only_threads_that_could_not_be_sampled() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    rig.add(2, 10);
    rig.thread(2, |thread| thread.outcome = CaptureOutcome::NoContext);
    rig.pass(0);
    assert_eq!(rig.sampler.pass_missing(), 1);
    rig.thread(2, |thread| thread.outcome = CaptureOutcome::Captured);
    assert_eq!(rig.sampler.pass_missing(), 0);
    let threads: Vec<u64> = samples(&read(&rig.finish())).into_iter().map(|(thread, _)| thread).collect();
    assert_eq!(threads, [1, 2]);
}

#[test]
fn a_thread_that_ends_leaves_its_idle_passes_in_the_trace() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    for ms in 0..20 {
        rig.pass(ms);
    }
    rig.remove(1);
    rig.add(2, 10);
    rig.pass(20);
    assert_eq!(rig.sampler.threads(), 1);
    let found = read(&rig.finish());
    assert!(found.iter().any(|(_, one)| *one == StoredSample::Same { thread: 1, ticks: 19 }), "{found:?}");
}

#[test]
fn code_at_an_address_is_read_once_until_a_module_is_loaded_or_unloaded() {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    for ms in 0..5 {
        rig.pass(ms);
    }
    assert_eq!(rig.world.borrow().code_reads, 1);
    rig.signals.loader_generation.fetch_add(1, Ordering::AcqRel);
    rig.pass(5);
    assert_eq!(rig.world.borrow().code_reads, 2);
}

#[test]
fn after_a_failed_write_nothing_more_is_appended_and_the_file_stays_readable() {
    let mut rig = Rig::new(4);
    let file = Memory(Rc::default(), Some(400_000));
    let mut writer = Writer::new(&rig.header, 4 << 20, file.clone()).unwrap();
    rig.add(1, 100);
    let mut error = None;
    for ms in 0..4_000u64 {
        rig.thread(1, |thread| set_stack(thread, 100, ms * ms * ms));
        rig.pass(ms);
        while let Some((_, block)) = rig.lane.take_full() {
            error = error.or(writer.block(&block).err());
            rig.lane.put_back(block);
        }
    }
    assert_eq!(error, Some(WriteError::System(112)));
    assert_eq!(writer.failure(), error);
    let file = file.0.borrow();
    let trace = Trace::open(&file).unwrap();
    assert!(!trace.is_complete());
    assert!(trace.blocks().len() > 1, "{}", trace.blocks().len());
    assert!(trace.verify(&mut Scratch::new()).is_empty());
}

/// The thread that ends the process continues where the writer was terminated.
#[test]
fn a_block_whose_writer_was_terminated_is_in_the_trace_once_or_not_at_all() {
    // Before it was compressed; before, after and within the write.
    // In the last case the system finishes the write after the thread's end.
    for (written, late, whole) in [
        (None, false, true),
        (Some(0), false, true),
        (Some(usize::MAX), false, true),
        (Some(100), false, false),
        (Some(100), true, true),
    ] {
        let mut rig = Rig::new(4);
        let output = Deadly { late: late.then(Rc::default), ..Deadly::default() };
        let mut writer = Writer::new(&rig.header, 4 << 20, output.clone()).unwrap();
        rig.add(1, 100);
        for ms in 0..200u64 {
            rig.thread(1, |thread| set_stack(thread, 100, ms * ms * ms));
            rig.pass(ms);
        }
        rig.sampler.finish();
        let (_, block) = rig.lane.take_full().unwrap();
        if written.is_some() {
            output.last.set(written);
            let write = AssertUnwindSafe(|| writer.block(&block));
            assert!(std::panic::catch_unwind(write).is_err());
        }
        assert_eq!(writer.resume(&block).is_ok(), whole, "{written:?}");
        assert!(late || output.waits.get() <= 7, "{} waits of 16 ms for 100 ms", output.waits.get());
        let mut last = BlockBuffer::new(64 << 10, &rig.header).unwrap();
        let end = End { time: Ticks(9), reason: 2, samples: 200, dropped: 0, detail: b"" };
        assert_eq!(writer.end(&mut last, end).is_ok(), whole);
        let file = output.file.0.borrow();
        let trace = Trace::open(&file).unwrap();
        assert_eq!(trace.is_complete(), whole, "{written:?}");
        assert_eq!(
            trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples).count(),
            usize::from(whole)
        );
        assert!(!whole || trace.verify(&mut Scratch::new()).is_empty(), "{written:?}");
    }
}

/// A sampler that is terminated within a sample loses that sample only.
#[test]
fn what_is_whole_of_a_torn_samplers_block_is_in_the_trace() {
    let mut rig = Rig::new(4);
    rig.add(1, 100);
    for ms in 0..200u64 {
        rig.thread(1, |thread| set_stack(thread, 100, ms * ms * ms));
        rig.pass(ms);
    }
    rig.sampler.finish_torn();
    let (_, block) = rig.lane.take_full().expect("a block");
    assert_eq!(block.samples(), 200);
    rig.sampler.finish_torn();
    assert!(rig.lane.take_full().is_none());
}

/// A clock that stands still. It never waits.
struct NoPace;

impl Pace for NoPace {
    fn now(&self) -> Ticks {
        Ticks(5)
    }

    fn pause(&self) -> bool {
        false
    }
}

struct NoStore;

impl TableStore for NoStore {
    fn put(&mut self, _hash: ContentHash, _bytes: &[u8]) -> bool {
        false
    }
}

struct Folder(BTreeMap<[u8; 16], Vec<u8>>);

impl TableStore for Folder {
    fn put(&mut self, hash: ContentHash, bytes: &[u8]) -> bool {
        self.0.insert(hash.0, bytes.to_vec());
        true
    }
}

fn journal(buffers: usize) -> (EventWriter<NoPace>, Arc<Lane>, Memory, Writer<Memory>) {
    let header = FileHeader::new(Arch::X64, Os::Windows, [9; 16], FREQUENCY);
    let lane = Arc::new(Lane::new(buffers, event_writer::CAPACITY, &Arc::new(Files::new(&header))).unwrap());
    let file = Memory::default();
    let writer = Writer::new(&header, event_writer::CAPACITY, file.clone()).unwrap();
    (EventWriter::new(lane.clone(), Arc::default(), NoPace), lane, file, writer)
}

#[test]
fn a_repeated_table_is_stored_once_and_reads_back() {
    let (mut journal, lane, file, mut writer) = journal(8);
    let part = |rva, byte| crate::record::image::ImagePart {
        kind: TableKind::UnwindInfo,
        rva,
        bytes: (0..700_000u32).map(|index| (index >> 8) as u8 ^ byte).collect(),
    };
    let mut contents = StoredBlobs::default();
    let first = contents.put(&part(0x1000, 1), None::<&mut NoStore>, &mut journal);
    let again = contents.put(&part(0x9000, 1), None::<&mut NoStore>, &mut journal);
    let mut folder = Folder(BTreeMap::new());
    let outside = contents.put(&part(0x1000, 2), Some(&mut folder), &mut journal);
    journal.flush();
    while let Some((_, block)) = lane.take_full() {
        writer.block(&block).unwrap();
        lane.put_back(block);
    }
    assert_eq!((first.hash, first.len), (again.hash, again.len));
    assert_eq!((first.rva, again.rva), (0x1000, 0x9000));
    assert_eq!(folder.0[&outside.hash.0], part(0, 2).bytes);

    let file = file.0.borrow();
    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    let mut assembly = blob::Assembly::new(first.hash);
    let mut bytes = 0;
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Blob) {
        for event in trace.events(block, &mut scratch).unwrap() {
            if let Event::Blob(piece) = event.unwrap() {
                bytes += piece.bytes.len();
                assembly.add(&piece).unwrap();
            }
        }
    }
    assert_eq!(bytes, 700_000);
    assert!(assembly.finish().unwrap() == part(0, 1).bytes);
}

#[test]
fn a_journal_without_a_writer_gives_up_and_counts_the_loss() {
    let header = FileHeader::new(Arch::X64, Os::Windows, [9; 16], FREQUENCY);
    let lane = Arc::new(Lane::new(2, event_writer::CAPACITY, &Arc::new(Files::new(&header))).unwrap());
    let counters = Arc::new(Counters::default());
    let mut journal = EventWriter::new(lane.clone(), counters.clone(), NoPace);
    let kept: Vec<_> = std::iter::from_fn(|| lane.take_free(0)).collect();
    assert_eq!(kept.len(), 2);
    journal.event(&Event::Metadata(Metadata { key: b"k", value: b"v" }));
    assert_eq!(counters.lost(DropReason::EventNotWritten as usize), 1);
}
