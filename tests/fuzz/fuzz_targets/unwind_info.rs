//! x64: arbitrary RUNTIME_FUNCTIONs, UNWIND_INFO and code.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_fuzz::unwind::{Bytes, SIZE, check};
use stk_unwind::{Arch, ImageTables};

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let (directory, infos, code) = (bytes.part(), bytes.part(), bytes.part());
    let image = ImageTables::new(Arch::X64, SIZE)
        .range(0x1000, directory)
        .range(0x3000, infos)
        .range(0x5000, code)
        .exception_directory(0x1000, directory.len() as u32)
        .thread_start(0x5010)
        .build();
    check(&[image], bytes, 0);
});
