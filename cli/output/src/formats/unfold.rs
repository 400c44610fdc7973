//! Stacks in the form of viewers: functions, root first, and a text in place of a missing root.

use std::collections::HashMap;
use stk_profile::profile::{
    FrameId, FunctionId, Functions, NodeId, Profile, Run, RunFlags, StopId, StopInfo, Wait, Weight,
};

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
    /// By node: most stacks have one end and one wait.
    first: Vec<FirstSum>,
    /// Of other ends and waits of these nodes, and of stacks without frames.
    others: HashMap<StackOrigin, u64>,
}

#[derive(Clone, Copy)]
struct FirstSum {
    stop: Option<StopId>,
    wait: Option<Wait>,
    /// 0: none yet.
    sum: u64,
}

impl OriginSums {
    /// Adds to the sum of an origin.
    pub(super) fn add(&mut self, origin: StackOrigin, more: u64) {
        if let Some(NodeId(node)) = origin.node {
            let at = node as usize;
            if self.first.len() <= at {
                self.first.resize(at + 1, FirstSum { stop: None, wait: None, sum: 0 });
            }
            let FirstSum { stop, wait, sum } = &mut self.first[at];
            if *sum == 0 {
                (*stop, *wait) = (origin.stop, origin.wait);
            }
            if (*stop, *wait) == (origin.stop, origin.wait) {
                *sum = sum.saturating_add(more);
                return;
            }
        }
        let sum = self.others.entry(origin).or_default();
        *sum = sum.saturating_add(more);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.is_empty()
    }

    /// Each origin with its sum, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StackOrigin, u64)> {
        let first = (0u32..).zip(&self.first).filter(|(_, first)| first.sum > 0).map(|(node, first)| {
            let origin = StackOrigin { node: Some(NodeId(node)), stop: first.stop, wait: first.wait };
            (origin, first.sum)
        });
        first.chain(self.others.iter().map(|(origin, sum)| (*origin, *sum)))
    }
}

/// The text at the root of a stack that waits.
pub(super) fn wait_root(wait: Wait) -> String {
    format!("[waiting: {} ({})]", wait.reason(), wait.class().as_str())
}

/// Converts stacks to functions, root first.
#[derive(Default, Debug)]
pub(super) struct Unfolder {
    frames: Vec<FrameId>,
}

impl Unfolder {
    /// Appends the functions of a stack to `out`, root first.
    pub(super) fn unfold(
        &mut self,
        profile: &Profile,
        functions: &Functions,
        node: NodeId,
        out: &mut Vec<FunctionId>,
    ) {
        self.frames.clear();
        self.frames.extend(profile.tree.frames(node));
        for &frame in self.frames.iter().rev() {
            out.extend_from_slice(functions.of(frame));
        }
    }
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
