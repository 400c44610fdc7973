//! Stored blocks whose frames claim more bytes than they hold.

use crate::hostile::small_parts;
use crate::synth::Random;
use crate::synth::damage::forged;
use stk_format::CODEC_ZSTD;

/// zstd frames (RFC 8878) that claim more bytes than they hold, or need more memory than a reader
/// should allow.
pub(super) fn frames() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("a window of 2^27", frame(0x80, 17 << 3, 16 << 20, &run(128 << 10))),
        ("the largest window", frame(0x80, 0xff, 16 << 20, &run(128 << 10))),
        ("content over the limit", frame(0x80, 10 << 3, u32::MAX, &run(128 << 10))),
        ("less content than claimed", frame(0x80, 10 << 3, 16 << 20, &run(1))),
        ("a run beyond the content", frame(0x80, 10 << 3, 16, &run(128 << 10))),
    ]
}

/// A frame that claims a window and a content, with a run of one byte in it. The three are drawn.
pub(super) fn drawn(random: &mut Random) -> Vec<u8> {
    let content = random.number() as u32 >> random.below(32);
    frame(0x80, random.below(256) as u8, content, &run(random.below(1 << 21) as u32))
}

fn frame(descriptor: u8, window: u8, content: u32, blocks: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, descriptor, window];
    bytes.extend(content.to_le_bytes());
    bytes.extend(blocks);
    bytes
}

/// A run of one byte, the last block: size << 3 | RLE << 1 | last.
fn run(size: u32) -> Vec<u8> {
    [&(size << 3 | 3).to_le_bytes()[..3], &[0]].concat()
}

/// A sound trace with such a block after its end.
pub(super) fn forged_frame(stored: &[u8]) -> Vec<u8> {
    let parts = small_parts();
    let claimed = stored.get(6..10).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    let seq = parts.blocks.last().map_or(0, |block| block.header.seq + 1);
    let bomb = forged(&parts.header, &[], Some(stored), |block| {
        (block.raw_len, block.seq, block.codec) = (claimed, seq, CODEC_ZSTD);
    });
    let mut file = parts.to_file();
    file.extend_from_slice(&bomb[stk_format::FILE_HEADER_LEN..]);
    file
}
