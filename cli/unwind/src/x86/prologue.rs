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

use super::registers::NONVOLATILE;
use crate::ImageTables;

/// Instructions that are followed at most.
const MOST_INSTRUCTIONS: usize = 64;
/// Bytes before an address in which the start of a function of unknown extent is looked for.
const MOST_BYTES: u32 = 4096;

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
    /// By nonvolatile register: bytes from the slot where it was saved up to the address above the
    /// return address; 0 = it was not saved, or still holds the caller's value.
    pub(crate) saved: [u16; NONVOLATILE.len()],
    /// The stack was aligned: the return address above is a copy.
    pub(crate) aligned: bool,
}

/// Follows the first instructions of the function that holds `rva`, which is `bounds` if these are
/// known. Where they are not, the nearest `push ebp; mov ebp, esp` before `rva` is the start, if
/// the code from there leads to `rva` without the end of a function.
pub(crate) fn follow(image: &ImageTables, rva: u32, bounds: Option<&Range<u32>>) -> Prologue {
    let start = match bounds {
        Some(bounds) => Some(start_with_pushes(image, bounds.start)),
        None => match image.bytes_before(rva) {
            Some(before) => framed_start(before, rva),
            None => return Prologue::default(),
        },
    };
    let absent = Prologue { frame_pointer: FramePointer::Absent, ..Prologue::default() };
    match start {
        Some(start) => Follower::default().run(image, start, rva).unwrap_or_default(),
        None => absent,
    }
}

/// The first instructions, as they are followed.
#[derive(Default)]
struct Follower {
    /// Bytes from esp up to the address above the return address, or above its copy.
    depth: i64,
    /// By nonvolatile register: where it was pushed, as [`Prologue::saved`]. A pushed register that
    /// is not written afterwards may have been an argument.
    pushed: [u16; NONVOLATILE.len()],
    /// Nonvolatile registers that no longer hold the caller's value.
    changed: [bool; NONVOLATILE.len()],
    prologue: Prologue,
}

impl Follower {
    /// `None` if the code is not known.
    fn run(mut self, image: &ImageTables, start: u32, rva: u32) -> Option<Prologue> {
        let code = image.bytes(start)?;
        self.depth = 4;
        self.prologue.frame_pointer = FramePointer::Absent;
        let mut decoder = Decoder::with_ip(32, code, start.into(), DecoderOptions::NONE);
        for _ in 0..MOST_INSTRUCTIONS {
            if decoder.ip() >= u64::from(rva) || !decoder.can_decode() {
                break;
            }
            if !self.step(&decoder.decode()) {
                break;
            }
        }
        Some(self.prologue)
    }

    /// Follows an instruction; false if it is none of a prologue.
    fn step(&mut self, instruction: &Instruction) -> bool {
        if instruction.is_invalid() || instruction.flow_control() != FlowControl::Next {
            return false;
        }
        match instruction.mnemonic() {
            Mnemonic::Push => self.push(instruction),
            Mnemonic::Mov if instruction.op0_register() == Register::EBP => self.set_ebp(instruction),
            Mnemonic::Sub if instruction.op0_register() == Register::ESP => match immediate(instruction) {
                Some(bytes) => self.depth += bytes,
                None => return false,
            },
            // GCC aligns the stack so, and then pushes a copy of the return address.
            Mnemonic::And if instruction.op0_register() == Register::ESP => {
                if self.pushed != [0; NONVOLATILE.len()] {
                    return false;
                }
                (self.depth, self.prologue.aligned) = (0, true);
            }
            _ if writes(instruction, Register::ESP) || writes(instruction, Register::EBP) => return false,
            _ => self.note_writes(instruction),
        }
        true
    }

    fn push(&mut self, instruction: &Instruction) {
        self.depth += 4;
        let slot = u16::try_from(self.depth).unwrap_or(0);
        for (n, register) in NONVOLATILE.into_iter().enumerate() {
            let first = self.pushed[n] == 0 && !self.changed[n];
            if instruction.op0_register() == named(register) && first {
                self.pushed[n] = slot;
            }
        }
    }

    fn note_writes(&mut self, instruction: &Instruction) {
        for (n, register) in NONVOLATILE.into_iter().enumerate() {
            if !self.changed[n] && writes(instruction, named(register)) {
                self.changed[n] = true;
                self.prologue.saved[n] = self.pushed[n];
            }
        }
    }

    /// `mov ebp, …`: it makes a frame if esp points to the saved ebp, right below the return
    /// address.
    fn set_ebp(&mut self, instruction: &Instruction) {
        const EBP: usize = 1;
        let set = instruction.op1_register() == Register::ESP
            && self.depth == 8
            && self.pushed[EBP] == 8
            && !self.changed[EBP];
        self.prologue.frame_pointer = if set { FramePointer::Set } else { FramePointer::Absent };
        self.note_writes(instruction);
    }
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

/// The start of the function that holds `rva`, by its `push ebp; mov ebp, esp`. `before`: the code
/// before `rva`.
fn framed_start(before: &[u8], rva: u32) -> Option<u32> {
    const PUSH_MOV: [&[u8]; 2] = [&[0x55, 0x8b, 0xec], &[0x55, 0x89, 0xe5]];
    let most = before.len().min(MOST_BYTES as usize);
    let nearest = (3..=most).find(|&back| {
        let code = &before[before.len() - back..];
        PUSH_MOV.iter().any(|start| code.starts_with(start))
    })?;
    leads_to(&before[before.len() - nearest..]).then(|| rva - nearest as u32)
}

/// Whether the instructions end with `code`, and no function ends among them. Compilers pad behind
/// the end of a function; also within one, but then a branch before leads to what follows.
fn leads_to(code: &[u8]) -> bool {
    let mut decoder = Decoder::new(32, code, DecoderOptions::NONE);
    let (mut ended, mut farthest) = (false, 0);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let past_end = ended && is_padding(&instruction) && farthest < instruction.next_ip();
        if instruction.is_invalid() || past_end {
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
        Mnemonic::Int3 | Mnemonic::Nop => true,
        Mnemonic::Xchg => instruction.op0_register() == instruction.op1_register(),
        _ => instruction.code() == Code::Lea_r32_m && is_move(instruction),
    }
}

/// Whether a `lea` does nothing, as in the padding between functions: `lea esi, [esi]`.
fn is_move(instruction: &Instruction) -> bool {
    instruction.op0_register() == instruction.memory_base() && instruction.memory_displacement32() == 0
}

fn writes(instruction: &Instruction, register: Register) -> bool {
    InstructionInfoFactory::new().info(instruction).used_registers().iter().any(|used| {
        let write = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
        write && used.register().full_register32() == register
    })
}

fn immediate(instruction: &Instruction) -> Option<i64> {
    let constant = matches!(instruction.op1_kind(), OpKind::Immediate8to32 | OpKind::Immediate32);
    constant.then(|| i64::from(instruction.immediate32() as i32))
}

/// The register with this number.
fn named(register: u8) -> Register {
    [
        Register::EAX,
        Register::ECX,
        Register::EDX,
        Register::EBX,
        Register::ESP,
        Register::EBP,
        Register::ESI,
        Register::EDI,
    ][usize::from(register & 7)]
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
    fn the_function_before_is_not_taken_for_the_one_at_hand() {
        // push ebp; mov ebp, esp; pop ebp; ret; padding; xor eax, eax
        for padding in [&[0xcc, 0xcc][..], &[0x90], &[0x66, 0x90], &[0x8d, 0x76, 0]] {
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
