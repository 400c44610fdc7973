//! The events of a trace as a table: one line an event, below a heading of the trace.

use super::document::{EventFacts, EventJson, EventsOfTrace};
use crate::commands::tag::tag_text;
use crate::commands::{count, size};
use stk_base::text::{TimeZone, counted, moment, pad, since_start, width};
use std::fmt::Write;
use stk_schema::text::printable;

/// Limit for the columns of a thread. Longer names only lose their alignment.
const WIDEST: usize = 32;

/// The table of one trace.
pub(super) fn of(found: &EventsOfTrace, zone: TimeZone) -> String {
    let mut text = heading(found);
    let threads: Vec<String> = found.events.iter().map(thread).collect();
    let columns = threads.iter().map(|thread| width(thread)).max().unwrap_or(0).clamp(6, WIDEST);
    let clock = moment(0, zone).len();
    let digits = found.events.last().map_or(0, |event| event.number.to_string().len()).max(5);
    if !found.events.is_empty() {
        let _ = writeln!(
            text,
            "{:>digits$}  {:>10}  {:clock$}  {:columns$}  {:12}  what",
            "event", "time", "by the clock", "thread", "kind"
        );
    }
    for (event, thread) in found.events.iter().zip(threads) {
        let (number, time, kind) = (event.number, since_start(event.time_ns), event.kind);
        let at = moment(found.start_utc_ns.saturating_add(event.time_ns), zone);
        let thread = pad(&thread, columns);
        let line =
            format!("{number:>digits$}  {time:>10}  {at:clock$}  {thread}  {kind:12}  {}", what(event));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// `app.stk: app.exe (pid 4404): 7 of 12 events; at the start there were 38 modules and 3 threads`.
fn heading(found: &EventsOfTrace) -> String {
    let shown = found.events.len() as u64;
    let chosen = if shown == found.total { String::new() } else { format!("{} of ", count(shown)) };
    format!(
        "{}: {} (pid {}): {chosen}{}; at the start there were {} and {}\n",
        printable(&found.file),
        printable(&found.process),
        found.pid,
        counted(found.total, "event"),
        counted(found.modules_at_start, "module"),
        counted(found.threads_at_start, "thread")
    )
}

/// `248 "worker"`; `-` for an event that is no thread's own.
fn thread(event: &EventJson) -> String {
    match (event.tid, event.thread_name.as_deref()) {
        (None, _) => "-".to_owned(),
        (Some(tid), None | Some("")) => tid.to_string(),
        (Some(tid), Some(name)) => format!("{tid} \"{}\"", printable(name)),
    }
}

fn what(event: &EventJson) -> String {
    match &event.facts {
        EventFacts::Nothing {} => String::new(),
        EventFacts::Capture { tag, .. } => format!("tag {}", tag_text(*tag)),
        EventFacts::Mark { tag, text, .. } => format!("tag {}: {}", tag_text(*tag), printable(text)),
        EventFacts::Exception { code, address } => format!("{code} at {address}"),
        EventFacts::Module { path, base, size: bytes, .. } => {
            format!("{} at {base}, {}", printable(path), size(*bytes))
        }
    }
}
