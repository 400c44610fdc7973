//! When a runtime is queried for the names of its methods. A process that is ending cannot be
//! queried any more, so the recorder does not wait for the end.

use stk_schema::Ticks;

/// Milliseconds between the ends of rundowns.
const AGAIN_MS: u64 = 10_000;
/// Milliseconds between attempts while the pipe does not exist: at first, when the runtime may just
/// be starting ...
const RETRY_MS: u64 = 250;
/// ... and later.
const RETRY_LATER_MS: u64 = 10_000;
/// Milliseconds that "at first" lasts.
const YOUNG_MS: u64 = 10_000;

/// Decides when the runtime is queried next.
#[derive(Debug)]
pub(crate) struct Schedule {
    ticks_per_ms: u64,
    /// When the runtime was found.
    found: Ticks,
    /// No query earlier than this.
    next: Ticks,
    /// Code addresses that had been seen when the last rundown began; `None` before the first.
    seen: Option<u64>,
}

impl Schedule {
    /// For a runtime that was found at `now`: it is queried at once.
    pub(crate) fn new(now: Ticks, ticks_per_ms: u64) -> Schedule {
        Schedule { ticks_per_ms, found: now, next: now, seen: None }
    }

    /// Whether to ask now, with `seen` different addresses of dynamic code seen so far.
    pub(crate) fn is_due(&self, now: Ticks, seen: u64) -> bool {
        now >= self.next && self.lacks(seen)
    }

    /// Whether code was seen that no rundown has: `seen` addresses so far.
    pub(crate) fn lacks(&self, seen: u64) -> bool {
        self.seen != Some(seen)
    }

    /// Milliseconds until it is worth looking again.
    pub(crate) fn wait_ms(&self, now: Ticks) -> u64 {
        let left = self.next.saturating_sub(now).0.div_ceil(self.ticks_per_ms);
        // Due, but nothing new was seen: that is looked at a few times a second.
        if left == 0 { RETRY_MS } else { left }
    }

    /// A rundown that began when `seen` addresses had been seen ended at `now`.
    pub(crate) fn answered(&mut self, now: Ticks, seen: u64) {
        self.seen = Some(seen);
        self.next = now + Ticks(AGAIN_MS * self.ticks_per_ms);
    }

    /// It could not be queried.
    pub(crate) fn failed(&mut self, now: Ticks) {
        let young = now.saturating_sub(self.found).0 < YOUNG_MS * self.ticks_per_ms;
        let pause = if young { RETRY_MS } else { RETRY_LATER_MS };
        self.next = now + Ticks(pause * self.ticks_per_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_at_once_and_then_only_for_new_code_and_not_too_often() {
        let mut schedule = Schedule::new(Ticks(1000), 1);
        assert!(schedule.is_due(Ticks(1000), 0));
        schedule.answered(Ticks(1200), 5);
        assert!(!schedule.is_due(Ticks(2000), 9), "too soon");
        assert!(!schedule.is_due(Ticks(11_200), 5), "nothing new");
        assert!(schedule.is_due(Ticks(11_200), 6));
        assert_eq!(schedule.wait_ms(Ticks(1200)), 10_000);
        assert_eq!(schedule.wait_ms(Ticks(20_000)), RETRY_MS);
    }

    #[test]
    fn a_pipe_that_is_not_there_is_tried_often_at_first() {
        let mut schedule = Schedule::new(Ticks(0), 1);
        schedule.failed(Ticks(0));
        assert!(!schedule.is_due(Ticks(249), 0) && schedule.is_due(Ticks(250), 0));
        schedule.failed(Ticks(10_000));
        assert!(!schedule.is_due(Ticks(19_999), 0) && schedule.is_due(Ticks(20_000), 0));
    }
}
