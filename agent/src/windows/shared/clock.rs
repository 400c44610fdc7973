//! The start of a recording, and spans of time in its ticks.

/// The clock of one recording.
#[derive(Clone, Copy)]
pub struct SessionClock {
    /// When the recording started, in ticks.
    pub started: u64,
    /// Ticks per millisecond; at least 1.
    pub ticks_per_ms: u64,
}

impl SessionClock {
    /// Ticks in `milliseconds`.
    pub fn span(&self, milliseconds: u64) -> u64 {
        milliseconds * self.ticks_per_ms
    }

    /// The tick that comes `milliseconds` after the start.
    pub fn after_start(&self, milliseconds: u64) -> u64 {
        self.started + self.span(milliseconds)
    }

    /// Whole milliseconds in `ticks`.
    pub fn milliseconds(&self, ticks: u64) -> u64 {
        ticks / self.ticks_per_ms
    }
}
