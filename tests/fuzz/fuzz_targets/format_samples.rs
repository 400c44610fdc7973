//! Any event bytes in a SAMPLES block whose checksums hold, which random flips of a file never
//! reach.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_format::synth::damage::forged;
use stk_format::{SampleStep, FileHeader, Scratch, Trace};
use stk_schema::{Arch, Os};

fuzz_target!(|data: &[u8]| {
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
            assert!(end <= sample.stack_base);
            assert!((sample.stack_start..=end).contains(&sample.unchanged_from));
            let _ = sample.extra.map(|(_, bytes)| bytes.len()).sum::<usize>();
        }
    }
});
