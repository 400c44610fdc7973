//! `stk events`: what happened in traces, event by event in time.

mod stacks;

use super::profile_args::FoldArgs;
use super::select::TimeRange;
use super::values::{Choice as _, choice};
use super::{
    Exit, NothingChosen, Out, SelectArgs, SymbolArgs, TablesArgs, Usage, WorkerArgs, each_trace, guarded,
    inputs, pool,
};
use std::path::{Path, PathBuf};
use stk_output::dump::print::DumpStyle;
use stk_output::events::document::{EventsOfTrace, VERSION};
use stk_output::events::filter::{EventFilter, KindName};
use stk_output::events::text;
use stk_output::tag::parse_tag;
use stk_output::traces::Traces;
use stk_profile::profile::NamePattern;
use stk_profile::trace::{Trace, TraceFile, events};

/// Lists what happened in traces, in time: captures (`stk_capture`), marks, exceptions, modules
/// that were loaded and unloaded, threads that began and ended. What was there when the recording
/// began is only counted: stk info lists it.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The number of an event is the same whatever is chosen; stk dump --event N prints the stack of a capture.
With --stacks each line begins with the time by the clock, and the stacks of captures and exceptions stand among
the lines, in time: what was loaded, by which code, when.

Examples:
  stk events app.stk
  stk events app.stk --kind capture --tag 7
  stk events app.stk --kind load,unload --from 1.5s --until 2s
  stk events app.stk --module '^plugin_'
  stk events app.stk --stacks -y C:\\build
  stk events app.stk --stacks=clrstack --kind capture,exception --follow
  stk events --json *.stk | jq '.traces[].events[] | select(.kind == \"capture\")'")]
pub(super) struct EventsArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only events of these kinds, separated by commas; may be repeated
    #[arg(long = "kind", value_parser = choice::<KindName>(), value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<KindName>,
    /// Only captures and marks with this tag, decimal or 0x-hexadecimal; may be repeated
    #[arg(long = "tag", value_name = "TAG", value_parser = parse_tag)]
    tags: Vec<u64>,
    /// Only loads and unloads of such modules, by their file names in any case: a regular
    /// expression; may be repeated
    #[arg(long = "module", value_name = "RE")]
    modules: Vec<NamePattern>,
    /// Print the stacks of captures and exceptions among the events
    #[arg(
        long, value_name = "STYLE", num_args = 0..=1, require_equals = true, default_missing_value = "plain",
        value_parser = choice::<DumpStyle>()
    )]
    stacks: Option<DumpStyle>,
    /// Follow one trace that is being recorded, to its end: print events three seconds after they
    /// happened. Their numbers are those of what has come so far
    #[arg(long, requires = "stacks")]
    follow: bool,
    /// Print one JSON object, as schema/events.schema.json describes it
    #[arg(long, conflicts_with = "stacks")]
    json: bool,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    symbols: SymbolArgs,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    fold: FoldArgs,
    #[command(flatten)]
    select: SelectArgs,
}

/// Runs the command.
pub(super) fn run(args: &EventsArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    args.select.check()?;
    if let Some(style @ (DumpStyle::Merged | DumpStyle::Json)) = args.stacks {
        let known = DumpStyle::choices().into_iter().find(|(value, ..)| *value == style);
        let name = known.map_or("", |(_, name, _)| name);
        let text = format!("--stacks={name}: the stacks stand among events: plain, k or clrstack");
        return Err(Usage(text).into());
    }
    if let Some(style) = args.stacks.filter(|_| args.follow) {
        let [file] = args.files.as_slice() else {
            return Err(Usage("--follow takes one trace".into()).into());
        };
        inputs::refuse_dataset(file)?;
        return guarded(file, || stacks::follow(file, args, style, out));
    }
    let pool = pool(args.workers.jobs)?;
    let mut document = Traces::new(VERSION);
    let mut first = true;
    let (files, exit) = inputs::traces(&args.files);
    let files = args.select.process.traces(files)?;
    let exit = exit.worse(each_trace(&files, out, |path| {
        if let Some(style) = args.stacks {
            let mut text = if std::mem::take(&mut first) { String::new() } else { "\n".to_owned() };
            let mut keep = |more: &str| {
                text.push_str(more);
                Ok(())
            };
            let ending = pool.install(|| stacks::of_file(path, args, style, &mut keep))?;
            return Ok((text, ending));
        }
        let (found, ending) = pool.install(|| of_file(path, args))?;
        let text = if args.json { document.next(&found)? } else { text::of(&found, args.select.tz.tz) };
        let gap = if args.json || std::mem::take(&mut first) { "" } else { "\n" };
        Ok((format!("{gap}{text}"), ending))
    })?);
    if args.json {
        out(&document.end())?;
    }
    Ok(exit)
}

/// Reads a trace, of which the options choose something.
fn read<'f>(file: &'f TraceFile, args: &EventsArgs) -> anyhow::Result<Trace<'f>> {
    let trace = file.read()?;
    args.select.process.demand(&trace)?;
    if let Some(why) = args.select.why_outside(&trace) {
        return Err(NothingChosen(format!("{}: no events are left: {why}", trace.source)).into());
    }
    Ok(trace)
}

/// The events that are wanted of a trace.
fn filter<'t>(trace: &'t Trace<'_>, args: &'t EventsArgs) -> anyhow::Result<EventFilter<'t>> {
    let TimeRange { from, until } = args.select.range(trace);
    Ok(EventFilter {
        timeline: &trace.timeline,
        kinds: &args.kinds,
        tags: &args.tags,
        modules: &args.modules,
        threads: args.select.threads.instances(trace)?,
        from,
        until,
    })
}

fn of_file(path: &Path, args: &EventsArgs) -> anyhow::Result<(EventsOfTrace, Exit)> {
    let file = args.tables.open(path)?;
    let trace = read(&file, args)?;
    let filter = filter(&trace, args)?;
    let found = events(&trace);
    let problems: Vec<String> = trace.damage.iter().cloned().chain(found.problems(&trace)).collect();
    problems.iter().for_each(|problem| super::warn(&format!("{}: {problem}", trace.source)));
    let damaged = trace.lost_blocks || !found.problems(&trace).is_empty();
    let exit = if damaged { Exit::Damaged } else { Exit::Ok };
    Ok((EventsOfTrace::of(&trace, &found, &filter, problems), exit))
}
