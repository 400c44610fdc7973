//! Options that choose a part of a trace: processes, a time range, threads, samples by their frames
//! and states, frames.

use super::values::{choice, default_name};
use super::{Exit, Usage, note, warn};
use crate::times::{self, TimeArg};
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use stk_base::files::open_plain;
use stk_base::text::{TimeZone, count, counted, since_start};
use stk_format::{FILE_HEADER_LEN, FileHeader};
use stk_profile::profile::{
    ActivityKind, FramePatterns, FunctionPattern, LABEL, NamePattern, NamedThread, PatternError, Selection,
};
use stk_profile::trace::{Trace, TraceFile};
use stk_schema::typed::parse_number;

/// In which zone times are shown and taken.
#[derive(clap::Args, Clone, Copy, Default, Debug)]
pub struct TzArgs {
    /// The zone of times by the clock: in what is printed, and in options that name none
    #[arg(long, value_parser = choice::<TimeZone>(), default_value = default_name::<TimeZone>(), value_name = "ZONE")]
    pub tz: TimeZone,
}

/// Which part of a trace.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct SelectArgs {
    /// Only what was sampled from this time on: since the trace's start (90, 1.5s, 250ms, 2m), by
    /// the clock (03:14, 03:14:05Z), or with a date (2026-11-21T03:14:05+01:00)
    #[arg(long, value_name = "TIME", value_parser = times::parse, help_heading = "What to take")]
    pub from: Option<TimeArg>,
    /// Only what was sampled before this time
    #[arg(long, value_name = "TIME", value_parser = times::parse, help_heading = "What to take")]
    pub until: Option<TimeArg>,
    /// Which threads.
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Which traces.
    #[command(flatten)]
    pub process: ProcessArgs,
    /// The zone of the times.
    #[command(flatten)]
    pub tz: TzArgs,
}

/// A range of time, in nanoseconds since a trace's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeRange {
    /// Its first moment; `None`: the trace's.
    pub from: Option<u64>,
    /// The moment behind its last; `None`: to the trace's end.
    pub until: Option<u64>,
}

impl SelectArgs {
    /// Checks that the options make sense.
    ///
    /// # Errors
    ///
    /// A usage error for a range that ends before it begins.
    pub fn check(&self) -> anyhow::Result<()> {
        match (self.from, self.until) {
            (Some(TimeArg::SinceStart(from)), Some(TimeArg::SinceStart(until))) if until <= from => {
                Err(Usage("--until is not after --from: nothing would be left".into()).into())
            }
            _ => Ok(()),
        }
    }

    /// Whether a part of the trace is chosen.
    pub fn is_part(&self) -> bool {
        self.from.is_some() || self.until.is_some() || self.threads.is_part()
    }

    /// The range of time in a trace.
    pub fn range(&self, trace: &Trace<'_>) -> TimeRange {
        let ns = |moment: TimeArg| moment.of(trace, self.tz.tz).clamp(0, u64::MAX.into()) as u64;
        TimeRange { from: self.from.map(ns), until: self.until.map(ns) }
    }

    /// The range of time in a trace, in words for titles; empty = all of it.
    pub fn words(&self, trace: &Trace<'_>) -> String {
        let TimeRange { from, until } = self.range(trace);
        let mut words = Vec::new();
        words.extend(from.map(|from| format!("from {}", since_start(from))));
        words.extend(until.map(|until| format!("until {}", since_start(until))));
        words.join(", ")
    }

    /// Says why none of a trace's samples was chosen.
    pub fn why_empty(&self, trace: &Trace<'_>) -> String {
        if trace.samples() == 0 {
            return format!("{}: the trace holds no samples", trace.source);
        }
        if !self.is_part() {
            return format!("{}: no sample could be read", trace.source);
        }
        let why = self.why_outside(trace).unwrap_or_else(|| "no thread was sampled in that time".to_owned());
        format!("{}: no samples are left: {why}", trace.source)
    }

    /// Why the range of time holds nothing of a trace, if it does not.
    pub fn why_outside(&self, trace: &Trace<'_>) -> Option<String> {
        let last = trace.clock.ns(trace.last());
        match self.range(trace) {
            TimeRange { from: Some(from), .. } if from > last => {
                Some(format!("--from is {}, and the trace ends at {}", since_start(from), since_start(last)))
            }
            TimeRange { until: Some(0), .. } => Some("--until is not after the trace's start".to_owned()),
            TimeRange { from: Some(from), until: Some(until) } if until <= from => {
                Some("--until is not after --from".to_owned())
            }
            _ => None,
        }
    }
}

/// The options choose nothing of a trace.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NothingChosen(pub String);

/// Of which traces the options of a command choose something.
#[derive(Default, Debug)]
pub struct TraceChoice {
    /// Whether the options choose a part: otherwise a trace is empty by itself.
    is_part: bool,
    traces: usize,
    /// Names of traces without chosen samples, and why they have none.
    empty: Vec<(String, String)>,
}

impl TraceChoice {
    /// Of no trace yet.
    pub fn new(is_part: bool) -> TraceChoice {
        TraceChoice { is_part, ..TraceChoice::default() }
    }

    /// Adds a trace; `empty`: why nothing of it is chosen.
    pub fn add(&mut self, source: &str, empty: Option<String>) {
        self.traces += 1;
        self.empty.extend(empty.map(|why| (source.to_owned(), why)));
    }

    /// Warns of traces of which nothing is chosen. Failure if the options choose nothing at all.
    pub fn finish(self) -> Exit {
        /// Traces that are named.
        const NAMED: usize = 3;
        let more = self.empty.len().saturating_sub(NAMED) as u64;
        if self.empty.len() == self.traces || !self.is_part {
            self.empty.iter().take(NAMED).for_each(|(_, why)| warn(why));
            if more > 0 {
                warn(&format!("{} more have no samples", counted(more, "trace")));
            }
            return if self.is_part && self.traces > 0 { Exit::Failure } else { Exit::Ok };
        }
        let names: Vec<&str> = self.empty.iter().take(NAMED).map(|(source, _)| source.as_str()).collect();
        if !names.is_empty() {
            let (none, all) = (self.empty.len() as u64, counted(self.traces as u64, "trace"));
            let more = if more > 0 { format!(" and {} more", count(more)) } else { String::new() };
            let (none, names) = (count(none), names.join(", "));
            warn(&format!("the options choose nothing of {none} of {all}: {names}{more}"));
        }
        Exit::Ok
    }
}

/// Which threads. Each of the two options narrows the choice.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct ThreadArgs {
    /// Only threads with this system id, decimal or 0x-hexadecimal; may be repeated
    #[arg(long = "tid", value_name = "TID", value_parser = tid, help_heading = "What to take")]
    pub tids: Vec<u32>,
    /// Only threads whose name matches this regular expression, in any case, or with this id; may
    /// be repeated
    #[arg(long = "thread", value_name = "RE|TID", help_heading = "What to take")]
    pub patterns: Vec<ThreadPattern>,
}

/// A thread as `--thread` names it.
#[derive(Clone, Debug)]
pub enum ThreadPattern {
    Tid(u32),
    Name(NamePattern),
}

impl FromStr for ThreadPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<ThreadPattern, PatternError> {
        match parse_tid(text) {
            Some(tid) => Ok(ThreadPattern::Tid(tid)),
            None => text.parse().map(ThreadPattern::Name),
        }
    }
}

impl ThreadArgs {
    /// Whether not all threads are chosen.
    pub fn is_part(&self) -> bool {
        !self.tids.is_empty() || !self.patterns.is_empty()
    }

    /// Instance ids of the chosen threads; `None` = all.
    ///
    /// # Errors
    ///
    /// When a choice matches no thread of the trace.
    pub fn of(&self, trace: &Trace<'_>) -> Result<Option<HashSet<NamedThread>>, NothingChosen> {
        let mut chosen: Option<HashSet<NamedThread>> = None;
        let mut narrow = |choice: HashSet<NamedThread>| match &mut chosen {
            Some(chosen) => chosen.retain(|thread| choice.contains(thread)),
            None => chosen = Some(choice),
        };
        if !self.tids.is_empty() {
            narrow(named(trace, self.tids.iter().map(|&tid| ThreadPattern::Tid(tid)))?);
        }
        if !self.patterns.is_empty() {
            narrow(named(trace, self.patterns.iter().cloned())?);
        }
        Ok(chosen)
    }

    /// The instance ids of the threads that have such a name at some time; `None` = all.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub fn instances(&self, trace: &Trace<'_>) -> Result<Option<HashSet<u64>>, NothingChosen> {
        Ok(self.of(trace)?.map(|threads| threads.into_iter().map(|(instance, _)| instance).collect()))
    }
}

/// The threads that any of these patterns names, for as long as they had the name.
fn named(
    trace: &Trace<'_>,
    patterns: impl Iterator<Item = ThreadPattern>,
) -> Result<HashSet<NamedThread>, NothingChosen> {
    let mut chosen = HashSet::new();
    for wanted in patterns {
        let names = trace.timeline.threads.iter().flat_map(|thread| {
            let names = thread.earlier_names.iter().map(|(_, name)| name).chain([&thread.name]);
            names.zip(0..).map(move |(name, number)| (thread, name, number))
        });
        let fits = names.filter(|(thread, name, _)| match &wanted {
            ThreadPattern::Tid(tid) => *tid == thread.tid,
            ThreadPattern::Name(pattern) => pattern.is_match(name),
        });
        let before = chosen.len();
        let fits: Vec<NamedThread> = fits.map(|(thread, _, number)| (thread.instance, number)).collect();
        chosen.extend(&fits);
        if fits.is_empty() && chosen.len() == before {
            let wanted = match wanted {
                ThreadPattern::Tid(tid) => format!("has the id {tid}"),
                ThreadPattern::Name(name) => format!("has a name that matches `{}`", name.as_str()),
            };
            let text = format!("{}: no thread {wanted}: stk info --all lists them", trace.source);
            return Err(NothingChosen(text));
        }
    }
    Ok(chosen)
}

/// A thread id, decimal or 0x-hexadecimal as in debuggers.
fn parse_tid(text: &str) -> Option<u32> {
    parse_number(text)?.try_into().ok()
}

fn tid(text: &str) -> Result<u32, String> {
    parse_tid(text).ok_or_else(|| "give a number, decimal or 0x-hexadecimal".to_owned())
}

/// Which of several traces.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct ProcessArgs {
    /// Only traces of the process with this id; may be repeated
    #[arg(long = "pid", value_name = "PID", help_heading = "What to take")]
    pub pids: Vec<u32>,
    /// Only traces that were recorded with this label; may be repeated, and all must fit
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label, help_heading = "What to take")]
    pub labels: Vec<(String, String)>,
}

impl ProcessArgs {
    /// Those of the traces that are chosen. The others are passed over, with a note.
    ///
    /// # Errors
    ///
    /// When none is left.
    pub fn traces(&self, files: Vec<PathBuf>) -> anyhow::Result<Vec<PathBuf>> {
        let all = files.len() as u64;
        let mut chosen = Vec::with_capacity(files.len());
        for file in files {
            match self.other(&file) {
                Some(why) => note(&format!("{}: passed over: {why}", file.display())),
                None => chosen.push(file),
            }
        }
        if chosen.is_empty() && all > 0 {
            anyhow::bail!("none of {} is one that --pid and --label choose", counted(all, "trace"));
        }
        Ok(chosen)
    }

    /// Why a file is not a chosen trace. One that cannot be read, or only once, counts as chosen:
    /// who reads it reports that, or checks it.
    fn other(&self, file: &Path) -> Option<String> {
        if !self.labels.is_empty() && file.metadata().is_ok_and(|found| found.is_file()) {
            let file = TraceFile::open(file).ok()?;
            return self.check(&file.read().ok()?).err();
        }
        let mut header = Vec::with_capacity(FILE_HEADER_LEN);
        open_plain(file).ok()?.take(FILE_HEADER_LEN as u64).read_to_end(&mut header).ok()?;
        self.check_pid(FileHeader::decode(&header).ok()?.pid).err()
    }

    /// Checks that a trace is chosen, which [`traces`](ProcessArgs::traces) cannot check for what
    /// is no regular file.
    pub fn demand(&self, trace: &Trace<'_>) -> anyhow::Result<()> {
        let wrong = |why| anyhow::anyhow!("{}: --pid and --label choose others: {why}", trace.source);
        self.check(trace).map_err(wrong)
    }

    /// Checks that a trace is chosen; if not, says why.
    fn check(&self, trace: &Trace<'_>) -> Result<(), String> {
        self.check_pid(trace.header().pid)?;
        for (key, value) in &self.labels {
            match trace.fact(&format!("{LABEL}{key}")) {
                Some(found) if found == value => {}
                Some(found) => return Err(format!("its label {key} is {found}, not {value}")),
                None => return Err(format!("it has no label {key}")),
            }
        }
        Ok(())
    }

    fn check_pid(&self, pid: u32) -> Result<(), String> {
        if self.pids.is_empty() || self.pids.contains(&pid) {
            return Ok(());
        }
        Err(format!("it is of process {pid}"))
    }
}

pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("give a label and its value, such as build=1234".to_owned()),
    }
}

/// Which samples by their frames and states, and which frames. Names are those that outputs show.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct StackArgs {
    /// Only samples in which the thread was: running, waiting, system-call or unknown; several
    /// separated by commas
    #[arg(
        long = "state",
        value_parser = choice::<ActivityKind>(),
        value_name = "STATE",
        value_delimiter = ',',
        hide_possible_values = true,
        help_heading = "Which samples (RE: a regular expression)"
    )]
    pub states: Vec<ActivityKind>,
    /// Only samples with a frame in such a module, by its file name in any case
    #[arg(long = "module", value_name = "RE", help_heading = "Which samples (RE: a regular expression)")]
    pub modules: Vec<NamePattern>,
    /// Only samples with such a function on the stack: work, ^do_work$, ntdll!Nt, (?i)WORK
    #[arg(long = "function", value_name = "RE", help_heading = "Which samples (RE: a regular expression)")]
    pub functions: Vec<FunctionPattern>,
    /// Only samples with such a function on the stack, too
    #[arg(long, value_name = "RE", help_heading = "Which samples (RE: a regular expression)")]
    pub focus: Vec<FunctionPattern>,
    /// Leave out samples with such a function on the stack
    #[arg(long, value_name = "RE", help_heading = "Which samples (RE: a regular expression)")]
    pub ignore: Vec<FunctionPattern>,
    /// Leave such functions out of stacks: their time becomes their callers'
    #[arg(long, value_name = "RE", help_heading = "Which frames")]
    pub hide: Vec<FunctionPattern>,
    /// Leave the code of the system and of language runtimes out of stacks: its time becomes that
    /// of the callers
    #[arg(long, help_heading = "Which frames")]
    pub my_code: bool,
    /// Have stacks begin at the outermost such function. Samples without one are left out
    #[arg(long, value_name = "RE", help_heading = "Which frames")]
    pub root: Vec<FunctionPattern>,
    /// Leave out the system's functions in which threads begin: RtlUserThreadStart,
    /// BaseThreadInitThunk, LdrInitializeThunk
    #[arg(long, help_heading = "Which frames")]
    pub skip_thread_start: bool,
}

impl StackArgs {
    /// The selection, of these threads.
    pub fn selection(&self, threads: Option<HashSet<NamedThread>>) -> Selection {
        let frames = FramePatterns {
            modules: self.modules.clone(),
            functions: self.functions.clone(),
            focus: self.focus.clone(),
            ignore: self.ignore.clone(),
            root: self.root.clone(),
            hide: self.hide.clone(),
            my_code: self.my_code,
            skip_thread_start: self.skip_thread_start,
        };
        Selection { threads, states: self.states.clone(), frames }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_ids_are_decimal_or_hexadecimal() {
        assert_eq!(parse_tid("4404"), Some(4404));
        assert_eq!(parse_tid("0x1134"), Some(0x1134));
        assert_eq!(parse_tid("worker 1"), None);
    }

    #[test]
    fn a_number_is_a_thread_id_and_all_else_a_pattern() {
        assert!(matches!("12".parse(), Ok(ThreadPattern::Tid(12))));
        assert!(matches!("worker 1".parse(), Ok(ThreadPattern::Name(name)) if name.is_match("Worker 12")));
        assert!("(".parse::<ThreadPattern>().is_err());
    }

    #[test]
    fn a_label_has_a_name_and_any_value() {
        assert_eq!(label("build=a=b"), Ok(("build".to_owned(), "a=b".to_owned())));
        assert_eq!(label("build="), Ok(("build".to_owned(), String::new())));
        assert!(label("=1").is_err() && label("build").is_err());
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        let [from, until] = [2, 1].map(|ns| Some(TimeArg::SinceStart(ns)));
        let args = SelectArgs { from, until, ..SelectArgs::default() };
        assert!(args.check().unwrap_err().is::<Usage>());
    }
}
