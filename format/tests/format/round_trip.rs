//! Samples that a writer takes come back from a reader.

use stk_format::{BlockKind, SampleStep, Scratch, Trace};
use stk_schema::Arch;
use stk_schema::event::RunState;
use stk_tests::synth::TraceBuilder;

/// A full sample as the test wrote it: (thread, time, registers, stack start, words).
type Written = (u64, u64, Vec<u64>, u64, Vec<u64>);

#[test]
fn samples_come_back_with_their_words_and_unchanged_tails() {
    let base = 0x0000_7fff_0000_1000;
    let mut builder = TraceBuilder::new(Arch::X64);
    let thread = builder.thread(0, 7, "worker ü", base);
    let mut written: Vec<Written> = Vec::new();
    let mut words = vec![0xdead_beef_u64; 100];
    for i in 0..50u64 {
        words[(i as usize * 7) % 20] = i;
        let start = base - 8 * words.len() as u64;
        let registers = vec![0x1000 + i, start];
        builder.sample(thread, 100 + i, &registers, &words);
        written.push((thread, 100 + i, registers, start, words.clone()));
    }
    builder.same(thread, 200, RunState::Waiting);
    builder.same(thread, 201, RunState::Waiting);
    builder.cut();
    builder.same(thread, 300, RunState::Waiting);
    let file = builder.finish();

    let trace = Trace::open(&file).unwrap();
    assert_eq!(trace.damage(), []);
    assert!(trace.is_complete() && trace.is_indexed() && !trace.is_cut());
    let mut scratch = Scratch::new();
    let mut read: Vec<Written> = Vec::new();
    let (mut same, mut idle) = (Vec::new(), Vec::new());
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().unwrap() {
            match decoded {
                SampleStep::Sample(s) => {
                    let words: Vec<u64> =
                        s.stack.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
                    let start = s.stack_start;
                    if let Some(last) = read.last() {
                        let changed = words.iter().zip(&last.4).rposition(|(a, b)| a != b);
                        let first_same = changed.map_or(0, |at| at + 1) as u64;
                        assert_eq!(s.unchanged_from, start + 8 * first_same);
                    } else {
                        assert_eq!(s.unchanged_from, base);
                    }
                    read.push((s.thread, s.time.0, s.registers[..2].to_vec(), start, words));
                }
                SampleStep::Same(s) => same.push((s.thread, s.first.0, s.last.0, s.ticks, s.state)),
                SampleStep::Idle(i) => idle.push((i.thread, i.first.0, i.last.0, i.ticks, i.block)),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(read, written);
    assert_eq!(same, [(thread, 200, 201, 2, RunState::Waiting)]);
    assert_eq!(idle, [(thread, 300, 300, 1, 0)]);
}

#[test]
fn stacks_of_32_bit_words_come_back() {
    let base = 0x0030_0000;
    let mut builder = TraceBuilder::new(Arch::X86);
    let thread = builder.thread(0, 7, "", base);
    let mut words = vec![0xdead_beefu64; 33];
    let mut written = Vec::new();
    for i in 0..40u64 {
        words[(i as usize * 5) % 33] = 0xffff_0000 + i;
        // An odd number of words: the stack pointer is a multiple of 4 only.
        let deep = &words[(i as usize % 4)..];
        let start = base - 4 * deep.len() as u64;
        builder.sample(thread, 100 + i, &[0x40_1000 + i, start], deep);
        written.push((
            0x40_1000 + i,
            start,
            deep.iter().flat_map(|w| (*w as u32).to_le_bytes()).collect::<Vec<u8>>(),
        ));
    }
    let file = builder.finish();
    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    let mut read = Vec::new();
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(SampleStep::Sample(s)) = samples.next().unwrap() {
            assert_eq!(s.registers[1], s.stack_start);
            read.push((s.registers[0], s.stack_start, s.stack.to_vec()));
        }
    }
    assert_eq!(read, written);
}
