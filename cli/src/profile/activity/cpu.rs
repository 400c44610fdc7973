//! Shares a thread's CPU time out among its runs.
//!
//! A thread's clock may tick rarely: every 10 ms under Wine, while a sample is taken every
//! millisecond. What it gains at a tick was used by all runs since the tick before. Bursts that are
//! shorter than an interval are met too seldom by samples, so time also gathers in intervals whose
//! samples wait. So a tick's time goes to the runs since the tick before that show a thread on a
//! processor, by the time that they cover. If there are none, it goes to the next ones.

use crate::profile::Run;

/// Runs held at most while no tick comes.
const MOST_HELD: usize = 64 << 10;

/// How well CPU time fits a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Fit {
    /// The thread waited, or did not run.
    Last,
    /// It may have waited.
    Maybe,
    /// It ran.
    Good,
}

/// The runs of a thread since the last tick of its clock.
#[derive(Default)]
pub(super) struct ClockShare {
    held: Vec<(Run, Fit)>,
    /// The best fit among them; `None` if there are none.
    best: Option<Fit>,
    /// Time for which no run was found yet, in nanoseconds.
    carried: u64,
}

impl ClockShare {
    /// Adds the thread's next run. Calls `each` with the runs whose CPU time is known.
    pub(super) fn push<E>(
        &mut self,
        run: Run,
        fit: Fit,
        each: impl FnMut(Run) -> Result<(), E>,
    ) -> Result<(), E> {
        self.carried = self.carried.saturating_add(run.cpu_ns);
        self.held.push((Run { cpu_ns: 0, ..run }, fit));
        self.best = self.best.max(Some(fit));
        if run.cpu_ns != 0 && self.best == Some(Fit::Good) || self.held.len() >= MOST_HELD {
            self.give(each)
        } else {
            Ok(())
        }
    }

    /// Calls `each` with the remaining runs.
    pub(super) fn end<E>(&mut self, each: impl FnMut(Run) -> Result<(), E>) -> Result<(), E> {
        self.give(each)
    }

    fn give<E>(&mut self, mut each: impl FnMut(Run) -> Result<(), E>) -> Result<(), E> {
        let best = self.best.take();
        let weight = |run: &Run| u128::from(run.weight_ns.max(1));
        let mut whole: u128 =
            self.held.iter().filter(|(_, fit)| Some(*fit) == best).map(|(run, _)| weight(run)).sum();
        for (mut run, fit) in self.held.drain(..) {
            if Some(fit) == best {
                // Each gets its part of what is left, so that nothing is lost by rounding.
                let part = u128::from(self.carried) * weight(&run) / whole.max(1);
                run.cpu_ns = u64::try_from(part).unwrap_or(self.carried);
                self.carried -= run.cpu_ns;
                whole -= weight(&run);
            }
            each(run)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Activity, RunFlags, StopId};
    use std::convert::Infallible;
    use stk_schema::event::RunState;

    fn run(weight_ns: u64, cpu_ns: u64) -> Run {
        Run {
            node: None,
            stop: StopId(0),
            first_ns: 0,
            last_ns: 0,
            weight_ns,
            samples: 1,
            cpu_ns,
            state: RunState::Unknown,
            activity: Activity::Unknown,
            flags: RunFlags::empty(),
        }
    }

    /// The CPU times of runs of these weights, clock gains and fits.
    fn shared(runs: &[(u64, u64, Fit)]) -> Vec<u64> {
        let (mut share, mut out) = (ClockShare::default(), Vec::new());
        let mut each = |run: Run| {
            out.push(run.cpu_ns);
            Ok::<(), Infallible>(())
        };
        for &(weight, cpu, fit) in runs {
            share.push(run(weight, cpu), fit, &mut each).unwrap();
        }
        share.end(&mut each).unwrap();
        assert_eq!(out.len(), runs.len());
        assert_eq!(out.iter().sum::<u64>(), runs.iter().map(|run| run.1).sum::<u64>(), "time was lost");
        out
    }

    use Fit::{Good, Last, Maybe};

    #[test]
    fn a_tick_is_shared_by_all_runs_since_the_tick_before() {
        assert_eq!(shared(&[(1, 0, Good), (3, 10, Good), (1, 5, Good)]), [2, 8, 5]);
    }

    #[test]
    fn runs_that_wait_get_nothing_while_others_run() {
        assert_eq!(shared(&[(90, 0, Last), (5, 0, Good), (90, 10, Last), (5, 0, Good)]), [0, 10, 0, 0]);
    }

    #[test]
    fn a_tick_without_a_fitting_run_goes_to_the_next_ones() {
        assert_eq!(shared(&[(90, 10, Last), (90, 10, Last), (5, 0, Good), (5, 10, Good)]), [0, 0, 15, 15]);
    }

    #[test]
    fn a_thread_that_only_waits_keeps_its_time_there() {
        assert_eq!(shared(&[(10, 10, Last), (10, 0, Last)]), [5, 5]);
        assert_eq!(shared(&[(10, 10, Last), (10, 0, Maybe)]), [0, 10]);
    }

    #[test]
    fn weights_of_zero_share_too() {
        assert_eq!(shared(&[(0, 0, Good), (0, 7, Good)]), [3, 4]);
    }
}
