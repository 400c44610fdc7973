//! [`stk_fuzz::dataset::table`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stk_fuzz::dataset::table(data));
