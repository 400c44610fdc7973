//! The samples of a profile as text: pieces of a thread's runs, of which several are made at once,
//! and what they are put together to.

use super::super::OutputError;
use super::super::column::SpooledColumn;
use super::super::json;
use super::super::sink::Sink;
use super::super::unfold::StackOrigin;
use super::shared_frames::SharedFrames;
use super::stack_text::StackText;
use stk_profile::profile::{Batch, Profile, Weight};

/// Frames of the stacks of a piece at most, where it has more than [`FEW_RUNS`]: they bound its
/// text.
const FRAMES: usize = 1 << 16;

/// Runs of a piece at least, and at most.
const FEW_RUNS: usize = 64;
const MOST_RUNS: usize = 4 << 10;

/// The runs that a piece is made of.
pub(super) struct PieceStart<'r> {
    batch: Batch<'r>,
    /// Time up to which samples were taken before, nanoseconds since trace start.
    end_ns: u64,
}

impl SharedFrames {
    /// Cuts runs of a thread into pieces. `end_ns`: up to where samples were taken before, and then
    /// with these.
    pub(super) fn cut<'r>(&self, batch: &Batch<'r>, end_ns: &mut u64) -> Vec<PieceStart<'r>> {
        let start_ns = *end_ns;
        let (batches, reach) = batch.split((FRAMES / self.deepest.max(1)).clamp(FEW_RUNS, MOST_RUNS));
        *end_ns = reach.max(start_ns);
        let piece = |batch: Batch<'r>| PieceStart { batch, end_ns: batch.start_ns().max(start_ns) };
        batches.into_iter().map(piece).collect()
    }
}

/// A stack with its weight, which may still grow.
#[derive(Default)]
struct Entry {
    /// The text of the stack; empty = time without samples, or a stack without names.
    stack: Vec<u8>,
    weight_ns: u64,
}

impl Entry {
    /// Appends it to the samples and weights, a comma before each.
    fn put(&self, samples: &mut Vec<u8>, weights: &mut Vec<u8>) {
        samples.extend_from_slice(b",[");
        samples.extend_from_slice(&self.stack);
        samples.push(b']');
        weights.push(b',');
        json::number(weights, self.weight_ns);
    }
}

/// Runs whose texts are looked up one right after the other: memory is read for all of them at the
/// same time.
const AT_ONCE: usize = 32;

/// A run that is added next.
struct NextRun<'f> {
    first_ns: u64,
    end_ns: u64,
    origin: StackOrigin,
    /// The text of its stack, if it is kept.
    kept: Option<&'f [u8]>,
}

/// Runs of a thread as text. No two of its stacks that follow each other are the same.
#[derive(Default)]
pub(super) struct TextChunk {
    /// Its first stack: the one before this piece may be the same.
    first: Option<Entry>,
    /// The stacks between the first and the last one, a comma before each.
    samples: Vec<u8>,
    /// Their weights, likewise.
    weights: Vec<u8>,
    /// Its last stack, if it has more than one.
    last: Option<Entry>,
}

impl TextChunk {
    pub(super) fn of(
        profile: &Profile,
        frames: &SharedFrames,
        weight: Weight,
        start: &PieceStart<'_>,
    ) -> TextChunk {
        let mut piece = TextChunk::default();
        let chains = profile.tree.chains();
        let mut end_ns = start.end_ns;
        let mut text = StackText::default();
        // Of the last stack; `None` = it has no single one, or is time without samples.
        let mut last: Option<StackOrigin> = None;
        let mut runs = start.batch.weighed().filter(|run| run.weight_ns > 0);
        let mut next: Vec<NextRun<'_>> = Vec::with_capacity(AT_ONCE);
        loop {
            next.extend(runs.by_ref().take(AT_ONCE).map(|run| {
                let origin = StackOrigin::of(&run, weight);
                NextRun {
                    first_ns: run.first_ns,
                    end_ns: run.end_ns(),
                    origin,
                    kept: frames.kept(chains, origin),
                }
            }));
            if next.is_empty() {
                return piece;
            }
            for run in next.drain(..) {
                // Runs may overlap a little if the recorder had to correct the clock. Time is
                // counted only once.
                if run.end_ns <= end_ns {
                    continue;
                }
                if run.first_ns > end_ns {
                    piece.push(b"", run.first_ns - end_ns);
                    (end_ns, last) = (run.first_ns, None);
                }
                let weight_ns = run.end_ns - end_ns;
                end_ns = run.end_ns;
                match (piece.open().filter(|_| last == Some(run.origin)), run.kept) {
                    (Some(open), _) => open.weight_ns += weight_ns,
                    (None, Some(text)) => piece.push(text, weight_ns),
                    (None, None) => piece.push(text.of(profile, frames, run.origin), weight_ns),
                }
                last = Some(run.origin);
            }
        }
    }

    /// The stack whose weight may still grow.
    fn open(&mut self) -> Option<&mut Entry> {
        self.last.as_mut().or(self.first.as_mut())
    }

    /// Adds a stack. Merges it with the last one if they look the same: different addresses of the
    /// same functions do.
    pub(super) fn push(&mut self, stack: &[u8], weight_ns: u64) {
        match self.open() {
            Some(open) if open.stack == stack => open.weight_ns += weight_ns,
            Some(_) => {
                let TextChunk { samples, weights, last, .. } = self;
                let last = last.get_or_insert_default();
                if last.weight_ns > 0 {
                    last.put(samples, weights);
                }
                last.stack.clear();
                last.stack.extend_from_slice(stack);
                last.weight_ns = weight_ns;
            }
            None => self.first = Some(Entry { stack: stack.to_vec(), weight_ns }),
        }
    }
}

/// The profile that is being written.
pub(super) struct ThreadProfile {
    /// Time up to which samples were taken, nanoseconds since trace start.
    pub end_ns: u64,
    /// The last stack. Its weight may still grow.
    pending: Option<Entry>,
    samples: u64,
    /// Their weights, which follow after all of them.
    weights: SpooledColumn,
}

impl ThreadProfile {
    pub(super) fn open(sink: &mut Sink, label: &str, first: bool, start_ns: u64) -> ThreadProfile {
        sink.put(if first { b"\n" } else { b",\n" });
        sink.put(b"{\"type\":\"sampled\",\"name\":");
        json::string(&mut sink.buffer, label);
        sink.put(b",\"unit\":\"nanoseconds\",\"startValue\":");
        json::number(&mut sink.buffer, start_ns);
        sink.put(b",\"samples\":[");
        ThreadProfile { end_ns: start_ns, pending: None, samples: 0, weights: SpooledColumn::new() }
    }

    /// Adds pieces, one after the other.
    pub(super) fn append(&mut self, sink: &mut Sink, pieces: Vec<TextChunk>) -> Result<(), OutputError> {
        for piece in pieces {
            let Some(first) = piece.first else { continue };
            self.push(sink, &first.stack, first.weight_ns)?;
            let Some(last) = piece.last else { continue };
            self.write_pending(sink)?;
            sink.put_many(&piece.samples)?;
            self.weights.push_all(&piece.weights)?;
            self.pending = Some(last);
        }
        Ok(())
    }

    /// Adds a stack. Merges it with the last one if they look the same.
    pub(super) fn push(&mut self, sink: &mut Sink, stack: &[u8], weight_ns: u64) -> Result<(), OutputError> {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.stack == stack) {
            pending.weight_ns += weight_ns;
            return Ok(());
        }
        self.write_pending(sink)?;
        let pending = self.pending.get_or_insert_default();
        pending.stack.clear();
        pending.stack.extend_from_slice(stack);
        pending.weight_ns = weight_ns;
        Ok(())
    }

    fn write_pending(&mut self, sink: &mut Sink) -> Result<(), OutputError> {
        let Some(pending) = &self.pending else { return Ok(()) };
        sink.put(if self.samples == 0 { b"[" } else { b",[" });
        sink.put(&pending.stack);
        sink.put(b"]");
        sink.settle()?;
        self.samples += 1;
        let weight_ns = pending.weight_ns;
        self.weights.push(|out| json::number(out, weight_ns))
    }

    pub(super) fn close(mut self, sink: &mut Sink) -> Result<(), OutputError> {
        self.write_pending(sink)?;
        sink.put(b"],\n\"weights\":[");
        self.weights.write(sink)?;
        sink.put(b"],\"endValue\":");
        json::number(&mut sink.buffer, self.end_ns);
        sink.put(b"}");
        Ok(())
    }
}
