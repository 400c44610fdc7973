//! Any bytes as a PDB, and a real PDB with any bytes changed: identity, frame records, index,
//! lookups all over it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_symbols::pdb::PdbFile;
use stk_fuzz::patch::patched;

/// PDBs of clang-19 and lld-19.
const REAL: [&[u8]; 2] = [
    include_bytes!("../../../examples/traces/busy.pdb"),
    include_bytes!("../../../examples/traces/plugin_a.pdb"),
];

fuzz_target!(|data: &[u8]| {
    // An MSF file begins with `M`. Other bytes are a list of patches.
    let changed;
    let data = match data.split_first() {
        Some((&first, patches)) if first != b'M' => {
            changed = patched(REAL[usize::from(first) % REAL.len()], patches);
            &changed
        }
        _ => data,
    };
    let _ = PdbFile::open(data).and_then(|pdb| pdb.frame_records());
    let Ok(index) = PdbFile::open(data).and_then(|pdb| pdb.index()) else { return };
    for rva in (0..0x1_0000).step_by(61) {
        if let Ok(Some(hit)) = index.lookup(rva) {
            let _ = hit.frames().count();
            let _ = hit.range().map(|range| range.aliases(&index));
        }
    }
});
