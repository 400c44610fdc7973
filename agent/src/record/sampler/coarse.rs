//! A thread's CPU time on systems without cycle counts: a clock that steps by 10 ms or more, and
//! that costs a system call to read.

use stk_schema::Ticks;
use stk_schema::event::RunState;

/// Milliseconds between two readings of a thread's clock: no more often than it ticks, and less
/// often if nothing changes.
const CPU_MS: u64 = 10;
const CPU_IDLE_MS: u64 = 100;

/// The readings of a thread's clock. There is one of these for each of thousands of threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoarseClock {
    /// The last reading, and when it was made.
    last: u64,
    read_at: Ticks,
    /// Whether the clock gained something by the last reading.
    gains: bool,
    /// The same, if no pass has stated it yet.
    gained: bool,
    /// Whether it gained more than half of the time between the last two readings.
    runs: bool,
}

/// In place of the last reading, where there is none.
const NOT_READ: u64 = u64::MAX;

impl Default for CoarseClock {
    fn default() -> CoarseClock {
        CoarseClock { last: NOT_READ, read_at: Ticks::ZERO, gains: false, gained: false, runs: false }
    }
}

impl CoarseClock {
    /// Whether it was read: systems with cycle counts do not need it.
    pub(super) fn is_used(&self) -> bool {
        self.last != NOT_READ
    }

    /// Whether a reading is due. `moved`: the thread does not look as before.
    pub(super) fn is_due(&self, moved: bool, now: Ticks, ticks_per_ms: u64) -> bool {
        // What gained may gain again, moved or not: a loop of one instruction does not move.
        let pause = if moved || self.gains { CPU_MS } else { CPU_IDLE_MS };
        !self.is_used() || now >= self.read_at + Ticks(pause * ticks_per_ms)
    }

    /// Takes a reading in units of 100 ns; returns it if it is one. A clock that shows less than
    /// before is that of a thread that has ended.
    pub(super) fn read(&mut self, cpu: Option<u64>, now: Ticks, ticks_per_ms: u64) -> Option<u64> {
        let cpu = cpu.filter(|&cpu| !self.is_used() || self.last <= cpu)?;
        let gain = if self.is_used() { cpu - self.last } else { 0 };
        let elapsed =
            u128::from(now.saturating_sub(self.read_at).0) * 10_000 / u128::from(ticks_per_ms.max(1));
        self.gains = gain > 0;
        self.gained |= self.gains;
        self.runs = self.gains && 2 * u128::from(gain) > elapsed;
        self.last = cpu;
        self.read_at = now;
        Some(cpu)
    }

    /// The thread's state at a pass, after the reading if one was due.
    pub(super) fn state(&mut self, moved: bool) -> RunState {
        let gained = core::mem::take(&mut self.gained);
        if moved || gained || self.runs { RunState::Running } else { RunState::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks in a millisecond; the clock has 10,000 units.
    const MS: u64 = 10_000;

    /// States and readings of passes, a millisecond apart, over a thread whose clock is `cpu(ms)`
    /// milliseconds and that moves in no pass.
    fn passes(count: u64, cpu: impl Fn(u64) -> u64) -> Vec<(RunState, Option<u64>)> {
        let mut clock = CoarseClock::default();
        let pass = |ms: u64| {
            let now = Ticks(ms * MS);
            let read =
                if clock.is_due(false, now, MS) { clock.read(Some(cpu(ms) * MS), now, MS) } else { None };
            (clock.state(false), read)
        };
        (1..=count).map(pass).collect()
    }

    #[test]
    fn a_thread_that_spins_is_running_and_read_at_each_tick() {
        let passes = passes(1_000, |ms| ms / 10 * 10);
        let running = passes.iter().filter(|(state, _)| *state == RunState::Running).count();
        // The first reading has none before it, and the second comes 100 ms later.
        assert!(running >= 890, "{running}");
        let read = passes.iter().filter(|(_, read)| read.is_some()).count();
        assert!((85..=95).contains(&read), "{read}");
    }

    #[test]
    fn waiting_thread_is_not_running_and_read_ten_times_a_second() {
        let passes = passes(1_000, |_| 0);
        assert!(passes.iter().all(|(state, _)| *state == RunState::Unknown));
        assert_eq!(passes.iter().filter(|(_, read)| read.is_some()).count(), 10);
    }

    #[test]
    fn suspension_cost_makes_a_waiting_thread_run_for_one_pass() {
        // A tick of 10 ms each 200 ms.
        let passes = passes(1_000, |ms| ms / 200 * 10);
        let running = passes.iter().filter(|(state, _)| *state == RunState::Running).count();
        assert!((4..=5).contains(&running), "{running}");
    }

    #[test]
    fn the_clock_of_an_ended_thread_takes_nothing_back() {
        let mut clock = CoarseClock::default();
        assert_eq!(clock.read(Some(500), Ticks(MS), MS), Some(500));
        assert_eq!(clock.read(Some(0), Ticks(2 * MS), MS), None);
        assert_eq!(clock.read(Some(700), Ticks(3 * MS), MS), Some(700));
    }
}
