//! Distinct stacks.

use crate::stack::{FrameId, Interner};

/// Index of a node in [`CallTree`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A stack: a frame called by the stack `parent`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// The caller's stack; `None` for the outermost frame.
    pub parent: Option<NodeId>,
    /// The innermost frame.
    pub frame: FrameId,
}

/// Distinct stacks as a tree. A parent's id is always smaller than its children's.
#[derive(Default, Debug)]
pub struct CallTree {
    nodes: Interner<Node>,
}

impl CallTree {
    /// The id of a node, new or known.
    pub fn intern(&mut self, node: Node) -> NodeId {
        NodeId(self.nodes.intern(node))
    }

    /// All nodes; index = id.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes.values
    }

    /// Frames of a stack, leaf first.
    pub fn frames(&self, leaf: NodeId) -> impl Iterator<Item = FrameId> + '_ {
        let mut next = Some(leaf);
        std::iter::from_fn(move || {
            let node = self.nodes()[next?.0 as usize];
            next = node.parent;
            Some(node.frame)
        })
    }

    /// Visits every node from the roots downwards, once before its callees and once after them. If
    /// the first visit returns false, its callees and the second visit are left out.
    pub fn visit(&self, visit: impl FnMut(NodeId, Visit) -> bool) {
        Children::new(self.nodes().iter().map(|node| node.parent)).visit(visit);
    }

    /// Adds to each node's amount the amounts of all stacks that go through it.
    pub fn add_callees<T: Copy>(&self, amounts: &mut [T], add: impl Fn(&mut T, T)) {
        // A parent's id is smaller than its children's.
        for (id, node) in self.nodes().iter().enumerate().rev() {
            if let Some(NodeId(parent)) = node.parent {
                let amount = amounts[id];
                add(&mut amounts[parent as usize], amount);
            }
        }
    }
}

/// Whether a node is visited before or after its callees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visit {
    /// Before them.
    Enter,
    /// After them.
    Leave,
}

/// A tree from the roots downwards.
pub(crate) struct Children {
    roots: Vec<NodeId>,
    starts: Vec<u32>,
    list: Vec<NodeId>,
}

impl Children {
    /// Of the parents of all nodes, by node.
    pub(crate) fn new(parents: impl ExactSizeIterator<Item = Option<NodeId>> + Clone) -> Children {
        let mut starts = vec![0u32; parents.len() + 1];
        let mut roots = Vec::new();
        for (id, parent) in (0u32..).zip(parents.clone()) {
            match parent {
                Some(parent) => starts[parent.0 as usize + 1] += 1,
                None => roots.push(NodeId(id)),
            }
        }
        for id in 1..starts.len() {
            starts[id] += starts[id - 1];
        }
        let mut next = starts.clone();
        let mut list = vec![NodeId(0); parents.len() - roots.len()];
        for (id, parent) in (0u32..).zip(parents) {
            if let Some(parent) = parent {
                let place = &mut next[parent.0 as usize];
                list[*place as usize] = NodeId(id);
                *place += 1;
            }
        }
        Children { roots, starts, list }
    }

    /// The nodes without a parent.
    pub(crate) fn roots(&self) -> &[NodeId] {
        &self.roots
    }

    /// The children of a node.
    pub(crate) fn of(&self, NodeId(node): NodeId) -> &[NodeId] {
        &self.list[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }

    /// As [`CallTree::visit`].
    pub(crate) fn visit(&self, mut visit: impl FnMut(NodeId, Visit) -> bool) {
        let mut todo: Vec<(NodeId, Visit)> = self.roots.iter().map(|&id| (id, Visit::Enter)).collect();
        while let Some((id, when)) = todo.pop() {
            if visit(id, when) && when == Visit::Enter {
                todo.push((id, Visit::Leave));
                todo.extend(self.of(id).iter().map(|&child| (child, Visit::Enter)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_listed_leaf_first_and_callers_are_shared() {
        let mut tree = CallTree::default();
        let root = tree.intern(Node { parent: None, frame: FrameId(7) });
        let a = tree.intern(Node { parent: Some(root), frame: FrameId(8) });
        let b = tree.intern(Node { parent: Some(root), frame: FrameId(9) });
        assert_eq!(tree.intern(Node { parent: Some(root), frame: FrameId(8) }), a);
        assert_eq!(tree.frames(a).collect::<Vec<_>>(), [FrameId(8), FrameId(7)]);
        assert_eq!(tree.frames(b).collect::<Vec<_>>(), [FrameId(9), FrameId(7)]);
        assert_eq!(tree.nodes().len(), 3);
    }

    #[test]
    fn a_visit_enters_callers_before_callees_and_leaves_them_afterwards() {
        let mut tree = CallTree::default();
        let root = tree.intern(Node { parent: None, frame: FrameId(0) });
        let a = tree.intern(Node { parent: Some(root), frame: FrameId(1) });
        let b = tree.intern(Node { parent: Some(root), frame: FrameId(2) });
        let c = tree.intern(Node { parent: Some(b), frame: FrameId(1) });
        let other = tree.intern(Node { parent: None, frame: FrameId(3) });
        let mut visits = Vec::new();
        tree.visit(|node, when| {
            visits.push((node, when));
            node != b
        });
        let (enter, leave) = (|node| (node, Visit::Enter), |node| (node, Visit::Leave));
        assert_eq!(
            visits,
            [enter(other), leave(other), enter(root), enter(b), enter(a), leave(a), leave(root)],
            "the callee of b, {c:?}, is left out"
        );
        let mut sums = [1, 10, 100, 1000, 10_000];
        tree.add_callees(&mut sums, |sum, more| *sum += more);
        assert_eq!(sums, [1111, 10, 1100, 1000, 10_000]);
    }
}
