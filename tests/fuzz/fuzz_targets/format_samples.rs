//! Any event bytes in a SAMPLES block whose checksums hold, which random flips of a file never reach.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stk_format::{BlockHeader, BlockKind, CODEC_ZSTD, Decoded, FileHeader, Scratch, Trace};
use stk_schema::{Arch, Os};

fuzz_target!(|data: &[u8]| {
    let Some((&first, raw)) = data.split_first() else { return };
    let arch = [Arch::X64, Arch::Arm64, Arch::X86][usize::from(first) % 3];
    let header = FileHeader::new(arch, Os::Windows, [3; 16], 1000);
    let mut stored = vec![0; zstd_safe::compress_bound(raw.len())];
    let len = zstd_safe::compress(&mut stored[..], raw, 1).expect("room");
    let stored = &stored[..len];
    let block = BlockHeader {
        salt: header.salt(),
        seq: 0,
        stored_len: stored.len() as u32,
        raw_len: raw.len() as u32,
        first: 0,
        last: 0,
        kind: BlockKind::Samples,
        codec: CODEC_ZSTD,
        flags: 0,
        events: 1,
        dropped: 0,
        last_meta: u64::MAX,
        ordinal: 0,
        samples: 1,
        stack_bytes: 0,
        payload_hash: xxhash_rust::xxh3::xxh3_64(stored),
    };
    let mut file = header.encode().to_vec();
    file.extend_from_slice(&block.encode());
    file.extend_from_slice(stored);
    let trace = Trace::open(&file).expect("the header is sound");
    let mut scratch = Scratch::new();
    let Ok(mut samples) = trace.samples(&trace.blocks()[0], &mut scratch) else { return };
    while let Ok(Some(step)) = samples.next() {
        if let Decoded::Sample(sample) = step {
            let end = sample.stack_start + sample.stack.len() as u64;
            assert!(end <= sample.stack_base);
            assert!((sample.stack_start..=end).contains(&sample.unchanged_from));
            let _ = sample.extra.map(|(_, bytes)| bytes.len()).sum::<usize>();
        }
    }
});
