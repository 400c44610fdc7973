//! Any bytes as an image with DWARF, COFF symbols and exports.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_symbols::image_index;

fuzz_target!(|data: &[u8]| {
    let Ok(Some(index)) = image_index(data) else { return };
    for rva in (0..0x1_0000).step_by(61) {
        if let Ok(Some(hit)) = index.lookup(rva) {
            let _ = hit.frames().count();
        }
    }
});
