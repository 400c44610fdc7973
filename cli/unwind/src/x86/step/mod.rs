//! From one frame to its caller, by the first of several methods whose result passes the checks.

use super::layout::{RegisterSource, Return};
use super::program::Input;
use super::prologue::FramePointer;
use super::registers::NONVOLATILE;
use super::rule::{self, X86Rule};
use super::tables::{FrameRule, Record};
use super::{EBP, EBX, ESP, X86Registers};
use crate::engine::{BaseValue, CodeAddress, Facts, Position, StepResult, Unwinder, ends_thread};
use crate::flow::ends_with_call;
use crate::frame::Fault;
use crate::input::Modules;
use crate::memory::Memory;
use crate::{Arch, Stop, Trust};

/// The registers, and further facts about the stack pointer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct X86State {
    pub(crate) registers: X86Registers,
    /// Bytes of arguments that the called function popped, besides its return address; `None` if
    /// unknown.
    popped: Option<u16>,
    /// `popped` is not certain: see [`X86Rule::popped_ahead`]. A step that uses it must lead behind
    /// a call instruction.
    popped_ahead: bool,
    /// The walk has passed a function that starts threads. Its caller is not exported under a known
    /// name on every system: under Wine RtlUserThreadStart jumps to it.
    started: bool,
}

impl X86State {
    pub(crate) fn new(registers: X86Registers) -> Self {
        X86State { registers, popped: Some(0), popped_ahead: false, started: false }
    }
}

/// The x86 unwinder.
pub(crate) struct X86Machine;

/// A caller's registers, and the method that found them.
struct X86Caller {
    registers: X86Registers,
    trust: Trust,
}

impl Unwinder for X86Machine {
    const ARCH: Arch = Arch::X86;
    const BASE: u8 = 1;
    type State = X86State;
    type Checkpoint = X86State;
    type Rule = X86Rule;
    type Full = X86Rule;

    fn ip(state: &X86State) -> u64 {
        u64::from(state.registers.ip)
    }

    fn sp(state: &X86State) -> u64 {
        u64::from(state.registers.gpr[ESP])
    }

    fn registers(state: &X86State) -> crate::Registers {
        crate::Registers::X86(state.registers)
    }

    fn checkpoint(state: &X86State) -> X86State {
        *state
    }

    fn restore(state: &mut X86State, checkpoint: X86State) {
        *state = checkpoint;
    }

    fn base(state: &X86State) -> BaseValue {
        BaseValue::Known(u64::from(state.registers.gpr[EBP]))
    }

    fn called_thread_start(state: &X86State) -> bool {
        state.started
    }

    /// The rule alone does not determine what a step depends on, because it tries several methods.
    fn facts(rule: &X86Rule) -> Facts {
        Facts { starts_thread: rule.thread_start, uses: u8::MAX, restores: 0 }
    }

    fn full_facts(full: &X86Rule) -> Facts {
        Self::facts(full)
    }

    fn compile(place: &CodeAddress<'_>) -> Result<X86Rule, Fault> {
        rule::compile(place)
    }

    fn pack(full: &X86Rule) -> Option<X86Rule> {
        Some(*full)
    }

    fn apply<M: Modules>(
        rule: &X86Rule,
        state: &mut X86State,
        memory: &Memory<'_>,
        modules: &M,
    ) -> Result<StepResult, Stop> {
        let step = X86Step { rule, state, memory, modules };
        let found = step.caller()?;
        state.registers = found.registers;
        state.popped = rule.popped;
        state.popped_ahead = rule.popped_ahead;
        state.started |= rule.thread_start;
        Ok(StepResult { trust: found.trust, position: Position::Caller })
    }

    fn apply_full<M: Modules>(
        full: &X86Rule,
        state: &mut X86State,
        memory: &Memory<'_>,
        modules: &M,
    ) -> Result<StepResult, Stop> {
        Self::apply(full, state, memory, modules)
    }

    fn leaf(state: &mut X86State, memory: &Memory<'_>) -> Result<StepResult, Stop> {
        let sp = state.registers.gpr[ESP];
        let next = sp.checked_add(4).ok_or(Stop::BadStackPointer { sp: u64::from(sp) })?;
        state.registers.ip = memory.u32(u64::from(sp))?;
        state.registers.gpr[ESP] = next;
        state.popped = None;
        Ok(StepResult { trust: Trust::LeafOutside, position: Position::Caller })
    }

    fn scan<M: Modules>(
        state: &mut X86State,
        memory: &Memory<'_>,
        modules: &M,
        _: Position,
    ) -> Option<StepResult> {
        let mut at = state.registers.gpr[ESP];
        while let Ok(word) = memory.u32(u64::from(at)) {
            if is_return_address(modules, word) == Some(Call::Known) {
                state.registers.ip = word;
                state.registers.gpr[ESP] = at.wrapping_add(4);
                state.popped = None;
                return Some(StepResult { trust: Trust::Scan, position: Position::Caller });
            }
            at = at.checked_add(4)?;
        }
        None
    }
}

/// The code before a return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// A call instruction.
    Known,
    /// Unknown code in a known module.
    Unknown,
}

struct X86Step<'a, M> {
    rule: &'a X86Rule,
    state: &'a X86State,
    memory: &'a Memory<'a>,
    modules: &'a M,
}

impl<M: Modules> X86Step<'_, M> {
    /// Tries each method in turn. If all fail, returns the reason of the first one, except at the
    /// start of a thread: there the system ends the chain of frame pointers, and that end says more
    /// than the other reasons.
    fn caller(&self) -> Result<X86Caller, Stop> {
        let mut stop = None;
        let mut attempt = |found: Result<X86Caller, Stop>| match found {
            Ok(caller) => Some(caller),
            Err(why) => {
                stop.get_or_insert(why);
                None
            }
        };
        // The code gives exactly what the processor will do, in prologues and epilogues too.
        if let Some(code) = &self.rule.code
            && let Some(found) =
                attempt(self.by_code(code).map(|registers| X86Caller { registers, trust: self.trust() }))
        {
            return Ok(found);
        }
        // So do the instructions up to here, if nothing but them has run.
        if let Some(found) = self.in_first_instructions() {
            return Ok(X86Caller { registers: found, trust: Trust::Code });
        }
        let tables = self.modules.find(u64::from(self.state.registers.ip.wrapping_sub(self.rule.back)));
        if let Some(record) = self.rule.record
            && let Some(tables) = tables
            && let Some(record) = tables.image.x86().record(record as usize)
            && let Some(found) = attempt(self.by_record(record, tables.base))
        {
            return Ok(found);
        }
        match self.by_frame_pointer() {
            Ok(registers) => Ok(X86Caller { registers, trust: Trust::FramePointer }),
            Err(end) if self.is_thread_start() && ends_thread(end) => Err(end),
            Err(why) => Err(stop.unwrap_or(why)),
        }
    }

    /// The trust in the rule's [`code`](X86Rule::code).
    fn trust(&self) -> Trust {
        if self.rule.by_gc_info { Trust::UnwindInfo } else { Trust::Code }
    }

    /// Whether this function, or one that it called, starts threads.
    fn is_thread_start(&self) -> bool {
        self.rule.thread_start || self.state.started
    }

    /// The registers, with esp behind the arguments that the called function popped, if their size
    /// is known.
    fn registers(&self) -> X86Registers {
        let mut registers = self.state.registers;
        registers.gpr[ESP] = registers.gpr[ESP].wrapping_add(u32::from(self.state.popped.unwrap_or(0)));
        registers
    }

    fn by_code(&self, code: &Return) -> Result<X86Registers, Stop> {
        let registers = self.registers();
        if self.state.popped.is_none() && code.return_address.is_by_esp() {
            return Err(Stop::BadStackPointer { sp: u64::from(registers.gpr[ESP]) });
        }
        let mut found = registers;
        found.ip = self.read(code.return_address.address(&registers))?;
        found.gpr[ESP] = code.sp.address(&registers);
        for (n, saved) in code.saved.iter().enumerate() {
            let register = &mut found.gpr[usize::from(NONVOLATILE[n])];
            match saved {
                RegisterSource::Kept => {}
                RegisterSource::Word(slot) => *register = self.read(slot.address(&registers))?,
                RegisterSource::Computed(slot) => *register = slot.address(&registers),
            }
        }
        self.check(&found)?;
        if self.state.popped_ahead
            && code.return_address.is_by_esp()
            && is_return_address(self.modules, found.ip) != Some(Call::Known)
        {
            return Err(no_module(found.ip));
        }
        Ok(found)
    }

    /// The caller of a function that is still in its first instructions, up to its first branch.
    fn in_first_instructions(&self) -> Option<X86Registers> {
        let pushed = self.rule.prologue.pushed?;
        let mut found = self.state.registers;
        let at = found.gpr[ESP].wrapping_add(pushed.into());
        found.ip = self.read(at).ok()?;
        found.gpr[ESP] = at.wrapping_add(4);
        let above = found.gpr[ESP];
        self.restore_saved(&mut found, above);
        self.check(&found).ok()?;
        (is_return_address(self.modules, found.ip) == Some(Call::Known)).then_some(found)
    }

    fn by_record(&self, record: &Record, base: u64) -> Result<X86Caller, Stop> {
        let registers = self.registers();
        let rva = u64::from(self.state.registers.ip.wrapping_sub(self.rule.back)).wrapping_sub(base);
        if rva.wrapping_sub(record.rva.into()) < record.prologue.into() {
            return self.in_prologue(rva == u64::from(record.rva));
        }
        match &record.how {
            FrameRule::Program(program) => {
                let (return_address, trust) = if program.searches() {
                    let (at, trust) = self.search(registers.gpr[ESP].wrapping_add(record.frame))?;
                    (Some(at), trust)
                } else {
                    (None, Trust::FrameData)
                };
                let input = Input {
                    registers: &registers,
                    locals: record.locals,
                    saved: record.saved,
                    params: record.params,
                    return_address,
                };
                let found = program.run(&input, |at| self.read(at).ok());
                let mut found = found.ok_or(Stop::BadMemory { address: u64::from(registers.gpr[ESP]) })?;
                self.check(&found)?;
                if !self.rule.prologue.aligned {
                    let above = found.gpr[ESP];
                    self.restore_saved(&mut found, above);
                }
                Ok(X86Caller { registers: found, trust })
            }
            FrameRule::Above { uses_ebp, .. } => {
                let (at, trust) = self.search(registers.gpr[ESP].wrapping_add(record.frame))?;
                let mut found = registers;
                found.ip = self.read(at)?;
                found.gpr[ESP] = at.wrapping_add(4);
                if *uses_ebp {
                    found.gpr[EBP] = self.read(at.wrapping_sub(4))?;
                }
                self.check(&found)?;
                self.restore_saved(&mut found, at.wrapping_add(4));
                Ok(X86Caller { registers: found, trust })
            }
        }
    }

    /// Before the function has its frame, ebp is the caller's or was pushed first, and the return
    /// address is the first one above what was pushed. At the function's first instruction it is on
    /// top of the stack.
    fn in_prologue(&self, is_first: bool) -> Result<X86Caller, Stop> {
        let mut found = self.registers();
        let esp = found.gpr[ESP];
        let (at, trust) = self.search(esp)?;
        found.ip = self.read(at)?;
        found.gpr[ESP] = at.wrapping_add(4);
        if at != esp {
            found.gpr[EBP] = self.read(at.wrapping_sub(4))?;
        }
        self.check(&found)?;
        Ok(X86Caller { registers: found, trust: if is_first { trust } else { Trust::FrameDataSearch } })
    }

    /// The saved frame pointer and the return address above it, both checked.
    fn by_frame_pointer(&self) -> Result<X86Registers, Stop> {
        let registers = self.registers();
        let ebp = registers.gpr[EBP];
        if ebp == 0 {
            // The system begins a thread's chain of frames in this way.
            return Err(Stop::ZeroReturnAddress);
        }
        if self.rule.prologue.frame_pointer == FramePointer::Absent && !self.is_thread_start() {
            return Err(self.no_unwind_data());
        }
        let mut found = registers;
        // The saved ebp.
        let frame = ebp.wrapping_add(self.rule.prologue.into);
        found.gpr[EBP] = self.read(frame)?;
        found.ip = self.read(frame.wrapping_add(4))?;
        if self.rule.prologue.frame_pointer == FramePointer::Set {
            self.restore_saved(&mut found, frame.wrapping_add(8));
        }
        found.gpr[ESP] = match self.by_ebx(frame, found.ip) {
            Some(base) => {
                found.gpr[EBX] = self.read(base)?;
                base.wrapping_add(8)
            }
            None => self.above_copy(frame.wrapping_add(8), found.ip),
        };
        self.check(&found)?;
        Ok(found)
    }

    /// Gives the registers that `found` takes over unchanged the values that the function's first
    /// instructions saved. `above` is the address above the return address.
    fn restore_saved(&self, found: &mut X86Registers, above: u32) {
        for (n, &saved) in self.rule.prologue.saved.iter().enumerate().filter(|(_, saved)| **saved != 0) {
            let register = usize::from(NONVOLATILE[n]);
            let kept = found.gpr[register] == self.state.registers.gpr[register];
            // A slot below esp was popped: then the register is restored.
            if kept && let Ok(word) = self.read(above.wrapping_sub(saved.into())) {
                found.gpr[register] = word;
            }
        }
    }

    /// Where ebx points in a frame that was aligned by it, if it still holds that: the caller's ebx
    /// is there, and the return address above it.
    fn by_ebx(&self, frame: u32, return_address: u32) -> Option<u32> {
        const MOST_ALIGNMENT: u32 = 64;
        let base = self.state.registers.gpr[EBX];
        let above = base.wrapping_sub(frame);
        let is_base = self.rule.prologue.by_ebx && (8..8 + MOST_ALIGNMENT).contains(&above);
        (is_base && self.read(base.wrapping_add(4)) == Ok(return_address)).then_some(base)
    }

    fn no_unwind_data(&self) -> Stop {
        let ip = u64::from(self.state.registers.ip);
        match self.modules.find(ip) {
            Some(found) => Stop::NoUnwindData { module: found.module, rva: (ip - found.base) as u32 },
            None => Stop::NoModule { address: ip },
        }
    }

    /// GCC's frames that align the stack to 16 or 8 bytes begin with `lea ecx,[esp+4]; and esp,-16;
    /// push [ecx-4]; push ebp`. The word above the saved ebp is a copy of the return address; the
    /// caller's stack begins above the original, which lies up to 12 (or 4) bytes higher. Returns
    /// the caller's esp. `after` is the address above the word that was assumed to be the return
    /// address.
    fn above_copy(&self, after: u32, address: u32) -> u32 {
        let Some(aligned) = [16, 8].into_iter().find(|&aligned| after.is_multiple_of(aligned)) else {
            return after;
        };
        let original =
            (after..after.wrapping_add(aligned)).step_by(4).find(|&at| self.read(at) == Ok(address));
        original.map_or(after, |at| at.wrapping_add(4))
    }

    /// Searches from `start` up for the return address: while arguments are being pushed it lies
    /// above the place that the record gives. Only an address at that place, behind a call, is
    /// what the record says; any other one was searched for.
    fn search(&self, start: u32) -> Result<(u32, Trust), Stop> {
        const WORDS: u32 = 128;
        const FOUND: Trust = Trust::FrameDataSearch;
        let mut uncertain = None;
        for n in 0..WORDS {
            let at = start.wrapping_add(n * 4);
            let word = match self.read(at) {
                Ok(word) => word,
                Err(stop) => return uncertain.map(|at| (at, FOUND)).ok_or(stop),
            };
            match is_return_address(self.modules, word) {
                Some(Call::Known) if n == 0 => return Ok((at, Trust::FrameData)),
                Some(Call::Known) => return Ok((at, FOUND)),
                Some(Call::Unknown) if n == 0 => return Ok((at, FOUND)),
                Some(Call::Unknown) => uncertain = uncertain.or(Some(at)),
                None => {}
            }
        }
        let found = uncertain.map(|at| (at, FOUND));
        found.ok_or(Stop::BadMemory { address: u64::from(start) })
    }

    /// Reads a word of the frame. Fails below esp.
    fn read(&self, at: u32) -> Result<u32, Stop> {
        if at < self.state.registers.gpr[ESP] {
            return Err(Stop::BadMemory { address: u64::from(at) });
        }
        self.memory.u32(u64::from(at))
    }

    /// Checks that the caller's stack lies above and that its address is a return address.
    fn check(&self, found: &X86Registers) -> Result<(), Stop> {
        let sp = found.gpr[ESP];
        if sp <= self.state.registers.gpr[ESP] || sp & 3 != 0 {
            return Err(Stop::BadStackPointer { sp: u64::from(sp) });
        }
        if is_return_address(self.modules, found.ip).is_some() {
            return Ok(());
        }
        // Where a thread starts, the word can be the function that it begins with.
        let replaced = replaced(self.modules, found.ip).filter(|_| !self.is_thread_start());
        Err(replaced.unwrap_or_else(|| no_module(found.ip)))
    }
}

fn no_module(address: u32) -> Stop {
    if address == 0 { Stop::ZeroReturnAddress } else { Stop::NoModule { address: u64::from(address) } }
}

/// The stop at a word that is a function's first byte, in place of a return address: the function
/// before ends there, by a return or by padding that no instruction runs into.
fn replaced<M: Modules>(modules: &M, word: u32) -> Option<Stop> {
    let found = modules.find(u64::from(word)).filter(|found| found.image.arch() == Arch::X86)?;
    let rva = u32::try_from(u64::from(word).checked_sub(found.base)?).ok()?;
    let is_start = matches!(found.image.bytes_before(rva)?, [.., 0xc3 | 0xcc] | [.., 0xc2, _, _]);
    is_start.then_some(Stop::ReplacedReturnAddress { module: found.module, rva })
}

/// Whether a word points into a known module, behind a call as far as the code there is known.
fn is_return_address<M: Modules>(modules: &M, word: u32) -> Option<Call> {
    let found = modules.find(u64::from(word.checked_sub(1)?))?;
    let rva = u32::try_from(u64::from(word).checked_sub(found.base)?).ok()?;
    if found.image.arch() != Arch::X86 {
        return None;
    }
    let Some(before) = found.image.bytes_before(rva) else { return Some(Call::Unknown) };
    ends_with_call(before, 32).then_some(Call::Known)
}

#[cfg(test)]
mod tests;
