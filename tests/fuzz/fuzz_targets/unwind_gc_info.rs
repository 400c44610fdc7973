//! x86: a ready-to-run image with arbitrary RUNTIME_FUNCTIONs, GCInfo and code, and a method that
//! was compiled at run time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_fuzz::unwind::{Bytes, SIZE, check};
use stk_unwind::{Arch, ImageTables};

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let (functions, infos, code) = (bytes.part(), bytes.part(), bytes.part());
    // The CLR header, whose word at 40h leads to the header of ready-to-run code: version 2, one
    // section, the table of functions (102).
    let clr: Vec<u8> = [&[0u8; 0x40][..], &0x1100u32.to_le_bytes()].concat();
    let header = [u32::from_le_bytes(*b"RTR\0"), 2, 0, 1, 102, 0x2000, functions.len() as u32];
    let header: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    let image = ImageTables::new(Arch::X86, SIZE)
        .range(0x1000, clr)
        .range(0x1100, header)
        .range(0x2000, functions)
        .range(0x3000, infos)
        .range(0x5000, code)
        .clr_header(0x1000)
        .thread_start(0x5010)
        .build();
    // Its size, in groups of seven bits.
    let info =
        [&[0x80 | (SIZE >> 14) as u8, 0x80 | (SIZE >> 7 & 0x7f) as u8, (SIZE & 0x7f) as u8][..], infos]
            .concat();
    let method =
        ImageTables::new(Arch::X86, SIZE).range(0, code).exception_directory(0, 0).method(&info).build();
    check(&[image, method], bytes, 2);
});
