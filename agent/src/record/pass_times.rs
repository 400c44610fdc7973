//! When passes are due. Not in even steps: a program that repeats its work in about the time
//! between two passes would be sampled at the same places of it again and again.

use stk_schema::Ticks;

/// Chooses the times of passes.
pub(crate) struct PassTimes {
    /// Of [`next_random`]: never 0.
    random: u64,
}

/// A pass is due up to so large a part of a period before or after its even time.
const PART: u64 = 4;

impl PassTimes {
    /// Any seed gives times that differ from those of others.
    pub(crate) fn new(seed: u64) -> PassTimes {
        PassTimes { random: seed | 1 }
    }

    /// When the pass after the one that was due at `due` is to be, on average `period` later, which
    /// can be before `now`; and how many it is too late for at `now`, which are left out. These are
    /// one `step` apart.
    pub(crate) fn next(&mut self, due: Ticks, now: Ticks, period: Ticks, step: Ticks) -> (Ticks, u64) {
        let part = step.0 / PART;
        let mut even = due.0.saturating_add(period.0);
        let mut late = 0;
        // Up to a part of a period later, it is made at once.
        if now.0 > even.saturating_add(part) {
            late = (now.0 - even) / step.0.max(1) + 1;
            even = even.saturating_add(late.saturating_mul(step.0));
        }
        (Ticks(even.saturating_sub(part).saturating_add(self.below(2 * part))), late)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(next_random(&mut self.random)) * u128::from(end)) >> 64) as u64
    }
}

/// The number after this one, which is not 0, in the order of xorshift64.
pub(super) fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Ticks = Ticks(10_000);

    /// The times of passes that take so long, and how many are left out.
    fn passes(count: usize, takes: u64) -> (Vec<u64>, u64) {
        let mut times = PassTimes::new(7);
        let (mut due, mut at, mut left_out) = (Ticks(0), Vec::new(), 0);
        let mut now = 0;
        for _ in 0..count {
            now = due.0.max(now);
            at.push(now);
            now += takes;
            let (next, late) = times.next(due, Ticks(now), PERIOD, PERIOD);
            (due, left_out) = (next, left_out + late);
        }
        (at, left_out)
    }

    #[test]
    fn passes_come_at_the_rate_and_at_no_even_times() {
        let (at, left_out) = passes(10_000, 100);
        assert_eq!(left_out, 0);
        let gaps: Vec<u64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| (7_500..12_500).contains(gap)));
        let mean = at.last().unwrap() / (at.len() as u64 - 1);
        assert!((9_900..10_100).contains(&mean), "{mean}");
        // In a program that repeats its work in a period, every tenth of it is met as often.
        let mut met = [0; 10];
        at.iter().for_each(|time| met[(time % PERIOD.0 / 1_000) as usize] += 1);
        assert!(met.iter().all(|count| (500..2_000).contains(count)), "{met:?}");
    }

    #[test]
    fn passes_of_three_quarters_of_a_period_leave_few_out() {
        let (at, left_out) = passes(10_000, 7_500);
        assert!(left_out < 100, "{left_out}");
        let mean = at.last().unwrap() / (at.len() as u64 - 1);
        assert!((9_900..10_200).contains(&mean), "{mean}");
    }

    #[test]
    fn passes_that_it_is_too_late_for_are_counted() {
        let mut times = PassTimes::new(0);
        let (next, late) = times.next(Ticks(50_000), Ticks(95_000), PERIOD, PERIOD);
        assert_eq!(late, 4, "of 60, 70, 80 and 90 thousand");
        assert!((97_500..102_500).contains(&next.0), "{next:?}");
        let (next, late) = times.next(Ticks(50_000), Ticks(52_000), Ticks(40_000), PERIOD);
        assert_eq!(late, 0);
        assert!((87_500..92_500).contains(&next.0), "four periods are one pass: {next:?}");
    }
}
