//! speedscope's own JSON: `sampled` profiles over shared frames. The first one, which the viewer
//! opens, sums all threads up, which its name says: such a profile has no order in time. Where
//! threads have profiles of several weights, the second one sums up the waits of all threads, by
//! what they wait for. Then each thread has one for each weight, the one with the most CPU time
//! first. Threads with fewer than [`FEW`] samples have none, unless all threads have as few: the
//! sums count them.
//!
//! In a profile of the time that samples cover, stacks stand where they were sampled. In all others
//! each stack begins where the one before ends, so that widths are the weight.
//!
//! The importer (`importSpeedscopeProfiles`) takes each index of `shared.frames` for a separate
//! function, drops samples of weight 0, shows an empty stack as a gap, and throws on a bad index, a
//! negative weight and arrays of unequal length. Its evented form is not used: files in that form
//! made from samples are a known source of "frame was never closed".
//!
//! ```text
//! pieces         runs of a thread as text, several pieces at once   Run -> Piece -> ThreadProfile
//! stack_text     the text of a stack
//! kept_texts     texts of stacks that the sum of all threads has made
//! shared_frames  the frames that all profiles share                 Profile -> SharedFrames
//! ```

mod kept_texts;
mod pieces;
mod shared_frames;
mod stack_text;

use self::kept_texts::{KeptTexts, NewTexts};
use self::pieces::{PieceStart, TextChunk, ThreadProfile};
use self::shared_frames::SharedFrames;
use super::sink::Sink;
use super::source::exporter;
use super::stack_sums::{StackLine, WeighedStack, WeighedStacks};
use super::threads::main_threads;
use super::unfold::{OriginSums, StackOrigin};
use super::{Description, Format, Options, OutputError, Summary, Writer, finish_for, json, single};
use rayon::prelude::*;
use std::cmp::Reverse;
use std::collections::HashSet;
use stk_base::text::counted;
use stk_profile::profile::{Batch, FunctionId, Profile, Weight};

pub(super) const FORMAT: Description = Description {
    name: "speedscope",
    help: "JSON for <https://www.speedscope.app>: all threads together, then each",
    suffix: ".speedscope.json",
    other_suffixes: &[],
    is_folder: false,
    names_source: true,
    takes_weight: true,
    has_time_line: true,
    create: |to, options| Ok(Box::new(Speedscope::new(single(Format::Speedscope, to)?, options))),
};

pub(super) struct Speedscope {
    sink: Sink,
    by_line: bool,
    all_threads: bool,
    /// What the profiles that sum all threads up count.
    sum_weights: Vec<Weight>,
    /// What the profiles of threads count.
    weights: Vec<Weight>,
    frames: Option<SharedFrames>,
    /// The current pass. The first ones sum up, the others write threads.
    pass: usize,
    /// Weights of all threads, by the source of a stack: of the pass that is summed up.
    sums: Option<OriginSums>,
    /// By thread: its CPU time, as far as its samples count in the first sum.
    cpu_ns: Vec<u64>,
    main_threads: HashSet<u32>,
    /// Threads that have no profiles of their own.
    few: HashSet<u32>,
    /// The thread whose profile is being written.
    thread: Option<(u32, ThreadProfile)>,
    /// Its next pieces.
    ready: Vec<TextChunk>,
}

/// Threads with fewer samples have no profiles of their own.
pub(super) const FEW: u64 = 4;

/// Functions of a stack that its page opens: with 4,000 its recursion ends Chromium's stack.
pub(super) const MOST_FUNCTIONS: usize = 3_400;

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
            all_threads: options.all_threads,
            sum_weights,
            weights,
            frames: None,
            pass: 0,
            sums: None,
            cpu_ns: Vec::new(),
            main_threads: HashSet::new(),
            few: HashSet::new(),
            thread: None,
            ready: Vec::new(),
        }
    }

    /// Writes the profile that sums all threads up in the weight of this number. Without any time,
    /// only the first one is written.
    fn write_sum(&mut self, profile: &Profile, number_of_sum: usize) -> Result<(), OutputError> {
        let Some(sums) = self.sums.take().filter(|sums| number_of_sum == 0 || !sums.is_empty()) else {
            return Ok(());
        };
        let frames = self.frames.as_mut().ok_or(OutputError::Order("samples before begin"))?;
        let sums = (sums, frames.chains.take());
        let number = |function: FunctionId| function.0;
        let roots = |origin| frames.roots(origin).map(|root| root.map(number));
        let stacks = WeighedStacks::of(profile, &frames.functions, sums, number, roots, None);
        let label = format!("all threads: {} (no time order)", self.sum_weights[number_of_sum].title());
        let sink = &mut self.sink;
        let mut sum = ThreadProfile::open(sink, &label, number_of_sum == 0, 0);
        let is_kept = number_of_sum == 0 && KeptTexts::are_worth_it(stacks.frames());
        let mut texts = KeptTexts::new(if is_kept { profile.tree.chains().len() } else { 0 });
        let write = |function: u32, out: &mut Vec<u8>| json::number(out, function.into());
        let new = || SumPart { line: StackLine::new(b','), ..SumPart::default() };
        let add = |part: &mut SumPart, stack: WeighedStack<'_>| {
            let text = part.line.of(stack.functions, write);
            part.piece.push(text, stack.weight);
            part.weight_ns = part.weight_ns.saturating_add(stack.weight);
            if is_kept {
                part.texts.add(stack.nodes, text);
            }
        };
        stacks.visit(new, add, |part| {
            texts.keep(profile.tree.chains(), &part.texts);
            sum.end_ns = sum.end_ns.saturating_add(part.weight_ns);
            sum.append(sink, vec![part.piece])
        })?;
        drop(stacks);
        if is_kept {
            frames.texts = texts;
        }
        sum.close(sink)
    }

    /// Ends the profile of a thread, if one is open.
    fn close_thread(&mut self) -> Result<(), OutputError> {
        let Some((_, mut done)) = self.thread.take() else { return Ok(()) };
        done.append(&mut self.sink, std::mem::take(&mut self.ready))?;
        done.close(&mut self.sink)
    }

    /// Adds runs to the profile of their thread.
    fn write_runs(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        let weight = self.weights[self.pass - self.sum_weights.len()];
        let Some(first) = batch.weighed().find(|run| run.weight_ns > 0) else { return Ok(()) };
        if self.thread.as_ref().is_none_or(|(open, _)| *open != batch.thread) {
            self.close_thread()?;
            let main = if self.main_threads.contains(&batch.thread) { ", main thread" } else { "" };
            let label = format!("{}{main}: {}", profile.thread_label(batch.thread), weight.title());
            let open = ThreadProfile::open(&mut self.sink, &label, false, first.first_ns);
            self.thread = Some((batch.thread, open));
        }
        let frames = self.frames.as_ref().ok_or(OutputError::Order("samples before begin"))?;
        let Some((_, thread)) = &mut self.thread else { return Ok(()) };
        let starts = frames.cut(batch, &mut thread.end_ns);
        // As many pieces at once each time.
        let rounds = starts.len().div_ceil(4 * rayon::current_num_threads()).max(1);
        for starts in starts.chunks(starts.len().div_ceil(rounds).max(1)) {
            let ready = std::mem::take(&mut self.ready);
            let (made, written) = rayon::join(
                || {
                    let make = |start: &PieceStart<'_>| TextChunk::of(profile, frames, weight, start);
                    starts.par_iter().map(make).collect()
                },
                || thread.append(&mut self.sink, ready),
            );
            written?;
            self.ready = made;
        }
        Ok(())
    }
}

/// A part of the stacks of all threads.
#[derive(Default)]
struct SumPart {
    line: StackLine,
    piece: TextChunk,
    weight_ns: u64,
    texts: NewTexts,
}

impl Writer for Speedscope {
    fn passes(&self) -> Vec<Weight> {
        self.sum_weights.iter().chain(&self.weights).copied().collect()
    }

    /// The most CPU time first, once the first pass has summed it up.
    fn thread_order(&self, profile: &Profile) -> Vec<u32> {
        let mut order: Vec<u32> = (0..profile.threads.len() as u32).collect();
        order.sort_by_key(|&at| {
            let thread = &profile.threads[at as usize];
            let cpu_ns = self.cpu_ns.get(at as usize).copied().unwrap_or(0);
            (Reverse((cpu_ns, thread.active_samples, thread.samples)), at)
        });
        order
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        self.cpu_ns = vec![0; profile.threads.len()];
        // Without times of creation, none is known to be the first.
        let is_known = |at: &u32| profile.threads[*at as usize].created_utc_ns != 0;
        self.main_threads = main_threads(profile).into_iter().filter(is_known).collect();
        let is_few = |at: &u32| profile.threads[*at as usize].samples < FEW;
        let threads = 0..profile.threads.len() as u32;
        let few: HashSet<u32> = threads.clone().filter(is_few).collect();
        let is_all = few.len() == threads.len();
        self.few = if self.all_threads || is_all { HashSet::new() } else { few };
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
        let done = match pass.checked_sub(1).filter(|number| *number < self.sum_weights.len()) {
            Some(number) => self.write_sum(profile, number),
            None => Ok(()),
        };
        self.sums = (pass < self.sum_weights.len()).then(|| OriginSums::new(profile));
        done
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        let Some(weight) = self.sum_weights.get(self.pass) else {
            let is_left_out = self.few.contains(&batch.thread);
            return if is_left_out { Ok(()) } else { self.write_runs(profile, batch) };
        };
        let sums = self.sums.as_mut().ok_or(OutputError::Order("samples before a pass"))?;
        let runs = batch.weighed().filter(|run| run.weight_ns > 0);
        let origins = runs.map(|run| (StackOrigin::of(&run, *weight), run.weight_ns));
        let cpu_ns = self.cpu_ns.get_mut(batch.thread as usize).filter(|_| self.pass == 0);
        rayon::join(
            || sums.add(profile.tree.chains(), batch.runs.len(), origins),
            || {
                if let Some(sum) = cpu_ns {
                    *sum = batch.weighed().map(|run| run.cpu_ns).fold(*sum, u64::saturating_add);
                }
            },
        );
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
        let mut summary = finish_for("speedscope", sink)?;
        let has_samples = |at: &&u32| profile.threads[**at as usize].samples > 0;
        let few = self.few.iter().filter(has_samples).count() as u64;
        if few > 0 {
            summary.notes.push(format!(
                "{} with fewer than {FEW} samples: in the sum of all threads alone; --all-threads writes all",
                counted(few, "thread")
            ));
        }
        Ok(summary)
    }
}
