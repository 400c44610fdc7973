//! A size limit: the trace stays below it and is complete.

use super::random;
use crate::record::writer::{Output, WriteError, Writer};
use std::cell::RefCell;
use std::rc::Rc;
use stk_format::{BlockBuffer, BlockKind, FileHeader, Scratch, Trace};
use stk_schema::event::{End, EndReason, Event, Metadata};
use stk_schema::{Arch, Os, Ticks};

#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl Output for Memory {
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(())
    }

    fn appended(&mut self) -> Option<u64> {
        Some(self.0.borrow().len() as u64)
    }
}

/// Fills a block with about `bytes` of incompressible data.
fn fill(block: &mut BlockBuffer, bytes: usize, random: &mut impl FnMut() -> u64) {
    block.begin(BlockKind::Meta, Ticks(1));
    let mut value = [0; 4096];
    for _ in 0..bytes / value.len() {
        for byte in &mut value {
            *byte = random() as u8;
        }
        block.push(&Event::Metadata(Metadata { key: b"noise", value: &value })).unwrap();
    }
}

fn write(limit: u64, block_bytes: usize) -> (Vec<u8>, u32, bool) {
    let header = FileHeader::new(Arch::X64, Os::Windows, [9; 16], 10_000_000);
    let file = Memory::default();
    let mut writer = Writer::new(&header, 1 << 20, file.clone()).unwrap();
    writer.set_limit(limit);
    let mut block = BlockBuffer::new(1 << 20, &header).unwrap();
    let (mut random, mut written, mut warned) = (random(0x9e37_79b9_7f4a_7c15), 0, false);
    for _ in 0..2_000 {
        fill(&mut block, block_bytes, &mut random);
        match writer.block(&block) {
            Ok(()) => written += 1,
            Err(error) => {
                assert_eq!(error, WriteError::Full);
                warned |= writer.is_nearly_full();
            }
        }
    }
    assert_eq!(writer.failure(), None);
    let end =
        End { time: Ticks(9), reason: EndReason::SizeLimit as u64, samples: 0, dropped: 0, detail: b"" };
    writer.end(&mut block, end).unwrap();
    let bytes = file.0.borrow().clone();
    (bytes, written, warned)
}

#[test]
fn a_trace_stays_below_its_limit_and_is_whole() {
    // Blocks of many sizes, so that the limit is reached at various distances, and thousands of
    // blocks, so that the index has a noticeable size.
    for (limit, block_bytes) in [(64 << 10, 4096), (300_000, 8192), (1 << 20, 200_000), (8 << 20, 4096)] {
        let (bytes, written, warned) = write(limit, block_bytes);
        let context = format!("limit {limit}, blocks of {block_bytes}: {} bytes", bytes.len());
        assert!(bytes.len() as u64 <= limit, "{context}");
        assert!(bytes.len() as u64 > limit / 2, "{context}");
        assert!(warned, "{context}");
        let trace = Trace::open(&bytes).unwrap();
        assert!(trace.is_complete() && trace.is_indexed() && trace.damage().is_empty(), "{context}");
        assert!(trace.verify(&mut Scratch::new()).is_empty(), "{context}");
        let blocks = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Meta).count();
        assert_eq!(blocks as u32, written, "{context}");
    }
}

#[test]
fn without_a_limit_nothing_is_left_out() {
    let (bytes, written, _) = write(0, 4096);
    assert_eq!(written, 2_000);
    assert!(bytes.len() > 8 << 20);
}

#[test]
fn the_end_is_requested_before_blocks_are_left_out() {
    let header = FileHeader::new(Arch::X64, Os::Windows, [9; 16], 10_000_000);
    let mut writer = Writer::new(&header, 1 << 20, Memory::default()).unwrap();
    writer.set_limit(1 << 20);
    let mut block = BlockBuffer::new(1 << 20, &header).unwrap();
    let mut random = random(3);
    while !writer.is_nearly_full() {
        fill(&mut block, 8192, &mut random);
        writer.block(&block).expect("there is room as long as it is not nearly full");
    }
    // The buffers that are still in use then fit.
    for _ in 0..8 {
        fill(&mut block, 8192, &mut random);
        writer.block(&block).expect("the margin is for this");
    }
}
