//! `stk events`: what happened in traces, event by event in time.
//!
//! ```text
//! filter     which events are wanted             TraceEvent -> bool
//! document   the events in the form of JSON      TraceEvents -> EventsOfTrace
//! text       the events as a table               EventsOfTrace -> text
//! ```

mod document;
mod filter;
mod text;

use super::profile_args::parse_memory;
use super::tag::parse_tag;
use super::traces::Traces;
use super::{Exit, NothingChosen, Out, SelectArgs, each_trace, inputs, pool};
use document::{EventsOfTrace, VERSION};
use filter::{EventFilter, KindName};
use std::path::{Path, PathBuf};
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
    #[arg(long = "kind", value_enum, value_name = "KIND", value_delimiter = ',')]
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
///
/// # Errors
///
/// A usage error, or that standard output cannot be written. A trace that cannot be read is
/// reported and skipped.
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
    let filter = EventFilter::new(args, &trace)?;
    if let Some(why) = args.select.why_outside(&trace) {
        return Err(NothingChosen(format!("{}: no events are left: {why}", trace.source)).into());
    }
    let found = events(&trace);
    let problems: Vec<String> = trace.damage.iter().cloned().chain(found.problems(&trace)).collect();
    problems.iter().for_each(|problem| super::warn(&format!("{}: {problem}", trace.source)));
    let damaged = trace.lost_blocks || !found.problems(&trace).is_empty();
    let exit = if damaged { Exit::Damaged } else { Exit::Ok };
    Ok((EventsOfTrace::of(&trace, &found, &filter, problems), exit))
}
