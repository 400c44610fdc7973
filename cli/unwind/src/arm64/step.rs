//! From one frame to its caller.

use super::Arm64Registers;
use super::registers::{FP, LR};
use super::rule::{self, Arm64FullRule, Arm64Rule, Arm64Slot, Caller, FROM_FP, LEAF, SIGNED, THREAD_START};
use crate::engine::{BaseValue, CodeAddress, Facts, Position, StepResult, Unwinder};
use crate::frame::Fault;
use crate::input::Modules;
use crate::memory::Memory;
use crate::{Arch, Stop, Trust};

/// The arm64 unwinder.
pub(crate) struct Arm64Machine;

impl Unwinder for Arm64Machine {
    const ARCH: Arch = Arch::Arm64;
    type State = Arm64Registers;
    type Checkpoint = (u64, u64, u64);
    const BASE: u8 = 1;
    type Rule = Arm64Rule;
    type Full = Arm64FullRule;

    #[inline(always)]
    fn ip(state: &Arm64Registers) -> u64 {
        state.pc
    }

    #[inline(always)]
    fn sp(state: &Arm64Registers) -> u64 {
        state.sp
    }

    fn registers(state: &Arm64Registers) -> crate::Registers {
        crate::Registers::Arm64(*state)
    }

    #[inline(always)]
    fn checkpoint(state: &Arm64Registers) -> (u64, u64, u64) {
        (state.pc, state.sp, state.x[LR])
    }

    fn restore(state: &mut Arm64Registers, (pc, sp, lr): (u64, u64, u64)) {
        state.pc = pc;
        state.sp = sp;
        state.x[LR] = lr;
    }

    #[inline(always)]
    fn base(state: &Arm64Registers) -> BaseValue {
        BaseValue::Known(state.x[FP])
    }

    #[inline(always)]
    fn facts(rule: &Arm64Rule) -> Facts {
        Facts {
            starts_thread: rule.flags & THREAD_START != 0,
            uses: u8::from(rule.flags & FROM_FP != 0),
            restores: u8::from(rule.saved & (1 << (FP - 19)) != 0),
        }
    }

    fn full_facts(full: &Arm64FullRule) -> Facts {
        let uses = full.saved.iter().flatten().chain([&full.sp]).any(|slot| slot.from_fp);
        Facts {
            starts_thread: full.thread_start,
            uses: u8::from(uses),
            restores: u8::from(full.saved[FP - 19].is_some()),
        }
    }

    fn compile(place: &CodeAddress<'_>) -> Result<Arm64FullRule, Fault> {
        rule::compile(place)
    }

    fn pack(full: &Arm64FullRule) -> Option<Arm64Rule> {
        rule::pack(full)
    }

    #[inline(always)]
    fn apply<M: Modules>(
        rule: &Arm64Rule,
        registers: &mut Arm64Registers,
        memory: &Memory<'_>,
        _: &M,
    ) -> Result<StepResult, Stop> {
        let base = if rule.flags & FROM_FP != 0 { registers.x[FP] } else { registers.sp };
        let sp = base.wrapping_add(i64::from(rule.sp) as u64);
        check_sp(registers.sp, sp, rule.saved & (1 << (LR - 19)) == 0)?;
        let mut saved = rule.saved;
        while saved != 0 {
            let n = saved.trailing_zeros() as usize;
            saved &= saved - 1;
            let at = sp.wrapping_add((i64::from(rule.slots[n]) * 8) as u64);
            if at < registers.sp {
                return Err(Stop::BadMemory { address: at });
            }
            *registers.nonvolatile_mut(n) = memory.u64(at)?;
        }
        if rule.flags & SIGNED != 0 {
            registers.x[LR] = strip(registers.x[LR]);
        }
        registers.sp = sp;
        registers.pc = registers.x[LR];
        let trust = if rule.flags & LEAF != 0 { Trust::Leaf } else { Trust::UnwindInfo };
        Ok(StepResult { trust, position: Position::Caller })
    }

    fn apply_full<M: Modules>(
        full: &Arm64FullRule,
        registers: &mut Arm64Registers,
        memory: &Memory<'_>,
        _: &M,
    ) -> Result<StepResult, Stop> {
        step_full(full, registers, memory)
    }

    fn leaf(registers: &mut Arm64Registers, memory: &Memory<'_>) -> Result<StepResult, Stop> {
        step_full(&Arm64FullRule::leaf(Trust::LeafOutside), registers, memory)
    }

    fn scan<M: Modules>(
        registers: &mut Arm64Registers,
        memory: &Memory<'_>,
        modules: &M,
        position: Position,
    ) -> Option<StepResult> {
        let trust = StepResult { trust: Trust::Scan, position: Position::Caller };
        if position == Position::Context
            && registers.pc != registers.x[LR]
            && is_return_address(modules, registers.x[LR])
        {
            registers.pc = registers.x[LR];
            return Some(trust);
        }
        let mut at = registers.sp.checked_next_multiple_of(8)?;
        while let Ok(word) = memory.u64(at) {
            if is_return_address(modules, strip(word)) {
                registers.pc = strip(word);
                // The scan does not know the exact stack pointer. Frames are 16-byte aligned, so
                // round up.
                registers.sp = at.checked_add(8)?.checked_next_multiple_of(16)?;
                return Some(trust);
            }
            at = at.checked_add(8)?;
        }
        None
    }
}

/// Steps by a rule in its full form.
fn step_full(
    full: &Arm64FullRule,
    registers: &mut Arm64Registers,
    memory: &Memory<'_>,
) -> Result<StepResult, Stop> {
    let old = *registers;
    let address = |slot: Arm64Slot| {
        let base = if slot.from_fp { old.x[FP] } else { old.sp };
        base.wrapping_add(slot.offset as u64)
    };
    let sp = address(full.sp);
    check_sp(old.sp, sp, full.saved[LR - 19].is_none())?;
    for (n, slot) in full.saved.iter().enumerate() {
        let Some(slot) = slot else { continue };
        let at = address(*slot);
        if at < old.sp {
            return Err(Stop::BadMemory { address: at });
        }
        *registers.nonvolatile_mut(n) = memory.u64(at)?;
    }
    if full.signed {
        registers.x[LR] = strip(registers.x[LR]);
    }
    match full.caller {
        Caller::Lr => {
            registers.sp = sp;
            registers.pc = registers.x[LR];
        }
        Caller::MachineFrame => {
            registers.sp = memory.u64(sp)?;
            registers.pc = memory.u64(sp.saturating_add(8))?;
            check_sp(old.sp, registers.sp, false)?;
        }
        Caller::Context => {
            read_context(registers, sp, memory)?;
            check_sp(old.sp, registers.sp, false)?;
        }
    }
    let position = if full.exact { Position::Context } else { Position::Caller };
    Ok(StepResult { trust: full.trust, position })
}

/// Only the innermost function leaves the stack pointer as it is, and then its caller is in lr.
#[inline(always)]
fn check_sp(own: u64, callers: u64, may_stay: bool) -> Result<(), Stop> {
    if (own | callers) & 15 != 0 || callers < own || (callers == own && !may_stay) {
        return Err(Stop::BadStackPointer { sp: if own & 15 != 0 { own } else { callers } });
    }
    Ok(())
}

/// Removes the pointer authentication code: user-mode addresses have 47 bits.
fn strip(address: u64) -> u64 {
    address & 0x7fff_ffff_ffff
}

/// ARM64_NT_CONTEXT: x0 to x28 at 8, fp, lr, sp and pc after them, v0 to v31 at 110h.
fn read_context(registers: &mut Arm64Registers, at: u64, memory: &Memory<'_>) -> Result<(), Stop> {
    for (n, x) in (0u64..).zip(&mut registers.x) {
        *x = memory.u64(at.saturating_add(8 + 8 * n))?;
    }
    registers.sp = memory.u64(at.saturating_add(0x100))?;
    registers.pc = memory.u64(at.saturating_add(0x108))?;
    for (n, d) in (0u64..).zip(&mut registers.d) {
        *d = memory.u64(at.saturating_add(0x110 + 16 * (8 + n)))?;
    }
    Ok(())
}

/// Whether a word points into a function of a known module, right after a call as far as its code
/// is known.
fn is_return_address<M: Modules>(modules: &M, word: u64) -> bool {
    if word & 3 != 0 {
        return false;
    }
    let Some(found) = word.checked_sub(1).and_then(|inside| modules.find(inside)) else { return false };
    let rva = word.wrapping_sub(found.base) as u32;
    if found.image.arch() != Arch::Arm64 || rule::function_range(found.image, rva - 1).is_none() {
        return false;
    }
    let before = found.image.bytes_before(rva).and_then(<[u8]>::last_chunk::<4>);
    before.is_none_or(|&word| {
        let word = u32::from_le_bytes(word);
        // BL, and BLR with its authenticating forms.
        word >> 26 == 0x25 || word & 0xfeff_f800 == 0xd63f_0000
    })
}
