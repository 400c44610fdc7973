//! Stacks as viewers show them: functions, root first, and what stands for a root that is missing.

use crate::profile::{FrameId, FunctionId, Functions, NodeId, Profile, StopInfo};

/// Turns stacks into functions, root first.
#[derive(Default, Debug)]
pub(super) struct Unfolder {
    frames: Vec<FrameId>,
}

impl Unfolder {
    /// Appends the functions of a stack to `out`, root first.
    pub fn unfold(
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

/// What viewers show at the root of a stack that does not reach the thread's start; `None` for one
/// that does.
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
