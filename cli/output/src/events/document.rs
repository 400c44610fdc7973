//! The JSON document of `stk events`. The table is made from it too.

use super::filter::EventFilter;
use serde::Serialize;
use stk_base::text::utc;
use stk_profile::trace::{EventKind, Thread, Trace, TraceEvent, TraceEvents};
use stk_schema::event::{ModuleFlags, ThreadFlags};
use stk_schema::text::file_name;

/// Version of the JSON that `schema/events.schema.json` describes. It is raised when the meaning of
/// a field changes or a field is removed. New fields may be added at any time.
pub const VERSION: u32 = 1;

/// A trace in the JSON output.
#[derive(Serialize)]
pub struct EventsOfTrace {
    pub file: String,
    pub process: String,
    pub pid: u32,
    pub start_utc: String,
    /// The same in nanoseconds since the epoch, for the text.
    #[serde(skip)]
    pub start_utc_ns: u64,
    pub duration_ns: u64,
    /// All events, chosen or not.
    pub total: u64,
    /// Modules and threads that were there when the recording began.
    pub modules_at_start: u64,
    pub threads_at_start: u64,
    pub damage: Vec<String>,
    pub events: Vec<EventJson>,
}

/// An event in the JSON output. Fields that do not belong to its kind are left out.
#[derive(Serialize)]
pub struct EventJson {
    pub number: u64,
    pub time_ns: u64,
    pub time_utc: String,
    pub kind: &'static str,
    /// Null: it is no thread's own, or nothing is known of the thread.
    pub tid: Option<u32>,
    pub thread_name: Option<String>,
    #[serde(flatten)]
    pub facts: EventFacts,
}

/// What is known of an event beside time and thread.
#[derive(Serialize)]
#[serde(untagged)]
pub enum EventFacts {
    Nothing {},
    Capture { tag: u64, tag_hex: String },
    Mark { tag: u64, tag_hex: String, text: String },
    Exception { code: String, address: String },
    ThreadName { earlier_name: String, name: String },
    Module { module: String, path: String, base: String, size: u64 },
}

impl EventsOfTrace {
    /// The events that the filter takes.
    pub fn of(
        trace: &Trace<'_>,
        found: &TraceEvents,
        filter: &EventFilter<'_>,
        damage: Vec<String>,
    ) -> EventsOfTrace {
        let timeline = &trace.timeline;
        let modules = timeline.modules.iter().filter(|module| module.flags.contains(ModuleFlags::AT_START));
        let threads = timeline.threads.iter().filter(|thread| {
            thread.flags.contains(ThreadFlags::AT_START) && !thread.flags.contains(ThreadFlags::RECORDER)
        });
        let wanted = found.list.iter().filter(|event| filter.takes(event, trace.clock.ns(event.time)));
        EventsOfTrace {
            file: trace.source.clone(),
            process: trace.process(),
            pid: trace.header().pid,
            start_utc: utc(trace.header().utc_start),
            start_utc_ns: trace.header().utc_start,
            duration_ns: trace.clock.ns(trace.last()),
            total: found.list.len() as u64,
            modules_at_start: modules.count() as u64,
            threads_at_start: threads.count() as u64,
            damage,
            events: wanted.map(|event| EventJson::of(trace, event)).collect(),
        }
    }
}

impl EventJson {
    /// An event of a trace.
    pub(super) fn of(trace: &Trace<'_>, event: &TraceEvent) -> EventJson {
        let timeline = &trace.timeline;
        let time_ns = trace.clock.ns(event.time);
        let thread: Option<&Thread> = event.thread.and_then(|thread| timeline.thread(thread));
        EventJson {
            number: event.number,
            time_ns,
            time_utc: utc(trace.header().utc_start.saturating_add(time_ns)),
            kind: event.kind.as_str(),
            tid: thread.map(|thread| thread.tid),
            thread_name: thread.map(|thread| thread.name_at(event.time).to_owned()),
            facts: EventFacts::of(trace, thread, &event.kind),
        }
    }
}

impl EventFacts {
    fn of(trace: &Trace<'_>, thread: Option<&Thread>, kind: &EventKind) -> EventFacts {
        let hex = |value: u64| format!("{value:#x}");
        match kind {
            EventKind::Capture { tag, .. } => EventFacts::Capture { tag: *tag, tag_hex: hex(*tag) },
            EventKind::Mark { tag, text } => {
                EventFacts::Mark { tag: *tag, tag_hex: hex(*tag), text: text.clone() }
            }
            EventKind::Exception { code, address } => {
                EventFacts::Exception { code: format!("{code:#010x}"), address: hex(*address) }
            }
            EventKind::Load { module } | EventKind::Unload { module } => {
                let timeline = &trace.timeline;
                let module = &timeline.modules[*module as usize];
                let path = &timeline.images[module.image.0 as usize].image.path;
                EventFacts::Module {
                    module: file_name(path).to_owned(),
                    path: path.clone(),
                    base: hex(module.base),
                    size: module.size,
                }
            }
            EventKind::ThreadName { number } => {
                let names = thread.map_or([""; 2], |thread| thread.renaming(*number as usize));
                let [earlier_name, name] = names.map(str::to_owned);
                EventFacts::ThreadName { earlier_name, name }
            }
            EventKind::ThreadStart | EventKind::ThreadExit => EventFacts::Nothing {},
        }
    }
}
