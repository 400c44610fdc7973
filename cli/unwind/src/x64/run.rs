//! Follows the code from the instruction pointer to the function's return, as long as each
//! instruction is one that an epilogue may hold.
//!
//! This does not guess by patterns. It executes each accepted instruction on a symbolic stack
//! pointer, so a run that reaches a return gives exactly what the processor would do next. The only
//! judgement is whether a jump leaves the function (a tail call, at which the frame is gone) or
//! stays inside it.

use iced_x86::{
    Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use super::codes;
use super::forms::{X64FullRule, X64Slot};
use super::info::{self, RuntimeFunction};
use super::registers::nonvolatile;
use super::{RBP, RSP};
use crate::engine::CodeAddress;
use crate::{ImageTables, Trust};

/// The result of following the code.
#[expect(clippy::large_enum_variant, reason = "returned once for each rule that is compiled")]
pub(crate) enum Run {
    /// It returns, or leaves by a tail call.
    Returns(X64FullRule),
    /// It does something that no epilogue does, so the unwind codes apply.
    Stays,
    /// The code bytes are not known.
    Unknown,
}

/// The most instructions to follow: eight pops, an addition, a return and a few jumps.
const MAX_INSTRUCTIONS: usize = 24;

/// Follows the code from `place`; `function` is the record that holds it and the function proper.
pub(crate) fn to_return(
    place: &CodeAddress<'_>,
    function: Option<(&RuntimeFunction, &RuntimeFunction)>,
) -> Run {
    let image = place.image;
    let mut rva = place.rva;
    let mut rsp = X64Slot { register: RSP as u8, offset: 0 };
    let mut full = X64FullRule::empty(Trust::UnwindInfo);
    // Whether an instruction has been seen that only an epilogue has.
    let mut releasing = false;
    for _ in 0..MAX_INSTRUCTIONS {
        let Some((instruction, marked)) = decode(place, rva) else { return Run::Unknown };
        match effect(&instruction) {
            Effect::Add(bytes) => {
                rsp = rsp.plus(bytes);
                releasing = true;
            }
            Effect::Set(slot) => {
                // The slot is relative to the register's value at `place`, so it is wrong once the
                // register has been popped.
                if slot.register != RSP as u8 && restored(&full, slot.register) {
                    return Run::Stays;
                }
                rsp = if slot.register == RSP as u8 { rsp.plus(slot.offset) } else { slot };
                releasing = true;
            }
            Effect::Pop(register) => {
                if let Some(n) = nonvolatile(register) {
                    full.saved[n] = Some(rsp);
                }
                rsp = rsp.plus(8);
                releasing = true;
            }
            Effect::Return { popped } => {
                full.return_address = rsp;
                full.popped = popped;
                return Run::Returns(full);
            }
            Effect::Jump { target } => match judge(image, function, target) {
                Jump::Leaves => {
                    full.return_address = rsp;
                    return Run::Returns(full);
                }
                Jump::Inside => {
                    rva = target as u32;
                    continue;
                }
                Jump::Shares => return Run::Stays,
            },
            Effect::JumpIndirect => {
                let is_tail_call = releasing || marked || instruction.is_ip_rel_memory_operand();
                if is_tail_call || released_before(image, function, place.rva) {
                    full.return_address = rsp;
                    return Run::Returns(full);
                }
                return Run::Stays;
            }
            Effect::Other => return Run::Stays,
        }
        rva = rva.wrapping_add(instruction.len() as u32);
    }
    Run::Stays
}

/// Whether the code at a return address begins the function anew, so that its frame is not set up
/// there: as behind Go's calls that make the stack larger.
pub(crate) fn begins_anew(
    place: &CodeAddress<'_>,
    function: &RuntimeFunction,
    root: &RuntimeFunction,
) -> bool {
    let Some((instruction, _)) = decode(place, place.rva) else { return false };
    matches!(effect(&instruction), Effect::Jump { target } if target == u64::from(root.begin)
        && matches!(judge(place.image, Some((function, root)), target), Jump::Leaves))
}

/// The frame at a place from which the code leads straight to `push rbp; mov rbp, rsp`, so that it
/// is not set up, or only half. `None` if the code uses the stack or leaves before that.
pub(crate) fn before_frame(place: &CodeAddress<'_>) -> Option<X64FullRule> {
    let is_set = |instruction: &Instruction| {
        instruction.mnemonic() == Mnemonic::Mov
            && (instruction.op0_register(), instruction.op1_register()) == (Register::RBP, Register::RSP)
    };
    let mut full = X64FullRule::empty(Trust::UnwindInfo);
    let (first, _) = decode(place, place.rva)?;
    if is_set(&first) {
        full.saved[nonvolatile(RBP as u8)?] = Some(full.return_address);
        full.return_address = full.return_address.plus(8);
        return Some(full);
    }
    let mut rva = place.rva;
    for _ in 0..MAX_INSTRUCTIONS {
        let (instruction, _) = decode(place, rva)?;
        rva = rva.wrapping_add(instruction.len() as u32);
        if instruction.mnemonic() == Mnemonic::Push && instruction.op0_register() == Register::RBP {
            return decode(place, rva).filter(|(next, _)| is_set(next)).map(|_| full);
        }
        let stays = matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        if !stays || instruction.is_stack_instruction() || instruction.op0_register() == Register::RSP {
            return None;
        }
    }
    None
}

/// Whether the bytes before a return address end with a call instruction, of any of its encodings.
pub(crate) fn ends_with_call(before: &[u8]) -> bool {
    (2..=7).any(|len| {
        let Some(start) = before.len().checked_sub(len) else { return false };
        let mut decoder = Decoder::new(64, &before[start..], DecoderOptions::NONE);
        let instruction = decoder.decode();
        instruction.mnemonic() == Mnemonic::Call && instruction.len() == len
    })
}

/// The effect of an instruction in an epilogue.
enum Effect {
    Add(i64),
    Set(X64Slot),
    Pop(u8),
    Return { popped: u32 },
    Jump { target: u64 },
    JumpIndirect,
    Other,
}

fn effect(instruction: &Instruction) -> Effect {
    match instruction.mnemonic() {
        Mnemonic::Pop if instruction.op0_kind() == OpKind::Register => {
            match number(instruction.op0_register()) {
                Some(register) if instruction.op0_register().is_gpr64() && register != RSP as u8 => {
                    Effect::Pop(register)
                }
                _ => Effect::Other,
            }
        }
        Mnemonic::Add if is_rsp_and_immediate(instruction) => Effect::Add(instruction.immediate(1) as i64),
        Mnemonic::Sub if is_rsp_and_immediate(instruction) => {
            Effect::Add((instruction.immediate(1) as i64).wrapping_neg())
        }
        Mnemonic::Lea if instruction.op0_register() == Register::RSP => {
            let displacement = instruction.memory_displacement64() as i64;
            match number(instruction.memory_base()) {
                Some(register)
                    if instruction.memory_index() == Register::None
                        && instruction.memory_base().is_gpr64() =>
                {
                    Effect::Set(X64Slot { register, offset: displacement })
                }
                _ => Effect::Other,
            }
        }
        Mnemonic::Ret => match instruction.code() {
            Code::Retnq => Effect::Return { popped: 0 },
            Code::Retnq_imm16 => Effect::Return { popped: u32::from(instruction.immediate16()) },
            _ => Effect::Other,
        },
        Mnemonic::Jmp => match instruction.code() {
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Effect::Jump { target: instruction.near_branch64() },
            Code::Jmp_rm64 => Effect::JumpIndirect,
            _ => Effect::Other,
        },
        _ => Effect::Other,
    }
}

fn is_rsp_and_immediate(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == Register::RSP
        && matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
}

fn number(register: Register) -> Option<u8> {
    register.is_gpr().then(|| register.full_register().number() as u8)
}

fn restored(full: &X64FullRule, register: u8) -> bool {
    nonvolatile(register).is_some_and(|n| full.saved[n].is_some())
}

/// Where a direct jump goes.
enum Jump {
    /// To a function's start or a leaf: a tail call.
    Leaves,
    /// To another place of the same function.
    Inside,
    /// To code outside the function that continues with its frame (a cold part split off with
    /// unwind data of its own).
    Shares,
}

fn judge(image: &ImageTables, function: Option<(&RuntimeFunction, &RuntimeFunction)>, target: u64) -> Jump {
    let Ok(target) = u32::try_from(target) else { return Jump::Leaves };
    let Some((own, root)) = function else {
        // In a leaf every jump leads to a place with an equally empty frame.
        return Jump::Leaves;
    };
    let other = match info::find(image, target) {
        Ok(Some(other)) => other,
        Ok(None) => return Jump::Leaves,
        Err(_) => return Jump::Shares,
    };
    let same = other == *own || info::root(image, other).is_ok_and(|other| other.begin == root.begin);
    let empty = codes::at_target(image, target).is_ok_and(|full| full.is_empty());
    match (same, empty) {
        // A jump back to the first instruction of a function with a frame is a tail call to itself.
        (true, true) if target == root.begin => Jump::Leaves,
        (true, _) => Jump::Inside,
        (false, true) => Jump::Leaves,
        (false, false) => Jump::Shares,
    }
}

/// Whether the instruction before `rva` released the frame. The function is decoded from its start,
/// since x86 code cannot be read backwards.
fn released_before(
    image: &ImageTables,
    function: Option<(&RuntimeFunction, &RuntimeFunction)>,
    rva: u32,
) -> bool {
    let Some((function, _)) = function else { return false };
    let Some(code) = image.bytes(function.begin) else { return false };
    let before = rva.wrapping_sub(function.begin) as usize;
    // A longer function is not decoded. The jump then counts as one inside it.
    const MOST: usize = 1 << 20;
    let Some(code) = code.get(..before).filter(|code| code.len() <= MOST) else { return false };
    let mut decoder = Decoder::with_ip(64, code, u64::from(function.begin), DecoderOptions::NONE);
    let mut last = false;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return false;
        }
        last = matches!(effect(&instruction), Effect::Add(_) | Effect::Set(_) | Effect::Pop(_));
    }
    last
}

/// The instruction at `rva`, from the sample's own code bytes if they reach that far, else from the
/// image; and whether it carries a REX.W that it does not need, by which MSVC and LLVM mark an
/// indirect jump as a tail call.
fn decode(place: &CodeAddress<'_>, rva: u32) -> Option<(Instruction, bool)> {
    let recorded = place.code.and_then(|code| code.get(rva.wrapping_sub(place.rva) as usize..));
    recorded.and_then(|code| decode_bytes(code, rva)).or_else(|| decode_bytes(place.image.bytes(rva)?, rva))
}

fn decode_bytes(code: &[u8], rva: u32) -> Option<(Instruction, bool)> {
    let marked = matches!(code, [0x48..=0x4f, 0xff, ..]);
    let mut decoder =
        Decoder::with_ip(64, code.get(..15).unwrap_or(code), u64::from(rva), DecoderOptions::NONE);
    let instruction = decoder.decode();
    // An instruction that lacks bytes is unknown. One that is invalid is not part of an epilogue.
    let known = !instruction.is_invalid() || decoder.last_error() != DecoderError::NoMoreBytes;
    known.then_some((instruction, marked))
}
