//! Waits that end by the clock. A sleep of 1 ms lasts up to 15.6 ms where nobody has asked the
//! system for a finer clock, so a number of sleeps is no limit.

use stk_schema::Ticks;

/// A clock, and a sleep that may last longer than it should.
pub(crate) trait Sleeper {
    fn now(&mut self) -> Ticks;

    fn sleep(&mut self, milliseconds: u32);
}

/// Sleeps `step_ms` at a time until `is_over`, for `limit` at most; false if it is not over then.
pub(crate) fn wait_until(
    clock: &mut impl Sleeper,
    limit: Ticks,
    step_ms: u32,
    mut is_over: impl FnMut() -> bool,
) -> bool {
    wait_for(clock, limit, step_ms, || is_over().then_some(())).is_some()
}

/// As [`wait_until`] until `look` gives something, which is then returned.
pub(crate) fn wait_for<T>(
    clock: &mut impl Sleeper,
    limit: Ticks,
    step_ms: u32,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    let begun = clock.now();
    loop {
        let found = look();
        if found.is_some() || clock.now().saturating_sub(begun) >= limit {
            return found;
        }
        clock.sleep(step_ms);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A clock whose ticks are microseconds, and whose sleeps end with the system's clock
    /// interrupt.
    #[derive(Default)]
    pub(crate) struct CoarseClock {
        pub now: Ticks,
        pub sleeps: u32,
    }

    /// Microseconds between two interrupts, rounded up.
    pub(crate) const INTERRUPT_US: u64 = 16_000;

    impl Sleeper for CoarseClock {
        fn now(&mut self) -> Ticks {
            self.now
        }

        fn sleep(&mut self, milliseconds: u32) {
            self.sleeps += 1;
            let until = self.now.0 + u64::from(milliseconds) * 1_000;
            self.now = Ticks(until.div_ceil(INTERRUPT_US) * INTERRUPT_US);
        }
    }

    #[test]
    fn a_limit_ends_by_the_clock_however_long_a_sleep_lasts() {
        let mut clock = CoarseClock::default();
        assert!(!wait_until(&mut clock, Ticks(10_000_000), 1, || false));
        assert!((10_000_000..10_000_000 + INTERRUPT_US).contains(&clock.now.0), "{:?}", clock.now);
    }

    #[test]
    fn what_is_over_is_not_waited_for() {
        let (mut clock, mut looks) = (CoarseClock::default(), 0);
        let third = || {
            looks += 1;
            looks == 3
        };
        assert!(wait_until(&mut clock, Ticks(10_000_000), 1, third));
        assert_eq!((clock.sleeps, clock.now), (2, Ticks(2 * INTERRUPT_US)));
        // What is over at once needs no time.
        assert!(wait_until(&mut clock, Ticks(0), 1, || true));
        assert_eq!(clock.sleeps, 2);
    }
}
