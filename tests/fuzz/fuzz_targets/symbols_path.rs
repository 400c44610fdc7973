//! Any text as a symbol path, and as the name of a symbol file: no path leads out of its store.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_symbols::{SymbolPath, safe_file_name};

fuzz_target!(|text: &str| {
    let path = SymbolPath::parse(text);
    let _ = path.urls().count();
    if let Some(name) = safe_file_name(text) {
        let joined = std::path::Path::new("store").join(name);
        assert_eq!(joined.parent(), Some(std::path::Path::new("store")));
    }
});
