//! Any body of any event type: it is decoded or refused, and a decoded event stays the same when it
//! is written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_format::event;
use stk_schema::Ticks;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, body)) = data.split_first() else { return };
    let Ok(event) = event::decode(u64::from(kind), body, Ticks(1000)) else { return };
    let stored = event::encode(&event, Ticks(77));
    // The type, and the length after it, are varints.
    let varint = |at: usize| at + stored[at..].iter().position(|&byte| byte < 0x80).expect("a varint") + 1;
    let body = varint(varint(0));
    assert_eq!(event::decode(event::kind_of(&event), &stored[body..], Ticks(77)).as_ref(), Ok(&event));
});
