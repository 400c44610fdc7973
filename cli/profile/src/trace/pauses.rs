//! When a recording was paused (`inject pause`). No thread was sampled then, and that time belongs
//! to no sample.

use super::Trace;
use std::ops::Range;

/// The pauses of a recording.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pauses(Vec<Range<u64>>);

impl Pauses {
    /// The pauses of a trace: from a RATE_CHANGE to 0 to the next one.
    pub fn of(trace: &Trace<'_>) -> Pauses {
        let mut rates = trace.timeline.rates.clone();
        rates.sort_by_key(|(time, _)| *time);
        let (mut pauses, mut since) = (Vec::new(), None);
        for (time, rate) in rates {
            let ns = trace.clock.ns(time);
            match (since, rate) {
                (None, 0) => since = Some(ns),
                (Some(start), 1..) => {
                    pauses.push(start..ns);
                    since = None;
                }
                _ => {}
            }
        }
        pauses.retain(|pause| !pause.is_empty());
        // The last one may begin with the recording's last event.
        if let Some(start) = since {
            pauses.push(start..trace.clock.ns(trace.last()).max(start));
        }
        Pauses(pauses)
    }

    /// Their times, nanoseconds since trace start: sorted, disjoint. The last one has no length if
    /// nothing is recorded after its beginning.
    pub fn times(&self) -> &[Range<u64>] {
        &self.0
    }

    /// When the time ends that a sample at `last` stands for, if its thread's next one is at `next`
    /// and there is a pause between them.
    pub fn cut(&self, last: u64, next: u64) -> Option<u64> {
        let pause = self.0.get(self.0.partition_point(|pause| pause.end <= last))?;
        (pause.start < next).then_some(pause.start.max(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_schema::Ticks;
    use stk_schema::event::{Event, RateChange};
    use stk_tests::traces;

    /// The pauses of a trace with these rates, at ticks of 100 ns.
    fn pauses(rates: &[(u64, u32)]) -> Pauses {
        let mut builder = traces::trace();
        for &(time, rate_mhz) in rates {
            builder.meta(time, &Event::RateChange(RateChange { time: Ticks(time), rate_mhz }));
        }
        Pauses::of(&Trace::read(&builder.finish(), "pauses.stk").expect("a trace"))
    }

    #[test]
    fn a_rate_of_zero_is_a_pause_until_the_next_rate() {
        let some = pauses(&[(10, 500_000), (20, 0), (50, 500_000), (60, 0), (70, 1), (80, 2)]);
        assert_eq!(some.times(), [2_000..5_000, 6_000..7_000]);
        assert_eq!(some.times().iter().map(|pause| pause.end - pause.start).sum::<u64>(), 4_000);
        assert_eq!(pauses(&[(10, 500_000)]).times(), []);
    }

    #[test]
    fn a_sample_stands_for_no_time_of_a_pause() {
        let some = pauses(&[(20, 0), (50, 1_000), (60, 0), (70, 1_000)]);
        for (last, next, cut) in [
            (0, 1_000, None),
            (1_900, 5_100, Some(2_000)),
            (1_900, 9_000, Some(2_000)),
            (5_000, 5_500, None),
            (5_500, 8_000, Some(6_000)),
            // A sample that a thread took of itself in a pause.
            (3_000, 8_000, Some(3_000)),
            (7_000, 9_000, None),
        ] {
            assert_eq!(some.cut(last, next), cut, "{last} to {next}");
        }
    }
}
