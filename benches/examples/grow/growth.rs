//! Grows a large trace from a small real one, for benchmarks that need a million samples of real
//! code.
//!
//! The caller walks each real sample into frames; its stack is then cut into one piece per frame. A
//! piece fits below another if, in the real trace, the same two return addresses were above it. New
//! stacks are random walks over pieces that fit, from a thread's outermost frame to a leaf.
//! Pointers into the stack are moved with the frame that they point to. Pieces do not show
//! everything (a frame pointer may pass through many frames), so every new stack is walked too. A
//! stack whose frames differ from its pieces is discarded.

use super::pieces::{Composed, Facts, Path, Pieces, Walk, compose};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use stk_format::{
    BlockBuffer, BlockKind, EncodeError, HEADER_KEY, RawSample, Sample, SampleEncoder, Scratch, ThreadImage,
    Trace,
};
use stk_schema::Ticks;
use stk_schema::event::{End, EndReason, Event, RunState};
use stk_schema::limits;
use stk_tests::synth::Random;
use stk_tests::synth::TraceWriter;

/// Who a grown trace says that it is, where it is to differ from the real one.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub uuid: [u8; 16],
    pub host: String,
    /// Start of the recording, nanoseconds since the Unix epoch.
    pub utc_start: u64,
}

/// The settings of a grown trace.
#[derive(Clone, Debug)]
pub(crate) struct Grow {
    /// Samples to write.
    pub samples: u64,
    /// Frames of a stack, as nearly as the real code allows.
    pub depth: usize,
    /// Share of passes that repeat the thread's sample before, 0 to 1.
    pub repeat: f64,
    /// Most real samples to take apart.
    pub source: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// `None`: the real trace's.
    pub identity: Option<Identity>,
}

impl Default for Grow {
    /// A million samples, 25 frames deep, a third repeated, from 20,000 real ones.
    fn default() -> Self {
        Grow { samples: 1_000_000, depth: 25, repeat: 0.33, source: 20_000, seed: 1, identity: None }
    }
}

/// The figures of a grown trace.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Grown {
    /// Samples written, repeated ones included.
    pub samples: u64,
    /// Different stacks, by their instruction pointers.
    pub distinct: u64,
    /// Pairs of consecutive samples of a thread that are equal.
    pub equal_pairs: u64,
    /// Pairs of consecutive samples of a thread.
    pub pairs: u64,
    /// Frames of all samples together.
    pub frames: u64,
    /// Stacks whose walked frames differed from their pieces.
    pub rejected: u64,
    /// Real samples that were cut into pieces.
    pub source: u64,
    /// Bytes of the grown trace.
    pub bytes: u64,
}

/// Grows `trace` and writes the result to `out`. `walk` returns the frames of a sample, leaf first,
/// if it reaches the thread's start. Modules and threads are those of the real trace, without
/// modules that were unloaded and threads that ended. An error if too little is left to build from.
pub(crate) fn grow<W: Write>(trace: &Trace, plan: &Grow, walk: Walk, out: W) -> io::Result<(W, Grown)> {
    let facts = facts(trace)?;
    let pieces = Pieces::take_apart(trace, plan.source, &facts, walk);
    grow_from(trace, &pieces, plan, walk, out)
}

/// [`grow`] with pieces that were taken apart before.
pub(crate) fn grow_from<W: Write>(
    trace: &Trace,
    pieces: &Pieces,
    plan: &Grow,
    walk: Walk,
    out: W,
) -> io::Result<(W, Grown)> {
    let mut header = *trace.header();
    if let Some(Identity { uuid, utc_start, .. }) = &plan.identity {
        (header.uuid, header.utc_start) = (*uuid, *utc_start);
    }
    let mut writer = TraceWriter::new(out, &header)?;
    let facts = copy_metadata(trace, plan.identity.as_ref(), &mut writer)?;
    if pieces.roots.is_empty() || pieces.leaves.is_empty() {
        return Err(io::Error::other(
            "no sample of the trace walks to its thread's start: nothing to grow from",
        ));
    }
    let mut growth = Growth {
        plan,
        pieces,
        walk,
        word: header.word(),
        random: Random::new(plan.seed),
        writer: &mut writer,
        encoder: SampleEncoder::new(),
        block: BlockBuffer::new(limits::MAX_BLOCK_RAW, &header).map_err(io::Error::other)?,
        seen: HashSet::new(),
        good: HashSet::new(),
        grown: Grown { source: pieces.source, ..Grown::default() },
    };
    let now = growth.run(facts.last)?;
    let mut grown = growth.grown;
    let end =
        End { time: now, reason: EndReason::Stopped as u64, samples: grown.samples, dropped: 0, detail: b"" };
    grown.bytes = writer.file_len();
    Ok((writer.finish(&end)?, grown))
}

/// What the metadata of a trace say.
pub(crate) fn facts(trace: &Trace) -> io::Result<Facts> {
    copy_metadata(trace, None, &mut TraceWriter::new(io::sink(), trace.header())?)
}

/// Copies all blocks but samples, index and end.
fn copy_metadata<W: Write>(
    trace: &Trace,
    identity: Option<&Identity>,
    writer: &mut TraceWriter<W>,
) -> io::Result<Facts> {
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
            let mut event = event.map_err(io::Error::other)?;
            if let (Event::Metadata(fact), Some(Identity { host, .. })) = (&mut event, identity)
                && fact.key == b"host"
            {
                fact.value = host.as_bytes();
            }
            match &event {
                Event::ModuleLoad(load) => {
                    modules.insert(load.instance, load.base..load.base.saturating_add(load.size));
                }
                Event::ModuleUnload { instance, .. } => facts.unloaded.extend(modules.remove(instance)),
                Event::CodeAdd(code) => facts.unloaded.push(code.base..code.base.saturating_add(code.size)),
                Event::ThreadExit { instance, .. } => drop(facts.ended.insert(*instance)),
                // The writer adds its own.
                Event::Metadata(fact) if fact.key == HEADER_KEY => continue,
                _ => {}
            }
            events.push(event);
        }
        writer.events(kind, block.header.first, events)?;
    }
    Ok(facts)
}

/// A thread that is being grown.
struct GrownThread {
    id: u64,
    base: u64,
    root: usize,
    path: Path,
    image: ThreadImage,
    started: bool,
}

/// Attempts at a new stack before the thread's old one is written again.
const ATTEMPTS: usize = 32;

/// The SAMPLES blocks that are being written.
struct Growth<'a, W: Write> {
    plan: &'a Grow,
    pieces: &'a Pieces,
    walk: Walk<'a>,
    word: usize,
    random: Random,
    writer: &'a mut TraceWriter<W>,
    encoder: SampleEncoder,
    block: BlockBuffer,
    /// Stacks written, as hashes of their instruction pointers.
    seen: HashSet<u64>,
    /// Paths whose stacks were walked with the expected frames, as hashes.
    good: HashSet<u64>,
    grown: Grown,
}

impl<W: Write> Growth<'_, W> {
    /// Writes all samples; gives the time after the last one.
    fn run(&mut self, from: Ticks) -> io::Result<Ticks> {
        let mut threads = self.threads()?;
        let frequency = self.writer.header().clock_frequency;
        // One pass a millisecond, the threads a little after each other.
        let (pass, step) = (Ticks((frequency / 1000).max(1)), (frequency / 100_000).max(1));
        let mut now = from + pass;
        let mut useless = 0;
        self.encoder.begin(&mut self.block, now);
        while self.grown.samples < self.plan.samples {
            let before = self.grown.samples;
            for (i, thread) in threads.iter_mut().enumerate() {
                if self.grown.samples < self.plan.samples {
                    self.sample(thread, now + Ticks(i as u64 * step))?;
                }
            }
            useless = if self.grown.samples == before { useless + 1 } else { 0 };
            if useless > 100 {
                return Err(io::Error::other(
                    "no stack could be put together: the trace has too few samples",
                ));
            }
            now += pass;
            if self.block.wants_cut(now) || self.block.len() > limits::MAX_BLOCK_RAW / 2 {
                self.cut(&mut threads)?;
                self.encoder.begin(&mut self.block, now);
            }
        }
        self.cut(&mut threads)?;
        Ok(now)
    }

    fn threads(&self) -> io::Result<Vec<GrownThread>> {
        let mut threads: Vec<GrownThread> = Vec::new();
        for &(id, base, root) in &self.pieces.roots {
            if threads.iter().all(|thread| thread.id != id) {
                let image = ThreadImage::new(8192, self.word).map_err(io::Error::other)?;
                threads.push(GrownThread { id, base, root, path: Path::default(), image, started: false });
            }
        }
        Ok(threads)
    }

    /// One pass over one thread: a new stack, or the one before again.
    fn sample(&mut self, thread: &mut GrownThread, time: Ticks) -> io::Result<()> {
        let repeat = thread.started && self.random.share() < self.plan.repeat;
        let fresh = if repeat { None } else { self.next_stack(thread) };
        if let Some(composed) = fresh {
            self.put(thread, time, &composed)?;
            self.grown.pairs += u64::from(thread.started);
            self.grown.distinct += u64::from(self.seen.insert(hash(&composed.ips)));
            thread.started = true;
        } else if thread.started {
            let image = &mut thread.image;
            self.encoder.same(&mut self.block, image, time, RunState::Waiting).map_err(io::Error::other)?;
            self.grown.pairs += 1;
            self.grown.equal_pairs += 1;
        } else {
            return Ok(());
        }
        self.grown.samples += 1;
        self.grown.frames += thread.path.pieces.len() as u64;
        Ok(())
    }

    /// The thread's next stack: it keeps the outer frames and grows new inner ones, as in a running
    /// thread. `None` if no stack was found that walks as expected.
    fn next_stack(&mut self, thread: &mut GrownThread) -> Option<Composed> {
        for attempt in 0..ATTEMPTS {
            let mut path = thread.path.clone();
            if path.pieces.is_empty() {
                path.pieces.push(thread.root);
            }
            // Mostly the last few frames change; now and then, and after failures, more of them.
            let mut back = 1 + attempt;
            while self.random.share() < 0.6 {
                back += 1;
            }
            let keep = path.pieces.len().saturating_sub(back).max(1);
            let leaf = path.regrow(self.pieces, keep, self.plan.depth, &mut self.random);
            if !leaf || path.pieces == thread.path.pieces {
                continue;
            }
            let Some(composed) = compose(self.pieces, &path, thread.base, self.word) else { continue };
            let key = hash(&(&path.pieces, thread.base));
            if !self.good.contains(&key) {
                if !self.walks_back(&composed, thread) {
                    self.grown.rejected += 1;
                    continue;
                }
                self.good.insert(key);
            }
            thread.path = path;
            return Some(composed);
        }
        None
    }

    /// Whether the caller's walker finds the frames of the stack's pieces.
    fn walks_back(&mut self, composed: &Composed, thread: &GrownThread) -> bool {
        let sample = Sample {
            thread: thread.id,
            slot: 0,
            time: Ticks::ZERO,
            set: composed.set,
            registers: &composed.registers,
            stack_base: thread.base,
            stack_start: thread.base - composed.stack.len() as u64,
            stack: &composed.stack,
            truncated: false,
            unchanged_from: thread.base,
            changed: &[],
            code_at_ip: composed.code.as_deref(),
            state: RunState::Running,
            cpu_delta: None,
            tag: None,
            tables_pending: false,
            context_reply: None,
            extra: Default::default(),
        };
        (self.walk)(&sample)
            .is_some_and(|frames| frames.iter().map(|frame| frame.ip).eq(composed.ips.iter().copied()))
    }

    fn put(&mut self, thread: &mut GrownThread, time: Ticks, composed: &Composed) -> io::Result<()> {
        let raw = RawSample {
            thread: thread.id,
            time,
            set: composed.set,
            registers: &composed.registers,
            stack_base: thread.base,
            stack_start: thread.base - composed.stack.len() as u64,
            stack: &composed.stack,
            code: composed.code.as_deref(),
            cpu: None,
            state: RunState::Running,
            tag: None,
            tables_pending: false,
            context_reply: None,
            extra: &[],
        };
        let mut taken = self.encoder.sample(&mut self.block, &mut thread.image, &raw);
        if let Err(EncodeError::ImageTooSmall { words }) = taken {
            thread.image.reserve(2 * words, self.word).map_err(io::Error::other)?;
            taken = self.encoder.sample(&mut self.block, &mut thread.image, &raw);
        }
        taken.map(drop).map_err(io::Error::other)
    }

    /// Writes the block that is being filled.
    fn cut(&mut self, threads: &mut [GrownThread]) -> io::Result<()> {
        for thread in threads {
            self.encoder.flush_idle(&mut self.block, &mut thread.image).map_err(io::Error::other)?;
        }
        self.writer.block(&self.block)
    }
}

fn hash(values: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.hash(&mut hasher);
    hasher.finish()
}
