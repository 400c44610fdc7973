//! `stk dump`: stacks at a moment, or those of captures, as text.

mod live;

use super::select::label;
use super::values::{choice, default_name};
use super::{
    Exit, Out, ProcessArgs, StackArgs, TablesArgs, ThreadArgs, TzArgs, Usage, guarded, inputs, profile_args,
};
use crate::times::{self, TimeArg};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use stk_base::text::{TimeZone, since_start};
use stk_output::dump::captures::{self, CaptureChoice, ChosenCapture};
use stk_output::dump::print::{DumpOptions, DumpStyle, StackPrinter, moment};
use stk_output::dump::sources::TraceSources;
use stk_output::tag::parse_tag;
use stk_profile::trace::{Trace, TraceEvents, beyond_cost, beyond_memory, events};
use stk_schema::Ticks;

/// Prints the stacks of all threads, or of some, as they were at a moment; or those that the
/// program itself asked for with `stk_capture`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk dump app.stk
  stk dump app.stk --at 1.5s --thread worker --style plain
  stk dump app.stk --at 03:14:05Z --modules     and what was loaded then
  stk dump app.stk --style merged --state waiting --my-code
  stk dump app.stk --function '^do_work$' --hide '^std::'
  stk dump app.stk --thread 4404 --explain
  stk dump app.stk --style clrstack --frames managed
  stk dump app.stk --tag 7                      what stk_capture(7) recorded, each time
  stk dump app.stk --event 12                   event 12 of stk events app.stk
  stk dump --pid 4404                           the process as it is now (on Windows)
  stk dump once.stk --style json | jq '.threads[].frames[0].function'")]
pub(super) struct DumpArgs {
    /// Trace: a file, or a pattern or folder that holds one
    #[arg(value_name = "FILE", required_unless_present = "pid")]
    file: Option<PathBuf>,
    /// Without FILE, a process that runs now: inject.exe, which lies beside stk.exe, takes one
    /// sample of each of its threads (Windows only). With FILE, only a trace of this process
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// The moment: since the trace's start (1.5s, 250ms), by the clock (03:14:05Z), or with a date
    /// (2026-11-21T03:14:05+01:00); by default the last
    #[arg(long, value_name = "TIME", value_parser = times::parse)]
    at: Option<TimeArg>,
    /// The stack of this capture, by its number in `stk events FILE`; may be repeated
    #[arg(long = "event", value_name = "N", conflicts_with = "at")]
    events: Vec<u64>,
    /// The stacks of all captures with this tag, the number that the program gave `stk_capture`,
    /// decimal or 0x-hexadecimal; may be repeated
    #[arg(long = "tag", value_name = "TAG", value_parser = parse_tag, conflicts_with = "at")]
    tags: Vec<u64>,
    /// Of captures, only those from this time on
    #[arg(long, value_name = "TIME", value_parser = times::parse, help_heading = "What to take")]
    from: Option<TimeArg>,
    /// Of captures, only those before this time
    #[arg(long, value_name = "TIME", value_parser = times::parse, help_heading = "What to take")]
    until: Option<TimeArg>,
    /// Only a trace that was recorded with this label; may be repeated, and all must fit
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label, help_heading = "What to take")]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    stacks: StackArgs,
    /// How to print them
    #[arg(long, value_parser = choice::<DumpStyle>(), default_value = default_name::<DumpStyle>(), value_name = "STYLE")]
    style: DumpStyle,
    /// List the modules that were loaded at the moment too, by address
    #[arg(long = "modules", conflicts_with_all = ["events", "tags"])]
    loaded: bool,
    /// Name, for each frame, the unwind record and the rule by which its caller was found
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    symbols: profile_args::SymbolArgs,
    /// Where unwind data is missing, search the stack for return addresses. Such frames are guesses
    /// and marked as such
    #[arg(long)]
    scan: bool,
    /// Behind a lost block that held events on modules: find stacks among the modules that are
    /// known. Such frames are assumed, not proved, and marked as such
    #[arg(long)]
    salvage: bool,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    fold: profile_args::FoldArgs,
    #[command(flatten)]
    tz: TzArgs,
}

pub(super) fn run(args: &DumpArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    check(args)?;
    match (&args.file, args.pid) {
        (Some(file), _) => {
            let file = the_trace(file, args)?;
            guarded(&file, || dump(args, &file, out))
        }
        (None, Some(pid)) => live::with_sample(pid, |file| guarded(file, || dump(args, file, out))),
        (None, None) => Err(Usage("name a trace, or a process with --pid".into()).into()),
    }
}

/// Refuses options that would do nothing.
fn check(args: &DumpArgs) -> anyhow::Result<()> {
    let of_captures = !args.events.is_empty() || !args.tags.is_empty();
    if (args.from.is_some() || args.until.is_some()) && !of_captures {
        let text = "--from and --until choose among captures (--tag, --event): the stacks of a moment are \
            those of --at";
        return Err(Usage(text.to_owned()).into());
    }
    let of_trace = of_captures || args.at.is_some() || !args.labels.is_empty();
    if args.file.is_none() && of_trace {
        let text = "--at, --event, --tag and --label are for traces, and a process that runs now has none: \
            name a FILE";
        return Err(Usage(text.to_owned()).into());
    }
    Ok(())
}

/// The one trace that the arguments name, of those that --pid and --label choose.
fn the_trace(named: &Path, args: &DumpArgs) -> anyhow::Result<PathBuf> {
    if args.pid.is_none() && args.labels.is_empty() {
        return inputs::trace(named);
    }
    let process = ProcessArgs { pids: args.pid.into_iter().collect(), labels: args.labels.clone() };
    let (files, _) = inputs::traces(&[named.to_owned()]);
    match process.traces(files)?.as_slice() {
        [one] => Ok(one.clone()),
        [] => anyhow::bail!("{}: no trace", named.display()),
        [first, others @ ..] => anyhow::bail!(
            "{}: {} traces that --pid and --label choose: name one of them, such as {}",
            named.display(),
            1 + others.len(),
            first.display()
        ),
    }
}

fn dump(args: &DumpArgs, path: &Path, out: Out<'_>) -> anyhow::Result<Exit> {
    let file = args.tables.open(path)?;
    let mut trace = file.read()?;
    args.tables.give(&mut trace);
    let threads = args.threads.instances(&trace)?;
    let chosen = threads.is_some() || args.at.is_some();
    let mut losses = DumpLosses::default();
    let captures = chosen_captures(&trace, args, threads.as_ref(), &mut losses)?;
    profile_args::warn_of_missing_tables(&trace);
    let sources = TraceSources::of(&trace, args.symbols.store(path), args.symbols.demangle);
    let inputs = sources.inputs(args.salvage);
    let mut walker = sources.walker(args.scan);
    let options = DumpOptions {
        style: args.style,
        explain: args.explain,
        fold: args.fold.options(),
        zone: args.tz.tz,
        modules: args.loaded,
    };
    let mut printer = StackPrinter::new(options, args.stacks.selection(None), sources.names(), out);
    match &captures {
        Some(captures) => {
            printer.begin(captures::last(captures))?;
            let (left_out, not_walked) = captures::print(&inputs, &mut walker, captures, &mut printer)?;
            (losses.stacks, losses.not_walked) = (left_out, not_walked);
        }
        None => {
            let at = args.at.map(|at| moment_of(at, args.tz.tz, &trace));
            let (time, beside) = at.unwrap_or_else(|| (trace.last(), None));
            beside.iter().for_each(|beside| super::warn(beside));
            printer.begin(time)?;
            let wanted = |thread| threads.as_ref().is_none_or(|threads| threads.contains(&thread));
            losses.stacks = moment(&inputs, &mut walker, time, &wanted, &mut printer)?;
            if printer.choice.all == 0 {
                super::warn(&format!(
                    "{}: no thread was sampled by {}",
                    trace.source,
                    since_start(trace.clock.ns(time))
                ));
            }
        }
    }
    printer.end()?;
    losses.names = printer.unnamed;
    printer.choice.note(&trace.source).iter().for_each(|text| super::note(text));
    super::note_redirects(sources.symbolizer.store());
    for problem in &sources.methods.problems {
        super::warn(&format!("{}: {problem}", trace.source));
    }
    let is_empty = printer.choice.taken == 0 && (printer.choice.all > 0 || chosen) && trace.samples() > 0;
    match losses.report(&trace) {
        Exit::Ok if is_empty => Ok(Exit::Failure),
        exit => Ok(exit),
    }
}

/// The captures that the arguments choose; `None` if they ask for a moment.
fn chosen_captures(
    trace: &Trace<'_>,
    args: &DumpArgs,
    threads: Option<&HashSet<u64>>,
    losses: &mut DumpLosses,
) -> anyhow::Result<Option<Vec<ChosenCapture>>> {
    if args.events.is_empty() && args.tags.is_empty() {
        return Ok(None);
    }
    let found = events(trace);
    losses.events(trace, &found);
    let [from, until] = [args.from, args.until].map(|time| time.map(|time| time.of(trace, args.tz.tz)));
    let wanted = CaptureChoice { events: &args.events, tags: &args.tags, threads, from, until };
    Ok(Some(captures::choose(trace, &found, &wanted)?))
}

/// What is missing in the output.
#[derive(Default)]
pub(super) struct DumpLosses {
    /// Stacks and names that there is no memory for.
    pub(super) stacks: u64,
    pub(super) names: u64,
    /// Captures that take too long to walk.
    pub(super) not_walked: u64,
    /// Whether events are missing.
    damaged: bool,
}

impl DumpLosses {
    /// Reports what is missing among the events.
    pub(super) fn events(&mut self, trace: &Trace<'_>, found: &TraceEvents) {
        for problem in found.problems(trace) {
            self.damaged = true;
            super::warn(&format!("{}: {problem}", trace.source));
        }
    }

    /// Reports what is missing, and gives the exit code.
    pub(super) fn report(&self, trace: &Trace<'_>) -> Exit {
        trace.damage.iter().for_each(|damage| super::warn(&format!("{}: {damage}", trace.source)));
        let limited = self.report_limits(trace);
        if trace.lost_blocks { Exit::Damaged } else { limited }
    }

    /// Reports what limits left out and which events are missing, and gives the exit code.
    pub(super) fn report_limits(&self, trace: &Trace<'_>) -> Exit {
        let warn = |what: &str| super::warn(&format!("{}: {what}", trace.source));
        for (count, what) in [(self.stacks, "stacks"), (self.names, "names")] {
            if count > 0 {
                warn(&beyond_memory(count, what, &trace.budget));
            }
        }
        if self.not_walked > 0 {
            warn(&beyond_cost(self.not_walked, trace));
        }
        let missing = self.damaged || self.stacks > 0 || self.names > 0 || self.not_walked > 0;
        if missing { Exit::Damaged } else { Exit::Ok }
    }
}

/// The moment to show, and a warning if it is not within the trace.
pub(super) fn moment_of(at: TimeArg, zone: TimeZone, trace: &Trace<'_>) -> (Ticks, Option<String>) {
    let ns = at.of(trace, zone);
    let last = trace.clock.ns(trace.last());
    let source = &trace.source;
    match u64::try_from(ns) {
        Ok(ns) if ns <= last => (trace.clock.ticks(ns), None),
        Err(_) if ns < 0 => (Ticks(0), Some(format!("{source}: --at is before the trace's start"))),
        _ => {
            let end = since_start(last);
            (trace.last(), Some(format!("{source}: the trace ends before --at: shown is its end at {end}")))
        }
    }
}
