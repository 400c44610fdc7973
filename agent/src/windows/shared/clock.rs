//! The start of a recording, and milliseconds by its clock.

use stk_schema::Ticks;

/// The clock of one recording.
#[derive(Clone, Copy)]
pub(crate) struct SessionClock {
    /// When the recording started.
    pub started: Ticks,
    /// Ticks per millisecond; at least 1.
    pub ticks_per_ms: u64,
}

impl SessionClock {
    /// `milliseconds` as a span.
    pub(crate) fn span(&self, milliseconds: u64) -> Ticks {
        Ticks(milliseconds * self.ticks_per_ms)
    }

    /// The time `milliseconds` after the start.
    pub(crate) fn after_start(&self, milliseconds: u64) -> Ticks {
        self.started + self.span(milliseconds)
    }

    /// Whole milliseconds in `span`.
    pub(crate) fn milliseconds(&self, span: Ticks) -> u64 {
        span.0 / self.ticks_per_ms
    }
}
