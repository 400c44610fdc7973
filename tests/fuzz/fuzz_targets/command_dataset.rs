//! [`stk_fuzz::dataset::command`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stk_fuzz::dataset::command(data));
