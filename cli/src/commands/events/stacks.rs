//! `stk events --stacks`: the events with their stacks, of a whole trace or of one that grows.

use super::super::dump::DumpLosses;
use super::super::profile_args::warn_of_missing_tables;
use super::super::{Exit, Out, note_once, note_redirects, pool, top, warn};
use super::{EventsArgs, filter, read};
use anyhow::Context as _;
use std::path::Path;
use std::time::Duration;
use stk_output::dump::captures;
use stk_output::dump::print::{DumpOptions, DumpStyle, PrintedItem, StackPrinter};
use stk_output::dump::sources::TraceSources;
use stk_output::events::playback::Playback;
use stk_profile::profile::Selection;
use stk_profile::trace::{Fate, Trace, TraceEvent, TraceFile, TraceTail, events};

/// Prints the events of a trace. What a memory limit leaves out counts as damage.
pub(super) fn of_file(
    path: &Path,
    args: &EventsArgs,
    style: DumpStyle,
    out: Out<'_>,
) -> anyhow::Result<Exit> {
    let file = args.tables.open(path)?;
    let mut trace = read(&file, args)?;
    args.tables.give(&mut trace);
    let found = events(&trace);
    let mut losses = DumpLosses::default();
    losses.events(&trace, &found);
    losses = play(path, &trace, &found.list, args, (style, losses), &mut PrintedItem::default(), out)?;
    Ok(losses.report(&trace))
}

/// Prints events with the stacks of the captures among them. `losses`: what is missing already;
/// with what is missing of the stacks it is returned. `last`: what was printed before.
fn play(
    path: &Path,
    trace: &Trace<'_>,
    events: &[TraceEvent],
    args: &EventsArgs,
    (style, mut losses): (DumpStyle, DumpLosses),
    last: &mut PrintedItem,
    out: Out<'_>,
) -> anyhow::Result<DumpLosses> {
    let playback = Playback::of(trace, events, &filter(trace, args)?, args.select.tz.tz);
    warn_of_missing_tables(trace);
    let sources = TraceSources::of(trace, args.symbols.store(path), args.symbols.demangle);
    let options = DumpOptions {
        style,
        explain: false,
        fold: args.fold.options(),
        zone: args.select.tz.tz,
        modules: false,
    };
    let printer = StackPrinter::new(options, Selection::default(), sources.names(), out);
    let mut printer = printer.among(playback.lines);
    printer.last = *last;
    printer.begin(captures::last(&playback.captures))?;
    let mut walker = sources.walker(false);
    let inputs = sources.inputs(false);
    (losses.stacks, losses.not_walked) =
        captures::print(&inputs, &mut walker, &playback.captures, &mut printer)?;
    printer.end()?;
    (losses.names, *last) = (printer.unnamed, printer.last);
    note_redirects(sources.symbolizer.store());
    for problem in &sources.methods.problems {
        note_once(&format!("warning: {}: {problem}", trace.source));
    }
    Ok(losses)
}

/// Time between two looks at the file.
const EVERY: Duration = Duration::from_secs(1);
/// How far behind the newest block events are printed, in nanoseconds: what the recorder's threads
/// write of one moment is in several blocks, which come at most two seconds apart.
const BEHIND: u64 = 3_000_000_000;

/// Prints the events of a trace that grows, as they come, to the recording's end.
pub(super) fn follow(path: &Path, args: &EventsArgs, style: DumpStyle, out: Out<'_>) -> anyhow::Result<Exit> {
    let pool = pool(args.workers.jobs)?;
    let named = || path.display().to_string();
    let mut follower = TraceTail::open(path, BEHIND).with_context(named)?;
    let mut printed = Printed::default();
    let mut exit = Exit::Ok;
    loop {
        follower.look().with_context(named)?;
        let ended = follower.fate() != Fate::Grows;
        let until = if ended { u64::MAX } else { follower.duration_ns().saturating_sub(BEHIND) };
        if until > printed.until {
            follower.keep_from(printed.until);
            let bytes = follower.excerpt();
            if !bytes.is_empty() {
                let file = TraceFile::of_bytes(path, bytes).within(args.tables.max_memory);
                let mut text = String::new();
                let ending =
                    pool.install(|| printed.further(path, &file, args, (style, until), &mut text))?;
                exit = exit.worse(ending);
                out(&text)?;
            }
            follower.keep_from(printed.until);
        }
        if ended {
            let (fate, losses) = (follower.fate(), follower.losses());
            if fate == Fate::Ended && losses.is_none() {
                return Ok(exit);
            }
            let lost = top::lost(losses).into_iter();
            let ending = (fate != Fate::Ended).then(|| top::ending(fate).to_owned());
            lost.chain(ending).for_each(|text| warn(&format!("{}: {text}", named())));
            return Ok(exit.worse(Exit::Damaged));
        }
        std::thread::sleep(EVERY);
    }
}

/// What was printed of a trace that grows.
#[derive(Default)]
struct Printed {
    /// Nanoseconds since the trace's start, exclusive.
    until: u64,
    /// Events before that time, whether they were wanted or not.
    events: u64,
    last: PrintedItem,
}

impl Printed {
    /// Adds what is between the time up to which all is printed and `until`.
    fn further(
        &mut self,
        path: &Path,
        file: &TraceFile,
        args: &EventsArgs,
        (style, until): (DumpStyle, u64),
        text: &mut String,
    ) -> anyhow::Result<Exit> {
        let mut trace = file.read()?;
        args.select.process.demand(&trace)?;
        args.tables.give(&mut trace);
        let mut found = events(&trace).list;
        found.retain(|event| {
            let ns = trace.clock.ns(event.time);
            self.until <= ns && (ns < until || until == u64::MAX)
        });
        for event in &mut found {
            self.events += 1;
            event.number = self.events;
        }
        self.until = until;
        if found.is_empty() {
            return Ok(Exit::Ok);
        }
        // The follower counts what is damaged of the file: in an excerpt blocks are missing.
        let mut out = |more: &str| {
            text.push_str(more);
            Ok(())
        };
        let losses = DumpLosses::default();
        let losses = play(path, &trace, &found, args, (style, losses), &mut self.last, &mut out)?;
        Ok(losses.report_limits(&trace))
    }
}
