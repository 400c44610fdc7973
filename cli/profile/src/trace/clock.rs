//! The trace's clock: ticks to nanoseconds since the start of the trace.

use stk_format::FileHeader;
use stk_schema::Ticks;

/// Converts times of the trace's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    start: Ticks,
    frequency: u64,
}

impl Clock {
    /// The clock that a file header describes.
    pub fn new(header: &FileHeader) -> Clock {
        Clock { start: header.clock_start, frequency: header.clock_frequency.max(1) }
    }

    /// Nanoseconds since the start of the trace; 0 for what came before it.
    pub fn ns(&self, time: Ticks) -> u64 {
        self.span_ns(time.saturating_sub(self.start))
    }

    /// The tick at which a time (nanoseconds since the start of the trace) has been reached.
    pub fn ticks(&self, ns: u64) -> Ticks {
        let span = u128::from(ns) * u128::from(self.frequency) / 1_000_000_000;
        self.start.saturating_add(Ticks(u64::try_from(span).unwrap_or(u64::MAX)))
    }

    /// Nanoseconds that `span` lasts.
    pub fn span_ns(&self, span: Ticks) -> u64 {
        if 1_000_000_000 % self.frequency == 0 {
            return span.0.saturating_mul(1_000_000_000 / self.frequency);
        }
        u64::try_from(u128::from(span.0) * 1_000_000_000 / u128::from(self.frequency)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_schema::{Arch, Os};

    fn clock(frequency: u64, start: u64) -> Clock {
        let mut header = FileHeader::new(Arch::X64, Os::Windows, [1; 16], frequency);
        header.clock_start = Ticks(start);
        Clock::new(&header)
    }

    #[test]
    fn a_10_mhz_clock_counts_hundreds_of_nanoseconds() {
        let clock = clock(10_000_000, 5_000);
        assert_eq!(clock.ns(Ticks(5_003)), 300);
        assert_eq!(clock.ns(Ticks(4_000)), 0, "before the start");
        assert_eq!(clock.ticks(300), Ticks(5_003));
    }

    #[test]
    fn a_frequency_that_does_not_divide_a_second_is_exact_to_the_nanosecond() {
        let clock = clock(3, 0);
        assert_eq!(clock.ns(Ticks(1)), 333_333_333);
        assert_eq!(clock.ns(Ticks(3 * 86_400)), 86_400_000_000_000, "no error adds up over a day");
        assert_eq!(clock.ns(Ticks::MAX), u64::MAX, "a forged time saturates");
    }
}
