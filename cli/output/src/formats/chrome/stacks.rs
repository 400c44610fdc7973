//! Numbers of nodes in V8's profile of a thread. Each node is a function, or the reason why a stack
//! is incomplete, together with its callers.

use super::super::unfold::incomplete;
use hashbrown::HashMap;
use stk_profile::profile::{Folded, NodeId, Profile, StopId};

/// The source of a stack. Equal origins give equal stacks.
pub(super) type StackSource = (Option<NodeId>, Option<StopId>);

/// The content of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeLabel {
    /// A function of this number.
    Function(u32),
    /// At the root of a stack: the reason why it does not reach the thread's start.
    Incomplete(StopId),
}

/// Numbers the nodes of one thread's profile after another's.
#[derive(Default)]
pub(super) struct NodeNumbers {
    /// By why stacks end: what they begin with.
    roots: HashMap<StopId, Root>,
    /// What complete stacks begin with.
    complete: Root,
    /// How many roots there were in all profiles.
    all_roots: u32,
    /// By stack of functions: its node behind the root with which it was first seen.
    first: Vec<NumberedNode>,
    /// Nodes behind other roots, by root and stack.
    others: HashMap<(u32, NodeId), u32>,
    /// The part of a stack that has no nodes, innermost first.
    unknown: Vec<NodeId>,
}

/// What stacks begin with.
#[derive(Clone, Copy, Default)]
struct Root {
    /// No other root has it, of any profile.
    number: u32,
    node: u32,
}

/// A node behind a root.
#[derive(Clone, Copy, Default)]
struct NumberedNode {
    /// The number of the root; 0 = none.
    root: u32,
    node: u32,
}

impl NodeNumbers {
    /// Begins a profile with this root.
    pub(super) fn begin(&mut self, root: u32) {
        self.roots.clear();
        self.others.clear();
        self.all_roots += 1;
        self.complete = Root { number: self.all_roots, node: root };
    }

    /// The innermost node of a stack. Calls `new` with the parent and the content of each new node,
    /// to get its number.
    pub(super) fn node_of(
        &mut self,
        profile: &Profile,
        folded: &Folded,
        (node, stop): StackSource,
        mut new: impl FnMut(u32, NodeLabel) -> u32,
    ) -> u32 {
        let NodeNumbers { roots, complete, all_roots, first, others, unknown } = self;
        let root = stop.map_or(*complete, |stop| {
            *roots.entry(stop).or_insert_with(|| match incomplete(&profile.stops[usize::from(stop.0)]) {
                None => *complete,
                Some(_) => {
                    *all_roots += 1;
                    Root { number: *all_roots, node: new(complete.node, NodeLabel::Incomplete(stop)) }
                }
            })
        });
        first.resize(first.len().max(folded.tree.len()), NumberedNode::default());
        let is_seen = |place: NumberedNode| place.root >= complete.number;
        let mut innermost = root.node;
        let mut next = node.and_then(|NodeId(node)| folded.stacks[node as usize]);
        while let Some(stack) = next {
            let place = first[stack.0 as usize];
            if place.root == root.number {
                innermost = place.node;
                break;
            }
            if is_seen(place)
                && let Some(known) = others.get(&(root.number, stack))
            {
                innermost = *known;
                break;
            }
            unknown.push(stack);
            next = folded.tree.caller(stack);
        }
        while let Some(stack) = unknown.pop() {
            innermost = new(innermost, NodeLabel::Function(folded.tree.function(stack)));
            let place = &mut first[stack.0 as usize];
            if is_seen(*place) {
                others.insert((root.number, stack), innermost);
            } else {
                *place = NumberedNode { root: root.number, node: innermost };
            }
        }
        innermost
    }
}
