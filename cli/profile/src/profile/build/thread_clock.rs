//! Converts what threads' clocks gained to CPU time.

use crate::profile::CpuSource;
use crate::trace::Trace;
use stk_format::CpuUnit;

/// The clock of a trace's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ThreadClock {
    /// There is none, or it cannot be converted to time.
    Unknown,
    /// The system's thread times.
    Times,
    /// Cycle counts.
    Cycles {
        /// Of a thread that runs; not 0.
        per_second: u64,
        /// Cycles that a suspension costs the suspended thread.
        suspension: u64,
    },
}

/// CPU time that a clock gained, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ClockGain {
    /// The thread's own.
    pub own_ns: u64,
    /// What being sampled cost it.
    pub sampling_ns: u64,
}

impl ThreadClock {
    /// The clock of a trace. Cycles need the rate that the recorder measured.
    pub(super) fn of(trace: &Trace<'_>) -> ThreadClock {
        let measured = |key| trace.fact(key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        match (trace.header().cpu_unit, measured("recorder.cycles_per_second")) {
            (CpuUnit::Time100ns, _) => ThreadClock::Times,
            (CpuUnit::None, _) | (CpuUnit::Cycles, 0) => ThreadClock::Unknown,
            (CpuUnit::Cycles, per_second) => {
                ThreadClock::Cycles { per_second, suspension: measured("recorder.suspension_cycles_p50") }
            }
        }
    }

    /// Where CPU times come from.
    pub(super) fn source(self) -> CpuSource {
        match self {
            ThreadClock::Unknown => CpuSource::None,
            ThreadClock::Times => CpuSource::ThreadTimes,
            ThreadClock::Cycles { .. } => CpuSource::Cycles,
        }
    }

    /// What the clock gains at most in `ns` nanoseconds.
    pub(super) fn most(self, ns: u64) -> i64 {
        let units = match self {
            ThreadClock::Unknown => u128::MAX,
            ThreadClock::Times => u128::from(ns / 100),
            ThreadClock::Cycles { per_second, .. } => u128::from(ns) * u128::from(per_second) / 1_000_000_000,
        };
        i64::try_from(units).unwrap_or(i64::MAX)
    }

    /// The CPU time of `samples` samples in which the clock gained `delta`. Cycles hold the cost of
    /// each sample's suspension.
    pub(super) fn gain(self, delta: i64, samples: u64) -> ClockGain {
        let delta = u64::try_from(delta).unwrap_or(0);
        match self {
            ThreadClock::Unknown => ClockGain::default(),
            ThreadClock::Times => ClockGain { own_ns: delta.saturating_mul(100), sampling_ns: 0 },
            ThreadClock::Cycles { per_second, suspension } => {
                let ns = |cycles: u64| {
                    let ns = u128::from(cycles) * 1_000_000_000 / u128::from(per_second.max(1));
                    u64::try_from(ns).unwrap_or(u64::MAX)
                };
                let sampling = suspension.saturating_mul(samples).min(delta);
                ClockGain { own_ns: ns(delta - sampling), sampling_ns: ns(sampling) }
            }
        }
    }
}

/// The CPU time that a thread, or all of a process, can have used: no more than its processors have
/// in the time that passed.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ClockBound {
    /// When its first sample was taken.
    first_ns: Option<u64>,
    /// The latest reading: those of several threads are not in the order of time.
    last_ns: u64,
    used_ns: u64,
}

/// How much more than that a clock may say: Windows charges a thread with whole ticks of 15.6 ms.
const TICK_NS: u64 = 20_000_000;
/// The rate of cycles is measured, to one part in so many.
const RATE: u64 = 20;

impl ClockBound {
    /// A sample of the thread at this time.
    pub(super) fn begin(&mut self, first_ns: u64) {
        self.first_ns.get_or_insert(first_ns);
    }

    /// How much of `gain_ns` can have been used up to a reading on so many processors.
    pub(super) fn take(&mut self, clock: ThreadClock, gain_ns: u64, read_ns: u64, processors: u64) -> u64 {
        self.last_ns = self.last_ns.max(read_ns);
        let passed = self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns));
        let rate = if matches!(clock, ThreadClock::Cycles { .. }) { passed / RATE } else { 0 };
        let most = passed.saturating_add(rate).saturating_add(TICK_NS).saturating_mul(processors);
        let taken = gain_ns.min(most.saturating_sub(self.used_ns));
        self.used_ns = self.used_ns.saturating_add(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_time_without_the_cost_of_suspensions() {
        let clock = ThreadClock::Cycles { per_second: 2_000_000_000, suspension: 20_000 };
        let gain = |own_ns, sampling_ns| ClockGain { own_ns, sampling_ns };
        // 1 ms at 2 GHz, of which a suspension took 10 us.
        assert_eq!(clock.gain(2_000_000, 1), gain(990_000, 10_000));
        // Three samples of a thread that only waited.
        assert_eq!(clock.gain(60_000, 3), gain(0, 30_000));
        // Samples without a suspension: nothing was gained, so nothing is taken out.
        assert_eq!(clock.gain(0, 100), gain(0, 0));
        assert_eq!(clock.gain(-5, 1), gain(0, 0));
    }

    #[test]
    fn forged_clocks_do_not_overflow() {
        let clock = ThreadClock::Cycles { per_second: 1, suspension: u64::MAX };
        assert_eq!(clock.gain(i64::MAX, u64::MAX).own_ns, 0);
        assert_eq!(clock.gain(i64::MAX, 0).own_ns, u64::MAX);
        assert_eq!(ThreadClock::Times.gain(i64::MAX, 1).own_ns, u64::MAX);
    }

    #[test]
    fn a_clock_that_jumps_is_bounded_by_the_time_passed() {
        let mut bound = ClockBound::default();
        bound.begin(1_000_000_000);
        let mut take = |gain_ns, read_ns| bound.take(ThreadClock::Times, gain_ns, read_ns, 1);
        assert_eq!(take(10_000_000, 1_001_000_000), 10_000_000, "a tick");
        // An hour in a second: what the second and a tick have room for.
        assert_eq!(take(3_600_000_000_000, 2_001_000_000), 1_011_000_000);
        assert_eq!(take(1_000_000, 2_002_000_000), 1_000_000);
        assert_eq!(take(u64::MAX, u64::MAX), u64::MAX - 2_002_000_000);
        let mut early = ClockBound::default();
        assert_eq!(early.take(ThreadClock::Times, u64::MAX, 5, 1), TICK_NS, "no sample");
    }

    #[test]
    fn thread_times_are_units_of_100_ns() {
        assert_eq!(ThreadClock::Times.gain(100_000, 7).own_ns, 10_000_000);
        assert_eq!(ThreadClock::Unknown.gain(100_000, 7), ClockGain::default());
    }
}
