//! `stk events` on a sound trace with arbitrary changes and correct checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_fuzz::command::run;

fuzz_target!(|data: &[u8]| run(data, &[
    &["events"],
    &["events", "--json"],
]));
