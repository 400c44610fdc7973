//! Drives a recorder by arbitrary operations, and checks what a reader then finds.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::collections::HashMap;
use stk_format::{
    BlockBuffer, BlockKind, EncodeError, FileHeader, RawSample, Rewriter, SampleEncoder, SampleStep, Scratch,
    ThreadImage, Trace, rewrite_events,
};
use stk_schema::event::{Clock, End, Event, RunState};
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Os, Ticks};
use stk_tests::synth::TraceWriter;

/// One step of the recorder.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// The thread ran: some words differ, the stack pointer may have moved.
    Change { thread: usize, seed: u64, depth: usize },
    /// The thread ran and only the highest `kept` words were captured (less if the stack is
    /// shorter).
    Short { thread: usize, seed: u64, depth: usize, kept: usize },
    /// The thread is captured and found as before.
    Again { thread: usize },
    /// The thread is known not to have run.
    Same { thread: usize, state: RunState },
    /// The thread's clock is read: it gained so much.
    Clock { thread: usize, gain: u64 },
    /// The thread was not sampled for a while, in which its clock gained so much.
    Pause { thread: usize, gain: u64 },
    /// The thread switches to another stack.
    Switch { thread: usize, seed: u64 },
    /// The block is cut.
    Cut,
    /// A STATE block is written.
    State,
}

/// The state of one thread in one pass.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Seen {
    pub time: u64,
    pub registers: Vec<u64>,
    pub stack_base: u64,
    pub stack_start: u64,
    pub stack: Vec<u8>,
    pub state: RunState,
    pub code: Option<Vec<u8>>,
    pub tag: Option<u64>,
    pub cpu: u64,
}

/// A trace and the passes that are in it, per thread.
pub(crate) struct Played {
    pub file: Vec<u8>,
    pub passes: HashMap<u64, Vec<Seen>>,
    /// What each thread's clock gained from its first reading to its last, pauses left out.
    pub cpu: HashMap<u64, u64>,
}

const THREADS: usize = 3;

pub(crate) fn ops(max: usize) -> impl Strategy<Value = Vec<Op>> {
    let thread = 0..THREADS;
    let op = prop_oneof![
        8 => (thread.clone(), any::<u64>(), 0..300usize)
            .prop_map(|(thread, seed, depth)| Op::Change { thread, seed, depth }),
        2 => (thread.clone(), any::<u64>(), 0..300usize, 0..80usize)
            .prop_map(|(thread, seed, depth, kept)| Op::Short { thread, seed, depth, kept }),
        4 => thread.clone().prop_map(|thread| Op::Again { thread }),
        4 => (thread.clone(), 0..3u64).prop_map(|(thread, state)| Op::Same { thread, state: RunState::from_code(state) }),
        3 => (thread.clone(), 0..1000u64).prop_map(|(thread, gain)| Op::Clock { thread, gain }),
        1 => (thread.clone(), 0..1000u64).prop_map(|(thread, gain)| Op::Pause { thread, gain }),
        1 => (thread, any::<u64>()).prop_map(|(thread, seed)| Op::Switch { thread, seed }),
        1 => Just(Op::Cut),
        1 => Just(Op::State),
    ];
    proptest::collection::vec(op, 1..max)
}

/// The actual state of a thread.
struct Live {
    id: u64,
    base: u64,
    /// All words of its stack, highest address last.
    words: Vec<u64>,
    registers: Vec<u64>,
    depth: usize,
    kept: usize,
    image: ThreadImage,
    last: Option<Seen>,
    cpu: u64,
    /// Readings of its clock: the first that came with a SAMPLE, and the last of all.
    read: Option<(u64, u64)>,
}

/// Records `ops` with block buffers of `capacity` bytes.
pub(crate) fn play(ops: &[Op], capacity: usize) -> Played {
    let header = FileHeader::new(Arch::X64, Os::Windows, [7; 16], 1000);
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let mut encoder = SampleEncoder::new();
    let mut block = BlockBuffer::new(capacity, &header).unwrap();
    let mut passes: HashMap<u64, Vec<Seen>> = HashMap::new();
    let mut live: Vec<Live> = (0..THREADS)
        .map(|i| Live {
            id: 10 + i as u64,
            base: 0x10_0000 * (i as u64 + 1),
            words: vec![0; 400],
            registers: vec![0; 17],
            depth: 0,
            kept: usize::MAX,
            image: ThreadImage::new(8, 8).unwrap(),
            last: None,
            cpu: 0,
            read: None,
        })
        .collect();
    let mut now = 1000;
    writer.events(BlockKind::State, Ticks(now), [Event::Clock(Clock { time: Ticks(now), utc: 0 })]).unwrap();
    encoder.begin(&mut block, Ticks(now));
    for op in ops {
        now += 1;
        match *op {
            Op::Change { thread, seed, depth } => {
                change(&mut live[thread], seed, depth, usize::MAX);
                capture(&mut encoder, &mut block, &mut writer, &mut live, thread, now, seed, &mut passes);
            }
            Op::Short { thread, seed, depth, kept } => {
                change(&mut live[thread], seed, depth, kept);
                capture(&mut encoder, &mut block, &mut writer, &mut live, thread, now, seed, &mut passes);
            }
            Op::Again { thread } => {
                capture(&mut encoder, &mut block, &mut writer, &mut live, thread, now, 0, &mut passes);
            }
            Op::Same { thread, state } => {
                for attempt in 0..2 {
                    let entry = &mut live[thread];
                    match encoder.same(&mut block, &mut entry.image, Ticks(now), state) {
                        Ok(_) => {
                            let mut seen = entry.last.clone().unwrap();
                            // A keyframe that results from this has no code bytes.
                            (seen.time, seen.state, seen.tag, seen.code) = (now, state, None, None);
                            entry.last = Some(seen.clone());
                            passes.entry(entry.id).or_default().push(seen);
                            break;
                        }
                        Err(EncodeError::NoSample) => break,
                        Err(EncodeError::BlockFull) if attempt == 0 => {
                            cut(&mut encoder, &mut block, &mut writer, &mut live, now);
                        }
                        Err(EncodeError::BlockFull) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            Op::Clock { thread, gain } => {
                let entry = &mut live[thread];
                entry.cpu += gain;
                entry.image.note_cpu(entry.cpu);
                entry.read = entry.read.map(|(first, _)| (first, entry.cpu));
            }
            Op::Pause { thread, gain } => {
                let entry = &mut live[thread];
                // What it used since its last reading goes as well.
                let last = entry.read.map_or(entry.cpu, |(_, last)| last);
                entry.cpu += gain;
                entry.image.skip_cpu(entry.cpu);
                entry.read = entry.read.map(|(first, _)| (first + (entry.cpu - last), entry.cpu));
            }
            Op::Switch { thread, seed } => {
                live[thread].base = 0x1000_0000 + (seed % 64) * 0x10_000;
                capture(&mut encoder, &mut block, &mut writer, &mut live, thread, now, seed, &mut passes);
            }
            Op::Cut => cut(&mut encoder, &mut block, &mut writer, &mut live, now),
            Op::State => {
                cut(&mut encoder, &mut block, &mut writer, &mut live, now);
                writer
                    .events(BlockKind::State, Ticks(now), [Event::Clock(Clock { time: Ticks(now), utc: 0 })])
                    .unwrap();
                encoder.renew_keyframes();
            }
        }
    }
    for thread in &mut live {
        encoder.flush_idle(&mut block, &mut thread.image).expect("the block kept room");
    }
    for i in 0..live.len() {
        if encoder.last_cpu(&mut block, &mut live[i].image, Ticks(now)).is_err() {
            cut(&mut encoder, &mut block, &mut writer, &mut live, now);
            encoder.last_cpu(&mut block, &mut live[i].image, Ticks(now)).expect("an empty block");
        }
    }
    cut(&mut encoder, &mut block, &mut writer, &mut live, now);
    let end = End { time: Ticks(now), reason: 1, samples: 0, dropped: 0, detail: b"" };
    let gained = |thread: &Live| thread.read.map(|(first, last)| (thread.id, last - first));
    Played { file: writer.finish(&end).unwrap(), passes, cpu: live.iter().filter_map(gained).collect() }
}

/// Lets the thread run. `seed` decides what it changes.
fn change(thread: &mut Live, seed: u64, depth: usize, kept: usize) {
    let mut random = seed;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    thread.depth = depth;
    thread.kept = kept;
    for _ in 0..next() % 12 {
        let at = next() as usize % thread.words.len();
        thread.words[at] = next() % 4;
    }
    for _ in 0..next() % 4 {
        let at = next() as usize % 17;
        thread.registers[at] = next() << 20;
    }
    thread.registers[1] = thread.base - 8 * depth as u64;
    thread.cpu += next() % 3;
}

/// One pass over one thread, as the recorder does it.
#[allow(clippy::too_many_arguments)]
fn capture(
    encoder: &mut SampleEncoder,
    block: &mut BlockBuffer,
    writer: &mut TraceWriter<Vec<u8>>,
    live: &mut [Live],
    thread: usize,
    now: u64,
    seed: u64,
    passes: &mut HashMap<u64, Vec<Seen>>,
) {
    let entry = &live[thread];
    let start = entry.base - 8 * entry.depth as u64;
    let words = &entry.words[entry.words.len() - entry.depth..];
    let words = &words[..words.len().min(entry.kept)];
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // The code bytes are a function of the instruction pointer, except in every seventh sample,
    // where they are patched.
    let ip = entry.registers[0];
    let code = vec![(ip >> 20) as u8 ^ u8::from(seed % 7 == 3); 16];
    let tag = (seed % 11 == 5).then_some(seed);
    let state = RunState::from_code(seed % 3);
    let seen = Seen {
        time: now,
        registers: entry.registers.clone(),
        stack_base: entry.base,
        stack_start: start,
        stack: stack.clone(),
        state,
        code: Some(code.clone()),
        tag,
        cpu: entry.cpu,
    };
    let registers = entry.registers.clone();
    let extra = [(0x77_0000u64, &b"besides!"[..])];
    let raw = RawSample {
        thread: entry.id,
        time: Ticks(now),
        set: RegisterSet::X64,
        registers: &registers,
        stack_base: entry.base,
        stack_start: start,
        stack: &stack,
        code: Some(&code),
        cpu: Some(entry.cpu),
        state,
        tag,
        tables_pending: false,
        context_reply: tag.map(|tag| tag as u32),
        extra: if tag.is_some() { &extra } else { &[] },
    };
    let mut cuts = 0;
    loop {
        match encoder.sample(block, &mut live[thread].image, &raw) {
            Ok(_) => {
                let entry = &mut live[thread];
                entry.read = Some((entry.read.map_or(entry.cpu, |(first, _)| first), entry.cpu));
                break;
            }
            Err(EncodeError::ImageTooSmall { words }) => live[thread].image.reserve(words, 8).unwrap(),
            // Dropped: the reader must not see it. Its clock was read.
            Err(EncodeError::BlockFull) if cuts == 1 => {
                let entry = &mut live[thread];
                entry.read = entry.read.map(|(first, _)| (first, entry.cpu));
                return;
            }
            Err(EncodeError::BlockFull) => {
                cut(encoder, block, writer, live, now);
                cuts += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    live[thread].last = Some(seen.clone());
    passes.entry(live[thread].id).or_default().push(seen);
}

fn cut(
    encoder: &mut SampleEncoder,
    block: &mut BlockBuffer,
    writer: &mut TraceWriter<Vec<u8>>,
    live: &mut [Live],
    now: u64,
) {
    for thread in live {
        encoder.flush_idle(block, &mut thread.image).expect("the block kept room");
    }
    writer.block(block).unwrap();
    encoder.begin(block, Ticks(now));
}

/// A copy of a trace that changes nothing.
struct Unchanged;

impl Rewriter for Unchanged {
    fn word(&mut self, word: u64) -> u64 {
        word
    }

    fn event(&mut self, event: &Event<'_>, put: &mut dyn FnMut(&Event<'_>)) {
        put(event);
    }
}

/// Reads the trace and compares it with what was recorded.
pub(crate) fn read_back(played: &Played) -> Result<(), TestCaseError> {
    let trace = Trace::open(&played.file).unwrap();
    prop_assert_eq!(trace.damage(), []);
    prop_assert!(trace.is_complete() && trace.is_indexed());
    let mut scratch = Scratch::new();
    let mut left: HashMap<u64, std::slice::Iter<Seen>> =
        played.passes.iter().map(|(&id, seen)| (id, seen.iter())).collect();
    // Per thread: its last full sample, and the ordinal of the block that holds it.
    let mut last: HashMap<u64, (Seen, u64)> = HashMap::new();
    let mut cpu_sum: HashMap<u64, i64> = HashMap::new();
    for block in trace.blocks() {
        prop_assert!(block.metadata_known);
        if block.header.kind != BlockKind::Samples {
            continue;
        }
        let raw = trace.payload(block, &mut scratch).unwrap().to_vec();
        let mut copy = Vec::new();
        let events = rewrite_events(&raw, &block.header, 8, &mut Unchanged, &mut copy).unwrap();
        prop_assert_eq!((events, &copy), (block.header.events, &raw), "a copy has all fields");
        let ordinal = block.header.ordinal;
        let (mut count, mut stack_bytes) = (0, 0);
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().map_err(|error| TestCaseError::fail(error.to_string()))? {
            match decoded {
                SampleStep::Sample(s) => {
                    let expected = left.get_mut(&s.thread).and_then(Iterator::next).expect("no more passes");
                    *cpu_sum.entry(s.thread).or_default() += s.cpu_delta.unwrap_or(0);
                    let seen = Seen {
                        time: s.time.0,
                        registers: s.registers.to_vec(),
                        stack_base: s.stack_base,
                        stack_start: s.stack_start,
                        stack: s.stack.to_vec(),
                        state: s.state,
                        code: s.code_at_ip.map(<[u8]>::to_vec),
                        tag: s.tag,
                        cpu: expected.cpu,
                    };
                    let code = expected.code.as_ref().and(seen.code.clone());
                    prop_assert_eq!(&Seen { code, ..seen.clone() }, expected);
                    let end = seen.stack_start + seen.stack.len() as u64;
                    prop_assert_eq!(s.truncated, end < seen.stack_base);
                    prop_assert_eq!(s.extra.clone().count(), usize::from(s.tag.is_some()));
                    prop_assert_eq!(s.context_reply, s.tag.map(|tag| tag as u32));
                    let before = last.get(&s.thread).filter(|(_, block)| *block == ordinal);
                    check_unchanged(&seen, before.map(|(seen, _)| seen), s.unchanged_from)?;
                    count += 1;
                    stack_bytes += seen.stack.len();
                    last.insert(s.thread, (seen, ordinal));
                }
                SampleStep::Same(s) => {
                    *cpu_sum.entry(s.thread).or_default() += s.cpu_delta.unwrap_or(0);
                    let (stack, block) = &last[&s.thread];
                    prop_assert_eq!(*block, ordinal);
                    take(left.get_mut(&s.thread).unwrap(), stack, (s.first.0, s.last.0, s.ticks), s.state)?;
                    count += s.ticks;
                }
                SampleStep::Idle(i) => {
                    let (stack, block) = &last[&i.thread];
                    prop_assert_eq!(*block, i.block);
                    prop_assert!(i.block < ordinal);
                    take(left.get_mut(&i.thread).unwrap(), stack, (i.first.0, i.last.0, i.ticks), i.state)?;
                    count += i.ticks;
                }
                SampleStep::Other(Event::ThreadCpu(more)) => {
                    *cpu_sum.entry(more.thread).or_default() += more.cpu;
                }
                SampleStep::Other(event) => prop_assert!(false, "{:?}", event),
            }
        }
        prop_assert_eq!(
            (count, stack_bytes),
            (u64::from(block.header.samples), block.header.stack_bytes as usize)
        );
    }
    for (id, mut rest) in left {
        prop_assert_eq!(rest.next(), None, "passes of thread {} are missing", id);
    }
    for (id, gained) in &played.cpu {
        prop_assert_eq!(cpu_sum.get(id).copied().unwrap_or(0), *gained as i64, "CPU time of thread {}", id);
    }
    Ok(())
}

/// Checks passes that found the thread as in `stack`.
fn take(
    left: &mut std::slice::Iter<Seen>,
    stack: &Seen,
    (first, last, ticks): (u64, u64, u64),
    state: RunState,
) -> Result<(), TestCaseError> {
    for i in 0..ticks {
        let seen = left.next().expect("no more passes");
        prop_assert!(i != 0 || seen.time == first);
        prop_assert!(i != ticks - 1 || seen.time == last);
        prop_assert_eq!(seen.state, state);
        prop_assert_eq!(&seen.registers, &stack.registers);
        prop_assert_eq!((seen.stack_base, seen.stack_start), (stack.stack_base, stack.stack_start));
        prop_assert_eq!(&seen.stack, &stack.stack);
    }
    Ok(())
}

/// `from` is the lowest address from which on the sample equals the slot's sample before.
fn check_unchanged(now: &Seen, before: Option<&Seen>, from: u64) -> Result<(), TestCaseError> {
    let end = now.stack_start + now.stack.len() as u64;
    let word = |seen: &Seen, address: u64| -> Option<[u8; 8]> {
        let at = address.checked_sub(seen.stack_start)? as usize;
        seen.stack.get(at..at + 8)?.try_into().ok()
    };
    prop_assert!((now.stack_start..=end).contains(&from));
    for address in (from..end).step_by(8) {
        prop_assert_eq!(word(now, address), before.and_then(|before| word(before, address)));
    }
    Ok(())
}
