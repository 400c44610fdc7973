//! What a page says of a trace beside its samples: names, totals, what is wrong with it.

use super::columns::PageColumn;
use super::events::Events;
use super::source::{FunctionSource, sources};
use super::tree::{PageTree, Texts};
use super::{PageRows, Source};
use crate::stats::{Stats, Totals};
use serde::Serialize;
use std::collections::HashMap;
use stk_base::text::moment;
use stk_profile::profile::{FrameId, Functions, Profile, StopInfo, Wait, Weight};

/// Everything but the columns. The page reads it as JSON.
#[derive(Serialize)]
pub(super) struct Facts<'a> {
    stk: &'static str,
    source: &'a str,
    trace_id: &'a str,
    process: &'a str,
    pid: u32,
    host: &'a str,
    arch: &'static str,
    start: String,
    duration_ns: u64,
    /// The time that the samples are of.
    from_ns: u64,
    until_ns: u64,
    interval_ns: u64,
    cpu_source: &'static str,
    totals: Totals,
    /// Which part of the trace was requested; empty = all of it.
    part: &'a str,
    threads: Vec<ThreadFacts<'a>>,
    modules: &'a [String],
    categories: &'a [String],
    /// By category: whether it is folded with "my code".
    of_others: &'a [bool],
    files: &'a [String],
    functions: FunctionColumns,
    causes: &'a [Cause],
    stops: Vec<StopFacts<'a>>,
    waits: Vec<WaitFacts>,
    events: Events<'a>,
    missing: Vec<MissingFacts<'a>>,
    /// Source lines of functions, the most own weight first, and what their weight is.
    sources: Vec<FunctionSource<'a>>,
    sources_weight: Option<Weight>,
    warnings: &'a [String],
    /// Runs that rows were joined of, and the stretch of time.
    runs: usize,
    joined_ns: Option<u64>,
    columns: &'a [PageColumn],
}

#[derive(Serialize)]
struct ThreadFacts<'a> {
    tid: u32,
    name: &'a str,
    rows: usize,
}

/// By number of the function.
#[derive(Default, Serialize)]
pub(super) struct FunctionColumns {
    names: Vec<String>,
    modules: Vec<u32>,
    categories: Vec<u32>,
    /// 0: no file; else one more than its number.
    files: Vec<u32>,
    /// 0: no line.
    lines: Vec<u32>,
    /// Where the name comes from.
    sources: Vec<&'static str>,
    /// 0: the name is certain; else one more than the number of the cause why it is not.
    causes: Vec<u32>,
}

/// Why code of a module has no certain name.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Cause {
    module: String,
    cause: String,
    /// Whether it has at least an export's name.
    export_only: bool,
}

#[derive(Serialize)]
struct StopFacts<'a> {
    reason: &'static str,
    module: &'a str,
    complete: bool,
}

#[derive(Serialize)]
struct WaitFacts {
    reason: &'static str,
    class: &'static str,
}

#[derive(Serialize)]
struct MissingFacts<'a> {
    module: &'a str,
    samples: u64,
    frames: u64,
    reason: &'a str,
}

/// The functions of a page, with the texts that they refer to.
#[derive(Default)]
pub(super) struct FunctionFacts {
    pub columns: FunctionColumns,
    pub modules: Texts,
    pub categories: Texts,
    pub of_others: Vec<bool>,
    pub files: Texts,
    pub causes: Vec<Cause>,
}

impl FunctionFacts {
    pub(super) fn new(profile: &Profile, functions: &Functions, tree: &PageTree) -> FunctionFacts {
        // The first frame of each function says whose code it is, and why it has no name.
        let mut first: Vec<(usize, FrameId)> = Vec::new();
        let mut known = vec![false; tree.function_count as usize];
        for frame in (0..profile.frames.keys().len() as u32).map(FrameId) {
            for function in functions.of(frame) {
                if let Some(number) = tree.functions[function.0 as usize]
                    && !std::mem::replace(&mut known[number as usize], true)
                {
                    first.push((function.0 as usize, frame));
                }
            }
        }
        first.sort_unstable_by_key(|(function, _)| tree.functions[*function]);
        let mut facts = FunctionFacts::default();
        let mut causes: HashMap<Cause, u32> = HashMap::new();
        for (function, frame) in first {
            facts.add(profile, &functions.list()[function], frame, &mut causes);
        }
        facts
    }

    fn add(
        &mut self,
        profile: &Profile,
        function: &stk_profile::profile::Function,
        frame: FrameId,
        causes: &mut HashMap<Cause, u32>,
    ) {
        let source = profile.symbols.source[frame.0 as usize];
        let columns = &mut self.columns;
        columns.names.push(function.name_in_module.clone());
        columns.modules.push(self.modules.number(&function.module));
        let category = profile.category(frame);
        columns.categories.push(self.categories.number(category.as_str()));
        if self.categories.list.len() > self.of_others.len() {
            self.of_others.push(category.is_of_others());
        }
        // Without a source file, a function's file is its module.
        let file = function.file.as_ref().filter(|file| **file != function.module);
        columns.files.push(file.map_or(0, |file| self.files.number(file) + 1));
        columns.lines.push(function.line.unwrap_or(0));
        columns.sources.push(source.as_str());
        if source.is_certain() || profile.is_placeholder(frame) {
            columns.causes.push(0);
            return;
        }
        let reason = profile.symbols.reason[frame.0 as usize];
        let cause = Cause {
            module: profile.module_name(frame).unwrap_or_default().to_owned(),
            cause: reason.map_or("cause not known", |reason| profile.symbols.strings.get(reason)).to_owned(),
            export_only: source == stk_profile::profile::NameSource::Export,
        };
        let number = *causes.entry(cause.clone()).or_insert_with(|| {
            self.causes.push(cause);
            self.causes.len() as u32
        });
        columns.causes.push(number);
    }
}

impl<'a> Facts<'a> {
    /// The JSON of a trace.
    pub(super) fn new(
        source: &Source<'a>,
        stats: &Stats,
        functions: &'a mut FunctionFacts,
        rows: &PageRows,
        tree: &PageTree,
        columns: &'a [PageColumn],
    ) -> Facts<'a> {
        let profile = source.profile;
        let (trace, window) = (&profile.trace, profile.window());
        let threads = profile.threads.iter().zip(&rows.of_threads);
        let missing = source.missing.modules.iter();
        Facts {
            stk: env!("CARGO_PKG_VERSION"),
            source: &trace.source,
            trace_id: &trace.trace_id,
            process: &trace.process,
            pid: trace.pid,
            host: &trace.host,
            arch: trace.arch.name(),
            start: moment(trace.start_utc_ns, source.zone),
            duration_ns: trace.duration_ns,
            from_ns: window.start,
            until_ns: window.end,
            interval_ns: trace.interval_ns,
            cpu_source: trace.cpu_source.as_str(),
            totals: stats.totals,
            part: source.part,
            threads: threads
                .map(|(thread, &rows)| ThreadFacts { tid: thread.tid, name: &thread.name, rows })
                .collect(),
            functions: std::mem::take(&mut functions.columns),
            modules: &functions.modules.list,
            categories: &functions.categories.list,
            of_others: &functions.of_others,
            files: &functions.files.list,
            causes: &functions.causes,
            stops: profile.stops.iter().map(StopFacts::of).collect(),
            waits: Wait::all().into_iter().map(WaitFacts::of).collect(),
            events: Events::of(profile, &window),
            missing: missing
                .map(|module| MissingFacts {
                    module: &module.module,
                    samples: module.samples,
                    frames: module.frames,
                    reason: &module.reason,
                })
                .collect(),
            sources: source.annotation.map(|annotation| sources(annotation, tree)).unwrap_or_default(),
            sources_weight: source.annotation.map(|annotation| annotation.weight),
            warnings: source.warnings,
            runs: rows.runs,
            joined_ns: rows.joined_ns,
            columns,
        }
    }
}

impl StopFacts<'_> {
    fn of(stop: &StopInfo) -> StopFacts<'_> {
        let StopInfo { reason, module } = stop;
        StopFacts { reason: reason.as_str(), module, complete: reason.is_complete() }
    }
}

impl WaitFacts {
    fn of(wait: Wait) -> WaitFacts {
        WaitFacts { reason: wait.reason(), class: wait.class().as_str() }
    }
}
