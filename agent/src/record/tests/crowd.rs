//! Thousands of threads: each is looked at once a pass, and memory grows with their number alone.
//! With STK_LONG the times are printed, for docs/measured/recorder.md; times are not asserted.

use std::time::{Duration, Instant};

use super::*;
use crate::record::files::FileThread;
use crate::record::threads::{Thread, Threads};
use stk_schema::event::{ThreadFlags, ThreadStart};
use stk_tests::wine::measured;

const FEW: u64 = 1_000;
const MANY: u64 = 5_000;
/// Words of each stack, as those of threads that wait.
const WORDS: usize = 200;
/// Commands that are sent before the sampler takes them.
const BATCH: u64 = 400;
const PASSES: u64 = 20;

/// What a number of threads costs the sampler.
struct SamplerCost {
    adding: Duration,
    pass: Duration,
    /// The pass in which the file changes: each thread's look is a keyframe.
    changing: Duration,
    removing: Duration,
    /// Bytes of the sampler's list and images while all threads are there.
    memory: usize,
    memory_after: usize,
}

fn sampler_cost(threads: u64) -> SamplerCost {
    let mut rig = Rig::new(16);
    let begun = Instant::now();
    for thread in 1..=threads {
        rig.add(thread, WORDS);
        rig.thread(thread, |fake| (fake.cycles, fake.capture_cycles) = (Some(7), 12_000));
        if thread.is_multiple_of(BATCH) || thread == threads {
            rig.sampler.rest();
        }
    }
    let adding = begun.elapsed();
    rig.pass(1);
    rig.write();
    let begun = Instant::now();
    for pass in 0..PASSES {
        rig.pass(2 + pass);
        rig.write();
    }
    let pass = begun.elapsed() / PASSES as u32;
    let files = rig.lane.files().clone();
    let next = files.begin(&rig.header);
    files.state(next, 0);
    let begun = Instant::now();
    rig.pass(2 + PASSES);
    let changing = begun.elapsed();
    assert_eq!(files.turned(FileThread::Sampler), next);
    let memory = rig.sampler.memory();
    assert_eq!(rig.counters.samples.load(Ordering::Relaxed), threads * (PASSES + 2));
    assert_eq!(rig.counters.dropped.load(Ordering::Relaxed), 0);
    // A second look settles what the first capture cost the thread.
    assert!(rig.world.borrow().threads.values().all(|thread| (1..=2).contains(&thread.captures)));
    let begun = Instant::now();
    // Every second one first, so that those that are left have moved.
    for (count, thread) in (1..=threads).step_by(2).chain((2..=threads).step_by(2)).enumerate() {
        rig.remove(thread);
        if (count as u64).is_multiple_of(BATCH) || count as u64 + 1 == threads {
            rig.sampler.rest();
        }
    }
    let removing = begun.elapsed();
    assert_eq!(rig.sampler.threads(), 0);
    SamplerCost { adding, pass, changing, removing, memory, memory_after: rig.sampler.memory() }
}

#[test]
fn five_thousand_threads_are_sampled_in_every_pass_and_take_memory_by_their_number() {
    /// The entry of a thread and twice its stack.
    const MOST_BYTES: usize = 5 << 10;
    /// Of the list, which stays as long as it was, and of 64 images for reuse.
    const LEFT_BYTES: usize = 2 << 10;
    let (few, many) = (sampler_cost(FEW), sampler_cost(MANY));
    for (threads, cost) in [(FEW, &few), (MANY, &many)] {
        let threads = threads as usize;
        measured(&format!(
            "{threads} threads of {WORDS} words: {} KiB, {} KiB after their end; adding {:.1} µs, a look {:.2} µs, \
             one as the file changes {:.2} µs, removing {:.2} µs a thread",
            cost.memory >> 10,
            cost.memory_after >> 10,
            cost.adding.as_secs_f64() * 1e6 / threads as f64,
            cost.pass.as_secs_f64() * 1e6 / threads as f64,
            cost.changing.as_secs_f64() * 1e6 / threads as f64,
            cost.removing.as_secs_f64() * 1e6 / threads as f64,
        ));
        assert!(cost.memory <= threads * MOST_BYTES, "{} bytes", cost.memory);
        assert!(cost.memory_after <= threads * LEFT_BYTES + 64 * MOST_BYTES, "{} bytes", cost.memory_after);
    }
}

/// The events that the list writes.
#[derive(Default)]
struct EventCount {
    starts: u64,
    names: u64,
    exits: Vec<u64>,
}

impl crate::record::modules::Events for EventCount {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::ThreadStart(_) => self.starts += 1,
            Event::ThreadName { .. } => self.names += 1,
            Event::ThreadExit { instance, .. } => self.exits.push(*instance),
            other => panic!("{other:?}"),
        }
    }
}

/// Microseconds a thread of a whole life in the list: start, look-up, name, end of all at once.
fn list_cost(count: u64) -> f64 {
    let (mut threads, mut log) = (Threads::<bool>::default(), EventCount::default());
    let begun = Instant::now();
    for tid in 1..=count as u32 {
        let start = ThreadStart {
            instance: 0,
            time: Ticks(1),
            tid: tid * 4,
            flags: ThreadFlags::empty(),
            start_address: 0,
            stack_base: 0,
            created: 0,
        };
        assert!(!threads.knows(tid * 4));
        // Every second one will have ended.
        threads.started(start, tid % 2 == 0, &mut log);
    }
    assert!((1..=count).all(|n| threads.instance_of(n as u32 * 4) == Some(n)));
    let mut asked = 0;
    let name = |thread: &Thread<bool>| {
        asked += 1;
        Some(format!("worker {}", thread.instance).into_bytes())
    };
    assert_eq!(threads.rename(Ticks(2), name, |_| false, &mut log) as u64, count);
    assert_eq!(asked, count);
    let (mut asked, mut gone) = (0, 0);
    threads.remove_ended(
        |thread| {
            asked += 1;
            thread.handle.then_some(Ticks(3))
        },
        |_| gone += 1,
        &mut log,
    );
    let taken = begun.elapsed();
    assert_eq!((asked, gone), (count, count / 2));
    assert_eq!((log.starts, log.names), (count, count));
    assert!(log.exits.iter().copied().eq((2..=count).step_by(2)));
    let left: Vec<u64> = threads.live().iter().map(|thread| thread.instance).collect();
    assert!(left.iter().copied().eq((1..=count).step_by(2)));
    assert!(left.iter().all(|&n| threads.knows(n as u32 * 4) && !threads.knows(n as u32 * 4 + 4)));
    taken.as_secs_f64() * 1e6 / count as f64
}

#[test]
fn the_list_of_five_thousand_threads_asks_for_each_once() {
    measured(&format!(
        "the list of threads, start, name and end: {:.2} µs a thread of {FEW}, {:.2} µs of {MANY}",
        list_cost(FEW),
        list_cost(MANY)
    ));
}
