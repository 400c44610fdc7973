//! speedscope's own JSON: `sampled` profiles over shared frames. The first one, which the viewer
//! opens, sums all threads up. Where threads have profiles of several weights, the second one sums
//! up the waits of all threads, by what they wait for. Then each thread has one for each weight.
//!
//! In a profile of the time that samples cover, stacks stand where they were sampled. In all others
//! each stack begins where the one before ends, so that widths are the weight.
//!
//! The importer (`importSpeedscopeProfiles`) takes each index of `shared.frames` for a separate
//! function, drops samples of weight 0, shows an empty stack as a gap, and throws on a bad index, a
//! negative weight and arrays of unequal length. Its evented form is not used: files in that form
//! made from samples are a known source of "frame was never closed".

use super::column::Column;
use super::sink::Sink;
use super::source::exporter;
use super::stack_sums::StackSums;
use super::threads::busiest_first;
use super::unfold::{StackOrigin, Unfolder, incomplete, wait_root};
use super::{Description, Format, Options, OutputError, Summary, Writer, finish_for, json, single};
use crate::profile::{Batch, FunctionId, Functions, Profile, Run, Wait, Weight};
use std::collections::HashMap;

pub(super) const FORMAT: Description = Description {
    name: "speedscope",
    help: "JSON for <https://www.speedscope.app>: all threads together, then each",
    suffix: ".speedscope.json",
    other_suffixes: &[],
    is_folder: false,
    tells_source: true,
    takes_weight: true,
    has_time_line: true,
    create: |to, options| Ok(Box::new(Speedscope::new(single(Format::Speedscope, to)?, options))),
};

pub(super) struct Speedscope {
    sink: Sink,
    by_line: bool,
    /// What the profiles that sum all threads up count.
    sum_weights: Vec<Weight>,
    /// What the profiles of threads count.
    weights: Vec<Weight>,
    frames: Option<SharedFrames>,
    /// The current pass. The first ones sum up, the others write threads.
    pass: usize,
    /// Weights of all threads, by the source of a stack.
    sums: HashMap<StackOrigin, u64>,
    /// The thread whose profile is being written.
    thread: Option<(u32, ThreadProfile)>,
}

/// The shared frames, and the means to make stacks of them.
struct SharedFrames {
    functions: Functions,
    /// By stop: the frame that shows why a stack is incomplete; `None` = it is complete.
    stops: Vec<Option<FunctionId>>,
    /// By wait: the root of a stack that waits; empty if no profile counts waits.
    waits: Vec<FunctionId>,
    /// The names of these, which follow those of the functions.
    roots: Vec<String>,
    unfolder: Unfolder,
}

/// The profile that is being written.
struct ThreadProfile {
    /// Time up to which samples were taken, nanoseconds since trace start.
    end_ns: u64,
    /// The last stack. Its weight may still grow.
    pending: Option<PendingStack>,
    /// The current stack. Kept to reuse its memory.
    stack: Vec<FunctionId>,
    samples: u64,
    /// Their weights, which follow after all of them.
    weights: Column,
}

#[derive(Default)]
struct PendingStack {
    /// `None` = it has no single source, or is time without samples.
    origin: Option<StackOrigin>,
    stack: Vec<FunctionId>,
    weight_ns: u64,
}

impl Speedscope {
    pub(super) fn new(sink: Sink, options: &Options) -> Speedscope {
        let weights = options.weights().to_vec();
        let mut sum_weights = vec![weights[0]];
        if weights.len() > 1 {
            sum_weights.push(Weight::Waiting);
        }
        Speedscope {
            sink,
            by_line: options.lines,
            sum_weights,
            weights,
            frames: None,
            pass: 0,
            sums: HashMap::new(),
            thread: None,
        }
    }

    /// Writes the profile that sums all threads up in the weight of this number. Without any time,
    /// only the first one is written.
    fn write_sum(&mut self, profile: &Profile, number: usize) -> Result<(), OutputError> {
        if number > 0 && self.sums.is_empty() {
            return Ok(());
        }
        let frames = self.frames.as_mut().ok_or(OutputError::Order("samples before begin"))?;
        let (mut sums, mut stack) = (StackSums::default(), Vec::new());
        for (origin, weight) in self.sums.drain() {
            frames.stack(profile, origin, &mut stack);
            sums.add(stack.iter().map(|function| function.0), weight);
        }
        let label = format!("all threads: {}", self.sum_weights[number].title());
        let mut sum = ThreadProfile::open(&mut self.sink, &label, number == 0, 0);
        sums.visit(|stack, weight_ns| {
            sum.end_ns = sum.end_ns.saturating_add(weight_ns);
            let fill = |out: &mut Vec<FunctionId>| out.extend(stack.iter().copied().map(FunctionId));
            sum.push(&mut self.sink, None, weight_ns, fill)
        })?;
        sum.close(&mut self.sink)
    }

    /// Ends the profile of a thread, if one is open.
    fn close_thread(&mut self) -> Result<(), OutputError> {
        self.thread.take().map_or(Ok(()), |(_, done)| done.close(&mut self.sink))
    }

    /// Adds a run to the profile of its thread.
    fn write_run(&mut self, profile: &Profile, thread: u32, run: &Run) -> Result<(), OutputError> {
        let weight = self.weights[self.pass - self.sum_weights.len()];
        if self.thread.as_ref().is_none_or(|(open, _)| *open != thread) {
            self.close_thread()?;
            let label = format!("{}: {}", profile.thread_label(thread), weight.title());
            self.thread = Some((thread, ThreadProfile::open(&mut self.sink, &label, false, run.first_ns)));
        }
        let frames = self.frames.as_mut().ok_or(OutputError::Order("samples before begin"))?;
        let origin = StackOrigin::of(run, weight);
        match &mut self.thread {
            Some((_, open)) => open.add(&mut self.sink, profile, frames, run, origin),
            None => Ok(()),
        }
    }
}

impl Writer for Speedscope {
    fn passes(&self) -> Vec<Weight> {
        self.sum_weights.iter().chain(&self.weights).copied().collect()
    }

    fn thread_order(&self, profile: &Profile) -> Vec<u32> {
        busiest_first(profile)
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        let frames = SharedFrames::new(profile, self.by_line, &self.passes());
        let sink = &mut self.sink;
        sink.put(
            b"{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\n\"shared\":{\"frames\":[",
        );
        let mut separator: &[u8] = b"\n";
        for function in frames.functions.list() {
            sink.put(separator);
            sink.put(b"{\"name\":");
            json::string(&mut sink.buffer, &function.name);
            if let Some(file) = &function.file {
                sink.put(b",\"file\":");
                json::string(&mut sink.buffer, file);
            }
            if let Some(line) = function.line {
                sink.put(b",\"line\":");
                json::number(&mut sink.buffer, line.into());
            }
            sink.put(b"}");
            sink.settle()?;
            separator = b",\n";
        }
        for name in &frames.roots {
            sink.put(separator);
            sink.put(b"{\"name\":");
            json::string(&mut sink.buffer, name);
            sink.put(b"}");
            separator = b",\n";
        }
        sink.put(b"\n]},\n\"profiles\":[");
        self.frames = Some(frames);
        Ok(())
    }

    fn begin_pass(&mut self, profile: &Profile, pass: usize) -> Result<(), OutputError> {
        self.close_thread()?;
        self.pass = pass;
        match pass.checked_sub(1).filter(|number| *number < self.sum_weights.len()) {
            Some(number) => self.write_sum(profile, number),
            None => Ok(()),
        }
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        for run in batch.runs.iter().filter(|run| run.weight_ns > 0) {
            if let Some(weight) = self.sum_weights.get(self.pass) {
                let sum = self.sums.entry(StackOrigin::of(run, *weight)).or_default();
                *sum = sum.saturating_add(run.weight_ns);
            } else {
                self.write_run(profile, batch.thread, run)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        self.close_thread()?;
        let sink = &mut self.sink;
        sink.put(b"\n],\n\"name\":");
        json::string(&mut sink.buffer, &profile.title());
        sink.put(b",\n\"activeProfileIndex\":0,\n\"exporter\":");
        json::string(&mut sink.buffer, &exporter(profile));
        sink.put(b"}\n");
        finish_for("speedscope", sink)
    }
}

impl SharedFrames {
    fn new(profile: &Profile, by_line: bool, weights: &[Weight]) -> SharedFrames {
        let functions = Functions::new(profile, by_line);
        let mut roots = Vec::new();
        let mut root = |name: String| {
            roots.push(name);
            FunctionId((functions.list().len() + roots.len() - 1) as u32)
        };
        let stops = profile.stops.iter().map(|stop| incomplete(stop).map(&mut root)).collect();
        let waits = if weights.contains(&Weight::Waiting) { Wait::all() } else { Vec::new() };
        let waits = waits.into_iter().map(|wait| root(wait_root(wait))).collect();
        SharedFrames { functions, stops, waits, roots, unfolder: Unfolder::default() }
    }

    /// The stack of this origin, root first.
    fn stack(&mut self, profile: &Profile, origin: StackOrigin, out: &mut Vec<FunctionId>) {
        out.clear();
        out.extend(origin.wait.and_then(|wait| self.waits.get(usize::from(wait.number()))));
        out.extend(self.stops[origin.stop.0 as usize]);
        if let Some(node) = origin.node {
            self.unfolder.unfold(profile, &self.functions, node, out);
        }
    }
}

impl ThreadProfile {
    fn open(sink: &mut Sink, label: &str, first: bool, start_ns: u64) -> ThreadProfile {
        sink.put(if first { b"\n" } else { b",\n" });
        sink.put(b"{\"type\":\"sampled\",\"name\":");
        json::string(&mut sink.buffer, label);
        sink.put(b",\"unit\":\"nanoseconds\",\"startValue\":");
        json::number(&mut sink.buffer, start_ns);
        sink.put(b",\"samples\":[");
        ThreadProfile {
            end_ns: start_ns,
            pending: None,
            stack: Vec::new(),
            samples: 0,
            weights: Column::new(),
        }
    }

    fn add(
        &mut self,
        sink: &mut Sink,
        profile: &Profile,
        frames: &mut SharedFrames,
        run: &Run,
        origin: StackOrigin,
    ) -> Result<(), OutputError> {
        // Runs may overlap a little if the recorder had to correct the clock. Time is counted only
        // once.
        let end_ns = run.first_ns.saturating_add(run.weight_ns);
        if end_ns <= self.end_ns {
            return Ok(());
        }
        if run.first_ns > self.end_ns {
            self.push(sink, None, run.first_ns - self.end_ns, |_| ())?;
            self.end_ns = run.first_ns;
        }
        let weight_ns = end_ns - self.end_ns;
        self.end_ns = end_ns;
        self.push(sink, Some(origin), weight_ns, |stack| frames.stack(profile, origin, stack))
    }

    /// Adds a stack that `fill` makes. Merges it with the last one if they look the same.
    fn push(
        &mut self,
        sink: &mut Sink,
        origin: Option<StackOrigin>,
        weight_ns: u64,
        fill: impl FnOnce(&mut Vec<FunctionId>),
    ) -> Result<(), OutputError> {
        if let Some(pending) = self.pending.as_mut().filter(|p| origin.is_some() && p.origin == origin) {
            pending.weight_ns += weight_ns;
            return Ok(());
        }
        self.stack.clear();
        fill(&mut self.stack);
        // Different addresses of the same functions look the same.
        if let Some(pending) = self.pending.as_mut().filter(|p| p.stack == self.stack) {
            pending.weight_ns += weight_ns;
            pending.origin = origin;
            return Ok(());
        }
        self.write_pending(sink)?;
        let mut pending = self.pending.take().unwrap_or_default();
        std::mem::swap(&mut pending.stack, &mut self.stack);
        self.pending = Some(PendingStack { origin, weight_ns, ..pending });
        Ok(())
    }

    fn write_pending(&mut self, sink: &mut Sink) -> Result<(), OutputError> {
        let Some(pending) = &self.pending else { return Ok(()) };
        sink.put(if self.samples == 0 { b"[" } else { b",[" });
        for (i, frame) in pending.stack.iter().enumerate() {
            if i > 0 {
                sink.buffer.push(b',');
            }
            json::number(&mut sink.buffer, frame.0.into());
        }
        sink.put(b"]");
        sink.settle()?;
        self.samples += 1;
        let weight_ns = pending.weight_ns;
        self.weights.push(|out| json::number(out, weight_ns))
    }

    fn close(mut self, sink: &mut Sink) -> Result<(), OutputError> {
        self.write_pending(sink)?;
        sink.put(b"],\n\"weights\":[");
        self.weights.write(sink)?;
        sink.put(b"],\"endValue\":");
        json::number(&mut sink.buffer, self.end_ns);
        sink.put(b"}");
        Ok(())
    }
}
