//! From one frame to its caller.

use super::forms::{self, X64FullRule, X64Rule};
use super::registers::{NONVOLATILE, NONVOLATILE_BITS};
use super::rule;
use super::{RBP, RSP, X64Registers};
use crate::engine::{BaseValue, CodeAddress, Facts, Position, StepResult, Unwinder};
use crate::flow::LOADED;
use crate::frame::Fault;
use crate::input::Modules;
use crate::memory::Memory;
use crate::{Arch, Stop, Trust};

/// The x64 unwinder.
pub(crate) struct X64Machine;

impl Unwinder for X64Machine {
    const ARCH: Arch = Arch::X64;
    type State = X64Registers;
    type Checkpoint = (u64, u64);
    const BASE: u8 = NONVOLATILE_BITS[RBP];
    type Rule = X64Rule;
    type Full = X64FullRule;

    #[inline(always)]
    fn ip(state: &X64Registers) -> u64 {
        state.ip
    }

    #[inline(always)]
    fn sp(state: &X64Registers) -> u64 {
        state.gpr[RSP]
    }

    fn registers(state: &X64Registers) -> crate::Registers {
        crate::Registers::X64(*state)
    }

    #[inline(always)]
    fn checkpoint(state: &X64Registers) -> (u64, u64) {
        (state.ip, state.gpr[RSP])
    }

    fn restore(state: &mut X64Registers, (ip, rsp): (u64, u64)) {
        state.ip = ip;
        state.gpr[RSP] = rsp;
    }

    #[inline(always)]
    fn base(state: &X64Registers) -> BaseValue {
        BaseValue::Known(state.gpr[RBP])
    }

    #[inline(always)]
    fn facts(rule: &X64Rule) -> Facts {
        Facts {
            starts_thread: rule.starts_thread(),
            uses: NONVOLATILE_BITS[usize::from(rule.base())],
            restores: rule.saved(),
        }
    }

    fn full_facts(full: &X64FullRule) -> Facts {
        let slots = full.saved.iter().chain(&full.moved).chain([&full.loaded]).flatten();
        let slots = slots.chain([&full.return_address]).filter(|slot| slot.register != LOADED);
        let uses = slots.fold(0, |uses, slot| uses | NONVOLATILE_BITS[usize::from(slot.register & 15)]);
        let restores =
            (0..8).filter(|&n| full.saved[n].or(full.moved[n]).is_some()).fold(0, |bits, n| bits | 1 << n);
        Facts { starts_thread: full.thread_start, uses, restores }
    }

    fn compile(place: &CodeAddress<'_>) -> Result<X64FullRule, Fault> {
        rule::compile(place)
    }

    fn pack(full: &X64FullRule) -> Option<X64Rule> {
        forms::pack(full)
    }

    #[inline(always)]
    fn apply<M: Modules>(
        rule: &X64Rule,
        registers: &mut X64Registers,
        memory: &Memory<'_>,
        _: &M,
    ) -> Result<StepResult, Stop> {
        let cfa = rule.cfa(registers.gpr[usize::from(rule.base())]);
        check(rule, registers.gpr[RSP], cfa, memory)?;
        let ip = memory.u64(cfa - 8)?;
        let mut saved = rule.saved();
        while saved != 0 {
            let n = (saved.trailing_zeros() & 7) as usize;
            saved &= saved - 1;
            registers.gpr[usize::from(NONVOLATILE[n])] = memory.u64(rule.slot(n, cfa))?;
        }
        registers.ip = ip;
        registers.gpr[RSP] = cfa;
        Ok(StepResult { trust: rule.trust(), position: Position::Caller })
    }

    fn apply_full<M: Modules>(
        full: &X64FullRule,
        registers: &mut X64Registers,
        memory: &Memory<'_>,
        modules: &M,
    ) -> Result<StepResult, Stop> {
        if full.stub {
            step_stub(full, registers, memory, modules)
        } else {
            step_full(full, registers, memory)
        }
    }

    fn leaf(registers: &mut X64Registers, memory: &Memory<'_>) -> Result<StepResult, Stop> {
        let full = X64FullRule::empty(Trust::LeafOutside);
        step_full(&full, registers, memory)
    }

    fn scan<M: Modules>(
        registers: &mut X64Registers,
        memory: &Memory<'_>,
        modules: &M,
        _: Position,
    ) -> Option<StepResult> {
        let mut at = registers.gpr[RSP].checked_next_multiple_of(8)?;
        while let Ok(word) = memory.u64(at) {
            if is_return_address(modules, word) {
                registers.ip = word;
                registers.gpr[RSP] = at.checked_add(8)?;
                return Some(StepResult { trust: Trust::Scan, position: Position::Caller });
            }
            at = at.checked_add(8)?;
        }
        None
    }
}

/// Steps out of a stub: by its rule if that leads to code, otherwise as if it had pushed one
/// register more.
fn step_stub<M: Modules>(
    full: &X64FullRule,
    registers: &mut X64Registers,
    memory: &Memory<'_>,
    modules: &M,
) -> Result<StepResult, Stop> {
    let is_code = |registers: &X64Registers| modules.find(registers.ip.wrapping_sub(1)).is_some();
    let before = *registers;
    let stepped = step_full(full, registers, memory);
    if stepped.is_ok() && is_code(registers) {
        return stepped;
    }
    let leaf = X64FullRule::empty(Trust::LeafOutside);
    let pushed = X64FullRule { return_address: leaf.return_address.plus(8), ..leaf };
    let mut other = before;
    match step_full(&pushed, &mut other, memory) {
        Ok(stepped) if is_code(&other) => {
            *registers = other;
            Ok(stepped)
        }
        _ => stepped,
    }
}

/// Steps by a rule in its full form.
fn step_full(
    full: &X64FullRule,
    registers: &mut X64Registers,
    memory: &Memory<'_>,
) -> Result<StepResult, Stop> {
    let old = *registers;
    let sp = old.gpr[RSP];
    let loaded = match full.loaded {
        Some(slot) if slot.address(&old) < sp => return Err(Stop::BadMemory { address: slot.address(&old) }),
        Some(slot) => memory.u64(slot.address(&old))?,
        None => 0,
    };
    let at = full.return_address.address_by(&old, loaded);
    let popped = at.wrapping_add(8 + u64::from(full.popped));
    if at < sp || popped <= at || (at | sp) & 7 != 0 {
        return Err(bad_stack_pointer(sp, popped));
    }
    let ip = memory.u64(at)?;
    let next = if full.machine_frame { memory.u64(at.saturating_add(24))? } else { popped };
    if next <= sp || next & 7 != 0 {
        return Err(bad_stack_pointer(sp, next));
    }
    for (n, slot) in full.saved.iter().enumerate() {
        let Some(slot) = slot else { continue };
        let address = slot.address_by(&old, loaded);
        if address < sp {
            return Err(Stop::BadMemory { address });
        }
        registers.gpr[usize::from(NONVOLATILE[n])] = memory.u64(address)?;
    }
    for (n, slot) in full.moved.iter().enumerate() {
        if let Some(slot) = slot {
            registers.gpr[usize::from(NONVOLATILE[n])] = slot.address_by(&old, loaded);
        }
    }
    registers.ip = ip;
    registers.gpr[RSP] = next;
    let position = if full.trust.is_exact() { Position::Context } else { Position::Caller };
    Ok(StepResult { trust: full.trust, position })
}

/// Whether the step is possible: the stack grows, is aligned, and all words to read were captured.
#[inline(always)]
pub(crate) fn check(rule: &X64Rule, sp: u64, cfa: u64, memory: &Memory<'_>) -> Result<(), Stop> {
    if cfa <= sp || (cfa | sp) & 7 != 0 {
        return Err(bad_stack_pointer(sp, cfa));
    }
    let end = cfa.saturating_add(rule.end());
    if end > memory.end() {
        // The return address is read first, so it is the first word missing.
        return Err(memory.missing(if cfa > memory.end() { cfa - 8 } else { end - 8 }));
    }
    if cfa - sp < rule.reach() { Err(below(rule, sp, cfa)) } else { Ok(()) }
}

/// The stop for a saved register that lies below the stack pointer.
#[cold]
fn below(rule: &X64Rule, sp: u64, cfa: u64) -> Stop {
    let slots = (0..8).filter(|n| rule.saved() >> n & 1 != 0).map(|n| rule.slot(n, cfa));
    // A slot that wraps around below 0 is below as well.
    let address = slots.into_iter().find(|&address| address < sp || address > cfa.saturating_add(rule.end()));
    Stop::BadMemory { address: address.unwrap_or(sp) }
}

/// The stop for a bad stack pointer: this frame's own, or the one that its caller would have.
#[cold]
fn bad_stack_pointer(own: u64, callers: u64) -> Stop {
    Stop::BadStackPointer { sp: if own & 7 != 0 { own } else { callers } }
}

/// Whether a word points into a function of a known module, right after a call as far as its code
/// is known.
fn is_return_address<M: Modules>(modules: &M, word: u64) -> bool {
    let Some(found) = word.checked_sub(1).and_then(|inside| modules.find(inside)) else { return false };
    let rva = word.wrapping_sub(found.base) as u32;
    if found.image.arch() != Arch::X64 || rule::function_range(found.image, rva - 1).is_none() {
        return false;
    }
    found.image.bytes_before(rva).is_none_or(super::run::ends_with_call)
}
