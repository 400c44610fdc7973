//! Traces that are cut short or have flipped or zeroed bytes: what is lost, and that the reader
//! reports it.

use crate::common::{ops, play};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use stk_format::{
    BLOCK_HEADER_LEN, BlockKind, Damage, FILE_HEADER_LEN, OpenError, SampleStep, Scratch, TAIL_LEN, Trace,
};
use stk_schema::event::RunState;
use stk_schema::{Arch, Ticks};
use stk_tests::synth::{TraceBuilder, damage};

/// Payloads by sequence number, of all blocks that can be read to their end.
fn readable(trace: &Trace) -> BTreeMap<u64, Vec<u8>> {
    let mut scratch = Scratch::new();
    let sound =
        |block: &&stk_format::BlockRef, scratch: &mut Scratch| trace.verify_block(block, scratch).is_ok();
    let blocks: Vec<_> = trace.blocks().iter().filter(|block| sound(block, &mut scratch)).collect();
    blocks.iter().map(|b| (b.header.seq, trace.payload(b, &mut scratch).unwrap().to_vec())).collect()
}

/// Sequence numbers that the reader says are lost or unreadable.
fn reported(trace: &Trace) -> BTreeSet<u64> {
    let mut seqs = BTreeSet::new();
    for damage in trace.damage() {
        match damage {
            Damage::Lost { first, count, .. } => seqs.extend(*first..first + count),
            Damage::Payload { seq, .. } => drop(seqs.insert(*seq)),
            _ => {}
        }
    }
    let mut scratch = Scratch::new();
    for block in trace.blocks() {
        if trace.verify_block(block, &mut scratch).is_err() {
            seqs.insert(block.header.seq);
        }
    }
    seqs
}

/// Byte ranges of the blocks, by sequence number.
fn extents(trace: &Trace) -> Vec<(u64, std::ops::Range<usize>)> {
    let extent = |b: &stk_format::BlockRef| {
        let at = b.offset as usize;
        (b.header.seq, at..at + BLOCK_HEADER_LEN + b.header.stored_len as usize)
    };
    trace.blocks().iter().map(extent).collect()
}

/// A trace of many small blocks with threads that idle.
fn many_blocks() -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    let busy = builder.thread(0, 1, "busy", 0x20_0000);
    let lazy = builder.thread(0, 2, "lazy", 0x30_0000);
    builder.sample(lazy, 5, &[1, 0x2f_0000], &[3; 64]);
    let mut words = vec![1u64; 200];
    for i in 0..400u64 {
        words[(i * 31 % 200) as usize] = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        builder.sample(busy, 10 + i, &[i, 0x1f_0000], &words);
        builder.same(lazy, 10 + i, RunState::Waiting);
        if i % 40 == 39 {
            builder.cut();
        }
        if i % 100 == 99 {
            builder.module(10 + i, 0x1_0000 * i, 0x1000, "C:\\x.dll", vec![]);
        }
        if i == 250 {
            builder.state();
        }
    }
    builder.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_prefix_reads_back_exactly_its_complete_blocks(ops in ops(60), step in 1..40usize) {
        let file = play(&ops, 4096).file;
        let whole = Trace::open(&file).unwrap();
        let (all, extents) = (readable(&whole), extents(&whole));
        for len in (0..file.len()).step_by(step) {
            let trace = match Trace::open(&file[..len]) {
                Ok(trace) => trace,
                Err(error) => {
                    prop_assert!(len < FILE_HEADER_LEN, "{}", error);
                    continue;
                }
            };
            let complete = extents.iter().filter(|(_, range)| range.end <= len).map(|(seq, _)| *seq);
            let expected: BTreeMap<_, _> = complete.map(|seq| (seq, all[&seq].clone())).collect();
            prop_assert_eq!(readable(&trace), expected);
            let end = extents.iter().find(|(seq, _)| {
                whole.blocks().iter().any(|b| b.header.seq == *seq && b.header.kind == BlockKind::End)
            });
            let finished = end.unwrap().1.end <= len;
            prop_assert_eq!(trace.is_complete(), finished);
            // A trace that a killed recorder leaves is not damaged. A finished recording that lacks
            // bytes is.
            if !finished {
                prop_assert_eq!(trace.damage(), []);
                let boundary = len == FILE_HEADER_LEN || extents.iter().any(|(_, range)| range.end == len);
                prop_assert_eq!(trace.is_cut(), !boundary);
            }
        }
    }

    #[test]
    fn a_flipped_byte_costs_at_most_one_block_and_is_reported(at in any::<prop::sample::Index>(), flip in 1..=255u8) {
        let mut file = many_blocks();
        let at = at.index(file.len());
        let intact = Trace::open(&file).unwrap();
        let (all, extents) = (readable(&intact), extents(&intact));
        file[at] ^= flip;
        let trace = Trace::open(&file).unwrap();
        let left = readable(&trace);
        let lost: Vec<u64> = all.keys().filter(|seq| left.get(seq) != all.get(seq)).copied().collect();
        let hit: Vec<u64> = extents.iter().filter(|(_, range)| range.contains(&at)).map(|(seq, _)| *seq).collect();
        prop_assert_eq!(&lost, &hit);
        if at >= file.len() - TAIL_LEN {
            prop_assert!(!trace.is_indexed());
        } else if hit.is_empty() {
            let copy_used = trace.damage().iter().any(|damage| matches!(damage, Damage::FileHeader { .. }));
            prop_assert!(copy_used);
        } else {
            // An INDEX block is the last: nothing after it shows the gap, but its bytes are
            // reported.
            let bytes = trace.damage().iter().any(|damage| matches!(damage, Damage::Bytes { .. }));
            prop_assert!(reported(&trace).contains(&lost[0]) || bytes);
        }
    }

    #[test]
    fn a_zeroed_page_costs_the_blocks_it_touches_and_is_reported(at in any::<prop::sample::Index>()) {
        let mut file = many_blocks();
        let at = at.index(file.len()) / 4096 * 4096;
        let page = at..(at + 4096).min(file.len());
        let intact = Trace::open(&file).unwrap();
        let (all, extents) = (readable(&intact), extents(&intact));
        let touched: BTreeSet<u64> =
            extents.iter().filter(|(_, r)| r.start < page.end && page.start < r.end).map(|(seq, _)| *seq).collect();
        file[page.clone()].fill(0);
        let trace = Trace::open(&file).unwrap();
        let left = readable(&trace);
        let lost: BTreeSet<u64> = all.keys().filter(|seq| !left.contains_key(seq)).copied().collect();
        prop_assert!(lost.is_subset(&touched), "{:?} {:?}", lost, touched);
        prop_assert!(left.iter().all(|(seq, payload)| all[seq] == *payload));
        let said = reported(&trace);
        let bytes = trace.damage().iter().any(|damage| matches!(damage, Damage::Bytes { .. }));
        prop_assert!(lost.iter().all(|seq| said.contains(seq)) || bytes || trace.is_cut());
        prop_assert!(trace.damage().len() + usize::from(trace.is_cut()) + said.len() > 0);
    }
}

#[test]
fn an_idle_span_whose_block_is_lost_finds_no_block() {
    let mut file = many_blocks();
    let intact = Trace::open(&file).unwrap();
    let first = intact.blocks().iter().find(|block| block.header.kind == BlockKind::Samples).unwrap();
    let (at, ordinal) = (first.offset as usize + 20, first.header.ordinal);
    assert_eq!(intact.samples_block(ordinal).map(|block| block.header.seq), Some(first.header.seq));
    file[at] ^= 1;
    let trace = Trace::open(&file).unwrap();
    assert_eq!(trace.samples_block(ordinal), None);
    let mut scratch = Scratch::new();
    let mut citing = 0;
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().unwrap() {
            if let SampleStep::Idle(idle) = decoded {
                citing += usize::from(idle.block == ordinal);
            }
        }
    }
    // The idle thread's only sample before the STATE block was in that block.
    assert!(citing > 0);
}

#[test]
fn data_of_a_lost_meta_block_is_unknown_until_the_next_state_block() {
    let mut file = many_blocks();
    let intact = Trace::open(&file).unwrap();
    assert!(intact.blocks().iter().all(|block| block.metadata_known));
    let kinds: Vec<BlockKind> = intact.blocks().iter().map(|block| block.header.kind).collect();
    let meta = intact
        .blocks()
        .iter()
        .rfind(|b| b.header.kind == BlockKind::Meta && b.header.first < Ticks(200))
        .unwrap();
    let state =
        intact.blocks().iter().find(|b| b.header.kind == BlockKind::State && b.header.seq > 0).unwrap();
    let (lost, renewed, at) = (meta.header.seq, state.header.seq, meta.offset as usize);
    for target in [at + 8, at + BLOCK_HEADER_LEN + 9] {
        file[target] ^= 0x40;
        let trace = Trace::open(&file).unwrap();
        for block in trace.blocks() {
            let seq = block.header.seq;
            assert_eq!(block.metadata_known, seq < lost || seq >= renewed, "block {seq} of {kinds:?}");
        }
        assert!(reported(&trace).contains(&lost));
        file[target] ^= 0x40;
    }
}

#[test]
fn the_index_gives_the_kind_of_a_lost_block() {
    let mut file = many_blocks();
    let (at, seq) = {
        let trace = Trace::open(&file).unwrap();
        let block = trace.blocks().iter().rfind(|block| block.header.kind == BlockKind::Samples).unwrap();
        (block.offset as usize, block.header.seq)
    };
    file[at] ^= 0xff;
    let trace = Trace::open(&file).unwrap();
    assert!(trace.damage().contains(&Damage::Lost { first: seq, count: 1, kinds: vec![BlockKind::Samples] }));
}

#[test]
fn a_trace_with_unwritten_space_at_its_end_is_cut_not_damaged() {
    let mut builder = TraceBuilder::new(Arch::X64);
    let thread = builder.thread(0, 1, "", 0x1000);
    builder.sample(thread, 1, &[1, 0xff8], &[2]);
    builder.cut();
    let mut file = builder.abandon();
    let blocks = Trace::open(&file).unwrap().blocks().len();
    file.resize(file.len() + 5000, 0);
    let trace = Trace::open(&file).unwrap();
    assert_eq!((trace.blocks().len(), trace.damage(), trace.is_cut()), (blocks, &[][..], true));
    assert!(!trace.is_complete());
}

#[test]
fn each_kind_of_synthetic_damage_has_its_effect() {
    let whole = many_blocks();
    let seqs = || Trace::open(&whole).unwrap().blocks().iter().map(|b| b.header.seq).collect::<BTreeSet<_>>();
    let mut file = whole.clone();
    damage::lose(&mut file, 5);
    let trace = Trace::open(&file).unwrap();
    assert!(
        trace.blocks().iter().all(|block| block.header.seq != 5) && reported(&trace) == BTreeSet::from([5])
    );
    let mut file = whole.clone();
    damage::corrupt(&mut file, 5);
    let trace = Trace::open(&file).unwrap();
    assert!(trace.blocks().len() == seqs().len() && reported(&trace) == BTreeSet::from([5]));
    let mut file = whole.clone();
    damage::cut_within(&mut file, 5);
    let trace = Trace::open(&file).unwrap();
    assert_eq!((trace.blocks().len(), trace.is_cut(), trace.damage()), (5, true, &[][..]));
}

#[test]
fn other_files_are_refused() {
    for file in [&b""[..], b"hello", &[0; 4096], &[0xff; 4096]] {
        assert!(matches!(Trace::open(file), Err(OpenError::Header(_))));
    }
}
