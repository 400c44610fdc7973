//! Any bytes as a PDB: identity, frame records, index, lookups all over it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk::symbols::pdb::PdbFile;

fuzz_target!(|data: &[u8]| {
    let _ = PdbFile::open(data).and_then(|pdb| pdb.frame_records());
    let Ok(index) = PdbFile::open(data).and_then(|pdb| pdb.index()) else { return };
    for rva in (0..0x1_0000).step_by(61) {
        if let Ok(Some(hit)) = index.lookup(rva) {
            let _ = hit.frames().count();
            let _ = hit.range().map(|range| range.aliases(&index));
        }
    }
});
