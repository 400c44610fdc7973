//! Which events are wanted.

use std::collections::HashSet;
use stk_profile::profile::NamePattern;
use stk_profile::trace::{EventKind, Timeline, TraceEvent};
use stk_schema::text::file_name;

/// A kind of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KindName {
    Capture,
    Mark,
    Exception,
    Load,
    Unload,
    ThreadStart,
    ThreadName,
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

/// Which events of a trace are wanted. Empty lists take all.
pub struct EventFilter<'a> {
    pub timeline: &'a Timeline,
    pub kinds: &'a [KindName],
    pub tags: &'a [u64],
    /// Names of modules that are loaded or unloaded.
    pub modules: &'a [NamePattern],
    /// Thread instances; `None` = all, and the process.
    pub threads: Option<HashSet<u64>>,
    /// Nanoseconds since the trace's start.
    pub from: Option<u64>,
    pub until: Option<u64>,
}

impl EventFilter<'_> {
    /// Whether an event at this time, in nanoseconds since the trace's start, is wanted.
    pub fn takes(&self, event: &TraceEvent, time_ns: u64) -> bool {
        let EventFilter { kinds, tags, modules, .. } = *self;
        (kinds.is_empty() || kinds.contains(&KindName::of(&event.kind)))
            && (tags.is_empty() || event.kind.tag().is_some_and(|tag| tags.contains(&tag)))
            && (modules.is_empty() || self.module(&event.kind).is_some_and(|name| is_match(modules, name)))
            && self.from.is_none_or(|from| from <= time_ns)
            && self.until.is_none_or(|until| time_ns < until)
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
