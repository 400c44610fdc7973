//! The stacks of captures (`stk_capture`), which are chosen by their numbers among the events of
//! the trace or by their tags.

use super::print::StackPrinter;
use super::stack::{self, CaptureLabel, DumpInputs, DumpStack};
use crate::tag::tag_text;
use std::collections::{BTreeSet, HashSet};
use std::io;
use stk_format::BlockRef;
use stk_profile::stack::{StackWalker, cost};
use stk_profile::trace::{Budget, EventKind, SamplePlace, Trace, TraceEvent, TraceEvents, samples_at};
use stk_schema::Ticks;

/// A capture to print.
pub struct ChosenCapture {
    label: CaptureLabel,
    thread: Option<u64>,
    place: SamplePlace,
}

impl ChosenCapture {
    /// The capture that an event is.
    pub fn of(event: &TraceEvent) -> Option<ChosenCapture> {
        let EventKind::Capture { tag, place } = event.kind else { return None };
        let label = CaptureLabel { number: event.number, tag, time: event.time };
        Some(ChosenCapture { label, thread: event.thread, place })
    }

    /// Its number among the events of the trace.
    pub fn number(&self) -> u64 {
        self.label.number
    }
}

/// Which captures are wanted.
pub struct CaptureChoice<'a> {
    /// Numbers of events.
    pub events: &'a [u64],
    pub tags: &'a [u64],
    /// Thread instances; `None` = all.
    pub threads: Option<&'a HashSet<u64>>,
    /// Nanoseconds since the trace's start.
    pub from: Option<i128>,
    pub until: Option<i128>,
}

/// Why captures cannot be chosen, and where to find those that can.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("{0}: there is no event {1} among its {2}: `stk events {0}` lists them")]
    NoEvent(String, u64, usize),
    #[error(
        "{0}: event {1} is no capture but a {2}, which has no stack: \
         `stk events {0} --kind capture` lists those that have one"
    )]
    NoCapture(String, u64, &'static str),
    #[error("{0}: no capture has the tag {1}: {2}")]
    NoTag(String, String, String),
    #[error(
        "{0}: none of these captures is one that --thread, --from and --until choose: \
         `stk events {0} --kind capture` lists them with their threads"
    )]
    NoneLeft(String),
}

/// The captures that are wanted, by time.
///
/// # Errors
///
/// A number or a tag that is that of no capture.
pub fn choose(
    trace: &Trace<'_>,
    events: &TraceEvents,
    wanted: &CaptureChoice<'_>,
) -> Result<Vec<ChosenCapture>, CaptureError> {
    let source = || trace.source.clone();
    let mut numbers = HashSet::new();
    for &number in wanted.events {
        let event = number.checked_sub(1).and_then(|at| events.list.get(usize::try_from(at).ok()?));
        let event = event.ok_or_else(|| CaptureError::NoEvent(source(), number, events.list.len()))?;
        let capture = capture_of(&events.list, event);
        let no_capture = || CaptureError::NoCapture(source(), number, event.kind.as_str());
        numbers.insert(capture.ok_or_else(no_capture)?);
    }
    let captures: Vec<ChosenCapture> = events.list.iter().filter_map(ChosenCapture::of).collect();
    let tags: BTreeSet<u64> = captures.iter().map(|capture| capture.label.tag).collect();
    if let Some(&tag) = wanted.tags.iter().find(|tag| !tags.contains(tag)) {
        return Err(CaptureError::NoTag(source(), tag_text(tag), known_tags(&tags)));
    }
    let ns = |capture: &ChosenCapture| i128::from(trace.clock.ns(capture.label.time));
    let fits = |capture: &ChosenCapture| {
        let CaptureChoice { tags, threads, from, until, .. } = *wanted;
        (numbers.contains(&capture.label.number) || tags.contains(&capture.label.tag))
            && threads.is_none_or(|threads| capture.thread.is_some_and(|thread| threads.contains(&thread)))
            && from.is_none_or(|from| from <= ns(capture))
            && until.is_none_or(|until| ns(capture) < until)
    };
    let chosen: Vec<ChosenCapture> = captures.into_iter().filter(fits).collect();
    if chosen.is_empty() { Err(CaptureError::NoneLeft(source())) } else { Ok(chosen) }
}

/// The number of the capture that an event is, or of the one that its thread took at an exception.
fn capture_of(events: &[TraceEvent], event: &TraceEvent) -> Option<u64> {
    let EventKind::Exception { code, .. } = event.kind else {
        return ChosenCapture::of(event).map(|capture| capture.label.number);
    };
    let after = events.iter().skip(usize::try_from(event.number).ok()?);
    let mut same = after.take_while(|other| (other.time, other.thread) == (event.time, event.thread));
    same.find(|other| matches!(other.kind, EventKind::Capture { tag, .. } if tag == u64::from(code)))
        .map(|capture| capture.number)
}

/// When the last capture was taken.
pub fn last(captures: &[ChosenCapture]) -> Ticks {
    captures.last().map_or(Ticks::ZERO, |capture| capture.label.time)
}

/// Tags that an error lists.
const LISTED: usize = 20;

/// Which tags there are.
fn known_tags(tags: &BTreeSet<u64>) -> String {
    if tags.is_empty() {
        return "the trace holds no captures, which a program asks for with stk_capture(tag)".to_owned();
    }
    let shown: Vec<String> = tags.iter().take(LISTED).map(|&tag| tag_text(tag)).collect();
    let more = match tags.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("there are {}{more}", shown.join(", "))
}

/// The most captures that are in memory at once.
const AT_ONCE: usize = 4096;
/// The share of the trace's memory budget that these may take: one part of so many.
const MEMORY_PARTS: u64 = 4;

/// Prints the stacks of captures, as many at a time as there is memory for. Returns how many are
/// left out since there is no memory for even one, and how many since walking takes too long.
pub fn print<'i>(
    inputs: &DumpInputs<'i>,
    walker: &mut StackWalker<'i>,
    captures: &[ChosenCapture],
    printer: &mut StackPrinter<'_, '_>,
) -> io::Result<(u64, u64)> {
    let mut series = CaptureSeries {
        inputs,
        walker,
        explain: printer.options.explain,
        blocks: inputs.trace.sample_blocks().collect(),
        cost_left: cost::of_trace(inputs.trace),
    };
    let (mut rest, mut at_once, mut left_out) = (captures, AT_ONCE, 0);
    while !rest.is_empty() && series.cost_left > 0 {
        let now = &rest[..rest.len().min(at_once)];
        match series.walk(now) {
            Some(stacks) => {
                rest = &rest[stacks.len()..];
                printer.print(stacks)?;
            }
            None if now.len() == 1 => {
                rest = &rest[1..];
                left_out += 1;
            }
            None => at_once = now.len() / 2,
        }
    }
    Ok((left_out, rest.len() as u64))
}

/// Captures that are walked one after the other.
struct CaptureSeries<'s, 'i> {
    inputs: &'s DumpInputs<'i>,
    walker: &'s mut StackWalker<'i>,
    explain: bool,
    /// The SAMPLES blocks.
    blocks: Vec<&'i BlockRef>,
    /// What is left of the allowance for decoding and walking.
    cost_left: u64,
}

impl CaptureSeries<'_, '_> {
    /// The stacks of captures: fewer once the allowance is used up; `None` if there is no memory
    /// for all of them at once.
    fn walk(&mut self, captures: &[ChosenCapture]) -> Option<Vec<DumpStack>> {
        let trace = self.inputs.trace;
        let budget = Budget::new(trace.budget.all() / MEMORY_PARTS);
        let places: Vec<SamplePlace> = captures.iter().map(|capture| capture.place).collect();
        let blocks: BTreeSet<u32> = places.iter().map(|place| place.block).collect();
        let bytes = blocks.iter().map(|&block| u64::from(self.blocks[block as usize].header.raw_len));
        let decoding = bytes.fold(0u64, u64::saturating_add).saturating_mul(cost::BYTES_AGAIN);
        let mut stacks = Vec::new();
        for (capture, snapshot) in captures.iter().zip(samples_at(trace, &places, &budget)) {
            let snapshot = snapshot?;
            let mut stack = stack::walk(self.inputs, self.walker, &snapshot, snapshot.sampled, self.explain);
            stack.capture = Some(capture.label);
            if !budget.take(stack.memory()) {
                return None;
            }
            stacks.push(stack);
            self.cost_left = self.cost_left.saturating_sub(self.walker.take_cost());
            if self.cost_left == 0 {
                break;
            }
        }
        self.cost_left = self.cost_left.saturating_sub(decoding);
        Some(stacks)
    }
}
