//! Any bytes as an index file: what is opened can be searched.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use stk::map::MappedFile;
use stk::symbols::index::SymbolIndex;

fuzz_target!(|data: &[u8]| {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(data).unwrap();
    let Ok(index) = SymbolIndex::open(MappedFile::from_file(file).unwrap()) else { return };
    for rva in (0..0x1_0000).step_by(61) {
        if let Ok(Some(hit)) = index.lookup(rva) {
            let _ = hit.frames().count();
            let _ = hit.range().map(|range| range.aliases(&index));
        }
    }
    let _ = index.verify();
});
