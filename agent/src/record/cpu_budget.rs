//! The sampler's share of a processor: at most a quarter of one core, or what the user allows
//! (`--max-overhead`).
//!
//! The sampler measures its use by its own CPU time, which does not count waiting for a thread to
//! stop. If it uses more than its share, it looks at each thread less often: passes come less
//! often, and each pass looks at some of the threads only, starting after those of the previous
//! pass. If it uses well below its share, the rate rises again.

use stk_schema::Ticks;

/// The sampler may use this much of one core, in millionths.
const SHARE: u64 = 250_000;
/// Part of the user's budget at which the rate falls, in percent: before it is exceeded.
const AIM_PERCENT: u64 = 90;
/// Most milliseconds between two readings with a small budget.
const MAX_WINDOW_MS: u64 = 2000;
/// CPU time within the budget of one window, in milliseconds: twice the step of a coarse clock.
const WINDOW_CPU_MS: u64 = 20;
/// Looks that an expected cost counts for: as many as are soon made.
const EXPECTED_LOOKS: u64 = 16;
/// Milliseconds of CPU time that one pass may take while the rate is lowered, unless the share of
/// one period is more.
const BURST_MS: u64 = 2;
/// Milliseconds between two readings of the sampler's CPU time: some systems count it in steps of
/// 10 to 16 ms.
const WINDOW_MS: u64 = 250;
/// The nominal rate, in millionths of itself.
const WHOLE: u64 = 1_000_000;
/// The lowest rate, in millionths of the nominal one.
const LOWEST: u64 = 100;

/// How often passes are made, and of how many threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PassPace {
    /// Periods from one pass to the next; 1 = every period has its pass.
    pub stride: u64,
    /// Most threads in one pass; `usize::MAX` = all.
    pub threads: usize,
}

impl PassPace {
    const FULL: PassPace = PassPace { stride: 1, threads: usize::MAX };
}

/// Keeps the sampler within its share.
pub(crate) struct CpuBudget {
    /// From one pass to the next, as asked for.
    period: Ticks,
    /// Millionths of one core that may be used.
    share: u64,
    /// Whether `share` is the user's, so that it is not to be exceeded even for a moment.
    budget: bool,
    window_ms: u64,
    /// Threads for which the rate was last chosen.
    foreseen: usize,
    ticks_per_ms: u64,
    /// Start of the window, and the sampler's CPU time then.
    since: Option<(Ticks, Ticks)>,
    /// Threads looked at in the window.
    looks: u64,
    /// CPU time used, and threads looked at for it, in all windows.
    total: (Ticks, u64),
    /// Each thread's rate in millionths of the nominal one.
    rate: u64,
    pace: PassPace,
    /// Looks left out that do not yet make up a whole pass.
    left_out: u64,
    /// The last reported rate, in millionths of the nominal one.
    reported: u64,
}

impl CpuBudget {
    /// For passes every `period`, with the usual share.
    pub(crate) fn new(period: Ticks, ticks_per_ms: u64) -> CpuBudget {
        CpuBudget {
            period: period.max(Ticks(1)),
            share: SHARE,
            budget: false,
            window_ms: WINDOW_MS,
            foreseen: 0,
            ticks_per_ms,
            since: None,
            looks: 0,
            total: (Ticks::ZERO, 0),
            rate: WHOLE,
            pace: PassPace::FULL,
            left_out: 0,
            reported: WHOLE,
        }
    }

    /// The same with the user's budget, in millionths of one core. The CPU time that is measured
    /// is then that of all the recorder's work for samples. The rate falls before the budget is
    /// exceeded: at nine tenths of it, and as soon as there are more threads than it is enough for.
    pub(crate) fn with_budget(period: Ticks, ticks_per_ms: u64, budget: u64) -> CpuBudget {
        let share = (budget * AIM_PERCENT / 100).max(1);
        let window_ms = (WINDOW_CPU_MS * WHOLE / share).clamp(WINDOW_MS, MAX_WINDOW_MS);
        CpuBudget { share, budget: true, window_ms, ..CpuBudget::new(period, ticks_per_ms) }
    }

    /// Whether there is a budget of the user's.
    pub(crate) fn has_budget(&self) -> bool {
        self.budget
    }

    /// Before the first pass: a look at a thread is expected to cost so much. Without a budget the
    /// first measurement is waited for.
    pub(crate) fn expect(&mut self, look: Ticks) {
        if self.budget && self.total.1 == 0 {
            self.total = (Ticks(look.0.saturating_mul(EXPECTED_LOOKS)), EXPECTED_LOOKS);
        }
    }

    /// With a budget: lowers the rate at once if there are more threads than it is enough for, from
    /// what looks have cost so far. Gives the rate as [`CpuBudget::measured`] does, if it changed.
    pub(crate) fn foresee(&mut self, threads: usize) -> Option<u64> {
        if !self.budget || threads <= self.foreseen + self.foreseen / 4 {
            return None;
        }
        let (used, looks) = self.total;
        let needed = used.0.saturating_mul(threads as u64).checked_div(looks)?.max(1);
        self.foreseen = threads;
        let allowed = self.period.0.saturating_mul(self.share) / WHOLE;
        let rate = (allowed.saturating_mul(WHOLE) / needed).clamp(LOWEST, WHOLE);
        if rate >= self.rate {
            return None;
        }
        self.rate = rate;
        self.pace = self.pace_for(threads as u64);
        self.reported = rate;
        Some(rate)
    }

    /// The pace of the next pass.
    pub(crate) fn pace(&self) -> PassPace {
        self.pace
    }

    /// Notes a pass that looked at `looks` of `threads` threads. Returns the number of whole passes
    /// that were left out since the last call.
    pub(crate) fn passed(&mut self, looks: usize, threads: usize) -> u64 {
        self.looks += looks as u64;
        let threads = threads as u64;
        if threads == 0 {
            return 0;
        }
        self.left_out += self.pace.stride * threads - (looks as u64).min(threads);
        let passes = self.left_out / threads;
        self.left_out %= threads;
        passes
    }

    /// Whether [`CpuBudget::measured`] is to be called at `now`.
    pub(crate) fn is_due(&self, now: Ticks) -> bool {
        self.since.is_none_or(|(since, _)| now.saturating_sub(since).0 >= self.window_ms * self.ticks_per_ms)
    }

    /// Notes that at `now` the sampler's CPU time is `cpu`, and that there are so many threads.
    /// Gives the rate of each thread in millionths of the nominal one, if it changed.
    pub(crate) fn measured(&mut self, now: Ticks, cpu: Ticks, threads: usize) -> Option<u64> {
        let looks = core::mem::take(&mut self.looks);
        let (since, before) = self.since.replace((now, cpu))?;
        // Another thread may be the sampler now, whose clock is another.
        let used = Ticks(cpu.0.checked_sub(before.0)?);
        if looks == 0 || threads == 0 || now <= since {
            return None;
        }
        self.total = (self.total.0 + used, self.total.1 + looks);
        // A sampler that is late looks at fewer threads than its rate asks for.
        let asked = (threads as u64).saturating_mul((now - since).0 / self.period.0).max(1);
        let made = looks.saturating_mul(WHOLE) / asked;
        let allowed = ((now - since).0.saturating_mul(self.share) / WHOLE).max(1);
        self.rate = next_rate(self.rate, made, used.0, allowed);
        self.foreseen = threads;
        self.pace = self.pace_for(threads as u64);
        let changed = self.rate != self.reported
            && (self.rate == WHOLE || self.rate.abs_diff(self.reported) * 10 > self.reported);
        changed.then(|| {
            self.reported = self.rate;
            self.rate
        })
    }

    /// The pace at which so many threads are sampled at the current rate.
    fn pace_for(&self, threads: u64) -> PassPace {
        if self.rate == WHOLE {
            return PassPace::FULL;
        }
        let burst = (self.period.0.saturating_mul(self.share) / WHOLE).max(BURST_MS * self.ticks_per_ms);
        let (used, looks) = self.total;
        let most =
            burst.saturating_mul(looks).checked_div(used.0).map_or(threads, |most| most.clamp(1, threads));
        let stride = (most * WHOLE / (threads * self.rate)).max(1);
        let looks = (threads * self.rate * stride).div_ceil(WHOLE).clamp(1, threads);
        PassPace { stride, threads: looks as usize }
    }
}

/// The rate after a window in which `used` ticks of CPU time were used of `allowed`, and threads
/// looked at with the rate `made`. A window that comes near to what is allowed changes nothing; one
/// well below raises the rate, at most to the double.
fn next_rate(rate: u64, made: u64, used: u64, allowed: u64) -> u64 {
    if used > allowed {
        return (rate.min(made).saturating_mul(allowed) / used).max(LOWEST);
    }
    if used > allowed * 3 / 4 {
        return rate;
    }
    let aim = allowed * 9 / 10;
    let raised = rate.saturating_mul(aim).checked_div(used).unwrap_or(WHOLE);
    raised.min(rate * 2).min(WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 10_000;

    /// Passes of a process with so many threads, each look at which costs `look` ticks of CPU time
    /// and each pass `fixed`, for `ms` milliseconds: share of a core in percent after the first
    /// second, and passes made and left out, in looks.
    fn run(
        duty: &mut CpuBudget,
        period: u64,
        threads: usize,
        look: u64,
        fixed: u64,
        ms: u64,
        grain: u64,
    ) -> (u64, u64, u64) {
        let (mut now, mut cpu, mut from, mut looks, mut left_out) = (0, 0, 0, 0, 0);
        while now < ms * MS {
            let pace = duty.pace();
            let these = pace.threads.min(threads);
            cpu += fixed + look * these as u64;
            looks += these as u64;
            left_out += duty.passed(these, threads) * threads as u64;
            if duty.is_due(Ticks(now)) {
                duty.measured(Ticks(now), Ticks(cpu / grain * grain), threads);
            }
            if now < 1000 * MS {
                from = cpu;
            }
            now += period * duty.pace().stride;
        }
        ((cpu - from) * 100 / ((ms - 1000) * MS), looks, left_out)
    }

    #[test]
    fn a_small_process_is_sampled_in_every_period() {
        let mut duty = CpuBudget::new(Ticks(MS), MS);
        let (share, looks, left_out) = run(&mut duty, MS, 20, 50, 100, 5_000, 1);
        assert_eq!((duty.pace(), left_out), (PassPace::FULL, 0));
        assert_eq!(looks, 5_000 * 20);
        assert!(share <= 11, "{share}");
    }

    #[test]
    fn many_threads_are_sampled_within_a_quarter_of_a_core_at_any_rate() {
        for (period, threads, look, fixed) in [
            (MS, 300, 200, 300),
            (MS, 3_000, 50, 300),
            (10 * MS, 20_000, 60, 300),
            (MS / 20, 10, 60, 300),
            (MS, 1, 4 * MS, 0),
        ] {
            for grain in [1, 10 * MS] {
                let mut duty = CpuBudget::new(Ticks(period), MS);
                let (share, looks, left_out) = run(&mut duty, period, threads, look, fixed, 20_000, grain);
                assert!((12..=26).contains(&share), "{threads} threads each {period} ticks: {share} %");
                let wanted = 20_000 * MS / period * threads as u64;
                let counted = looks + left_out;
                assert!(counted.abs_diff(wanted) <= wanted / 20, "{counted} of {wanted}");
            }
        }
    }

    #[test]
    fn a_sampler_that_hardly_comes_to_run_is_not_limited_although_a_coarse_clock_charges_it_a_step() {
        // A busy machine: 20 passes of 6 threads in 6 s, and at times a step of 10 ms.
        let mut duty = CpuBudget::new(Ticks(MS), MS);
        let mut cpu = 0;
        for window in 0..24u64 {
            duty.passed(5, 6);
            cpu += if window % 2 == 0 { 10 * MS } else { 0 };
            assert_eq!(duty.measured(Ticks(window * WINDOW_MS * MS), Ticks(cpu), 6), None);
        }
        assert_eq!(duty.pace(), PassPace::FULL);
    }

    #[test]
    fn the_rate_comes_back_when_there_is_less_to_do_and_both_are_reported() {
        let mut duty = CpuBudget::new(Ticks(MS), MS);
        let (mut rates, mut cpu) = (Vec::new(), 0);
        for window in 0..40u64 {
            let threads = if window < 20 { 100 } else { 10 };
            let pace = duty.pace();
            let looks = pace.threads.min(threads);
            for _ in 0..WINDOW_MS / pace.stride {
                duty.passed(looks, threads);
                cpu += looks as u64 * 100;
            }
            rates.extend(duty.measured(Ticks(window * WINDOW_MS * MS), Ticks(cpu), threads));
        }
        let lowest = *rates.iter().min().unwrap();
        assert!((WHOLE / 6..=WHOLE / 4).contains(&lowest), "{rates:?}");
        assert_eq!(rates.last(), Some(&WHOLE), "{rates:?}");
        assert_eq!(duty.pace(), PassPace::FULL);
    }

    #[test]
    fn a_clock_that_is_not_there_or_goes_back_limits_nothing() {
        let mut duty = CpuBudget::new(Ticks(MS), MS);
        for window in 1..20u64 {
            duty.passed(1000, 1000);
            assert_eq!(duty.measured(Ticks(window * WINDOW_MS * MS), Ticks((20 - window) * MS), 1000), None);
        }
        assert_eq!(duty.pace(), PassPace::FULL);
    }

    /// As `run`, with the share that the first second alone took, in millionths of a core.
    fn share_of_first_second(duty: &mut CpuBudget, threads: usize, look: u64) -> u64 {
        let (mut now, mut cpu) = (0, 0);
        let mut first = duty.foresee(threads);
        while now < 1000 * MS {
            let these = duty.pace().threads.min(threads);
            cpu += look * these as u64;
            duty.passed(these, threads);
            first = first.or(duty.foresee(threads));
            if duty.is_due(Ticks(now)) {
                duty.measured(Ticks(now), Ticks(cpu), threads);
            }
            now += MS * duty.pace().stride;
        }
        cpu * WHOLE / (1000 * MS)
    }

    #[test]
    fn the_users_budget_is_kept_at_any_size_and_by_a_coarse_clock() {
        for budget in [5_000, 20_000, 100_000] {
            for (threads, look, fixed) in [(300, 200, 300), (10, 60, 300), (1, 4 * MS, 0)] {
                for grain in [1, 10 * MS] {
                    let mut duty = CpuBudget::with_budget(Ticks(MS), MS, budget);
                    let (mut now, mut used, mut from) = (0, 0, 0);
                    while now < 40_000 * MS {
                        if now < 20_000 * MS {
                            from = used;
                        }
                        let these = duty.pace().threads.min(threads);
                        used += fixed + look * these as u64;
                        duty.passed(these, threads);
                        if duty.is_due(Ticks(now)) {
                            duty.measured(Ticks(now), Ticks(used / grain * grain), threads);
                        }
                        now += MS * duty.pace().stride;
                    }
                    let cpu = (used - from) * WHOLE / (20_000 * MS);
                    // A coarse clock shows a window with a step of 10 ms or without one.
                    let most = if grain == 1 { budget } else { budget + budget / 2 };
                    assert!(cpu <= most, "{threads} threads, {budget} allowed, grain {grain}: {cpu}");
                    assert!(cpu >= budget / 3, "{threads} threads, {budget} allowed, grain {grain}: {cpu}");
                }
            }
        }
    }

    #[test]
    fn an_expected_cost_keeps_even_the_first_second_within_the_budget() {
        let mut duty = CpuBudget::with_budget(Ticks(MS), MS, 20_000);
        duty.expect(Ticks(200));
        assert!(share_of_first_second(&mut duty, 100, 200) <= 20_000);
        // Without it the first window shows what a look costs.
        let mut duty = CpuBudget::with_budget(Ticks(MS), MS, 20_000);
        assert!(share_of_first_second(&mut duty, 100, 200) > 20_000);
    }

    #[test]
    fn new_threads_lower_the_rate_before_the_next_measurement() {
        let mut duty = CpuBudget::with_budget(Ticks(MS), MS, 100_000);
        duty.expect(Ticks(100));
        assert_eq!(duty.foresee(5), None, "5 x 100 of 10,000 ticks are 5 %");
        // 9 % aimed at, 50 % needed.
        assert_eq!(duty.foresee(50), Some(180_000));
        assert!(duty.pace().stride > 1 || duty.pace().threads < 50);
        assert_eq!(duty.foresee(50), None);
        let mut usual = CpuBudget::new(Ticks(MS), MS);
        usual.expect(Ticks(100));
        assert_eq!((usual.foresee(5_000), usual.pace()), (None, PassPace::FULL));
    }
}
