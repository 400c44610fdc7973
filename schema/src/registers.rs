//! Which registers a sample carries.
//!
//! A register set is a fixed list of registers, in a fixed order, each one stack word wide. Index 0
//! is always the instruction pointer and index 1 always the stack pointer, so that code that needs
//! only these two is the same for every architecture.

use crate::Arch;

/// Index of the instruction pointer in every register set.
pub const IP: usize = 0;
/// Index of the stack pointer in every register set.
pub const SP: usize = 1;
/// Most registers of any known set: a changed-register mask fits a `u64`.
pub const MAX_REGISTERS: usize = 64;

/// A list of registers; stored per thread slot as its numeric id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RegisterSet {
    /// CONTEXT_CONTROL and CONTEXT_INTEGER of x64: see [`RegisterSet::names`].
    X64 = 1,
    /// Program counter, sp, lr, fp, x0–x28 of arm64, then d8–d15.
    Arm64 = 2,
    /// CONTEXT_CONTROL and CONTEXT_INTEGER of x86, without segments.
    X86 = 3,
}

impl RegisterSet {
    /// The set stored as `id`, or `None` if this version does not know it.
    pub const fn from_id(id: u64) -> Option<RegisterSet> {
        match id {
            1 => Some(RegisterSet::X64),
            2 => Some(RegisterSet::Arm64),
            3 => Some(RegisterSet::X86),
            _ => None,
        }
    }

    /// The general register set of an architecture.
    pub const fn general(arch: Arch) -> RegisterSet {
        match arch {
            Arch::X64 => RegisterSet::X64,
            Arch::Arm64 => RegisterSet::Arm64,
            Arch::X86 => RegisterSet::X86,
        }
    }

    /// Register names in stored order.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            // After rip and rsp: the encoding order of the instruction set, so that UNWIND_INFO's
            // register n (rax 0, rcx 1, rdx 2, rbx 3, rsp 4, rbp 5, rsi 6, rdi 7, r8–r15) is easy
            // to find: see `x64_index`.
            RegisterSet::X64 => &[
                "rip", "rsp", "rax", "rcx", "rdx", "rbx", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
                "r12", "r13", "r14", "r15",
            ],
            RegisterSet::Arm64 => &[
                "pc", "sp", "lr", "fp", "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10",
                "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23",
                "x24", "x25", "x26", "x27", "x28", "d8", "d9", "d10", "d11", "d12", "d13", "d14", "d15",
            ],
            RegisterSet::X86 => &["eip", "esp", "eax", "ecx", "edx", "ebx", "ebp", "esi", "edi", "eflags"],
        }
    }

    /// Number of registers.
    pub const fn len(self) -> usize {
        self.names().len()
    }

    /// Never true: every set has registers.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// Index in [`RegisterSet::X64`] of the general register that the instruction set numbers `n`
/// (0–15; 4 is rsp).
pub const fn x64_index(n: usize) -> usize {
    match n {
        4 => SP,
        n if n < 4 => n + 2,
        n => n + 1,
    }
}
