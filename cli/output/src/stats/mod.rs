//! The figures of `stk stats`: totals, top functions, modules and threads, and the problems of the
//! stacks.
//!
//! [`collect`] reads the runs once, sums them by thread, stop reason and stack, and walks the call
//! tree once. Memory grows with the number of distinct stacks, not of samples.
//!
//! ```text
//! sums          the figures of a trace                  Profile, Runs -> Stats
//! many          those of several traces                 Stats -> ManyStats
//! question      what else is requested                  Profile, Runs -> AnswerSums -> Answer
//! calls         stacks of functions, with their samples Profile -> CallSums
//! call_tree     call trees, callers, callees            CallSums -> CallTreeStats
//! groups        lists by any keys                       Profile, Runs -> GroupStats
//! group_stacks  the groups of the frames of stacks, and the sums of stacks in them
//! keys          what samples can be grouped by
//! timeline      CPU time over time
//! page          what figures are printed on
//! text, tree_text, group_text, csv  how they are printed
//! ```

mod call_tree;
mod calls;
mod csv;
mod group_stacks;
mod group_text;
mod groups;
mod keys;
mod many;
mod page;
mod question;
mod sums;
mod text;
mod timeline;
mod tree_text;
mod trust;
mod waits;

pub use call_tree::{CallTreeStats, Direction, TreeLimits, TreeRow};
pub use groups::{GroupRow, GroupStats, NO_LABEL, NO_NAME, SortBy, ThreadValues};
pub use keys::GroupKey;
pub use many::{DatasetTotals, ManyStats, SumStats};
pub use page::{Length, PrintOptions};
pub use question::{Answer, AnswerSums, Question, Subject, with_modules};
pub use stk_base::text::TimeZone;
pub use sums::StackAmounts;
pub use text::{print, print_answer};
pub use timeline::TimelineStats;

pub(crate) use page::{CountedTotal, names_module, percent};
use question::QuestionSums;
use serde::{Serialize, Serializer};
use stk_profile::profile::{
    Activity, Batch, CpuSource, Functions, Profile, Runs, SelectionShare, WaitClass, Weight,
};
use stk_profile::stack::StopReason;
use stk_unwind::Trust;
use sums::{StatsSummary, StatsTables};

/// Version of the JSON that `schema/stats.schema.json` describes. It is raised when the meaning of
/// a field changes or a field is removed, not when one is added.
pub const VERSION: u32 = 2;

/// What to count, and how many rows to keep.
#[derive(Clone, Copy, Debug)]
pub struct StatsOptions {
    /// Rows of each list of functions, modules, threads and reasons.
    pub top: usize,
    /// Leave out samples of waiting threads in functions, modules and stop reasons.
    pub running_only: bool,
    /// What the lists of functions and modules count. By default CPU time, or samples that do not
    /// wait if the trace does not say it.
    pub weight: Option<Weight>,
    /// Whether to list the stacks that wait.
    pub waiting: bool,
}

impl Default for StatsOptions {
    fn default() -> Self {
        StatsOptions { top: 20, running_only: false, weight: None, waiting: false }
    }
}

/// Figures of one trace. Times are nanoseconds. "Weight" is the time that samples cover.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stats {
    /// File or name of the trace.
    pub source: String,
    /// The trace's UUID, 32 hex digits.
    pub trace_id: String,
    /// Executable's file name.
    pub process: String,
    pub pid: u32,
    /// Host name; empty if unknown.
    pub host: String,
    /// `x64`, `arm64` or `x86`.
    pub arch: &'static str,
    /// Nanoseconds since the Unix epoch at the trace's start.
    pub start_utc_ns: u64,
    /// Whether the recorder finished the trace.
    pub complete: bool,
    /// Which part of the samples the figures are of; `None`: all.
    pub selection: Option<SelectionShare>,
    pub totals: Totals,
    /// Samples by state of their thread.
    pub states: States,
    /// Whether waiting samples are left out below.
    pub running_only: bool,
    /// What `weight_ns` of the lists of functions and modules is; samples count for one nominal
    /// interval each.
    pub weight: Weight,
    /// Weight of the samples counted below: the whole that all shares of time refer to.
    pub counted_ns: u64,
    /// What threads waited for, longest first. Waits shorter than the time between two samples are
    /// mostly missed.
    pub waits: Vec<WaitStats>,
    /// Functions with the most self time first.
    pub functions_by_self: Vec<FunctionStats>,
    /// Functions with the most total time first.
    pub functions_by_total: Vec<FunctionStats>,
    /// Modules with the most self time first.
    pub modules: Vec<ModuleStats>,
    /// Threads with the most CPU time first, then with the most samples that do not wait.
    pub threads: Vec<ThreadStats>,
    /// Why stacks end, most frequent first.
    pub stops: Vec<StopStats>,
    /// How frames were found, most frequent first.
    pub trusts: Vec<TrustStats>,
    /// How many frames have names.
    pub frames: FrameStats,
    /// How often the recorder dropped something, by reason. For some reasons it was not a sample.
    pub dropped: Vec<Count>,
    /// Errors of the blocks that could not be read.
    pub damaged_blocks: Vec<String>,
    /// What is wrong with clocks and stacks, one sentence each.
    pub notes: Vec<String>,
}

/// Sums of a trace.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Totals {
    /// Time of the last event since the start; of a window, its length.
    pub duration_ns: u64,
    /// Nominal time between two samples of a thread.
    pub interval_ns: u64,
    pub samples: u64,
    /// Samples that the recorder dropped.
    pub dropped: u64,
    /// Threads that were sampled.
    pub threads: u64,
    /// Samples a second that were requested, of each thread.
    pub asked_hz: f64,
    /// Samples a second of a thread, on average over the time of all samples; 0 without samples.
    pub achieved_hz: f64,
    /// Part of the samples asked for that were not taken, 0 to 1.
    pub missed_share: f64,
    /// Time of all samples.
    pub weight_ns: u64,
    /// CPU time of all samples; 0 if not recorded: see `cpu_source`.
    pub cpu_ns: u64,
    /// Where it comes from: `none`, `thread-times`, `cycles`.
    #[serde(serialize_with = "source_name")]
    pub cpu_source: CpuSource,
    /// CPU time that being sampled cost the threads, as far as it is known. It is not in `cpu_ns`.
    pub sampling_cpu_ns: u64,
    /// Time of threads that may have run while the trace, of format version 1.0, has no reading of
    /// their clocks: CPU time that may be missing in `cpu_ns`.
    pub unread_ns: u64,
    /// Part of the counted samples whose stacks are complete, 0 to 1; 0 without samples.
    pub complete_share: f64,
    /// Part of their frames that follow from what was recorded, 0 to 1; 0 without frames.
    pub proved_share: f64,
    /// The counted weight in what is certain.
    pub trusted: TrustedWeight,
    /// Distinct stacks.
    pub distinct_stacks: u64,
    /// Distinct frames.
    pub distinct_frames: u64,
    /// Size of the file; `None` if unknown.
    pub file_bytes: Option<u64>,
    /// `file_bytes` divided by `samples`.
    pub bytes_per_sample: Option<f64>,
}

/// Parts of the weight that the lists count, in nanoseconds: what can be trusted of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct TrustedWeight {
    /// Of samples whose stacks are complete.
    pub complete_ns: u64,
    /// Of samples all of whose frames follow from what was recorded.
    pub proved_ns: u64,
    /// Of samples whose innermost function is named from symbols.
    pub named_ns: u64,
    /// Of those whose innermost function is named after an export near it.
    pub export_ns: u64,
    /// Of samples without a stack.
    pub no_stack_ns: u64,
}

/// Samples and their time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Amount {
    pub samples: u64,
    /// Time that they cover.
    pub weight_ns: u64,
}

/// Samples by what their thread did. The times add up to that of all samples.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct States {
    /// On a processor, or ready to run.
    pub running: Amount,
    /// Waiting in the system.
    pub waiting: Amount,
    /// In a system call that does not only wait.
    pub system_call: Amount,
    /// Held by the recorder, or without a stack.
    pub unknown: Amount,
}

/// Waits for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WaitStats {
    /// What the threads waited for, by the outermost function of the system that waits.
    pub reason: &'static str,
    #[serde(serialize_with = "class_name")]
    pub class: WaitClass,
    /// Consecutive samples of one thread that wait for the same are one wait.
    pub waits: u64,
    pub samples: u64,
    pub weight_ns: u64,
    /// Time of the longest one.
    pub longest_ns: u64,
    /// The stacks that waited longest for it, if they were requested.
    pub stacks: Vec<WaitStack>,
}

/// A stack that waits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WaitStack {
    pub samples: u64,
    pub weight_ns: u64,
    /// Its functions, outermost first.
    pub functions: Vec<String>,
    /// Where the system's functions begin that lead to the wait: an index in `functions`.
    pub system: usize,
}

/// A function. Recursion counts once in "total".
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FunctionStats {
    pub function: String,
    /// File name of its module; empty if the address is in no module.
    pub module: String,
    /// How many modules have a function of this name and file.
    pub modules: u32,
    /// Samples in which it is the innermost function.
    #[serde(rename = "self")]
    pub own: Amount,
    /// Samples that have it anywhere on the stack.
    pub total: Amount,
}

/// A module. A stack that has it several times counts once in "total".
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ModuleStats {
    /// File name; empty for addresses in no module.
    pub module: String,
    /// Innermost in these samples.
    #[serde(rename = "self")]
    pub own: Amount,
    /// Anywhere on the stack of these.
    pub total: Amount,
}

/// Figures of a thread.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
pub struct ThreadStats {
    /// Unique in the trace.
    pub instance: u64,
    /// System thread id.
    pub tid: u32,
    /// Last name; empty if it has none.
    pub name: String,
    /// All samples.
    pub all: Amount,
    /// Samples a second; 0 if they cover no time.
    pub achieved_hz: f64,
    /// Its samples by state.
    pub states: States,
    /// CPU time; 0 if not recorded.
    pub cpu_ns: u64,
    /// CPU time that being sampled cost it, as far as it is known. It is not in `cpu_ns`; both
    /// together are what its clock gained.
    pub sampling_cpu_ns: u64,
    /// When it was used.
    pub timeline: TimelineStats,
}

/// Stacks that end for one reason.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StopStats {
    pub reason: StopReason,
    /// Module to blame; empty if none.
    pub module: String,
    pub samples: u64,
    /// Part of the counted samples, 0 to 1.
    pub share: f64,
}

/// Frames that were found in one way. A frame counts once for every sample whose stack it is in.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TrustStats {
    /// The way, as outputs name it: `context`, `unwind-info`, ….
    #[serde(serialize_with = "trust_name")]
    pub trust: Trust,
    /// Whether such a frame follows from what was recorded.
    pub proved: bool,
    /// Module to blame where it does not: the one whose function it was found from; empty
    /// otherwise.
    pub module: String,
    /// Frames of all counted samples.
    pub frames: u64,
    /// Part of all frames, 0 to 1.
    pub share: f64,
}

/// How many frames have names. A frame counts once for every sample whose stack it is in; inlined
/// functions do not count.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FrameStats {
    /// Frames of all counted samples.
    pub frames: u64,
    /// Those named from a PDB or other debug information.
    pub named: u64,
    /// Those named after the nearest export.
    pub export_only: u64,
    /// Those without a name.
    pub unresolved: u64,
    /// `unresolved` by `frames`, 0 to 1; 0 without frames.
    pub unresolved_share: f64,
    /// Frames in methods of a language runtime, in its stubs and in other code made at run time.
    pub managed: u64,
    /// Those of them that the runtime or debug information names.
    pub managed_named: u64,
    /// Unresolved and export-only frames by cause, most frequent first.
    pub causes: Vec<CauseStats>,
}

/// Frames that lack a (better) name for one cause.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CauseStats {
    /// Module's file name; empty for addresses in no module.
    pub module: String,
    pub cause: String,
    /// Whether they have at least an export's name.
    pub export_only: bool,
    /// Frames of all counted samples.
    pub frames: u64,
    /// Distinct addresses.
    pub addresses: u64,
    /// Part of all frames, 0 to 1.
    pub share: f64,
}

/// A count with its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Count {
    pub reason: String,
    pub samples: u64,
}

/// Computes the figures of a profile. `file_bytes` is the size of its file.
pub fn collect(
    profile: &Profile,
    runs: &Runs,
    file_bytes: Option<u64>,
    options: &StatsOptions,
) -> std::io::Result<Stats> {
    Ok(collect_with(profile, runs, file_bytes, options, None)?.0)
}

/// [`collect`], and what the trace adds to the answer of a question.
pub fn collect_with(
    profile: &Profile,
    runs: &Runs,
    file_bytes: Option<u64>,
    options: &StatsOptions,
    question: Option<&Question>,
) -> std::io::Result<(Stats, Option<AnswerSums>)> {
    collect_of(profile, runs, file_bytes, options, question, None)
}

/// [`collect_with`] for a profile whose threads may stand for those of many traces: `values` are
/// theirs for the keys of the question.
pub fn collect_of(
    profile: &Profile,
    runs: &Runs,
    file_bytes: Option<u64>,
    options: &StatsOptions,
    question: Option<&Question>,
    values: Option<&ThreadValues>,
) -> std::io::Result<(Stats, Option<AnswerSums>)> {
    let (taken, window) = (runs.span(), profile.window());
    let span = match profile.window {
        Some(_) if !taken.is_empty() => window,
        _ => taken,
    };
    let (functions, tables) =
        rayon::join(|| Functions::new(profile, false), || StatsTables::new(profile, runs, options, span));
    let mut tables = tables?;
    let new_sums = |question| QuestionSums::new(profile, &functions, runs, options, question, values);
    let mut asked = question.map(new_sums).transpose()?;
    runs.for_each(|batch: Batch<'_>| -> std::io::Result<()> {
        tables.add(&batch);
        asked.iter_mut().for_each(|asked| asked.add(&batch));
        Ok(())
    })?;
    let (summary, answer) = tables.finish(&functions, options, asked);
    Ok((of_summary(profile, summary, file_bytes, options), answer))
}

/// The figures of a profile with these tables.
fn of_summary(
    profile: &Profile,
    summary: StatsSummary,
    file_bytes: Option<u64>,
    options: &StatsOptions,
) -> Stats {
    let mut states = States::default();
    for thread in &summary.threads {
        for (sum, part) in states.each_mut().into_iter().zip(thread.states.each()) {
            sum.samples += part.samples;
            sum.weight_ns += part.weight_ns;
        }
    }
    let samples = states.each().iter().map(|s| s.samples).sum();
    let (trace, window) = (&profile.trace, profile.window());
    let weight_ns = states.each().iter().map(|s| s.weight_ns).fold(0, u64::saturating_add);
    let asked_hz = if trace.interval_ns == 0 { 0.0 } else { 1e9 / trace.interval_ns as f64 };
    let achieved_hz = per_second(samples, weight_ns);
    let missed_share =
        if asked_hz > 0.0 && samples > 0 { (1.0 - achieved_hz / asked_hz).max(0.0) } else { 0.0 };
    let sampling_ns = profile.threads.iter().map(|thread| thread.sampling_cpu_ns);
    let totals = Totals {
        duration_ns: window.end.saturating_sub(window.start),
        interval_ns: trace.interval_ns,
        samples,
        dropped: profile.losses.dropped_samples,
        threads: summary.threads.len() as u64,
        asked_hz,
        achieved_hz,
        missed_share,
        weight_ns,
        sampling_cpu_ns: sampling_ns.fold(0, u64::saturating_add),
        unread_ns: profile.losses.unread_ns,
        complete_share: summary.complete_share,
        proved_share: summary.proved_share,
        trusted: summary.trusted,
        cpu_ns: summary.threads.iter().map(|t| t.cpu_ns).fold(0, u64::saturating_add),
        cpu_source: trace.cpu_source,
        distinct_stacks: summary.distinct_stacks,
        distinct_frames: profile.frames.keys().len() as u64,
        file_bytes,
        bytes_per_sample: file_bytes.filter(|_| samples > 0).map(|bytes| bytes as f64 / samples as f64),
    };
    let mut threads = summary.threads;
    threads.truncate(options.top);
    Stats {
        source: trace.source.clone(),
        trace_id: trace.trace_id.clone(),
        process: trace.process.clone(),
        pid: trace.pid,
        host: trace.host.clone(),
        arch: trace.arch.name(),
        start_utc_ns: trace.start_utc_ns,
        complete: trace.complete,
        selection: profile.selection.clone(),
        totals,
        states,
        running_only: options.running_only,
        weight: summary.weight,
        counted_ns: summary.counted_ns,
        waits: summary.waits,
        functions_by_self: summary.functions_by_self,
        functions_by_total: summary.functions_by_total,
        modules: summary.modules,
        threads,
        stops: summary.stops,
        trusts: summary.trusts,
        frames: summary.frames,
        dropped: profile
            .losses
            .dropped
            .iter()
            .map(|(reason, samples)| Count { reason: reason.clone(), samples: *samples })
            .collect(),
        damaged_blocks: profile.losses.damaged_blocks.clone(),
        notes: profile.losses.notes(),
    }
}

impl States {
    /// Running, waiting, in a system call, unknown.
    fn each(&self) -> [Amount; 4] {
        [self.running, self.waiting, self.system_call, self.unknown]
    }

    fn each_mut(&mut self) -> [&mut Amount; 4] {
        [&mut self.running, &mut self.waiting, &mut self.system_call, &mut self.unknown]
    }

    fn of_mut(&mut self, activity: Activity) -> &mut Amount {
        match activity {
            Activity::OnCpu => &mut self.running,
            Activity::Waiting(_) => &mut self.waiting,
            Activity::SystemCall => &mut self.system_call,
            Activity::Unknown => &mut self.unknown,
        }
    }
}

fn source_name<S: Serializer>(source: &CpuSource, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(source.as_str())
}

fn class_name<S: Serializer>(class: &WaitClass, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(class.as_str())
}

fn trust_name<S: Serializer>(trust: &Trust, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(trust.as_str())
}

/// A part of a whole, 0 to 1; 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Samples a second; 0 if they cover no time.
fn per_second(samples: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { samples as f64 * 1e9 / ns as f64 }
}
