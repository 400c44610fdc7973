//! `--trigger cpu>PERCENT`: notices when the process begins to use more CPU time than that.

use stk_schema::Ticks;

/// Milliseconds over which the use is measured: some systems count CPU time in steps of 10 to
/// 16 ms.
const WINDOW_MS: u64 = 1000;

/// Watches the process's CPU time.
#[derive(Debug)]
pub(crate) struct CpuTrigger {
    /// Percent of one processor.
    percent: u64,
    ticks_per_ms: u64,
    /// Start of the window, and the process's CPU time then.
    since: Option<(Ticks, Ticks)>,
    above: bool,
}

impl CpuTrigger {
    pub(crate) fn new(percent: u64, ticks_per_ms: u64) -> CpuTrigger {
        CpuTrigger { percent, ticks_per_ms, since: None, above: false }
    }

    /// Percent of one processor above which a mark is left.
    pub(crate) fn percent(&self) -> u64 {
        self.percent
    }

    /// Whether [`CpuTrigger::look`] is to be called at `now`.
    pub(crate) fn is_due(&self, now: Ticks) -> bool {
        self.since.is_none_or(|(since, _)| now.saturating_sub(since).0 >= WINDOW_MS * self.ticks_per_ms)
    }

    /// Notes that at `now` the process has used `cpu`. Returns the use in percent of one processor
    /// if it is above the limit and was not in the window before.
    pub(crate) fn look(&mut self, now: Ticks, cpu: Ticks) -> Option<u64> {
        let (since, before) = self.since.replace((now, cpu))?;
        let (span, used) = (now.saturating_sub(since).0, cpu.saturating_sub(before).0);
        let percent = used.saturating_mul(100).checked_div(span)?;
        let was_above = core::mem::replace(&mut self.above, percent > self.percent);
        (self.above && !was_above).then_some(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rise_above_the_limit_is_noticed_once() {
        let mut trigger = CpuTrigger::new(50, 1000);
        let (mut now, mut cpu) = (7_000_000, 0);
        let mut second = |percent: u64| {
            assert!(trigger.is_due(Ticks(now)));
            let noticed = trigger.look(Ticks(now), Ticks(cpu));
            assert!(!trigger.is_due(Ticks(now + 999_999)));
            (now, cpu) = (now + 1_000_000, cpu + percent * 10_000);
            noticed
        };
        // Each call ends the second before.
        let used = [10, 180, 170, 50, 51, 0];
        assert_eq!(used.map(&mut second), [None, None, Some(180), None, None, Some(51)]);
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_notices_nothing() {
        let mut trigger = CpuTrigger::new(0, 1000);
        for (now, cpu) in [(5, 100), (5, 200), (4, 100), (3, 0)] {
            assert_eq!(trigger.look(Ticks(now), Ticks(cpu)), None);
        }
    }
}
