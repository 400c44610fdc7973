//! Stacks as nodes. Each node is a function, or the reason why a stack is incomplete, together with
//! its callers.

use super::super::unfold::{Unfolder, incomplete};
use std::collections::HashMap;
use stk_profile::profile::{FunctionId, Functions, NodeId, Profile, StopId};

/// The content of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NodeLabel {
    Function(FunctionId),
    /// At the root of a stack: the reason why it does not reach the thread's start.
    Incomplete(StopId),
}

/// The source of a stack. Equal origins give equal stacks.
pub(super) type StackOrigin = (Option<NodeId>, StopId);

/// Numbers nodes by (parent, content).
#[derive(Default)]
pub(super) struct Stacks {
    unfolder: Unfolder,
    nodes: HashMap<(u32, NodeLabel), u32>,
    known: HashMap<StackOrigin, u32>,
    stack: Vec<FunctionId>,
}

impl Stacks {
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.known.clear();
    }

    /// The innermost node of a stack; `root` if it has none. Calls `new` with the parent and the
    /// content of each new node, to get its number.
    pub(super) fn node_of(
        &mut self,
        profile: &Profile,
        functions: &Functions,
        origin: StackOrigin,
        root: u32,
        mut new: impl FnMut(u32, NodeLabel) -> u32,
    ) -> u32 {
        if let Some(&id) = self.known.get(&origin) {
            return id;
        }
        let (node, stop) = origin;
        self.stack.clear();
        if let Some(node) = node {
            self.unfolder.unfold(profile, functions, node, &mut self.stack);
        }
        let incomplete = incomplete(&profile.stops[stop.0 as usize]).map(|_| NodeLabel::Incomplete(stop));
        let mut parent = root;
        for what in incomplete.into_iter().chain(self.stack.iter().map(|&id| NodeLabel::Function(id))) {
            parent = *self.nodes.entry((parent, what)).or_insert_with(|| new(parent, what));
        }
        self.known.insert(origin, parent);
        parent
    }
}
