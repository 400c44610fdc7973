//! Any bytes as a bundle: what it lists can be asked for.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use stk::symbols::Bundle;

fuzz_target!(|data: &[u8]| {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(data).unwrap();
    let Ok(bundle) = Bundle::open(file.path()) else { return };
    let mut out = Vec::new();
    if let Ok(Some(len)) = bundle.unpack("a.pdb", "1", 1 << 20, &mut out) {
        assert!(bundle.holds("a.pdb", "1"));
        assert_eq!(len, out.len() as u64);
        assert!(len <= 1 << 20);
    }
});
