//! The result of a conversion before it is written: a call tree in which each stack is stored once,
//! and per-thread runs of equal samples.
//!
//! Memory grows with the number of *distinct* things (images, frames, stacks). The [`Run`]s grow
//! with the number of samples, so [`Runs`] moves them to a temporary file past a limit. `symbols`
//! gives a [`Profile`] its names after all blocks are merged. Then one writer of `output` takes it,
//! batch by batch.
//!
//! ```text
//! build       walks every sample           Trace -> Profile, Runs
//! tree, runs  distinct stacks; samples over time
//! chains      one number for what all samples of a tree go through together
//! symbolize   names for the distinct frames, and what is missing
//! activity    what threads did, and their CPU time   Profile, Runs -> Runs
//! category    whose code a frame is        FrameKind, module -> Category
//! events      what happened, and when samples are missing   Trace -> Profile
//! filter      chooses samples and frames   Profile, Runs, Selection -> Profile, Runs
//! placeholder frames for what is not known, such as why there is no stack
//! fold        leaves out one side of mixed stacks, or a runtime's own frames
//! depth       stacks that are too deep: recursion folded, the middle left out
//! parts       several threads as one; one thread, or a span of time
//! renames     one thread for each of its names
//! processes   what belongs to which process
//! join        several traces on one time line          Profile, Runs -> Join
//! functions   what counts as one function  Profile -> Functions
//! function_tree  stacks of functions       CallTree -> FunctionTree
//! own_total   what is summed, and recursion once
//! sums        own and total of each function  FunctionTree -> Sums
//! ```
//!
//! Determinism: the same trace and the same symbols give the same ids and the same order with any
//! number of threads.

mod activity;
mod build;
mod category;
mod chains;
mod copy;
mod depth;
mod events;
mod filter;
mod fold;
mod function_tree;
mod functions;
mod join;
#[cfg(test)]
mod managed_tests;
mod node;
mod own_total;
mod parts;
mod placeholder;
mod processes;
mod renames;
mod runs;
mod sums;
mod symbolize;
mod tree;

pub use activity::{
    Activity, ActivityKind, RunWeigher, Wait, WaitClass, Weight, classify, is_behind_call, is_system_library,
};
pub use build::{BuildOptions, build, unread_ns};
pub use category::Category;
pub use chains::{ChainId, ChainSums, Chains};
pub use depth::{cut_stacks, fold_recursion};
pub use events::{EventInfo, GapInfo, ThreadOfEvent, add_events};
pub use filter::{
    CutState, FrameName, FramePatterns, FunctionPattern, Marks, NamePattern, NamedThread, PatternError,
    RuleError, Rules, SampleSum, Selection, SelectionShare, WrongRule, apply_rules, is_kept, leave_out,
    select,
};
pub use fold::fold;
pub use function_tree::{Folded, FunctionTree};
pub use functions::{Function, FunctionId, Functions, Modules};
pub use join::{Join, JoinPlace};
pub use node::{Children, Node, NodeId, TreeNode, Visit};
pub use own_total::{Accumulator, Additive, OpenFunctions, OwnTotal};
pub use parts::{RunSelection, ThreadMerge, merge_threads, part, spans};
pub use placeholder::{fill_stacks, name_recorder};
pub use processes::{ProcessInfo, Processes};
pub use renames::split_renamed;
pub use runs::{Batch, MOST_RUNS_HELD, Run, RunFlags, RunSource, Runs, SEGMENT_RUNS};
pub use sums::Sums;
pub use symbolize::{MissingModule, MissingSymbols, missing_symbols, symbolize};
pub use tree::CallTree;

pub use crate::stack::{
    FrameFacts, FrameId, FrameKey, FrameKind, FrameSymbols, FrameTable, MethodPlace, NameSource, NamedFrame,
    Placement, StopReason, StrId, Strings,
};

use crate::trace::{Content, SeenEvents};
use std::ops::Range;
use stk_base::model::{DYNAMIC_CODE, Image, ImageId};
use stk_base::text::{counted, span};
use stk_schema::Arch;

/// Index of a stop reason in [`Profile::stops`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct StopId(pub u16);

/// A converted trace: everything but the runs themselves.
#[derive(Debug)]
pub struct Profile {
    /// Facts about the recording.
    pub trace: TraceInfo,
    /// Of a joined profile: what belongs to which process.
    pub processes: Processes,
    /// Distinct images (content), in order of first appearance in the timeline.
    pub images: Vec<Image>,
    /// Module instances: an image at an address for a time, by load time.
    pub modules: Vec<ModuleInstance>,
    /// Dynamic code regions, as in the timeline and in its order.
    pub code: Vec<CodeInfo>,
    /// Threads by instance id; then threads that only samples mention, by first appearance.
    pub threads: Vec<ThreadInfo>,
    /// Points in time that the user or the target marked.
    pub marks: Vec<MarkInfo>,
    /// What happened, in time; empty before [`add_events`], which outputs that list events need.
    pub events: Vec<EventInfo>,
    /// When samples are missing; empty before [`add_events`]. Of a joined profile: the times
    /// between traces of one process.
    pub gaps: Vec<GapInfo>,
    /// The sampling rates that were set after the start, by time: nanoseconds since trace start,
    /// and millihertz, 0 for a pause. Empty before [`add_events`].
    pub rates: Vec<(u64, u32)>,
    /// What [`add_events`] needs not read again.
    pub seen_events: SeenEvents,
    /// Distinct frames.
    pub frames: FrameTable,
    /// Distinct stacks.
    pub tree: CallTree,
    /// Distinct reasons why stacks end, referred to by [`Run::stop`].
    pub stops: Vec<StopInfo>,
    /// Names of frames, parallel to `frames`; filled by symbolization.
    pub symbols: FrameSymbols,
    /// Counters of what was lost, skipped or unresolved.
    pub losses: Losses,
    /// The time that its runs are of, in nanoseconds since trace start; `None` = the whole trace.
    pub window: Option<Range<u64>>,
    /// Which part of the samples this is; `None` = all of those that were read.
    pub selection: Option<SelectionShare>,
}

impl Profile {
    /// A profile of a trace, without anything in it.
    pub fn empty(trace: TraceInfo) -> Profile {
        Profile {
            trace,
            processes: Processes::default(),
            images: Vec::new(),
            modules: Vec::new(),
            code: Vec::new(),
            threads: Vec::new(),
            marks: Vec::new(),
            events: Vec::new(),
            gaps: Vec::new(),
            rates: Vec::new(),
            seen_events: SeenEvents::default(),
            frames: FrameTable::default(),
            tree: CallTree::default(),
            stops: Vec::new(),
            symbols: FrameSymbols { starts: vec![0], ..FrameSymbols::default() },
            losses: Losses::default(),
            window: None,
            selection: None,
        }
    }

    /// The time that its runs are of: the window, or from trace start to the last event.
    pub fn window(&self) -> Range<u64> {
        self.window.clone().unwrap_or(0..self.trace.duration_ns)
    }

    /// Whose code a frame is.
    pub fn category(&self, frame: FrameId) -> Category {
        let names = self.symbols.names(frame);
        let function = names.last().map_or("", |name| self.symbols.strings.get(name.function));
        let path = match self.frames.keys()[frame.0 as usize].place {
            Placement::Image(image, _) => &self.images[image.0 as usize].path,
            Placement::Code(..) | Placement::Unknown(_) => "",
        };
        Category::of(self.kind(frame), self.module_name(frame).unwrap_or_default(), path, function)
    }

    /// Replaces all stacks by copies that lack frames. The texts stay.
    fn replace_stacks(&mut self, frames: FrameTable, mut symbols: FrameSymbols, tree: CallTree) {
        symbols.strings = std::mem::take(&mut self.symbols.strings);
        (self.frames, self.tree, self.symbols) = (frames, tree, symbols);
    }

    /// The kind of code that a frame is in.
    pub fn kind(&self, frame: FrameId) -> FrameKind {
        let at = frame.0 as usize;
        match (self.symbols.facts.get(at), self.frames.keys()[at].place) {
            (Some(facts), _) => facts.kind,
            (None, Placement::Image(..)) => FrameKind::Native,
            (None, Placement::Code(..)) => FrameKind::Dynamic,
            (None, Placement::Unknown(_)) => FrameKind::Unknown,
        }
    }

    /// File name of the module that a frame belongs to: that of a managed method, else of the image
    /// that holds the address, or [`DYNAMIC_CODE`].
    pub fn module_name(&self, frame: FrameId) -> Option<&str> {
        let at = frame.0 as usize;
        let managed = self.symbols.facts.get(at).and_then(|facts| facts.module);
        match (managed, self.frames.keys()[at].place) {
            (Some(module), _) => Some(self.symbols.strings.get(module)),
            (None, Placement::Image(image, _)) => Some(&self.images[image.0 as usize].name),
            (None, Placement::Code(..)) => Some(DYNAMIC_CODE),
            (None, Placement::Unknown(_)) => None,
        }
    }
}

/// METADATA keys of labels are this and the label's name.
pub const LABEL: &str = "label.";

/// Facts about a recording. Times are nanoseconds.
#[derive(Clone, Debug)]
pub struct TraceInfo {
    /// UUID of the trace, 32 hex digits.
    pub trace_id: String,
    /// Path or name of the file it came from, for messages.
    pub source: String,
    /// What that file holds, if that was found out.
    pub content: Option<Content>,
    /// Architecture of the process.
    pub arch: Arch,
    pub pid: u32,
    /// Executable's file name; `pid N` if unknown.
    pub process: String,
    /// Host name; empty if unknown.
    pub host: String,
    /// Nanoseconds since the Unix epoch at trace time 0.
    pub start_utc_ns: u64,
    /// Time of the last event since trace time 0.
    pub duration_ns: u64,
    /// Nominal time between two samples of a thread.
    pub interval_ns: u64,
    pub cpu_source: CpuSource,
    /// Every METADATA event, in order.
    pub metadata: Vec<(String, String)>,
    /// Whether the recording was finished by its recorder.
    pub complete: bool,
    /// Identity of the system's boot; 0 if unknown.
    pub boot_id: u64,
    /// The image of the executable.
    pub executable: Option<ImageId>,
}

impl TraceInfo {
    /// The labels that the trace was recorded with: names and values.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(LABEL)?, value.as_str())))
    }

    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels().find(|(label, _)| *label == name).map(|(_, value)| value)
    }

    /// A whole recording of which only the architecture is known.
    pub fn unknown(arch: Arch) -> TraceInfo {
        TraceInfo {
            trace_id: String::new(),
            source: String::new(),
            content: None,
            arch,
            pid: 0,
            process: String::new(),
            host: String::new(),
            start_utc_ns: 0,
            duration_ns: 0,
            interval_ns: 1,
            cpu_source: CpuSource::None,
            metadata: Vec::new(),
            complete: true,
            boot_id: 0,
            executable: None,
        }
    }
}

/// Where the CPU times of a recording come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuSource {
    /// They are not known.
    None,
    /// The system's thread times, which may advance in steps of 10 ms and more.
    ThreadTimes,
    /// Cycle counts, at the rate that the recorder measured.
    Cycles,
}

impl CpuSource {
    /// Short stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            CpuSource::None => "none",
            CpuSource::ThreadTimes => "thread-times",
            CpuSource::Cycles => "cycles",
        }
    }
}

/// An image at an address for a time.
#[derive(Clone, Debug)]
pub struct ModuleInstance {
    /// Instance id of the trace.
    pub instance: u64,
    pub image: ImageId,
    /// Load address.
    pub base: u64,
    /// Bytes mapped.
    pub size: u64,
    /// Nanoseconds since trace start; `None` = loaded before.
    pub load_ns: Option<u64>,
    /// Nanoseconds since trace start; `None` = never unloaded.
    pub unload_ns: Option<u64>,
}

/// Code in no module: a range at an address for a time.
#[derive(Clone, Debug)]
pub struct CodeInfo {
    /// Instance id of the trace.
    pub instance: u64,
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub size: u64,
    /// When it was removed, in nanoseconds since trace start; `None` = never.
    pub remove_ns: Option<u64>,
}

/// A thread instance.
#[derive(Clone, Default, Debug)]
pub struct ThreadInfo {
    /// Instance id of the trace.
    pub instance: u64,
    /// System thread id.
    pub tid: u32,
    /// Its name; empty if it had none. A thread that had several is several threads, of one
    /// instance.
    pub name: String,
    /// How many names it had before this one.
    pub name_number: u32,
    /// When the system created it, nanoseconds since the Unix epoch; 0 = unknown. With `tid` it
    /// distinguishes a thread from all others of its machine.
    pub created_utc_ns: u64,
    /// Nanoseconds since trace start; `None` = ran before.
    pub start_ns: Option<u64>,
    /// Nanoseconds since trace start; `None` = never exited.
    pub exit_ns: Option<u64>,
    pub samples: u64,
    /// Samples in which it ran, or may have (state not "waiting").
    pub active_samples: u64,
    /// CPU time that being sampled cost it, as far as it is known, in nanoseconds: with that of its
    /// runs it is what its clock gained. Of all its samples in the window, whatever is selected.
    pub sampling_cpu_ns: u64,
}

impl ThreadInfo {
    /// Its label in viewers: `name (tid)` or `thread tid`.
    pub fn label(&self) -> String {
        if self.name.is_empty() {
            format!("thread {}", self.tid)
        } else if self.tid == 0 {
            // It stands for several threads.
            self.name.clone()
        } else {
            format!("{} ({})", self.name, self.tid)
        }
    }
}

/// A mark made by the user or the target.
#[derive(Clone, Debug)]
pub struct MarkInfo {
    /// Nanoseconds since trace start.
    pub time_ns: u64,
    /// Index in [`Profile::threads`]; `None` = the process.
    pub thread: Option<u32>,
    /// Number given by the caller.
    pub tag: u64,
    /// Text; may be empty.
    pub text: String,
}

/// Why stacks end, and the module to blame.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StopInfo {
    pub reason: StopReason,
    /// Module to blame: file name; empty if none.
    pub module: String,
}

/// What was lost, skipped or unresolved.
#[derive(Clone, Default, Debug)]
pub struct Losses {
    /// Samples that the recorder dropped.
    pub dropped_samples: u64,
    /// How often the recorder dropped something, by reason. For some reasons it was not a sample.
    pub dropped: Vec<(String, u64)>,
    /// Errors of the blocks that could not be read.
    pub damaged_blocks: Vec<String>,
    /// Idle spans whose stack was in a lost block.
    pub lost_idle_spans: u64,
    /// What language runtimes reported but could not be read, one sentence each.
    pub runtimes: Vec<String>,
    /// Events of unknown type.
    pub unknown_events: u64,
    /// Samples taken before their module's tables were recorded, where the tables then never were:
    /// their stacks end there.
    pub tables_pending: u64,
    /// Walks whose stack is too deep to be shown whole.
    pub too_deep: u64,
    /// The most frames that are left out of one of them.
    pub most_left_out: u64,
    /// Samples without a stack, since a lost block held events on modules.
    pub modules_unknown: u64,
    /// Samples whose stack is found among modules that are assumed (`--salvage`).
    pub assumed: u64,
    /// Samples whose stack ends at code that a lost block may have described.
    pub code_unknown: u64,
    /// Readings of threads' clocks that went back, or gained more than the processors had time for.
    pub clock_jumps: u64,
    /// CPU time beyond that, in nanoseconds; it is left out.
    pub clock_excess_ns: u64,
    /// By how much the system's clock was set while the trace was recorded, in nanoseconds; 0 if it
    /// was not.
    pub clock_set_ns: i64,
    /// For how long a trace of version 1.0 has no reading of the clocks of threads that may have
    /// run, in nanoseconds: CPU time that may be missing. See [`unread_ns`].
    pub unread_ns: u64,
}

impl Losses {
    /// Sentences on stacks that are too deep, missing or assumed, and on clocks that cannot be
    /// right.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.too_deep > 0 {
            notes.push(format!(
                "{} deeper than --max-frames: their innermost and outermost frames are shown, up to {} between are not",
                counted(self.too_deep, "stack"),
                counted(self.most_left_out, "frame")
            ));
        }
        if self.modules_unknown > 0 {
            notes.push(format!(
                "{} without a stack: a block of module events before them is lost; --salvage assumes that the modules known then stayed",
                counted(self.modules_unknown, "sample")
            ));
        }
        if self.assumed > 0 {
            notes.push(format!(
                "{} with stacks that --salvage assumes: among the modules known before a lost block and named by later ones",
                counted(self.assumed, "sample")
            ));
        }
        if self.code_unknown > 0 {
            notes.push(format!(
                "stacks of {} end at code that a lost block may have described (code-unknown)",
                counted(self.code_unknown, "sample")
            ));
        }
        if self.clock_jumps > 0 {
            notes.push(format!(
                "{} of threads' CPU clocks went back or gained more than the processors had time for; {} of CPU time is left out",
                counted(self.clock_jumps, "reading"),
                span(self.clock_excess_ns)
            ));
        }
        if self.clock_set_ns != 0 {
            notes.push(format!(
                "the system's clock was set {} by {} meanwhile; times of day are counted from the start",
                if self.clock_set_ns < 0 { "back" } else { "forward" },
                span(self.clock_set_ns.unsigned_abs())
            ));
        }
        notes
    }
}
