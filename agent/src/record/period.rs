//! How often work is repeated whose cost grows with the process, such as listing its threads.

use stk_schema::Ticks;

/// The work takes at most one of so many parts of the time, as long as its longest period allows.
const SHARE: u64 = 500;
/// The smallest of so many costs counts: a run in which the thread lost its processor took longer.
const COSTS: usize = 4;

/// Work that becomes due again and again, and less often the more it costs.
pub(crate) struct AdaptivePeriod {
    least: Ticks,
    most: Ticks,
    due: Ticks,
    /// What the last runs took, in the order of a ring.
    costs: [Ticks; COSTS],
    next: usize,
}

impl AdaptivePeriod {
    /// Work that is due now, and later from `least` to `most` after the end of its last run.
    pub(crate) fn new(least: Ticks, most: Ticks) -> AdaptivePeriod {
        AdaptivePeriod { least, most, due: Ticks::ZERO, costs: [Ticks::ZERO; COSTS], next: 0 }
    }

    /// Whether the work is to be done at `now`.
    pub(crate) fn is_due(&self, now: Ticks) -> bool {
        now >= self.due
    }

    /// Notes a run of the work.
    pub(crate) fn ran(&mut self, began: Ticks, ended: Ticks) {
        if let Some(cost) = self.costs.get_mut(self.next) {
            *cost = ended.saturating_sub(began);
        }
        self.next = (self.next + 1) % COSTS;
        let cost = self.costs.iter().min().copied().unwrap_or(Ticks::ZERO);
        let period = cost.0.saturating_mul(SHARE).clamp(self.least.0, self.most.0);
        self.due = Ticks(ended.0.saturating_add(period));
    }

    /// Makes the work due at `time` if it would be later.
    pub(crate) fn hurry(&mut self, time: Ticks) {
        self.due = self.due.min(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1000;

    fn period() -> AdaptivePeriod {
        AdaptivePeriod::new(Ticks(50 * MS), Ticks(2000 * MS))
    }

    /// Runs the work until `end`, each time it is due, with these costs in turn; returns how often
    /// it ran and the time that it took.
    fn run(period: &mut AdaptivePeriod, end: u64, costs: &[u64]) -> (u64, u64) {
        let (mut now, mut runs, mut taken) = (0, 0, 0);
        while now < end {
            if period.is_due(Ticks(now)) {
                let cost = costs[runs as usize % costs.len()];
                period.ran(Ticks(now), Ticks(now + cost));
                (now, runs, taken) = (now + cost, runs + 1, taken + cost);
            }
            now += MS;
        }
        (runs, taken)
    }

    #[test]
    fn cheap_work_is_done_as_often_as_it_may_be() {
        // 100 µs in 51 ms.
        let (runs, _) = run(&mut period(), 60_000 * MS, &[100]);
        assert!((1160..=1200).contains(&runs), "{runs}");
    }

    #[test]
    fn costly_work_takes_a_five_hundredth_of_the_time() {
        let (runs, taken) = run(&mut period(), 60_000 * MS, &[3 * MS]);
        // Four runs pass before the cost of four is known.
        assert!(taken < 60_000 * MS / 500 + 5 * 3 * MS && runs > 30, "{runs} runs, {taken} µs");
    }

    #[test]
    fn work_whose_share_cannot_be_kept_is_done_at_its_longest_period() {
        let (runs, _) = run(&mut period(), 60_000 * MS, &[500 * MS]);
        assert!((24..=28).contains(&runs), "{runs}");
    }

    #[test]
    fn one_run_in_four_that_lost_its_processor_changes_nothing() {
        let (calm, _) = run(&mut period(), 60_000 * MS, &[100]);
        let (loaded, taken) = run(&mut period(), 60_000 * MS, &[100, 100, 100, 40 * MS]);
        let lost = (taken - 100 * loaded) / (51 * MS);
        assert!(loaded + lost + 20 >= calm, "{loaded} and {lost} of {calm}");
    }

    #[test]
    fn work_in_a_hurry_is_not_made_later() {
        let mut period = period();
        period.ran(Ticks(0), Ticks(10));
        period.hurry(Ticks(20 * MS));
        assert!(!period.is_due(Ticks(19 * MS)) && period.is_due(Ticks(20 * MS)));
        period.hurry(Ticks(40 * MS));
        assert!(period.is_due(Ticks(20 * MS)));
    }
}
