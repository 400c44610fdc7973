//! What lists and flame graphs count.

use crate::profile::{Activity, Profile, Run, Runs};
use serde::Serialize;
use std::io;

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
}

impl Weight {
    /// The weight of a run, in nanoseconds. `interval_ns`: the nominal time between two samples.
    pub fn of(self, run: &Run, interval_ns: u64) -> u64 {
        match self {
            Weight::Cpu => run.cpu_ns,
            Weight::Wall => run.weight_ns,
            Weight::Active if matches!(run.activity, Activity::Waiting(_)) => 0,
            Weight::Samples | Weight::Active => u64::from(run.samples).saturating_mul(interval_ns),
        }
    }
}

/// The runs for a flame graph of this weight. For other weights than [`Weight::Wall`], the runs of
/// a thread follow each other without gaps: a run begins where the weight of those before it ends.
///
/// # Errors
///
/// When the temporary file of the runs cannot be read or written.
pub fn weigh(profile: &Profile, runs: Runs, weight: Weight) -> io::Result<Runs> {
    if weight == Weight::Wall {
        return Ok(runs);
    }
    let mut out = Runs::with_limit(runs.limit());
    for thread in 0..profile.threads.len() as u32 {
        let mut at = 0u64;
        runs.for_threads([thread], |batch| {
            for run in batch.runs {
                let weight_ns = weight.of(run, profile.trace.interval_ns);
                out.push(thread, Run { first_ns: at, last_ns: at, weight_ns, ..*run })?;
                at = at.saturating_add(weight_ns);
            }
            Ok::<(), io::Error>(())
        })?;
    }
    Ok(out)
}
