//! `stk annotate` on a sound trace with arbitrary changes and correct checksums: lines with the
//! texts of sources, and machine code.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_fuzz::command::run;

fuzz_target!(|data: &[u8]| run(data, &[
    &["annotate", "TRACE", ".", "-j", "1", "--no-default-symbols", "--instructions", "--top", "0"],
    &[
        "annotate", "TRACE", "busy.cpp", "-j", "1", "--no-default-symbols", "--symbol-cache", "OUT", "-y",
        "EXAMPLES/traces", "--source", "EXAMPLES", "--json",
    ],
]));
