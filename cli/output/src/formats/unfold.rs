//! Stacks in the form of viewers: functions, root first, and a text in place of a missing root.

use hashbrown::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use stk_profile::profile::{Chains, NodeId, Profile, Run, RunFlags, StopId, StopInfo, Wait, Weight};

/// What a stack of an output is made of. Equal origins give equal stacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct StackOrigin {
    pub node: Option<NodeId>,
    /// Why the stack ends; `None` of a placeholder for a stack, which says that itself.
    pub stop: Option<StopId>,
    /// What the thread waits for, where the output counts waits: it is the root of the stack.
    pub wait: Option<Wait>,
}

impl StackOrigin {
    /// The origin of a run's stack in an output that counts `weight`.
    pub(super) fn of(run: &Run, weight: Weight) -> StackOrigin {
        let wait = if weight == Weight::Waiting { run.activity.wait() } else { None };
        StackOrigin { node: run.node, stop: stop_of(run), wait }
    }
}

/// Why a run's stack ends; `None` of a placeholder for a stack, which says that itself.
pub(super) fn stop_of(run: &Run) -> Option<StopId> {
    (!run.flags.contains(RunFlags::NO_STACK)).then_some(run.stop)
}

/// Sums by the origin of a stack.
pub(super) struct OriginSums {
    /// By stop: whether a text takes the place of the root.
    is_incomplete: Vec<bool>,
    /// By chain: the sum of the stack that it ends with, above which nothing stands.
    sums: Vec<u64>,
    /// The others, in parts that are summed at once.
    parts: Vec<Mutex<OtherOrigins>>,
}

/// Sums of stacks above which something stands, and of those without frames.
#[derive(Default)]
struct OtherOrigins {
    sums: HashMap<StackOrigin, u64>,
    /// Whether the chains of this part have sums.
    has_chains: bool,
}

impl OriginSums {
    /// No sums yet of the stacks of a profile.
    pub(super) fn new(profile: &Profile) -> OriginSums {
        OriginSums {
            is_incomplete: profile.stops.iter().map(|stop| !stop.reason.is_complete()).collect(),
            sums: vec![0; profile.tree.chains().len().max(1)],
            parts: std::iter::repeat_with(Mutex::default).take(rayon::current_num_threads()).collect(),
        }
    }

    /// Adds so many runs: their origins, and what to add to the sum of each. The chains are those
    /// of the profile.
    pub(super) fn add(
        &mut self,
        chains: &Chains,
        runs: usize,
        origins: impl Iterator<Item = (StackOrigin, u64)> + Clone + Sync,
    ) {
        let OriginSums { is_incomplete, sums, parts } = self;
        chains.add(sums, runs, |part, mut sums| {
            let mut others = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            for (origin, more) in origins.clone() {
                let is_incomplete = origin.stop.is_some_and(|stop| is_incomplete[stop.0 as usize]);
                match origin.node.map(|node| sums.of(node)) {
                    Some(None) => continue,
                    Some(Some(sum)) if origin.wait.is_none() && !is_incomplete => {
                        *sum = sum.saturating_add(more);
                        others.has_chains |= more > 0;
                        continue;
                    }
                    // Stacks without frames are those of the first part.
                    None if part > 0 => continue,
                    _ => {}
                }
                if more > 0 {
                    let sum = others.sums.entry(origin).or_default();
                    *sum = sum.saturating_add(more);
                }
            }
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_chains() && self.parts().all(|part| part.sums.is_empty())
    }

    /// Whether there are stacks above which nothing stands.
    pub(super) fn has_chains(&self) -> bool {
        self.parts().any(|part| part.has_chains)
    }

    /// By chain: the sum of the stack that it ends with, above which nothing stands.
    pub(super) fn into_chains(self) -> Vec<u64> {
        self.sums
    }

    /// The other origins with their sums, in no particular order. One may have several.
    pub(super) fn others(&self) -> impl Iterator<Item = (StackOrigin, u64)> {
        self.parts()
            .flat_map(|part| part.sums.iter().map(|(origin, sum)| (*origin, *sum)).collect::<Vec<_>>())
    }

    fn parts(&self) -> impl Iterator<Item = MutexGuard<'_, OtherOrigins>> {
        self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The text at the root of a stack that waits.
pub(super) fn wait_root(wait: Wait) -> String {
    format!("[waiting: {} ({})]", wait.reason(), wait.class().as_str())
}

/// Stands for a stack whose frames are all left out, so that its weight is not lost.
pub(super) const EMPTY: &str = "[frames left out]";

/// The text that viewers show at the root of a stack that does not reach the thread's start; `None`
/// for a complete stack.
pub(super) fn incomplete(stop: &StopInfo) -> Option<String> {
    let reason = stop.reason.as_str();
    if stop.reason.is_complete() {
        None
    } else if stop.module.is_empty() {
        Some(format!("[incomplete stack: {reason}]"))
    } else {
        Some(format!("[incomplete stack: {reason} in {}]", stop.module))
    }
}
