//! The rate at which the system counts a running thread's cycles, measured by short spins.

use stk_schema::Ticks;

/// The highest rate of several spins. Another thread may take the processor away during a spin:
/// then time passes without cycles, so the highest rate is the true one.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CycleRate(u64);

impl CycleRate {
    /// Adds a spin: the cycles counted, and the time that it took. `frequency`: ticks a second.
    pub(crate) fn add(&mut self, cycles: u64, elapsed: Ticks, frequency: u64) {
        if let Some(rate) = (u128::from(cycles) * u128::from(frequency)).checked_div(elapsed.0.into()) {
            self.0 = self.0.max(u64::try_from(rate).unwrap_or(0));
        }
    }

    /// Cycles a second; `None` if no cycles were counted.
    pub(crate) fn per_second(self) -> Option<u64> {
        (self.0 != 0).then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spin_that_lost_the_processor_does_not_lower_the_rate() {
        let mut rate = CycleRate::default();
        // 200 us at 3 GHz, ticks of 100 ns; the second spin took 15 ms for the same work.
        for elapsed in [2_000, 150_000, 2_010] {
            rate.add(600_000, Ticks(elapsed), 10_000_000);
        }
        assert_eq!(rate.per_second(), Some(3_000_000_000));
    }

    #[test]
    fn without_cycles_or_time_there_is_no_rate() {
        let mut rate = CycleRate::default();
        rate.add(0, Ticks(2_000), 10_000_000);
        rate.add(5, Ticks(0), 10_000_000);
        assert_eq!(rate.per_second(), None);
    }
}
