//! What each of inject's own threads does, for the report of a recording that stalled.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A thread of an inject that records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Thread {
    /// Follows the recording.
    Main,
    /// Watches the recorder's threads.
    Guard,
    /// Answers the agent's questions for names.
    Names,
    /// Writes traces of a ring of files.
    Flight,
    /// Finishes the files of a ring.
    Finisher,
}

const THREADS: [(Thread, &str); 5] = [
    (Thread::Main, "main"),
    (Thread::Guard, "guard"),
    (Thread::Names, "names"),
    (Thread::Flight, "flight"),
    (Thread::Finisher, "finisher"),
];

/// What a thread does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// In words.
    pub text: &'static str,
    /// Whether this takes a second at most, whatever the other processes do.
    pub short: bool,
    begun: Instant,
    /// Steps of the thread up to this one.
    number: u64,
}

static STEPS: [Mutex<Option<Step>>; THREADS.len()] = [const { Mutex::new(None) }; THREADS.len()];

/// Notes that this thread begins something that may take long.
pub(crate) fn begin(thread: Thread, text: &'static str) {
    note(thread, text, false);
}

/// Notes that this thread begins something that takes a second at most.
pub(crate) fn begin_short(thread: Thread, text: &'static str) {
    note(thread, text, true);
}

fn note(thread: Thread, text: &'static str, short: bool) {
    let Some(place) = STEPS.get(thread as usize) else { return };
    let mut step = place.lock().unwrap_or_else(PoisonError::into_inner);
    let number = step.map_or(0, |step| step.number + 1);
    *step = Some(Step { text, short, begun: Instant::now(), number });
}

/// What this thread does; `None` if it has not begun.
pub(crate) fn of(thread: Thread) -> Option<Step> {
    *STEPS.get(thread as usize)?.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all threads do, a line each.
pub(crate) fn describe() -> String {
    let lines = THREADS.iter().filter_map(|&(thread, name)| {
        let step = of(thread)?;
        let since = step.begun.elapsed().as_secs_f64();
        Some(format!("  {name:<16} {} (for {since:.1} s)\n", step.text))
    });
    lines.collect()
}

/// Follows the main thread, and finds when it stays in a short step.
#[derive(Debug)]
pub(crate) struct MainWatch {
    limit: Duration,
    number: u64,
    still: Duration,
}

impl MainWatch {
    pub(crate) fn new(limit: Duration) -> MainWatch {
        MainWatch { limit, number: 0, still: Duration::ZERO }
    }

    /// Takes note of a look, `since` the one before, of which a second counts at most: a machine
    /// that was suspended has done nothing meanwhile. Whether the thread has stood for too long.
    pub(crate) fn look(&mut self, since: Duration, step: Option<Step>) -> bool {
        let Some(step) = step.filter(|step| step.short && step.number == self.number) else {
            self.number = step.map_or(0, |step| step.number);
            self.still = Duration::ZERO;
            return false;
        };
        self.number = step.number;
        self.still += since.min(Duration::from_secs(1));
        self.still >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(short: bool, number: u64) -> Option<Step> {
        Some(Step { text: "x", short, begun: Instant::now(), number })
    }

    #[test]
    fn a_main_thread_that_stays_in_a_short_step_is_found() {
        let mut watch = MainWatch::new(Duration::from_secs(30));
        let hour = Duration::from_secs(3600);
        assert!(!watch.look(hour, step(true, 7)));
        for _ in 0..29 {
            assert!(!watch.look(hour, step(true, 7)), "a look counts a second at most");
        }
        assert!(watch.look(hour, step(true, 7)));
        assert!(!watch.look(hour, step(true, 8)));
    }

    #[test]
    fn a_long_step_may_take_any_time() {
        let mut watch = MainWatch::new(Duration::from_secs(30));
        for look in 0..1000 {
            assert!(!watch.look(Duration::from_secs(1), step(false, 7)));
            assert!(!watch.look(Duration::from_secs(1), step(true, 100 + look)));
            assert!(!watch.look(Duration::from_secs(1), None));
        }
    }

    #[test]
    fn each_thread_that_has_begun_is_described() {
        begin(Thread::Finisher, "moves a file");
        let text = describe();
        assert!(text.contains("  finisher         moves a file (for "), "{text}");
        begin_short(Thread::Finisher, "waits");
        assert!(
            of(Thread::Finisher).is_some_and(|step| step.short && step.text == "waits" && step.number > 0)
        );
    }
}
