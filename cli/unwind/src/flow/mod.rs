//! Follows code from one place to the function's return on symbolic registers and a symbolic stack.
//!
//! For code that no table describes: x86 as a whole, and hand-written x64 functions without a
//! RUNTIME_FUNCTION. The code up to the return determines the caller's frame: at the return, the
//! stack pointer is that of the call, and every nonvolatile register has the caller's value again.
//! Each register is followed as "what register R held at the start, plus N", "what lay at R + N at
//! the start" or a constant; anything else is unknown. A path on which the return address or a
//! nonvolatile register is unknown gives no result.
//!
//! Assembler that aligns its stack keeps the stack pointer that it was called with in a word of its
//! frame. So one word that is loaded may serve as a base as well ([`LOADED`]), and so may the
//! aligned stack pointer, as far as the path itself stores what it loads from there.
//!
//! On x86 the first path with a result is used. On x64, where only assembler is followed, all paths
//! must agree.
//!
//! This file searches the paths. `state` holds the values that are known on one path, `execute`
//! applies an instruction to them.

mod execute;
mod state;

use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpKind, Register,
};

use crate::ImageTables;
use execute::is_immediate;
use state::{ALIGNED, PathState, SP, load, plus, push};
pub(crate) use state::{FlowValue, LOADED};

/// How the function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Where the return address lies: [`FlowValue::Word`].
    pub(crate) return_address: (u8, i64),
    /// The stack pointer when the return address, and nothing else, has been popped.
    pub(crate) sp: (u8, i64),
    /// Bytes of arguments that the return pops; `None` after a tail call, whose target pops them.
    pub(crate) popped: Option<u32>,
    /// All registers at the return.
    pub(crate) registers: [FlowValue; 16],
    /// Where the word that serves as the register [`LOADED`] lies.
    pub(crate) loaded: Option<(u8, i64)>,
}

impl Outcome {
    /// Whether both outcomes take the return address from the same word.
    fn returns_as(&self, other: &Outcome) -> bool {
        (self.return_address, self.loaded) == (other.return_address, other.loaded)
    }
}

/// A processor mode and its calling convention.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) bits: u32,
    /// The nonvolatile registers besides the stack pointer.
    pub(crate) nonvolatile: &'static [u8],
}

/// Where to start, and with which inputs.
pub(crate) struct Start<'a> {
    pub(crate) image: &'a ImageTables,
    pub(crate) mode: Mode,
    pub(crate) rva: u32,
    /// The function's extent, where known. A path that leaves it other than by a tail call gives no
    /// result.
    pub(crate) bounds: Option<Range<u32>>,
    /// Whether `rva` follows a call, so that volatile registers have no known values.
    pub(crate) after_call: bool,
    /// Code from `rva` on that was recorded with the sample.
    pub(crate) code: Option<&'a [u8]>,
}

/// Instructions followed for one rule, over all paths and inlined helpers.
const MAX_STEPS: usize = 6000;
/// The same where all paths are followed.
const MAX_STEPS_ALL: usize = 12_000;
/// The deepest nesting of helpers that are followed.
const MAX_DEPTH: u32 = 4;

/// Follows the code; `None` if no path to a return gives the caller.
pub(crate) fn follow(start: &Start<'_>) -> Option<Outcome> {
    let factory = InstructionInfoFactory::new();
    PathExplorer { start, decoder: None, factory, steps: 0, callees: Vec::new() }.run()
}

/// The effect of a called function on its caller's frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callee {
    /// Preserves what it must and pops its arguments.
    Plain {
        popped: u32,
    },
    /// Does something to its caller's frame: a prologue or epilogue helper.
    Helper,
    Unknown,
}

/// The effect of one instruction on a path.
#[expect(clippy::large_enum_variant, reason = "one at a time")]
enum FlowStep {
    Next,
    Goto(u32),
    /// Continues both at the next instruction and at this RVA.
    Fork(u32),
    Return(Outcome),
    /// This path gives no result.
    Dead,
}

struct PathExplorer<'a, 'b> {
    start: &'b Start<'a>,
    /// Of the image's bytes that it decoded last.
    decoder: Option<CodeDecoder<'a>>,
    factory: InstructionInfoFactory,
    steps: usize,
    callees: Vec<(u32, Callee)>,
}

impl PathExplorer<'_, '_> {
    fn run(&mut self) -> Option<Outcome> {
        let mut registers = [FlowValue::Unknown; 16];
        for (n, value) in registers.iter_mut().enumerate() {
            if !self.start.after_call || n == SP || self.start.mode.nonvolatile.contains(&(n as u8)) {
                *value = FlowValue::Start(n as u8, 0);
            }
        }
        let bounds = self.start.bounds.clone();
        self.search(self.start.rva, registers, bounds, 0)
    }

    /// Tries the paths from `rva` one after the other, straight on first.
    fn search(
        &mut self,
        rva: u32,
        registers: [FlowValue; 16],
        bounds: Option<Range<u32>>,
        nesting: u32,
    ) -> Option<Outcome> {
        let mut waiting = vec![PathState::new(rva, registers)];
        // Branch targets so far, with their depth and the stack pointer there.
        let mut seen: Vec<((u32, u32), FlowValue)> = Vec::new();
        // In x64 assembler every path must lead to the same return address, with the same stack
        // pointer wherever two paths meet. If they differ, a loop moves the stack pointer (as
        // OpenSSL's SHA-512 for AVX2 does), and the number of its iterations is not known.
        let all = self.start.mode.bits == 64;
        let most = if all { MAX_STEPS_ALL } else { MAX_STEPS };
        let mut found: Option<Outcome> = None;
        let mut instruction = Instruction::new();
        while let Some(mut state) = waiting.pop() {
            loop {
                self.steps += 1;
                if self.steps > most {
                    return None;
                }
                if !self.decode(state.rva, &mut instruction) {
                    break;
                }
                if state.depth == 0 && bounds.as_ref().is_some_and(|bounds| !bounds.contains(&state.rva)) {
                    break;
                }
                let next = state.rva.wrapping_add(instruction.len() as u32);
                match self.step(&mut state, &instruction, &bounds, nesting) {
                    FlowStep::Next => state.rva = next,
                    step @ (FlowStep::Goto(target) | FlowStep::Fork(target)) => {
                        let sp = state.registers[SP];
                        let before = visit(&mut seen, (target, state.depth), sp);
                        if all && before.is_some_and(|before| before != sp) {
                            return None;
                        }
                        match (step, before) {
                            (FlowStep::Goto(_), Some(_)) => break,
                            (FlowStep::Goto(_), None) => state.rva = target,
                            (_, known) => {
                                if known.is_none() {
                                    waiting.push(PathState { rva: target, ..state.clone() });
                                }
                                state.rva = next;
                            }
                        }
                    }
                    FlowStep::Return(outcome) if !all => return Some(outcome),
                    FlowStep::Return(outcome) => {
                        if found.as_ref().is_some_and(|found| !found.returns_as(&outcome)) {
                            return None;
                        }
                        found.get_or_insert(outcome);
                        break;
                    }
                    // The path returns, but the return address is not known.
                    FlowStep::Dead if all && is_return(&instruction) => return None,
                    FlowStep::Dead => break,
                }
            }
        }
        found
    }

    fn step(
        &mut self,
        state: &mut PathState,
        instruction: &Instruction,
        bounds: &Option<Range<u32>>,
        nesting: u32,
    ) -> FlowStep {
        match instruction.flow_control() {
            FlowControl::Next => {
                self.execute(state, instruction);
                if let FlowValue::Word(..) = state.registers[SP]
                    && let Some((base, offset)) = self.base(state, state.registers[SP])
                {
                    state.registers[SP] = FlowValue::Start(base, offset);
                }
                FlowStep::Next
            }
            FlowControl::ConditionalBranch => match u32::try_from(instruction.near_branch_target()) {
                Ok(target) => FlowStep::Fork(target),
                Err(_) => FlowStep::Next,
            },
            FlowControl::UnconditionalBranch => {
                let Ok(target) = u32::try_from(instruction.near_branch_target()) else {
                    return FlowStep::Dead;
                };
                let leaves = bounds.as_ref().is_some_and(|bounds| !bounds.contains(&target));
                if leaves && state.depth == 0 {
                    // A tail call: the target runs without this frame.
                    return self.leave(state, None);
                }
                FlowStep::Goto(target)
            }
            FlowControl::IndirectBranch => {
                // A jump through an import's address is a tail call. Any other may as well be a
                // switch.
                let through_import = instruction.op0_kind() == OpKind::Memory
                    && instruction.memory_index() == Register::None
                    && matches!(instruction.memory_base(), Register::None | Register::RIP | Register::EIP);
                if through_import && state.depth == 0 { self.leave(state, None) } else { FlowStep::Dead }
            }
            FlowControl::Return => {
                let popped = match instruction.op_count() {
                    0 => 0,
                    _ => u32::from(instruction.immediate16()),
                };
                self.leave(state, Some(popped))
            }
            FlowControl::Call | FlowControl::IndirectCall => self.call(state, instruction, nesting),
            FlowControl::Interrupt | FlowControl::Exception | FlowControl::XbeginXabortXend => FlowStep::Dead,
        }
    }

    /// Steps over a called function, or follows it if it changes this frame.
    fn call(&mut self, state: &mut PathState, instruction: &Instruction, nesting: u32) -> FlowStep {
        let word = i64::from(self.start.mode.bits / 8);
        let target = if instruction.is_call_near() {
            u32::try_from(instruction.near_branch_target()).ok()
        } else {
            None
        };
        let next = state.rva.wrapping_add(instruction.len() as u32);
        let callee = match target {
            // `call` to the next instruction reads the instruction pointer.
            Some(target) if target == next => {
                push(state, FlowValue::Constant(u64::from(next)), word);
                return FlowStep::Next;
            }
            Some(target) => self.callee(target, nesting),
            None => Callee::Unknown,
        };
        match (callee, target) {
            (Callee::Helper, Some(target)) if state.depth < MAX_DEPTH => {
                push(state, FlowValue::Constant(u64::from(next)), word);
                state.depth += 1;
                return FlowStep::Goto(target);
            }
            (Callee::Plain { popped }, _) => {
                state.registers[SP] = plus(state.registers[SP], i64::from(popped));
            }
            _ if self.start.mode.bits == 64 || self.is_cleaned_up(next) => {}
            _ => state.registers[SP] = FlowValue::Unknown,
        }
        for n in 0..16u8 {
            if usize::from(n) != SP && !self.start.mode.nonvolatile.contains(&n) {
                state.registers[usize::from(n)] = FlowValue::Unknown;
            }
        }
        FlowStep::Next
    }

    /// At a return, or at a jump out of the function with its frame gone.
    fn leave(&self, state: &mut PathState, popped: Option<u32>) -> FlowStep {
        let word = i64::from(self.start.mode.bits / 8);
        let FlowValue::Start(base, offset) = state.registers[SP] else { return FlowStep::Dead };
        let return_address = match load(state, (base, offset)) {
            FlowValue::Word(base, offset) => (base, offset),
            FlowValue::Constant(rva) if state.depth > 0 => {
                let Some(popped) = popped else { return FlowStep::Dead };
                state.registers[SP] = FlowValue::Start(base, offset.wrapping_add(word + i64::from(popped)));
                state.depth -= 1;
                return match u32::try_from(rva) {
                    Ok(rva) => FlowStep::Goto(rva),
                    Err(_) => FlowStep::Dead,
                };
            }
            _ => return FlowStep::Dead,
        };
        let outcome = Outcome {
            return_address,
            sp: (base, offset.wrapping_add(word)),
            popped,
            registers: state.registers,
            loaded: None,
        };
        match self.rebased(outcome, &state.loaded) {
            Some(outcome) => FlowStep::Return(outcome),
            None => FlowStep::Dead,
        }
    }

    /// The outcome, if all of its required values are relative to registers and at most one of the
    /// words `loaded`.
    fn rebased(&self, mut outcome: Outcome, loaded: &[(u8, i64)]) -> Option<Outcome> {
        let mut used = None;
        let mut rebase = |base: &mut u8| {
            if *base == ALIGNED || *base >= LOADED && *used.get_or_insert(*base) != *base {
                return None;
            }
            *base = (*base).min(LOADED);
            Some(())
        };
        rebase(&mut outcome.return_address.0)?;
        rebase(&mut outcome.sp.0)?;
        for &n in self.start.mode.nonvolatile {
            match &mut outcome.registers[usize::from(n)] {
                FlowValue::Start(base, _) | FlowValue::Word(base, _) => rebase(base)?,
                FlowValue::Unknown | FlowValue::Constant(_) => return None,
            }
        }
        outcome.loaded = used.and_then(|used| loaded.get(usize::from(used - LOADED)).copied());
        Some(outcome)
    }

    /// The effect of the function at `target` on its caller's frame.
    fn callee(&mut self, target: u32, nesting: u32) -> Callee {
        if let Some((_, known)) = self.callees.iter().find(|(rva, _)| *rva == target) {
            return *known;
        }
        if nesting >= MAX_DEPTH {
            return Callee::Unknown;
        }
        // The result is unknown while the search runs, which ends recursion.
        let index = self.callees.len();
        self.callees.push((target, Callee::Unknown));
        let registers = std::array::from_fn(|n| FlowValue::Start(n as u8, 0));
        let bounds = self.start.image.x86().function(target);
        let callee = match self.search(target, registers, bounds, nesting + 1) {
            Some(outcome) => {
                let mut nonvolatile = self.start.mode.nonvolatile.iter();
                let preserves = nonvolatile.all(|&n| is_restored(outcome.registers[usize::from(n)], n));
                match outcome.popped {
                    Some(popped) if preserves && outcome.return_address == (SP as u8, 0) => {
                        Callee::Plain { popped }
                    }
                    None if preserves => Callee::Unknown,
                    _ => Callee::Helper,
                }
            }
            None => Callee::Unknown,
        };
        self.callees[index].1 = callee;
        callee
    }

    /// Whether the caller removes the arguments of the call before `rva`: the callee pops none.
    fn is_cleaned_up(&mut self, rva: u32) -> bool {
        let mut instruction = Instruction::new();
        if !self.decode(rva, &mut instruction) {
            return false;
        }
        match instruction.mnemonic() {
            Mnemonic::Add => {
                instruction.op0_register() == Register::ESP && is_immediate(instruction.op1_kind())
            }
            // MSVC removes one argument by popping into a volatile register.
            Mnemonic::Pop => instruction.op0_register() == Register::ECX,
            _ => false,
        }
    }

    /// Decodes the instruction at `rva`, from the sample's own code bytes if they reach that far,
    /// else from the image. `false` if there is none that a path can have.
    fn decode(&mut self, rva: u32, instruction: &mut Instruction) -> bool {
        let Start { image, mode, code, rva: first, .. } = self.start;
        let recorded = code.and_then(|code| code.get(rva.wrapping_sub(*first) as usize..));
        let is_valid =
            recorded.is_some_and(|code| CodeDecoder::new(*mode, code, rva).decode(rva, instruction)) || {
                if !self.decoder.as_ref().is_some_and(|decoder| decoder.holds(rva)) {
                    self.decoder = image.bytes(rva).map(|code| CodeDecoder::new(*mode, code, rva));
                }
                self.decoder.as_mut().is_some_and(|decoder| decoder.decode(rva, instruction))
            };
        is_valid && instruction.code() != Code::Int3
    }
}

/// Decodes instructions of a piece of code, in any order. To make one takes longer than to decode
/// an instruction.
struct CodeDecoder<'a> {
    /// RVA of the first byte.
    start: u32,
    decoder: Decoder<'a>,
}

impl<'a> CodeDecoder<'a> {
    fn new(mode: Mode, code: &'a [u8], start: u32) -> CodeDecoder<'a> {
        CodeDecoder { start, decoder: Decoder::new(mode.bits, code, DecoderOptions::NONE) }
    }

    fn holds(&self, rva: u32) -> bool {
        (rva.wrapping_sub(self.start) as usize) < self.decoder.max_position()
    }

    /// Decodes the instruction at `rva`. Returns whether it is a valid one.
    fn decode(&mut self, rva: u32, instruction: &mut Instruction) -> bool {
        if self.decoder.set_position(rva.wrapping_sub(self.start) as usize).is_err() {
            return false;
        }
        self.decoder.set_ip(u64::from(rva));
        self.decoder.decode_out(instruction);
        !instruction.is_invalid() && self.decoder.last_error() == DecoderError::None
    }
}

/// Records a branch target. Returns the stack pointer of the path that was there first; `None` if
/// this path is the first.
fn visit(seen: &mut Vec<((u32, u32), FlowValue)>, place: (u32, u32), sp: FlowValue) -> Option<FlowValue> {
    let before = seen.iter().find(|(known, _)| *known == place).map(|&(_, sp)| sp);
    if before.is_none() {
        seen.push((place, sp));
    }
    before
}

/// Whether the bytes end with a call instruction, of any of its encodings.
pub(crate) fn ends_with_call(before: &[u8], bits: u32) -> bool {
    (2..=7).any(|len| {
        let Some(start) = before.len().checked_sub(len) else { return false };
        let mut decoder = Decoder::new(bits, &before[start..], DecoderOptions::NONE);
        let instruction = decoder.decode();
        instruction.mnemonic() == Mnemonic::Call && instruction.len() == len
    })
}

fn is_return(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Return
}

fn is_restored(value: FlowValue, register: u8) -> bool {
    value == FlowValue::Start(register, 0)
}

#[cfg(test)]
mod tests;
