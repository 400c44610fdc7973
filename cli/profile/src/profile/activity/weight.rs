//! What lists and flame graphs count.

use crate::profile::{Batch, Profile, Run};
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

/// Gives runs the weight that a flame graph counts.
pub struct RunWeigher {
    weight: Weight,
    interval_ns: u64,
    /// The thread of `at`.
    thread: Option<u32>,
    /// Where that thread's next run begins.
    at: u64,
    /// The runs of the last batch. Kept to reuse its memory.
    runs: Vec<Run>,
}

impl RunWeigher {
    /// For the runs of a profile, thread by thread.
    pub fn new(profile: &Profile, weight: Weight) -> RunWeigher {
        let interval_ns = profile.trace.interval_ns;
        RunWeigher { weight, interval_ns, thread: None, at: 0, runs: Vec::new() }
    }

    /// The runs of a batch that have weight. For other weights than [`Weight::Wall`], the runs of
    /// a thread follow each other without gaps: a run begins where the weight of those before it
    /// ends.
    pub fn weigh<'a>(&'a mut self, batch: &Batch<'a>) -> Batch<'a> {
        if self.weight == Weight::Wall {
            return Batch { ..*batch };
        }
        if self.thread != Some(batch.thread) {
            (self.thread, self.at) = (Some(batch.thread), 0);
        }
        self.runs.clear();
        for run in batch.runs {
            let weight_ns = self.weight.of(run, self.interval_ns);
            if weight_ns > 0 {
                self.runs.push(Run { first_ns: self.at, last_ns: self.at, weight_ns, ..*run });
                self.at = self.at.saturating_add(weight_ns);
            }
        }
        Batch { thread: batch.thread, runs: &self.runs }
    }
}
