//! Distinct stacks.

use super::chains::Chains;
use super::node::{Children, NONE, Node, NodeId, TreeNode, Visit};
use super::runs::Runs;
use crate::stack::FrameId;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use std::io;
use std::sync::OnceLock;

/// Distinct stacks as a tree. A parent's id is always smaller than its children's.
///
/// The callees of a node are a list, the last requested one at its head: most often it is
/// asked for again. Only callees beyond the first [`MOST_LISTED`] of a node are in a hash table.
#[derive(Clone, Default, Debug)]
pub struct CallTree {
    nodes: Vec<TreeNode>,
    /// By node: the head of the list of its callees.
    heads: Vec<Head>,
    /// The list of the nodes without a caller.
    roots: Head,
    /// By node: the next one of the list that it is in, or [`NONE`].
    next: Vec<NodeId>,
    /// Nodes that are in no list.
    others: HashTable<NodeId>,
    /// Of a settled tree: how many nodes are settled, and how many frames were known then.
    settled: Settled,
    /// Of the nodes that there are: made when first requested, or with [`chain`](Self::chain).
    chains: OnceLock<Box<Chains>>,
    /// Seeded at random, so that no trace can force collisions.
    hasher: DefaultHashBuilder,
}

/// What a tree had when it was settled. A node whose caller or frame is newer is not among its
/// nodes.
#[derive(Clone, Copy, Default, Debug)]
struct Settled {
    nodes: u32,
    frames: u64,
}

/// Callees of a node that are in its list.
const MOST_LISTED: usize = 8;

/// The first node of a list, with its frame. The node is [`NONE`] if the list is empty.
#[derive(Clone, Copy, Debug)]
struct Head {
    frame: FrameId,
    node: NodeId,
}

impl Default for Head {
    fn default() -> Head {
        Head { frame: FrameId(0), node: NONE }
    }
}

impl CallTree {
    /// The id of a node, new or known.
    pub fn intern(&mut self, node: Node) -> NodeId {
        // Samples can have other stacks from now on.
        self.chains.take();
        if self.settled.nodes > 0 {
            let Settled { nodes, frames } = self.settled;
            if u64::from(node.frame.0) >= frames || node.parent.is_some_and(|parent| parent.0 >= nodes) {
                return self.intern_other(node);
            }
            (self.settled, self.others) = (Settled::default(), HashTable::new());
            for node in std::mem::take(&mut self.nodes) {
                self.intern(node.into());
            }
        }
        let head = self.head(node.parent);
        if head.node == NONE {
            return self.push(node, NONE);
        }
        if head.frame == node.frame {
            return head.node;
        }
        let mut before = head.node;
        for _ in 1..MOST_LISTED {
            let at = self.next[before.0 as usize];
            if at == NONE {
                return self.push(node, head.node);
            }
            if self.nodes[at.0 as usize].frame == node.frame {
                self.next[before.0 as usize] = self.next[at.0 as usize];
                self.lead(at, head.node);
                return at;
            }
            before = at;
        }
        self.intern_other(node)
    }

    /// A settled tree of these nodes. No two are equal; a parent comes before its children.
    pub(super) fn of_settled(nodes: Vec<TreeNode>) -> CallTree {
        let mut tree = CallTree { nodes, ..CallTree::default() };
        tree.settle();
        tree
    }

    /// Frees what only [`intern`](Self::intern) needs, half of the tree's memory. Should a node be
    /// interned later whose caller and frame are there, that is made again.
    pub fn settle(&mut self) {
        let nodes = self.nodes.len() as u32;
        if nodes == self.settled.nodes {
            return;
        }
        self.nodes.shrink_to_fit();
        (self.heads, self.next) = (Vec::new(), Vec::new());
        (self.roots, self.others) = (Head::default(), HashTable::new());
        let frames = self.nodes.iter().map(|node| u64::from(node.frame.0) + 1).max().unwrap_or(0);
        self.settled = Settled { nodes, frames };
    }

    /// Settles the tree, and makes its chains for the samples of these runs, unless they were made
    /// since a node was interned last.
    ///
    /// # Errors
    ///
    /// A failure to read the runs' temporary file.
    pub fn chain(&mut self, runs: &Runs) -> io::Result<()> {
        self.settle();
        if self.chains.get().is_none() {
            self.chains = OnceLock::from(Box::new(Chains::of(&self.nodes, runs)?));
        }
        Ok(())
    }

    /// The chains of its nodes. Without a call of [`chain`](Self::chain), each node is one.
    pub fn chains(&self) -> &Chains {
        self.chains.get_or_init(|| Box::new(Chains::of_each(&self.nodes)))
    }

    /// The id of a node that is in no list, new or known.
    fn intern_other(&mut self, node: Node) -> NodeId {
        let stored = TreeNode::from(node);
        let CallTree { nodes, others, hasher, .. } = self;
        let entry = others.entry(
            hasher.hash_one(stored),
            |id| nodes[id.0 as usize] == stored,
            |id| hasher.hash_one(nodes[id.0 as usize]),
        );
        match entry {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                let id = NodeId(nodes.len() as u32);
                free.insert(id);
                self.append(node);
                id
            }
        }
    }

    /// Adds a node at the head of its list, before `first`.
    fn push(&mut self, node: Node, first: NodeId) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.append(node);
        self.lead(id, first);
        id
    }

    fn append(&mut self, node: Node) {
        self.nodes.push(node.into());
        if self.settled.nodes == 0 {
            self.heads.push(Head::default());
            self.next.push(NONE);
        }
    }

    /// Makes a node the head of its list, before `first`.
    fn lead(&mut self, id: NodeId, first: NodeId) {
        self.next[id.0 as usize] = first;
        let Node { parent, frame } = self.nodes[id.0 as usize].into();
        let head = Head { frame, node: id };
        match parent {
            Some(parent) => self.heads[parent.0 as usize] = head,
            None => self.roots = head,
        }
    }

    fn head(&self, parent: Option<NodeId>) -> Head {
        match parent {
            Some(parent) => self.heads[parent.0 as usize],
            None => self.roots,
        }
    }

    /// All nodes; index = id.
    pub fn nodes(&self) -> &[TreeNode] {
        &self.nodes
    }

    /// Frames of a stack, leaf first.
    pub fn frames(&self, leaf: NodeId) -> impl Iterator<Item = FrameId> + '_ {
        let mut next = Some(leaf);
        std::iter::from_fn(move || {
            let node = self.nodes()[next?.0 as usize];
            next = node.parent();
            Some(node.frame)
        })
    }

    /// Visits every node from the roots downwards, once before its callees and once after them. If
    /// the first visit returns false, its callees and the second visit are left out.
    pub fn visit(&self, visit: impl FnMut(NodeId, Visit) -> bool) {
        Children::new(self.nodes().iter().map(|node| node.parent())).visit(visit);
    }

    /// Adds to each node's amount the amounts of all stacks that go through it.
    pub fn add_callees<T: Copy>(&self, amounts: &mut [T], add: impl Fn(&mut T, T)) {
        // A parent's id is smaller than its children's.
        for (id, node) in self.nodes().iter().enumerate().rev() {
            if let Some(NodeId(parent)) = node.parent() {
                let amount = amounts[id];
                add(&mut amounts[parent as usize], amount);
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
    fn nodes_with_very_many_callees_and_callers_keep_their_ids() {
        const FRAMES: u32 = 100;
        let mut tree = CallTree::default();
        let mut ids = Vec::new();
        for round in 0..3 {
            let mut found = Vec::new();
            for step in 0..FRAMES {
                // Another order each time: 37 and 100 have no common divisor.
                let frame = FrameId((step * 37 + round) % FRAMES);
                let root = tree.intern(Node { parent: None, frame });
                let callees: Vec<NodeId> = (0..FRAMES)
                    .map(|callee| tree.intern(Node { parent: Some(root), frame: FrameId(callee) }))
                    .collect();
                assert!(callees.iter().zip(0..).all(|(id, callee)| {
                    tree.nodes()[id.0 as usize] == Node { parent: Some(root), frame: FrameId(callee) }.into()
                }));
                found.push((frame, root, callees));
            }
            tree.settle();
            found.sort();
            if round == 0 {
                ids.clone_from(&found);
            }
            assert_eq!(found, ids);
        }
        assert_eq!(tree.nodes().len(), (FRAMES + FRAMES * FRAMES) as usize);
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
