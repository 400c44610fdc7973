//! Real traces with changes that the fuzzer's input selects.

use std::sync::OnceLock;
use stk_format::BlockKind;
use stk_tests::synth::{Choices, Parts, mutate};

/// The most changes of one trace.
const CHANGES: usize = 8;

/// The fuzzer's input as choices; zeros when it has run out.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    /// Makes changes until the input has run out, at most [`CHANGES`].
    pub fn changes(&mut self, mut change: impl FnMut(&mut Self)) {
        for _ in 0..CHANGES {
            if self.0.is_empty() {
                break;
            }
            change(self);
        }
    }
}

impl Choices for Input<'_> {
    fn below(&mut self, bound: usize) -> usize {
        let len = self.0.len().min(if bound <= 256 { 1 } else { 3 });
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes.iter().fold(0, |value, &byte| value << 8 | usize::from(byte)) % bound
    }
}

/// Real traces, each with its first two blocks of samples.
fn bases() -> &'static [Parts] {
    static BASES: OnceLock<Vec<Parts>> = OnceLock::new();
    BASES.get_or_init(|| {
        let files: [&[u8]; 2] = [
            include_bytes!("../../../examples/traces/busy.stk"),
            include_bytes!("../../../examples/traces/mixed.stk"),
        ];
        files.into_iter().filter_map(Parts::take_apart).map(shortened).collect()
    })
}

fn shortened(mut parts: Parts) -> Parts {
    let mut samples = 0;
    parts.blocks.retain(|block| {
        samples += usize::from(block.header.kind == BlockKind::Samples);
        block.header.kind != BlockKind::Samples || samples <= 2
    });
    parts.renumber();
    parts
}

/// A real trace with the changes that `data` selects.
pub fn mutated(data: &[u8]) -> Vec<u8> {
    let mut input = Input(data);
    let bases = bases();
    let mut parts = bases[input.below(bases.len())].clone();
    input.changes(|input| {
        mutate(&mut parts, input);
    });
    parts.to_file()
}
