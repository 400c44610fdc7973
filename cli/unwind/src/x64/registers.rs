//! The registers that unwinding needs.

/// Integer registers and the instruction pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct X64Registers {
    /// rip.
    pub ip: u64,
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15: in the order of their encoding.
    pub gpr: [u64; 16],
}

/// Index of rbx in [`X64Registers::gpr`].
pub const RBX: usize = 3;
/// Index of rsp in [`X64Registers::gpr`].
pub const RSP: usize = 4;
/// Index of rbp in [`X64Registers::gpr`].
pub const RBP: usize = 5;
/// Index of rsi in [`X64Registers::gpr`].
pub const RSI: usize = 6;
/// Index of rdi in [`X64Registers::gpr`].
pub const RDI: usize = 7;
/// Index of r10 in [`X64Registers::gpr`].
pub const R10: usize = 10;

/// The nonvolatile registers, in the order of a rule's slots.
pub(crate) const NONVOLATILE: [u8; 8] = [3, 5, 6, 7, 12, 13, 14, 15];

/// For each register, its bit among the nonvolatile ones; 0 for the others.
pub(crate) const NONVOLATILE_BITS: [u8; 16] = [0, 0, 0, 1, 0, 2, 4, 8, 0, 0, 0, 0, 16, 32, 64, 128];

/// A register's index in [`NONVOLATILE`].
pub(crate) fn nonvolatile(register: u8) -> Option<usize> {
    NONVOLATILE.iter().position(|&r| r == register)
}
