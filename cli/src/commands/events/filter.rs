//! Which events are wanted.

use super::super::select::TimeRange;
use super::EventsArgs;
use clap::ValueEnum;
use std::collections::HashSet;
use stk_profile::profile::NamePattern;
use stk_profile::trace::{EventKind, Timeline, Trace, TraceEvent};
use stk_schema::text::file_name;

/// A kind of events on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum KindName {
    /// A thread called stk_capture
    Capture,
    /// A marked time
    Mark,
    /// An exception was seen
    Exception,
    /// A module was loaded
    Load,
    /// A module was unloaded
    Unload,
    /// A thread began
    ThreadStart,
    /// A thread got another name
    ThreadName,
    /// A thread ended
    ThreadExit,
}

impl KindName {
    fn of(kind: &EventKind) -> KindName {
        match kind {
            EventKind::Capture { .. } => KindName::Capture,
            EventKind::Mark { .. } => KindName::Mark,
            EventKind::Exception { .. } => KindName::Exception,
            EventKind::Load { .. } => KindName::Load,
            EventKind::Unload { .. } => KindName::Unload,
            EventKind::ThreadStart => KindName::ThreadStart,
            EventKind::ThreadName { .. } => KindName::ThreadName,
            EventKind::ThreadExit => KindName::ThreadExit,
        }
    }
}

/// What the arguments choose of a trace.
pub(super) struct EventFilter<'a> {
    args: &'a EventsArgs,
    timeline: &'a Timeline,
    /// Thread instances; `None` = all, and the process.
    threads: Option<HashSet<u64>>,
    range: TimeRange,
}

impl<'a> EventFilter<'a> {
    /// The filter for a trace.
    ///
    /// # Errors
    ///
    /// A chosen thread is not in the trace.
    pub(super) fn new(args: &'a EventsArgs, trace: &'a Trace<'_>) -> anyhow::Result<EventFilter<'a>> {
        let (threads, range) = (args.select.threads.instances(trace)?, args.select.range(trace));
        Ok(EventFilter { args, timeline: &trace.timeline, threads, range })
    }

    /// Whether an event at this time, in nanoseconds since the trace's start, is wanted.
    pub(super) fn takes(&self, event: &TraceEvent, time_ns: u64) -> bool {
        let EventsArgs { kinds, tags, modules, .. } = self.args;
        (kinds.is_empty() || kinds.contains(&KindName::of(&event.kind)))
            && (tags.is_empty() || event.kind.tag().is_some_and(|tag| tags.contains(&tag)))
            && (modules.is_empty() || self.module(&event.kind).is_some_and(|name| is_match(modules, name)))
            && self.range.from.is_none_or(|from| from <= time_ns)
            && self.range.until.is_none_or(|until| time_ns < until)
            && self
                .threads
                .as_ref()
                .is_none_or(|threads| event.thread.is_some_and(|thread| threads.contains(&thread)))
    }
    /// File name of the module that an event is about.
    fn module(&self, kind: &EventKind) -> Option<&str> {
        let (EventKind::Load { module } | EventKind::Unload { module }) = kind else { return None };
        let image = self.timeline.modules[*module as usize].image;
        Some(file_name(&self.timeline.images[image.0 as usize].image.path))
    }
}

fn is_match(patterns: &[NamePattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.is_match(name))
}
