//! Distinct stacks.

use crate::stack::{FrameId, Interned};

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
    nodes: Interned<Node>,
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_reads_back_leaf_first_and_shares_its_callers() {
        let mut tree = CallTree::default();
        let root = tree.intern(Node { parent: None, frame: FrameId(7) });
        let a = tree.intern(Node { parent: Some(root), frame: FrameId(8) });
        let b = tree.intern(Node { parent: Some(root), frame: FrameId(9) });
        assert_eq!(tree.intern(Node { parent: Some(root), frame: FrameId(8) }), a);
        assert_eq!(tree.frames(a).collect::<Vec<_>>(), [FrameId(8), FrameId(7)]);
        assert_eq!(tree.frames(b).collect::<Vec<_>>(), [FrameId(9), FrameId(7)]);
        assert_eq!(tree.nodes().len(), 3);
    }
}
