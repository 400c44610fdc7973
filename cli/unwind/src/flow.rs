//! Follows code from one place to the function's return on symbolic registers and a symbolic stack.
//!
//! For code that no table describes: x86 as a whole, and hand-written x64 functions without a RUNTIME_FUNCTION. What
//! the function does on its way out says where its caller is: at the return, the stack pointer is that of the call,
//! and every nonvolatile register has the caller's value again. Each register is followed as "what register R held at
//! the start, plus N", "what lay at R + N at the start" or a constant; anything else is unknown, and a path on which
//! the return address or a nonvolatile register is unknown tells nothing.
//!
//! Assembler that aligns its stack keeps the stack pointer that it was called with in a word of its frame. So one word
//! that is loaded may serve as a base as well ([`LOADED`]), and so may the aligned stack pointer, as far as the path
//! itself stores what it loads from there.
//!
//! Of x86 the first path that tells the caller is believed. Of x64, where only assembler is followed, all paths must agree.

use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};

use crate::ImageTables;

/// What is known of a register or a word of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Unknown,
    /// What the register held at the start, plus an offset.
    Start(u8, i64),
    /// The word that lay at the register plus an offset at the start.
    Word(u8, i64),
    Constant(u64),
}

/// How the function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Where the return address lies: [`Value::Word`].
    pub(crate) return_address: (u8, i64),
    /// The stack pointer when the return address, and nothing else, has been popped.
    pub(crate) sp: (u8, i64),
    /// Bytes of arguments that the return pops; `None` after a tail call, whose target pops them.
    pub(crate) popped: Option<u32>,
    /// All registers at the return.
    pub(crate) registers: [Value; 16],
    /// Where the word lies that is the register [`LOADED`].
    pub(crate) loaded: Option<(u8, i64)>,
}

/// In the place of a register's number: a word that lay at a register plus an offset at the start. Only in 64-bit code.
/// A path can have several, numbered from here on; an outcome has one.
pub(crate) const LOADED: u8 = 16;
/// Words that a path can have as bases.
const MAX_LOADED: usize = 16;
/// In the place of a register's number: what the stack pointer was aligned to. No value outside of the path.
const ALIGNED: u8 = LOADED + MAX_LOADED as u8;

/// A processor mode and its calling convention.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) bits: u32,
    /// The nonvolatile registers besides the stack pointer.
    pub(crate) nonvolatile: &'static [u8],
}

/// Where to start, and with what.
pub(crate) struct Start<'a> {
    pub(crate) image: &'a ImageTables,
    pub(crate) mode: Mode,
    pub(crate) rva: u32,
    /// The function's extent, where known: a path that leaves it other than by a tail call tells nothing.
    pub(crate) bounds: Option<Range<u32>>,
    /// Whether volatile registers have values: not behind a call.
    pub(crate) after_call: bool,
    /// Code from `rva` on that was recorded with the sample.
    pub(crate) code: Option<&'a [u8]>,
}

const SP: usize = 4;
/// Instructions followed for one rule, over all paths and inlined helpers.
const MAX_STEPS: usize = 6000;
/// The same where all paths are followed.
const MAX_STEPS_ALL: usize = 12_000;
/// Words of the symbolic stack.
const MAX_STORES: usize = 192;
/// Helpers followed into, one inside the other.
const MAX_DEPTH: u32 = 4;

/// Follows the code; `None` if no path to a return tells the caller.
pub(crate) fn follow(start: &Start<'_>) -> Option<Outcome> {
    Follower { start, factory: InstructionInfoFactory::new(), steps: 0, callees: Vec::new() }.run()
}

#[derive(Clone)]
struct State {
    rva: u32,
    registers: [Value; 16],
    stores: Vec<((u8, i64), Value)>,
    /// Where the words lie that are the registers from [`LOADED`] on.
    loaded: Vec<(u8, i64)>,
    /// The stack pointer was aligned: [`ALIGNED`] is in use.
    aligned: bool,
    /// Inlined calls that have not returned.
    depth: u32,
}

/// What a called function does to its caller's frame.
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

/// What one instruction did.
#[expect(clippy::large_enum_variant, reason = "one at a time")]
enum Step {
    Next,
    Goto(u32),
    /// Goes on at both.
    Fork(u32),
    Return(Outcome),
    /// This path tells nothing.
    Dead,
}

struct Follower<'a, 'b> {
    start: &'b Start<'a>,
    factory: InstructionInfoFactory,
    steps: usize,
    callees: Vec<(u32, Callee)>,
}

impl Follower<'_, '_> {
    fn run(&mut self) -> Option<Outcome> {
        let mut registers = [Value::Unknown; 16];
        for (n, value) in registers.iter_mut().enumerate() {
            if !self.start.after_call || n == SP || self.start.mode.nonvolatile.contains(&(n as u8)) {
                *value = Value::Start(n as u8, 0);
            }
        }
        let bounds = self.start.bounds.clone();
        self.search(self.start.rva, registers, bounds, 0)
    }

    /// Tries the paths from `rva` one after the other, straight on first.
    fn search(
        &mut self,
        rva: u32,
        registers: [Value; 16],
        bounds: Option<Range<u32>>,
        nesting: u32,
    ) -> Option<Outcome> {
        let start =
            State { rva, registers, stores: Vec::new(), loaded: Vec::new(), aligned: false, depth: 0 };
        let mut waiting = vec![start];
        // Where branches have led, at which depth, and the stack pointer there.
        let mut seen: Vec<((u32, u32), Value)> = Vec::new();
        // Of x64 assembler every path must lead to the same place, with the same stack pointer wherever two of them meet. Where they
        // do not, a loop moves the stack pointer (OpenSSL's SHA-512 for AVX2 does), and how often it will run is not known.
        let all = self.start.mode.bits == 64;
        let most = if all { MAX_STEPS_ALL } else { MAX_STEPS };
        let mut found: Option<Outcome> = None;
        while let Some(mut state) = waiting.pop() {
            loop {
                self.steps += 1;
                if self.steps > most {
                    return None;
                }
                let Some(instruction) = self.decode(state.rva) else { break };
                let is_outside = |rva: u32| bounds.as_ref().is_some_and(|bounds| !bounds.contains(&rva));
                if state.depth == 0 && is_outside(state.rva) {
                    break;
                }
                let next = state.rva.wrapping_add(instruction.len() as u32);
                match self.step(&mut state, &instruction, &bounds, nesting) {
                    Step::Next => state.rva = next,
                    step @ (Step::Goto(target) | Step::Fork(target)) => {
                        let (place, sp) = ((target, state.depth), state.registers[SP]);
                        let before = seen.iter().find(|(known, _)| *known == place).map(|&(_, sp)| sp);
                        if all && before.is_some_and(|before| before != sp) {
                            return None;
                        }
                        if before.is_none() {
                            seen.push((place, sp));
                        }
                        match (step, before) {
                            (Step::Goto(_), Some(_)) => break,
                            (Step::Goto(_), None) => state.rva = target,
                            (_, known) => {
                                if known.is_none() {
                                    waiting.push(State { rva: target, ..state.clone() });
                                }
                                state.rva = next;
                            }
                        }
                    }
                    Step::Return(outcome) if !all => return Some(outcome),
                    Step::Return(outcome) => {
                        let place = |outcome: &Outcome| (outcome.return_address, outcome.loaded);
                        if found.as_ref().is_some_and(|found| place(found) != place(&outcome)) {
                            return None;
                        }
                        found.get_or_insert(outcome);
                        break;
                    }
                    // It returns, but to where is not known.
                    Step::Dead if all && instruction.flow_control() == FlowControl::Return => return None,
                    Step::Dead => break,
                }
            }
        }
        found
    }

    fn step(
        &mut self,
        state: &mut State,
        instruction: &Instruction,
        bounds: &Option<Range<u32>>,
        nesting: u32,
    ) -> Step {
        let word = i64::from(self.start.mode.bits / 8);
        match instruction.flow_control() {
            FlowControl::Next => {
                self.execute(state, instruction);
                if let Value::Word(..) = state.registers[SP]
                    && let Some((base, offset)) = self.base(state, state.registers[SP])
                {
                    state.registers[SP] = Value::Start(base, offset);
                }
                Step::Next
            }
            FlowControl::ConditionalBranch => match u32::try_from(instruction.near_branch_target()) {
                Ok(target) => Step::Fork(target),
                Err(_) => Step::Next,
            },
            FlowControl::UnconditionalBranch => {
                let Ok(target) = u32::try_from(instruction.near_branch_target()) else { return Step::Dead };
                let leaves = bounds.as_ref().is_some_and(|bounds| !bounds.contains(&target));
                if leaves && state.depth == 0 {
                    // The target goes on with this frame gone.
                    return self.leave(state, None);
                }
                Step::Goto(target)
            }
            FlowControl::IndirectBranch => {
                // Through an import's address: a tail call. Any other is as likely a switch.
                let through_import = instruction.op0_kind() == OpKind::Memory
                    && instruction.memory_index() == Register::None
                    && matches!(instruction.memory_base(), Register::None | Register::RIP | Register::EIP);
                if through_import && state.depth == 0 { self.leave(state, None) } else { Step::Dead }
            }
            FlowControl::Return => {
                let popped = match instruction.op_count() {
                    0 => 0,
                    _ => u32::from(instruction.immediate16()),
                };
                self.leave(state, Some(popped))
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                let target = if instruction.is_call_near() {
                    u32::try_from(instruction.near_branch_target()).ok()
                } else {
                    None
                };
                let next = state.rva.wrapping_add(instruction.len() as u32);
                let callee = match target {
                    // `call` to the next instruction reads the instruction pointer.
                    Some(target) if target == next => {
                        push(state, Value::Constant(u64::from(next)), word);
                        return Step::Next;
                    }
                    Some(target) => self.callee(target, nesting),
                    None => Callee::Unknown,
                };
                match (callee, target) {
                    (Callee::Helper, Some(target)) if state.depth < MAX_DEPTH => {
                        push(state, Value::Constant(u64::from(next)), word);
                        state.depth += 1;
                        return Step::Goto(target);
                    }
                    (Callee::Plain { popped }, _) => {
                        state.registers[SP] = plus(state.registers[SP], i64::from(popped));
                    }
                    _ if self.start.mode.bits == 64 || self.is_cleaned_up(next) => {}
                    _ => state.registers[SP] = Value::Unknown,
                }
                for n in 0..16u8 {
                    if usize::from(n) != SP && !self.start.mode.nonvolatile.contains(&n) {
                        state.registers[usize::from(n)] = Value::Unknown;
                    }
                }
                Step::Next
            }
            FlowControl::Interrupt | FlowControl::Exception | FlowControl::XbeginXabortXend => Step::Dead,
        }
    }

    /// At a return, or at a jump out of the function with its frame gone.
    fn leave(&self, state: &mut State, popped: Option<u32>) -> Step {
        let word = i64::from(self.start.mode.bits / 8);
        let Value::Start(base, offset) = state.registers[SP] else { return Step::Dead };
        let return_address = match load(state, (base, offset)) {
            Value::Word(base, offset) => (base, offset),
            Value::Constant(rva) if state.depth > 0 => {
                let Some(popped) = popped else { return Step::Dead };
                state.registers[SP] = Value::Start(base, offset.wrapping_add(word + i64::from(popped)));
                state.depth -= 1;
                return match u32::try_from(rva) {
                    Ok(rva) => Step::Goto(rva),
                    Err(_) => Step::Dead,
                };
            }
            _ => return Step::Dead,
        };
        let outcome = Outcome {
            return_address,
            sp: (base, offset.wrapping_add(word)),
            popped,
            registers: state.registers,
            loaded: None,
        };
        match self.rebased(outcome, &state.loaded) {
            Some(outcome) => Step::Return(outcome),
            None => Step::Dead,
        }
    }

    /// The outcome, if all that it must tell is told by registers and at most one of the words `loaded`.
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
                Value::Start(base, _) | Value::Word(base, _) => rebase(base)?,
                Value::Unknown | Value::Constant(_) => return None,
            }
        }
        outcome.loaded = used.and_then(|used| loaded.get(usize::from(used - LOADED)).copied());
        Some(outcome)
    }

    /// What the function at `target` does to its caller's frame.
    fn callee(&mut self, target: u32, nesting: u32) -> Callee {
        if let Some((_, known)) = self.callees.iter().find(|(rva, _)| *rva == target) {
            return *known;
        }
        if nesting >= MAX_DEPTH {
            return Callee::Unknown;
        }
        // Recursion ends here: unknown while it is being found out.
        let index = self.callees.len();
        self.callees.push((target, Callee::Unknown));
        let registers = std::array::from_fn(|n| Value::Start(n as u8, 0));
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
    fn is_cleaned_up(&self, rva: u32) -> bool {
        let Some(instruction) = self.decode(rva) else { return false };
        match instruction.mnemonic() {
            Mnemonic::Add => {
                instruction.op0_register() == Register::ESP && is_immediate(instruction.op1_kind())
            }
            // MSVC removes one argument by popping into a volatile register.
            Mnemonic::Pop => instruction.op0_register() == Register::ECX,
            _ => false,
        }
    }

    /// Everything that does not branch.
    fn execute(&mut self, state: &mut State, instruction: &Instruction) {
        let word = i64::from(self.start.mode.bits / 8);
        let is_word = |register: Register| register.is_gpr() && register.size() as i64 == word;
        let number = |register: Register| register.full_register().number() & 15;
        let op0 = instruction.op0_register();
        let op1 = instruction.op1_register();
        let op0_is_word = instruction.op0_kind() == OpKind::Register && is_word(op0);
        let op1_is_word = instruction.op1_kind() == OpKind::Register && is_word(op1);
        match instruction.mnemonic() {
            Mnemonic::Push => {
                let value = match instruction.op0_kind() {
                    OpKind::Register if is_word(op0) => state.registers[number(op0)],
                    OpKind::Memory => self.load_operand(state, instruction),
                    kind if is_immediate(kind) => Value::Constant(instruction.immediate(0)),
                    _ => Value::Unknown,
                };
                // Segment registers and 16-bit pushes move the stack pointer by what the decoder says.
                push(state, value, i64::from(-instruction.stack_pointer_increment()));
            }
            Mnemonic::Pop => {
                let value = match state.registers[SP] {
                    Value::Start(base, offset) => load(state, (base, offset)),
                    _ => Value::Unknown,
                };
                state.registers[SP] =
                    plus(state.registers[SP], i64::from(instruction.stack_pointer_increment()));
                match instruction.op0_kind() {
                    OpKind::Register if is_word(op0) => state.registers[number(op0)] = value,
                    OpKind::Memory => {
                        if let Some(at) = self.memory(state, instruction) {
                            store(state, at, value);
                        }
                    }
                    _ => {}
                }
            }
            Mnemonic::Mov if op0_is_word => {
                state.registers[number(op0)] = match instruction.op1_kind() {
                    OpKind::Register if op1_is_word => state.registers[number(op1)],
                    OpKind::Memory => self.load_operand(state, instruction),
                    kind if is_immediate(kind) => Value::Constant(instruction.immediate(1)),
                    _ => Value::Unknown,
                };
            }
            Mnemonic::Mov if instruction.op0_kind() == OpKind::Memory => {
                let value = match instruction.op1_kind() {
                    OpKind::Register if op1_is_word => state.registers[number(op1)],
                    kind if is_immediate(kind) => Value::Constant(instruction.immediate(1)),
                    _ => Value::Unknown,
                };
                if let Some(at) = self.memory(state, instruction) {
                    store(state, at, value);
                }
            }
            Mnemonic::Lea if op0_is_word => {
                state.registers[number(op0)] = match self.memory(state, instruction) {
                    Some((base, offset)) => Value::Start(base, offset),
                    None => Value::Unknown,
                };
            }
            Mnemonic::Add if op0_is_word && is_immediate(instruction.op1_kind()) => {
                let n = number(op0);
                state.registers[n] = plus(state.registers[n], instruction.immediate(1) as i64);
            }
            Mnemonic::Sub if op0_is_word && is_immediate(instruction.op1_kind()) => {
                let n = number(op0);
                state.registers[n] =
                    plus(state.registers[n], (instruction.immediate(1) as i64).wrapping_neg());
            }
            Mnemonic::Sub if op0_is_word && op1_is_word => {
                let n = number(op0);
                state.registers[n] = match state.registers[number(op1)] {
                    Value::Constant(bytes) => plus(state.registers[n], (bytes as i64).wrapping_neg()),
                    _ => Value::Unknown,
                };
            }
            Mnemonic::And
                if op0_is_word
                    && number(op0) == SP
                    && is_immediate(instruction.op1_kind())
                    && !state.aligned =>
            {
                state.aligned = true;
                state.registers[SP] = Value::Start(ALIGNED, 0);
            }
            Mnemonic::Xchg if op0_is_word && op1_is_word => state.registers.swap(number(op0), number(op1)),
            Mnemonic::Leave => {
                let frame = state.registers[5];
                state.registers[5] = match frame {
                    Value::Start(base, offset) => load(state, (base, offset)),
                    _ => Value::Unknown,
                };
                state.registers[SP] = plus(frame, word);
            }
            Mnemonic::Nop | Mnemonic::Endbr32 | Mnemonic::Endbr64 => {}
            _ => self.execute_other(state, instruction),
        }
    }

    /// The address of the memory operand, if it is relative to a register's first value.
    fn memory(&self, state: &mut State, instruction: &Instruction) -> Option<(u8, i64)> {
        if matches!(instruction.memory_segment(), Register::FS | Register::GS)
            || instruction.memory_index() != Register::None
            || !instruction.memory_base().is_gpr()
        {
            return None;
        }
        let displacement = match instruction.memory_base().size() {
            4 => i64::from(instruction.memory_displacement32() as i32),
            _ => instruction.memory_displacement64() as i64,
        };
        let value = state.registers[instruction.memory_base().full_register().number() & 15];
        let (base, offset) = self.base(state, value)?;
        Some((base, offset.wrapping_add(displacement)))
    }

    fn load_operand(&self, state: &mut State, instruction: &Instruction) -> Value {
        self.memory(state, instruction).map_or(Value::Unknown, |at| load(state, at))
    }

    /// A value as an address: a base and an offset.
    fn base(&self, state: &mut State, value: Value) -> Option<(u8, i64)> {
        match value {
            Value::Start(base, offset) => Some((base, offset)),
            Value::Word(base, offset) if base < LOADED && self.start.mode.bits == 64 => {
                let known = state.loaded.iter().position(|word| *word == (base, offset));
                let index = known.unwrap_or(state.loaded.len());
                if index == state.loaded.len() && index < MAX_LOADED {
                    state.loaded.push((base, offset));
                }
                (index < MAX_LOADED).then_some((LOADED + index as u8, 0))
            }
            _ => None,
        }
    }

    /// An instruction of which only the decoder knows what it writes.
    fn execute_other(&mut self, state: &mut State, instruction: &Instruction) {
        let writes = |access: OpAccess| {
            matches!(
                access,
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            )
        };
        let moved = instruction.stack_pointer_increment();
        let sp = state.registers[SP];
        let info = self.factory.info(instruction);
        let written: Vec<Register> = info
            .used_registers()
            .iter()
            .filter(|used| writes(used.access()))
            .map(|used| used.register())
            .collect();
        let stored: Vec<(Register, Register, u64)> = info
            .used_memory()
            .iter()
            .filter(|used| writes(used.access()) && !matches!(used.segment(), Register::FS | Register::GS))
            .map(|used| (used.base(), used.index(), used.displacement()))
            .collect();
        for (base, index, displacement) in stored {
            if index == Register::None
                && base.is_gpr()
                && let Value::Start(base, offset) = state.registers[base.full_register().number() & 15]
            {
                store(state, (base, offset.wrapping_add(displacement as i64)), Value::Unknown);
            }
        }
        for register in written.into_iter().filter(|register| register.is_gpr()) {
            state.registers[register.full_register().number() & 15] = Value::Unknown;
        }
        if instruction.is_stack_instruction() {
            state.registers[SP] = plus(sp, i64::from(moved));
        }
    }

    fn decode(&self, rva: u32) -> Option<Instruction> {
        let start = self.start;
        let recorded = start.code.and_then(|code| code.get(rva.wrapping_sub(start.rva) as usize..));
        let decode = |code: &[u8]| {
            let code = code.get(..15).unwrap_or(code);
            let mut decoder = Decoder::with_ip(start.mode.bits, code, u64::from(rva), DecoderOptions::NONE);
            let instruction = decoder.decode();
            (!instruction.is_invalid() && decoder.last_error() == DecoderError::None).then_some(instruction)
        };
        let instruction = recorded.and_then(decode).or_else(|| decode(start.image.bytes(rva)?))?;
        (instruction.code() != Code::Int3).then_some(instruction)
    }
}

fn is_restored(value: Value, register: u8) -> bool {
    value == Value::Start(register, 0)
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32
            | OpKind::Immediate32to64
            | OpKind::Immediate64
    )
}

fn plus(value: Value, bytes: i64) -> Value {
    match value {
        Value::Start(base, offset) => Value::Start(base, offset.wrapping_add(bytes)),
        Value::Constant(value) => Value::Constant(value.wrapping_add(bytes as u64)),
        Value::Unknown | Value::Word(..) => Value::Unknown,
    }
}

fn load(state: &State, at: (u8, i64)) -> Value {
    match state.stores.iter().find(|(stored, _)| *stored == at) {
        Some((_, value)) => *value,
        None => Value::Word(at.0, at.1),
    }
}

fn store(state: &mut State, at: (u8, i64), value: Value) {
    if let Some((_, stored)) = state.stores.iter_mut().find(|(stored, _)| *stored == at) {
        *stored = value;
    } else if state.stores.len() < MAX_STORES {
        state.stores.push((at, value));
    } else {
        // More than is followed: this path will tell nothing.
        state.registers[SP] = Value::Unknown;
    }
}

fn push(state: &mut State, value: Value, word: i64) {
    state.registers[SP] = plus(state.registers[SP], -word);
    if let Value::Start(base, offset) = state.registers[SP] {
        store(state, (base, offset), value);
    }
}

#[cfg(test)]
mod tests;
