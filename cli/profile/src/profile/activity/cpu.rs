//! Shares a thread's CPU time out among its runs.
//!
//! A thread's clock may tick rarely: every 10 ms under Wine, while a sample is taken every
//! millisecond. What it gains at a tick was used by all runs since the tick before, and by the run
//! that this was read at, which continues behind the reading. Bursts that are shorter than an
//! interval are met too seldom by samples, so time also gathers in intervals whose samples wait. So
//! a tick's time goes to those of these runs that show a thread on a processor, by the time that
//! they cover. If there are none, it goes to system calls that may work, else to what the thread
//! ran before the wait that the tick met: no wait uses CPU time.
//!
//! Each suspension costs the suspended thread CPU time of its own. A thread that only waits shows
//! how much: its clock gains nothing else. Single ticks are too coarse for that, so several such
//! threads are taken together: the cheaper half, since the others also work now and then.

use crate::profile::Run;
use crate::profile::placeholder::BeforeWaits;

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

/// Fewest samples of waiting threads that show what a sample costs.
const FEWEST_SAMPLES: u64 = 1_000;
/// Fewest samples of a thread in a hundred that wait, for one that only waits.
const WAITING_PERCENT: u64 = 99;

/// CPU time that being sampled costs a thread.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SamplingCost {
    /// Nanoseconds for one sample.
    pub ns: u64,
}

/// Samples of threads, with what their clocks gained.
#[derive(Clone, Copy, Default)]
pub(super) struct ThreadSum {
    samples: u64,
    waiting: u64,
    cpu_ns: u64,
}

impl ThreadSum {
    /// Adds a run, which may wait.
    pub(super) fn add(&mut self, run: &Run, waits: bool) {
        let samples = u64::from(run.samples);
        self.samples += samples;
        self.waiting += if waits { samples } else { 0 };
        self.cpu_ns = self.cpu_ns.saturating_add(run.cpu_ns);
    }

    /// Whether the thread only waits.
    fn only_waits(&self) -> bool {
        self.samples != 0 && self.waiting * 100 >= self.samples * WAITING_PERCENT
    }

    /// CPU time for one sample, in nanoseconds.
    fn ns_per_sample(&self) -> u64 {
        self.cpu_ns / self.samples.max(1)
    }
}

impl SamplingCost {
    /// What a sample costs those of the threads that only wait, by the cheaper half of their
    /// samples; nothing if there are too few.
    pub(super) fn of_threads(threads: impl IntoIterator<Item = ThreadSum>) -> SamplingCost {
        let mut waiting: Vec<ThreadSum> = threads.into_iter().filter(ThreadSum::only_waits).collect();
        waiting.sort_by_key(ThreadSum::ns_per_sample);
        let all: u64 = waiting.iter().map(|thread| thread.samples).sum();
        if all < FEWEST_SAMPLES {
            return SamplingCost::default();
        }
        let enough = (all / 2).max(FEWEST_SAMPLES);
        let mut cheap = ThreadSum::default();
        for thread in waiting {
            if cheap.samples >= enough {
                break;
            }
            cheap.samples += thread.samples;
            cheap.cpu_ns = cheap.cpu_ns.saturating_add(thread.cpu_ns);
        }
        SamplingCost { ns: cheap.ns_per_sample() }
    }
}

/// Shares the CPU time of a thread out among its runs, in place, as they are added.
pub(super) struct ClockShare<'b> {
    cost: SamplingCost,
    /// What threads ran before they waited.
    before: &'b BeforeWaits,
    /// Cost of the samples so far that no tick has paid yet, in nanoseconds.
    owed: u64,
    /// Cost of the samples so far that ticks have paid, in nanoseconds.
    paid: u64,
    /// How many of the runs have their CPU time.
    done: usize,
    /// Of each later one, how well it fits: those since the last tick, and the run that this was
    /// read at, which continues behind the reading.
    fits: Vec<Fit>,
    /// The best fit among them; `None` if there are none.
    best: Option<Fit>,
    /// Time that is not given to a run yet, in nanoseconds.
    carried: u64,
    /// Runs that are to be inserted, each with the index of the one that it comes before.
    inserted: Vec<(usize, Run)>,
}

impl ClockShare<'_> {
    /// For one thread.
    pub(super) fn new(cost: SamplingCost, before: &BeforeWaits) -> ClockShare<'_> {
        ClockShare {
            cost,
            before,
            owed: 0,
            paid: 0,
            done: 0,
            fits: Vec::new(),
            best: None,
            carried: 0,
            inserted: Vec::new(),
        }
    }

    /// CPU time that the thread's samples cost it and that is taken out, in nanoseconds.
    pub(super) fn sampling_ns(&self) -> u64 {
        self.paid
    }

    /// Adds the last of the thread's runs, which are those since [`take`](Self::take).
    pub(super) fn add(&mut self, runs: &mut [Run], fit: Fit) {
        let Some(run) = runs.last_mut() else { return };
        self.owed = self.owed.saturating_add(self.cost.ns.saturating_mul(run.samples.into()));
        let gained = std::mem::take(&mut run.cpu_ns);
        let paid = self.owed.min(gained);
        self.owed -= paid;
        self.paid = self.paid.saturating_add(paid);
        self.carried = self.carried.saturating_add(gained - paid);
        self.fits.push(fit);
        self.best = self.best.max(Some(fit));
        if gained != 0 || self.fits.len() >= MOST_HELD {
            self.give(runs, 1);
        }
    }

    /// Whether there are more runs than were added, which [`take`](Self::take) inserts.
    pub(super) fn inserts(&self) -> bool {
        !self.inserted.is_empty()
    }

    /// No more runs follow.
    pub(super) fn end(&mut self, runs: &mut [Run]) {
        self.give(runs, 0);
    }

    /// Calls `each` with the runs that have their CPU time, and takes them away.
    pub(super) fn take<E>(
        &mut self,
        runs: &mut Vec<Run>,
        mut each: impl FnMut(Run) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut inserted = self.inserted.drain(..).peekable();
        for (at, run) in runs.drain(..self.done).enumerate() {
            while let Some((_, ran)) = inserted.next_if(|(before, _)| *before <= at) {
                each(ran)?;
            }
            each(run)?;
        }
        self.done = 0;
        inserted.try_for_each(|(_, ran)| each(ran))
    }

    /// Gives the time to the runs that it fits best. All but the last `kept` have theirs then.
    fn give(&mut self, runs: &mut [Run], kept: usize) {
        let best = self.best.take();
        let before = self.before;
        // A wait uses no CPU time.
        let takes = |run: &Run, fit: Fit| Some(fit) == best && (fit != Fit::Last || !before.is_of(run));
        let weight = |run: &Run| u128::from(run.weight_ns.max(1));
        let held = &mut runs[self.done..];
        if self.carried > 0 {
            let all = held.iter().zip(&self.fits).filter(|(run, fit)| takes(run, **fit));
            let mut whole: u128 = all.map(|(run, _)| weight(run)).sum();
            for (run, _) in held.iter_mut().zip(&self.fits).filter(|(run, fit)| takes(run, **fit)) {
                // Each gets its part of what is left, so that nothing is lost by rounding.
                let own = weight(run);
                let part = if own == whole {
                    self.carried
                } else {
                    u64::try_from(u128::from(self.carried) * own / whole).unwrap_or(self.carried)
                };
                run.cpu_ns = run.cpu_ns.saturating_add(part);
                self.carried -= part;
                whole -= own;
            }
        }
        if self.carried > 0
            && let Some(wait) = held.last()
            && let Some(ran) = before.run(wait, self.carried)
        {
            self.carried = 0;
            self.inserted.push((runs.len() - 1, ran));
        }
        let done = self.fits.len().saturating_sub(kept);
        self.done += done;
        self.fits.drain(..done);
        self.best = self.fits.iter().copied().max();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Activity, NodeId, RunFlags, StopId, Wait};
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
            capture_tag: 0,
        }
    }

    /// The runs that become of these. Some are taken before the others are added.
    fn taken(share: &mut ClockShare<'_>, added: impl Iterator<Item = (Run, Fit)>) -> Vec<Run> {
        let (mut held, mut out) = (Vec::new(), Vec::new());
        for (at, (run, fit)) in added.enumerate() {
            held.push(run);
            share.add(&mut held, fit);
            if at % 2 == 0 {
                take(share, &mut held, &mut out);
            }
        }
        share.end(&mut held);
        take(share, &mut held, &mut out);
        assert_eq!(held, []);
        out
    }

    fn take(share: &mut ClockShare<'_>, held: &mut Vec<Run>, out: &mut Vec<Run>) {
        let each = |run: Run| {
            out.push(run);
            Ok::<(), Infallible>(())
        };
        share.take(held, each).unwrap();
    }

    /// The CPU times of runs of these weights, clock gains and fits.
    fn shared(runs: &[(u64, u64, Fit)]) -> Vec<u64> {
        let before = BeforeWaits::default();
        let added = runs.iter().map(|&(weight, cpu, fit)| (run(weight, cpu), fit));
        let out = taken(&mut ClockShare::new(SamplingCost::default(), &before), added);
        let out: Vec<u64> = out.into_iter().map(|run| run.cpu_ns).collect();
        assert_eq!(out.len(), runs.len());
        assert_eq!(out.iter().sum::<u64>(), runs.iter().map(|run| run.1).sum::<u64>(), "time was lost");
        out
    }

    use Fit::{Good, Last, Maybe};

    #[test]
    fn a_tick_is_shared_by_all_runs_since_the_tick_before() {
        // 10 by 1 to 3, then 5 by 3 to 1.
        assert_eq!(shared(&[(1, 0, Good), (3, 10, Good), (1, 5, Good)]), [2, 11, 2]);
    }

    #[test]
    fn a_tick_at_a_wait_is_that_of_the_run_before_it() {
        assert_eq!(shared(&[(20, 10, Good), (20, 10, Last), (20, 0, Last)]), [20, 0, 0]);
    }

    #[test]
    fn runs_that_wait_get_nothing_while_others_run() {
        assert_eq!(shared(&[(90, 0, Last), (5, 0, Good), (90, 10, Last), (5, 0, Good)]), [0, 10, 0, 0]);
    }

    #[test]
    fn a_tick_of_runs_without_a_stack_is_theirs() {
        assert_eq!(shared(&[(90, 0, Last), (10, 20, Last), (5, 0, Good), (5, 10, Good)]), [18, 2, 5, 5]);
        assert_eq!(shared(&[(10, 10, Last), (10, 0, Maybe)]), [10, 0]);
        assert_eq!(shared(&[(10, 0, Maybe), (10, 10, Last)]), [10, 0], "a system call may work");
    }

    #[test]
    fn a_tick_that_only_waits_met_was_used_before_the_last_of_them() {
        let (wait, ran) = (NodeId(1), NodeId(2));
        let before = BeforeWaits { nodes: [(wait, ran)].into() };
        let waits = Activity::Waiting(Wait::default());
        let added = [0, 30].map(|cpu_ns| Run { node: Some(wait), activity: waits, ..run(50, cpu_ns) });
        let mut share = ClockShare::new(SamplingCost::default(), &before);
        let out = taken(&mut share, added.into_iter().map(|run| (run, Last)));
        let out: Vec<_> =
            out.into_iter().map(|run| (run.node, run.samples, run.weight_ns, run.cpu_ns)).collect();
        assert_eq!(out, [(Some(wait), 1, 50, 0), (Some(ran), 0, 0, 30), (Some(wait), 1, 50, 0)]);
    }

    #[test]
    fn the_cost_of_samples_is_taken_out_of_the_next_ticks() {
        let before = BeforeWaits::default();
        let mut share = ClockShare::new(SamplingCost { ns: 4 }, &before);
        // Until the first tick two samples cost 8, of which it pays 5. The second tick pays the
        // other 3 and the 4 of its own sample: 3 are left for two runs.
        let out = taken(&mut share, [0, 5, 10].into_iter().map(|cpu_ns| (run(1, cpu_ns), Good)));
        assert_eq!(share.sampling_ns(), 12);
        let out: Vec<u64> = out.into_iter().map(|run| run.cpu_ns).collect();
        assert_eq!(out, [0, 1, 2]);
    }

    fn thread(samples: u64, waiting: u64, cpu_ns: u64) -> ThreadSum {
        ThreadSum { samples, waiting, cpu_ns }
    }

    #[test]
    fn threads_that_only_wait_show_what_a_sample_costs() {
        let waiting = [thread(600, 600, 30_000), thread(600, 594, 30_000)];
        assert_eq!(SamplingCost::of_threads(waiting), SamplingCost { ns: 50 });
        let runs_at_times = thread(600, 590, 900);
        let cost = SamplingCost::of_threads(waiting.into_iter().chain([runs_at_times]));
        assert_eq!(cost, SamplingCost { ns: 50 }, "a thread that runs now and then shows nothing");
        let few = [thread(999, 999, 30_000), thread(0, 0, 0)];
        assert_eq!(SamplingCost::of_threads(few), SamplingCost::default(), "too few samples");
    }

    #[test]
    fn threads_that_also_work_do_not_make_a_sample_dear() {
        let pure = thread(1_000, 1_000, 60_000);
        let working = thread(1_000, 1_000, 525_000);
        assert_eq!(SamplingCost::of_threads([working, pure]), SamplingCost { ns: 60 });
        // Half of 4,000 samples is in the two cheapest.
        let four = [working, thread(1_000, 1_000, 80_000), pure, working];
        assert_eq!(SamplingCost::of_threads(four), SamplingCost { ns: 70 });
    }

    #[test]
    fn weights_of_zero_share_too() {
        assert_eq!(shared(&[(0, 0, Good), (0, 7, Good)]), [3, 4]);
    }
}
