//! Any bytes as a runtime's data descriptor: it is read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_profile::runtimes::dotnet::contract::{Contract, Descriptor};
use stk_schema::Arch;

fuzz_target!(|data: &[u8]| {
    let (pointers, json) = data.split_at(data.len().min(64));
    for arch in [Arch::X64, Arch::Arm64, Arch::X86] {
        let Ok(descriptor) = Descriptor::parse(arch, json, pointers) else { continue };
        let contract = Contract::new(descriptor);
        let _ = contract.descriptor().offset("Thread", "Frame");
    }
});
