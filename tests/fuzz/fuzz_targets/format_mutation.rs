//! A sound trace with arbitrary changes and correct checksums: every block is read or refused, and
//! the other blocks stay readable.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_format::{Scratch, Trace};
use stk_fuzz::command::mutated;

fuzz_target!(|data: &[u8]| {
    let file = mutated(data);
    if let Ok(trace) = Trace::open(&file) {
        let _ = trace.verify(&mut Scratch::new());
        let _ = trace.damage().iter().map(ToString::to_string).collect::<Vec<_>>();
    }
});
