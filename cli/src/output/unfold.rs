//! Stacks in the form of viewers: functions, root first, and a text in place of a missing root.

use crate::profile::{FrameId, FunctionId, Functions, NodeId, Profile, Run, StopId, StopInfo, Wait, Weight};

/// What a stack of an output is made of. Equal origins give equal stacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct StackOrigin {
    pub node: Option<NodeId>,
    pub stop: StopId,
    /// What the thread waits for, where the output counts waits: it is the root of the stack.
    pub wait: Option<Wait>,
}

impl StackOrigin {
    /// The origin of a run's stack in an output that counts `weight`.
    pub(super) fn of(run: &Run, weight: Weight) -> StackOrigin {
        let wait = if weight == Weight::Waiting { run.activity.wait() } else { None };
        StackOrigin { node: run.node, stop: run.stop, wait }
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
