//! The stacks of all threads at one moment, and those of single samples.

use super::{Budget, ManagedState, SampleCopy, SamplePlace, Trace, take_managed};
use std::collections::{BTreeMap, HashMap, HashSet};
use stk_format::{BlockRef, Sample, SampleStep, Samples, Scratch};
use stk_schema::Ticks;
use stk_schema::event::{Event, RunState, ThreadFlags};

/// What was captured of a thread at its last sample before a moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Thread instance.
    pub thread: u64,
    /// When it was sampled.
    pub sampled: Ticks,
    /// Until when it is known to have been as sampled; `sampled` or later.
    pub until: Ticks,
    /// What it was doing at that time.
    pub state: RunState,
    /// The sample; `None` if its registers are not known.
    pub sample: Option<SampleCopy>,
    /// The block of that sample.
    pub block: BlockRef,
    /// What a language runtime reported about the thread at that sample.
    pub managed: Option<ManagedState>,
}

impl Snapshot {
    fn of(sample: &Sample<'_>, block: &BlockRef) -> Snapshot {
        Snapshot {
            thread: sample.thread,
            sampled: sample.time,
            until: sample.time,
            state: sample.state,
            sample: SampleCopy::of(sample),
            block: *block,
            managed: None,
        }
    }
}

/// The last sample at or before `time` of each thread that was alive then and that `wanted` takes,
/// by thread instance. Threads that were never sampled before are left out. Looks back only as far
/// as it must. Beside them, how many are left out because there is no memory for their stacks.
pub fn snapshots(trace: &Trace<'_>, time: Ticks, wanted: &dyn Fn(u64) -> bool) -> (Vec<Snapshot>, u64) {
    let alive = trace.timeline.threads.iter().filter(|thread| {
        let begun = thread.flags.contains(ThreadFlags::AT_START) || thread.start <= time;
        begun && thread.exit.is_none_or(|exit| exit > time) && !thread.flags.contains(ThreadFlags::RECORDER)
    });
    let mut pending: HashSet<u64> =
        alive.map(|thread| thread.instance).filter(|&instance| wanted(instance)).collect();
    let mut found: BTreeMap<u64, Snapshot> = BTreeMap::new();
    // What IDLE events say of threads whose sample is in an earlier block.
    let mut idle: HashMap<u64, (Ticks, RunState)> = HashMap::new();
    let mut left_out = 0;
    let mut scratch = Scratch::new();
    let blocks: Vec<&BlockRef> = trace.sample_blocks().filter(|block| block.header.first <= time).collect();
    for block in blocks.into_iter().rev() {
        if pending.is_empty() {
            break;
        }
        let last = last_samples(trace, block, time, &mut scratch, &pending, &mut idle);
        for SampleSnapshot { thread, snapshot, .. } in
            capture(trace, block, &mut scratch, &last, &trace.budget)
        {
            pending.remove(&thread);
            let Some(mut snapshot) = snapshot else {
                left_out += 1;
                continue;
            };
            if let Some(&(until, state)) = idle.get(&snapshot.thread) {
                snapshot.until = snapshot.until.max(until);
                snapshot.state = state;
            }
            found.insert(thread, snapshot);
        }
    }
    (found.into_values().collect(), left_out)
}

/// The samples at these places, in their order, as far as `budget` allows: `None` for those that
/// there is no memory for. Decodes each block once.
pub fn samples_at(trace: &Trace<'_>, places: &[SamplePlace], budget: &Budget) -> Vec<Option<Snapshot>> {
    let mut by_block: BTreeMap<u32, HashMap<u64, usize>> = BTreeMap::new();
    for (n, place) in places.iter().enumerate() {
        by_block.entry(place.block).or_default().insert(place.number.into(), n);
    }
    let blocks: Vec<&BlockRef> = trace.sample_blocks().collect();
    let mut found = vec![None; places.len()];
    let mut scratch = Scratch::new();
    for (block, wanted) in by_block {
        let Some(block) = blocks.get(block as usize) else { continue };
        let numbers = wanted.keys().copied().collect();
        for SampleSnapshot { number, snapshot, .. } in capture(trace, block, &mut scratch, &numbers, budget) {
            found[wanted[&number]] = snapshot;
        }
    }
    found
}

/// Numbers (among the block's samples) of the pending threads' last samples up to `time`.
fn last_samples(
    trace: &Trace<'_>,
    block: &BlockRef,
    time: Ticks,
    scratch: &mut Scratch,
    pending: &HashSet<u64>,
    idle: &mut HashMap<u64, (Ticks, RunState)>,
) -> HashSet<u64> {
    let mut last: HashMap<u64, u64> = HashMap::new();
    let mut number = 0;
    let mut note = |thread, first, last: Ticks, state| {
        if first <= time && pending.contains(&thread) {
            let last = last.min(time);
            let known = idle.entry(thread).or_insert((last, state));
            if known.0 < last {
                *known = (last, state);
            }
        }
    };
    each(trace, block, scratch, |decoded, _| match decoded {
        SampleStep::Sample(sample) => {
            if sample.time <= time && pending.contains(&sample.thread) {
                last.insert(sample.thread, number);
            }
            number += 1;
        }
        SampleStep::Same(same) => note(same.thread, same.first, same.last, same.state),
        SampleStep::Idle(span) => note(span.thread, span.first, span.last, span.state),
        SampleStep::Other(_) => {}
    });
    last.into_values().collect()
}

/// A wanted sample of a block.
struct SampleSnapshot {
    /// Its number among the block's samples.
    number: u64,
    thread: u64,
    /// `None`: there is no memory for it.
    snapshot: Option<Snapshot>,
}

/// The samples with these numbers, as far as `budget` allows.
fn capture(
    trace: &Trace<'_>,
    block: &BlockRef,
    scratch: &mut Scratch,
    numbers: &HashSet<u64>,
    budget: &Budget,
) -> Vec<SampleSnapshot> {
    let mut found: Vec<SampleSnapshot> = Vec::new();
    if numbers.is_empty() {
        return found;
    }
    let mut number = 0;
    each(trace, block, scratch, |decoded, block| match decoded {
        SampleStep::Sample(sample) => {
            if numbers.contains(&number) {
                // Walking and naming the stack reads as much again.
                let fits = budget.take(2 * sample.stack.len() + SNAPSHOT);
                let snapshot = fits.then(|| Snapshot::of(sample, block));
                found.push(SampleSnapshot { number, thread: sample.thread, snapshot });
            }
            number += 1;
        }
        SampleStep::Other(event) => {
            // The event belongs to the sample before it.
            let Some(SampleSnapshot { snapshot: last, .. }) = found.last_mut() else { return };
            let Some(snapshot) = last else { return };
            if budget.take(memory_of(snapshot, event)) {
                take_managed(&mut snapshot.managed, snapshot.thread, snapshot.sampled, event);
            } else {
                *last = None;
            }
        }
        _ => {}
    });
    found
}

/// Bytes that it takes to keep an event beside its sample.
fn memory_of(snapshot: &Snapshot, event: &Event<'_>) -> usize {
    match event {
        Event::Memory(memory) if (memory.thread, memory.time) == (snapshot.thread, snapshot.sampled) => {
            memory.bytes.len()
        }
        _ => 0,
    }
}

/// Bytes that a snapshot takes beside its stack.
const SNAPSHOT: usize = 1 << 10;

/// Visits a block as far as it can be read.
fn each(
    trace: &Trace<'_>,
    block: &BlockRef,
    scratch: &mut Scratch,
    mut visit: impl FnMut(&SampleStep<'_>, &BlockRef),
) {
    let Ok(mut samples): Result<Samples<'_>, _> = trace.blocks().samples(block, scratch) else { return };
    while let Ok(Some(decoded)) = samples.next() {
        visit(&decoded, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Budget;
    use stk_schema::event::Memory;
    use stk_tests::traces;

    #[test]
    fn a_thread_beyond_the_memory_budget_is_left_out() {
        let mut builder = traces::trace();
        let stack = 0x10_0000;
        let threads = [1, 2].map(|tid| builder.thread(0, tid, "", stack * u64::from(tid)));
        for (thread, (bytes, base)) in threads.into_iter().zip([(100, stack), (100_000, 2 * stack)]) {
            traces::sample(&mut builder, thread, 10_000, base, &[]);
            builder.push(&traces::managed(thread, 10_000, 0));
            builder.push(&Event::Memory(Memory {
                thread,
                time: Ticks(10_000),
                address: 0,
                bytes: &vec![0; bytes],
            }));
        }
        let file = builder.finish();
        let mut trace = Trace::read(&file, "test.stk").unwrap();
        let mut taken = |memory| {
            trace.budget = Budget::new(memory);
            let (taken, left_out) = snapshots(&trace, trace.last(), &|_| true);
            (taken.iter().map(|snapshot| snapshot.thread).collect::<Vec<_>>(), left_out)
        };
        assert_eq!(taken(1 << 20), (threads.to_vec(), 0));
        assert_eq!(taken(50_000), (vec![threads[0]], 1));
    }
}
