//! The events of a trace in time, those with a stack with it: what `stk events --stacks` prints.

use super::document::EventJson;
use super::filter::EventFilter;
use super::text;
use crate::dump::captures::ChosenCapture;
use std::collections::{BTreeSet, HashMap};
use stk_base::text::{TimeZone, moment, since_start};
use stk_profile::trace::{EventKind, Trace, TraceEvent};

/// The wanted events: lines on those without a stack of their own, and the captures.
pub struct Playback {
    /// By the numbers of their events.
    pub lines: Vec<(u64, String)>,
    pub captures: Vec<ChosenCapture>,
}

impl Playback {
    /// Of these events, which are all of a trace in their order or a part of them, those that the
    /// filter takes. An exception has the stack of the capture that its thread took at it.
    pub fn of(
        trace: &Trace<'_>,
        events: &[TraceEvent],
        filter: &EventFilter<'_>,
        zone: TimeZone,
    ) -> Playback {
        let mut play = Playback { lines: Vec::new(), captures: Vec::new() };
        // Backwards, so that the captures of an exception's moment are known.
        let mut moment = None;
        let mut by_tag: HashMap<u64, usize> = HashMap::new();
        let mut chosen = BTreeSet::new();
        for (at, event) in events.iter().enumerate().rev() {
            if moment.replace((event.time, event.thread)) != Some((event.time, event.thread)) {
                by_tag.clear();
            }
            let is_wanted = filter.takes(event, trace.clock.ns(event.time));
            match event.kind {
                EventKind::Capture { tag, .. } => {
                    by_tag.insert(tag, at);
                    chosen.extend(is_wanted.then_some(at));
                    continue;
                }
                EventKind::Exception { code, .. } if is_wanted => {
                    chosen.extend(by_tag.get(&u64::from(code)));
                }
                _ => {}
            }
            if is_wanted {
                play.lines.push((event.number, line(trace, event, zone)));
            }
        }
        play.lines.reverse();
        play.captures = chosen.into_iter().filter_map(|at| ChosenCapture::of(&events[at])).collect();
        play
    }
}

/// `2026-11-27T02:28:32.003Z thread 248 "worker", mark at 0.003 s, event 10, tag 0 (0x0): text`.
fn line(trace: &Trace<'_>, event: &TraceEvent, zone: TimeZone) -> String {
    let ns = trace.clock.ns(event.time);
    let clock = moment(trace.header().utc_start.saturating_add(ns), zone);
    let event = EventJson::of(trace, event);
    let thread = match event.tid {
        Some(_) => format!("thread {}, ", text::thread(&event)),
        None => String::new(),
    };
    let what = text::what(&event);
    let before = if what.is_empty() { "" } else { ": " };
    let (kind, since, number) = (event.kind, since_start(ns), event.number);
    let line = format!("{clock} {thread}{kind} at {since}, event {number}{before}{what}");
    line.trim_end().to_owned() + "\n"
}
