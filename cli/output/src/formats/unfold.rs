//! Stacks in the form of viewers: functions, root first, and a text in place of a missing root.

use std::collections::HashMap;
use stk_profile::profile::{NodeId, Run, RunFlags, StopId, StopInfo, Wait, Weight};

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
#[derive(Default)]
pub(super) struct OriginSums {
    /// By node: its place in `first`, plus one; 0 = it has none. Most nodes are no stack of a run.
    places: Vec<u32>,
    /// By node: most stacks have one end and one wait.
    first: Vec<(StackOrigin, u64)>,
    /// Of other ends and waits of these nodes, and of stacks without frames.
    others: HashMap<StackOrigin, u64>,
}

impl OriginSums {
    /// Adds to the sum of an origin.
    pub(super) fn add(&mut self, origin: StackOrigin, more: u64) {
        let sum = match origin.node {
            Some(node) => self.of_node(node, origin),
            None => self.others.entry(origin).or_default(),
        };
        *sum = sum.saturating_add(more);
    }

    fn of_node(&mut self, NodeId(node): NodeId, origin: StackOrigin) -> &mut u64 {
        let at = node as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, 0);
        }
        if self.places[at] == 0 {
            self.first.push((origin, 0));
            self.places[at] = self.first.len() as u32;
        }
        match &mut self.first[self.places[at] as usize - 1] {
            (first, sum) if *first == origin => sum,
            _ => self.others.entry(origin).or_default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.is_empty()
    }

    /// Each origin with its sum, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StackOrigin, u64)> {
        let first = self.first.iter().copied();
        first.chain(self.others.iter().map(|(origin, sum)| (*origin, *sum))).filter(|(_, sum)| *sum > 0)
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
