//! The sampler's share of a processor: at most a quarter of one core.
//!
//! From the sampler's own CPU time (waiting for a thread to stop is none) and the number of threads that it looked at comes what one look
//! costs. If looking at every thread in every period would take more than the share, passes come less often, and where one pass would keep
//! a core busy for too long it looks at some threads only and the next goes on behind them. Every thread then has the same, lower rate.

/// The sampler may use one part in this many of one core.
const SHARE: u64 = 4;
/// Milliseconds of CPU time that one pass may take, unless the share of one period is more.
const BURST_MS: u64 = 2;
/// Milliseconds between two looks at the sampler's CPU time: some systems count it in steps of 10 to 16 ms.
const WINDOW_MS: u64 = 250;
/// Costs are kept in parts of a tick.
const FINE: u64 = 1024;
/// The nominal rate, in millionths of itself.
const WHOLE: u64 = 1_000_000;

/// How passes are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Periods from one pass to the next; 1 = every period has its pass.
    pub stride: u64,
    /// Most threads in one pass; `usize::MAX` = all.
    pub threads: usize,
}

impl Pace {
    const FULL: Pace = Pace { stride: 1, threads: usize::MAX };
}

/// Keeps the sampler to its share.
pub struct Duty {
    /// Ticks from one pass to the next, as asked for.
    period: u64,
    ticks_per_ms: u64,
    /// Start of the window, in ticks, and the sampler's CPU time then, in ticks.
    since: Option<(u64, u64)>,
    /// Threads looked at in the window.
    looks: u64,
    /// CPU ticks of one look, times [`FINE`]; 0 = not known yet.
    cost: u64,
    pace: Pace,
    /// Looks left out that do not make up a whole pass yet.
    left_out: u64,
    /// The last reported rate, in millionths of the nominal one.
    reported: u64,
}

impl Duty {
    /// For passes every `period` ticks.
    pub fn new(period: u64, ticks_per_ms: u64) -> Duty {
        Duty {
            period: period.max(1),
            ticks_per_ms,
            since: None,
            looks: 0,
            cost: 0,
            pace: Pace::FULL,
            left_out: 0,
            reported: WHOLE,
        }
    }

    /// How the next pass is to be made.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Notes a pass that looked at `looks` of `threads` threads; gives the number of whole passes that were left out since the last call.
    pub fn passed(&mut self, looks: usize, threads: usize) -> u64 {
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

    /// Whether [`Duty::measured`] is to be called at `now` (ticks).
    pub fn is_due(&self, now: u64) -> bool {
        self.since.is_none_or(|(since, _)| now.saturating_sub(since) >= WINDOW_MS * self.ticks_per_ms)
    }

    /// Notes that at `now` the sampler's CPU time is `cpu`, both in ticks, and that there are so many threads. Gives the rate of each
    /// thread in millionths of the nominal one, if it changed.
    pub fn measured(&mut self, now: u64, cpu: u64, threads: usize) -> Option<u64> {
        let looks = core::mem::take(&mut self.looks);
        let (_, before) = self.since.replace((now, cpu))?;
        // Another thread may be the sampler now, whose clock is another.
        let (Some(used), true) = (cpu.checked_sub(before), looks != 0 && threads != 0) else { return None };
        let cost = used.saturating_mul(FINE) / looks;
        self.cost = if self.cost == 0 { cost } else { (self.cost + cost) / 2 };
        let mut pace = self.pace_for(self.cost, threads);
        if self.rate_of(pace, threads) > self.rate_of(self.pace, threads) {
            // Up only with something to spare, so that the rate does not swing between two steps.
            pace = self.pace_for(self.cost + self.cost / 8, threads);
            if self.rate_of(pace, threads) <= self.rate_of(self.pace, threads) {
                pace = self.pace;
            }
        }
        self.pace = pace;
        let rate = self.rate_of(pace, threads);
        let changed =
            rate != self.reported && (rate == WHOLE || rate.abs_diff(self.reported) * 10 > self.reported);
        changed.then(|| {
            self.reported = rate;
            rate
        })
    }

    /// The pace at which looks of this cost keep to the share.
    fn pace_for(&self, cost: u64, threads: usize) -> Pace {
        let budget = self.period * FINE / SHARE;
        let all = cost.saturating_mul(threads as u64);
        if all <= budget {
            return Pace::FULL;
        }
        let burst = budget.max(BURST_MS * self.ticks_per_ms * FINE);
        let looks = (burst / cost).clamp(1, threads as u64);
        let stride = (looks * cost).div_ceil(budget.max(1)).max(1);
        Pace { stride, threads: if looks == threads as u64 { usize::MAX } else { looks as usize } }
    }

    /// Each thread's rate in millionths of the nominal one.
    fn rate_of(&self, pace: Pace, threads: usize) -> u64 {
        let looks = pace.threads.min(threads) as u64;
        WHOLE * looks / (threads.max(1) as u64 * pace.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 10_000;

    /// Passes of a process with so many threads, each look at which costs `look` ticks of CPU time and each pass `fixed`, for `ms`
    /// milliseconds: share of a core in percent after the first second, and passes made and left out, in looks.
    fn run(
        duty: &mut Duty,
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
            if duty.is_due(now) {
                duty.measured(now, cpu / grain * grain, threads);
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
        let mut duty = Duty::new(MS, MS);
        let (share, looks, left_out) = run(&mut duty, MS, 20, 50, 100, 5_000, 1);
        assert_eq!((duty.pace(), left_out), (Pace::FULL, 0));
        assert_eq!(looks, 5_000 * 20);
        assert!(share <= 11, "{share}");
    }

    #[test]
    fn more_threads_than_fit_are_sampled_within_a_quarter_of_a_core_at_any_rate() {
        for (period, threads, look, fixed) in [
            (MS, 300, 200, 300),
            (MS, 3_000, 50, 300),
            (10 * MS, 20_000, 60, 300),
            (MS / 20, 10, 60, 300),
            (MS, 1, 40 * MS, 0),
        ] {
            for grain in [1, 10 * MS] {
                let mut duty = Duty::new(period, MS);
                let (share, looks, left_out) = run(&mut duty, period, threads, look, fixed, 20_000, grain);
                // Steps of a coarse clock are 4 % of a window.
                assert!((12..=27).contains(&share), "{threads} threads each {period} ticks: {share} %");
                let wanted = 20_000 * MS / period * threads as u64;
                let counted = looks + left_out;
                assert!(counted.abs_diff(wanted) <= wanted / 20, "{counted} of {wanted}");
            }
        }
    }

    #[test]
    fn the_rate_comes_back_when_there_is_less_to_do_and_both_are_reported_once() {
        let mut duty = Duty::new(MS, MS);
        let mut rates = Vec::new();
        let mut cpu = 0;
        for window in 0..40u64 {
            let (threads, look) = if window < 20 { (100, 100) } else { (10, 100) };
            let pace = duty.pace();
            let passes = WINDOW_MS / pace.stride;
            for _ in 0..passes {
                duty.passed(pace.threads.min(threads), threads);
            }
            cpu += passes * pace.threads.min(threads) as u64 * look;
            rates.extend(duty.measured(window * WINDOW_MS * MS, cpu, threads));
        }
        assert_eq!(rates.len(), 2, "{rates:?}");
        assert!(rates[0] <= WHOLE / 4, "{rates:?}");
        assert_eq!(rates[1], WHOLE);
        assert_eq!(duty.pace(), Pace::FULL);
    }

    #[test]
    fn a_clock_that_is_not_there_or_goes_back_limits_nothing() {
        let mut duty = Duty::new(MS, MS);
        for window in 1..20u64 {
            duty.passed(1000, 1000);
            assert_eq!(duty.measured(window * WINDOW_MS * MS, (20 - window) * MS, 1000), None);
        }
        assert_eq!(duty.pace(), Pace::FULL);
    }
}
