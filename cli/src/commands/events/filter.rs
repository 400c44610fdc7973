//! Which events are wanted.

use super::super::select::TimeRange;
use super::EventsArgs;
use crate::trace::{EventKind, Trace, TraceEvent};
use clap::ValueEnum;
use std::collections::HashSet;

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
            EventKind::ThreadExit => KindName::ThreadExit,
        }
    }
}

/// What the arguments choose of a trace.
pub(super) struct EventFilter<'a> {
    args: &'a EventsArgs,
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
    pub(super) fn new(args: &'a EventsArgs, trace: &Trace<'_>) -> anyhow::Result<EventFilter<'a>> {
        Ok(EventFilter { args, threads: args.select.threads.of(trace)?, range: args.select.range(trace) })
    }

    /// Whether an event at this time, in nanoseconds since the trace's start, is wanted.
    pub(super) fn takes(&self, event: &TraceEvent, time_ns: u64) -> bool {
        let EventsArgs { kinds, tags, .. } = self.args;
        (kinds.is_empty() || kinds.contains(&KindName::of(&event.kind)))
            && (tags.is_empty() || event.kind.tag().is_some_and(|tag| tags.contains(&tag)))
            && self.range.from.is_none_or(|from| from <= time_ns)
            && self.range.until.is_none_or(|until| time_ns < until)
            && self
                .threads
                .as_ref()
                .is_none_or(|threads| event.thread.is_some_and(|thread| threads.contains(&thread)))
    }
}
