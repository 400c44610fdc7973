//! Any bytes as a bundle, and any bytes as a bundle's unpacked contents: every file that it lists
//! can be read.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use stk_symbols::Bundle;

/// Gives a tar header (512 bytes) the checksum of its contents.
fn checksum(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    // A zstd frame begins with 0x28. Other bytes are an archive to compress; the bits of `first`
    // choose how.
    if first == 0x28 {
        file.write_all(data).unwrap();
    } else {
        let mut archive = rest.to_vec();
        let mut frames = Vec::new();
        if first & 1 != 0 {
            archive.chunks_exact_mut(512).step_by(2).for_each(checksum);
        }
        let piece = if first & 2 != 0 { 1024 } else { archive.len().max(1) };
        for piece in archive.chunks(piece) {
            let mut frame = Vec::with_capacity(zstd_safe::compress_bound(piece.len()));
            zstd_safe::compress(&mut frame, piece, 1).unwrap();
            frames.extend_from_slice(&frame);
        }
        file.write_all(&frames).unwrap();
    }
    let Ok(bundle) = Bundle::open(file.path()) else { return };
    let mut out = Vec::new();
    if let Ok(Some(len)) = bundle.unpack("a.pdb", "1", 1 << 20, &mut out) {
        assert!(bundle.holds("a.pdb", "1"));
        assert_eq!(len, out.len() as u64);
        assert!(len <= 1 << 20);
    }
});
