//! The times between the traces of one process, in which it was not recorded: the files of
//! `inject --rotate`, or recordings one after the other.

use super::anchor::{Anchor, MergedTimeline};

/// A time in which a process was not recorded, on the common time line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessGap {
    /// Index of the process.
    pub process: u32,
    /// Index of the trace that ends it.
    pub before_trace: usize,
    /// Nanoseconds after the beginning of the time line.
    pub start_ns: u64,
    /// See `start_ns`.
    pub end_ns: u64,
}

/// The gaps between traces of one process, from the last samples of one to the first of the next.
/// `of_trace` is the process of each trace.
pub fn gaps(anchors: &[Anchor], line: &MergedTimeline, of_trace: &[u32]) -> Vec<ProcessGap> {
    // By process: up to when it was recorded, and by which trace.
    let mut recorded: Vec<Option<(u64, usize)>> = vec![None; of_trace.len()];
    let mut gaps = Vec::new();
    for place in &line.places {
        let Some((first, last)) = anchors[place.trace].sampled_ns else { continue };
        let process = of_trace[place.trace];
        let (begin, end) = (place.start_ns.saturating_add(first), place.start_ns.saturating_add(last));
        let Some(recorded) = recorded.get_mut(process as usize) else { continue };
        if let Some((start_ns, before)) = recorded.filter(|&(before, _)| before < begin)
            && !follows(&anchors[before], &anchors[place.trace])
        {
            gaps.push(ProcessGap { process, before_trace: place.trace, start_ns, end_ns: begin });
        }
        *recorded = Some(recorded.filter(|&(before, _)| before > end).unwrap_or((end, place.trace)));
    }
    gaps
}

/// Whether a trace continues in the moment in which another one ended.
fn follows(before: &Anchor, after: &Anchor) -> bool {
    let numbers = before.file.as_ref().zip(after.file.as_ref());
    let next = numbers
        .is_some_and(|((id, number), (other, next))| id == other && number.checked_add(1) == Some(*next));
    next && after.continued
}

impl ProcessGap {
    /// The part of the gap that lies within a span; `None` if there is none.
    pub fn within(self, (from_ns, until_ns): (u64, u64)) -> Option<ProcessGap> {
        let (start_ns, end_ns) = (self.start_ns.max(from_ns), self.end_ns.min(until_ns));
        (start_ns < end_ns).then_some(ProcessGap { start_ns, end_ns, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::super::anchor::{Basis, TraceOffset};
    use super::*;

    /// A trace that was sampled from 1 to 9 of its time.
    fn anchor(sampled_ns: Option<(u64, u64)>) -> Anchor {
        Anchor {
            source: String::new(),
            machine: None,
            host: None,
            boot: 0,
            frequency: 1,
            counter: 0,
            utc_ns: 0,
            pid: 4,
            created_ns: 0,
            duration_ns: 10,
            sampled_ns,
            drift_ns: 0,
            file: None,
            continued: false,
        }
    }

    /// When samples of a trace were taken, from its start; `None` without any.
    type Sampled = Option<(u64, u64)>;

    /// The gaps of traces at these times, of these processes.
    fn found(traces: &[(u64, u32, Sampled)]) -> Vec<(u32, usize, u64, u64)> {
        let anchors: Vec<Anchor> = traces.iter().map(|&(.., sampled)| anchor(sampled)).collect();
        let places = traces.iter().enumerate();
        let places =
            places.map(|(trace, &(start_ns, ..))| TraceOffset { trace, start_ns, basis: Basis::First });
        let line = MergedTimeline { places: places.collect(), utc_ns: 0 };
        let of_trace: Vec<u32> = traces.iter().map(|&(_, process, _)| process).collect();
        let gaps = gaps(&anchors, &line, &of_trace);
        gaps.iter().map(|gap| (gap.process, gap.before_trace, gap.start_ns, gap.end_ns)).collect()
    }

    const SAMPLED: Sampled = Some((1, 9));

    #[test]
    fn a_gap_lies_between_the_last_samples_and_the_next_ones_of_a_process() {
        let traces = [(0, 0, SAMPLED), (5, 1, SAMPLED), (20, 0, SAMPLED), (40, 1, SAMPLED), (50, 0, SAMPLED)];
        assert_eq!(found(&traces), [(0, 2, 9, 21), (1, 3, 14, 41), (0, 4, 29, 51)]);
    }

    #[test]
    fn traces_that_overlap_leave_no_gap_and_the_longest_counts() {
        assert_eq!(found(&[(0, 0, Some((0, 100))), (10, 0, SAMPLED), (60, 0, SAMPLED)]), []);
        let long = [(0, 0, Some((0, 100))), (10, 0, SAMPLED), (110, 0, SAMPLED)];
        assert_eq!(found(&long), [(0, 2, 100, 111)]);
    }

    #[test]
    fn continued_file_leaves_no_gap_but_a_missing_one_does() {
        let file = |number| Some(("id".to_owned(), number));
        let anchor = |number, continued| Anchor { file: file(number), continued, ..anchor(SAMPLED) };
        let anchors = [anchor(1, false), anchor(2, true), anchor(4, true), anchor(5, false)];
        let places =
            (0..4).map(|trace| TraceOffset { trace, start_ns: 10 * trace as u64, basis: Basis::First });
        let line = MergedTimeline { places: places.collect(), utc_ns: 0 };
        let found: Vec<usize> = gaps(&anchors, &line, &[0; 4]).iter().map(|gap| gap.before_trace).collect();
        assert_eq!(found, [2, 3]);
    }

    #[test]
    fn a_trace_without_samples_is_part_of_the_gap() {
        assert_eq!(found(&[(0, 0, SAMPLED), (20, 0, None), (40, 0, SAMPLED)]), [(0, 2, 9, 41)]);
    }

    #[test]
    fn a_gap_is_cut_to_the_chosen_time() {
        let gap = ProcessGap { process: 0, before_trace: 1, start_ns: 10, end_ns: 20 };
        let cut = |from, until| gap.within((from, until)).map(|gap| (gap.start_ns, gap.end_ns));
        assert_eq!(cut(0, u64::MAX), Some((10, 20)));
        assert_eq!(cut(12, 15), Some((12, 15)));
        assert_eq!(cut(20, 30), None);
        assert_eq!(cut(0, 10), None);
    }
}
