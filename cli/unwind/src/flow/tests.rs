//! Short functions whose expected states were worked out by hand. The code lies at 1000h.

use super::*;
use crate::Arch;

const CODE: u32 = 0x1000;
const NONVOLATILE_32: [u8; 4] = [3, 5, 6, 7];
const EBX: usize = 3;
const ESP: u8 = 4;
const EBP: usize = 5;
const ESI: usize = 6;
const EDI: usize = 7;

fn follow_at(code: &[u8], offset: u32, after_call: bool) -> Option<Outcome> {
    let image = ImageTables::new(Arch::X86, 0x8000).range(CODE, code).build();
    follow(&Start {
        image: &image,
        mode: Mode { bits: 32, nonvolatile: &NONVOLATILE_32 },
        rva: CODE + offset,
        bounds: Some(CODE..CODE + code.len() as u32),
        after_call,
        code: None,
    })
}

fn at(code: &[u8], offset: u32) -> Outcome {
    follow_at(code, offset, false).expect("a way to the return")
}

#[test]
fn a_frame_by_ebp_from_every_instruction() {
    // push ebp; mov ebp,esp; sub esp,10h; push esi; mov esi,[ebp+8]; pop esi; mov esp,ebp; pop ebp;
    // ret 4
    let code =
        [0x55, 0x8b, 0xec, 0x83, 0xec, 0x10, 0x56, 0x8b, 0x75, 0x08, 0x5e, 0x8b, 0xe5, 0x5d, 0xc2, 4, 0];
    let first = at(&code, 0);
    assert_eq!((first.return_address, first.sp, first.popped), ((ESP, 0), (ESP, 4), Some(4)));
    assert_eq!(first.registers[EBP], FlowValue::Start(5, 0));
    let pushed = at(&code, 1);
    assert_eq!((pushed.return_address, pushed.registers[EBP]), ((ESP, 4), FlowValue::Word(ESP, 0)));
    for body in [3, 6] {
        let body = at(&code, body);
        assert_eq!((body.return_address, body.sp), ((5, 4), (5, 8)));
        assert_eq!(
            (body.registers[EBP], body.registers[ESI]),
            (FlowValue::Word(5, 0), FlowValue::Start(6, 0))
        );
    }
    for saved in [7, 10] {
        assert_eq!(at(&code, saved).registers[ESI], FlowValue::Word(ESP, 0));
    }
    assert_eq!(at(&code, 13).return_address, (ESP, 4));
    assert_eq!(at(&code, 14).return_address, (ESP, 0));
}

#[test]
fn a_frame_by_esp_while_arguments_are_pushed() {
    // push ebx; push edi; push 1; push eax; call +0Ah; add esp,8; pop edi; pop ebx; ret — and at
    // +18: ret
    let code =
        [0x53, 0x57, 0x6a, 1, 0x50, 0xe8, 8, 0, 0, 0, 0x83, 0xc4, 8, 0x5f, 0x5b, 0xc3, 0xcc, 0xcc, 0xc3];
    let one = at(&code, 4);
    assert_eq!((one.return_address, one.registers[EDI]), ((ESP, 12), FlowValue::Word(ESP, 4)));
    let two = at(&code, 5);
    assert_eq!((two.return_address, two.registers[EBX]), ((ESP, 16), FlowValue::Word(ESP, 12)));
    let after = follow_at(&code, 10, true).expect("a way");
    assert_eq!(after.return_address, (ESP, 16));
}

#[test]
fn a_callee_that_pops_its_arguments() {
    // push eax; push eax; call +9; pop esi; ret; int3 … — and at +12: ret 8
    let code = [0x50, 0x50, 0xe8, 5, 0, 0, 0, 0x5e, 0xc3, 0xcc, 0xcc, 0xcc, 0xc2, 8, 0];
    let first = at(&code, 0);
    assert_eq!((first.return_address, first.registers[ESI]), ((ESP, 4), FlowValue::Word(ESP, 0)));
    // After an indirect call the arguments popped are unknown, unless ebp gives the frame.
    let indirect = [0x50, 0xff, 0xd0, 0x5e, 0xc3];
    assert_eq!(follow_at(&indirect, 0, false), None);
    let by_ebp = [0x50, 0xff, 0xd0, 0x8b, 0xe5, 0x5d, 0xc3];
    assert_eq!(at(&by_ebp, 0).return_address, (5, 4));
    // They are also known if the caller removes the arguments.
    assert_eq!(at(&[0x50, 0xff, 0xd0, 0x83, 0xc4, 4, 0xc3], 0).return_address, (ESP, 0));
}

#[test]
fn an_epilogue_helper_is_followed_into() {
    // call +4; ret; int3; int3; the helper: pop ecx; pop esi; mov esp,ebp; pop ebp; push ecx; ret
    let code = [0xe8, 3, 0, 0, 0, 0xc3, 0xcc, 0xcc, 0x59, 0x5e, 0x8b, 0xe5, 0x5d, 0x51, 0xc3];
    let found = at(&code, 0);
    assert_eq!((found.return_address, found.sp), ((5, 4), (5, 8)));
    assert_eq!(
        (found.registers[EBP], found.registers[ESI]),
        (FlowValue::Word(5, 0), FlowValue::Word(ESP, 0))
    );
}

#[test]
fn a_path_without_a_return_is_dropped_for_the_other_path() {
    // test eax,eax; jne +6; int3; … pop ebx; ret
    let code = [0x85, 0xc0, 0x75, 1, 0xcc, 0x5b, 0xc3];
    assert_eq!(at(&code, 0).return_address, (ESP, 4));
    // A loop, left by its condition.
    let code = [0x48, 0x75, 0xfd, 0x5b, 0xc3];
    assert_eq!(at(&code, 0).return_address, (ESP, 4));
    assert_eq!(follow_at(&[0xeb, 0xfe], 0, false), None);
    assert_eq!(follow_at(&[0x90, 0x90], 0, false), None, "the code ends");
}

#[test]
fn leave_and_a_frame_aligned_by_and() {
    // and esp,-16; sub esp,20h; leave; ret
    let code = [0x83, 0xe4, 0xf0, 0x83, 0xec, 0x20, 0xc9, 0xc3];
    let found = at(&code, 0);
    assert_eq!((found.return_address, found.registers[EBP]), ((5, 4), FlowValue::Word(5, 0)));
}

#[test]
fn a_path_that_does_not_restore_a_nonvolatile_register_gives_no_result() {
    // xor ebx,ebx; ret
    assert_eq!(follow_at(&[0x33, 0xdb, 0xc3], 0, false), None);
}

#[test]
fn tail_calls_leave_the_frame() {
    // pop esi; jmp out of the function; jmp [import]
    let out = at(&[0x5e, 0xe9, 0, 0x10, 0, 0], 0);
    assert_eq!((out.return_address, out.popped), ((ESP, 4), None));
    let import = at(&[0x5e, 0xff, 0x25, 0, 0x20, 0x40, 0], 0);
    assert_eq!(import.return_address, (ESP, 4));
    // jmp [eax*4+table] is a switch.
    assert_eq!(follow_at(&[0xff, 0x24, 0x85, 0, 0x20, 0x40, 0], 0, false), None);
}

#[test]
fn volatile_registers_are_unknown_after_a_call() {
    // mov esp,ecx; ret
    let code = [0x8b, 0xe1, 0xc3];
    assert_eq!(at(&code, 0).return_address, (1, 0));
    assert_eq!(follow_at(&code, 0, true), None);
}

#[test]
fn x64_assembler_that_pushes_without_unwind_data() {
    // mingw's ___chkstk_ms: push rcx; push rax; cmp rax,1000h; lea rcx,[rsp+18h]; pop rax; pop rcx;
    // ret
    let code = [0x51, 0x50, 0x48, 0x3d, 0, 0x10, 0, 0, 0x48, 0x8d, 0x4c, 0x24, 0x18, 0x58, 0x59, 0xc3];
    const NONVOLATILE: [u8; 8] = [3, 5, 6, 7, 12, 13, 14, 15];
    let image = ImageTables::new(Arch::X64, 0x8000).range(CODE, &code[..]).build();
    let follow_at = |offset| {
        follow(&Start {
            image: &image,
            mode: Mode { bits: 64, nonvolatile: &NONVOLATILE },
            rva: CODE + offset,
            bounds: None,
            after_call: false,
            code: None,
        })
    };
    for (offset, up) in [(0, 0), (1, 8), (2, 16), (8, 16), (13, 16), (14, 8), (15, 0)] {
        assert_eq!(follow_at(offset).map(|found| found.return_address), Some((ESP, up)), "at +{offset}");
    }
    // cpuid overwrites rbx, which is kept in r9 meanwhile: mov r9,rbx; cpuid; xchg rbx,r9; ret
    let code = [0x49, 0x89, 0xd9, 0x0f, 0xa2, 0x4c, 0x87, 0xcb, 0xc3];
    let image = ImageTables::new(Arch::X64, 0x8000).range(CODE, &code[..]).build();
    let found = follow(&Start {
        image: &image,
        mode: Mode { bits: 64, nonvolatile: &NONVOLATILE },
        rva: CODE + 5,
        bounds: None,
        after_call: false,
        code: None,
    });
    assert_eq!(found.map(|found| found.registers[EBX]), Some(FlowValue::Start(9, 0)));
}
