//! Chooses samples of a profile, and leaves frames out of their stacks.
//!
//! ```text
//! pattern  regular expressions for names           a frame's name -> Marks
//! frames   the marks of all frames and stacks      Profile -> FrameMarks
//! share    what the selection is of the whole      SelectionShare
//! cut      stacks without the frames left out      Profile, Runs -> Profile, Runs
//! rules    frames under the names of groups        Profile, Runs, Rules -> Profile, Runs
//! ```
//!
//! [`select`] takes samples by their whole stacks, and [`leave_out`] takes frames out of the stacks
//! of what is left, so the order of options never matters. Each distinct function is matched once;
//! all else is linear in stacks and runs.

mod cut;
mod frames;
mod pattern;
mod rules;
mod share;

pub use cut::{CutState, is_kept, leave_out};
pub use pattern::{FrameName, FramePatterns, FunctionPattern, Marks, NamePattern, PatternError};
pub use rules::{RuleError, Rules, WrongRule, apply_rules};
pub use share::{SampleSum, SelectionShare};

use super::{ActivityKind, Profile, Run, Runs};
use frames::FrameMarks;
use std::collections::HashSet;
use std::io;
use stk_schema::event::RunState;

/// A thread for as long as it had a name: its instance id, and how many names it had before.
pub type NamedThread = (u64, u32);

/// Which samples to take, and which of their frames to show.
#[derive(Clone, Default, Debug)]
pub struct Selection {
    /// Threads; `None` = all.
    pub threads: Option<HashSet<NamedThread>>,
    /// What the threads did; empty = anything.
    pub states: Vec<ActivityKind>,
    pub frames: FramePatterns,
}

impl Selection {
    /// Whether it chooses among samples.
    pub fn picks_samples(&self) -> bool {
        self.threads.is_some() || !self.states.is_empty() || self.frames.pick_samples()
    }
}

/// The runs of the samples that a selection takes, of a profile with names and activities. Its
/// threads count these samples only, and [`Profile::selection`] is their share;
/// of a profile with a window also where nothing is chosen in that.
pub fn select(profile: &mut Profile, runs: Runs, selection: &Selection) -> io::Result<Runs> {
    let window = profile.window.clone();
    if !selection.picks_samples() && window.is_none() {
        return Ok(runs);
    }
    let stacks = FrameMarks::new(profile, &selection.frames).of_stacks(profile);
    let mut share = SelectionShare {
        from_ns: window.as_ref().map(|window| window.start),
        until_ns: window.map(|window| window.end),
        ..SelectionShare::default()
    };
    let mut out = Runs::with_limit(runs.limit());
    for (at, thread) in (0u32..).zip(&mut profile.threads) {
        (thread.samples, thread.active_samples) = (0, 0);
        let wanted = selection
            .threads
            .as_ref()
            .is_none_or(|wanted| wanted.contains(&(thread.instance, thread.name_number)));
        runs.for_threads([at], |batch| {
            for run in batch.runs {
                let marks = run.node.map_or(Marks::empty(), |node| stacks[node.0 as usize]);
                if share.count(run, &selection.fits(wanted, run, marks)) {
                    thread.samples += u64::from(run.samples);
                    if run.state != RunState::Waiting {
                        thread.active_samples += u64::from(run.samples);
                    }
                    out.push(at, *run)?;
                }
            }
            Ok::<(), io::Error>(())
        })?;
    }
    profile.selection = Some(share);
    Ok(out)
}

impl Selection {
    /// Which of its criteria take a run. `thread`: whether its thread is a chosen one.
    fn fits(&self, thread: bool, run: &Run, stack: Marks) -> [bool; share::CRITERIA.len()] {
        let state = self.states.is_empty() || self.states.contains(&run.activity.kind());
        let [module, function, focus, ignore, root] = self.frames.fits(stack);
        [thread, state, module, function, focus, ignore, root]
    }
}

impl SelectionShare {
    /// Counts a run. Returns whether all criteria take it.
    fn count(&mut self, run: &Run, fits: &[bool; share::CRITERIA.len()]) -> bool {
        self.whole.add_run(run);
        for (sum, _) in self.fitting.iter_mut().zip(fits).filter(|(_, fits)| **fits) {
            *sum = sum.saturating_add(run.samples.into());
        }
        let [others @ .., root] = fits;
        let chosen = others.iter().all(|fits| *fits);
        match (chosen, root) {
            (true, true) => self.chosen.add_run(run),
            (true, false) => self.without_root = self.without_root.saturating_add(run.samples.into()),
            _ => {}
        }
        chosen && *root
    }
}

#[cfg(test)]
mod tests;
