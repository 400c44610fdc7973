//! The events of a trace as a table: one line an event, below a heading of the trace.

use super::document::{EventFacts, EventJson, EventsOfTrace};
use crate::tag::tag_text;
use stk_base::text::{TimeZone, count, counted, moment, since_start, size};
use stk_schema::table::{Column, Table};
use stk_schema::text::printable;

/// Limit for the columns of a thread. Longer names only lose their alignment.
const WIDEST: usize = 32;

/// The table of one trace.
pub fn of(found: &EventsOfTrace, zone: TimeZone) -> String {
    let mut text = heading(found);
    let mut table = Table::new([
        Column::right("event").gap(0),
        Column::right("time").at_least(10),
        Column::left("by the clock"),
        Column::left("thread").at_most(WIDEST),
        Column::left("kind").at_least(12),
        Column::left("what"),
    ]);
    for event in &found.events {
        table.row([
            event.number.to_string(),
            since_start(event.time_ns),
            moment(found.start_utc_ns.saturating_add(event.time_ns), zone),
            thread(event),
            event.kind.to_owned(),
            what(event),
        ]);
    }
    if !found.events.is_empty() {
        text += &table.text();
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
pub(super) fn thread(event: &EventJson) -> String {
    match (event.tid, event.thread_name.as_deref()) {
        (None, _) => "-".to_owned(),
        (Some(tid), None | Some("")) => tid.to_string(),
        (Some(tid), Some(name)) => format!("{tid} \"{}\"", printable(name)),
    }
}

/// What is known of it beside time and thread; empty if that is all.
pub(super) fn what(event: &EventJson) -> String {
    match &event.facts {
        EventFacts::Nothing {} => String::new(),
        EventFacts::Capture { tag, .. } => format!("tag {}", tag_text(*tag)),
        EventFacts::Mark { tag, text, .. } => format!("tag {}: {}", tag_text(*tag), printable(text)),
        EventFacts::ThreadName { earlier_name, .. } => format!("before: \"{}\"", printable(earlier_name)),
        EventFacts::Exception { code, address } => format!("{code} at {address}"),
        EventFacts::Module { path, base, size: bytes, .. } => {
            format!("{} at {base}, {}", printable(path), size(*bytes))
        }
    }
}
