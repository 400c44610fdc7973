//! Any bytes as a NetTrace stream: methods, their IL maps, lookups among them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_profile::runtimes::dotnet::stream_methods;

fuzz_target!(|data: &[u8]| {
    let (methods, outcome) = stream_methods(data);
    assert!(methods.map.methods().len() as u64 <= outcome.events);
    for method in methods.map.methods().iter().take(50) {
        let last = method.base.saturating_add(u64::from(method.size) - 1);
        assert!(methods.map.any_within(method.base, method.size.into()) || method.base == u64::MAX);
        for address in [method.base, last] {
            if let Ok(Some(id)) = methods.map.find(address, 0, u64::MAX) {
                let found = methods.map.get(id);
                assert!(found.base <= address && address - found.base < found.size.into());
            }
        }
        if let Some(lines) = &method.lines {
            let _ = lines.il_offset(method.size - 1);
        }
    }
});
