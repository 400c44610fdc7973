//! What a language runtime reported about a thread at one of its samples (MANAGED_THREAD and the
//! MEMORY behind it), and a copy of the sample to keep until that is read.

use super::registers;
use stk_format::{Sample, SampleStep};
use stk_schema::Ticks;
use stk_schema::event::{Event, ManagedThread};
use stk_unwind::Registers;

/// What a runtime reported about a thread at a sample.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagedState {
    /// The runtime's own view of the thread.
    pub thread: ManagedThread,
    /// Memory outside the captured stack that the thread's Frames refer to: address and bytes.
    pub outside: Vec<(u64, Vec<u8>)>,
}

/// Pieces of MEMORY that are kept for one sample. Recorders write one.
const MOST_OUTSIDE: usize = 16;

/// Collects the runtime's reports on one thread while a block is read.
#[derive(Debug)]
pub struct ManagedTracker {
    /// Thread instance.
    pub thread: u64,
    /// The report at the thread's latest sample.
    pub latest: Option<ManagedState>,
    time: Ticks,
}

impl ManagedTracker {
    /// A tracker that knows nothing yet.
    pub fn new(thread: u64) -> ManagedTracker {
        ManagedTracker { thread, latest: None, time: Ticks::ZERO }
    }

    /// Takes the next event of a block.
    pub fn see(&mut self, decoded: &SampleStep<'_>) {
        match decoded {
            SampleStep::Sample(sample) if sample.thread == self.thread => {
                (self.latest, self.time) = (None, sample.time);
            }
            SampleStep::Other(event) => {
                take(&mut self.latest, self.thread, self.time, event);
            }
            _ => {}
        }
    }
}

/// Takes an event behind the sample of `thread` at `time`; whether it belongs to that sample.
pub fn take(managed: &mut Option<ManagedState>, thread: u64, time: Ticks, event: &Event<'_>) -> bool {
    match (event, managed) {
        (Event::ManagedThread(said), managed) if (said.thread, said.time) == (thread, time) => {
            *managed = Some(ManagedState { thread: *said, outside: Vec::new() });
            true
        }
        (Event::Memory(memory), Some(managed)) if (memory.thread, memory.time) == (thread, time) => {
            if managed.outside.len() < MOST_OUTSIDE {
                managed.outside.push((memory.address, memory.bytes.to_vec()));
            }
            true
        }
        _ => false,
    }
}

/// A copy of what was captured of a thread.
#[derive(Clone, Debug)]
pub struct SampleCopy {
    registers: Registers,
    stack: Vec<u8>,
    stack_start: u64,
    stack_base: u64,
    truncated: bool,
    code: Option<Vec<u8>>,
}

impl SampleCopy {
    /// A copy of a sample; `None` if its registers are not known.
    pub fn of(sample: &Sample<'_>) -> Option<SampleCopy> {
        Some(SampleCopy {
            registers: registers(sample.set, sample.registers)?,
            stack: sample.stack.to_vec(),
            stack_start: sample.stack_start,
            stack_base: sample.stack_base,
            truncated: sample.truncated,
            code: sample.code_at_ip.map(<[u8]>::to_vec),
        })
    }

    /// The sample in the unwinder's form.
    pub fn sample(&self) -> stk_unwind::Sample<'_> {
        stk_unwind::Sample {
            registers: &self.registers,
            stack: &self.stack,
            stack_start: self.stack_start,
            stack_base: (self.stack_base != 0).then_some(self.stack_base),
            truncated: self.truncated,
            code_at_ip: self.code.as_deref(),
        }
    }
}
