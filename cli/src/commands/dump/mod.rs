//! `stk dump`: stacks at a moment, as text.
//!
//! ```text
//! stack      a thread's stack, walked, named and folded          Stack, Walked
//! text       the styles for people: `k` and `plain`
//! clrstack   the style of the .NET debugger extension: managed frames, explicit Frames
//! json       the style for programs
//! live       a process that runs now: one sample by inject
//! ```

mod clrstack;
mod json;
mod live;
mod stack;
#[cfg(test)]
mod tests;
mod text;

use super::{Exit, Out, TablesArgs, Usage, guarded, pipeline, select::parse_time, span};
use crate::runtimes;
use crate::runtimes::dotnet::explicit::ExplicitFrames;
use crate::stack::{NameSources, StackWalker};
use crate::symbols::Symbolizer;
use crate::trace::{beyond_memory, snapshots};
use clap::ValueEnum;
use stack::DumpStack;
use std::path::{Path, PathBuf};
use stk_unwind::WalkOptions;

/// Prints the stacks of all threads, or of some, as they were at a moment.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk dump app.stk
  stk dump app.stk --at 1.5s --thread worker --style plain
  stk dump app.stk --thread 4404 --explain
  stk dump app.stk --style clrstack --frames managed
  stk dump --pid 4404                           the process as it is now (on Windows)
  stk dump once.stk --style json | jq '.threads[].frames[0].function'")]
pub(super) struct DumpArgs {
    /// Trace
    #[arg(value_name = "FILE", required_unless_present = "pid", conflicts_with = "pid")]
    file: Option<PathBuf>,
    /// A process that runs now: inject.exe, which lies beside stk.exe, takes one sample of each of
    /// its threads (Windows only)
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// The moment, since the trace's start; by default the last
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "pid")]
    at: Option<u64>,
    /// Only threads with this id, or with this text in their name; may be repeated
    #[arg(long = "thread", value_name = "TID|NAME")]
    threads: Vec<String>,
    /// How to print them
    #[arg(long, value_enum, default_value_t)]
    style: Style,
    /// Name, for each frame, the unwind record and the rule by which its caller was found
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    symbols: pipeline::SymbolArgs,
    /// Where unwind data is missing, search the stack for return addresses. Such frames are guesses
    /// and marked as such
    #[arg(long)]
    scan: bool,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    fold: pipeline::FoldArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum Style {
    /// Like the debuggers' `k`: Child-SP, RetAddr, Call Site
    #[default]
    K,
    /// One line a frame: "module"! file(line): function
    Plain,
    /// Like SOS's `clrstack -f`: Child SP, IP, Call Site, with .NET's explicit Frames in brackets;
    /// with `--frames managed` like its `clrstack`
    Clrstack,
    /// Everything that is known of each frame
    Json,
}

pub(super) fn run(args: &DumpArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    match (&args.file, args.pid) {
        (Some(file), _) => guarded(file, || dump(args, file, out)),
        (None, Some(pid)) => live::with_sample(pid, |file| guarded(file, || dump(args, file, out))),
        (None, None) => Err(Usage("name a trace, or a process with --pid".into()).into()),
    }
}

fn dump(args: &DumpArgs, path: &Path, out: Out<'_>) -> anyhow::Result<Exit> {
    let file = args.tables.open(path)?;
    let mut trace = file.read()?;
    args.tables.give(&mut trace);
    let select = super::SelectArgs { from: None, until: None, threads: args.threads.clone() };
    let chosen = select.threads(&trace)?;
    let time = args.at.map_or(trace.last(), |at| trace.clock.ticks(at));
    let store = args.symbols.store(path);
    let images = pipeline::load_images(&trace, &store);
    let (taken, mut left_out) =
        snapshots(&trace, time, &|thread| chosen.as_ref().is_none_or(|chosen| chosen.contains(&thread)));
    let mut options = WalkOptions::default();
    options.scan = args.scan;
    let methods = runtimes::methods(&trace);
    let explicit = ExplicitFrames::of(&trace.timeline, trace.header().arch);
    let mut walker = StackWalker::new(&trace, &images, &explicit, options);
    let inputs = stack::DumpInputs { trace: &trace, images: &images, explicit: &explicit, methods: &methods };
    let mut stacks: Vec<DumpStack> = Vec::new();
    for snapshot in &taken {
        let stack = stack::walk(&inputs, &mut walker, snapshot, time, args.explain);
        if trace.budget.take(stack.memory()) {
            stacks.push(stack);
        } else {
            left_out += 1;
        }
    }
    // All are of one moment, so sort by the thread id that users know.
    stacks.sort_by_key(|stack| (stack.tid, stack.instance));
    let symbolizer = Symbolizer::new(store, args.symbols.demangle);
    let sources = NameSources { trace: &trace, images: &images, methods: &methods, symbolizer: &symbolizer };
    let unnamed = stack::name(&sources, &mut stacks);
    super::tell_redirects(symbolizer.store());
    stacks.iter_mut().for_each(|stack| stack::fold(stack, args.fold.options()));
    for problem in &methods.problems {
        super::warn(&format!("{}: {problem}", trace.source));
    }
    let text = match args.style {
        Style::K => stacks.iter().map(|stack| text::k(&trace, stack)).collect::<Vec<_>>().join("\n"),
        Style::Plain => stacks.iter().map(|stack| text::plain(&trace, stack)).collect::<Vec<_>>().join("\n"),
        Style::Clrstack => {
            let frames = args.fold.frames;
            stacks.iter().map(|stack| clrstack::text(&trace, stack, frames)).collect::<Vec<_>>().join("\n")
        }
        Style::Json => json::document(&trace, time, &stacks)?,
    };
    out(&text)?;
    trace.damage.iter().for_each(|damage| super::warn(&format!("{}: {damage}", trace.source)));
    for (count, what) in [(left_out, "stacks"), (unnamed, "names")] {
        if count > 0 {
            super::warn(&format!("{}: {}", trace.source, beyond_memory(count, what, &trace.budget)));
        }
    }
    if stacks.is_empty() {
        super::warn(&format!("{}: no thread was sampled by {}", trace.source, span(trace.clock.ns(time))));
    }
    Ok(if trace.lost_blocks || left_out > 0 || unnamed > 0 { Exit::Damaged } else { Exit::Ok })
}
