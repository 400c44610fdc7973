//! Where a frame holds its caller's registers.

use super::{ESP, X86Registers};

/// A register plus an offset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct X86Slot {
    register: u8,
    offset: i32,
}

/// Where the caller's value of a nonvolatile register is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum RegisterSource {
    /// The register still holds it.
    #[default]
    Kept,
    Word(X86Slot),
    /// Computed from another register.
    Computed(X86Slot),
}

/// How a function returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Return {
    pub(crate) return_address: X86Slot,
    pub(crate) sp: X86Slot,
    pub(crate) saved: [RegisterSource; 4],
}

impl X86Slot {
    pub(crate) fn new(register: usize, offset: i32) -> X86Slot {
        X86Slot { register: register as u8, offset }
    }

    pub(crate) fn address(self, registers: &X86Registers) -> u32 {
        registers.gpr[usize::from(self.register & 7)].wrapping_add(self.offset as u32)
    }

    pub(crate) fn register(self) -> u8 {
        self.register
    }

    pub(crate) fn offset(self) -> i32 {
        self.offset
    }

    /// Whether it depends on esp.
    pub(crate) fn is_by_esp(self) -> bool {
        usize::from(self.register) == ESP
    }
}
