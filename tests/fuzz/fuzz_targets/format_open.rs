//! [`stk_fuzz::format::open`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stk_fuzz::format::open(data));
