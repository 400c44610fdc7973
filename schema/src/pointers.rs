//! Which words of a stack are addresses: what `--stack-words pointers` and `stk redact` keep.

use crate::Arch;

/// Where a .NET runtime describes its explicit Frames, words below this stay: they name the kinds
/// of Frames.
pub const SMALL: u64 = 64;

/// The address that a word holds, without the pointer-authentication bits of arm64.
pub const fn address_of(arch: Arch, word: u64) -> u64 {
    match arch {
        // User addresses have 47 bits.
        Arch::Arm64 => word & 0x7fff_ffff_ffff,
        Arch::X64 | Arch::X86 => word,
    }
}

/// Whether a word is all zeros or all ones: the ends of chains (of Frames, of x86's exception
/// handlers) are marked so, and no data is lost or kept with it.
pub const fn is_mark(arch: Arch, word: u64) -> bool {
    let ones = match arch {
        Arch::X86 => u32::MAX as u64,
        Arch::X64 | Arch::Arm64 => u64::MAX,
    };
    word == 0 || word == ones
}
