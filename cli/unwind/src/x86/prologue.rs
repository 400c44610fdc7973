//! What the first instructions of a function did: whether they set up a frame with ebp, and where
//! they saved registers.
//!
//! It gets an image's code and an address in a function, and gives a [`Prologue`]. The instructions
//! from the function's start up to the first branch always run, so what they do is certain, unlike
//! what a chain of frame pointers says of a function that uses ebp for something else.

use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

use super::registers::{EBP, EBX, ESP, NONVOLATILE};
use crate::ImageTables;

/// Instructions that are followed at most.
const MOST_INSTRUCTIONS: usize = 64;
/// Bytes before an address in which the start of a function of unknown extent is looked for.
const MOST_BYTES: u32 = 32 << 10;

/// Places before an address that look like a start, of which the code is followed.
const MOST_STARTS: usize = 4;

/// Whether ebp holds the address of the saved ebp, with the return address above it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum FramePointer {
    /// The code is not known.
    #[default]
    Unknown,
    /// The function's first instructions do not make it so, or its start was not found.
    Absent,
    /// They do.
    Set,
}

/// What the first instructions did before an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Prologue {
    pub(crate) frame_pointer: FramePointer,
    /// Bytes that ebp points below the saved ebp, into the locals: `lea ebp, [esp-N]`.
    pub(crate) into: u32,
    /// By nonvolatile register: bytes from the slot where it was saved up to the address above the
    /// return address; 0 = it was not saved, or still holds the caller's value.
    pub(crate) saved: [u16; NONVOLATILE.len()],
    /// The stack was aligned: the return address above is a copy.
    pub(crate) aligned: bool,
    /// ebx holds the address where the caller's ebx is saved, right below the return address of
    /// which the one above is a copy: MSVC's functions with aligned locals.
    pub(crate) by_ebx: bool,
    /// Bytes from esp up to the return address, if every instruction from the start up to the
    /// address was followed: nothing but these has moved esp.
    pub(crate) pushed: Option<u16>,
}

/// Follows the first instructions of the function that holds `rva`, which is `bounds` if these are
/// known. Where they are not, the nearest code at or before `rva` that begins as functions with a
/// frame do is the start, if the code from there leads to `rva` without the end of a function.
pub(crate) fn follow(image: &ImageTables, rva: u32, bounds: Option<&Range<u32>>) -> Prologue {
    let start = match bounds {
        Some(bounds) => Some(start_with_pushes(image, bounds.start)),
        None => match (image.bytes_before(rva), image.bytes(rva)) {
            (None, None) => return Prologue::default(),
            (before, _) => framed_start(image, before.unwrap_or_default(), rva),
        },
    };
    let absent = Prologue { frame_pointer: FramePointer::Absent, ..Prologue::default() };
    match start {
        Some(start) => PrologueScanner::new().run(image, start, rva).unwrap_or_default(),
        None => absent,
    }
}

/// What a register or a word of the stack holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Held {
    #[default]
    Unknown,
    Constant(u32),
    /// An address of the stack.
    At(StackPos),
    ReturnAddress,
    /// What this nonvolatile register held at the function's start.
    Initial(usize),
    /// The address behind the call that leads into a helper.
    Back,
}

/// A place in the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StackPos {
    /// Whether it is counted from where the stack was aligned, and not from the address above the
    /// return address.
    aligned: bool,
    /// Bytes below that.
    below: i64,
}

/// The first instructions, as they are followed.
#[derive(Clone)]
struct PrologueScanner {
    esp: StackPos,
    /// Registers but esp.
    registers: [Held; 8],
    /// Words of the stack.
    words: Vec<(StackPos, Held)>,
    /// Nonvolatile registers that no longer hold the caller's value, by the slot where they were
    /// saved. A pushed register that is not written afterwards may have been an argument.
    saved: [Option<StackPos>; NONVOLATILE.len()],
    /// Only constants were pushed so far, as before a call of a helper that makes the frame.
    plain: bool,
}

/// Places of ebx and ebp in [`NONVOLATILE`].
const SAVED_EBX: usize = 0;
const SAVED_EBP: usize = 1;

impl StackPos {
    fn lower(self, bytes: i64) -> StackPos {
        StackPos { below: self.below + bytes, ..self }
    }
}

impl PrologueScanner {
    fn new() -> PrologueScanner {
        let mut registers = [Held::Unknown; 8];
        for (n, register) in NONVOLATILE.into_iter().enumerate() {
            registers[usize::from(register)] = Held::Initial(n);
        }
        let esp = StackPos { aligned: false, below: 4 };
        PrologueScanner {
            esp,
            registers,
            words: vec![(esp, Held::ReturnAddress)],
            saved: [None; 4],
            plain: true,
        }
    }

    /// `None` if the code is not known.
    fn run(mut self, image: &ImageTables, start: u32, rva: u32) -> Option<Prologue> {
        let code = image.bytes(start)?;
        let mut decoder = Decoder::with_ip(32, code, start.into(), DecoderOptions::NONE);
        for _ in 0..MOST_INSTRUCTIONS {
            if decoder.ip() >= u64::from(rva) || !decoder.can_decode() {
                break;
            }
            let instruction = decoder.decode();
            let made = self.plain && instruction.is_call_near() && self.helper(image, &instruction);
            if !made && !self.step(&instruction) {
                return Some(self.prologue());
            }
        }
        let pushed = if decoder.ip() == u64::from(rva) { self.pushed() } else { None };
        Some(Prologue { pushed, ..self.prologue() })
    }

    /// Bytes from esp up to the return address, if each nonvolatile register has the caller's value
    /// or a slot that has it.
    fn pushed(&self) -> Option<u16> {
        let is_known = |n: usize| {
            self.registers[usize::from(NONVOLATILE[n])] == Held::Initial(n) || self.saved[n].is_some()
        };
        let known = !self.esp.aligned && (0..NONVOLATILE.len()).all(is_known);
        known.then(|| u16::try_from(self.esp.below - 4).ok()).flatten()
    }

    /// Follows a function that makes its caller's frame, such as __SEH_prolog4 and __EH_prolog3;
    /// false, with nothing changed, if the called one is none.
    fn helper(&mut self, image: &ImageTables, call: &Instruction) -> bool {
        let target = u32::try_from(call.near_branch_target()).ok();
        let Some((start, code)) = target.and_then(|start| Some((start, image.bytes(start)?))) else {
            return false;
        };
        let mut inside = self.clone();
        inside.put(Held::Back);
        let mut decoder = Decoder::with_ip(32, code, start.into(), DecoderOptions::NONE);
        for _ in 0..MOST_INSTRUCTIONS {
            if !decoder.can_decode() {
                return false;
            }
            let instruction = decoder.decode();
            if instruction.flow_control() == FlowControl::Return {
                let returns = instruction.op_count() == 0 && inside.word(inside.esp) == Held::Back;
                inside.esp = inside.esp.lower(-4);
                inside.plain = false;
                // What such a function pushes, it saves.
                for n in 0..NONVOLATILE.len() {
                    inside.saved[n] = inside.slot_of(n);
                }
                if returns && inside.prologue().frame_pointer == FramePointer::Set {
                    *self = inside;
                    return true;
                }
                return false;
            }
            if !inside.step(&instruction) {
                return false;
            }
        }
        false
    }

    /// What is known behind the last instruction.
    fn prologue(&self) -> Prologue {
        let absent = Prologue { frame_pointer: FramePointer::Absent, ..Prologue::default() };
        let return_at = |place: StackPos| self.word(place.lower(-4)) == Held::ReturnAddress;
        let frame = match self.registers[EBP] {
            // ebp is saved right below the return address, or below the copy that aligning made.
            Held::At(ebp) => {
                let saved = self.words.iter().find(|(place, held)| {
                    *held == Held::Initial(SAVED_EBP) && place.aligned == ebp.aligned && return_at(*place)
                });
                saved.map(|(place, _)| (*place, ebp.below - place.below))
            }
            _ => None,
        };
        // Slots count from above the return address; without a frame, from above the first one.
        let above =
            frame.map_or(StackPos { aligned: self.esp.aligned, below: 0 }, |(frame, _)| frame.lower(-8));
        let slot = |place: &Option<StackPos>| {
            let place = place.filter(|place| place.aligned == above.aligned);
            place.and_then(|place| u16::try_from(place.below - above.below).ok()).unwrap_or(0)
        };
        let saved = std::array::from_fn(|n| slot(&self.saved[n]));
        let Some((frame, into)) = frame.and_then(|(frame, into)| Some((frame, u32::try_from(into).ok()?)))
        else {
            return Prologue { saved, aligned: self.esp.aligned, ..absent };
        };
        let by_ebx = match self.registers[EBX] {
            Held::At(base) => frame.aligned && self.word(base) == Held::Initial(SAVED_EBX) && return_at(base),
            _ => false,
        };
        Prologue {
            frame_pointer: FramePointer::Set,
            into,
            saved,
            aligned: frame.aligned,
            by_ebx,
            pushed: None,
        }
    }

    /// Follows an instruction; false if it is none of a prologue.
    fn step(&mut self, instruction: &Instruction) -> bool {
        if instruction.is_invalid() || instruction.flow_control() != FlowControl::Next {
            return false;
        }
        let to = register(instruction.op0_register());
        let written = || written(instruction);
        let value = match instruction.mnemonic() {
            Mnemonic::Push => {
                let value = self.value(instruction, 0);
                self.plain &= matches!(value, Held::Constant(_));
                self.put(value);
                return true;
            }
            Mnemonic::Mov | Mnemonic::Lea if to != Some(ESP) => {
                let value = match instruction.mnemonic() {
                    Mnemonic::Mov => self.value(instruction, 1),
                    _ => self.address(instruction).map_or(Held::Unknown, Held::At),
                };
                self.plain &= matches!(value, Held::Constant(_));
                if instruction.op0_kind() == OpKind::Memory {
                    if let Some(place) = self.address(instruction) {
                        self.set_word(place, value);
                    }
                    return true;
                }
                value
            }
            Mnemonic::Sub | Mnemonic::Add if to == Some(ESP) => match self.value(instruction, 1) {
                Held::Constant(bytes) => {
                    let sign = if instruction.mnemonic() == Mnemonic::Sub { 1 } else { -1 };
                    self.esp = self.esp.lower(sign * i64::from(bytes as i32));
                    self.plain = false;
                    return true;
                }
                _ => return false,
            },
            // Compilers align the stack so, and then push a copy of the return address. What lies
            // above is reached by the registers that hold addresses there.
            Mnemonic::And if to == Some(ESP) && !self.esp.aligned => {
                self.esp = StackPos { aligned: true, below: 0 };
                self.plain = false;
                return true;
            }
            // A call to the next instruction, and what else moves esp, is no part of a prologue.
            _ => {
                let written = written();
                if written[ESP] || written[EBP] {
                    return false;
                }
                Held::Unknown
            }
        };
        match to.filter(|_| instruction.op0_kind() == OpKind::Register) {
            Some(to) if instruction.op0_register().size() == 4 && is_move(instruction.mnemonic()) => {
                self.set(to, value);
            }
            _ => {
                self.plain &= !matches!(instruction.mnemonic(), Mnemonic::Pop);
                let written = written();
                for n in (0..8).filter(|&n| n != ESP && written[n]) {
                    self.set(n, Held::Unknown);
                }
            }
        }
        true
    }

    /// Sets a register.
    fn set(&mut self, to: usize, value: Held) {
        if let Held::Initial(n) = self.registers[to]
            && value != self.registers[to]
            && usize::from(NONVOLATILE[n]) == to
        {
            self.saved[n] = self.slot_of(n);
        }
        self.registers[to] = value;
    }

    fn put(&mut self, value: Held) {
        self.esp = self.esp.lower(4);
        self.set_word(self.esp, value);
    }

    fn set_word(&mut self, place: StackPos, value: Held) {
        let apart = |known: &StackPos| (known.below - place.below).abs() >= 4;
        self.words.retain(|(known, _)| known.aligned != place.aligned || apart(known));
        self.words.push((place, value));
    }

    fn word(&self, place: StackPos) -> Held {
        let known = self.words.iter().find(|(known, _)| *known == place);
        known.map_or(Held::Unknown, |(_, held)| *held)
    }

    /// The highest word that holds what a nonvolatile register held at the start.
    fn slot_of(&self, n: usize) -> Option<StackPos> {
        let words = self.words.iter().filter(|(_, held)| *held == Held::Initial(n));
        words.map(|(place, _)| *place).min_by_key(|place| (place.aligned, place.below))
    }

    /// What an operand holds.
    fn value(&self, instruction: &Instruction, operand: u32) -> Held {
        match instruction.op_kind(operand) {
            OpKind::Register => match register(instruction.op_register(operand)) {
                Some(ESP) => Held::At(self.esp),
                Some(n) if instruction.op_register(operand).size() == 4 => self.registers[n],
                _ => Held::Unknown,
            },
            OpKind::Immediate8to32 | OpKind::Immediate32 => Held::Constant(instruction.immediate32()),
            OpKind::Memory if instruction.memory_size().size() == 4 => {
                self.address(instruction).map_or(Held::Unknown, |place| self.word(place))
            }
            _ => Held::Unknown,
        }
    }

    /// The place in the stack that the memory operand names.
    fn address(&self, instruction: &Instruction) -> Option<StackPos> {
        let is_plain = instruction.memory_index() == Register::None
            && !matches!(instruction.memory_segment(), Register::FS | Register::GS);
        let base = match register(instruction.memory_base()).filter(|_| is_plain)? {
            ESP => self.esp,
            n => match self.registers[n] {
                Held::At(place) => place,
                _ => return None,
            },
        };
        Some(base.lower(-i64::from(instruction.memory_displacement32() as i32)))
    }
}

/// Whether an instruction gives its first operand the value of its second.
fn is_move(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Mov | Mnemonic::Lea)
}

/// The number of a register that holds a word.
fn register(register: Register) -> Option<usize> {
    register.is_gpr32().then(|| register.number()).filter(|&n| n < 8)
}

/// The start of a function whose record may begin behind its first pushes, as FPO records of
/// assembler do. Padding must come before these.
fn start_with_pushes(image: &ImageTables, start: u32) -> u32 {
    const INT3: u8 = 0xcc;
    const NOP: u8 = 0x90;
    let before = image.bytes_before(start).unwrap_or_default();
    let pushes =
        before.iter().rev().take(NONVOLATILE.len()).take_while(|byte| matches!(byte, 0x50..=0x57)).count();
    let padded = before.iter().rev().nth(pushes).is_some_and(|byte| [INT3, NOP].contains(byte));
    if padded { start - pushes as u32 } else { start }
}

/// The start of the function that holds `rva`, by how functions with a frame begin: `push ebp; mov
/// ebp, esp`, `push ebp; lea ebp, [esp-N]`, or constants and a call of a helper that makes the
/// frame. `before`: the code before `rva`, which may be one of these first instructions.
fn framed_start(image: &ImageTables, before: &[u8], rva: u32) -> Option<u32> {
    let most = before.len().min(MOST_BYTES as usize);
    let code = image.bytes(rva - most as u32)?;
    let starts = (0..=most).filter(|&back| {
        let code = &code[most - back..];
        begins_with_frame(code) || begins_with_helper(image, code, rva - back as u32)
    });
    let start = starts.take(MOST_STARTS).find(|&back| leads_to(&code[most - back..most]))?;
    Some(rva - start as u32)
}

fn begins_with_frame(code: &[u8]) -> bool {
    matches!(
        code,
        [0x55, 0x8b, 0xec, ..]
            | [0x55, 0x89, 0xe5, ..]
            | [0x55, 0x8d, 0x6c, 0x24, 0x80..=0xff, ..]
            | [0x55, 0x8d, 0xac, 0x24, _, _, 0x80..=0xff, 0xff, ..]
            | [0x53, 0x8b, 0xdc, 0x83, 0xec, _, 0x83, 0xe4, ..]
    )
}

/// Whether code begins with one or two constants for a function that makes its caller's frame, and
/// a call of it: `push 14h; push table; call __SEH_prolog4` or `push 50h; mov eax, handler; call
/// __EH_prolog3`.
fn begins_with_helper(image: &ImageTables, code: &[u8], rva: u32) -> bool {
    const CALL: u8 = 0xe8;
    let size = match code.first() {
        Some(0x6a) => 2,
        Some(0x68) => 5,
        _ => return false,
    };
    let is_constant = matches!(code.get(size), Some(0x68 | 0xb8));
    if !is_constant || code.get(size + 5) != Some(&CALL) || code.len() < size + 10 {
        return false;
    }
    let mut follower = PrologueScanner::new();
    let mut decoder = Decoder::with_ip(32, &code[..size + 10], rva.into(), DecoderOptions::NONE);
    for _ in 0..2 {
        if !follower.step(&decoder.decode()) {
            return false;
        }
    }
    follower.helper(image, &decoder.decode())
}

/// Whether the instructions end with `code`, and no function ends among them. Compilers pad behind
/// the end of a function; also within one, but then a branch before leads to what follows. Only
/// int3 is never within one: it comes behind a return or a jump, or behind the call of a function
/// that does not return. What jumps over it jumps to another function, or to a cold part far away.
fn leads_to(code: &[u8]) -> bool {
    let mut decoder = Decoder::new(32, code, DecoderOptions::NONE);
    let (mut ended, mut farthest) = (false, 0);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let past_end = ended && is_padding(&instruction) && farthest < instruction.next_ip();
        if instruction.is_invalid() || past_end || instruction.mnemonic() == Mnemonic::Int3 {
            return false;
        }
        ended = match instruction.flow_control() {
            FlowControl::Return | FlowControl::IndirectBranch => true,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                farthest = farthest.max(instruction.near_branch_target());
                instruction.flow_control() == FlowControl::UnconditionalBranch
            }
            _ => ended && is_padding(&instruction),
        };
    }
    decoder.position() == code.len() && (!ended || farthest >= code.len() as u64)
}

fn is_padding(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Nop => true,
        Mnemonic::Xchg => instruction.op0_register() == instruction.op1_register(),
        _ => instruction.code() == Code::Lea_r32_m && is_no_move(instruction),
    }
}

/// Whether a `lea` does nothing, as in the padding between functions: `lea esi, [esi]`.
fn is_no_move(instruction: &Instruction) -> bool {
    instruction.op0_register() == instruction.memory_base() && instruction.memory_displacement32() == 0
}

/// The registers that an instruction writes, wholly or in part.
fn written(instruction: &Instruction) -> [bool; 8] {
    let mut written = [false; 8];
    for used in InstructionInfoFactory::new().info(instruction).used_registers() {
        let write = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
        if let Some(n) = register(used.register().full_register32()).filter(|_| write) {
            written[n] = true;
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arch, ImageTables};

    const START: u32 = 0x1010;

    /// The prologue seen at the end of this code, which is preceded by padding.
    fn of(code: &[u8], bounds_known: bool) -> Prologue {
        let mut bytes = vec![0xcc; 16];
        bytes.extend(code);
        bytes.extend([0x90; 16]);
        let image = ImageTables::new(Arch::X86, 0x3000).range(0x1000, bytes).build();
        let end = START + code.len() as u32;
        let bounds = START..end + 8;
        follow(&image, end, bounds_known.then_some(&bounds))
    }

    #[test]
    fn a_frame_is_seen_with_the_registers_saved_after_it() {
        // push ebp; mov ebp, esp; sub esp, 18h; push ebx; push esi; mov esi, [ebp+8]; xor ebx, ebx
        let code = [0x55, 0x8b, 0xec, 0x83, 0xec, 0x18, 0x53, 0x56, 0x8b, 0x75, 8, 0x33, 0xdb];
        for known in [true, false] {
            let prologue = of(&code, known);
            assert_eq!(prologue.frame_pointer, FramePointer::Set);
            // ebp at -8, 18h bytes of locals, ebx at -24h, esi at -28h.
            assert_eq!(prologue.saved, [0x24, 8, 0x28, 0]);
        }
        // esi is pushed, but not yet written: it still holds the caller's value.
        assert_eq!(of(&code[..8], true).saved, [0, 8, 0, 0]);
    }

    #[test]
    fn a_function_that_uses_ebp_for_data_has_no_frame() {
        // push esi; push ebp; mov ebp, [esp+0Ch]
        assert_eq!(of(&[0x56, 0x55, 0x8b, 0x6c, 0x24, 0x0c], true).frame_pointer, FramePointer::Absent);
        // push edi; push esi; mov esi, [esp+10h]; mov edi, [esp+0Ch], as memcpy begins
        let memcpy = [0x57, 0x56, 0x8b, 0x74, 0x24, 0x10, 0x8b, 0x7c, 0x24, 0x0c];
        let prologue = of(&memcpy, true);
        assert_eq!((prologue.frame_pointer, prologue.saved), (FramePointer::Absent, [0, 0, 12, 8]));
        // mov ebp, esp without the push: the caller's ebp is lost.
        assert_eq!(of(&[0x51, 0x8b, 0xec], true).frame_pointer, FramePointer::Absent);
    }

    /// MSVC's prologue helpers, as its C runtime (vcruntime) has them, at 1100h; called by a
    /// function at 1010h that has pushed 14h, and whose code continues for a few bytes.
    fn of_helper(before_call: &[u8], helper: &[u8]) -> Prologue {
        let call_end = START as usize + before_call.len() + 5;
        let distance = (0x1100 - call_end as i32).to_le_bytes();
        let function = [before_call, &[0xe8], &distance, &[0x33, 0xc0, 0x40]].concat();
        let mut bytes = vec![0xcc; 16];
        bytes.extend(&function);
        bytes.resize(0x100, 0xcc);
        bytes.extend(helper);
        bytes.extend([0xcc; 16]);
        let image = ImageTables::new(Arch::X86, 0x3000).range(0x1000, bytes).build();
        follow(&image, START + function.len() as u32, None)
    }

    /// `push 14h; push offset table; call __SEH_prolog4`.
    #[test]
    fn seh_prolog4_makes_its_callers_frame() {
        let helper = [
            &[0x68, 0, 0, 0x40, 0][..],                  // push offset __except_handler4
            &[0x64, 0xff, 0x35, 0, 0, 0, 0],             // push fs:[0]
            &[0x8b, 0x44, 0x24, 0x10],                   // mov eax, [esp+10h]
            &[0x89, 0x6c, 0x24, 0x10],                   // mov [esp+10h], ebp
            &[0x8d, 0x6c, 0x24, 0x10],                   // lea ebp, [esp+10h]
            &[0x2b, 0xe0, 0x53, 0x56, 0x57],             // sub esp, eax; push ebx; push esi; push edi
            &[0xa1, 0, 0, 0x41, 0],                      // mov eax, [__security_cookie]
            &[0x31, 0x45, 0xfc, 0x33, 0xc5, 0x50],       // xor [ebp-4], eax; xor eax, ebp; push eax
            &[0x89, 0x65, 0xe8, 0xff, 0x75, 0xf8],       // mov [ebp-18h], esp; push [ebp-8]
            &[0x8b, 0x45, 0xfc],                         // mov eax, [ebp-4]
            &[0xc7, 0x45, 0xfc, 0xfe, 0xff, 0xff, 0xff], // mov [ebp-4], -2
            &[0x89, 0x45, 0xf8, 0x8d, 0x45, 0xf0],       // mov [ebp-8], eax; lea eax, [ebp-10h]
            &[0x64, 0xa3, 0, 0, 0, 0, 0xc3],             // mov fs:[0], eax; ret
        ]
        .concat();
        let prologue = of_helper(&[0x6a, 0x14, 0x68, 0, 0, 0x40, 0], &helper);
        assert_eq!((prologue.frame_pointer, prologue.into), (FramePointer::Set, 0));
        // ebp at -8; 10h bytes of the handler's record and 14h of locals below it, then the others.
        assert_eq!(prologue.saved, [0x30, 8, 0x34, 0x38]);
        // Without the frame, what is called is no helper.
        let plain = [0x53, 0x56, 0x5e, 0x5b, 0xc3];
        let prologue = of_helper(&[0x6a, 0x14, 0x68, 0, 0, 0x40, 0], &plain);
        assert_eq!(prologue.frame_pointer, FramePointer::Absent);
    }

    /// `push 50h; mov eax, offset handler; call __EH_prolog3`.
    #[test]
    fn eh_prolog3_makes_its_callers_frame() {
        let helper = [
            &[0x50, 0x64, 0xff, 0x35, 0, 0, 0, 0][..],   // push eax; push fs:[0]
            &[0x8d, 0x44, 0x24, 0x0c],                   // lea eax, [esp+0Ch]
            &[0x2b, 0x64, 0x24, 0x0c, 0x53, 0x56, 0x57], // sub esp, [esp+0Ch]; push ebx; esi; edi
            &[0x89, 0x28, 0x8b, 0xe8],                   // mov [eax], ebp; mov ebp, eax
            &[0xa1, 0, 0, 0x41, 0, 0x33, 0xc5, 0x50],    // mov eax, [cookie]; xor eax, ebp; push eax
            &[0xff, 0x75, 0xfc],                         // push [ebp-4]
            &[0xc7, 0x45, 0xfc, 0xff, 0xff, 0xff, 0xff], // mov [ebp-4], -1
            &[0x8d, 0x45, 0xf4],                         // lea eax, [ebp-0Ch]
            &[0x64, 0xa3, 0, 0, 0, 0, 0xc3],             // mov fs:[0], eax; ret
        ]
        .concat();
        let prologue = of_helper(&[0x6a, 0x50, 0xb8, 0, 0, 0x40, 0], &helper);
        assert_eq!((prologue.frame_pointer, prologue.into), (FramePointer::Set, 0));
        assert_eq!(prologue.saved, [0x68, 8, 0x6c, 0x70]);
    }

    #[test]
    fn msvcs_aligning_frame_keeps_the_original_by_ebx() {
        let code = [
            &[0x53, 0x8b, 0xdc, 0x83, 0xec, 8, 0x83, 0xe4, 0xf8][..], // push ebx; mov ebx, esp; sub; and
            &[0x83, 0xc4, 4, 0x55, 0x8b, 0x6b, 4], // add esp, 4; push ebp; mov ebp, [ebx+4]
            &[0x89, 0x6c, 0x24, 4, 0x8b, 0xec],    // mov [esp+4], ebp; mov ebp, esp
            &[0x81, 0xec, 0xf8, 0, 0, 0, 0x56, 0x8b, 0xf1], // sub esp, 0F8h; push esi; mov esi, ecx
        ]
        .concat();
        for known in [true, false] {
            let prologue = of(&code, known);
            assert_eq!((prologue.frame_pointer, prologue.into), (FramePointer::Set, 0));
            assert!(prologue.aligned && prologue.by_ebx);
            assert_eq!(prologue.saved, [0, 8, 0x104, 0]);
        }
        // With another register in ebx, the original is not reached by it.
        let changed = [&code[..], &[0x8b, 0xd9]].concat();
        assert!(!of(&changed, true).by_ebx);
    }

    #[test]
    fn ebp_that_points_into_the_locals_makes_a_frame() {
        // push ebp; lea ebp, [esp-5A4h]; sub esp, 5A4h; push esi; mov esi, ecx
        let far = [0x55, 0x8d, 0xac, 0x24, 0x5c, 0xfa, 0xff, 0xff];
        let code = [&far[..], &[0x81, 0xec, 0xa4, 5, 0, 0, 0x56, 0x8b, 0xf1]].concat();
        // push ebp; lea ebp, [esp-78h]; sub esp, 78h; push esi; mov esi, ecx
        let near = [0x55, 0x8d, 0x6c, 0x24, 0x88, 0x83, 0xec, 0x78, 0x56, 0x8b, 0xf1];
        for (code, into, esi) in [(&code[..], 0x5a4, 0x5b0), (&near[..], 0x78, 0x84)] {
            for known in [true, false] {
                let prologue = of(code, known);
                assert_eq!((prologue.frame_pointer, prologue.into), (FramePointer::Set, into));
                assert_eq!(prologue.saved, [0, 8, esi, 0]);
            }
        }
    }

    #[test]
    fn a_record_may_begin_behind_the_first_pushes() {
        // push edi; push esi; mov esi, [esp+10h]; mov edi, [esp+0Ch]: the record begins at 1012h.
        let code = [0x57, 0x56, 0x8b, 0x74, 0x24, 0x10, 0x8b, 0x7c, 0x24, 0x0c, 0x90];
        let mut bytes = vec![0xcc; 16];
        bytes.extend(code);
        let image = ImageTables::new(Arch::X86, 0x3000).range(0x1000, bytes.clone()).build();
        let bounds = 0x1012..0x1020;
        assert_eq!(follow(&image, 0x101a, Some(&bounds)).saved, [0, 0, 12, 8]);
        // Without padding before them, the bytes may belong to another instruction.
        bytes[15] = 0x83;
        let image = ImageTables::new(Arch::X86, 0x3000).range(0x1000, bytes).build();
        assert_eq!(follow(&image, 0x101a, Some(&bounds)).saved, [0, 0, 0, 0]);
    }

    #[test]
    fn gccs_aligning_frame_has_a_copy_of_the_return_address() {
        // lea ecx, [esp+4]; and esp, -16; push [ecx-4]; push ebp; mov ebp, esp; push esi; mov esi,
        // ecx
        let code =
            [0x8d, 0x4c, 0x24, 4, 0x83, 0xe4, 0xf0, 0xff, 0x71, 0xfc, 0x55, 0x89, 0xe5, 0x56, 0x89, 0xce];
        let prologue = of(&code, true);
        assert_eq!((prologue.frame_pointer, prologue.aligned), (FramePointer::Set, true));
        assert_eq!(prologue.saved, [0, 8, 12, 0]);
    }

    #[test]
    fn int3_ends_a_function_whatever_jumps_over_it() {
        // push ebp; mov ebp, esp; a jump to another function, or a call that does not return; int3
        for before in [&[0xeb, 0x20][..], &[0x74, 0x20, 0xc3], &[0xe8, 0, 0, 0, 0]] {
            let code = [&[0x55, 0x8b, 0xec][..], before, &[0xcc, 0x33, 0xc0]].concat();
            assert_eq!(of(&code, false).frame_pointer, FramePointer::Absent, "{before:x?}");
        }
    }

    /// An address among the first instructions, where the start is known or looks like one.
    #[test]
    fn what_first_instructions_pushed_is_below_the_return_address() {
        // push ebp; mov ebp, esp; push esi; nop; mov esi, [3100131Ch]
        let code = [0x55, 0x8b, 0xec, 0x56, 0x90, 0x8b, 0x35, 0x1c, 0x13, 0, 0x31, 0xc3];
        let image = |before: &[u8]| {
            let start = START - before.len() as u32;
            ImageTables::new(Arch::X86, 0x3000).range(start, [before, &code].concat()).build()
        };
        // A function that ends in a jump to another, as precompiled code of .NET has it.
        let tail = [0x55, 0x8b, 0xec, 0x5d, 0xe9, 0, 1, 0, 0, 0xcc];
        let bounds = START..START + 12;
        for (image, bounds) in [
            (image(&tail), None),
            (image(&[]), None),
            (image(&tail), Some(&bounds)),
            (image(&[]), Some(&bounds)),
        ] {
            let pushed = |offset| follow(&image, START + offset, bounds).pushed;
            let all = [0, 1, 3, 4, 5, 11].map(pushed);
            assert_eq!(all, [Some(0), Some(4), Some(4), Some(8), Some(8), Some(8)]);
            // In the middle of an instruction.
            assert_eq!(pushed(2), None);
        }
        // Behind a branch.
        let branch = [0x55, 0x8b, 0xec, 0x74, 0, 0x33, 0xc0];
        assert_eq!(of(&branch, true).pushed, None);
        // The stack was aligned.
        assert_eq!(of(&[0x55, 0x8b, 0xec, 0x83, 0xe4, 0xf8, 0x57], true).pushed, None);
        // ebp is lost.
        assert_eq!(of(&[0x51, 0x8b, 0xec], true).pushed, None);
    }

    #[test]
    fn the_function_before_is_not_taken_for_this_one() {
        // push ebp; mov ebp, esp; pop ebp; ret; padding; xor eax, eax
        for padding in [&[0x90][..], &[0x66, 0x90], &[0x8d, 0x76, 0]] {
            let code = [&[0x55, 0x89, 0xe5, 0x5d, 0xc3][..], padding, &[0x33, 0xc0]].concat();
            assert_eq!(of(&code, false).frame_pointer, FramePointer::Absent, "{padding:x?}");
            // je over the return and the padding: it is one function.
            let over = 2 + padding.len() as u8;
            let code = [&[0x55, 0x89, 0xe5, 0x74, over, 0x5d, 0xc3][..], padding, &[0x33, 0xc0]].concat();
            assert_eq!(of(&code, false).frame_pointer, FramePointer::Set, "{padding:x?}");
        }
        // A return in the middle of a function is no end.
        let code = [0x55, 0x89, 0xe5, 0x85, 0xc0, 0x74, 2, 0x5d, 0xc3, 0x33, 0xc0];
        assert_eq!(of(&code, false).frame_pointer, FramePointer::Set);
    }
}
