//! Stacks as nodes. Each node is a function, or the reason why a stack is incomplete, together with
//! its callers.

use super::super::unfold::incomplete;
use hashbrown::HashMap;
use stk_profile::profile::{FunctionId, Functions, NodeId, Profile, StopId};

/// The content of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NodeLabel {
    Function(FunctionId),
    /// At the root of a stack: the reason why it does not reach the thread's start.
    Incomplete(StopId),
}

/// The source of a stack. Equal origins give equal stacks.
pub(super) type StackSource = (Option<NodeId>, Option<StopId>);

/// Numbers nodes by (parent, content).
#[derive(Default)]
pub(super) struct Stacks {
    nodes: HashMap<(u32, NodeLabel), u32>,
    /// By why stacks end: what they begin with.
    roots: HashMap<Option<StopId>, Root>,
    /// How many roots there were, before the last [`clear`](Self::clear) too.
    all_roots: u32,
    /// By node of the call tree: the innermost node of that stack.
    known: Vec<KnownStack>,
    /// The part of a stack that is not known, innermost first.
    unknown: Vec<NodeId>,
}

/// What stacks begin with that end for one reason.
#[derive(Clone, Copy)]
struct Root {
    /// No other root has it.
    number: u32,
    node: u32,
}

/// A stack behind a root.
#[derive(Clone, Copy, Default)]
struct KnownStack {
    /// The number of the root; 0 = none.
    root: u32,
    node: u32,
}

impl Stacks {
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.roots.clear();
    }

    /// The innermost node of a stack; `root` if it has none. Calls `new` with the parent and the
    /// content of each new node, to get its number.
    pub(super) fn node_of(
        &mut self,
        profile: &Profile,
        functions: &Functions,
        (node, stop): StackSource,
        root: u32,
        mut new: impl FnMut(u32, NodeLabel) -> u32,
    ) -> u32 {
        let Stacks { nodes, roots, all_roots, known, unknown } = self;
        let mut node_of = |parent, what| *nodes.entry((parent, what)).or_insert_with(|| new(parent, what));
        let root = *roots.entry(stop).or_insert_with(|| {
            *all_roots += 1;
            let stop = stop.filter(|stop| incomplete(&profile.stops[stop.0 as usize]).is_some());
            let node = stop.map_or(root, |stop| node_of(root, NodeLabel::Incomplete(stop)));
            Root { number: *all_roots, node }
        });
        let tree = profile.tree.nodes();
        known.resize(known.len().max(tree.len()), KnownStack::default());
        let mut innermost = root.node;
        let mut next = node;
        while let Some(stack) = next {
            let place = known[stack.0 as usize];
            if place.root == root.number {
                innermost = place.node;
                break;
            }
            unknown.push(stack);
            next = tree[stack.0 as usize].parent();
        }
        while let Some(NodeId(stack)) = unknown.pop() {
            for &function in functions.of(tree[stack as usize].frame) {
                innermost = node_of(innermost, NodeLabel::Function(function));
            }
            known[stack as usize] = KnownStack { root: root.number, node: innermost };
        }
        innermost
    }
}
