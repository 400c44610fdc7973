//! CPU time that a trace of version 1.0 does not have: it reads the clock of a thread with its next
//! SAMPLE only, so what a thread used while it stood still until the end has no reading.

use crate::profile::activity::is_behind_call;
use crate::trace::Trace;
use std::collections::HashMap;
use stk_format::{CpuUnit, ImageBudget, SampleStep, Scratch};
use stk_schema::Ticks;
use stk_schema::event::RunState;

/// Whether the trace states CPU time, but not what a thread used during an IDLE.
pub(super) fn lacks_idle_cpu(trace: &Trace<'_>) -> bool {
    let header = trace.header();
    header.minor == 0 && header.cpu_unit != CpuUnit::None
}

/// How long threads that may have run stood still since their clocks were last read.
pub(super) struct UnreadTime {
    interval: Ticks,
    threads: HashMap<u64, Standing>,
}

/// A thread since its last SAMPLE or SAME.
struct Standing {
    last: Ticks,
    /// Whether its stack ends behind a system call's instruction: it waits, unless the recorder saw
    /// it run.
    behind_call: bool,
    unread: Ticks,
}

impl UnreadTime {
    /// For a trace that [`lacks_idle_cpu`]; `None` for others.
    pub(super) fn of(trace: &Trace<'_>) -> Option<UnreadTime> {
        let interval = trace.clock.ticks(trace.interval_ns()).saturating_sub(trace.header().clock_start);
        lacks_idle_cpu(trace).then(|| UnreadTime { interval, threads: HashMap::new() })
    }

    /// A SAMPLE or SAME up to `last`.
    pub(super) fn read(&mut self, thread: u64, last: Ticks, behind_call: bool) {
        self.threads.insert(thread, Standing { last, behind_call, unread: Ticks::ZERO });
    }

    /// An IDLE of so many passes.
    pub(super) fn idle(&mut self, thread: u64, (first, last): (Ticks, Ticks), passes: u64, state: RunState) {
        let Some(standing) = self.threads.get_mut(&thread) else { return };
        let runs = match state {
            RunState::Running => true,
            RunState::Unknown => !standing.behind_call,
            RunState::Waiting => false,
        };
        if runs {
            let span = last.saturating_sub(first);
            let period = span.0.checked_div(passes.saturating_sub(1)).map_or(self.interval, Ticks);
            standing.unread += span + first.saturating_sub(standing.last).min(period);
        }
        standing.last = last;
    }

    /// The time of all threads, in nanoseconds.
    pub(super) fn ns(&self, trace: &Trace<'_>) -> u64 {
        self.threads.values().map(|thread| trace.clock.span_ns(thread.unread)).fold(0, u64::saturating_add)
    }
}

/// For how long a trace has no reading of the clocks of threads that may have run, in nanoseconds:
/// so much CPU time may be missing at most, for each thread that runs. It decodes the samples of a
/// trace of version 1.0; others lack nothing.
pub fn unread_ns(trace: &Trace<'_>) -> u64 {
    let Some(mut unread) = UnreadTime::of(trace) else { return 0 };
    let arch = trace.header().arch;
    let mut scratch = Scratch::with_budget(&ImageBudget::default());
    for block in trace.sample_blocks() {
        let Ok(mut samples) = trace.blocks().samples(block, &mut scratch) else { continue };
        let mut behind = HashMap::new();
        while let Ok(Some(step)) = samples.next() {
            match step {
                SampleStep::Sample(sample) => {
                    let behind_call = is_behind_call(arch, sample.code_at_ip);
                    behind.insert(sample.thread, behind_call);
                    unread.read(sample.thread, sample.time, behind_call);
                }
                SampleStep::Same(same) => {
                    let behind_call = behind.get(&same.thread).copied().unwrap_or(true);
                    unread.read(same.thread, same.last, behind_call);
                }
                SampleStep::Idle(idle) => {
                    unread.idle(idle.thread, (idle.first, idle.last), idle.ticks, idle.state);
                }
                SampleStep::Other(_) => {}
            }
        }
    }
    unread.ns(trace)
}
