//! Any bytes as the table of functions of a Go program, and as a compressed section of DWARF.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_symbols::{go_functions, image_index};

const HEADERS: usize = 0x400;

/// An image whose `.rdata` and `.zdebug_info` hold `data`.
fn image(data: &[u8]) -> Vec<u8> {
    let mut image = vec![0u8; HEADERS];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3c, &0x40u32.to_le_bytes());
    put(0x40, b"PE\0\0");
    put(0x44, &0x8664u16.to_le_bytes());
    put(0x46, &4u16.to_le_bytes());
    put(0x54, &240u16.to_le_bytes());
    put(0x58, &0x20bu16.to_le_bytes());
    put(0x58 + 24, &0x1_4000_0000u64.to_le_bytes());
    put(0x58 + 56, &0x100_0000u32.to_le_bytes());
    put(0x58 + 108, &16u32.to_le_bytes());
    let names: [&[u8; 8]; 4] = [b".text\0\0\0", b".rdata\0\0", b".symtab\0", b".zdebug_"];
    for (n, name) in names.iter().enumerate() {
        let at = 0x58 + 240 + 40 * n;
        put(at, *name);
        let flags = if n == 0 { 0x2000_0000u32 } else { 0 };
        let fields = [(8, data.len() as u32), (12, 0x1000 + 0x10_0000 * n as u32), (16, data.len() as u32)];
        for (field, value) in fields.into_iter().chain([(20, HEADERS as u32), (36, flags)]) {
            put(at + field, &value.to_le_bytes());
        }
    }
    image.extend(data);
    image
}

fuzz_target!(|data: &[u8]| {
    // At the beginning a header of the table's form; else few inputs are one.
    let mut table = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
    table.extend(data);
    for bytes in [data, &table] {
        let image = image(bytes);
        let _ = go_functions(&image, &|_| true);
        let Ok(Some(index)) = image_index(&image) else { continue };
        for rva in (0..0x1_0000).step_by(61) {
            if let Ok(Some(hit)) = index.lookup(rva) {
                let _ = hit.frames().count();
            }
        }
    }
});
