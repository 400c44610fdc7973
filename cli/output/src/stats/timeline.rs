//! When threads used CPU time, as a line of bars.

use serde::Serialize;
use std::ops::Range;
use stk_base::text::pad;
use stk_profile::profile::Run;

/// Parts of the time that are shown separately.
const PARTS: usize = 40;
/// Bars from the lowest to the highest, and those for terminals that know only ASCII.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII_BARS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];

/// Columns that bars take, by those of the terminal.
pub(super) fn bar_columns(terminal: Option<usize>) -> usize {
    if terminal.is_none_or(|columns| columns >= 130) { PARTS } else { PARTS / 2 }
}

/// How bars are drawn beneath each other.
pub(super) struct Bars {
    pub columns: usize,
    highest: u64,
    column_ns: u64,
    ascii: bool,
}

impl Bars {
    /// For these; `None` without any.
    pub(super) fn of<'a>(
        timelines: impl Iterator<Item = &'a TimelineStats> + Clone,
        columns: usize,
        ascii: bool,
    ) -> Option<Bars> {
        let column_ns = timelines.clone().map(|timeline| timeline.column_ns(columns)).next()?;
        let highest = timelines.map(|timeline| timeline.highest(columns)).max()?;
        Some(Bars { columns, highest, column_ns, ascii })
    }

    /// The heading: what the highest bar is of one processor.
    pub(super) fn title(&self) -> String {
        let share = 100.0 * self.highest as f64 / self.column_ns as f64;
        pad(&format!("CPU, up to {share:.0} %"), self.columns)
    }

    pub(super) fn line(&self, timeline: Option<&TimelineStats>) -> String {
        let bars = timeline.map(|line| line.bars(self.columns, self.highest, self.ascii));
        pad(&bars.unwrap_or_default(), self.columns)
    }
}

/// The CPU time of a thread, or of several, in equal parts of the recording.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    span: Range<u64>,
    cpu_ns: [u64; PARTS],
    sampled: [bool; PARTS],
}

/// CPU time in equal parts of a time.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct TimelineStats {
    /// Where the first part begins, in nanoseconds since the trace's start.
    pub from_ns: u64,
    /// Length of a part.
    pub part_ns: u64,
    /// CPU time used in each; `None` where no sample was taken.
    pub cpu_ns: Vec<Option<u64>>,
}

impl Timeline {
    /// For runs within a time.
    pub(super) fn new(span: Range<u64>) -> Timeline {
        Timeline { span, cpu_ns: [0; PARTS], sampled: [false; PARTS] }
    }

    /// Length of a part: at least a nanosecond.
    fn part_ns(&self) -> u64 {
        self.span.end.saturating_sub(self.span.start).div_ceil(PARTS as u64).max(1)
    }

    /// Adds a run. Its CPU time is spread evenly over the time that it covers.
    pub(super) fn add(&mut self, run: &Run) {
        let part_ns = self.part_ns();
        let begin = run.first_ns.max(self.span.start) - self.span.start;
        let end = begin.saturating_add(run.weight_ns.max(1));
        let part = |ns: u64| ((ns / part_ns) as usize).min(PARTS - 1);
        let mut given = 0;
        if part(begin) == part(end - 1) {
            let at = part(begin);
            self.sampled[at] = true;
            self.cpu_ns[at] = self.cpu_ns[at].saturating_add(run.cpu_ns);
            return;
        }
        for at in part(begin)..=part(end - 1) {
            self.sampled[at] = true;
            let until = if at == part(end - 1) { end } else { (at as u64 + 1) * part_ns };
            let share = u128::from(run.cpu_ns) * u128::from(until - begin) / u128::from(end - begin);
            // What a part gets is the difference of two sums, so that nothing is lost.
            self.cpu_ns[at] = self.cpu_ns[at].saturating_add(share as u64 - given);
            given = share as u64;
        }
    }

    /// The CPU time of the parts. A thread's clock may tick after the time was used, so what a part
    /// has beyond its length was used in those before it, else in those behind it, as far as the
    /// thread was sampled there.
    fn levelled(&self) -> [u64; PARTS] {
        let (mut cpu_ns, part_ns) = (self.cpu_ns, self.part_ns());
        let mut carry = |order: &mut dyn Iterator<Item = usize>| {
            let mut carried = 0u64;
            let mut last = None;
            for at in order.filter(|&at| self.sampled[at]) {
                carried = carried.saturating_add(cpu_ns[at]);
                cpu_ns[at] = carried.min(part_ns);
                carried -= cpu_ns[at];
                last = Some(at);
            }
            if let Some(last) = last {
                cpu_ns[last] = cpu_ns[last].saturating_add(carried);
            }
        };
        carry(&mut (0..PARTS).rev());
        carry(&mut (0..PARTS));
        cpu_ns
    }

    pub(super) fn stats(&self) -> TimelineStats {
        let cpu_ns = self.levelled();
        let parts = cpu_ns.iter().zip(self.sampled);
        TimelineStats {
            from_ns: self.span.start,
            part_ns: self.part_ns(),
            cpu_ns: parts.map(|(&cpu_ns, sampled)| sampled.then_some(cpu_ns)).collect(),
        }
    }
}

impl TimelineStats {
    /// The CPU time in `columns` parts, of which there are at least as many.
    fn parts(&self, columns: usize) -> Vec<Option<u64>> {
        let together = self.cpu_ns.len().div_ceil(columns.max(1)).max(1);
        let sum = |parts: &[Option<u64>]| {
            let known = parts.iter().flatten().copied().fold(0, u64::saturating_add);
            parts.iter().any(Option::is_some).then_some(known)
        };
        self.cpu_ns.chunks(together).map(sum).collect()
    }

    /// The most CPU time in one of `columns` parts.
    fn highest(&self, columns: usize) -> u64 {
        self.parts(columns).into_iter().flatten().max().unwrap_or(0)
    }

    /// Length of one of `columns` parts.
    fn column_ns(&self, columns: usize) -> u64 {
        self.part_ns.saturating_mul(self.cpu_ns.len().div_ceil(columns.max(1)) as u64).max(1)
    }

    /// A bar for each of `columns` parts, blank where no sample was taken. `highest` has the
    /// highest bar.
    fn bars(&self, columns: usize, highest: u64, ascii: bool) -> String {
        let bars = if ascii { &ASCII_BARS } else { &BARS };
        let bar = |part: Option<u64>| match part {
            None => ' ',
            Some(ns) => {
                let step = u128::from(ns) * bars.len() as u128 / u128::from(highest.max(1));
                bars[(step as usize).min(bars.len() - 1)]
            }
        };
        self.parts(columns).into_iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_profile::profile::{Activity, RunFlags, StopId};
    use stk_schema::event::RunState;

    fn run(first_ns: u64, weight_ns: u64, cpu_ns: u64) -> Run {
        Run {
            node: None,
            stop: StopId(0),
            first_ns,
            last_ns: first_ns,
            weight_ns,
            samples: 1,
            cpu_ns,
            state: RunState::Unknown,
            activity: Activity::Unknown,
            flags: RunFlags::default(),
            capture_tag: 0,
        }
    }

    #[test]
    fn cpu_time_is_spread_over_the_time_of_a_run_and_nothing_is_lost() {
        // Parts of 10 ns from 1000 on.
        let mut timeline = Timeline::new(1000..1400);
        timeline.add(&run(1005, 10, 8));
        timeline.add(&run(1020, 30, 10));
        timeline.add(&run(1395, 100, 7));
        let stats = timeline.stats();
        assert_eq!((stats.from_ns, stats.part_ns, stats.cpu_ns.len()), (1000, 10, 40));
        assert_eq!(stats.cpu_ns[..6], [Some(4), Some(4), Some(3), Some(3), Some(4), None]);
        // The run goes beyond the span.
        assert_eq!(stats.cpu_ns[38..], [None, Some(7)]);
        assert_eq!(stats.cpu_ns.iter().flatten().sum::<u64>(), 8 + 10 + 7);
    }

    #[test]
    fn bars_are_relative_to_the_highest() {
        let mut timeline = Timeline::new(0..400);
        for (at, cpu_ns) in [(0, 0), (1, 4), (2, 5), (3, 10)] {
            timeline.add(&run(at * 10, 10, cpu_ns));
        }
        let stats = timeline.stats();
        assert_eq!(stats.highest(40), 10);
        assert_eq!(stats.bars(40, 10, false).trim_end(), "▁▄▅█");
        assert_eq!(stats.bars(40, 10, true).trim_end(), "_-=#");
        assert_eq!((stats.highest(20), stats.column_ns(20)), (15, 20));
        assert_eq!(stats.bars(20, 15, false).trim_end(), "▃█");
        assert_eq!(stats.bars(20, 15, false).chars().count(), 20);
    }

    #[test]
    fn forged_times_do_not_overflow() {
        let mut timeline = Timeline::new(0..u64::MAX);
        timeline.add(&run(u64::MAX - 1, u64::MAX, u64::MAX));
        timeline.add(&run(0, u64::MAX, u64::MAX));
        assert_eq!(timeline.stats().cpu_ns.len(), 40);
        let mut none = Timeline::new(5..5);
        none.add(&run(7, 0, 3));
        assert_eq!(none.stats().cpu_ns.iter().flatten().sum::<u64>(), 3);
    }
}
