//! What lists and flame graphs count.

use crate::profile::{Batch, Profile, Run, SEGMENT_RUNS};
use rayon::prelude::*;
use serde::Serialize;

/// What a list or a flame graph counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// CPU time.
    Cpu,
    /// Time that samples cover, waits included.
    Wall,
    /// Samples: each counts for one nominal interval.
    Samples,
    /// Samples in which the thread did not wait.
    Active,
    /// Time that samples cover in which the thread waited.
    Waiting,
}

impl Weight {
    /// What it is, for headings and names of profiles.
    pub fn title(self) -> &'static str {
        match self {
            Weight::Cpu => "CPU time",
            Weight::Wall => "time, waits included",
            Weight::Samples => "samples",
            Weight::Active => "samples, waits left out",
            Weight::Waiting => "time of waits",
        }
    }

    /// The weight of a run, in nanoseconds. `interval_ns`: the nominal time between two samples.
    pub fn of(self, run: &Run, interval_ns: u64) -> u64 {
        match self {
            Weight::Cpu => run.cpu_ns,
            Weight::Wall => run.weight_ns,
            Weight::Waiting => run.activity.wait().map_or(0, |_| run.weight_ns),
            Weight::Active if run.activity.wait().is_some() => 0,
            Weight::Samples | Weight::Active => u64::from(run.samples).saturating_mul(interval_ns),
        }
    }
}

/// How runs of a thread are counted.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Weighing {
    weight: Weight,
    interval_ns: u64,
    /// Up to where the runs before them reach, in nanoseconds.
    start_ns: u64,
}

impl Weighing {
    /// By the time that they cover, from the thread's first one on.
    pub(in super::super) const TIME: Weighing =
        Weighing { weight: Weight::Wall, interval_ns: 0, start_ns: 0 };
}

/// Gives runs the weight that a flame graph counts.
pub struct RunWeigher {
    weighing: Weighing,
    /// The thread of the last batch.
    thread: Option<u32>,
}

impl RunWeigher {
    /// For the runs of a profile, thread by thread.
    pub fn new(profile: &Profile, weight: Weight) -> RunWeigher {
        let interval_ns = profile.trace.interval_ns;
        RunWeigher { weighing: Weighing { weight, interval_ns, start_ns: 0 }, thread: None }
    }

    /// The same runs, which [`Batch::weighed`] gives this weight.
    pub fn weigh<'a>(&mut self, batch: &Batch<'a>) -> Batch<'a> {
        if self.thread != Some(batch.thread) {
            (self.thread, self.weighing.start_ns) = (Some(batch.thread), 0);
        }
        let weighed = Batch { weighing: self.weighing, ..*batch };
        if !batch.is_last && self.weighing.weight != Weight::Wall {
            self.weighing.start_ns = weighed.split(SEGMENT_RUNS).1;
        }
        weighed
    }
}

impl<'a> Batch<'a> {
    /// The runs in the weight that is counted. For other weights than [`Weight::Wall`], these are
    /// those that have any, and they follow each other without gaps: a run begins where the weight
    /// of those before it ends.
    pub fn weighed(&self) -> impl Iterator<Item = Run> + Clone + use<'a> {
        let Weighing { weight, interval_ns, mut start_ns } = self.weighing;
        self.runs.iter().filter_map(move |run| {
            if weight == Weight::Wall {
                return Some(*run);
            }
            let weight_ns = weight.of(run, interval_ns);
            let (first_ns, last_ns) = (start_ns, start_ns);
            start_ns = start_ns.saturating_add(weight_ns);
            (weight_ns > 0).then_some(Run { first_ns, last_ns, weight_ns, ..*run })
        })
    }

    /// Up to where the runs before these reach, in nanoseconds: those of the batch that this one is
    /// [cut](Batch::split) from, and for other weights than [`Weight::Wall`] all of the thread.
    pub fn start_ns(&self) -> u64 {
        self.weighing.start_ns
    }

    /// Whether more runs of the thread may follow.
    pub fn may_continue(&self) -> bool {
        !self.is_last
    }

    /// Cuts the batch into some of `len` runs. Returns them with up to where all these runs reach.
    pub fn split(&self, len: usize) -> (Vec<Batch<'a>>, u64) {
        let Weighing { weight, mut start_ns, .. } = self.weighing;
        let part = |runs, start_ns| Batch { runs, weighing: Weighing { start_ns, ..self.weighing }, ..*self };
        let reach = |runs| {
            let weighed = part(runs, 0).weighed().filter(|run| run.weight_ns > 0);
            weighed.map(|run| run.end_ns()).max().unwrap_or(0)
        };
        let reaches: Vec<u64> = self.runs.par_chunks(len).map(reach).collect();
        let cut = |(runs, reach)| {
            let part = part(runs, start_ns);
            start_ns =
                if weight == Weight::Wall { start_ns.max(reach) } else { start_ns.saturating_add(reach) };
            part
        };
        (self.runs.chunks(len).zip(reaches).map(cut).collect(), start_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Activity, RunFlags, StopId};
    use stk_schema::event::RunState;

    #[test]
    fn parts_of_a_batch_are_weighed_as_the_whole() {
        let run = |i: u64| Run {
            node: None,
            stop: StopId(0),
            // The third of each seven ends behind those that follow.
            first_ns: 100 * i,
            last_ns: 100 * i,
            weight_ns: if i % 7 == 2 { 450 } else { 100 },
            samples: 1,
            cpu_ns: 10 * (i % 3),
            state: RunState::Unknown,
            activity: Activity::OnCpu,
            flags: RunFlags::empty(),
            capture_tag: 0,
        };
        let runs: Vec<Run> = (0..50).map(run).collect();
        for (weight, start_ns, end_ns) in [(Weight::Wall, 0, 5_000), (Weight::Cpu, 40, 40 + 490)] {
            let weighing = Weighing { weight, interval_ns: 1, start_ns };
            let whole = Batch { thread: 3, runs: &runs, weighing, is_last: true };
            for len in [1, 4, 50, 100] {
                let (parts, end) = whole.split(len);
                assert_eq!((parts.len(), end), (50usize.div_ceil(len), end_ns), "{weight:?} {len}");
                assert!(parts.iter().flat_map(|part| part.weighed()).eq(whole.weighed()));
                let mut reach = start_ns;
                for part in parts {
                    assert_eq!(part.start_ns(), reach);
                    reach = part.weighed().map(|run| run.end_ns()).fold(reach, u64::max);
                }
            }
        }
    }
}
