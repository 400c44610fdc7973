//! Runs x64 code from an instruction pointer to where it leaves its function, on a sample's
//! registers and stack.
//!
//! The result shows what the processor would do in an epilogue, independently of any walker. Only
//! straight-line code of the instructions of epilogues is run. The decoder shares no code with the
//! walker's.

use stk_base::model::bytes::u64_at;
use stk_unwind::Sample;
use stk_unwind::x64::{RSP, X64Registers};

/// Limit for the number of instructions.
const MOST: usize = 32;

/// Where the code ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EpilogueEnd {
    /// At a return. The registers are the caller's.
    Return,
    /// At a jump. The instruction pointer is its target.
    Jump,
    /// At a jump through memory or a register, after the frame was released. The registers are
    /// those at the target's beginning, except the instruction pointer.
    JumpIndirect,
}

/// Runs the sample's code; `None` if it is not an epilogue, or bytes are missing.
pub(super) fn replay(sample: &Sample<'_>, registers: &X64Registers) -> Option<(X64Registers, EpilogueEnd)> {
    let mut code = sample.code_at_ip?;
    let mut registers = *registers;
    let mut released = false;
    for _ in 0..MOST {
        let (instruction, len) = decode(code)?;
        let next = registers.ip.wrapping_add(len as u64);
        let rsp = registers.gpr[RSP];
        registers.ip = next;
        match instruction {
            Instruction::Nothing => {}
            Instruction::Add(bytes) => registers.gpr[RSP] = rsp.wrapping_add(bytes as u64),
            Instruction::Lea(base, offset) => {
                registers.gpr[RSP] = registers.gpr[base].wrapping_add(offset as u64);
            }
            Instruction::Pop(register) => {
                let value = word(sample, rsp)?;
                registers.gpr[RSP] = rsp.wrapping_add(8);
                registers.gpr[register] = value;
            }
            Instruction::Return(arguments) => {
                registers.ip = word(sample, rsp)?;
                registers.gpr[RSP] = rsp.wrapping_add(8 + u64::from(arguments));
                return Some((registers, EpilogueEnd::Return));
            }
            Instruction::Jump(distance) => {
                registers.ip = next.wrapping_add(distance as u64);
                return Some((registers, EpilogueEnd::Jump));
            }
            // A jump without a sign that it is the function's last may belong to a switch.
            Instruction::JumpIndirect { last } if last || released => {
                return Some((registers, EpilogueEnd::JumpIndirect));
            }
            Instruction::JumpIndirect { .. } => return None,
        }
        released |= instruction != Instruction::Nothing;
        code = &code[len..];
    }
    None
}

/// The instructions of epilogues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Instruction {
    Nothing,
    /// To rsp.
    Add(i64),
    /// Into rsp: a register plus an offset.
    Lea(usize, i64),
    Pop(usize),
    /// Pops this many bytes of arguments.
    Return(u16),
    Jump(i64),
    /// `last`: relative to the instruction pointer (an import), or with the REX.W that marks a tail
    /// call.
    JumpIndirect {
        last: bool,
    },
}

/// Intel SDM volume 2: `REX? opcode ModRM …`.
fn decode(code: &[u8]) -> Option<(Instruction, usize)> {
    // `rep ret` and `bnd ret`.
    if let [0xf3 | 0xf2, 0xc3, ..] = code {
        return Some((Instruction::Return(0), 2));
    }
    let (rex, body) = match code {
        [rex @ 0x40..=0x4f, body @ ..] => (*rex, body),
        body => (0, body),
    };
    let (wide, high) = (rex & 8 != 0, usize::from(rex & 1) << 3);
    let (instruction, len) = match *body {
        [0x90, ..] if rex == 0 => (Instruction::Nothing, 1),
        [op @ 0x58..=0x5f, ..] => (Instruction::Pop(usize::from(op & 7) | high), 1),
        [0xc3, ..] => (Instruction::Return(0), 1),
        [0xc2, a, b, ..] => (Instruction::Return(u16::from_le_bytes([a, b])), 3),
        [0x83, 0xc4, n, ..] if rex == 0x48 => (Instruction::Add(i64::from(n as i8)), 3),
        [0x81, 0xc4, a, b, c, d, ..] if rex == 0x48 => (Instruction::Add(int32([a, b, c, d])), 6),
        [0x83, 0xec, n, ..] if rex == 0x48 => (Instruction::Add(-i64::from(n as i8)), 3),
        [0x81, 0xec, a, b, c, d, ..] if rex == 0x48 => (Instruction::Add(-int32([a, b, c, d])), 6),
        // lea rsp,[base+disp]: mod 01 or 10, reg 4. With rsp or r12 as the base there is a SIB byte
        // without index.
        [0x8d, modrm, ref rest @ ..] if wide && rex & 6 == 0 && modrm >> 3 & 7 == 4 => {
            let base = usize::from(modrm & 7) | high;
            let (rest, sib) = match (modrm & 7, rest) {
                (4, [sib, rest @ ..]) if sib & 0x3f == 0x24 => (rest, 1),
                (4, _) => return None,
                _ => (rest, 0),
            };
            match (modrm >> 6, rest) {
                (1, [n, ..]) => (Instruction::Lea(base, i64::from(*n as i8)), 3 + sib),
                (2, [a, b, c, d, ..]) => (Instruction::Lea(base, int32([*a, *b, *c, *d])), 6 + sib),
                (0, _) if modrm & 7 != 5 => (Instruction::Lea(base, 0), 2 + sib),
                _ => return None,
            }
        }
        [0xeb, n, ..] => (Instruction::Jump(i64::from(n as i8)), 2),
        [0xe9, a, b, c, d, ..] => (Instruction::Jump(int32([a, b, c, d])), 5),
        [0xff, 0x25, _, _, _, _, ..] => (Instruction::JumpIndirect { last: true }, 6),
        // jmp reg
        [0xff, 0xe0..=0xe7, ..] => (Instruction::JumpIndirect { last: wide }, 2),
        _ => return None,
    };
    Some((instruction, len + usize::from(rex != 0)))
}

fn int32(bytes: [u8; 4]) -> i64 {
    i64::from(i32::from_le_bytes(bytes))
}

/// The number of words between the stack pointer and the return address, if a frame by rbp is not
/// set up yet: 0 if the code leads straight to `push rbp; mov rbp,rsp`, 1 if its next instruction
/// is the second half of that.
pub(super) fn frame_to_come(mut code: &[u8]) -> Option<u64> {
    if let [0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..] = code {
        return Some(1);
    }
    for _ in 0..MOST {
        if let [0x55, 0x48, 0x89, 0xe5, ..] | [0x55, 0x48, 0x8b, 0xec, ..] = code {
            return Some(0);
        }
        code = code.get(plain(code)?..)?;
    }
    None
}

/// The length of an instruction that neither changes the stack pointer nor always jumps:
/// comparisons, moves and conditional jumps, as they occur before a prologue.
fn plain(code: &[u8]) -> Option<usize> {
    // The prefix for 16-bit operands comes before the REX prefix.
    let (short, code) = match code {
        [0x66, code @ ..] => (true, code),
        code => (false, code),
    };
    let (rex, body) = match code {
        [rex @ 0x40..=0x4f, body @ ..] => (*rex, body),
        body => (0, body),
    };
    let prefix = usize::from(rex != 0) + usize::from(short);
    let constant = if short { 2 } else { 4 };
    let operand = |opcode: usize, immediate: usize| {
        let [modrm, rest @ ..] = body.get(opcode..)? else { return None };
        let (mode, low) = (modrm >> 6, modrm & 7);
        let sib = usize::from(mode != 3 && low == 4);
        let base = if sib == 1 { rest.first()? & 7 } else { low };
        let displacement = match mode {
            0 if base == 5 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        // Into rsp, by either operand.
        let into_rsp = (modrm >> 3 & 7 == 4 && rex & 4 == 0) || (mode == 3 && low == 4 && rex & 1 == 0);
        (!into_rsp).then_some(prefix + opcode + 1 + sib + displacement + immediate)
    };
    match *body {
        [0x70..=0x7f, ..] if !short => Some(prefix + 2),
        [0x0f, 0x80..=0x8f, ..] if !short => Some(prefix + 6),
        [0x0f, 0xb6 | 0xb7, ..] => operand(2, 0),
        [0x33 | 0x38..=0x3b | 0x84 | 0x85 | 0x89 | 0x8b | 0x8d, ..] => operand(1, 0),
        // cmp and test with a constant, recognised by the register field.
        [0x80 | 0x83, modrm, ..] if modrm >> 3 & 7 == 7 => operand(1, 1),
        [0xf6, modrm, ..] if modrm >> 3 & 7 == 0 => operand(1, 1),
        [0x81, modrm, ..] if modrm >> 3 & 7 == 7 => operand(1, constant),
        [0xf7, modrm, ..] if modrm >> 3 & 7 == 0 => operand(1, constant),
        [0xb8..=0xbb | 0xbd..=0xbf, ..] => Some(prefix + if rex & 8 != 0 { 9 } else { 1 + constant }),
        _ => None,
    }
}

/// The word of the captured stack at `address`.
pub(super) fn word(sample: &Sample<'_>, address: u64) -> Option<u64> {
    let at = usize::try_from(address.checked_sub(sample.stack_start)?).ok()?;
    u64_at(sample.stack, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_unwind::x64::{RBP, RBX};

    const IP: u64 = 0x1_4000_1000;
    const STACK: u64 = 0x7000;

    fn run(code: &[u8], rsp: u64) -> Option<(X64Registers, EpilogueEnd)> {
        let mut gpr = [0; 16];
        gpr[RSP] = rsp;
        gpr[RBP] = STACK + 0x20;
        let registers = X64Registers { ip: IP, gpr };
        // Each word of the stack is its own number.
        let stack: Vec<u8> = (0..16u64).flat_map(u64::to_le_bytes).collect();
        let sample = Sample {
            registers: &stk_unwind::Registers::X64(registers),
            stack: &stack,
            stack_start: STACK,
            stack_base: None,
            truncated: false,
            code_at_ip: Some(code),
        };
        replay(&sample, &registers)
    }

    #[test]
    fn an_epilogue_runs_to_its_return() {
        // add rsp,10h; pop rbx; pop r12; ret 8
        let code = [0x48, 0x83, 0xc4, 0x10, 0x5b, 0x41, 0x5c, 0xc2, 8, 0];
        let (registers, ending) = run(&code, STACK).unwrap();
        assert_eq!(ending, EpilogueEnd::Return);
        assert_eq!((registers.gpr[RBX], registers.gpr[12], registers.ip), (2, 3, 4));
        assert_eq!(registers.gpr[RSP], STACK + 5 * 8 + 8);
    }

    #[test]
    fn an_epilogue_with_a_frame_register_runs_to_its_return() {
        // lea rsp,[rbp+8]; pop rbp; rep ret
        let (registers, ending) = run(&[0x48, 0x8d, 0x65, 0x08, 0x5d, 0xf3, 0xc3], STACK).unwrap();
        assert_eq!((ending, registers.gpr[RBP], registers.ip), (EpilogueEnd::Return, 5, 6));
        assert_eq!(registers.gpr[RSP], STACK + 7 * 8);
    }

    #[test]
    fn a_tail_jump_is_followed_only_to_its_target() {
        // pop rbx; jmp -80h
        let (registers, ending) = run(&[0x5b, 0xe9, 0x80, 0xff, 0xff, 0xff], STACK + 8).unwrap();
        assert_eq!((ending, registers.gpr[RBX]), (EpilogueEnd::Jump, 1));
        assert_eq!((registers.ip, registers.gpr[RSP]), (IP + 6 - 0x80, STACK + 16));
        // add rsp,8; jmp rax
        let (registers, ending) = run(&[0x48, 0x83, 0xc4, 8, 0xff, 0xe0], STACK).unwrap();
        assert_eq!((ending, registers.gpr[RSP]), (EpilogueEnd::JumpIndirect, STACK + 8));
    }

    #[test]
    fn switches_and_bodies_are_not_epilogues() {
        // jmp rax; mov eax,ecx; ret
        assert_eq!(run(&[0xff, 0xe0], STACK), None);
        assert_eq!(run(&[0x89, 0xc8, 0xc3], STACK), None);
        // Missing bytes, or missing stack.
        assert_eq!(run(&[0x5b], STACK), None);
        assert_eq!(run(&[0xc3], STACK + 16 * 8), None);
        assert_eq!(run(&[0xc3], STACK - 8), None);
        assert_eq!(run(&[], STACK), None);
        assert_eq!(run(&[0x90; 64], STACK), None);
    }

    #[test]
    fn a_frame_that_is_not_set_up_yet_is_recognised() {
        // push rbp; mov rbp,rsp in both encodings, and their second halves.
        assert_eq!(frame_to_come(&[0x55, 0x48, 0x89, 0xe5]), Some(0));
        assert_eq!(frame_to_come(&[0x55, 0x48, 0x8b, 0xec]), Some(0));
        assert_eq!(frame_to_come(&[0x48, 0x89, 0xe5, 0x56]), Some(1));
        // mov ebx,[rcx-10h]; test byte ptr [rbx],1; jne; push rbp; mov rbp,rsp; then the same with
        // a longer jump.
        let entry = [0x8b, 0x59, 0xf0, 0xf6, 0x03, 0x01, 0x75, 0x05, 0x55, 0x48, 0x89, 0xe5];
        assert_eq!(frame_to_come(&entry), Some(0));
        assert_eq!(frame_to_come(&[0x0f, 0x85, 0xb2, 0x3e, 0xe0, 0x1f, 0x55, 0x48, 0x89, 0xe5]), Some(0));
        // A push before it, a body, a return, rsp changed, bytes that end.
        assert_eq!(frame_to_come(&[0x56, 0x55, 0x48, 0x89, 0xe5]), None);
        assert_eq!(frame_to_come(&[0xc3, 0x55, 0x48, 0x89, 0xe5]), None);
        assert_eq!(frame_to_come(&[0x48, 0x8b, 0xe1, 0x55, 0x48, 0x89, 0xe5]), None);
        assert_eq!(frame_to_come(&[0x48, 0x83, 0xec, 0x28, 0x55, 0x48, 0x89, 0xe5]), None);
        assert_eq!(frame_to_come(&[0x55, 0x48]), None);
        assert_eq!(frame_to_come(&[0x8b]), None);
    }

    #[test]
    fn lea_with_sib_is_decoded() {
        // lea rsp,[r12+20h]: 49 8d 64 24 20. The replayed r12 is 0, so nothing can be read there.
        assert_eq!(decode(&[0x49, 0x8d, 0x64, 0x24, 0x20]), Some((Instruction::Lea(12, 0x20), 5)));
        // lea rsp,[rsp+100h]
        let code = [0x48, 0x8d, 0xa4, 0x24, 0, 1, 0, 0];
        assert_eq!(decode(&code), Some((Instruction::Lea(RSP, 0x100), 8)));
        // lea r12,[rsp+20h] and lea rsp,[rip+…] do not occur in epilogues.
        assert_eq!(decode(&[0x4c, 0x8d, 0x64, 0x24, 0x20]), None);
        assert_eq!(decode(&[0x48, 0x8d, 0x25, 0, 0, 0, 0]), None);
    }

    #[test]
    fn a_frame_is_recognised_behind_16_bit_comparisons() {
        // jne +42h; mov rcx,[rsp+8]; test cl,1; je +40h; mov rbx,[rcx-1]; cmp word [rbx+0bh],114h;
        // jne +2eh; push rbp; mov rbp,rsp: a builtin of V8, from node.exe.
        let code = [
            0x0f, 0x85, 0x42, 0, 0, 0, 0x48, 0x8b, 0x4c, 0x24, 8, 0xf6, 0xc1, 1, 0x74, 0x0c, 0x48, 0x8b,
            0x59, 0xff, 0x66, 0x81, 0x7b, 0x0b, 0x14, 1, 0x73, 0x2c, 0x55, 0x48, 0x89, 0xe5,
        ];
        assert_eq!(frame_to_come(&code), Some(0));
        // sub rsp,8 is in between, so the return address is not on top.
        let moved = [0x74, 0x0c, 0x48, 0x83, 0xec, 8, 0x55, 0x48, 0x89, 0xe5];
        assert_eq!(frame_to_come(&moved), None);
    }
}
