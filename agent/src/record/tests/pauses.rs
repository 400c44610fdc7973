//! Pauses: what a thread does meanwhile belongs to no sample.

use super::*;

/// CPU times that the samples state, and the spans of their blocks.
fn stated(file: &[u8]) -> (i64, Vec<(u64, u64)>) {
    let trace = Trace::open(file).unwrap();
    let mut scratch = Scratch::new();
    let (mut cpu, mut spans) = (0, Vec::new());
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        spans.push((block.header.first.0, block.header.last.0));
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().unwrap() {
            match decoded {
                SampleStep::Sample(sample) => cpu += sample.cpu_delta.unwrap_or(0),
                SampleStep::Same(same) => cpu += same.cpu_delta.unwrap_or(0),
                SampleStep::Idle(_) => {}
                SampleStep::Other(Event::ThreadCpu(more)) => cpu += more.cpu,
                SampleStep::Other(other) => panic!("{other:?}"),
            }
        }
    }
    (cpu, spans)
}

/// Five passes before a pause of 90 ms and five after it. The clock gains `each` from pass to pass
/// and `pause` in the pause.
fn recorded(each: u64, pause: u64, gains: impl Fn(&mut FakeThread, u64)) -> Vec<u8> {
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    rig.thread(1, |thread| gains(thread, 1_000));
    for pass in 0..10 {
        if pass == 5 {
            rig.sampler.pause();
            rig.write();
            rig.thread(1, |thread| gains(thread, pause));
            rig.world.borrow_mut().now = 100 * MS;
            rig.sampler.rest();
            rig.sampler.resume();
        }
        rig.pass(if pass < 5 { 10 * pass } else { 100 + 10 * pass });
        rig.thread(1, |thread| {
            thread.registers[IP] += 1;
            gains(thread, each);
        });
        rig.write();
    }
    rig.finish()
}

#[test]
fn cycles_that_a_thread_used_in_a_pause_are_in_no_sample_and_no_block_reaches_into_it() {
    let gains = |thread: &mut FakeThread, more| thread.cycles = Some(thread.cycles.unwrap_or(0) + more);
    let (cpu, spans) = stated(&recorded(1_000_000, 900_000_000, gains));
    // Ten times after the first reading, the last one after the last pass.
    assert_eq!(cpu, 10_000_000);
    assert!(spans.iter().all(|&(first, last)| last <= 50 * MS || first >= 100 * MS), "{spans:?}");
}

#[test]
fn coarse_cpu_time_of_a_pause_is_in_no_sample_either() {
    let gains = |thread: &mut FakeThread, more| thread.cpu_time = Some(thread.cpu_time.unwrap_or(0) + more);
    let (cpu, _) = stated(&recorded(100_000, 5_000_000, gains));
    assert_eq!(cpu, 1_000_000);
}
