//! Any bytes as a portable PDB, as an assembly that carries one, and as a packed one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_symbols::portable_pdb::{IlPlace, PortablePdb, assembly_debug, inflate};

fuzz_target!(|data: &[u8]| {
    let inside = assembly_debug(data).and_then(|debug| debug.embedded).unwrap_or(data);
    for bytes in [Some(data.to_vec()), inflate(inside)].into_iter().flatten() {
        let Ok(pdb) = PortablePdb::parse(bytes) else { continue };
        for method in (0..=pdb.methods().min(50)).chain([u32::MAX >> 8]) {
            for place in [IlPlace::Offset(0), IlPlace::Offset(100), IlPlace::Epilogue] {
                let _ = pdb.line(0x0600_0000 | method, place);
            }
        }
    }
});
