//! Register sets, one form per architecture.

use crate::{Arch, arm64, x64, x86};

/// The registers of a sample or of a recovered frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registers {
    /// x86-64.
    X64(x64::X64Registers),
    /// AArch64.
    Arm64(arm64::Arm64Registers),
    /// 32-bit x86.
    X86(x86::X86Registers),
}

impl Registers {
    /// Their architecture.
    pub fn arch(&self) -> Arch {
        match self {
            Registers::X64(_) => Arch::X64,
            Registers::Arm64(_) => Arch::Arm64,
            Registers::X86(_) => Arch::X86,
        }
    }

    /// The instruction pointer.
    pub fn ip(&self) -> u64 {
        match self {
            Registers::X64(r) => r.ip,
            Registers::Arm64(r) => r.pc,
            Registers::X86(r) => u64::from(r.ip),
        }
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        match self {
            Registers::X64(r) => r.gpr[x64::RSP],
            Registers::Arm64(r) => r.sp,
            Registers::X86(r) => u64::from(r.gpr[x86::ESP]),
        }
    }
}
