//! [`stk_fuzz::records::record`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stk_fuzz::records::record(data));
