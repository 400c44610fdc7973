//! Which addresses in precompiled code are worth a request: those that were executed or follow a
//! call, each once, and none in a method that has its name.

use alloc::collections::{BTreeMap, BTreeSet};

use stk_schema::Arch;

use crate::record::dynamic::{UnnamedCode, follows_call};
use crate::record::image::Memory;

/// Most addresses, and most methods, that are remembered. Beyond that, all are forgotten.
const MOST: usize = 16_384;
/// Bytes of the longest call.
const LONGEST_CALL: usize = 7;

/// What was requested and named. Keys begin with the module's instance.
pub(super) struct PrecompiledCode {
    arch: Arch,
    requested: BTreeSet<(u64, u64)>,
    /// Sizes by address.
    named: BTreeMap<(u64, u64), u64>,
}

impl PrecompiledCode {
    pub(super) fn new(arch: Arch) -> PrecompiledCode {
        PrecompiledCode { arch, requested: BTreeSet::new(), named: BTreeMap::new() }
    }

    /// Whether the name of `code` is to be requested now.
    pub(super) fn is_new(&mut self, code: &UnnamedCode, memory: &impl Memory) -> bool {
        if self.has_name(code) || !code.executed && !self.may_be_a_return(code.address, memory) {
            return false;
        }
        if self.requested.len() >= MOST {
            self.requested.clear();
        }
        self.requested.insert((code.instance, code.address))
    }

    /// The method of `size` bytes at `base`, in which `code` lies, has its name. Returns whether it
    /// had none before.
    pub(super) fn named(&mut self, code: &UnnamedCode, base: u64, size: u64) -> bool {
        if self.has_name(code) {
            return false;
        }
        if self.named.len() >= MOST {
            self.named.clear();
        }
        self.named.insert((code.instance, base), size);
        true
    }

    fn has_name(&self, code: &UnnamedCode) -> bool {
        let below = self.named.range(..=(code.instance, code.address)).next_back();
        below
            .is_some_and(|(&(instance, base), size)| instance == code.instance && code.address - base < *size)
    }

    /// Whether a call ends with the byte at `address`.
    fn may_be_a_return(&self, address: u64, memory: &impl Memory) -> bool {
        let mut before = [0; LONGEST_CALL];
        let start = (address + 1).checked_sub(LONGEST_CALL as u64);
        start.is_some_and(|start| memory.read(start, &mut before)) && follows_call(&before, self.arch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `call rel32` at 0x100, nothing else.
    struct Code;

    impl Memory for Code {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            for (at, byte) in (address..).zip(into) {
                *byte = if at == 0x100 { 0xe8 } else { 0 };
            }
            address >= 0x80
        }
    }

    fn code(address: u64, executed: bool) -> UnnamedCode {
        UnnamedCode { instance: 3, address, base: address, size: 1, executed, precompiled: true }
    }

    #[test]
    fn executed_addresses_and_returns_are_requested_once() {
        let mut precompiled = PrecompiledCode::new(Arch::X86);
        for (at, executed, expected) in [
            (0x104, false, true),
            (0x104, false, false),
            (0x105, false, false),
            (0x105, true, true),
            (0x105, true, false),
            (0x10, false, false),
            (3, false, false),
        ] {
            let new = precompiled.is_new(&code(at, executed), &Code);
            assert_eq!(new, expected, "{at:x} {executed}");
        }
        let other_module = UnnamedCode { instance: 4, ..code(0x104, false) };
        assert!(precompiled.is_new(&other_module, &Code));
    }

    #[test]
    fn method_with_a_name_is_not_requested_again() {
        let mut precompiled = PrecompiledCode::new(Arch::X86);
        assert!(precompiled.named(&code(0x104, true), 0x100, 0x20));
        assert!(!precompiled.named(&code(0x110, true), 0x100, 0x20));
        for (at, expected) in [(0x100, false), (0x11f, false), (0x120, true), (0xff, true)] {
            assert_eq!(precompiled.is_new(&code(at, true), &Code), expected, "{at:x}");
        }
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let mut precompiled = PrecompiledCode::new(Arch::X86);
        for at in 0..2 * MOST as u64 {
            let code = code(0x1000 + 0x10 * at, true);
            assert!(precompiled.is_new(&code, &Code));
            precompiled.named(&code, code.address, 8);
            assert!(precompiled.requested.len() <= MOST && precompiled.named.len() <= MOST);
        }
    }
}
