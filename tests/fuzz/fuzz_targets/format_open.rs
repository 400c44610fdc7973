//! Any bytes as a file: opened and read to the end, or refused; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_format::{Scratch, Trace};

fuzz_target!(|data: &[u8]| {
    if let Ok(trace) = Trace::open(data) {
        let mut scratch = Scratch::new();
        let _ = trace.verify(&mut scratch);
        let _ = trace.damage().iter().map(ToString::to_string).collect::<Vec<_>>();
    }
});
