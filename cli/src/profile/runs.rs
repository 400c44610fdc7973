//! Runs of equal samples, per thread, in time order.

use super::{NodeId, StopId};
use stk_schema::event::RunState;

bitflags::bitflags! {
    /// What is special about a run's samples.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RunFlags: u8 {
        /// The captured stack bytes did not reach the stack's base.
        const TRUNCATED = 1;
        /// Taken by `stk_capture`.
        const TRIGGERED = 2;
        /// Some module's tables were not yet recorded.
        const TABLES_PENDING = 4;
        /// The stack was in a block that is lost: `node` is `None`.
        const STACK_LOST = 8;
    }
}

/// Consecutive samples of one thread with the same stack, state and flags.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// The stack; `None` = no frames (lost or unreadable).
    pub node: Option<NodeId>,
    /// Why the stack ends.
    pub stop: StopId,
    /// Time of the first sample, nanoseconds since trace start.
    pub first_ns: u64,
    /// Time of the last sample.
    pub last_ns: u64,
    /// Time that the run stands for: from its first sample to the thread's next sample (or its exit, or one nominal interval
    /// after the last sample).
    pub weight_ns: u64,
    /// Samples.
    pub samples: u32,
    /// CPU time used during the run, nanoseconds; 0 if not recorded.
    pub cpu_ns: u64,
    /// What the thread did.
    pub state: RunState,
    /// What is special.
    pub flags: RunFlags,
}

/// Runs of one thread in time order; a thread's runs may come in several batches.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Index in `Profile::threads`.
    pub thread: u32,
    /// Runs in time order.
    pub runs: &'a [Run],
}

/// All runs of a profile, per thread. Past its memory limit it spills to a temporary file.
#[derive(Default, Debug)]
pub struct Runs {
    threads: Vec<Vec<Run>>,
}

impl Runs {
    /// Adds a run of thread `thread` (index in `Profile::threads`), later than all before it.
    pub fn push(&mut self, thread: u32, run: Run) {
        let i = thread as usize;
        if self.threads.len() <= i {
            self.threads.resize_with(i + 1, Vec::new);
        }
        self.threads[i].push(run);
    }

    /// Hands every thread's runs, thread by thread, in time order, to `visit`. May be called again.
    pub fn for_each<E>(&self, mut visit: impl FnMut(Batch<'_>) -> Result<(), E>) -> Result<(), E> {
        for (i, runs) in self.threads.iter().enumerate().filter(|(_, runs)| !runs.is_empty()) {
            visit(Batch { thread: i as u32, runs })?;
        }
        Ok(())
    }
}
