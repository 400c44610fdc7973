//! [`stk_fuzz::follow::follow`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stk_fuzz::follow::follow(data));
