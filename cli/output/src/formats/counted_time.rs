//! Counts the time of a thread once, where its runs overlap.

use stk_profile::profile::Run;

/// The time of a thread that is counted so far. Runs may overlap a little if the recorder had to
/// correct the clock.
#[derive(Clone, Copy, Default)]
pub(super) struct CountedTime {
    thread: Option<u32>,
    /// Its end, nanoseconds since trace start.
    end_ns: u64,
}

impl CountedTime {
    /// Begin and end of the part of a run that was not counted before; `None` if there is no such
    /// part and the run has no CPU time. Threads follow each other.
    pub(super) fn count(&mut self, thread: u32, run: &Run) -> Option<(u64, u64)> {
        if self.thread != Some(thread) {
            (self.thread, self.end_ns) = (Some(thread), 0);
        }
        let start_ns = run.first_ns.max(self.end_ns);
        let end_ns = run.end_ns().max(start_ns);
        (end_ns > start_ns || run.cpu_ns > 0).then(|| {
            self.end_ns = end_ns;
            (start_ns, end_ns)
        })
    }
}
