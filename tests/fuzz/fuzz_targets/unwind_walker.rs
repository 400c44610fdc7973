//! Two arbitrary images of any architecture, arbitrary registers and stack.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_fuzz::unwind::{Bytes, SIZE, check};
use stk_unwind::{Arch, ImageTables};

fuzz_target!(|data: &[u8]| {
    let mut bytes = Bytes(data);
    let kind = bytes.byte();
    let images: Vec<ImageTables> = (0..2)
        .map(|_| {
            let arch = match bytes.byte() % 8 {
                0 => Arch::X64,
                1 => Arch::Arm64,
                2 => Arch::X86,
                // Mostly the architecture of the registers.
                _ => [Arch::X64, Arch::Arm64, Arch::X86][usize::from(kind % 3)],
            };
            let mut image = ImageTables::new(arch, SIZE);
            for _ in 0..bytes.byte() & 3 {
                image = image.range(u32::from(bytes.short()), bytes.part());
            }
            for _ in 0..bytes.byte() & 1 {
                image = image.exception_directory(u32::from(bytes.short()), u32::from(bytes.short()));
            }
            image.thread_start(u32::from(bytes.short())).interruption(u32::from(bytes.short())).build()
        })
        .collect();
    check(&images, bytes, kind);
});
