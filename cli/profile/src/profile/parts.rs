//! Several threads as one, and parts of a profile: one thread, or a span of time.

use super::{MarkInfo, Profile, Run, Runs, ThreadInfo};
use std::collections::{BTreeSet, HashMap};
use std::io;
use stk_schema::event::RunState;

/// Which threads become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadMerge {
    /// All of them.
    All,
    /// Those of one name. Numbers at the end of a name do not count.
    ByName,
}

/// A name without the number at its end, and what sets that apart.
fn without_number(name: &str) -> &str {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let stem = if stem.len() < name.len() {
        stem.trim_end_matches([' ', '-', '_', '#', '.', ':', '/'])
    } else {
        name
    };
    // A name that is only a number is one of many.
    if stem.is_empty() && !name.is_empty() { "#" } else { stem }
}

/// Makes one thread of several. Its runs follow each other without gaps, thread after thread, so
/// their timestamps are lost.
pub fn merge_threads(profile: &mut Profile, runs: &Runs, how: ThreadMerge) -> io::Result<Runs> {
    let mut groups: Vec<Vec<u32>> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (at, thread) in (0u32..).zip(&profile.threads).filter(|(_, thread)| thread.samples > 0) {
        let key = if how == ThreadMerge::All { "" } else { without_number(&thread.name) };
        let group = *known.entry(key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(at);
    }
    let mut group_of: HashMap<u32, u32> = HashMap::new();
    let mut threads = Vec::with_capacity(groups.len());
    let mut out = Runs::with_limit(runs.limit());
    for (group, members) in (0u32..).zip(&groups) {
        group_of.extend(members.iter().map(|&member| (member, group)));
        threads.push(merged(profile, members, how));
        let mut end = 0u64;
        runs.for_threads(members.iter().copied(), |batch| {
            for run in batch.runs {
                out.push(group, Run { first_ns: end, last_ns: end, ..*run })?;
                end = end.saturating_add(run.weight_ns);
            }
            Ok::<(), io::Error>(())
        })?;
    }
    profile.threads = threads;
    for MarkInfo { thread, .. } in &mut profile.marks {
        *thread = thread.and_then(|thread| group_of.get(&thread).copied());
    }
    Ok(out)
}

/// The thread that stands for several.
fn merged(profile: &Profile, members: &[u32], how: ThreadMerge) -> ThreadInfo {
    let all = || members.iter().map(|&member| &profile.threads[member as usize]);
    let first = &profile.threads[members[0] as usize];
    if members.len() == 1 {
        return first.clone();
    }
    let count = members.len();
    let name = match without_number(&first.name) {
        _ if how == ThreadMerge::All => format!("{count} threads"),
        "" => format!("{count} threads without a name"),
        name => format!("{name}: {count} threads"),
    };
    ThreadInfo {
        instance: first.instance,
        name,
        samples: all().map(|thread| thread.samples).sum(),
        active_samples: all().map(|thread| thread.active_samples).sum(),
        sampling_cpu_ns: all().map(|thread| thread.sampling_cpu_ns).fold(0, u64::saturating_add),
        ..ThreadInfo::default()
    }
}

/// A part of a profile's runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunSelection {
    /// Those of a thread: an index in [`Profile::threads`].
    Thread(u32),
    /// What is in a span of time: from its first nanosecond since trace start up to, not
    /// including, its last.
    Span(u64, u64),
}

/// The numbers of the spans of `length_ns` that have runs, counted from the trace's start; `None`
/// if there are more than `most`.
pub fn spans(runs: &Runs, length_ns: u64, most: usize) -> io::Result<Option<BTreeSet<u64>>> {
    let length_ns = length_ns.max(1);
    let mut spans = BTreeSet::new();
    runs.for_each(|batch| {
        for run in batch.runs {
            let last = run.last_span(length_ns);
            // Beyond the limit it does not matter which ones there are.
            let room = (most + 1).saturating_sub(spans.len()) as u64;
            let first = run.first_ns / length_ns;
            spans.extend(first..=last.min(first.saturating_add(room)));
        }
        Ok::<(), io::Error>(())
    })?;
    Ok((spans.len() <= most).then_some(spans))
}

/// The runs of a part. The threads count its samples only. A span of time becomes
/// [`Profile::window`].
pub fn part(profile: &mut Profile, runs: &Runs, part: RunSelection) -> io::Result<Runs> {
    let samples_before: Vec<u64> = profile.threads.iter().map(|thread| thread.samples).collect();
    for thread in &mut profile.threads {
        (thread.samples, thread.active_samples) = (0, 0);
    }
    let mut out = Runs::with_limit(runs.limit());
    let threads = match part {
        RunSelection::Thread(thread) => thread..thread.saturating_add(1),
        RunSelection::Span(..) => 0..profile.threads.len() as u32,
    };
    runs.for_threads(threads, |batch| {
        let thread = &mut profile.threads[batch.thread as usize];
        for run in batch.runs {
            let run = match part {
                RunSelection::Thread(_) => Some(*run),
                RunSelection::Span(from, until) => run.within(from, until),
            };
            let Some(run) = run else { continue };
            let samples = u64::from(run.samples);
            thread.samples += samples;
            thread.active_samples += if run.state == RunState::Waiting { 0 } else { samples };
            out.push(batch.thread, run)?;
        }
        Ok::<(), io::Error>(())
    })?;
    if let RunSelection::Span(from, until) = part {
        let window = profile.window();
        profile.window = Some(window.start.max(from)..window.end.min(until).max(window.start.max(from)));
        for (thread, all) in profile.threads.iter_mut().zip(samples_before) {
            // What being sampled cost is the same for each of a thread's samples.
            let cost = u128::from(thread.sampling_cpu_ns) * u128::from(thread.samples);
            thread.sampling_cpu_ns = u64::try_from(cost / u128::from(all.max(1))).unwrap_or(u64::MAX);
        }
        let covered = runs_ns(&out)?;
        profile.losses.unread_ns = profile.losses.unread_ns.min(covered);
    }
    Ok(out)
}

/// The time that all runs cover.
fn runs_ns(runs: &Runs) -> io::Result<u64> {
    let mut sum = 0u64;
    runs.for_each(|batch| {
        sum = batch.runs.iter().fold(sum, |sum, run| sum.saturating_add(run.weight_ns));
        Ok::<(), io::Error>(())
    })?;
    Ok(sum)
}

impl Run {
    /// The end of the time that it covers.
    pub fn end_ns(&self) -> u64 {
        self.first_ns.saturating_add(self.weight_ns)
    }

    /// The number of the last span of this length in which anything of it lies.
    pub fn last_span(&self, length_ns: u64) -> u64 {
        self.end_ns().saturating_sub(1).max(self.last_ns) / length_ns.max(1)
    }

    /// What of it lies from `from` up to, not including, `until`: its CPU time evenly spread over
    /// its time, its samples where they are. The pieces of adjacent spans add up to the run.
    pub fn within(&self, from: u64, until: u64) -> Option<Run> {
        let end = self.end_ns();
        if from <= self.first_ns && end.max(self.last_ns.saturating_add(1)) <= until {
            return Some(*self);
        }
        let (first, last) = (self.first_ns.max(from), end.min(until));
        let samples = self.samples_before(until) - self.samples_before(from.min(until));
        if first >= last && samples == 0 {
            return None;
        }
        let last = last.max(first);
        Some(Run {
            first_ns: first,
            last_ns: self.last_sample_before(until).clamp(first, last),
            weight_ns: last - first,
            samples,
            cpu_ns: self.cpu_before(last) - self.cpu_before(first),
            ..*self
        })
    }

    /// How many of its samples were taken before a time. They are evenly spaced: sample `i` is at
    /// `first + span * i / gaps`, rounded down.
    pub fn samples_before(&self, time_ns: u64) -> u32 {
        if time_ns <= self.first_ns || self.samples == 0 {
            return 0;
        }
        if time_ns > self.last_ns {
            return self.samples;
        }
        let span = u128::from(self.last_ns - self.first_ns);
        let gaps = u128::from(self.samples - 1).max(1);
        let before = (u128::from(time_ns - self.first_ns) * gaps).div_ceil(span.max(1));
        u32::try_from(before).unwrap_or(u32::MAX).min(self.samples)
    }

    /// The time of its last sample before a time; its beginning if there is none.
    fn last_sample_before(&self, time_ns: u64) -> u64 {
        let last = u128::from(self.samples_before(time_ns).saturating_sub(1));
        let gaps = u128::from(self.samples.saturating_sub(1)).max(1);
        let span = u128::from(self.last_ns.saturating_sub(self.first_ns));
        self.first_ns.saturating_add((span * last / gaps) as u64)
    }

    /// Its CPU time before a time.
    pub fn cpu_before(&self, time_ns: u64) -> u64 {
        if time_ns <= self.first_ns {
            return 0;
        }
        if time_ns >= self.end_ns() {
            return self.cpu_ns;
        }
        let passed = u128::from(time_ns - self.first_ns);
        // Smaller than the whole, since less than its time has passed.
        (u128::from(self.cpu_ns) * passed / u128::from(self.weight_ns.max(1))) as u64
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::profile::{Activity, RunFlags, StopId};

    pub(in crate::profile) fn run(
        first_ns: u64,
        last_ns: u64,
        weight_ns: u64,
        samples: u32,
        cpu_ns: u64,
    ) -> Run {
        Run {
            node: None,
            stop: StopId(0),
            first_ns,
            last_ns,
            weight_ns,
            samples,
            cpu_ns,
            state: RunState::Unknown,
            activity: Activity::OnCpu,
            flags: RunFlags::empty(),
            capture_tag: 0,
        }
    }

    #[test]
    fn numbers_at_the_end_of_names_do_not_count() {
        for name in ["worker", "worker 1", "worker-12", "worker_003", "worker#7", "worker9"] {
            assert_eq!(without_number(name), "worker", "{name}");
        }
        assert_eq!(without_number("gc-"), "gc-", "only what sets a number apart goes with it");
        assert_eq!(without_number("v8 pool"), "v8 pool");
        assert_eq!((without_number(""), without_number("12"), without_number("7")), ("", "#", "#"));
    }

    #[test]
    fn a_sample_counts_in_the_span_in_which_it_was_taken() {
        // Samples at 100, 110, 120 and 130; the run covers up to 145.
        let run = run(100, 130, 45, 4, 90);
        let piece = |from, until| run.within(from, until).map(|run| (run.samples, run.weight_ns, run.cpu_ns));
        assert_eq!(piece(0, 200), Some((4, 45, 90)));
        assert_eq!(piece(0, 110), Some((1, 10, 20)));
        assert_eq!(piece(110, 125), Some((2, 15, 30)));
        assert_eq!(piece(125, 140), Some((1, 15, 30)));
        assert_eq!(piece(140, 145), Some((0, 5, 10)), "the time after its last sample");
        assert_eq!(piece(0, 100), None);
        assert_eq!(piece(145, 200), None);
    }

    #[test]
    fn pieces_add_up_to_the_run() {
        for run in
            [run(0, 0, 1000, 1, 7), run(3, 999, 1000, 77, 12_345), run(5, 5, 10, 3, 1), run(9, 9, 0, 1, 2)]
        {
            for length in [1, 3, 10, 250, 10_000] {
                let pieces = (0..=1003 / length).filter_map(|k| run.within(k * length, (k + 1) * length));
                let sum = pieces.fold((0, 0, 0), |sum, run| {
                    (sum.0 + run.samples, sum.1 + run.weight_ns, sum.2 + run.cpu_ns)
                });
                assert_eq!(sum, (run.samples, run.weight_ns, run.cpu_ns), "{run:?} by {length}");
            }
        }
    }

    #[test]
    fn spans_without_runs_are_left_out_and_too_many_reported() {
        let mut runs = Runs::default();
        runs.push(0, run(0, 0, 10, 1, 0)).unwrap();
        runs.push(0, run(25, 25, 10, 1, 0)).unwrap();
        assert_eq!(spans(&runs, 10, 9).unwrap(), Some(BTreeSet::from([0, 2, 3])));
        assert_eq!(spans(&runs, 10, 2).unwrap(), None);
        runs.push(0, run(40, 40, u64::MAX / 2, 1, 0)).unwrap();
        assert_eq!(spans(&runs, 1, 1000).unwrap(), None);
    }
}
