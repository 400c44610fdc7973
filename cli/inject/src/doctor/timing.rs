//! How long suspensions, timers and wake-ups take.

use super::{Fact, Verdict};

const SUSPENSION: &str = "suspension";
const TIMING: &str = "timing";

/// A suspension slower than this, at the 99th percentile, is noted (nanoseconds): ten periods of
/// the default rate.
const SLOW_NS: u64 = 10_000_000;

/// The measurements of one helper thread that was suspended repeatedly.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Suspensions {
    /// `spinning`, `waiting`, `in a file call`.
    pub helper: &'static str,
    /// Nanoseconds of SuspendThread.
    pub suspend: Vec<u64>,
    /// Nanoseconds of GetThreadContext.
    pub context: Vec<u64>,
    /// Nanoseconds of copying the stack, at most 4 KB.
    pub copy: Vec<u64>,
    /// Nanoseconds of ResumeThread.
    pub resume: Vec<u64>,
    /// Suspensions of which a call failed.
    pub failed: u32,
}

impl Suspensions {
    /// Median nanoseconds of a whole suspension; 0 without any.
    pub(crate) fn typical(&self) -> u64 {
        [&self.suspend, &self.context, &self.copy, &self.resume]
            .map(|times| percentile(times, 50).unwrap_or(0))
            .into_iter()
            .sum()
    }
}

/// Cycle counts from QueryThreadCycleTime; `None` where it does not work.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cycles {
    /// The cycles that one suspension adds to the count of a waiting thread.
    pub of_suspension: Option<Vec<u64>>,
    /// The increase of a spinning thread's count between two readings 20 ms apart, without a
    /// suspension.
    pub of_spinner: Option<u64>,
}

/// The priority that the system gives a thread that is resumed, for a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Boost {
    /// Whether a new thread gets it; `None` if that cannot be told.
    pub given: Option<bool>,
    /// Whether it is gone once it was switched off, as the recorder does while it samples a thread.
    pub goes: bool,
}

/// What timers and wake-ups took.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wakeups {
    /// Nanoseconds by which a high-resolution timer of 1 ms was late; `None` where there is no such
    /// timer.
    pub timer_late: Option<Vec<u64>>,
    /// Nanoseconds from SetEvent to the waiting thread's first instruction while a thread of normal
    /// priority spins on every processor.
    pub busy: Vec<u64>,
    /// Wake-ups that did not happen within a second.
    pub busy_missed: u32,
}

/// The value below which `percent` of `values` lie; `None` without values.
pub(crate) fn percentile(values: &[u64], percent: usize) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last * percent).div_ceil(100)).copied()
}

/// The facts of all helpers with their verdicts.
pub(crate) fn judge_suspensions(all: &[Suspensions]) -> Vec<Fact> {
    all.iter().flat_map(judge_helper).collect()
}

fn judge_helper(helper: &Suspensions) -> Vec<Fact> {
    let name = |what: &str| format!("{} {what}", helper.helper);
    let tries = helper.suspend.len() + helper.failed as usize;
    let failed = Fact::ok(SUSPENSION, name("failed"), format!("{} of {tries}", helper.failed));
    let mut facts = vec![match (helper.failed, tries) {
        (_, 0) => failed.but(Verdict::Unknown, "the helper thread could not be started"),
        (0, _) => failed,
        (some, tries) if some as usize == tries => {
            failed.but(Verdict::Bad, "no thread can be suspended and read")
        }
        _ => failed.but(Verdict::Note, "not every suspension worked"),
    }];
    for (what, times) in [
        ("SuspendThread", &helper.suspend),
        ("GetThreadContext", &helper.context),
        ("copy of the stack", &helper.copy),
        ("ResumeThread", &helper.resume),
    ] {
        facts.extend(spread(
            SUSPENSION,
            &name(what),
            times,
            SLOW_NS,
            "threads stop slowly here: expect a low rate",
        ));
    }
    facts
}

/// Median and 99th percentile of `times` in nanoseconds, the latter noted if above `slow`.
fn spread(group: &'static str, name: &str, times: &[u64], slow: u64, why: &str) -> Vec<Fact> {
    let (Some(median), Some(most)) = (percentile(times, 50), percentile(times, 99)) else {
        return Vec::new();
    };
    vec![
        Fact::ok(group, format!("{name} p50"), median).in_unit("ns"),
        Fact::ok(group, format!("{name} p99"), most).in_unit("ns").note_if(most > slow, why),
    ]
}

/// Judges the findings and returns facts with verdicts.
pub(crate) fn judge_cycles(cycles: &Cycles) -> Vec<Fact> {
    let without = "QueryThreadCycleTime does not work here: CPU time is known only as coarsely as GetThreadTimes tells it";
    let mut facts = Vec::new();
    match &cycles.of_suspension {
        Some(all) if !all.is_empty() => {
            for (name, percent) in [("cycles of a suspension p50", 50), ("cycles of a suspension p95", 95)] {
                let value = percentile(all, percent).unwrap_or(0);
                facts.push(Fact::ok(SUSPENSION, name, value).in_unit("cycles"));
            }
        }
        _ => facts.push(Fact::unknown(SUSPENSION, "cycles of a suspension p50", without)),
    }
    facts.push(match cycles.of_spinner {
        Some(grown) => Fact::check(
            SUSPENSION,
            "cycles of a spinner in 20 ms",
            grown,
            grown > 0,
            "a running thread's count stands still: threads that run would be taken for waiting ones",
        )
        .in_unit("cycles"),
        None => Fact::unknown(SUSPENSION, "cycles of a spinner in 20 ms", without),
    });
    facts
}

/// The fact with its verdict.
pub(crate) fn judge_boost(boost: Boost) -> Fact {
    const NAME: &str = "resume boost";
    let stays = "it cannot be switched off: each sample may raise a thread's priority for a moment";
    match boost {
        Boost { given: None, .. } => {
            Fact::unknown(SUSPENSION, NAME, format!("GetThreadPriorityBoost does not work here; {stays}"))
        }
        Boost { given: Some(false), .. } => Fact::ok(SUSPENSION, NAME, "none"),
        Boost { goes: true, .. } => Fact::ok(SUSPENSION, NAME, "off while a thread is sampled"),
        Boost { goes: false, .. } => Fact::ok(SUSPENSION, NAME, "on").but(Verdict::Note, stays),
    }
}

/// The facts with their verdicts.
pub(crate) fn judge_wakeups(wakeups: &Wakeups) -> Vec<Fact> {
    let mut facts = match &wakeups.timer_late {
        Some(late) => spread(
            TIMING,
            "1 ms timer late",
            late,
            2_000_000,
            "the timer is later than the default period at times: samples come unevenly",
        ),
        None => vec![Fact::ok(TIMING, "high-resolution timer", false).but(
            Verdict::Note,
            "none before Windows 10 1803: the recorder raises the system's timer resolution while it records",
        )],
    };
    facts.extend(spread(
        TIMING,
        "wake-up on busy processors",
        &wakeups.busy,
        100_000_000,
        "threads of normal priority wait long for a processor: new threads and modules are seen late on a busy machine",
    ));
    let missed = Fact::ok(TIMING, "wake-ups missed on busy processors", wakeups.busy_missed);
    facts.push(
        missed.note_if(wakeups.busy_missed > 0, "a thread of normal priority did not run for a second"),
    );
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<'a>(facts: &'a [Fact], name: &str) -> &'a Fact {
        facts.iter().find(|fact| fact.name == name).unwrap_or_else(|| panic!("no {name} in {facts:?}"))
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(
            [0, 50, 99, 100].map(|percent| percentile(&values, percent)),
            [Some(1), Some(51), Some(100), Some(100)]
        );
        assert_eq!(percentile(&[7], 99), Some(7));
        assert_eq!(percentile(&[], 50), None);
    }

    fn helper(context: Vec<u64>, failed: u32) -> Suspensions {
        let others = vec![10; context.len()];
        Suspensions {
            helper: "spinning",
            suspend: others.clone(),
            copy: others.clone(),
            resume: others,
            context,
            failed,
        }
    }

    #[test]
    fn a_slow_context_is_noted_by_its_99th_percentile() {
        let fast = judge_suspensions(&[helper(vec![50_000; 100], 0)]);
        assert!(fast.iter().all(|fact| fact.verdict == Verdict::Ok), "{fast:?}");
        let mut times = vec![50_000; 98];
        times.extend([20_000_000; 2]);
        let slow = judge_suspensions(&[helper(times, 0)]);
        assert_eq!(named(&slow, "spinning GetThreadContext p50").value, 50_000);
        assert_eq!(named(&slow, "spinning GetThreadContext p99").verdict, Verdict::Note);
    }

    #[test]
    fn suspensions_that_always_fail_are_bad_and_some_are_noted() {
        let verdict = |helper| named(&judge_suspensions(&[helper]), "spinning failed").verdict;
        assert_eq!(verdict(helper(vec![1; 9], 0)), Verdict::Ok);
        assert_eq!(verdict(helper(vec![1; 9], 1)), Verdict::Note);
        assert_eq!(verdict(helper(vec![], 10)), Verdict::Bad);
        assert_eq!(verdict(helper(vec![], 0)), Verdict::Unknown);
    }

    #[test]
    fn a_whole_suspension_is_the_sum_of_its_medians() {
        assert_eq!(helper(vec![100, 200, 300], 0).typical(), 10 + 200 + 10 + 10);
        assert_eq!(helper(vec![], 3).typical(), 0);
    }

    #[test]
    fn a_spinner_whose_cycle_count_does_not_grow_is_bad() {
        let verdict = |of_spinner| {
            let facts = judge_cycles(&Cycles { of_suspension: Some(vec![9]), of_spinner });
            named(&facts, "cycles of a spinner in 20 ms").verdict
        };
        assert_eq!([None, Some(0), Some(1)].map(verdict), [Verdict::Unknown, Verdict::Bad, Verdict::Ok]);
    }

    #[test]
    fn a_boost_that_stays_is_noted() {
        let verdict = |given, goes| judge_boost(Boost { given, goes }).verdict;
        assert_eq!(verdict(Some(true), true), Verdict::Ok);
        assert_eq!(verdict(Some(true), false), Verdict::Note);
        assert_eq!(verdict(Some(false), false), Verdict::Ok);
        assert_eq!(verdict(None, false), Verdict::Unknown);
    }

    #[test]
    fn a_late_timer_and_none_are_noted() {
        let late = judge_wakeups(&Wakeups {
            timer_late: Some(vec![14_000_000; 9]),
            busy: vec![1; 9],
            busy_missed: 0,
        });
        assert_eq!(named(&late, "1 ms timer late p99").verdict, Verdict::Note);
        assert_eq!(named(&late, "wake-up on busy processors p99").verdict, Verdict::Ok);
        let none = judge_wakeups(&Wakeups { timer_late: None, busy: vec![4_000_000_000; 9], busy_missed: 2 });
        assert_eq!(none.iter().filter(|fact| fact.verdict == Verdict::Note).count(), 3, "{none:?}");
    }
}
