//! What happened in a trace, and when samples are missing, in the form in which outputs list it.

use super::Profile;
use crate::trace::{EventKind, Trace, TraceEvent, events_beside, gaps};

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
/// pool. Reads once more those blocks of samples whose events were not all kept when the profile
/// was built.
pub fn add_events(profile: &mut Profile, trace: &Trace<'_>) {
    let found = events_beside(trace, std::mem::take(&mut profile.seen_events));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageSearch, load_images};
    use crate::profile::{BuildOptions, build};
    use crate::trace::SeenEvents;
    use std::sync::atomic::AtomicU64;
    use stk_schema::Ticks;
    use stk_schema::event::{DropReason, Dropped, Event, Exception, Mark};
    use stk_tests::traces;

    const BASE: u64 = 0x10_0000;
    /// Marks of a block: too many to be kept until they are needed.
    const MANY: u64 = 20_000;

    /// A block with one event of each kind, one with a sample alone, and one of many marks.
    fn three_blocks() -> Vec<u8> {
        let mut builder = traces::trace();
        let thread = builder.thread(0, 11, "main", BASE);
        let mark = |time, tag| Event::Mark(Mark { time: Ticks(time), thread, tag, text: b"text" });
        traces::sample(&mut builder, thread, 1_000, BASE, &[]);
        traces::capture(&mut builder, (thread, BASE), 1_500, &[], 7);
        builder.push(&mark(1_600, 8));
        builder.push(&Event::Exception(Exception { thread, time: Ticks(1_700), code: 5, address: 6 }));
        let reason = DropReason::Late as u64;
        builder.push(&Event::Dropped(Dropped { time: Ticks(1_800), reason, thread: 0, count: 3 }));
        builder.cut();
        traces::sample(&mut builder, thread, 2_000, BASE, &[]);
        builder.cut();
        traces::sample(&mut builder, thread, 3_000, BASE, &[]);
        (0..MANY).for_each(|tag| builder.push(&mark(3_000 + tag, tag)));
        builder.finish()
    }

    #[test]
    fn events_seen_while_building_are_those_that_are_read() {
        let file = three_blocks();
        let trace = Trace::read(&file, "a.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let profile = |keep: bool| {
            let built = build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0));
            let mut profile = built.unwrap().0;
            if !keep {
                profile.seen_events = SeenEvents::default();
            }
            add_events(&mut profile, &trace);
            profile
        };
        let (seen, read) = (profile(true), profile(false));
        assert_eq!(seen.events, read.events);
        assert_eq!(seen.gaps, read.gaps);
        assert_eq!(seen.losses.damaged_blocks, read.losses.damaged_blocks);
        let of_blocks = |event: &&EventInfo| ["capture", "mark", "exception"].contains(&event.kind);
        let kinds: Vec<_> =
            seen.events.iter().filter(of_blocks).map(|event| (event.kind, event.tag)).collect();
        assert_eq!(kinds[..3], [("capture", Some(7)), ("mark", Some(8)), ("exception", None)]);
        assert_eq!(kinds.len() as u64, 3 + MANY);
        assert_eq!(seen.gaps.iter().map(|gap| gap.count).collect::<Vec<_>>(), [3]);
    }
}
