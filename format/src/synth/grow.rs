//! A large trace grown from a small real one: for benchmarks that need a million samples of real
//! code.
//!
//! The caller walks each real sample into frames; its stack then falls into one piece per frame. A
//! piece fits below another if, in the real trace, the same two return addresses stood above it.
//! New stacks are random walks over pieces that fit, from a thread's outermost frame to a leaf;
//! pointers into the stack are moved with the frame that they pointed to. What cannot be known from
//! pieces (a frame pointer that passed through many frames) is settled by walking every new stack
//! too: one that does not come out as it was put together is thrown away.

use super::random::Random;
use crate::block::{BlockBuffer, HEADER_KEY, Rejected};
use crate::header::{BlockKind, FileHeader};
use crate::read::{BlockRef, Decoded, Sample, Scratch, Trace};
use crate::sample::{RawSample, SampleEncoder, ThreadImage};
use crate::writer::TraceWriter;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;
use stk_schema::event::{End, EndReason, Event, RunState};
use stk_schema::limits;
use stk_schema::registers::{IP, RegisterSet, SP};

/// One frame of a walked stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Instruction pointer: of frame 0 the sampled one, of others the return address.
    pub ip: u64,
    /// Stack pointer in this frame: of frame 0 the sampled one, of others where it stands after the
    /// return.
    pub sp: u64,
}

/// What to grow.
#[derive(Clone, Copy, Debug)]
pub struct Grow {
    /// Samples to write.
    pub samples: u64,
    /// Frames that a stack should have; as near as the real code allows.
    pub depth: usize,
    /// Share of passes that repeat the thread's sample before, 0 to 1.
    pub repeat: f64,
    /// Most real samples to take apart.
    pub source: usize,
    /// Decides everything that is random.
    pub seed: u64,
}

impl Default for Grow {
    /// A million samples, 25 frames deep, a third repeated, from 20,000 real ones.
    fn default() -> Self {
        Grow { samples: 1_000_000, depth: 25, repeat: 0.33, source: 20_000, seed: 1 }
    }
}

/// What was grown.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Grown {
    /// Samples written, repeated ones included.
    pub samples: u64,
    /// Different stacks, by their instruction pointers.
    pub distinct: u64,
    /// Samples of the same thread after each other that are equal.
    pub equal_pairs: u64,
    /// Samples of the same thread after each other.
    pub pairs: u64,
    /// Frames of all samples together.
    pub frames: u64,
    /// Stacks that did not walk as they were put together.
    pub rejected: u64,
    /// Real samples that were taken apart.
    pub source: u64,
    /// Bytes of the grown trace.
    pub bytes: u64,
}

/// Grows `trace` and writes the result to `out`. `walk` gives the frames of a sample, leaf first,
/// if it reaches the thread's start. Modules and threads are those of the real trace; modules that
/// it saw unloaded, and threads that ended, take no part. An error if too little is left to build
/// from.
pub fn grow<W: Write>(
    trace: &Trace,
    plan: &Grow,
    walk: &mut dyn FnMut(&Sample) -> Option<Vec<Frame>>,
    out: W,
) -> io::Result<(W, Grown)> {
    let mut writer = TraceWriter::new(out, trace.header())?;
    let facts = copy_metadata(trace, &mut writer)?;
    let pieces = Pieces::take_apart(trace, plan, &facts, walk);
    if pieces.roots.is_empty() || pieces.leaves.is_empty() {
        return Err(io::Error::other(
            "no sample of the trace walks to its thread's start: nothing to grow from",
        ));
    }
    let mut grown = Grown { source: pieces.source, ..Grown::default() };
    let now = write_samples(trace.header(), plan, &pieces, facts.last, walk, &mut writer, &mut grown)?;
    let end =
        End { time: now, reason: EndReason::Stopped as u64, samples: grown.samples, dropped: 0, detail: b"" };
    grown.bytes = writer.file_len();
    Ok((writer.finish(&end)?, grown))
}

/// What the real trace's metadata says.
#[derive(Default)]
struct Facts {
    /// Memory of modules that were unloaded.
    unloaded: Vec<Range<u64>>,
    /// Threads that ended.
    ended: HashSet<u64>,
    /// Latest time of any block.
    last: u64,
}

/// Copies all blocks but samples, index and end.
fn copy_metadata<W: Write>(trace: &Trace, writer: &mut TraceWriter<W>) -> io::Result<Facts> {
    let mut scratch = Scratch::new();
    let mut facts = Facts::default();
    let mut modules = HashMap::new();
    for block in trace.blocks() {
        let kind = block.header.kind;
        facts.last = facts.last.max(block.header.last);
        if matches!(kind, BlockKind::Samples | BlockKind::Index | BlockKind::End) {
            continue;
        }
        let mut events = Vec::new();
        for event in trace.events(block, &mut scratch).map_err(io::Error::other)? {
            let event = event.map_err(io::Error::other)?;
            match &event {
                Event::ModuleLoad(load) => {
                    modules.insert(load.instance, load.base..load.base.saturating_add(load.size));
                }
                Event::ModuleUnload { instance, .. } => facts.unloaded.extend(modules.remove(instance)),
                Event::CodeAdd(code) => facts.unloaded.push(code.base..code.base.saturating_add(code.size)),
                Event::ThreadExit { instance, .. } => drop(facts.ended.insert(*instance)),
                // The writer puts its own in front.
                Event::Metadata(fact) if fact.key == HEADER_KEY => continue,
                _ => {}
            }
            events.push(event);
        }
        writer.events(kind, block.header.first, events)?;
    }
    Ok(facts)
}

/// A word that pointed into the stack.
#[derive(Clone, Copy)]
struct Pointer {
    /// Index of the word (or register).
    at: u32,
    /// How many frames further out what it points to lies ...
    up: u32,
    /// ... and at which offset in that frame's piece.
    offset: u32,
}

/// The stack of one frame.
struct Piece {
    ip: u64,
    /// Instruction pointers of the next two frames; 0 beyond the outermost.
    next: (u64, u64),
    bytes: Vec<u8>,
    pointers: Vec<Pointer>,
    /// Only of a leaf's piece.
    leaf: Option<Leaf>,
}

/// What a sample holds beside its stack.
struct Leaf {
    set: RegisterSet,
    registers: Vec<u64>,
    pointers: Vec<Pointer>,
    code: Option<Vec<u8>>,
}

/// A place in a walk: the frame's instruction pointer and the one above.
type Place = (u64, u64);

/// All pieces of the real stacks, by where they fit.
struct Pieces {
    all: Vec<Piece>,
    /// Outermost pieces: thread, its stack base, the piece.
    roots: Vec<(u64, u64, usize)>,
    inner: HashMap<Place, Vec<usize>>,
    leaves: HashMap<Place, Vec<usize>>,
    source: u64,
}

/// Different pieces kept of the same frame below the same callers.
const VARIANTS: usize = 8;

impl Pieces {
    fn take_apart(
        trace: &Trace,
        plan: &Grow,
        facts: &Facts,
        walk: &mut dyn FnMut(&Sample) -> Option<Vec<Frame>>,
    ) -> Pieces {
        let mut pieces = Pieces {
            all: Vec::new(),
            roots: Vec::new(),
            inner: HashMap::new(),
            leaves: HashMap::new(),
            source: 0,
        };
        let mut scratch = Scratch::new();
        let blocks: Vec<&BlockRef> =
            trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples).collect();
        let mut kept: HashMap<(u64, u64, u64, bool), usize> = HashMap::new();
        for block in blocks {
            let Ok(mut samples) = trace.samples(block, &mut scratch) else { continue };
            while let Ok(Some(decoded)) = samples.next() {
                let Decoded::Sample(sample) = decoded else { continue };
                if pieces.source == plan.source as u64 {
                    return pieces;
                }
                if sample.truncated || facts.ended.contains(&sample.thread) {
                    continue;
                }
                let Some(frames) = walk(&sample) else { continue };
                let gone = |ip: u64| facts.unloaded.iter().any(|range| range.contains(&ip));
                let rising = frames.windows(2).all(|pair| pair[0].sp < pair[1].sp);
                let within =
                    frames.iter().all(|frame| (sample.stack_start..sample.stack_base).contains(&frame.sp));
                if frames.len() < 2 || !rising || !within || frames.iter().any(|frame| gone(frame.ip)) {
                    continue;
                }
                pieces.source += 1;
                pieces.add(&sample, &frames, trace.header().word(), &mut kept);
            }
        }
        pieces
    }

    fn add(
        &mut self,
        sample: &Sample,
        frames: &[Frame],
        word: usize,
        kept: &mut HashMap<(u64, u64, u64, bool), usize>,
    ) {
        // Frame i's piece reaches from its stack pointer to the next one's, the outermost's to the
        // base.
        let start = |i: usize| match i {
            0 => sample.stack_start,
            i => frames.get(i).map_or(sample.stack_base, |frame| frame.sp),
        };
        let pointer = |value: u64, from: usize| {
            let i = (0..frames.len()).rfind(|&i| start(i) <= value).filter(|_| value < sample.stack_base)?;
            Some((i.checked_sub(from)? as u32, (value - start(i)) as u32))
        };
        let ip = |i: usize| frames.get(i).map_or(0, |frame| frame.ip);
        for i in 0..frames.len() {
            let (leaf, root) = (i == 0, i + 1 == frames.len());
            let count = kept.entry((ip(i), ip(i + 1), ip(i + 2), leaf)).or_default();
            let known_root = root && self.roots.iter().any(|&(thread, _, _)| thread == sample.thread);
            if *count >= VARIANTS && (!root || known_root) {
                continue;
            }
            *count += 1;
            let range =
                (start(i) - sample.stack_start) as usize..(start(i + 1) - sample.stack_start) as usize;
            let bytes = sample.stack[range].to_vec();
            let words = bytes.chunks_exact(word).map(number).enumerate();
            let find = |(at, value): (usize, u64)| {
                pointer(value, i).map(|(up, offset)| Pointer { at: at as u32, up, offset })
            };
            let pointers = words.filter_map(find).collect();
            let registers = sample.registers.iter().copied().enumerate();
            let leaf_facts = leaf.then(|| Leaf {
                set: sample.set,
                registers: sample.registers.to_vec(),
                pointers: registers.filter(|&(at, _)| at != IP && at != SP).filter_map(find).collect(),
                code: sample.code_at_ip.map(<[u8]>::to_vec),
            });
            let next = (ip(i + 1), ip(i + 2));
            let at = self.all.len();
            self.all.push(Piece { ip: ip(i), next, bytes, pointers, leaf: leaf_facts });
            if root {
                self.roots.push((sample.thread, sample.stack_base, at));
            } else if leaf {
                self.leaves.entry(next).or_default().push(at);
            } else {
                self.inner.entry(next).or_default().push(at);
            }
        }
    }

    fn place(&self, piece: usize) -> Place {
        (self.all[piece].ip, self.all[piece].next.0)
    }
}

/// A stack put together: pieces from the outermost to the leaf.
#[derive(Clone, Default)]
struct Path {
    pieces: Vec<usize>,
}

impl Path {
    /// Grows anew from the `keep` outermost pieces; `false` if it comes to no leaf.
    fn regrow(&mut self, pieces: &Pieces, keep: usize, depth: usize, random: &mut Random) -> bool {
        self.pieces.truncate(keep);
        let goal = depth + random.below(5) - 2;
        while let Some(&last) = self.pieces.last() {
            let place = pieces.place(last);
            let leaves = pieces.leaves.get(&place).map_or(&[][..], Vec::as_slice);
            let inner = pieces.inner.get(&place).map_or(&[][..], Vec::as_slice);
            let deep = self.pieces.len() + 1 >= goal;
            if !leaves.is_empty() && (deep || inner.is_empty()) {
                self.pieces.push(leaves[random.below(leaves.len())]);
                return true;
            }
            if inner.is_empty() || self.pieces.len() > 2 * depth + 64 {
                return false;
            }
            self.pieces.push(inner[random.below(inner.len())]);
        }
        false
    }
}

/// A sample put together.
struct Composed {
    set: RegisterSet,
    registers: Vec<u64>,
    stack: Vec<u8>,
    code: Option<Vec<u8>>,
    ips: Vec<u64>,
}

fn compose(pieces: &Pieces, path: &Path, base: u64, word: usize) -> Option<Composed> {
    // Leaf first, with the address at which each piece begins.
    let parts: Vec<&Piece> = path.pieces.iter().rev().map(|&piece| &pieces.all[piece]).collect();
    let size: usize = parts.iter().map(|part| part.bytes.len()).sum();
    let mut starts = Vec::with_capacity(parts.len());
    let mut at = base.checked_sub(size as u64)?;
    for part in &parts {
        starts.push(at);
        at += part.bytes.len() as u64;
    }
    let moved = |from: usize, pointer: &Pointer| {
        starts.get(from + pointer.up as usize).map(|start| start + u64::from(pointer.offset))
    };
    let mut stack = Vec::with_capacity(size);
    for (i, part) in parts.iter().enumerate() {
        let begin = stack.len();
        stack.extend_from_slice(&part.bytes);
        for pointer in &part.pointers {
            if let Some(value) = moved(i, pointer) {
                let at = begin + pointer.at as usize * word;
                stack[at..at + word].copy_from_slice(&value.to_le_bytes()[..word]);
            }
        }
    }
    let leaf = parts[0].leaf.as_ref()?;
    let mut registers = leaf.registers.clone();
    for pointer in &leaf.pointers {
        if let Some(value) = moved(0, pointer) {
            registers[pointer.at as usize] = value;
        }
    }
    registers[SP] = starts[0];
    let ips = parts.iter().map(|part| part.ip).collect();
    Some(Composed { set: leaf.set, registers, stack, code: leaf.code.clone(), ips })
}

/// A thread that is being grown.
struct Thread {
    id: u64,
    base: u64,
    root: usize,
    path: Path,
    image: ThreadImage,
    started: bool,
}

/// Attempts at a new stack before the thread's old one is repeated.
const ATTEMPTS: usize = 32;

#[allow(clippy::too_many_arguments)] // one call
fn write_samples<W: Write>(
    header: &FileHeader,
    plan: &Grow,
    pieces: &Pieces,
    from: u64,
    walk: &mut dyn FnMut(&Sample) -> Option<Vec<Frame>>,
    writer: &mut TraceWriter<W>,
    grown: &mut Grown,
) -> io::Result<u64> {
    let word = header.word();
    let mut random = Random::new(plan.seed);
    let mut threads: Vec<Thread> = Vec::new();
    for &(id, base, root) in &pieces.roots {
        if threads.iter().all(|thread| thread.id != id) {
            let image = ThreadImage::new(8192, word).map_err(io::Error::other)?;
            threads.push(Thread { id, base, root, path: Path::default(), image, started: false });
        }
    }
    let mut encoder = SampleEncoder::new();
    let mut block = BlockBuffer::new(limits::MAX_BLOCK_RAW, header).map_err(io::Error::other)?;
    let mut seen = HashSet::new();
    let mut good = HashSet::new();
    // One pass a millisecond, the threads a little after each other.
    let (pass, step) = ((header.clock_frequency / 1000).max(1), (header.clock_frequency / 100_000).max(1));
    let mut now = from + pass;
    let mut useless = 0;
    encoder.begin(&mut block, now);
    while grown.samples < plan.samples {
        let before = grown.samples;
        for (i, thread) in threads.iter_mut().enumerate() {
            if grown.samples == plan.samples {
                break;
            }
            let time = now + i as u64 * step;
            let repeat = thread.started && random.share() < plan.repeat;
            let fresh = (!repeat)
                .then(|| next_stack(pieces, plan, thread, word, &mut random, &mut good, walk, grown));
            let Some(composed) = fresh.flatten() else {
                if thread.started {
                    encoder
                        .same(&mut block, &mut thread.image, time, RunState::Waiting)
                        .map_err(io::Error::other)?;
                    grown.samples += 1;
                    grown.pairs += 1;
                    grown.equal_pairs += 1;
                    grown.frames += thread.path.pieces.len() as u64;
                }
                continue;
            };
            put(&mut encoder, &mut block, &mut thread.image, thread.id, thread.base, time, &composed, word)?;
            grown.samples += 1;
            grown.pairs += u64::from(thread.started);
            grown.frames += composed.ips.len() as u64;
            grown.distinct += u64::from(seen.insert(hash(&composed.ips)));
            thread.started = true;
        }
        useless = if grown.samples == before { useless + 1 } else { 0 };
        if useless > 100 {
            return Err(io::Error::other("no stack could be put together: the trace has too few samples"));
        }
        now += pass;
        if block.wants_cut(now) || block.len() > limits::MAX_BLOCK_RAW / 2 {
            for thread in &mut threads {
                encoder.flush_idle(&mut block, &mut thread.image).map_err(io::Error::other)?;
            }
            writer.block(&block)?;
            encoder.begin(&mut block, now);
        }
    }
    for thread in &mut threads {
        encoder.flush_idle(&mut block, &mut thread.image).map_err(io::Error::other)?;
    }
    writer.block(&block)?;
    Ok(now)
}

/// The thread's next stack: its outer frames stay, the inner ones are grown anew, as a running
/// thread does it. `None` if none was found that walks as it should.
#[allow(clippy::too_many_arguments)] // one call
fn next_stack(
    pieces: &Pieces,
    plan: &Grow,
    thread: &mut Thread,
    word: usize,
    random: &mut Random,
    good: &mut HashSet<u64>,
    walk: &mut dyn FnMut(&Sample) -> Option<Vec<Frame>>,
    grown: &mut Grown,
) -> Option<Composed> {
    for attempt in 0..ATTEMPTS {
        let mut path = thread.path.clone();
        if path.pieces.is_empty() {
            path.pieces.push(thread.root);
        }
        // Mostly the last few frames change; now and then, and after failures, more of them.
        let mut back = 1 + attempt;
        while random.share() < 0.6 {
            back += 1;
        }
        let keep = path.pieces.len().saturating_sub(back).max(1);
        let old = std::mem::take(&mut path.pieces);
        path.pieces = old[..keep].to_vec();
        if !path.regrow(pieces, keep, plan.depth, random) || path.pieces == thread.path.pieces {
            continue;
        }
        let Some(composed) = compose(pieces, &path, thread.base, word) else { continue };
        let key = hash(&path.pieces.iter().map(|&piece| piece as u64).collect::<Vec<_>>()) ^ thread.base;
        if !good.contains(&key) {
            if !walks_back(&composed, thread, walk) {
                grown.rejected += 1;
                continue;
            }
            good.insert(key);
        }
        thread.path = path;
        return Some(composed);
    }
    None
}

/// Whether the caller's walker sees the frames that the stack was put together from.
fn walks_back(
    composed: &Composed,
    thread: &Thread,
    walk: &mut dyn FnMut(&Sample) -> Option<Vec<Frame>>,
) -> bool {
    let sample = Sample {
        thread: thread.id,
        slot: 0,
        time: 0,
        set: composed.set,
        registers: &composed.registers,
        stack_base: thread.base,
        stack_start: thread.base - composed.stack.len() as u64,
        stack: &composed.stack,
        truncated: false,
        unchanged_from: thread.base,
        code_at_ip: composed.code.as_deref(),
        state: RunState::Running,
        cpu_delta: None,
        tag: None,
        tables_pending: false,
        context_reply: None,
        extra: Default::default(),
    };
    walk(&sample).is_some_and(|frames| frames.iter().map(|frame| frame.ip).eq(composed.ips.iter().copied()))
}

#[allow(clippy::too_many_arguments)] // one call
fn put(
    encoder: &mut SampleEncoder,
    block: &mut BlockBuffer,
    image: &mut ThreadImage,
    thread: u64,
    base: u64,
    time: u64,
    composed: &Composed,
    word: usize,
) -> io::Result<()> {
    let raw = RawSample {
        thread,
        time,
        set: composed.set,
        registers: &composed.registers,
        stack_base: base,
        stack_start: base - composed.stack.len() as u64,
        stack: &composed.stack,
        code: composed.code.as_deref(),
        cpu: None,
        state: RunState::Running,
        tag: None,
        tables_pending: false,
        context_reply: None,
        extra: &[],
    };
    match encoder.sample(block, image, &raw) {
        Err(Rejected::ImageTooSmall { words }) => {
            image.reserve(2 * words, word).map_err(io::Error::other)?;
            encoder.sample(block, image, &raw).map(drop).map_err(io::Error::other)
        }
        other => other.map(drop).map_err(io::Error::other),
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn hash(values: &[u64]) -> u64 {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
