//! Checks that a grown trace consists only of the real trace's frames.

use super::growth::{Grow, grow};
use super::pieces::Frame;
use std::collections::HashSet;
use stk_format::{BlockKind, Sample, SampleStep, Scratch, Trace};
use stk_schema::Arch;
use stk_tests::synth::TraceBuilder;

/// The tests' machine: a function occupies 0x100 bytes of code from 0x1000 on, and its frame has
/// (function % 3) + 1 words of locals, the last of which points to the frame's own end, then the
/// return address. The outermost returns to 0.
fn locals(ip: u64) -> u64 {
    (ip - 0x1000) / 0x100 % 3 + 1
}

/// The walker of that machine; refuses a frame whose pointer does not fit.
fn walk(sample: &Sample) -> Option<Vec<Frame>> {
    let word = |address: u64| {
        let at = address.checked_sub(sample.stack_start)? as usize;
        Some(u64::from_le_bytes(sample.stack.get(at..at + 8)?.try_into().ok()?))
    };
    let mut frames = vec![Frame { ip: sample.registers[0], sp: sample.registers[1] }];
    loop {
        let Frame { ip, sp } = *frames.last()?;
        let slot = sp + 8 * locals(ip);
        if word(slot - 8)? != slot {
            return None;
        }
        match word(slot)? {
            0 => return (slot + 8 == sample.stack_base).then_some(frames),
            ip => frames.push(Frame { ip, sp: slot + 8 }),
        }
    }
}

/// A stack of the machine from return addresses, innermost first.
fn stack(ips: &[u64], base: u64) -> Vec<u64> {
    let mut words = Vec::new();
    let size: u64 = ips.iter().map(|&ip| locals(ip) + 1).sum();
    for (i, &ip) in ips.iter().enumerate() {
        for local in 0..locals(ip) {
            let slot = base - 8 * size + 8 * (words.len() as u64 + locals(ip) - local);
            words.push(if local + 1 == locals(ip) { slot } else { 0xabc0 + local });
        }
        words.push(ips.get(i + 1).copied().unwrap_or(0));
    }
    words
}

#[test]
fn a_grown_trace_walks_and_has_the_requested_figures() {
    let base = 0x50_0000;
    let mut builder = TraceBuilder::new(Arch::X64);
    builder.module(0, 0x1000, 0x10_0000, "app.exe", vec![]);
    let threads = [builder.thread(0, 1, "a", base), builder.thread(0, 2, "b", base)];
    let mut random = 7u64;
    let mut next = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % bound
    };
    for i in 0..400 {
        // main calls one of a few functions, which call each other, some of them themselves.
        let mut ips = vec![0x1010];
        let depth = 6 + next(8);
        for _ in 0..depth {
            let function = 1 + next(4);
            ips.push(0x1000 + 0x100 * function + 0x10);
        }
        ips.push(0x1000 + 0x100 * (5 + next(3)) + next(0x40));
        ips.reverse();
        let words = stack(&ips, base);
        builder.sample(threads[i % 2], 10 + i as u64, &[ips[0], base - 8 * words.len() as u64], &words);
    }
    let real = builder.finish();
    let real = Trace::open(&real).unwrap();

    let plan = Grow { samples: 20_000, depth: 25, ..Grow::default() };
    let (file, grown) = grow(&real, &plan, &mut walk, Vec::new()).unwrap();
    assert_eq!((grown.samples, grown.source), (20_000, 400));
    assert!(2 * grown.equal_pairs <= grown.pairs, "{grown:?}");
    let mean = grown.frames as f64 / grown.samples as f64;
    assert!((22.0..=28.0).contains(&mean), "{mean} frames");

    let trace = Trace::open(&file).unwrap();
    assert_eq!(trace.damage(), []);
    assert!(trace.is_complete());
    let mut scratch = Scratch::new();
    let (mut samples, mut distinct) = (0, HashSet::new());
    for block in trace.blocks() {
        samples += u64::from(block.header.samples);
        if block.header.kind != BlockKind::Samples {
            continue;
        }
        let mut steps = trace.samples(block, &mut scratch).unwrap();
        while let Some(step) = steps.next().unwrap() {
            if let SampleStep::Sample(sample) = step {
                let frames = walk(&sample).expect("a stack that walks");
                distinct.insert(frames.iter().map(|frame| frame.ip).collect::<Vec<_>>());
            }
        }
    }
    assert_eq!(samples, 20_000);
    assert_eq!(distinct.len() as u64, grown.distinct);
    assert!(grown.distinct > 10_000, "{grown:?}");
}

#[test]
fn a_trace_that_does_not_walk_is_refused() {
    let mut builder = TraceBuilder::new(Arch::X64);
    let thread = builder.thread(0, 1, "a", 0x1000);
    builder.sample(thread, 1, &[0x1000, 0xff8], &[0]);
    let file = builder.finish();
    let trace = Trace::open(&file).unwrap();
    assert!(grow(&trace, &Grow::default(), &mut |_| None, Vec::new()).is_err());
}
