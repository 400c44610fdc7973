//! Applies instructions that do not branch to the symbolic state.

use iced_x86::{Instruction, Mnemonic, OpAccess, OpKind, Register};

use super::PathExplorer;
use super::state::{ALIGNED, FlowValue, LOADED, MAX_LOADED, PathState, SP, load, plus, push, store};

impl PathExplorer<'_, '_> {
    /// Executes any instruction that does not branch.
    pub(super) fn execute(&mut self, state: &mut PathState, instruction: &Instruction) {
        let word = i64::from(self.start.mode.bits / 8);
        let (op0, op1) = (instruction.op0_register(), instruction.op1_register());
        let op0_is_word = instruction.op0_kind() == OpKind::Register && self.is_word(op0);
        let op1_is_word = instruction.op1_kind() == OpKind::Register && self.is_word(op1);
        match instruction.mnemonic() {
            Mnemonic::Push => {
                let value = self.operand(state, instruction, 0);
                // Segment registers and 16-bit pushes move the stack pointer by what the decoder
                // says.
                push(state, value, i64::from(-instruction.stack_pointer_increment()));
            }
            Mnemonic::Pop => {
                let value = word_at(state, state.registers[SP]);
                state.registers[SP] =
                    plus(state.registers[SP], i64::from(instruction.stack_pointer_increment()));
                self.assign(state, instruction, value);
            }
            Mnemonic::Mov if op0_is_word || instruction.op0_kind() == OpKind::Memory => {
                let value = self.operand(state, instruction, 1);
                self.assign(state, instruction, value);
            }
            Mnemonic::Lea if op0_is_word => {
                let address = self.memory(state, instruction);
                state.registers[number(op0)] =
                    address.map_or(FlowValue::Unknown, |(base, offset)| FlowValue::Start(base, offset));
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
                    FlowValue::Constant(bytes) => plus(state.registers[n], (bytes as i64).wrapping_neg()),
                    _ => FlowValue::Unknown,
                };
            }
            Mnemonic::And
                if op0_is_word
                    && number(op0) == SP
                    && is_immediate(instruction.op1_kind())
                    && !state.aligned =>
            {
                state.aligned = true;
                state.registers[SP] = FlowValue::Start(ALIGNED, 0);
            }
            Mnemonic::Xchg if op0_is_word && op1_is_word => state.registers.swap(number(op0), number(op1)),
            Mnemonic::Leave => {
                let frame = state.registers[5];
                state.registers[5] = word_at(state, frame);
                state.registers[SP] = plus(frame, word);
            }
            Mnemonic::Nop | Mnemonic::Endbr32 | Mnemonic::Endbr64 => {}
            _ => self.execute_other(state, instruction),
        }
    }

    /// The address of the memory operand, if it is relative to a register's first value.
    fn memory(&self, state: &mut PathState, instruction: &Instruction) -> Option<(u8, i64)> {
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

    fn is_word(&self, register: Register) -> bool {
        register.is_gpr() && register.size() == self.start.mode.bits as usize / 8
    }

    /// The value of an operand that is a whole word.
    fn operand(&self, state: &mut PathState, instruction: &Instruction, operand: u32) -> FlowValue {
        match instruction.op_kind(operand) {
            OpKind::Register if self.is_word(instruction.op_register(operand)) => {
                state.registers[number(instruction.op_register(operand))]
            }
            OpKind::Memory => {
                self.memory(state, instruction).map_or(FlowValue::Unknown, |at| load(state, at))
            }
            kind if is_immediate(kind) => FlowValue::Constant(instruction.immediate(operand)),
            _ => FlowValue::Unknown,
        }
    }

    /// Gives the first operand this value.
    fn assign(&self, state: &mut PathState, instruction: &Instruction, value: FlowValue) {
        match instruction.op0_kind() {
            OpKind::Register if self.is_word(instruction.op0_register()) => {
                state.registers[number(instruction.op0_register())] = value;
            }
            OpKind::Memory => {
                if let Some(at) = self.memory(state, instruction) {
                    store(state, at, value);
                }
            }
            _ => {}
        }
    }

    /// A value as an address: a base and an offset.
    pub(super) fn base(&self, state: &mut PathState, value: FlowValue) -> Option<(u8, i64)> {
        match value {
            FlowValue::Start(base, offset) => Some((base, offset)),
            FlowValue::Word(base, offset) if base < LOADED && self.start.mode.bits == 64 => {
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

    /// Any other instruction: the registers and memory that the decoder says it writes become
    /// unknown.
    fn execute_other(&mut self, state: &mut PathState, instruction: &Instruction) {
        let writes = |access: OpAccess| {
            matches!(
                access,
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            )
        };
        let moved = instruction.stack_pointer_increment();
        let sp = state.registers[SP];
        let info = self.factory.info(instruction);
        let stored = info
            .used_memory()
            .iter()
            .filter(|used| writes(used.access()) && !matches!(used.segment(), Register::FS | Register::GS));
        for used in stored {
            let (base, displacement) = (used.base(), used.displacement());
            if used.index() == Register::None
                && base.is_gpr()
                && let FlowValue::Start(base, offset) = state.registers[base.full_register().number() & 15]
            {
                store(state, (base, offset.wrapping_add(displacement as i64)), FlowValue::Unknown);
            }
        }
        for used in info.used_registers().iter().filter(|used| writes(used.access())) {
            if used.register().is_gpr() {
                state.registers[number(used.register())] = FlowValue::Unknown;
            }
        }
        if instruction.is_stack_instruction() {
            state.registers[SP] = plus(sp, i64::from(moved));
        }
    }
}

/// The word at an address that is known by a register's first value.
fn word_at(state: &PathState, address: FlowValue) -> FlowValue {
    match address {
        FlowValue::Start(base, offset) => load(state, (base, offset)),
        _ => FlowValue::Unknown,
    }
}

/// The index of a register in a state's registers.
fn number(register: Register) -> usize {
    register.full_register().number() & 15
}

/// Whether an operand is a number in the instruction.
pub(super) fn is_immediate(kind: OpKind) -> bool {
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
