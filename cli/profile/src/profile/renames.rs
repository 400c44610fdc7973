//! Threads that had several names: one thread of the profile for each name, for as long as it had
//! it.

use super::{MarkInfo, Profile, Runs, ThreadInfo};
use crate::trace::Trace;
use std::collections::HashMap;
use std::io;
use stk_schema::event::RunState;

/// Gives each thread the name that it had when its samples were taken. A thread with several names
/// becomes several threads of one instance.
pub fn split_renamed(profile: &mut Profile, runs: Runs, trace: &Trace<'_>) -> io::Result<Runs> {
    let mut names: HashMap<u64, Vec<(u64, &str)>> = HashMap::new();
    for thread in trace.timeline.threads.iter().filter(|thread| !thread.earlier_names.is_empty()) {
        let of_thread = thread.earlier_names.iter();
        let ends = of_thread.map(|(until, name)| (trace.clock.ns(*until), name.as_str()));
        names.insert(thread.instance, ends.collect());
    }
    if names.is_empty() {
        return Ok(runs);
    }
    let mut out = Runs::with_limit(runs.limit());
    let mut threads: Vec<ThreadInfo> = Vec::with_capacity(profile.threads.len());
    // By old index: the first of its threads, and when their names end.
    let mut places: Vec<(u32, Vec<u64>)> = Vec::with_capacity(profile.threads.len());
    for (at, thread) in (0u32..).zip(&profile.threads) {
        let first = threads.len() as u32;
        let named = names.get(&thread.instance).map_or(&[][..], Vec::as_slice);
        threads.extend(parts(thread, named));
        let ends: Vec<u64> = named.iter().map(|(until, _)| *until).collect();
        let (mut samples, whole) = (vec![(0u64, 0u64); ends.len() + 1], ends.is_empty());
        // A thread's runs come one part after the other, since they are in time order.
        runs.for_threads([at], |batch| {
            for run in batch.runs {
                if whole {
                    out.push(first, *run)?;
                    continue;
                }
                for (part, (from, until)) in (0u32..).zip(spans(&ends)) {
                    let Some(run) = run.within(from, until) else { continue };
                    let sum = &mut samples[part as usize];
                    sum.0 += u64::from(run.samples);
                    sum.1 += if run.state == RunState::Waiting { 0 } else { u64::from(run.samples) };
                    out.push(first + part, run)?;
                }
            }
            Ok::<(), io::Error>(())
        })?;
        if !whole {
            share_samples(&mut threads[first as usize..], &samples, thread);
        }
        places.push((first, ends));
    }
    for MarkInfo { thread, time_ns, .. } in &mut profile.marks {
        *thread = thread.map(|at| {
            let (first, ends) = &places[at as usize];
            first + ends.partition_point(|until| until <= time_ns) as u32
        });
    }
    profile.threads = threads;
    Ok(out)
}

/// The spans between these times, from the beginning to the end of all time.
fn spans(ends: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    let begins = std::iter::once(0).chain(ends.iter().copied());
    begins.zip(ends.iter().copied().chain([u64::MAX]))
}

/// The threads of a thread, by its names before the last one and when each of them ended.
fn parts(thread: &ThreadInfo, names: &[(u64, &str)]) -> Vec<ThreadInfo> {
    let mut parts = Vec::with_capacity(names.len() + 1);
    let mut start_ns = thread.start_ns;
    for (number, &(until, name)) in (0u32..).zip(names) {
        let name = name.to_owned();
        let exit_ns = Some(until);
        parts.push(ThreadInfo { name, name_number: number, start_ns, exit_ns, ..thread.clone() });
        start_ns = Some(until);
    }
    parts.push(ThreadInfo { name_number: names.len() as u32, start_ns, ..thread.clone() });
    parts
}

/// Gives the parts of a thread their samples, and what these cost.
fn share_samples(parts: &mut [ThreadInfo], samples: &[(u64, u64)], whole: &ThreadInfo) {
    let all: u64 = samples.iter().map(|(all, _)| all).sum();
    for (part, (samples, active)) in parts.iter_mut().zip(samples) {
        (part.samples, part.active_samples) = (*samples, *active);
        let cost = u128::from(whole.sampling_cpu_ns) * u128::from(*samples) / u128::from(all.max(1));
        part.sampling_cpu_ns = u64::try_from(cost).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageSearch, load_images};
    use crate::profile::{BuildOptions, build};
    use std::sync::atomic::AtomicU64;
    use stk_schema::Ticks;
    use stk_schema::event::Event;
    use stk_tests::traces;

    const STACK: u64 = 0x10_0000;
    const MS: u64 = 10_000;

    #[test]
    fn samples_have_the_name_of_their_time() {
        let mut builder = traces::trace();
        let thread = builder.thread(0, 6_000, "", STACK);
        for (ms, name) in [(1, "first"), (11, "second"), (21, "third"), (25, "third")] {
            let time = Ticks(ms * MS);
            builder.meta(ms * MS, &Event::ThreadName { instance: thread, time, name: name.as_bytes() });
            for at in (ms..ms + 10).filter(|at| ms < 25 && *at > 1 || *at > 30) {
                traces::sample(&mut builder, thread, at * MS, STACK, &[at]);
            }
            builder.cut();
        }
        let file = builder.finish();
        let trace = Trace::read(&file, "test.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let (mut profile, runs) =
            build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0)).unwrap();
        let whole: u64 = profile.threads[0].samples;
        let runs = split_renamed(&mut profile, runs, &trace).unwrap();
        let found: Vec<(&str, u32, u64)> = profile
            .threads
            .iter()
            .map(|thread| (thread.name.as_str(), thread.name_number, thread.samples))
            .collect();
        // Samples at 2 to 10 ms, at 11 to 20, and at 21 to 34.
        assert_eq!(found, [("first", 0, 9), ("second", 1, 10), ("third", 2, 14)]);
        assert_eq!(whole, 33);
        assert!(profile.threads.iter().all(|thread| thread.tid == 6_000));
        let mut weights = vec![0; 3];
        let visited: io::Result<()> = runs.for_each(|batch| {
            weights[batch.thread as usize] += batch.runs.iter().map(|run| run.weight_ns).sum::<u64>();
            Ok(())
        });
        visited.unwrap();
        assert_eq!(weights, [9_000_000, 10_000_000, 14_000_000]);
    }
}
