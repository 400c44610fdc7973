//! `stk events`: what happened in traces, event by event in time.

use super::profile_args::parse_memory;
use super::select::TimeRange;
use super::values::choice;
use super::{Exit, NothingChosen, Out, SelectArgs, each_trace, inputs, pool};
use std::path::{Path, PathBuf};
use stk_output::events::document::{EventsOfTrace, VERSION};
use stk_output::events::filter::{EventFilter, KindName};
use stk_output::events::text;
use stk_output::tag::parse_tag;
use stk_output::traces::Traces;
use stk_profile::profile::NamePattern;
use stk_profile::trace::{TraceFile, events};

/// Lists what happened in traces, in time: captures (`stk_capture`), marks, exceptions, modules
/// that were loaded and unloaded, threads that began and ended. What was there when the recording
/// began is only counted: stk info lists it.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The number of an event is the same whatever is chosen; stk dump --event N prints the stack of a capture.

Examples:
  stk events app.stk
  stk events app.stk --kind capture --tag 7
  stk events app.stk --kind load,unload --from 1.5s --until 2s
  stk events app.stk --module '^plugin_'
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
    /// Print one JSON object, as schema/events.schema.json describes it
    #[arg(long)]
    json: bool,
    /// Worker threads [default: as many as there are processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Memory that what is kept of a trace may take; what is more is left out, as damage [default:
    /// 256M and 8 times the trace's size]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    max_memory: Option<u64>,
    #[command(flatten)]
    select: SelectArgs,
}

/// Runs the command.
pub(super) fn run(args: &EventsArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    args.select.check()?;
    let pool = pool(args.jobs)?;
    let mut document = Traces::new(VERSION);
    let mut first = true;
    let (files, exit) = inputs::traces(&args.files);
    let files = args.select.process.traces(files)?;
    let exit = exit.worse(each_trace(&files, out, |path| {
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

fn of_file(path: &Path, args: &EventsArgs) -> anyhow::Result<(EventsOfTrace, Exit)> {
    let file = TraceFile::open(path)?.within(args.max_memory);
    let trace = file.read()?;
    args.select.process.demand(&trace)?;
    if let Some(why) = args.select.why_outside(&trace) {
        return Err(NothingChosen(format!("{}: no events are left: {why}", trace.source)).into());
    }
    let TimeRange { from, until } = args.select.range(&trace);
    let filter = EventFilter {
        timeline: &trace.timeline,
        kinds: &args.kinds,
        tags: &args.tags,
        modules: &args.modules,
        threads: args.select.threads.instances(&trace)?,
        from,
        until,
    };
    let found = events(&trace);
    let problems: Vec<String> = trace.damage.iter().cloned().chain(found.problems(&trace)).collect();
    problems.iter().for_each(|problem| super::warn(&format!("{}: {problem}", trace.source)));
    let damaged = trace.lost_blocks || !found.problems(&trace).is_empty();
    let exit = if damaged { Exit::Damaged } else { Exit::Ok };
    Ok((EventsOfTrace::of(&trace, &found, &filter, problems), exit))
}
