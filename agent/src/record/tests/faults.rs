//! A disk that is too slow, and a clock that jumps because the machine was suspended.

use super::*;

/// Words that do not compress, another set for each seed.
fn noise(seed: u64, words: usize) -> Vec<u8> {
    let mut next = random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    core::iter::repeat_with(|| next().to_le_bytes()).take(words).flatten().collect()
}

/// 64 threads change 2 KiB of stack each in every pass, at 1 kHz 128 MB a second; the disk takes 10
/// MB a second.
#[test]
fn a_slow_disk_costs_counted_samples_and_no_pass() {
    const THREADS: u64 = 64;
    const PASSES: u64 = 200;
    const WORDS: usize = 256;
    const BYTES_PER_MS: u64 = 10_000;
    let mut rig = Rig::new(4);
    for thread in 0..THREADS {
        rig.add(thread, WORDS);
    }
    let mut budget = 0;
    let mut expected = Vec::new();
    for ms in 0..PASSES {
        for thread in 0..THREADS {
            rig.thread(thread, |fake| fake.stack = noise(ms * THREADS + thread, WORDS));
        }
        let before = rig.counters.samples.load(Ordering::Relaxed);
        rig.pass(ms);
        let taken = rig.counters.samples.load(Ordering::Relaxed) - before;
        expected.push(taken);
        budget += BYTES_PER_MS;
        // A block is written when the disk has had the time for it.
        while budget > 1 << 20
            && let Some((_, block)) = rig.lane.take_full()
        {
            let bytes = rig.writer.bytes();
            rig.writer.block(&block).unwrap();
            budget = budget.saturating_sub(rig.writer.bytes() - bytes);
            rig.lane.put_back(block);
        }
    }
    let dropped = rig.counters.dropped.load(Ordering::Relaxed);
    let taken: u64 = expected.iter().sum();
    assert_eq!(taken + dropped, THREADS * PASSES, "each look is a sample or a counted loss");
    assert!(dropped > THREADS * PASSES / 4, "{dropped}");
    assert_eq!(dropped, rig.counters.lost(DropReason::BuffersFull as usize));
    assert_eq!(samples(&read(&rig.finish())).len() as u64, taken, "what was taken is in the trace");
}

/// Where each suspension takes long, a pass over thousands of threads lasts for minutes.
#[test]
fn a_pass_ends_when_the_recording_is_to_end_and_its_samples_are_in_the_trace() {
    const TAKEN: u32 = 30;
    let mut rig = Rig::new(4);
    for thread in 0..400 {
        rig.add(thread, 10);
    }
    rig.world.borrow_mut().stops = Some((TAKEN, rig.signals));
    rig.pass(0);
    assert_eq!(rig.counters.samples.load(Ordering::Relaxed), u64::from(TAKEN));
    assert_eq!(rig.counters.dropped.load(Ordering::Relaxed), 0, "no sample was requested after that");
    assert_eq!(samples(&read(&rig.finish())).len(), TAKEN as usize);
}

/// The counter continues while the machine sleeps, so the recorder sees one long gap.
#[test]
fn a_clock_that_jumps_ahead_leaves_whole_blocks_and_times_in_order() {
    const HOUR: u64 = 3_600_000;
    let mut rig = Rig::new(4);
    rig.add(1, 10);
    let passes = (0..20).chain(HOUR..HOUR + 20);
    for ms in passes {
        rig.thread(1, |thread| set_stack(thread, 10, ms));
        rig.pass(ms);
        rig.write();
    }
    let found = read(&rig.finish());
    let times: Vec<u64> = found
        .iter()
        .filter_map(|(_, one)| match one {
            StoredSample::Sample { time, .. } => Some(*time),
            _ => None,
        })
        .collect();
    assert_eq!(times.len(), 40, "{found:?}");
    assert!(times.is_sorted());
    assert!(times[19] < HOUR * MS && times[20] >= HOUR * MS, "{times:?}");
    // The block that was open during the gap ends with the first pass behind it.
    assert!(found[39].0 > found[19].0, "{found:?}");
}
