//! Tests of each unwind code. The expected frames follow from the specification's description of
//! the code.

use super::super::X64Registers;
use super::super::forms::pack;
use super::*;
use crate::Arch;
use crate::flow::LOADED;

const RSP: u8 = 4;
const RBX: usize = 0;
const RBP: usize = 1;
const RSI: usize = 2;
const RDI: usize = 3;
const R12: usize = 4;

const FUNCTION: u32 = 0x1000;
const DIRECTORY: u32 = 0x3000;
const INFO: u32 = 0x4000;

fn rsp(offset: i64) -> X64Slot {
    X64Slot { register: RSP, offset }
}

/// An image with functions given as (begin, end, unwind RVA), structures as (RVA, bytes) and code
/// at [`FUNCTION`].
fn image(functions: &[(u32, u32, u32)], infos: &[(u32, &[u8])], code: &[u8]) -> ImageTables {
    let directory: Vec<u8> = functions
        .iter()
        .flat_map(|&(begin, end, unwind)| [begin, end, unwind])
        .flat_map(u32::to_le_bytes)
        .collect();
    let len = directory.len() as u32;
    let mut builder =
        ImageTables::new(Arch::X64, 0x8000).range(DIRECTORY, directory).exception_directory(DIRECTORY, len);
    if !code.is_empty() {
        builder = builder.range(FUNCTION, code);
    }
    for (rva, bytes) in infos {
        builder = builder.range(*rva, *bytes);
    }
    builder.build()
}

fn one(info: &[u8], code: &[u8]) -> ImageTables {
    image(&[(FUNCTION, FUNCTION + 0x100, INFO)], &[(INFO, info)], code)
}

fn at(image: &ImageTables, offset: u32, position: Position) -> Result<X64FullRule, Fault> {
    compile(&CodeAddress { image, rva: FUNCTION + offset, position, code: None })
}

fn caller(image: &ImageTables, offset: u32) -> X64FullRule {
    at(image, offset, Position::Caller).expect("a rule")
}

fn context(image: &ImageTables, offset: u32) -> X64FullRule {
    at(image, offset, Position::Context).expect("a rule")
}

#[test]
fn push_and_small_alloc_are_undone_in_reverse() {
    // push rbx (1 byte), push r12 (2 bytes), sub rsp,28h (4 bytes).
    let image = one(&[0x01, 7, 3, 0, 7, 0x42, 3, 0xc0, 1, 0x30], &[]);
    let full = caller(&image, 0x50);
    assert_eq!(full.return_address, rsp(0x28 + 16));
    assert_eq!(full.saved[R12], Some(rsp(0x28)));
    assert_eq!(full.saved[RBX], Some(rsp(0x30)));
    assert_eq!(full.saved[RBP], None);
}

#[test]
fn a_prologue_is_undone_as_far_as_it_was_done() {
    let image = one(&[0x01, 7, 3, 0, 7, 0x42, 3, 0xc0, 1, 0x30], &[0x53, 0x41, 0x54, 0x48, 0x83, 0xec, 0x28]);
    assert_eq!(context(&image, 0).return_address, rsp(0));
    assert_eq!(context(&image, 1).return_address, rsp(8));
    assert_eq!(context(&image, 1).saved[RBX], Some(rsp(0)));
    let before_alloc = context(&image, 3);
    assert_eq!(before_alloc.return_address, rsp(16));
    assert_eq!(before_alloc.saved[R12], Some(rsp(0)));
    assert_eq!(before_alloc.saved[RBX], Some(rsp(8)));
}

#[test]
fn large_allocs_of_both_forms_and_the_largest_small_one() {
    // ALLOC_LARGE 0: 16 bits, in units of 8.
    assert_eq!(caller(&one(&[1, 7, 2, 0, 7, 0x01, 0x00, 0x02], &[]), 0x50).return_address, rsp(0x1000));
    // ALLOC_LARGE 1: 32 bits, in bytes.
    let far = caller(&one(&[1, 7, 3, 0, 7, 0x11, 0x08, 0x00, 0x10, 0x00], &[]), 0x50);
    assert_eq!(far.return_address, rsp(0x10_0008));
    // ALLOC_SMALL: info * 8 + 8.
    assert_eq!(caller(&one(&[1, 4, 1, 0, 4, 0xf2], &[]), 0x50).return_address, rsp(128));
}

#[test]
fn saved_registers_lie_at_their_offset_from_the_frame_base() {
    // sub rsp,20h; mov [rsp+30h],rsi; mov [rsp+80000h],rdi (far, unscaled).
    let info = [1, 20, 6, 0, 20, 0x75, 0x00, 0x00, 0x08, 0x00, 9, 0x64, 0x06, 0x00, 4, 0x32];
    let full = caller(&one(&info, &[]), 0x50);
    assert_eq!(full.return_address, rsp(0x20));
    assert_eq!(full.saved[RSI], Some(rsp(0x30)));
    assert_eq!(full.saved[RDI], Some(rsp(0x8_0000)));
}

#[test]
fn xmm_saves_take_their_slots_and_move_nothing() {
    // SAVE_XMM128 xmm6 (2 slots), SAVE_XMM128_FAR xmm7 (3 slots), then push rbx.
    let info = [1, 20, 6, 0, 20, 0x68, 0x02, 0x00, 12, 0x79, 0x00, 0x00, 0x01, 0x00, 1, 0x30];
    let full = caller(&one(&info, &[]), 0x50);
    assert_eq!(full.return_address, rsp(8));
    assert_eq!(full.saved[RBX], Some(rsp(0)));
}

#[test]
fn a_frame_register_with_an_offset_gives_the_frame() {
    // push rbp; sub rsp,40h; lea rbp,[rsp+20h] (frame offset 2 * 16); later dynamic allocs move
    // rsp.
    let info = [0x01, 10, 3, 0x25, 10, 0x03, 5, 0x72, 1, 0x50];
    let code = [0x55, 0x48, 0x83, 0xec, 0x40, 0x48, 0x8d, 0x6c, 0x24, 0x20];
    let image = one(&info, &code);
    let full = caller(&image, 0x50);
    let rbp = |offset| X64Slot { register: 5, offset };
    assert_eq!(full.saved[RBP], Some(rbp(0x40 - 0x20)));
    assert_eq!(full.return_address, rbp(0x48 - 0x20));
    // Before the lea, rsp is still the base.
    let early = context(&image, 5);
    assert_eq!(early.return_address, rsp(0x48));
    assert_eq!(early.saved[RBP], Some(rsp(0x40)));
}

#[test]
fn a_chained_fragment_continues_its_function() {
    // The function: push rbx; sub rsp,20h. The fragment at +80h saves rsi at [rsp+30h] more.
    let fragment = [0x21u8, 5, 2, 0, 5, 0x64, 0x06, 0x00]
        .into_iter()
        .chain([FUNCTION, FUNCTION + 0x80, INFO].into_iter().flat_map(u32::to_le_bytes))
        .collect::<Vec<u8>>();
    let functions = [(FUNCTION, FUNCTION + 0x80, INFO), (FUNCTION + 0x80, FUNCTION + 0x100, INFO + 0x40)];
    let image = image(&functions, &[(INFO, &[1, 5, 2, 0, 5, 0x32, 1, 0x30]), (INFO + 0x40, &fragment)], &[]);
    let full = caller(&image, 0x90);
    assert_eq!(full.return_address, rsp(0x28));
    assert_eq!(full.saved[RBX], Some(rsp(0x20)));
    assert_eq!(full.saved[RSI], Some(rsp(0x30)));
}

#[test]
fn a_cycle_of_chained_records_ends() {
    let info = [0x21u8, 0, 0, 0]
        .into_iter()
        .chain([FUNCTION, FUNCTION + 0x100, INFO].into_iter().flat_map(u32::to_le_bytes))
        .collect::<Vec<u8>>();
    assert_eq!(at(&one(&info, &[]), 0x50, Position::Caller), Err(Fault::BadUnwindInfo));
}

#[test]
fn machine_frames_with_and_without_an_error_code() {
    // sub rsp,28h after the processor pushed ss, rsp, rflags, cs, rip (and an error code below
    // them).
    let without = caller(&one(&[1, 4, 2, 0, 4, 0x42, 0, 0x0a], &[]), 0x50);
    assert!(without.machine_frame);
    assert_eq!(without.return_address, rsp(0x28));
    assert_eq!(without.trust, Trust::MachineFrame);
    let with = caller(&one(&[1, 4, 2, 0, 4, 0x42, 0, 0x1a], &[]), 0x50);
    assert_eq!(with.return_address, rsp(0x30));
}

#[test]
fn unknown_versions_and_codes_are_refused() {
    assert_eq!(at(&one(&[3, 0, 0, 0], &[]), 0x50, Position::Caller), Err(Fault::UnsupportedVersion(3)));
    assert_eq!(at(&one(&[1, 4, 1, 0, 4, 0x0b], &[]), 0x50, Position::Caller), Err(Fault::BadUnwindInfo));
    // A code whose operand is cut off.
    assert_eq!(at(&one(&[1, 4, 1, 0, 4, 0x01], &[]), 0x50, Position::Caller), Err(Fault::BadUnwindInfo));
}

#[test]
fn the_directory_has_extents_whatever_the_version() {
    let functions = [(FUNCTION, FUNCTION + 0x100, INFO), (FUNCTION + 0x200, FUNCTION + 0x280, INFO)];
    let image = image(&functions, &[(INFO, &[3, 1, 0, 0])], &[]);
    assert_eq!(image.function_range(FUNCTION + 0x90), Some(FUNCTION..FUNCTION + 0x100));
    assert_eq!(image.function_range(FUNCTION + 0x100), None);
    let same = |start, rva| image.is_one_function(FUNCTION + start, FUNCTION + rva);
    assert!(same(0, 0xff) && same(0x10, 0x20) && same(0x100, 0x1ff));
    assert!(!same(0, 0x100) && !same(0, 0x210) && !same(0x110, 0x210) && !same(0x210, 0x290));
    let unknown = ImageTables::new(Arch::X64, 0x8000).build();
    assert!(unknown.is_one_function(0, 0x1000));
}

/// push rbx; push r12; sub rsp,28h, and `tail` at +40h.
fn with_tail(tail: &[u8]) -> ImageTables {
    let mut code = vec![0xcc; 0x100];
    code[..7].copy_from_slice(&[0x53, 0x41, 0x54, 0x48, 0x83, 0xec, 0x28]);
    code[0x40..0x40 + tail.len()].copy_from_slice(tail);
    let functions = [(FUNCTION, FUNCTION + 0x100, INFO), (FUNCTION + 0x200, FUNCTION + 0x280, INFO)];
    image(&functions, &[(INFO, &[0x01, 7, 3, 0, 7, 0x42, 3, 0xc0, 1, 0x30])], &code)
}

/// The states from the epilogue's first instruction to its last, whose offsets are given.
fn check_epilogue(image: &ImageTables, add: u32, first_pop: u32, second_pop: u32, end: u32) {
    let body = context(image, add);
    assert_eq!((body.return_address, body.saved[R12]), (rsp(0x38), Some(rsp(0x28))), "before the release");
    let popped = context(image, first_pop);
    assert_eq!((popped.return_address, popped.saved[R12]), (rsp(16), Some(rsp(0))));
    let popped = context(image, second_pop);
    assert_eq!((popped.return_address, popped.saved[R12], popped.saved[RBX]), (rsp(8), None, Some(rsp(0))));
    assert_eq!(context(image, end), X64FullRule::empty(Trust::UnwindInfo));
}

#[test]
fn epilogues_end_with_any_return() {
    for ret in [&[0xc3][..], &[0xf3, 0xc3], &[0xf2, 0xc3]] {
        let mut tail = vec![0x48, 0x83, 0xc4, 0x28, 0x41, 0x5c, 0x5b];
        tail.extend_from_slice(ret);
        check_epilogue(&with_tail(&tail), 0x40, 0x44, 0x46, 0x47);
    }
    // A negative displacement is a signed one: sub rsp,-28h releases 28h bytes.
    check_epilogue(&with_tail(&[0x48, 0x83, 0xec, 0xd8, 0x41, 0x5c, 0x5b, 0xc3]), 0x40, 0x44, 0x46, 0x47);
    check_epilogue(
        &with_tail(&[0x48, 0x8d, 0x64, 0x24, 0x28, 0x41, 0x5c, 0x5b, 0xc3]),
        0x40,
        0x45,
        0x47,
        0x48,
    );
}

/// Shows why the 44 states of OpenBLAS (gcc) in docs/measured/unwinding.md are wrong: the unwind
/// data is wrong.
///
/// mingw's exp is inlined there. Its assembler makes room on the stack in the middle of the
/// function's body,
///
/// ```text
/// sub    rsp,8           48 83 ec 08
/// fnstcw [rsp+4]         d9 7c 24 04
/// ...
/// add    rsp,8           48 83 c4 08
/// ```
///
/// which the function's UNWIND_INFO (58h bytes, no frame register) does not describe. Between the
/// two the return address lies at rsp + 60h, and no rule of the ABI gives that: a body must not
/// move rsp without a frame register. The test expects what the unwind data says. The word 8 bytes
/// below the return address is a saved local there, so the walk ends with a reason.
#[test]
fn inline_assembler_that_moves_the_stack_pointer_is_not_followed() {
    let mut code = vec![0x90; 0x60];
    code[..4].copy_from_slice(&[0x48, 0x83, 0xec, 0x58]);
    code[0x20..0x28].copy_from_slice(&[0x48, 0x83, 0xec, 0x08, 0xd9, 0x7c, 0x24, 0x04]);
    code[0x40..0x44].copy_from_slice(&[0x48, 0x83, 0xc4, 0x08]);
    code[0x50..0x55].copy_from_slice(&[0x48, 0x83, 0xc4, 0x58, 0xc3]);
    let image = one(&[1, 4, 1, 0, 4, 0xa2], &code);
    for offset in [0x20, 0x24, 0x28, 0x40, 0x44, 0x50] {
        assert_eq!(context(&image, offset).return_address, rsp(0x58), "at {offset:#x}");
    }
    assert_eq!(context(&image, 0x54).return_address, rsp(0));
}

/// A function as OpenSSL's perl scripts write them: UNWIND_INFO names a handler and has no codes,
/// the stack is aligned, and the stack pointer that the function was called with is in its frame.
fn aligned_assembler() -> ImageTables {
    let code = [
        &[0x48, 0x89, 0xe0][..],         // 00 mov rax,rsp
        &[0x53],                         // 03 push rbx
        &[0x55],                         // 04 push rbp
        &[0x48, 0x83, 0xec, 0x58],       // 05 sub rsp,58h
        &[0x48, 0x83, 0xe4, 0xc0],       // 09 and rsp,-40h
        &[0x48, 0x89, 0x44, 0x24, 0x40], // 0d mov [rsp+40h],rax
        &[0x0f, 0x77],                   // 12 emms
        &[0x48, 0xff, 0xc9],             // 14 dec rcx
        &[0x75, 0xf9],                   // 17 jne 12
        &[0x48, 0x8b, 0x74, 0x24, 0x40], // 19 mov rsi,[rsp+40h]
        &[0x48, 0x8b, 0x6e, 0xf0],       // 1e mov rbp,[rsi-10h]
        &[0x48, 0x8b, 0x5e, 0xf8],       // 22 mov rbx,[rsi-8]
        &[0x48, 0x8d, 0x26],             // 26 lea rsp,[rsi]
        &[0xc3],                         // 29 ret
    ]
    .concat();
    one(&[9, 0, 0, 0, 0, 0x50, 0, 0], &code)
}

#[test]
fn assembler_whose_handler_knows_the_frame_is_followed_to_its_return() {
    const RAX: u8 = 0;
    const RSI_NUMBER: u8 = 6;
    let image = aligned_assembler();
    let kept = |offset| X64Slot { register: LOADED, offset };
    for body in [0x12, 0x14, 0x17, 0x19] {
        let full = context(&image, body);
        assert_eq!((full.trust, full.loaded), (Trust::Code, Some(rsp(0x40))), "at {body:#x}");
        assert_eq!(full.return_address, kept(0));
        assert_eq!((full.saved[RBX], full.saved[RBP]), (Some(kept(-8)), Some(kept(-16))));
        assert_eq!(pack(&full), None);
    }
    // Before anything is pushed, behind the pushes, and where the stack pointer is only in rax or
    // rsi.
    assert_eq!(context(&image, 0).return_address, rsp(0));
    assert_eq!(context(&image, 5).return_address, X64Slot { register: RAX, offset: 0 });
    assert_eq!(context(&image, 0xd).return_address, X64Slot { register: RAX, offset: 0 });
    let in_rsi = context(&image, 0x22);
    assert_eq!(in_rsi.return_address, X64Slot { register: RSI_NUMBER, offset: 0 });
    assert_eq!(in_rsi.saved[RBX], Some(X64Slot { register: RSI_NUMBER, offset: -8 }));
    assert_eq!((context(&image, 0x29).return_address, context(&image, 0x29).loaded), (rsp(0), None));
    // Behind a call in the body too, the rule depends on no register that the called function may
    // change.
    assert_eq!(caller(&image, 0x14).loaded, Some(rsp(0x40)));
}

#[test]
fn a_loop_that_moves_the_stack_pointer_gives_no_result() {
    // sub rsp,40h; [again:] lea rsp,[rsp+8]; dec rcx; jne again; ret, as OpenSSL's SHA-512 for AVX2
    // moves rsp.
    let code = [0x48, 0x83, 0xec, 0x40, 0x48, 0x8d, 0x64, 0x24, 0x08, 0x48, 0xff, 0xc9, 0x75, 0xf5, 0xc3];
    let image = one(&[9, 0, 0, 0, 0, 0x50, 0, 0], &code);
    for offset in [0, 4, 9, 12] {
        assert_eq!(context(&image, offset).trust, Trust::UnwindInfoNoCode, "at {offset:#x}");
    }
    assert_eq!(context(&image, 14), X64FullRule::empty(Trust::Code));
}

#[test]
fn assembler_whose_handler_knows_the_frame_has_low_trust_without_its_code() {
    let image = one(&[9, 0, 0, 0, 0, 0x50, 0, 0], &[]);
    assert_eq!(context(&image, 0x12), X64FullRule::empty(Trust::UnwindInfoNoCode));
    assert_eq!(at(&image, 0x14, Position::Caller), Err(Fault::BadUnwindInfo));
}

struct AssemblerSpace {
    base: u64,
    image: ImageTables,
}

impl crate::Modules for AssemblerSpace {
    fn find(&self, address: u64) -> Option<crate::LoadedModule<'_>> {
        let inside = address.wrapping_sub(self.base) < 0x8000;
        inside.then_some(crate::LoadedModule {
            module: crate::ModuleId(0),
            base: self.base,
            image: &self.image,
            image_key: 1,
        })
    }
}

#[test]
fn a_frame_relative_to_a_stored_word_is_read_from_the_stack() {
    use crate::{Sample, WalkOptions, Walker};
    let (base, stack_start) = (0x1_0000_0000u64, 0x20_0000u64);
    let mut words = vec![0x1111_1111_1111_1111u64; 64];
    // The word at rsp+40h leads to word 40, where the return address lies, behind rbx and rbp.
    words[8] = stack_start + 40 * 8;
    words[38..41].copy_from_slice(&[0xb0b, 0xb0a, base + u64::from(FUNCTION) + 0x14]);
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut registers = X64Registers::default();
    (registers.ip, registers.gpr[4]) = (base + u64::from(FUNCTION) + 0x12, stack_start);
    let registers = crate::Registers::X64(registers);
    let space = AssemblerSpace { base, image: aligned_assembler() };
    let input = Sample {
        registers: &registers,
        stack: &stack,
        stack_start,
        stack_base: None,
        truncated: false,
        code_at_ip: None,
    };
    let mut frames = Vec::new();
    Walker::new(WalkOptions::default()).walk(&space, &input, &mut frames);
    assert_eq!(
        (frames[1].address, frames[1].sp, frames[1].trust),
        (base + 0x1014, stack_start + 41 * 8, Trust::Code)
    );
}

#[test]
fn ret_with_an_operand_pops_arguments() {
    let full = context(&with_tail(&[0xc2, 0x10, 0x00]), 0x40);
    assert_eq!((full.return_address, full.popped), (rsp(0), 0x10));
}

#[test]
fn epilogues_end_with_a_jump_out_of_the_function() {
    let release = [0x48, 0x83, 0xc4, 0x28, 0x41, 0x5c, 0x5b];
    // jmp to the function at +200h; jmp to +1F0h, where no function is; jmp [rip+x]; rex.W jmp rax;
    // jmp rax; jmp [rax+18h].
    let jumps: [&[u8]; 6] = [
        &[0xe9, 0xb4, 0x01, 0x00, 0x00],
        &[0xe9, 0xa4, 0x01, 0x00, 0x00],
        &[0xff, 0x25, 0x00, 0x10, 0x00, 0x00],
        &[0x48, 0xff, 0xe0],
        &[0xff, 0xe0],
        &[0xff, 0x60, 0x18],
    ];
    for jump in jumps {
        check_epilogue(&with_tail(&[&release[..], jump].concat()), 0x40, 0x44, 0x46, 0x47);
    }
}

#[test]
fn a_jump_inside_the_function_is_no_epilogue() {
    // jmp +60h, where int3 is; jmp rax of a switch, after add rax,rcx; and jmp rcx after a move.
    for tail in [&[0xeb, 0x1e][..], &[0xe9, 0x1b, 0x00, 0x00, 0x00]] {
        assert_eq!(context(&with_tail(tail), 0x40).return_address, rsp(0x38));
    }
    let mut code = vec![0x53, 0x41, 0x54, 0x48, 0x83, 0xec, 0x28];
    code.extend_from_slice(&[0x48, 0x01, 0xc8, 0xff, 0xe0]);
    let image = one(&[0x01, 7, 3, 0, 7, 0x42, 3, 0xc0, 1, 0x30], &code);
    assert_eq!(context(&image, 10).return_address, rsp(0x38));
}

#[test]
fn a_call_before_the_frame_is_set_up_has_none() {
    // Behind a call: jmp to the function's first byte; to another place in it, where int3 is.
    let image = with_tail(&[0xe9, 0xbb, 0xff, 0xff, 0xff]);
    let full = caller(&image, 0x40);
    assert_eq!((full.return_address, full.saved), (rsp(0), [None; 8]));
    assert_eq!(caller(&with_tail(&[0xe9, 0x1b, 0x00, 0x00, 0x00]), 0x40).return_address, rsp(0x38));
}

#[test]
fn a_jump_into_a_chained_fragment_stays_in_the_function() {
    let fragment = [0x21u8, 0, 0, 0]
        .into_iter()
        .chain([FUNCTION, FUNCTION + 0x80, INFO].into_iter().flat_map(u32::to_le_bytes))
        .collect::<Vec<u8>>();
    let functions = [(FUNCTION, FUNCTION + 0x80, INFO), (FUNCTION + 0x200, FUNCTION + 0x280, INFO + 0x40)];
    let mut code = vec![0xcc; 0x80];
    code[..5].copy_from_slice(&[0x53, 0x48, 0x83, 0xec, 0x20]);
    // jmp +200h
    code[0x40..0x45].copy_from_slice(&[0xe9, 0xbb, 0x01, 0x00, 0x00]);
    let infos: [(u32, &[u8]); 2] = [(INFO, &[1, 5, 2, 0, 5, 0x32, 1, 0x30]), (INFO + 0x40, &fragment)];
    let image = image(&functions, &infos, &code);
    assert_eq!(context(&image, 0x40).return_address, rsp(0x28));
}

#[test]
fn a_jump_into_a_cold_part_with_the_frame_still_there_is_no_epilogue() {
    // GCC splits cold code into a function of its own, whose codes all count from its first
    // instruction on.
    let functions = [(FUNCTION, FUNCTION + 0x80, INFO), (FUNCTION + 0x200, FUNCTION + 0x280, INFO + 0x40)];
    let mut code = vec![0xcc; 0x80];
    code[..5].copy_from_slice(&[0x53, 0x48, 0x83, 0xec, 0x20]);
    code[0x40..0x45].copy_from_slice(&[0xe9, 0xbb, 0x01, 0x00, 0x00]);
    let infos: [(u32, &[u8]); 2] =
        [(INFO, &[1, 5, 2, 0, 5, 0x32, 1, 0x30]), (INFO + 0x40, &[1, 0, 2, 0, 0, 0x32, 0, 0x30])];
    let image = image(&functions, &infos, &code);
    assert_eq!(context(&image, 0x40).return_address, rsp(0x28));
}

#[test]
fn an_early_return_inside_the_declared_prologue_is_one() {
    // push rbx; test ecx,ecx; jne +3; pop rbx; ret; sub rsp,20h: the declared prologue reaches to
    // the end.
    let code = [0x53, 0x85, 0xc9, 0x75, 0x02, 0x5b, 0xc3, 0x48, 0x83, 0xec, 0x20];
    let image = one(&[1, 11, 2, 0, 11, 0x32, 1, 0x30], &code);
    assert_eq!(context(&image, 5).return_address, rsp(8));
    assert_eq!(context(&image, 6).return_address, rsp(0));
    assert_eq!(context(&image, 7).return_address, rsp(8));
}

#[test]
fn only_the_innermost_function_can_be_a_leaf() {
    let image = one(&[1, 0, 0, 0], &[]);
    let outside = |position| compile(&CodeAddress { image: &image, rva: 0x1800, position, code: None });
    assert_eq!(outside(Position::Context), Ok(X64FullRule::empty(Trust::Leaf)));
    assert_eq!(outside(Position::Caller), Err(Fault::NoFunction));
}

#[test]
fn a_first_byte_without_a_call_before_is_no_return_address() {
    const NEXT: u32 = FUNCTION + 0x10;
    let infos: [(u32, &[u8]); 1] = [(INFO, &[1, 0, 0, 0])];
    // int3 or `call [rip+0]` before the function; up to there a record, or none.
    let padding = [0xcc; 0x20];
    let mut call = padding;
    call[10..16].copy_from_slice(&[0xff, 0x15, 0, 0, 0, 0]);
    let of = |code: &[u8], end: u32, position| {
        let image = image(&[(FUNCTION, end, INFO), (NEXT, NEXT + 8, INFO)], &infos, code);
        compile(&CodeAddress { image: &image, rva: NEXT, position, code: None })
    };
    for end in [FUNCTION + 8, NEXT] {
        assert_eq!(of(&padding, end, Position::Caller), Err(Fault::ReplacedReturnAddress));
        assert!(of(&padding, end, Position::Context).is_ok());
    }
    assert!(of(&call, NEXT, Position::Caller).is_ok());
    assert_eq!(of(&call, FUNCTION + 8, Position::Caller), Err(Fault::NoFunction));
    // Without code, by the records alone.
    assert_eq!(of(&[], FUNCTION + 8, Position::Caller), Err(Fault::ReplacedReturnAddress));
    assert!(of(&[], NEXT, Position::Caller).is_ok());
}

#[test]
fn a_return_address_behind_the_last_instruction_belongs_to_the_caller() {
    // A function that ends with a call to something that never returns.
    let functions = [(FUNCTION, FUNCTION + 0x100, INFO), (FUNCTION + 0x100, FUNCTION + 0x200, INFO + 0x40)];
    let image = image(&functions, &[(INFO, &[1, 4, 1, 0, 4, 0x42]), (INFO + 0x40, &[1, 0, 0, 0])], &[]);
    assert_eq!(caller(&image, 0x100).return_address, rsp(0x28));
}

#[test]
fn a_record_may_share_the_description_of_another() {
    let functions = [(FUNCTION, FUNCTION + 0x100, INFO), (FUNCTION + 0x200, FUNCTION + 0x300, DIRECTORY | 1)];
    let image = image(&functions, &[(INFO, &[1, 4, 1, 0, 4, 0x42])], &[]);
    assert_eq!(caller(&image, 0x250).return_address, rsp(0x28));
}

#[test]
fn version_2_describes_epilogues_without_code_bytes() {
    // push rbx; push r12; sub rsp,28h. The epilogue (pop r12; pop rbx; ret: 4 bytes) ends the
    // function, and another one begins 40h bytes before the end.
    let info = [2, 7, 5, 0, 4, 0x16, 0x40, 0x06, 7, 0x42, 3, 0xc0, 1, 0x30];
    let image = one(&info, &[]);
    for start in [0x100 - 4, 0x100 - 0x40] {
        let full = context(&image, start);
        assert_eq!(
            (full.return_address, full.saved[R12], full.trust),
            (rsp(16), Some(rsp(0)), Trust::UnwindInfo)
        );
        let full = context(&image, start + 2);
        assert_eq!((full.return_address, full.saved[R12], full.saved[RBX]), (rsp(8), None, Some(rsp(0))));
        assert_eq!(context(&image, start + 3), X64FullRule::empty(Trust::UnwindInfo));
    }
    let body = context(&image, 0x50);
    assert_eq!((body.return_address, body.trust), (rsp(0x38), Trust::UnwindInfoNoCode));
}

#[test]
fn version_2_padding_is_no_push() {
    // One epilogue code, padded to two slots by an empty one.
    let image = one(&[2, 4, 3, 0, 1, 0x16, 0, 0, 4, 0x42], &[]);
    assert_eq!(caller(&image, 0x50).return_address, rsp(0x28));
}

#[test]
fn with_one_entry_for_many_functions_the_code_shows_if_the_frame_is_set_up() {
    // push rbp; mov rbp,rsp: the frame of every function of V8, by one entry for all of them.
    let info = [0x01, 4, 2, 0x05, 4, 0x03, 1, 0x50];
    let set_up = |code: &[u8], offset| {
        let mut builder = ImageTables::new(Arch::X64, 0x10_0000).range(FUNCTION, code).range(INFO, &info[..]);
        let record: Vec<u8> = [0, 0x10_0000, INFO].into_iter().flat_map(u32::to_le_bytes).collect();
        builder = builder.range(DIRECTORY, record).exception_directory(DIRECTORY, 12);
        let image = builder.many_functions().build();
        let full = context(&image, offset);
        assert!(pack(&full).is_none(), "code made at run time is not kept");
        (full.return_address, full.saved[RBP])
    };
    // mov ebx,[rcx-10h]; test byte ptr [rbx],1; jne +5; push rbp; mov rbp,rsp; push rsi; nop; mov
    // rsp,rbp; pop rbp; ret.
    let code = [
        0x8b, 0x59, 0xf0, 0xf6, 0x03, 0x01, 0x75, 0x05, 0x55, 0x48, 0x89, 0xe5, 0x56, 0x90, 0x48, 0x89, 0xec,
        0x5d, 0xc3,
    ];
    for offset in [0, 3, 6, 8] {
        assert_eq!(set_up(&code, offset), (rsp(0), None), "+{offset}");
    }
    assert_eq!(set_up(&code, 9), (rsp(8), Some(rsp(0))), "half");
    let frame = |offset| X64Slot { register: 5, offset };
    for offset in [12, 13, 14] {
        assert_eq!(set_up(&code, offset), (frame(8), Some(frame(0))), "+{offset}");
    }
    assert_eq!(set_up(&code, 17), (rsp(8), Some(rsp(0))), "epilogue");
    assert_eq!(set_up(&code, 18), (rsp(0), None), "return");
}
