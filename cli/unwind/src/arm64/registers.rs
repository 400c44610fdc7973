//! The registers that unwinding needs.

/// Integer registers, the program counter and the nonvolatile halves of the vector registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arm64Registers {
    /// pc.
    pub pc: u64,
    /// sp.
    pub sp: u64,
    /// x0 to x28, then fp (x29) and lr (x30).
    pub x: [u64; 31],
    /// d8 to d15: the low halves of v8 to v15. Zero if not recorded; no frame depends on them.
    pub d: [u64; 8],
}

/// Index of the frame pointer in [`Arm64Registers::x`].
pub(crate) const FP: usize = 29;
/// Index of the link register in [`Arm64Registers::x`].
pub(crate) const LR: usize = 30;

/// Nonvolatile registers: x19 to x28, fp, lr, d8 to d15, in the order of a rule's slots.
pub(crate) const NONVOLATILE: usize = 20;

/// The index of a nonvolatile register's slot in a rule.
pub(crate) fn slot_of(register: Nonvolatile) -> Option<usize> {
    match register {
        Nonvolatile::X(n @ 19..=30) => Some(usize::from(n) - 19),
        Nonvolatile::D(n @ 8..=15) => Some(usize::from(n) - 8 + 12),
        _ => None,
    }
}

/// A register that an unwind code names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nonvolatile {
    X(u8),
    D(u8),
}

impl Nonvolatile {
    /// The register `n` after this one. The second of a pair is the next one (x28 goes with fp); of
    /// the pairs that save_next adds, d8 comes after x28.
    pub(crate) fn after(self, n: u8) -> Nonvolatile {
        match self {
            Nonvolatile::X(first) if n > 1 && first + n > 28 => Nonvolatile::D(first + n - 29 + 8),
            Nonvolatile::X(first) => Nonvolatile::X(first + n),
            Nonvolatile::D(first) => Nonvolatile::D(first + n),
        }
    }
}

impl Arm64Registers {
    pub(crate) fn nonvolatile_mut(&mut self, slot: usize) -> &mut u64 {
        if slot < 12 { &mut self.x[slot + 19] } else { &mut self.d[(slot - 12) & 7] }
    }
}
