//! Samples of foreign stacks: those outside of the thread's own, whose base is not known.

use stk_format::{
    BlockBuffer, CpuUnit, FileHeader, RawSample, SampleEncoder, SampleOutcome, SampleStep, Scratch, Sealer,
    ThreadImage, Trace, sealed_bound,
};
use stk_schema::event::RunState;
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Os, Ticks};

/// One sample: its stack's base (0: foreign), first address and words.
type Stack = (u64, u64, Vec<u64>);

/// What a reader finds after a writer took these samples of one thread. The writer then writes the
/// last sample again from its image.
fn written_and_read(stacks: &[Stack]) -> Vec<(u64, u64, Vec<u64>, bool)> {
    let header =
        FileHeader { cpu_unit: CpuUnit::Cycles, ..FileHeader::new(Arch::X64, Os::Windows, [7; 16], 1000) };
    let mut block = BlockBuffer::new(1 << 20, &header).unwrap();
    let mut encoder = SampleEncoder::new();
    let mut image = ThreadImage::new(1 << 17, 8).unwrap();
    encoder.begin(&mut block, Ticks(0));
    for (time, (stack_base, stack_start, words)) in (1..).zip(stacks) {
        let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let raw = RawSample {
            thread: 1,
            time: Ticks(time),
            set: RegisterSet::X64,
            registers: &[time; 17],
            stack_base: *stack_base,
            stack_start: *stack_start,
            stack: &stack,
            code: None,
            cpu: None,
            state: RunState::Unknown,
            tag: None,
            tables_pending: false,
            context_reply: None,
            extra: &[],
        };
        assert_eq!(encoder.sample(&mut block, &mut image, &raw), Ok(SampleOutcome::Written));
    }
    // Write the last sample again, from the writer's image alone.
    encoder.renew_keyframes();
    let time = stacks.len() as u64 + 1;
    assert_eq!(
        encoder.same(&mut block, &mut image, Ticks(time), RunState::Waiting),
        Ok(SampleOutcome::Written)
    );

    let mut file = header.encode().to_vec();
    let mut out = vec![0; sealed_bound(block.len())];
    file.extend_from_slice(Sealer::new(&header).unwrap().seal(&block, &mut out).unwrap());
    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    let mut samples = trace.samples(&trace.blocks()[0], &mut scratch).unwrap();
    let mut seen = Vec::new();
    while let Some(decoded) = samples.next().unwrap() {
        let SampleStep::Sample(sample) = decoded else { panic!("{decoded:?}") };
        let words = sample.stack.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let (slot, fact) = (sample.slot, (sample.stack_base, sample.stack_start, words, sample.truncated));
        let last = samples.last_sample(slot).unwrap();
        assert_eq!((last.stack_base, last.stack_start, last.truncated), (fact.0, fact.1, fact.3));
        seen.push(fact);
    }
    seen
}

#[test]
fn foreign_stacks_are_read_back_as_captured_and_without_a_base() {
    let own = |words: Vec<u64>| (0x20_0000, 0x20_0000 - 8 * words.len() as u64, words);
    let goroutine = 0xc000_1000;
    let far = 0xc400_0000;
    let stacks: Vec<Stack> = vec![
        own(vec![1, 2, 3]),
        (0, goroutine, vec![4, 5, 6, 7]),
        // Deeper, then back, on the same stack: only one word changed.
        (0, goroutine - 16, vec![8, 9, 4, 5, 6, 7]),
        (0, goroutine, vec![4, 50, 6, 7]),
        // Another such stack close below, one far above, one far below.
        (0, goroutine - 0x2000, (0..600).collect()),
        (0, far, vec![10, 11]),
        (0, goroutine, vec![4, 5, 6, 7]),
        // Nothing could be read.
        (0, far + 8, vec![]),
        own(vec![1, 2, 3]),
        (0, far, vec![10, 11]),
    ];
    let seen = written_and_read(&stacks);
    let expected: Vec<_> = stacks
        .iter()
        .chain(stacks.last())
        .map(|(base, start, words)| (*base, *start, words.clone(), *base == 0))
        .collect();
    assert_eq!(seen, expected);
}
