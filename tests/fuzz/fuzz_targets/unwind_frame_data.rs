//! x86: arbitrary FrameData programs, FPO records and code.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_fuzz::unwind::{Bytes, SIZE, check};
use stk_unwind::x86::{Fpo, FrameData, X86Tables};
use stk_unwind::{Arch, ImageTables};

/// A program whose tokens are mostly valid.
fn program(bytes: &mut Bytes<'_>) -> String {
    const TOKENS: [&str; 24] = [
        "$T0",
        "$T1",
        "$eip",
        "$esp",
        "$ebp",
        "$20",
        "$23",
        "$24",
        "$ebx",
        ".raSearch",
        ".raSearchStart",
        ".cbLocals",
        ".cbSavedRegs",
        ".cbParams",
        "+",
        "-",
        "*",
        "/",
        "%",
        "@",
        "^",
        "=",
        "4",
        "8",
    ];
    let mut text = String::new();
    for _ in 0..bytes.byte() & 63 {
        let token = bytes.byte();
        match TOKENS.get(usize::from(token)) {
            Some(token) => text.push_str(token),
            None if token < 128 => text.push_str(&bytes.short().to_string()),
            None => text.push(char::from(bytes.byte())),
        }
        text.push(' ');
    }
    text
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let mut programs = Vec::new();
    let mut records = Vec::new();
    for _ in 0..bytes.byte() & 7 {
        let (rva, len) = (u32::from(bytes.short()), u32::from(bytes.short()));
        let (locals, params, saved) =
            (u32::from(bytes.short()), u32::from(bytes.byte()), u32::from(bytes.byte()));
        if bytes.byte() & 1 == 0 {
            let is_function_start = bytes.byte() & 1 == 0;
            let program = program(&mut bytes);
            let prologue = 0;
            programs.push(FrameData {
                rva,
                len,
                locals,
                params,
                prologue,
                saved,
                is_function_start,
                has_seh: false,
                has_eh: false,
                program,
            });
        } else {
            let uses_ebp = bytes.byte() & 1 == 0;
            records.push(Fpo { rva, len, locals, params, saved, uses_ebp, prologue: 0, has_seh: false, frame_type: 0 });
        }
    }
    let code = bytes.part();
    let image = ImageTables::new(Arch::X86, SIZE)
        .range(0x5000, code)
        .exception_directory(0, 0)
        .thread_start(0x5010)
        .x86(X86Tables::new(programs, records))
        .build();
    check(&[image], bytes, 2);
});
