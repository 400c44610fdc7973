//! Any bytes as a packed symbol file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_symbols::cab;

fuzz_target!(|data: &[u8]| {
    let mut out = Vec::new();
    if let Ok(len) = cab::expand(data, 1 << 20, &mut out) {
        assert_eq!(len, out.len() as u64);
        assert!(len <= 1 << 20);
    }
});
