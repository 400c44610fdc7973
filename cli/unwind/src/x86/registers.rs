//! The registers that unwinding needs.

/// Integer registers and the instruction pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct X86Registers {
    /// eip.
    pub ip: u32,
    /// eax, ecx, edx, ebx, esp, ebp, esi, edi: in the order of their encoding. In a recovered
    /// caller, esp has its value after the return address was popped and before arguments are
    /// removed.
    pub gpr: [u32; 8],
}

/// Index of ebx in [`X86Registers::gpr`].
pub const EBX: usize = 3;
/// Index of esp in [`X86Registers::gpr`].
pub const ESP: usize = 4;
/// Index of ebp in [`X86Registers::gpr`].
pub const EBP: usize = 5;
/// Index of esi in [`X86Registers::gpr`].
pub const ESI: usize = 6;
/// Index of edi in [`X86Registers::gpr`].
pub const EDI: usize = 7;

/// The nonvolatile registers besides esp, in the order of a rule's slots.
pub(crate) const NONVOLATILE: [u8; 4] = [3, 5, 6, 7];
