//! What a selection is of the whole.

use crate::profile::{Additive, Run};
use serde::Serialize;
use stk_base::text::{count, counted, since_start, span};

/// Sums of samples.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct SampleSum {
    pub samples: u64,
    /// CPU time in nanoseconds; 0 if not recorded.
    pub cpu_ns: u64,
    /// Time that the samples cover, in nanoseconds.
    pub weight_ns: u64,
}

impl SampleSum {
    /// Adds a run's samples.
    pub fn add_run(&mut self, run: &Run) {
        let Run { cpu_ns, weight_ns, .. } = *run;
        self.add(SampleSum { samples: run.samples.into(), cpu_ns, weight_ns });
    }
}

impl Additive for SampleSum {
    fn add(&mut self, more: SampleSum) {
        self.samples.add(more.samples);
        self.cpu_ns.add(more.cpu_ns);
        self.weight_ns.add(more.weight_ns);
    }
}

/// The criteria of a selection, in the order of [`SelectionShare::fitting`].
pub(super) const CRITERIA: [&str; 7] =
    [THREADS, STATE, "--module", "--function", "--focus", IGNORE, "--root"];
const THREADS: &str = "--thread";
const STATE: &str = "--state";
const IGNORE: &str = "--ignore";

/// What a selection is of the whole: of all samples in the requested time.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct SelectionShare {
    /// The window, in nanoseconds since trace start, as far as samples were recorded in it; `None`:
    /// there is none.
    pub from_ns: Option<u64>,
    /// The moment behind its last.
    pub until_ns: Option<u64>,
    pub chosen: SampleSum,
    pub whole: SampleSum,
    /// Samples that are left out for this alone: they have no frame at which stacks are to begin.
    pub without_root: u64,
    /// Samples that each criterion takes by itself.
    #[serde(skip)]
    pub(super) fitting: [u64; CRITERIA.len()],
}

impl SelectionShare {
    /// In words: the shares of CPU time, time and samples.
    pub fn describe(&self) -> String {
        let SelectionShare { chosen, whole, .. } = self;
        let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
        let time = |part, all, what| format!("{:.1} % of the {what} ({})", percent(part, all), span(part));
        let mut parts = Vec::new();
        if let (Some(from), Some(until)) = (self.from_ns, self.until_ns) {
            parts.push(format!("from {} to {}", since_start(from), since_start(until)));
            if chosen == whole && self.without_root == 0 {
                return parts.join(", ");
            }
        }
        if whole.cpu_ns > 0 {
            parts.push(time(chosen.cpu_ns, whole.cpu_ns, "CPU time"));
        }
        parts.push(time(chosen.weight_ns, whole.weight_ns, "threads' time"));
        let samples = percent(chosen.samples, whole.samples);
        parts.push(format!(
            "{samples:.1} % of the samples ({} of {})",
            count(chosen.samples),
            count(whole.samples)
        ));
        if self.without_root > 0 {
            parts.push(format!(
                "left out for lack of a --root frame: {}",
                counted(self.without_root, "sample")
            ));
        }
        parts.join(", ")
    }

    /// Why nothing was chosen.
    pub fn why_empty(&self) -> String {
        if self.whole.samples == 0 {
            return "no thread was sampled in that time".to_owned();
        }
        let all = counted(self.whole.samples, "sample");
        match CRITERIA.iter().zip(self.fitting).find(|&(_, fits)| fits == 0) {
            None => format!("each option takes some of the {all}, and no sample fits them all"),
            Some((&THREADS, _)) => format!("the chosen threads have none of the {all}"),
            Some((&STATE, _)) => format!("none of the {all} has such a --state"),
            Some((&IGNORE, _)) => format!("each of the {all} has a frame that --ignore names"),
            Some((option, _)) => format!("none of the {all} has a frame that {option} names"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_shown_beside_the_whole() {
        let sum = |samples, cpu_ns, weight_ns| SampleSum { samples, cpu_ns, weight_ns };
        let share = SelectionShare {
            chosen: sum(30, 500_000_000, 1_000_000_000),
            whole: sum(4_000, 2_000_000_000, 8_000_000_000),
            without_root: 1,
            ..SelectionShare::default()
        };
        assert_eq!(
            share.describe(),
            "25.0 % of the CPU time (500 ms), 12.5 % of the threads' time (1.00 s), \
             0.8 % of the samples (30 of 4,000), left out for lack of a --root frame: 1 sample"
        );
        let unknown = SelectionShare { chosen: sum(1, 0, 5), whole: sum(2, 0, 10), ..share };
        assert!(unknown.describe().starts_with("50.0 % of the threads' time ("), "no CPU time is recorded");
    }

    #[test]
    fn the_option_that_leaves_nothing_is_named() {
        let why = |fitting| {
            let whole = SampleSum { samples: 9, ..SampleSum::default() };
            SelectionShare { whole, fitting, ..SelectionShare::default() }.why_empty()
        };
        assert_eq!(why([9, 9, 9, 9, 0, 9, 9]), "none of the 9 samples has a frame that --focus names");
        assert_eq!(why([9, 9, 9, 9, 9, 0, 9]), "each of the 9 samples has a frame that --ignore names");
        assert_eq!(
            why([4, 5, 9, 9, 9, 9, 9]),
            "each option takes some of the 9 samples, and no sample fits them all"
        );
    }
}
