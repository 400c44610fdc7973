//! The data that the agent publishes for its guard process.
//!
//! If a process exits while the sampler holds the exiting thread suspended, the system terminates
//! the sampler and the watchdog, and nothing inside the process can resume that thread. The guard
//! (inject.exe, outside the process) can. It holds SYNCHRONIZE handles of the threads named on the
//! [`GuardBoard`]. When a sampler and the watchdog are both dead and the process still lives 20 ms
//! later, it reads that sampler's word and resumes the thread in it, once.
//!
//! A hook in the process may refuse to resume a thread. The sampler then says so ([`REFUSED`]), and
//! the guard, whose calls no hook of that process sees, resumes the thread and frees the word.

/// Version of [`GuardBoard`] described here.
pub const GUARD_VERSION: u32 = 1;
/// Samplers that a recording may have: the first one and two spares.
pub const SAMPLERS: usize = 3;

/// Phase: no thread is suspended.
pub const FREE: u8 = 0;
/// Phase: the sampler is about to call SuspendThread, or in it.
pub const ASKING: u8 = 1;
/// Phase: SuspendThread has returned; the thread may not have stopped yet.
pub const ASKED: u8 = 2;
/// Phase: the thread's context was obtained, so the thread has stopped.
pub const STOPPED: u8 = 3;
/// Phase: the watchdog is calling ResumeThread.
pub const RESCUING: u8 = 4;
/// Phase: the watchdog's ResumeThread came before the suspension. The thread that sees the
/// suspension take effect undoes it.
pub const UNDO: u8 = 5;
/// Phase: the system's unwinder walks the suspended thread.
pub const WALKING: u8 = 6;
/// Phase: the sampler is calling ResumeThread; a second call by the guard does nothing.
pub const RESUMING: u8 = 7;

/// Phase: ResumeThread was refused. The sampler tries again until the guard has set the word to
/// [`FREE`].
pub const REFUSED: u8 = 8;

/// One sampler's place on the board.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SamplerSlot {
    /// Thread id of the sampler; 0 = this slot is not in use.
    pub sampler: u32,
    /// Must be 0.
    pub reserved: u32,
    /// A [`SuspensionWord`], written atomically.
    pub word: u64,
}

/// The board. Lives in the agent's memory until the process ends; its address is in
/// [`AgentStatus::guard_board`](crate::control::AgentStatus::guard_board).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GuardBoard {
    /// Size of this struct in bytes.
    pub size: u32,
    /// [`GUARD_VERSION`].
    pub version: u32,
    /// Thread id of the watchdog; 0 = none.
    pub watchdog: u32,
    /// Must be 0.
    pub reserved: u32,
    /// One slot for each sampler.
    pub samplers: [SamplerSlot; SAMPLERS],
}

const _: () = assert!(size_of::<GuardBoard>() == 16 + SAMPLERS * 16);

/// Which thread a sampler holds, or is about to hold: thread id in the high 32 bits, 24 bits of
/// sequence number, 8 bits of phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuspensionWord(pub u64);

impl SuspensionWord {
    /// The word of thread `tid`; `sequence` is cut to 24 bits.
    pub const fn new(tid: u32, sequence: u32, phase: u8) -> SuspensionWord {
        SuspensionWord((tid as u64) << 32 | ((sequence & 0xff_ffff) as u64) << 8 | phase as u64)
    }

    /// Id of the thread held.
    pub const fn tid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Sequence number of the suspension, modulo 2^24.
    pub const fn sequence(self) -> u32 {
        (self.0 >> 8) as u32 & 0xff_ffff
    }

    /// Phase, such as [`FREE`].
    pub const fn phase(self) -> u8 {
        self.0 as u8
    }

    /// The same suspension in another phase.
    pub const fn with_phase(self, phase: u8) -> SuspensionWord {
        SuspensionWord(self.0 & !0xff | phase as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_word_returns_its_parts() {
        let word = SuspensionWord::new(0xffff_fff8, 0x1ff_fffe, STOPPED);
        assert_eq!((word.tid(), word.sequence(), word.phase()), (0xffff_fff8, 0xff_fffe, STOPPED));
        assert_eq!(word.with_phase(FREE), SuspensionWord::new(0xffff_fff8, 0xff_fffe, FREE));
    }
}
