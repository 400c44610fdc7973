//! The fuzz targets of the format: what each does with an input, and what must hold then. Their
//! stored inputs (`seeds`) are run by `format/tests/format/seeds.rs` too.

use crate::mutated::mutated;
use stk_format::{FileHeader, SampleStep, Scratch, Trace, event};
use stk_schema::{Arch, Os, Ticks};
use stk_tests::synth::damage::forged;

/// Any bytes as a file: opened and read to the end, or refused; never a panic.
///
/// # Panics
///
/// When that does not hold.
pub fn open(data: &[u8]) {
    if let Ok(trace) = Trace::open(data) {
        let mut scratch = Scratch::new();
        let _ = trace.verify(&mut scratch);
        let _ = trace.damage().iter().map(ToString::to_string).collect::<Vec<_>>();
    }
}

/// Any body of any event type: it is decoded or refused, and a decoded event stays the same when it
/// is written again.
///
/// # Panics
///
/// When that does not hold.
pub fn event(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else { return };
    let Ok(event) = event::decode(u64::from(kind), body, Ticks(1000)) else { return };
    let stored = event::encode(&event, Ticks(77));
    // The type, and the length after it, are varints.
    let varint = |at: usize| at + stored[at..].iter().position(|&byte| byte < 0x80).expect("a varint") + 1;
    let body = varint(varint(0));
    assert_eq!(event::decode(event::kind_of(&event), &stored[body..], Ticks(77)).as_ref(), Ok(&event));
}

/// Any event bytes in a SAMPLES block whose checksums hold, which random flips of a file never
/// reach.
///
/// # Panics
///
/// When that does not hold.
pub fn samples(data: &[u8]) {
    let Some((&first, raw)) = data.split_first() else { return };
    let arch = [Arch::X64, Arch::Arm64, Arch::X86][usize::from(first) % 3];
    let header = FileHeader::new(arch, Os::Windows, [3; 16], 1000);
    let file = forged(&header, raw, None, |_| ());
    let trace = Trace::open(&file).expect("the header is sound");
    let mut scratch = Scratch::new();
    let Ok(mut samples) = trace.samples(&trace.blocks()[0], &mut scratch) else { return };
    while let Ok(Some(step)) = samples.next() {
        if let SampleStep::Sample(sample) = step {
            let end = sample.stack_start + sample.stack.len() as u64;
            // The base of a foreign stack is not known.
            assert!(end <= sample.stack_base || (sample.stack_base == 0 && sample.truncated));
            assert!((sample.stack_start..=end).contains(&sample.unchanged_from));
            let _ = sample.extra.map(|(_, bytes)| bytes.len()).sum::<usize>();
        }
    }
}

/// A sound trace with arbitrary changes and correct checksums: every block is read or refused, and
/// the other blocks stay readable.
///
/// # Panics
///
/// When that does not hold.
pub fn mutation(data: &[u8]) {
    let file = mutated(data);
    if let Ok(trace) = Trace::open(&file) {
        let _ = trace.verify(&mut Scratch::new());
        let _ = trace.damage().iter().map(ToString::to_string).collect::<Vec<_>>();
    }
}
