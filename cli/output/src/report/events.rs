//! What happened in a trace, for its list in the page and for the marks on its timeline: events,
//! times in which samples are missing, and rates.

use crate::tag::tag_text;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use stk_profile::profile::{EventInfo, Profile, ThreadOfEvent};

/// Events of one kind beyond which the page has no more of that kind.
const MOST_OF_A_KIND: usize = 5_000;

/// Events of the time that the page is of, in columns.
#[derive(Default, Serialize)]
pub(super) struct Events<'a> {
    /// Names of kinds, in the order in which they are met.
    kinds: Vec<&'static str>,
    /// How many events of each kind are left out, beyond [`MOST_OF_A_KIND`].
    left_out: Vec<u64>,
    /// By event: when it began.
    times: Vec<u64>,
    /// When it ended; the same as when it began, except for gaps.
    ends: Vec<u64>,
    /// Index in `kinds`.
    of: Vec<u32>,
    /// 0: the process; else one more than the thread.
    threads: Vec<u32>,
    texts: Vec<Cow<'a, str>>,
    /// How many events of each kind are here.
    #[serde(skip)]
    counts: Vec<usize>,
}

impl<'a> Events<'a> {
    /// The events of a profile within a span of time, by time.
    pub(super) fn of(profile: &'a Profile, window: &Range<u64>) -> Events<'a> {
        // The last thread of an instance has the name that it ended with.
        let threads: HashMap<u64, u32> =
            (1..).zip(&profile.threads).map(|(number, thread)| (thread.instance, number)).collect();
        let number = |thread: Option<ThreadOfEvent>| {
            thread.and_then(|thread| threads.get(&thread.instance)).copied().unwrap_or(0)
        };
        let mut all: Vec<(u64, u64, &'static str, u32, Cow<'a, str>)> = Vec::new();
        for event in &profile.events {
            all.push((event.time_ns, event.time_ns, event.kind, number(event.thread), text(event)));
        }
        for gap in &profile.gaps {
            let text = format!("{} ({})", gap.reason, gap.count);
            all.push((gap.start_ns, gap.end_ns, "gap", number(gap.thread), text.into()));
        }
        for &(time_ns, millihertz) in &profile.rates {
            let text = match millihertz {
                0 => "paused".into(),
                rate => format!("{} samples a second of each thread", f64::from(rate) / 1000.0).into(),
            };
            all.push((time_ns, time_ns, "rate", 0, text));
        }
        all.sort_by_key(|(start, ..)| *start);
        let mut events = Events::default();
        for (start, end, kind, thread, text) in all {
            if start <= window.end && end >= window.start {
                events.add(kind, (start, end), thread, text);
            }
        }
        events
    }

    fn add(&mut self, kind: &'static str, (start, end): (u64, u64), thread: u32, text: Cow<'a, str>) {
        let known = self.kinds.iter().position(|other| *other == kind);
        let at = known.unwrap_or_else(|| {
            self.kinds.push(kind);
            self.left_out.push(0);
            self.counts.push(0);
            self.kinds.len() - 1
        });
        if self.counts[at] >= MOST_OF_A_KIND {
            self.left_out[at] += 1;
            return;
        }
        self.counts[at] += 1;
        self.times.push(start);
        self.ends.push(end);
        self.of.push(at as u32);
        self.threads.push(thread);
        self.texts.push(text);
    }
}

/// What an event's row says beside its time and thread.
fn text(event: &EventInfo) -> Cow<'_, str> {
    let text = event.text.as_deref().unwrap_or_default();
    match (event.exception, event.tag) {
        (Some((code, address)), _) => format!("{code:#010x} at {address:#x}").into(),
        (None, Some(tag)) if text.is_empty() => format!("tag {}", tag_text(tag)).into(),
        (None, Some(0)) | (None, None) => text.into(),
        (None, Some(tag)) => format!("{text}, tag {}", tag_text(tag)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_profile::profile::{GapInfo, TraceInfo};
    use stk_schema::Arch;

    fn event(time_ns: u64, kind: &'static str) -> EventInfo {
        let (number, thread, tag, text, module) = (1, None, None, None, None);
        EventInfo { number, kind, time_ns, thread, tag, text, module, exception: None }
    }

    #[test]
    fn events_gaps_and_rates_of_the_window_are_sorted_by_time() {
        let mut profile = Profile::empty(TraceInfo::unknown(Arch::X64));
        profile.events = vec![
            EventInfo { tag: Some(31), text: Some("begin".into()), ..event(70, "mark") },
            EventInfo { exception: Some((0xC000_0005, 0x10)), ..event(60, "exception") },
            event(9, "load"),
        ];
        let reason = "paused";
        profile.gaps = vec![GapInfo { reason, thread: None, start_ns: 5, end_ns: 50, count: 1 }];
        profile.rates = vec![(50, 0), (500, 1000)];
        let events = Events::of(&profile, &(10..100));
        assert_eq!(events.times, [5, 50, 60, 70]);
        assert_eq!(events.ends, [50, 50, 60, 70]);
        assert_eq!(events.kinds, ["gap", "rate", "exception", "mark"]);
        let texts = ["paused (1)", "paused", "0xc0000005 at 0x10", "begin, tag 31 (0x1f)"];
        assert_eq!(events.texts, texts);
    }

    #[test]
    fn events_beyond_the_most_of_a_kind_are_counted_only() {
        let mut events = Events::default();
        for time in 0..MOST_OF_A_KIND as u64 + 7 {
            events.add("load", (time, time), 0, "a.dll".into());
        }
        events.add("mark", (9, 9), 1, "begin".into());
        assert_eq!((events.kinds, events.left_out), (vec!["load", "mark"], vec![7, 0]));
        assert_eq!(events.texts.len(), MOST_OF_A_KIND + 1);
        assert_eq!(events.threads.last(), Some(&1));
    }
}
