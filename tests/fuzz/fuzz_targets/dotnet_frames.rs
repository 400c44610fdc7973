//! A real runtime's layouts over arbitrary memory: chains of explicit Frames, wild and cyclic, end
//! with a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_profile::runtimes::dotnet::contract::{
    Code, Context, Contract, ContractError, Descriptor, Fragments,
};
use stk_schema::Arch;

const DESCRIPTOR: &[u8] = include_bytes!("../../data/dotnet/coreclr-10.0.9-x64.descriptor.json");
const STACK: u64 = 0x1_0000;

/// Addresses with their lowest bit set are managed. The address also decides how far above its
/// caller lies.
struct Any;

impl Code for Any {
    fn is_managed(&self, ip: u64) -> bool {
        ip & 1 == 1
    }

    fn unwind(&self, context: &mut Context) -> Result<(), ContractError> {
        if context.ip() & 4 == 4 {
            return Err(ContractError::Refused("this address"));
        }
        context.set_sp(context.sp().wrapping_add(context.ip() >> 8 & 0xff));
        context.set_ip(context.ip().rotate_right(9));
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((start, stack)) = data.split_at_checked(24) else { return };
    let word = |n: usize| u64::from_le_bytes(start[n * 8..n * 8 + 8].try_into().unwrap());
    let contract = Contract::new(Descriptor::parse(Arch::X64, DESCRIPTOR, &[]).unwrap());
    let mut memory = Fragments::new();
    memory.add(STACK, stack);
    let mut context = Context::new(Arch::X64);
    context.set_ip(word(0));
    context.set_sp(STACK + word(1) % 0x1_0000);
    let head = STACK + word(2) % 0x1_0000;
    for step in contract.stack_walk(&memory, &Any, context.clone(), head) {
        let Ok(step) = step else { break };
        let _ = step.frame().map(|frame| contract.method_of_frame(&memory, frame));
    }
    let _ = contract.checkpoint(&memory, &Any, &context, head, context.sp());
});
