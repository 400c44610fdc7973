//! `stk convert` on a sound trace with arbitrary changes and correct checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_fuzz::command::run;

fuzz_target!(|data: &[u8]| run(data, &[
    &["convert", "-j", "1", "--no-default-symbols", "--force", "-o", "OUT.speedscope.json"],
    &["convert", "-j", "1", "--no-default-symbols", "--force", "-o", "OUT.chrome.json"],
]));
