//! The recorded process as the sampler sees it, and the data that it delivers.

use alloc::boxed::Box;

use stk_schema::Ticks;
use stk_schema::event::CheckWalk;
use stk_schema::registers::MAX_REGISTERS;

use crate::record::code::{CODE_BYTES, CodeRead};
use crate::record::dotnet::threads::{CONTEXT_BYTES, ManagedState};
use crate::record::dynamic::{Region, RegionUse};
use crate::record::stack_bounds::{Bounds, CheckedBounds};

/// The capture of one thread. The stack buffer is preallocated and never grows.
pub(crate) struct Capture {
    /// When the context was obtained.
    pub time: Ticks,
    /// Registers in the order of the register set.
    pub registers: [u64; MAX_REGISTERS],
    /// The checked bounds of the thread's stack. The caller sets them.
    pub checked: CheckedBounds,
    /// The bounds that the thread shows now.
    pub bounds: Bounds,
    /// Highest address of the stack, exclusive; 0 if the thread is on a foreign stack.
    pub stack_base: u64,
    /// Address of the first captured byte.
    pub stack_start: u64,
    /// Bytes captured.
    pub len: usize,
    pub stack: Box<[u8]>,
    /// What CONTEXT_EXCEPTION_REQUEST answered, if it was requested.
    pub context_reply: Option<u32>,
    /// Buffer for the walk by the system's own unwinder, if one is requested: flags, and frames up
    /// to the vector's capacity, which never grows.
    pub walk: Option<CheckWalk>,
    /// The runtime's state of the thread.
    pub managed: Option<ManagedState>,
    /// Address of the CONTEXT that a Frame of the runtime keeps outside of the stack; 0 = none.
    pub outside_at: u64,
    /// The bytes of that CONTEXT.
    pub outside: Box<[u8]>,
}

impl Capture {
    /// Room for `bytes` of stack.
    pub(crate) fn new(bytes: usize) -> Capture {
        Capture {
            time: Ticks::ZERO,
            registers: [0; MAX_REGISTERS],
            checked: CheckedBounds::default(),
            bounds: Bounds::default(),
            stack_base: 0,
            stack_start: 0,
            len: 0,
            stack: alloc::vec![0; bytes].into_boxed_slice(),
            context_reply: None,
            walk: None,
            managed: None,
            outside_at: 0,
            outside: alloc::vec![0; CONTEXT_BYTES].into_boxed_slice(),
        }
    }
}

/// How an attempt to capture ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CaptureOutcome {
    Captured,
    /// The thread is gone or ending; the enumeration will notice its end.
    Ended,
    /// The system refused to suspend it.
    NotSuspended,
    /// Its context could not be read, or the watchdog resumed it.
    NoContext,
    /// It owns the locks that ExitProcess takes and was resumed.
    OwnsExitLocks,
    /// It did not stop in time.
    NotStopped,
}

/// The recorded process as the sampler sees it.
pub(crate) trait Target {
    /// What is needed to sample a thread; dropping it releases the thread.
    type Thread;

    /// Now.
    fn now(&mut self) -> Ticks;

    /// The thread's cycle count, if the system has one. While it does not change, the thread does
    /// not run.
    fn cycles(&mut self, thread: &Self::Thread) -> Option<u64>;

    /// The thread's CPU time by a coarse clock, in units of 100 ns, for systems without cycle
    /// counts.
    fn cpu_time(&mut self, thread: &Self::Thread) -> Option<u64>;

    /// CPU time of the calling thread, the sampler; 0 where the system does not know.
    fn own_cpu(&mut self) -> Ticks {
        Ticks::ZERO
    }

    /// Captures registers and stack. Nothing else happens while the thread is suspended. If
    /// [`Capture::walk`] is set, the walk is made at the same moment.
    fn capture(&mut self, thread: &Self::Thread, into: &mut Capture) -> CaptureOutcome;

    /// Reads code bytes; a fault is reported as an error.
    fn code(&mut self, ip: u64, into: &mut [u8; CODE_BYTES]) -> CodeRead;

    /// The region around `address`. Only called while no thread is suspended.
    fn region(&mut self, address: u64) -> Region {
        Region { start: address, end: address.saturating_add(1), used: RegionUse::Other }
    }
}

/// A command from the thread that enumerates threads to the sampler.
pub(crate) enum ThreadCommand<T> {
    /// This thread is there. For one that is known already: what it takes to sample it, and
    /// whether it is wanted, replace what was given before.
    Add {
        instance: u64,
        tid: u32,
        /// What is needed to sample it.
        thread: T,
        /// Whether passes sample it. Otherwise only what it captures of itself is stored.
        wanted: bool,
    },
    /// This thread has ended.
    Remove { instance: u64, tid: u32 },
}

/// A sample that a thread of the target took of itself.
pub(crate) struct TriggeredSample<'a> {
    pub tid: u32,
    /// The caller's tag.
    pub tag: u64,
    pub capture: &'a mut Capture,
}

/// The result of offering a triggered sample to the sampler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acceptance {
    /// It is stored or counted as lost; its memory can be reused.
    Done,
    /// Its thread is not known yet; offer it again.
    Later,
}
