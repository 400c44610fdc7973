//! Traces that are followed while they are written.

use crate::command::folder;
use crate::mutated::Input;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use stk_format::{BLOCK_HEADER_LEN, FILE_HEADER_LEN};
use stk_profile::trace::{Fate, TraceTail, Trace};
use stk_tests::synth::{Choices, Parts, mutate};
use stk_tests::{hostile, wrong};

/// A small trace with changes, in pieces, of which one may be taken away again: what is kept is a
/// trace, and no larger than what was written.
///
/// # Panics
///
/// When that does not hold.
pub fn follow(data: &[u8]) {
    static SMALL: OnceLock<Parts> = OnceLock::new();
    let mut input = Input(data);
    let mut parts = SMALL.get_or_init(hostile::small_parts).clone();
    if input.below(2) == 0 {
        mutate(&mut parts, &mut input);
    }
    let mut bytes = parts.to_file();
    let (pieces, more, cut) = (1 + input.below(24), input.below(100), input.below(40));
    input.changes(|input| wrong::stored(&mut bytes, FILE_HEADER_LEN, input));
    // Each look reads what is new and writes what is kept: few pieces, of all lengths.
    let piece = bytes.len() / pieces + more + 1;
    let path = folder().join("fuzz.stk");
    let mut file = File::create(&path).expect("writable");
    let mut follower = TraceTail::open(&path, 1_000_000).expect("a file");
    let mut samples = 0;
    for (n, piece) in bytes.chunks(piece).enumerate() {
        file.write_all(piece).expect("writable");
        if n + 1 == cut {
            file.set_len(bytes.len() as u64 / 2).expect("writable");
        }
        let Ok(new) = follower.look() else { return };
        samples += new;
        let excerpt = follower.excerpt();
        assert!(excerpt.len() <= bytes.len(), "{} of {}", excerpt.len(), bytes.len());
        if excerpt.len() >= FILE_HEADER_LEN {
            assert!(Trace::read(&excerpt, "a.stk").is_ok());
        }
        if matches!(follower.fate(), Fate::Shortened | Fate::Replaced | Fate::Lost) {
            break;
        }
    }
    assert!(samples <= bytes.len() / BLOCK_HEADER_LEN);
}
