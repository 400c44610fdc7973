//! Texts for images whose records and code are written here byte by byte.

use super::*;
use crate::facts::facts;
use crate::frame_facts::FrameFacts;
use crate::x86::{Fpo, FrameData, X86Tables};
use crate::{
    ImageTables, ImageTablesBuilder, LoadedModule, ModuleId, Registers, WalkOptions, Walker, arm64, x64, x86,
};

const BASE: u64 = 0x40_0000;
const STACK: u64 = 0x7000;

struct OneModule(ImageTables);

impl Modules for OneModule {
    fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
        let inside = (BASE..BASE + u64::from(self.0.size())).contains(&address);
        inside.then_some(LoadedModule { module: ModuleId(0), base: BASE, image: &self.0, image_key: 0 })
    }
}

/// Walks from `registers` over `words` and explains every frame.
fn texts(image: ImageTables, registers: &Registers, stack: &[u8]) -> Vec<String> {
    let modules = OneModule(image);
    let stack_base = STACK + stack.len() as u64;
    let sample = Sample {
        registers,
        stack,
        stack_start: STACK,
        stack_base: Some(stack_base),
        truncated: false,
        code_at_ip: None,
    };
    let mut frames = Vec::new();
    Walker::new(WalkOptions::default()).walk(&modules, &sample, &mut frames);
    let explain = |i: usize| explain(&modules, &sample, &frames[i], frames.get(i + 1)).to_string();
    (0..frames.len()).map(explain).collect()
}

/// A function at 0x1000 with an UNWIND_INFO at 0x2010, and code if given.
fn x64_image(end: u32, unwind: &[u8], code: Option<&[u8]>) -> ImageTables {
    let record: Vec<u8> = [0x1000, end, 0x2010].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    let image = ImageTables::new(Arch::X64, 0x3000).range(0x2000, record).range(0x2010, unwind.to_vec());
    let image = image.exception_directory(0x2000, 12);
    code.into_iter().fold(image, |image: ImageTablesBuilder, code| image.range(0x1000, code.to_vec())).build()
}

fn x64_at(rva: u64, rbp: u64) -> Registers {
    let mut registers = x64::X64Registers { ip: BASE + rva, gpr: [0; 16] };
    registers.gpr[x64::RSP] = STACK;
    registers.gpr[x64::RBP] = rbp;
    Registers::X64(registers)
}

/// `sub rsp,28h`: version 1, a prologue of 4 bytes, one code.
const ALLOC: [u8; 6] = [0x01, 0x04, 0x01, 0x00, 0x04, 0x42];

#[test]
fn x64_prologue_body_and_epilogue() {
    // sub rsp,28h; call 1009h; nop; add rsp,28h; ret
    let code = [0x48, 0x83, 0xEC, 0x28, 0xE8, 0, 0, 0, 0, 0x90, 0x48, 0x83, 0xC4, 0x28, 0xC3];
    let record = "UNWIND_INFO v1 at 0x2010 of function 0x1000..0x100f, prologue 0x4";
    for (rva, says) in [
        (0x1000, "in the prologue, 0x0 of 0x4 bytes done; return address at [rsp]"),
        (0x1004, "body; return address at [rsp+0x28]"),
        (0x100a, "epilogue at 0x100a, its code followed to the return; return address at [rsp+0x28]"),
        (0x100e, "epilogue at 0x100e, its code followed to the return; return address at [rsp]"),
    ] {
        let texts = texts(x64_image(0x100f, &ALLOC, Some(&code)), &x64_at(rva, 0), &[0; 0x30]);
        assert_eq!(texts[0], format!("{record}; {says}"), "at {rva:#x}");
    }
    let without_code = texts(x64_image(0x100f, &ALLOC, None), &x64_at(0x1004, 0), &[0; 0x30]);
    assert!(without_code[0].contains("the code is not known"), "{}", without_code[0]);
}

#[test]
fn x64_frame_register_and_saved_registers() {
    // push rbp; sub rsp,40h; lea rbp,[rsp+20h]; the last two codes from the end: SET_FPREG at 0Ah,
    // ALLOC_SMALL 40h at 5, PUSH_NONVOL rbp at 1.
    let unwind = [0x01, 0x0A, 0x03, 0x25, 0x0A, 0x03, 0x05, 0x72, 0x01, 0x50, 0, 0];
    // nop all over: a body.
    let texts =
        texts(x64_image(0x1040, &unwind, Some(&[0x90; 0x40])), &x64_at(0x1020, STACK + 0x20), &[0; 0x60]);
    assert_eq!(
        texts[0],
        "UNWIND_INFO v1 at 0x2010 of function 0x1000..0x1040, prologue 0xa, frame register rbp = rsp+0x20; \
         body; return address at [rbp+0x28], rbp at [rbp+0x20]"
    );
}

#[test]
fn x64_leaves_and_callers_without_a_record() {
    let mut stack = [0; 0x20];
    stack[..8].copy_from_slice(&(BASE + 0x1800).to_le_bytes());
    let texts = texts(x64_image(0x1010, &ALLOC, None), &x64_at(0x1500, 0), &stack);
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[0], "no RUNTIME_FUNCTION covers the address; leaf; return address at [rsp]");
    assert!(texts[1].contains("only the innermost function can be a leaf"), "{}", texts[1]);
}

#[test]
fn outside_every_module() {
    let texts = texts(x64_image(0x1010, &ALLOC, None), &x64_at(0x9000, 0), &[0; 0x20]);
    assert_eq!(texts[0], "no known module holds the address; taken to be a leaf: return address at [rsp]");
}

#[test]
fn arm64_packed_and_full() {
    // Packed: 64 bytes of code (16 words), RegI 0, CR 3 (fp and lr saved, no signing), frame of 32
    // bytes.
    let packed: u32 = 1 | 16 << 2 | 3 << 21 | 2 << 23;
    // Full: 16 words long, one code word, no epilogue scope: save_fplr_x of 16 bytes (81h), end
    // (E4h).
    let full: u32 = 16 | 1 << 27;
    let directory: Vec<u8> =
        [0x1000, packed, 0x1800, 0x2100].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    let xdata: Vec<u8> = full.to_le_bytes().into_iter().chain([0x81, 0xE4, 0xE4, 0xE4]).collect();
    let image = || {
        ImageTables::new(Arch::Arm64, 0x3000)
            .range(0x2000, directory.clone())
            .range(0x2100, xdata.clone())
            .exception_directory(0x2000, 16)
            .build()
    };
    let at = |rva: u64| {
        let mut registers =
            arm64::Arm64Registers { pc: BASE + rva, sp: STACK, ..arm64::Arm64Registers::default() };
        registers.x[29] = STACK;
        Registers::Arm64(registers)
    };
    assert_eq!(
        texts(image(), &at(0x1020), &[0; 0x40])[0],
        format!(
            "packed unwind data {packed:#010x} of function 0x1000..0x1040; \
             caller's sp = fp+0x20, return address in lr, fp at [fp], lr at [fp+0x8]"
        )
    );
    assert_eq!(
        texts(image(), &at(0x1820), &[0; 0x40])[0],
        ".xdata at 0x2100 of function 0x1800..0x1840; \
         caller's sp = sp+0x10, return address in lr, fp at [sp], lr at [sp+0x8]"
    );
}

#[test]
fn x86_methods_to_find_the_caller() {
    // push ebp; mov ebp,esp; call 1008h; then a jmp to itself, which leads to no return.
    let code = [0x55, 0x8B, 0xEC, 0xE8, 0, 0, 0, 0, 0xEB, 0xFE];
    let program = "$T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + =";
    let image = |described: bool| {
        let frame_data = described.then(|| FrameData {
            rva: 0x1000,
            len: 0x20,
            locals: 0,
            params: 8,
            prologue: 3,
            saved: 4,
            is_function_start: true,
            has_seh: false,
            has_eh: false,
            program: program.to_owned(),
        });
        ImageTables::new(Arch::X86, 0x3000)
            .range(0x1000, code.to_vec())
            .x86(X86Tables::new(frame_data, []))
            .build()
    };
    let mut registers = x86::X86Registers { ip: BASE as u32 + 0x1008, gpr: [0; 8] };
    registers.gpr[x86::ESP] = STACK as u32;
    registers.gpr[x86::EBP] = STACK as u32;
    let registers = Registers::X86(registers);
    let mut stack = [0; 0x20];
    stack[..4].copy_from_slice(&(STACK as u32 + 0x10).to_le_bytes());
    stack[4..8].copy_from_slice(&(BASE as u32 + 0x1008).to_le_bytes());
    assert_eq!(
        texts(image(true), &registers, &stack)[0],
        format!(
            "FrameData 0x1000..0x1020, locals 0x0, saved 0x4, parameters 0x8, prologue 0x3, program `{program}`; by the record"
        )
    );
    assert_eq!(
        texts(image(false), &registers, &stack)[0],
        "no FrameData or FPO record covers the address; \
         frame pointer chain, set up by the function's first instructions; return address at [ebp+0x4], ebp at [ebp]"
    );
}

#[test]
fn x64_below_a_function_that_the_system_enters() {
    let record: Vec<u8> = [0x1000u32, 0x1100, 0x2010].iter().flat_map(|word| word.to_le_bytes()).collect();
    let image = ImageTables::new(Arch::X64, 0x3000)
        .range(0x1000, vec![0x90; 0x100])
        .range(0x2000, record)
        .range(0x2010, ALLOC.to_vec())
        .exception_directory(0x2000, 12)
        .interruption(0x1000);
    // The dispatcher's frame, then the stub that it interrupted and the stub's return address.
    let stack: Vec<u8> =
        [0, 0, 0, 0, 0, BASE + 0x1800, 0].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let texts = texts(image.build(), &x64_at(0x1050, 0), &stack);
    assert!(
        texts[0].contains("entered by the system, the interrupted instruction's address at [rsp+0x28]"),
        "{texts:?}"
    );
    assert!(
        texts[1].contains("no RUNTIME_FUNCTION covers the address") && texts[1].contains("leaf"),
        "{texts:?}"
    );
}

/// What the record of the function at RVA 0x1004 of an image says.
fn facts_of(image: ImageTables) -> Option<FrameFacts> {
    let modules = OneModule(image);
    let frame = Frame {
        address: BASE + 0x1004,
        module: Some(ModuleId(0)),
        rva: 0x1004,
        sp: STACK,
        trust: Trust::Context,
    };
    facts(&modules, &frame)
}

#[test]
fn x64_facts_are_those_of_the_unwind_codes() {
    let found = facts_of(x64_image(0x100f, &ALLOC, None)).expect("a record");
    let expected = FrameFacts {
        frame_type: "unwind-info",
        function_start: 0x1000,
        locals: 0x28,
        parameters: None,
        saved_registers: 0,
        prologue: 4,
        has_seh: None,
        has_eh: None,
        exception_handler: Some(false),
        termination_handler: Some(false),
        allocates_base_pointer: false,
    };
    assert_eq!(found, expected);
    // An exception and a termination handler (flags 3): push rbp, push rsi, sub rsp,40h, lea
    // rbp,[rsp+20h] and rdi stored at [rsp+60h] (one of the caller's home words).
    let unwind =
        [0x19, 0x10, 0x06, 0x25, 0x10, 0x74, 0x0C, 0x00, 0x0A, 0x03, 0x05, 0x72, 0x02, 0x60, 0x01, 0x50];
    let found = facts_of(x64_image(0x1040, &unwind, None)).expect("a record");
    assert_eq!((found.locals, found.saved_registers, found.prologue), (0x40, 24, 0x10));
    assert_eq!((found.exception_handler, found.termination_handler), (Some(true), Some(true)));
    assert!(found.allocates_base_pointer);
    assert_eq!(facts_of(x64_image(0x1004, &ALLOC, None)), None, "no function there");
}

#[test]
fn x86_facts_are_those_of_the_record() {
    let frame_data = FrameData {
        rva: 0x1000,
        len: 0x20,
        locals: 0x14,
        params: 8,
        prologue: 3,
        saved: 12,
        is_function_start: true,
        has_seh: true,
        has_eh: false,
        program: "$T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + =".to_owned(),
    };
    let image = |tables| ImageTables::new(Arch::X86, 0x3000).x86(tables).build();
    let expected = FrameFacts {
        frame_type: "frame-data",
        function_start: 0x1000,
        locals: 0x14,
        parameters: Some(8),
        saved_registers: 12,
        prologue: 3,
        has_seh: Some(true),
        has_eh: Some(false),
        exception_handler: None,
        termination_handler: None,
        allocates_base_pointer: true,
    };
    assert_eq!(facts_of(image(X86Tables::new([frame_data], []))), Some(expected));
    let fpo = Fpo {
        rva: 0x1000,
        len: 0x20,
        locals: 4,
        params: 0,
        saved: 8,
        uses_ebp: false,
        prologue: 5,
        has_seh: false,
        frame_type: 1,
    };
    let expected = FrameFacts {
        frame_type: "trap",
        locals: 4,
        parameters: Some(0),
        saved_registers: 8,
        prologue: 5,
        has_seh: Some(false),
        has_eh: None,
        allocates_base_pointer: false,
        ..expected
    };
    assert_eq!(facts_of(image(X86Tables::new([], [fpo]))), Some(expected));
    assert_eq!(facts_of(image(X86Tables::default())), None);
}
