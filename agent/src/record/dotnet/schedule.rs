//! When a runtime is asked for the names of its methods. A process that is ending cannot be asked
//! any more, so the recorder does not wait for the end.

/// Milliseconds between the ends of rundowns.
const AGAIN_MS: u64 = 10_000;
/// Milliseconds between attempts while the pipe does not exist: at first, when the runtime may just
/// be starting ...
const RETRY_MS: u64 = 250;
/// ... and later.
const RETRY_LATER_MS: u64 = 10_000;
/// Milliseconds that "at first" lasts.
const YOUNG_MS: u64 = 10_000;

/// Decides when the runtime is asked next.
#[derive(Debug)]
pub struct Schedule {
    ticks_per_ms: u64,
    /// When the runtime was found.
    found: u64,
    /// Earliest time of the next request.
    next: u64,
    /// Code addresses that had been seen when the last rundown began; `None` before the first.
    seen: Option<u64>,
}

impl Schedule {
    /// For a runtime that was found at `now`. It is asked at once.
    pub fn new(now: u64, ticks_per_ms: u64) -> Schedule {
        Schedule { ticks_per_ms, found: now, next: now, seen: None }
    }

    /// Whether to ask now, when `seen` different addresses of dynamic code have been seen so far.
    pub fn is_due(&self, now: u64, seen: u64) -> bool {
        now >= self.next && self.seen != Some(seen)
    }

    /// Milliseconds until the next check is worthwhile.
    pub fn wait_ms(&self, now: u64) -> u64 {
        let left = self.next.saturating_sub(now).div_ceil(self.ticks_per_ms);
        // Due, but no new code was seen: check a few times a second.
        if left == 0 { RETRY_MS } else { left }
    }

    /// Notes that a rundown ended at `now`. When it began, `seen` addresses had been seen.
    pub fn answered(&mut self, now: u64, seen: u64) {
        self.seen = Some(seen);
        self.next = now + AGAIN_MS * self.ticks_per_ms;
    }

    /// Notes that the runtime could not be asked.
    pub fn failed(&mut self, now: u64) {
        let young = now.saturating_sub(self.found) < YOUNG_MS * self.ticks_per_ms;
        self.next = now + if young { RETRY_MS } else { RETRY_LATER_MS } * self.ticks_per_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_asked_at_once_and_again_only_for_new_code() {
        let mut schedule = Schedule::new(1000, 1);
        assert!(schedule.is_due(1000, 0));
        schedule.answered(1200, 5);
        assert!(!schedule.is_due(2000, 9), "too soon");
        assert!(!schedule.is_due(11_200, 5), "nothing new");
        assert!(schedule.is_due(11_200, 6));
        assert_eq!(schedule.wait_ms(1200), 10_000);
        assert_eq!(schedule.wait_ms(20_000), RETRY_MS);
    }

    #[test]
    fn a_missing_pipe_is_retried_often_at_first() {
        let mut schedule = Schedule::new(0, 1);
        schedule.failed(0);
        assert!(!schedule.is_due(249, 0) && schedule.is_due(250, 0));
        schedule.failed(10_000);
        assert!(!schedule.is_due(19_999, 0) && schedule.is_due(20_000, 0));
    }
}
