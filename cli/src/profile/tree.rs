//! Distinct frames and distinct stacks.

use super::ImageId;
use std::collections::HashMap;
use stk_unwind::Trust;

/// Index of a frame in [`FrameTable`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// Index of a node in [`CallTree`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Where a frame's address lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Placement {
    /// In an image, at an RVA.
    Image(ImageId, u32),
    /// In no module known at that time; the address as it was.
    Unknown(u64),
}

/// What makes two frames the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FrameKey {
    /// Where it lies.
    pub place: Placement,
    /// True: the address is that of an instruction (context frame); false: a return address, looked up at address − 1.
    pub exact: bool,
    /// How it was found.
    pub trust: Trust,
}

/// Distinct frames in order of first appearance.
#[derive(Default, Debug)]
pub struct FrameTable {
    keys: Vec<FrameKey>,
    ids: HashMap<FrameKey, FrameId>,
}

impl FrameTable {
    /// The id of a frame, new or known.
    pub fn intern(&mut self, key: FrameKey) -> FrameId {
        *self.ids.entry(key).or_insert_with(|| {
            self.keys.push(key);
            FrameId(self.keys.len() as u32 - 1)
        })
    }

    /// All frames; index = id.
    pub fn keys(&self) -> &[FrameKey] {
        &self.keys
    }
}

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
    nodes: Vec<Node>,
    ids: HashMap<Node, NodeId>,
}

impl CallTree {
    /// The id of a node, new or known.
    pub fn intern(&mut self, node: Node) -> NodeId {
        *self.ids.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            NodeId(self.nodes.len() as u32 - 1)
        })
    }

    /// All nodes; index = id.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Frames of a stack, leaf first.
    pub fn frames(&self, leaf: NodeId) -> impl Iterator<Item = FrameId> + '_ {
        let mut next = Some(leaf);
        std::iter::from_fn(move || {
            let node = self.nodes[next?.0 as usize];
            next = node.parent;
            Some(node.frame)
        })
    }
}
