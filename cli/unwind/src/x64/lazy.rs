//! The x64 unwinder for walks that return no registers: it restores only what a later step asks for.
//!
//! Nearly every frame is found by rsp, a few by rbp, hardly any by another register. So rsp and rbp are followed, and
//! of the others only where each step has left them: the stack pointer after the return and the rule's slots.

use super::RSP;
use super::registers::{NONVOLATILE, RBP, Registers, nonvolatile};
use super::rule::{self, Full, RSP_BASE, Rule};
use super::step::{self, Machine};
use crate::engine::{Facts, Place, Position, Stepped, Unwinder};
use crate::frame::Fault;
use crate::memory::Memory;
use crate::walk::Modules;
use crate::{Arch, Stop};

/// The registers of a walk, some of them still on the stack.
pub(crate) struct State<'a> {
    ip: u64,
    rsp: u64,
    rbp: u64,
    /// All registers as they were before the first step of the trail.
    origin: Registers,
    trail: &'a mut Vec<Step>,
}

/// Where a step has left the registers that it restores.
pub(crate) struct Step {
    /// The stack pointer after the return.
    rsp: u64,
    rule: Rule,
}

impl<'a> State<'a> {
    pub(crate) fn new(registers: &Registers, trail: &'a mut Vec<Step>) -> Self {
        trail.clear();
        State {
            ip: registers.ip,
            rsp: registers.gpr[RSP],
            rbp: registers.gpr[RBP],
            origin: *registers,
            trail,
        }
    }

    /// The value of a register, by going back to the last step that restored it.
    #[cold]
    fn resolve(&self, register: u8, memory: &Memory<'_>) -> Result<u64, Stop> {
        let Some(n) = nonvolatile(register) else { return Ok(self.origin.gpr[usize::from(register & 15)]) };
        match self.trail.iter().rev().find(|step| step.rule.saved >> n & 1 != 0) {
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
        registers.gpr[RBP] = self.rbp;
        self.origin = registers;
        self.trail.clear();
        Ok(())
    }

    fn adopt(&mut self) {
        self.ip = self.origin.ip;
        self.rsp = self.origin.gpr[RSP];
        self.rbp = self.origin.gpr[RBP];
    }
}

/// The x64 unwinder that restores registers on demand.
pub(crate) struct Lazy<'a>(std::marker::PhantomData<&'a ()>);

impl<'a> Unwinder for Lazy<'a> {
    const ARCH: Arch = Arch::X64;
    type State = State<'a>;
    type Checkpoint = (u64, u64);
    type Rule = Rule;
    const BASE: u8 = Machine::BASE;
    type Full = Full;

    #[inline(always)]
    fn ip(state: &State<'a>) -> u64 {
        state.ip
    }

    #[inline(always)]
    fn sp(state: &State<'a>) -> u64 {
        state.rsp
    }

    fn registers(state: &State<'a>) -> crate::Registers {
        crate::Registers::X64(state.origin)
    }

    #[inline(always)]
    fn checkpoint(state: &State<'a>) -> (u64, u64) {
        (state.ip, state.rsp)
    }

    fn restore(state: &mut State<'a>, (ip, rsp): (u64, u64)) {
        state.ip = ip;
        state.rsp = rsp;
    }

    #[inline(always)]
    fn base(state: &State<'a>) -> u64 {
        state.rbp
    }

    #[inline(always)]
    fn facts(rule: &Rule) -> Facts {
        Machine::facts(rule)
    }

    fn full_facts(full: &Full) -> Facts {
        Machine::full_facts(full)
    }

    fn compile(place: &Place<'_>) -> Result<Full, Fault> {
        rule::compile(place)
    }

    fn pack(full: &Full) -> Option<Rule> {
        rule::pack(full)
    }

    #[inline(always)]
    fn apply<M: Modules>(
        rule: &Rule,
        state: &mut State<'a>,
        memory: &Memory<'_>,
        _: &M,
    ) -> Result<Stepped, Stop> {
        let base = if rule.is_by(RSP_BASE) { state.rsp } else { other_base(rule, state, memory)? };
        let cfa = rule.cfa(base);
        step::check(rule, state.rsp, cfa, memory)?;
        let ip = memory.u64(cfa - 8)?;
        // Reading the return address once more is cheaper than a branch.
        const RBP_SLOT: usize = 1;
        let saves_rbp = rule.saved >> RBP_SLOT & 1 != 0;
        let rbp = memory.u64(if saves_rbp { rule.slot(RBP_SLOT, cfa) } else { cfa - 8 })?;
        state.rbp = if saves_rbp { rbp } else { state.rbp };
        state.trail.push(Step { rsp: cfa, rule: *rule });
        state.ip = ip;
        state.rsp = cfa;
        Ok(Stepped { trust: rule.trust(), position: Position::Caller })
    }

    fn apply_full<M: Modules>(
        full: &Full,
        state: &mut State<'a>,
        memory: &Memory<'_>,
        modules: &M,
    ) -> Result<Stepped, Stop> {
        state.settle(memory)?;
        let stepped = Machine::apply_full(full, &mut state.origin, memory, modules);
        if stepped.is_ok() {
            state.adopt();
        }
        stepped
    }

    fn leaf(state: &mut State<'a>, memory: &Memory<'_>) -> Result<Stepped, Stop> {
        state.settle(memory)?;
        let stepped = Machine::leaf(&mut state.origin, memory);
        if stepped.is_ok() {
            state.adopt();
        }
        stepped
    }

    fn scan<M: Modules>(
        state: &mut State<'a>,
        memory: &Memory<'_>,
        modules: &M,
        position: Position,
    ) -> Option<Stepped> {
        state.settle(memory).ok()?;
        let stepped = Machine::scan(&mut state.origin, memory, modules, position)?;
        state.adopt();
        Some(stepped)
    }
}

/// The base of a frame that is not found by rsp.
#[inline]
fn other_base(rule: &Rule, state: &State<'_>, memory: &Memory<'_>) -> Result<u64, Stop> {
    if rule.is_by(RBP as u8) { Ok(state.rbp) } else { state.resolve(rule.base(), memory) }
}
