//! Stacks as nodes of a tree, and the lists of their callees.

use crate::stack::FrameId;
use std::hash::{Hash, Hasher};

/// Index of a node in [`CallTree`](super::CallTree).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A stack: a frame called by the stack `parent`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The caller's stack; `None` for the outermost frame.
    pub parent: Option<NodeId>,
    /// The innermost frame.
    pub frame: FrameId,
}

/// A [`Node`] as a tree holds it, in 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeNode {
    /// [`NONE`] for the outermost frame.
    parent: NodeId,
    /// The innermost frame.
    pub frame: FrameId,
}

impl TreeNode {
    /// The caller's stack; `None` for the outermost frame.
    pub fn parent(self) -> Option<NodeId> {
        (self.parent != NONE).then_some(self.parent)
    }
}

impl From<Node> for TreeNode {
    fn from(Node { parent, frame }: Node) -> TreeNode {
        TreeNode { parent: parent.unwrap_or(NONE), frame }
    }
}

impl From<TreeNode> for Node {
    fn from(node: TreeNode) -> Node {
        Node { parent: node.parent(), frame: node.frame }
    }
}

impl Hash for TreeNode {
    /// One number: there are millions of nodes.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.parent.0) << 32 | u64::from(self.frame.0));
    }
}

/// No node: a tree has fewer.
pub(super) const NONE: NodeId = NodeId(u32::MAX);

/// Whether a node is visited before or after its callees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visit {
    /// Before them.
    Enter,
    /// After them.
    Leave,
}

/// A tree from the roots downwards. The nodes of a list are those of one caller, the latest first.
pub struct Children {
    /// The first root.
    root: NodeId,
    /// By node: the first of its children, and the next one of the list that it is in.
    lists: Vec<[NodeId; 2]>,
}

impl Children {
    /// Of the parents of all nodes, by node.
    pub fn new(parents: impl ExactSizeIterator<Item = Option<NodeId>>) -> Children {
        let mut root = NONE;
        let mut lists = vec![[NONE; 2]; parents.len()];
        for (id, parent) in (0u32..).zip(parents) {
            let first = match parent {
                Some(NodeId(parent)) => &mut lists[parent as usize][0],
                None => &mut root,
            };
            let next = std::mem::replace(first, NodeId(id));
            lists[id as usize][1] = next;
        }
        Children { root, lists }
    }

    /// The nodes without a parent.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        self.list(self.root)
    }

    /// The children of a node.
    pub fn of(&self, NodeId(node): NodeId) -> impl Iterator<Item = NodeId> {
        self.list(self.lists[node as usize][0])
    }

    fn list(&self, first: NodeId) -> impl Iterator<Item = NodeId> {
        let node = |node: NodeId| (node != NONE).then_some(node);
        std::iter::successors(node(first), move |NodeId(at)| node(self.lists[*at as usize][1]))
    }

    /// As [`CallTree::visit`](super::CallTree::visit).
    pub fn visit(&self, visit: impl FnMut(NodeId, Visit) -> bool) {
        self.visit_list(self.root, visit);
    }

    /// As [`CallTree::visit`](super::CallTree::visit), only what is below a node.
    pub fn visit_below(&self, NodeId(node): NodeId, visit: impl FnMut(NodeId, Visit) -> bool) {
        self.visit_list(self.lists[node as usize][0], visit);
    }

    fn visit_list(&self, first: NodeId, mut visit: impl FnMut(NodeId, Visit) -> bool) {
        let mut entered: Vec<NodeId> = Vec::new();
        let mut next = first;
        loop {
            if let Some(&[child, sibling]) = self.lists.get(next.0 as usize) {
                let is_entered = visit(next, Visit::Enter);
                if is_entered {
                    entered.push(next);
                }
                next = if is_entered { child } else { sibling };
                continue;
            }
            // The list has ended.
            let Some(node) = entered.pop() else { return };
            visit(node, Visit::Leave);
            next = self.lists[node.0 as usize][1];
        }
    }
}
