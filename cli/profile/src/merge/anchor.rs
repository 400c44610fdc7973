//! When and where traces were recorded, and what that makes of their places on one time line.
//!
//! A trace's times are readings of the machine's performance counter, which all processes share
//! until the machine starts again: two traces of one boot are placed exactly, to a tick. Else there
//! is the time of day that each trace has beside its first reading. Clocks are set, and those of
//! different machines differ by what no trace records.

use crate::trace::Trace;
use std::cmp::Reverse;

/// When and where a trace was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// Its file, for messages.
    pub source: String,
    /// The machine's identity, and its name, if they are recorded.
    pub machine: Option<String>,
    /// See `machine`.
    pub host: Option<String>,
    /// The boot of the machine: the minute in which it started; 0 = unknown.
    pub boot: u64,
    /// The counter: ticks a second, and its reading at the start.
    pub frequency: u64,
    /// See `frequency`.
    pub counter: u64,
    /// Time of day at the start, nanoseconds since 1970 UTC.
    pub utc_ns: u64,
    /// The process's id.
    pub pid: u32,
    /// When the process was created, in the same form; 0 = unknown.
    pub created_ns: u64,
    /// From its start to its last time.
    pub duration_ns: u64,
    /// When its threads were looked at first and last, in nanoseconds after its start; `None` =
    /// never.
    pub sampled_ns: Option<(u64, u64)>,
    /// How far the time of day moved against the counter within the trace, at most.
    pub drift_ns: u64,
    /// The recording of several files that it is one of, and its number there.
    pub file: Option<(String, u64)>,
    /// Whether it continues where the file before ended, without a gap.
    pub continued: bool,
}

/// What decides where a trace lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// It is the first one.
    First,
    /// The counter that it shares with a trace before it.
    Counter {
        /// How long a tick is.
        tick_ns: u64,
        /// By how much the time of day would place it later.
        utc_later_ns: i64,
    },
    /// The time of day.
    TimeOfDay {
        /// How far it may be off, if nobody set the clock between the traces; `None`: the traces
        /// are not known to be of one machine, so that is unknown.
        off_ns: Option<u64>,
    },
}

/// The place of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceOffset {
    /// Index of its anchor.
    pub trace: usize,
    /// Nanoseconds after the first one began.
    pub start_ns: u64,
    /// By what that is known.
    pub basis: Basis,
}

/// The places of traces, and the time of day at the beginning of their time line.
#[derive(Debug)]
pub struct MergedTimeline {
    /// In order of their starts.
    pub places: Vec<TraceOffset>,
    /// Nanoseconds since 1970 UTC.
    pub utc_ns: u64,
}

/// The steps of the coarsest clock that a recorder reads the time of day from (Windows before 8).
const COARSE_NS: u64 = 16_000_000;
/// How far the counter and the time of day may place two traces of one boot apart. The boot is
/// known to the minute.
const MOST_APART_NS: u128 = 180_000_000_000;
const SECOND: i128 = 1_000_000_000;

impl Anchor {
    /// The facts of a trace.
    pub fn of(trace: &Trace<'_>) -> Anchor {
        let header = trace.header();
        let reported = |key: &str| trace.fact(key).filter(|text| !text.is_empty()).map(str::to_owned);
        let apart =
            |&(time, utc): &(_, u64)| header.utc_start.saturating_add(trace.clock.ns(time)).abs_diff(utc);
        Anchor {
            source: trace.source.clone(),
            machine: reported("machine.id"),
            host: reported("host"),
            boot: header.boot_id,
            frequency: header.clock_frequency.max(1),
            counter: header.clock_start.0,
            utc_ns: header.utc_start,
            pid: header.pid,
            created_ns: header.process_created,
            duration_ns: trace.clock.ns(trace.last()),
            sampled_ns: trace.sampled_ns(),
            drift_ns: trace.timeline.clocks.iter().map(apart).max().unwrap_or(0),
            file: trace
                .fact("rotation.id")
                .map(str::to_owned)
                .zip(trace.fact("rotation.index").and_then(|text| text.parse().ok())),
            continued: trace.fact("rotation.continued") == Some("1"),
        }
    }

    /// Whether two traces are of one machine; `None` if they do not say.
    fn is_on_machine_of(&self, other: &Anchor) -> Option<bool> {
        match (&self.machine, &other.machine, &self.host, &other.host) {
            (Some(one), Some(other), ..) => Some(one == other),
            (_, _, Some(one), Some(other)) => Some(one.eq_ignore_ascii_case(other)),
            // A process that ended at once left a trace of which only the header holds something.
            // No two machines, started in the same minute, create a process of one id in the same
            // 100 ns.
            _ => {
                (self.header_identity() == other.header_identity() && self.boot != 0 && self.created_ns != 0)
                    .then_some(true)
            }
        }
    }

    /// What the file's header says of the process, with the machine's boot.
    fn header_identity(&self) -> (u64, u32, u64, u64) {
        (self.boot, self.pid, self.created_ns, self.frequency)
    }

    /// Whether two traces are of one process.
    pub fn is_of_process_of(&self, other: &Anchor) -> bool {
        self.is_on_machine_of(other) == Some(true)
            && (self.pid, self.created_ns) == (other.pid, other.created_ns)
            && self.created_ns != 0
    }

    /// How many nanoseconds after `other` this began by the counter, if they share one.
    fn after_by_counter(&self, other: &Anchor) -> Option<i128> {
        let is_same_boot = self.boot != 0 && other.boot != 0 && self.boot.abs_diff(other.boot) <= 1;
        if self.is_on_machine_of(other) != Some(true)
            || self.frequency != other.frequency
            || !(is_same_boot || self.is_of_process_of(other))
        {
            return None;
        }
        let ticks = i128::from(self.counter) - i128::from(other.counter);
        let after = ticks * SECOND / i128::from(self.frequency);
        ((self.after_by_utc(other) - after).unsigned_abs() <= MOST_APART_NS).then_some(after)
    }

    fn after_by_utc(&self, other: &Anchor) -> i128 {
        i128::from(self.utc_ns) - i128::from(other.utc_ns)
    }
}

/// Places traces. `by_utc`: also those that are not known to be of one machine.
///
/// # Errors
///
/// Which trace is of another machine, or does not say its machine.
pub fn place(anchors: &[Anchor], by_utc: bool) -> Result<MergedTimeline, String> {
    let mut order: Vec<usize> = (0..anchors.len()).collect();
    order.sort_by_key(|&i| (anchors[i].utc_ns, Reverse(anchors[i].duration_ns), i));
    let Some(&first) = order.first() else { return Ok(MergedTimeline { places: Vec::new(), utc_ns: 0 }) };
    // Nanoseconds after the first one, which may be negative: clocks are set.
    let mut placed: Vec<(usize, i128, Basis)> = vec![(first, 0, Basis::First)];
    for &i in &order[1..] {
        let anchor = &anchors[i];
        let by_counter = placed.iter().find_map(|&(other, at, _)| {
            let after = anchor.after_by_counter(&anchors[other])?;
            let later = anchor.after_by_utc(&anchors[other]) - after;
            let tick_ns = 1_000_000_000u64.div_ceil(anchor.frequency);
            let utc_later_ns = i64::try_from(later).unwrap_or(i64::MAX);
            Some((i, at + after, Basis::Counter { tick_ns, utc_later_ns }))
        });
        placed.push(match by_counter {
            Some(place) => place,
            None => (i, anchor.after_by_utc(&anchors[first]), time_of_day(anchor, &anchors[first], by_utc)?),
        });
    }
    let begin = placed.iter().map(|&(_, at, _)| at).min().unwrap_or(0);
    let clamped = |ns: i128| u64::try_from(ns.max(0)).unwrap_or(u64::MAX);
    let mut places: Vec<TraceOffset> = placed
        .into_iter()
        .map(|(trace, at, basis)| TraceOffset { trace, start_ns: clamped(at - begin), basis })
        .collect();
    places.sort_by_key(|place| (place.start_ns, place.trace));
    Ok(MergedTimeline { places, utc_ns: clamped(i128::from(anchors[first].utc_ns) + begin) })
}

impl MergedTimeline {
    /// Nanoseconds from the beginning of the first trace to the end of the last.
    pub fn length_ns(&self, anchors: &[Anchor]) -> u64 {
        self.places.iter().map(|place| place.end_ns(anchors)).max().unwrap_or(0)
    }

    /// Nanoseconds of it in which at least one of the traces was recorded.
    pub fn recorded_ns(&self, anchors: &[Anchor]) -> u64 {
        let (mut recorded, mut end) = (0, 0);
        for place in &self.places {
            let place_end = place.end_ns(anchors);
            recorded += place_end.saturating_sub(end.max(place.start_ns));
            end = end.max(place_end);
        }
        recorded
    }

    /// Takes out the times in which none of the traces was recorded, but `left_ns` of each.
    pub fn close_gaps(&mut self, anchors: &[Anchor], left_ns: u64) {
        let (mut end, mut taken_out) = (0u64, 0u64);
        for place in &mut self.places {
            let gap = (place.start_ns - taken_out).saturating_sub(end);
            taken_out += gap.saturating_sub(left_ns);
            place.start_ns -= taken_out;
            end = end.max(place.end_ns(anchors));
        }
    }
}

impl TraceOffset {
    fn end_ns(&self, anchors: &[Anchor]) -> u64 {
        self.start_ns.saturating_add(anchors[self.trace].duration_ns)
    }
}

/// The basis of a trace that shares no counter with others.
fn time_of_day(anchor: &Anchor, first: &Anchor, by_utc: bool) -> Result<Basis, String> {
    let name = |anchor: &Anchor| anchor.host.clone().unwrap_or_else(|| "a machine without a name".into());
    match anchor.is_on_machine_of(first) {
        Some(true) => {
            let drift_ns = anchor.drift_ns.saturating_add(first.drift_ns);
            Ok(Basis::TimeOfDay { off_ns: Some(drift_ns.saturating_add(COARSE_NS)) })
        }
        _ if by_utc => Ok(Basis::TimeOfDay { off_ns: None }),
        Some(false) => Err(format!(
            "{} was recorded on {} and {} on {}: their clocks differ by what no trace records. To place them \
             by the time of day anyway, give --by-time-of-day",
            anchor.source,
            name(anchor),
            first.source,
            name(first)
        )),
        None => Err(format!(
            "{} and {} do not both say on which machine they were recorded: to place them by the time of \
             day, give --by-time-of-day",
            first.source, anchor.source
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn anchor(source: &str, counter: u64, utc_ns: u64) -> Anchor {
        Anchor {
            source: source.to_owned(),
            machine: None,
            host: Some("lab-7".to_owned()),
            boot: 27_000_000,
            frequency: 10_000_000,
            counter,
            utc_ns,
            pid: 44,
            created_ns: 5,
            duration_ns: 0,
            sampled_ns: None,
            drift_ns: 0,
            file: None,
            continued: false,
        }
    }

    fn starts(line: &MergedTimeline) -> Vec<(usize, u64)> {
        line.places.iter().map(|place| (place.trace, place.start_ns)).collect()
    }

    #[test]
    fn traces_of_one_boot_are_placed_by_its_counter() {
        // The clock was set back by 2 ms between the two.
        let anchors = [anchor("b", 50_000_000, 10_003 * MS), anchor("a", 20_000_000, 7_005 * MS)];
        let line = place(&anchors, false).unwrap();
        assert_eq!(starts(&line), [(1, 0), (0, 3_000 * MS)]);
        assert_eq!(line.utc_ns, 7_005 * MS);
        assert_eq!(line.places[0].basis, Basis::First);
        let expected = Basis::Counter { tick_ns: 100, utc_later_ns: -2_000_000 };
        assert_eq!(line.places[1].basis, expected);
    }

    #[test]
    fn the_first_one_by_the_counter_is_the_first_whatever_the_clock_says() {
        let anchors = [anchor("a", 30_000_000, 1_000 * MS), anchor("b", 20_000_000, 1_500 * MS)];
        let line = place(&anchors, false).unwrap();
        assert_eq!(starts(&line), [(1, 0), (0, 1_000 * MS)]);
        // A second before "a" began.
        assert_eq!(line.utc_ns, 0);
    }

    #[test]
    fn a_boot_is_known_to_the_minute_and_a_process_exactly() {
        let first = anchor("a", 0, 1_000_000 * MS);
        let later = |change: &dyn Fn(&mut Anchor)| {
            let mut other = anchor("b", 10_000_000, 1_001_001 * MS);
            change(&mut other);
            let line = place(&[first.clone(), other], false).unwrap();
            (line.places[1].start_ns / MS, matches!(line.places[1].basis, Basis::Counter { .. }))
        };
        assert_eq!(later(&|b| b.boot += 1), (1_000, true));
        assert_eq!(later(&|b| b.boot += 9), (1_000, true), "the process is the same");
        assert_eq!(later(&|b| (b.boot, b.pid) = (b.boot + 9, 45)), (1_001, false));
        assert_eq!(later(&|b| (b.boot, b.created_ns) = (0, 0)), (1_001, false));
        assert_eq!(later(&|b| b.frequency = 3_000_000), (1_001, false));
        assert_eq!(later(&|b| b.counter *= 1_000), (1_001, false), "a counter that began anew");
    }

    #[test]
    fn gaps_are_closed_and_overlaps_stay() {
        let place = |trace, start_ns| TraceOffset { trace, start_ns, basis: Basis::First };
        // Two traces from 0 to 10 and 5 to 8, then from 1,000 to 1,010 and 1,011 to 1,012.
        let mut line = MergedTimeline {
            places: vec![place(0, 0), place(1, 5), place(2, 1_000), place(3, 1_011)],
            utc_ns: 7,
        };
        let anchors = [10, 3, 10, 1].map(|duration_ns| Anchor { duration_ns, ..anchor("a", 0, 0) });
        assert_eq!((line.length_ns(&anchors), line.recorded_ns(&anchors)), (1_012, 21));
        line.close_gaps(&anchors, 2);
        assert_eq!(starts(&line), [(0, 0), (1, 5), (2, 12), (3, 23)]);
        assert_eq!((line.length_ns(&anchors), line.recorded_ns(&anchors)), (24, 21));
        // What is shorter than what is left stays.
        line.close_gaps(&anchors, 2);
        assert_eq!(starts(&line), [(0, 0), (1, 5), (2, 12), (3, 23)]);
    }

    #[test]
    fn one_trace_links_others_to_the_counter() {
        let mut other_boot = anchor("a", 77, 1_000 * MS);
        (other_boot.boot, other_boot.pid, other_boot.drift_ns) = (1, 45, 3 * MS);
        let anchors = [other_boot, anchor("b", 20_000_000, 2_000 * MS), anchor("c", 30_000_000, 3_050 * MS)];
        let line = place(&anchors, false).unwrap();
        assert_eq!(starts(&line), [(0, 0), (1, 1_000 * MS), (2, 2_000 * MS)]);
        assert_eq!(line.places[1].basis, Basis::TimeOfDay { off_ns: Some(19 * MS) });
        assert_eq!(line.places[2].basis, Basis::Counter { tick_ns: 100, utc_later_ns: 50_000_000 });
    }

    #[test]
    fn other_machines_are_refused_unless_the_time_of_day_will_do() {
        let mut other = anchor("b", 30_000_000, 3_000 * MS);
        other.host = Some("lab-8".to_owned());
        let anchors = [anchor("a", 20_000_000, 2_000 * MS), other];
        let refused = place(&anchors, false).unwrap_err();
        assert!(refused.contains("lab-7") && refused.contains("--by-time-of-day"), "{refused}");
        let line = place(&anchors, true).unwrap();
        assert_eq!(line.places[1].basis, Basis::TimeOfDay { off_ns: None });
        assert!(!anchors[1].is_of_process_of(&anchors[0]), "the same pid on another machine");
        let mut nameless = anchors.clone();
        (nameless[1].host, nameless[1].pid) = (None, 45);
        assert!(place(&nameless, false).unwrap_err().contains("do not both say"));
        // The header names the process, and with it the machine.
        nameless[1].pid = nameless[0].pid;
        assert!(place(&nameless, false).is_ok() && nameless[1].is_of_process_of(&nameless[0]));
        (nameless[0].boot, nameless[1].boot) = (0, 0);
        assert!(place(&nameless, false).unwrap_err().contains("do not both say"));
        // An identity of the machine goes before its name.
        for (i, machine) in ["x", "x"].into_iter().enumerate() {
            nameless[i].machine = Some(machine.to_owned());
        }
        assert!(place(&nameless, false).is_ok());
    }
}
