//! The x64 unwinder for walks that return no registers. It restores a register only when a later
//! step needs it.
//!
//! Nearly every frame is found by rsp, a few by rbp, hardly any by another register. So the walk
//! tracks rsp's value and rbp's slot on the stack. For the other registers it records only where
//! each step has left them: the stack pointer after the return and the rule's slots.

use super::RSP;
use super::forms::{self, X64FullRule, X64Rule};
use super::registers::{NONVOLATILE, RBP, X64Registers, nonvolatile};
use super::rule;
use super::step::{self, X64Machine};
use crate::engine::{BaseValue, CodeAddress, Facts, Position, StepResult, Unwinder};
use crate::frame::Fault;
use crate::input::Modules;
use crate::memory::Memory;
use crate::{Arch, Stop, Trust};

/// The registers of a walk, some of them still on the stack.
pub(crate) struct X64State<'a> {
    ip: u64,
    rsp: u64,
    /// Where rbp lies on the stack; [`IN_ORIGIN`] if no step of the trail has restored it.
    rbp_slot: u64,
    /// All registers as they were before the first step of the trail.
    origin: X64Registers,
    trail: &'a mut Vec<X64Step>,
}

/// This value is not aligned, so no rule's slot has it.
const IN_ORIGIN: u64 = u64::MAX;

/// rbp's index among the nonvolatile registers.
const RBP_SLOT: usize = 1;

/// Where the registers that a step restores lie.
pub(crate) struct X64Step {
    /// The stack pointer after the return.
    rsp: u64,
    rule: X64Rule,
}

impl<'a> X64State<'a> {
    pub(crate) fn new(registers: &X64Registers, trail: &'a mut Vec<X64Step>) -> Self {
        trail.clear();
        X64State { ip: registers.ip, rsp: registers.gpr[RSP], rbp_slot: IN_ORIGIN, origin: *registers, trail }
    }

    /// The value of a register, by going back to the last step that restored it.
    #[cold]
    fn resolve(&self, register: u8, memory: &Memory<'_>) -> Result<u64, Stop> {
        let Some(n) = nonvolatile(register) else { return Ok(self.origin.gpr[usize::from(register & 15)]) };
        match self.trail.iter().rev().find(|step| step.rule.saved() >> n & 1 != 0) {
            Some(step) => memory.u64(step.rule.slot(n, step.rsp)),
            None => Ok(self.origin.gpr[usize::from(register & 15)]),
        }
    }

    /// Restores all registers, for a step that no small rule describes.
    #[cold]
    fn settle(&mut self, memory: &Memory<'_>) -> Result<(), Stop> {
        let mut registers = self.origin;
        for register in NONVOLATILE {
            registers.gpr[usize::from(register)] = self.resolve(register, memory)?;
        }
        registers.ip = self.ip;
        registers.gpr[RSP] = self.rsp;
        self.origin = registers;
        self.trail.clear();
        self.rbp_slot = IN_ORIGIN;
        Ok(())
    }

    fn adopt(&mut self) {
        self.ip = self.origin.ip;
        self.rsp = self.origin.gpr[RSP];
    }

    #[inline(always)]
    fn rbp(&self, memory: &Memory<'_>) -> Option<u64> {
        if self.rbp_slot == IN_ORIGIN { Some(self.origin.gpr[RBP]) } else { memory.word(self.rbp_slot) }
    }
}

/// The x64 unwinder that restores registers on demand.
pub(crate) struct X64LazyMachine<'a>(std::marker::PhantomData<&'a ()>);

impl<'a> Unwinder for X64LazyMachine<'a> {
    const ARCH: Arch = Arch::X64;
    type State = X64State<'a>;
    type Checkpoint = (u64, u64);
    type Rule = X64Rule;
    const BASE: u8 = X64Machine::BASE;
    type Full = X64FullRule;

    #[inline(always)]
    fn ip(state: &X64State<'a>) -> u64 {
        state.ip
    }

    #[inline(always)]
    fn sp(state: &X64State<'a>) -> u64 {
        state.rsp
    }

    fn registers(state: &X64State<'a>) -> crate::Registers {
        crate::Registers::X64(state.origin)
    }

    #[inline(always)]
    fn checkpoint(state: &X64State<'a>) -> (u64, u64) {
        (state.ip, state.rsp)
    }

    fn restore(state: &mut X64State<'a>, (ip, rsp): (u64, u64)) {
        state.ip = ip;
        state.rsp = rsp;
    }

    #[inline(always)]
    fn base(state: &X64State<'a>) -> BaseValue {
        match state.rbp_slot {
            IN_ORIGIN => BaseValue::Known(state.origin.gpr[RBP]),
            slot => BaseValue::At(slot),
        }
    }

    #[inline(always)]
    fn facts(rule: &X64Rule) -> Facts {
        X64Machine::facts(rule)
    }

    fn full_facts(full: &X64FullRule) -> Facts {
        X64Machine::full_facts(full)
    }

    fn compile(place: &CodeAddress<'_>) -> Result<X64FullRule, Fault> {
        rule::compile(place)
    }

    fn pack(full: &X64FullRule) -> Option<X64Rule> {
        forms::pack(full)
    }

    #[inline(always)]
    fn hint(rule: &X64Rule) -> u16 {
        rule.hint()
    }

    #[inline(always)]
    fn quick(rule: &X64Rule, hint: u16, state: &mut X64State<'a>, memory: &Memory<'_>) -> Option<Trust> {
        let rsp = state.rsp;
        // The hint is loaded before the rule, so reading the next frame's return address does not
        // wait for the rule.
        let cfa = match hint {
            0 if usize::from(rule.base()) == RBP => rule.cfa(state.rbp(memory)?),
            0 => return None,
            words => rsp.wrapping_add(u64::from(words) * 8),
        };
        let is_sound = cfa > rsp
            && (cfa | rsp) & 7 == 0
            && cfa - rsp >= rule.reach()
            && cfa.saturating_add(rule.end()) <= memory.end();
        if !is_sound {
            return None;
        }
        state.ip = memory.word(cfa - 8)?;
        state.rsp = cfa;
        // Prefetches the stack of the next frames into the cache while this frame is processed.
        std::hint::black_box((memory.word(cfa.wrapping_add(512)), memory.word(cfa.wrapping_add(576))));
        state.trail.push(X64Step { rsp: cfa, rule: *rule });
        // The branch predictor cannot learn whether rbp is saved, so select without a branch.
        let saved = u64::from(rule.saved() >> RBP_SLOT & 1).wrapping_neg();
        state.rbp_slot = (rule.slot(RBP_SLOT, cfa) & saved) | (state.rbp_slot & !saved);
        Some(rule.trust())
    }

    fn apply<M: Modules>(
        rule: &X64Rule,
        state: &mut X64State<'a>,
        memory: &Memory<'_>,
        _: &M,
    ) -> Result<StepResult, Stop> {
        let base = match usize::from(rule.base()) {
            RSP => state.rsp,
            _ => state.resolve(rule.base(), memory)?,
        };
        let cfa = rule.cfa(base);
        step::check(rule, state.rsp, cfa, memory)?;
        state.ip = memory.u64(cfa - 8)?;
        state.rsp = cfa;
        state.trail.push(X64Step { rsp: cfa, rule: *rule });
        if rule.saved() >> RBP_SLOT & 1 != 0 {
            state.rbp_slot = rule.slot(RBP_SLOT, cfa);
        }
        Ok(StepResult { trust: rule.trust(), position: Position::Caller })
    }

    fn apply_full<M: Modules>(
        full: &X64FullRule,
        state: &mut X64State<'a>,
        memory: &Memory<'_>,
        modules: &M,
    ) -> Result<StepResult, Stop> {
        state.settle(memory)?;
        let stepped = X64Machine::apply_full(full, &mut state.origin, memory, modules);
        if stepped.is_ok() {
            state.adopt();
        }
        stepped
    }

    fn leaf(state: &mut X64State<'a>, memory: &Memory<'_>) -> Result<StepResult, Stop> {
        state.settle(memory)?;
        let stepped = X64Machine::leaf(&mut state.origin, memory);
        if stepped.is_ok() {
            state.adopt();
        }
        stepped
    }

    fn scan<M: Modules>(
        state: &mut X64State<'a>,
        memory: &Memory<'_>,
        modules: &M,
        position: Position,
    ) -> Option<StepResult> {
        state.settle(memory).ok()?;
        let stepped = X64Machine::scan(&mut state.origin, memory, modules, position)?;
        state.adopt();
        Some(stepped)
    }
}
