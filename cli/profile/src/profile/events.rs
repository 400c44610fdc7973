//! What happened in a trace, and when samples are missing, in the form in which outputs list it.

use super::Profile;
use crate::trace::{EventKind, Trace, TraceEvent, events, gaps};

/// Something that happened at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventInfo {
    /// Number among all events of the trace, from 1.
    pub number: u64,
    /// Stable name of what it is: `capture`, `mark` …
    pub kind: &'static str,
    /// Nanoseconds since trace start.
    pub time_ns: u64,
    /// The thread; `None` = the process.
    pub thread: Option<ThreadOfEvent>,
    /// Tag of a capture or mark.
    pub tag: Option<u64>,
    /// Text of a mark, the module's path, or the thread's new name.
    pub text: Option<String>,
    /// Instance id of the module.
    pub module: Option<u64>,
    /// Code and address of an exception.
    pub exception: Option<(u32, u64)>,
}

/// A time in which samples are missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GapInfo {
    /// Why.
    pub reason: &'static str,
    /// The thread; `None` = any.
    pub thread: Option<ThreadOfEvent>,
    /// Nanoseconds since trace start.
    pub start_ns: u64,
    /// Nanoseconds since trace start.
    pub end_ns: u64,
    /// How much is missing.
    pub count: u64,
}

/// A thread, by the ids of the trace and of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadOfEvent {
    /// Instance id of the trace.
    pub instance: u64,
    /// System thread id; `None` if only the event mentions the thread.
    pub tid: Option<u32>,
}

/// Fills [`Profile::events`], [`Profile::gaps`] and [`Profile::rates`]. Runs in the caller's rayon
/// pool. Reads all blocks of samples once more, but walks no stack.
pub fn add_events(profile: &mut Profile, trace: &Trace<'_>) {
    let found = events(trace);
    let missing = gaps(trace, &found);
    let thread = |instance: u64| {
        let known = trace.timeline.thread(instance).map(|thread| thread.tid);
        ThreadOfEvent { instance, tid: known }
    };
    profile.events = found.list.iter().map(|event| info(trace, event, event.thread.map(thread))).collect();
    profile.gaps = missing
        .into_iter()
        .map(|gap| GapInfo {
            reason: gap.reason,
            thread: gap.thread.map(thread),
            start_ns: gap.start_ns,
            end_ns: gap.end_ns,
            count: gap.count,
        })
        .collect();
    profile.rates = trace.timeline.rates.iter().map(|&(time, rate)| (trace.clock.ns(time), rate)).collect();
    profile.rates.sort_by_key(|(time_ns, _)| *time_ns);
    let known: Vec<String> = profile.losses.damaged_blocks.clone();
    let problems = found.problems(trace).into_iter().filter(|problem| !known.contains(problem));
    profile.losses.damaged_blocks.extend(problems);
}

fn info(trace: &Trace<'_>, event: &TraceEvent, thread: Option<ThreadOfEvent>) -> EventInfo {
    let module = match event.kind {
        EventKind::Load { module } | EventKind::Unload { module } => {
            trace.timeline.modules.get(module as usize)
        }
        _ => None,
    };
    let text = match &event.kind {
        EventKind::Mark { text, .. } => Some(text.clone()),
        EventKind::ThreadName { number } => {
            let thread = event.thread.and_then(|thread| trace.timeline.thread(thread));
            thread.map(|thread| thread.renaming(*number as usize)[1].to_owned())
        }
        _ => module.map(|module| trace.timeline.images[module.image.0 as usize].image.path.clone()),
    };
    let exception = match event.kind {
        EventKind::Exception { code, address } => Some((code, address)),
        _ => None,
    };
    EventInfo {
        number: event.number,
        kind: event.kind.as_str(),
        time_ns: trace.clock.ns(event.time),
        thread,
        tag: event.kind.tag(),
        text,
        module: module.map(|module| module.instance),
        exception,
    }
}
