//! A rule in its two forms: the full one, and the small one of the cache.

use super::registers::nonvolatile;
use super::{RSP, X64Registers};
use crate::Trust;
use crate::cache::MOST_HINT;
use crate::flow::LOADED;

/// An address relative to a register of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct X64Slot {
    pub(crate) register: u8,
    pub(crate) offset: i64,
}

impl X64Slot {
    pub(crate) fn plus(self, bytes: i64) -> X64Slot {
        X64Slot { offset: self.offset.wrapping_add(bytes), ..self }
    }

    pub(crate) fn address(self, registers: &X64Registers) -> u64 {
        registers.gpr[usize::from(self.register & 15)].wrapping_add(self.offset as u64)
    }

    /// As [`X64Slot::address`], where the register may be the word that the frame keeps
    /// ([`X64FullRule::loaded`]).
    pub(crate) fn address_by(self, registers: &X64Registers, loaded: u64) -> u64 {
        if self.register == LOADED {
            loaded.wrapping_add(self.offset as u64)
        } else {
            self.address(registers)
        }
    }
}

/// The layout of a function's frame at one address, in its full form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct X64FullRule {
    /// Where the return address lies; for a machine frame, the interrupted instruction pointer.
    pub(crate) return_address: X64Slot,
    /// Bytes that the return pops besides the return address (`ret imm16`).
    pub(crate) popped: u32,
    /// The return address is the first word of a machine frame, whose fourth word is the stack
    /// pointer.
    pub(crate) machine_frame: bool,
    /// Where the nonvolatile registers lie, in the order of
    /// [`NONVOLATILE`](super::registers::NONVOLATILE).
    pub(crate) saved: [Option<X64Slot>; 8],
    /// Nonvolatile registers whose value another register holds (plus an offset). Only assembler
    /// without unwind data does this.
    pub(crate) moved: [Option<X64Slot>; 8],
    /// The address of a word of the frame to which other places are relative, as the register
    /// [`LOADED`]. Assembler that aligns its stack restores the stack pointer from this word.
    pub(crate) loaded: Option<X64Slot>,
    pub(crate) trust: Trust,
    pub(crate) thread_start: bool,
    /// Assumed to be a leaf, but it may have pushed one register.
    pub(crate) stub: bool,
    /// Its code may change, so the cache must not store the rule.
    pub(crate) volatile: bool,
}

impl X64FullRule {
    /// Nothing is pushed or saved: the state at a function's first instruction, and at each of a
    /// leaf's.
    pub(crate) fn empty(trust: Trust) -> X64FullRule {
        X64FullRule {
            return_address: X64Slot { register: RSP as u8, offset: 0 },
            popped: 0,
            machine_frame: false,
            saved: [None; 8],
            moved: [None; 8],
            loaded: None,
            trust,
            thread_start: false,
            stub: false,
            volatile: false,
        }
    }

    /// Whether the rule depends only on registers that a called function preserves.
    pub(crate) fn survives_a_call(&self) -> bool {
        let mut slots = self.saved.iter().flatten().chain([&self.return_address]);
        slots.all(|slot| slot.register == RSP as u8 || nonvolatile(slot.register).is_some())
    }

    /// Whether the frame holds only its return address.
    pub(crate) fn is_empty(&self) -> bool {
        *self == X64FullRule { thread_start: self.thread_start, ..X64FullRule::empty(self.trust) }
    }
}

/// The small form of [`X64FullRule`]: everything relative to one register, in words, within 256 KB.
/// It consists of whole words, because every step copies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct X64Rule {
    /// From the base register to the stack pointer after the return, in bytes.
    cfa: i64,
    /// From the lowest byte: the base register, which nonvolatile registers are saved (a bit each),
    /// words in use above the stack pointer after the return (saves in the home space), the trust,
    /// whether the function starts threads; and in 16 bits the words that the saved registers reach
    /// below the stack pointer after the return, where the base register is not rsp (by rsp, saves
    /// below the stack pointer are ruled out when the rule is made).
    facts: u64,
    /// Words from the stack pointer after the return to each saved register, 16 bits each.
    slots: [u64; 2],
}

/// The base register of most rules.
const RSP_BASE: u8 = RSP as u8;

/// The trusts that a rule can have.
const TRUSTS: [Trust; 3] = [Trust::UnwindInfo, Trust::UnwindInfoNoCode, Trust::Leaf];

impl X64Rule {
    #[inline(always)]
    pub(crate) fn base(&self) -> u8 {
        self.facts as u8 & 15
    }

    /// Bit n: nonvolatile register n is saved.
    #[inline(always)]
    pub(crate) fn saved(&self) -> u8 {
        (self.facts >> 8) as u8
    }

    /// The end of the saved registers above the stack pointer after the return, in bytes.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        (self.facts >> 16 & 0xff) * 8
    }

    #[inline(always)]
    pub(crate) fn trust(&self) -> Trust {
        match self.facts >> 24 & 3 {
            0 => TRUSTS[0],
            1 => TRUSTS[1],
            _ => TRUSTS[2],
        }
    }

    #[inline(always)]
    pub(crate) fn starts_thread(&self) -> bool {
        self.facts >> 32 & 1 != 0
    }

    /// The start of the saved registers below the stack pointer after the return, in bytes.
    #[inline(always)]
    pub(crate) fn reach(&self) -> u64 {
        (self.facts >> 40 & 0xffff) * 8
    }

    /// Words from the stack pointer to that after the return; 0 where the base is another register,
    /// or they are many.
    pub(crate) fn hint(&self) -> u16 {
        let words = u16::try_from(self.cfa / 8).unwrap_or(0);
        if self.base() == RSP_BASE && self.cfa % 8 == 0 && words <= MOST_HINT { words } else { 0 }
    }

    /// The stack pointer after the return, from the base register's value.
    #[inline(always)]
    pub(crate) fn cfa(&self, base: u64) -> u64 {
        base.wrapping_add(self.cfa as u64)
    }

    /// Where nonvolatile register `n` lies.
    #[inline(always)]
    pub(crate) fn slot(&self, n: usize, cfa: u64) -> u64 {
        let words = (self.slots[n >> 2 & 1] >> ((n & 3) * 16)) as i16;
        cfa.wrapping_add((i64::from(words) * 8) as u64)
    }
}

/// The rule's small form, if it has one.
pub(crate) fn pack(full: &X64FullRule) -> Option<X64Rule> {
    if full.machine_frame
        || full.stub
        || full.volatile
        || full.popped != 0
        || full.moved != [None; 8]
        || full.loaded.is_some()
    {
        return None;
    }
    let base = full.return_address.register;
    let cfa = full.return_address.offset.checked_add(8)?;
    let trust = TRUSTS.iter().position(|&trust| trust == full.trust)?;
    let (mut saved, mut above, mut below, mut slots) = (0u8, 0u8, 0u16, [0u64; 2]);
    for (n, slot) in full.saved.iter().enumerate() {
        let Some(slot) = slot else { continue };
        let from_cfa = slot.offset.checked_sub(cfa)?;
        // Below the stack pointer nothing is saved.
        if slot.register != base || from_cfa % 8 != 0 || (base == RSP_BASE && slot.offset < 0) {
            return None;
        }
        let words = i16::try_from(from_cfa / 8).ok()?;
        slots[n >> 2] |= u64::from(words as u16) << ((n & 3) * 16);
        saved |= 1 << n;
        match u16::try_from(words) {
            Ok(words) => above = above.max(u8::try_from(words + 1).ok()?),
            Err(_) if base != RSP_BASE => below = below.max(words.unsigned_abs()),
            Err(_) => {}
        }
    }
    let facts = u64::from(base & 15)
        | u64::from(saved) << 8
        | u64::from(above) << 16
        | (trust as u64) << 24
        | u64::from(full.thread_start) << 32
        | u64::from(below) << 40;
    let rule = X64Rule { cfa: i64::from(i32::try_from(cfa).ok()?), facts, slots };
    Some(rule)
}
