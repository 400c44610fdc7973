//! Any text as a name: the demanglers (for Swift, C++ code) terminate.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_symbols::{Demangle, NameTable, demangle, undecorate_x86};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    // The text unchanged, and as a name of each scheme.
    for prefix in ["", "?", "_Z", "_R", "$s", "_T0"] {
        let raw = format!("{prefix}{text}");
        for style in [Demangle::Full, Demangle::Short, Demangle::None] {
            let shown = demangle(&raw, style);
            assert!(style != Demangle::None || shown == raw);
        }
        for table in [NameTable::Symbols, NameTable::Others] {
            let _ = undecorate_x86(&raw, table);
        }
    }
});
