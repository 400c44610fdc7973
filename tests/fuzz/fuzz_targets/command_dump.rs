//! `stk dump` on a sound trace with arbitrary changes and correct checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_fuzz::command::run;

fuzz_target!(|data: &[u8]| run(data, &[
    &["dump", "--no-default-symbols", "--explain"],
    &["dump", "--no-default-symbols", "--style", "clrstack"],
    &["dump", "--no-default-symbols", "--style", "json", "--scan"],
]));
