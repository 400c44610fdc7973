//! The nodes of a call tree as chains: what is summed up by stack has one sum a chain.
//!
//! Most nodes of a recording have one callee and are the stack of no sample. So a chain is one
//! number of several nodes, and there are about a third as many.

use super::node::{Children, NodeId, TreeNode};
use super::runs::Runs;
use rayon::prelude::*;
use std::io;
use std::ops::Range;

/// Index of a chain in [`Chains`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ChainId(pub u32);

/// The chains of a call tree: nodes that follow each other, each the only callee of the one before.
/// Only the last one of a chain can be the stack of a sample.
///
/// A chain's number is larger than that of the chain whose last node calls its first one.
#[derive(Clone, Debug)]
pub struct Chains {
    /// By 64 nodes: a bit for each that ends a chain.
    ends: Vec<u64>,
    /// By 64 nodes: how many chains end before them.
    before: Vec<u32>,
    /// By chain: its last node.
    last: Vec<NodeId>,
    /// By chain: the one that calls it, or [`NONE`].
    callers: Vec<u32>,
}

/// In place of a chain: there is none.
const NONE: u32 = u32::MAX;

/// Runs that are not worth several threads.
const FEW_RUNS: usize = 4 << 10;

impl Chains {
    /// Those of a tree's nodes, where samples have the stacks of these runs.
    pub(super) fn of(nodes: &[TreeNode], runs: &Runs) -> io::Result<Chains> {
        let mut ends = vec![0u64; nodes.len() / GROUP + 1];
        let mut end = |node: usize| ends[node / GROUP] |= 1 << (node % GROUP);
        runs.for_each(|batch| {
            batch.runs.iter().filter_map(|run| run.node).for_each(|NodeId(node)| end(node as usize));
            Ok::<(), io::Error>(())
        })?;
        for (at, node) in nodes.iter().enumerate() {
            let caller = node.parent().map(|NodeId(caller)| caller as usize);
            if at > 0 && caller != Some(at - 1) {
                end(at - 1);
                caller.into_iter().for_each(&mut end);
            }
        }
        nodes.len().checked_sub(1).into_iter().for_each(&mut end);
        Ok(Chains::with_ends(nodes, ends))
    }

    /// Those of a tree of whose nodes each can be the stack of a sample.
    pub(super) fn of_each(nodes: &[TreeNode]) -> Chains {
        let mut ends = vec![u64::MAX; nodes.len() / GROUP + 1];
        ends[nodes.len() / GROUP] = (1 << (nodes.len() % GROUP)) - 1;
        Chains::with_ends(nodes, ends)
    }

    fn with_ends(nodes: &[TreeNode], ends: Vec<u64>) -> Chains {
        let before = Vec::with_capacity(ends.len());
        let mut chains = Chains { ends, before, last: Vec::new(), callers: Vec::new() };
        let mut count = 0;
        for ends in &chains.ends {
            chains.before.push(count);
            count += ends.count_ones();
        }
        chains.last.reserve_exact(count as usize);
        for (group, &ends) in (0u32..).zip(&chains.ends) {
            let mut left = ends;
            while left != 0 {
                chains.last.push(NodeId(group * GROUP as u32 + left.trailing_zeros()));
                left &= left - 1;
            }
        }
        let caller = |chain| {
            let first = nodes[chains.nodes(ChainId(chain)).start];
            first.parent().map_or(NONE, |caller| chains.of_node(caller).0)
        };
        chains.callers = (0..count).into_par_iter().with_min_len(1 << 12).map(caller).collect();
        chains
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Whether the tree has no nodes.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// The chain that a node is in.
    pub fn of_node(&self, NodeId(node): NodeId) -> ChainId {
        let (group, bit) = (node as usize / GROUP, node as usize % GROUP);
        ChainId(self.before[group] + (self.ends[group] & ((1 << bit) - 1)).count_ones())
    }

    /// Whether a node is the last one of its chain.
    pub fn is_last(&self, NodeId(node): NodeId) -> bool {
        self.ends[node as usize / GROUP] >> (node as usize % GROUP) & 1 != 0
    }

    /// The last node of a chain.
    pub fn last(&self, ChainId(chain): ChainId) -> NodeId {
        self.last[chain as usize]
    }

    /// The nodes of a chain, as indices in [`CallTree::nodes`](super::CallTree::nodes).
    pub fn nodes(&self, ChainId(chain): ChainId) -> Range<usize> {
        let chain = chain as usize;
        let first = chain.checked_sub(1).map_or(0, |before| self.last[before].0 as usize + 1);
        first..self.last[chain].0 as usize + 1
    }

    /// All chains with their nodes, callers before their callees.
    pub fn iter(&self) -> impl Iterator<Item = (ChainId, Range<usize>)> + '_ {
        (0..self.len()).map(|chain| (ChainId(chain as u32), self.nodes(ChainId(chain as u32))))
    }

    /// The chain that calls this one; `None` of one that begins with an outermost frame.
    pub fn caller(&self, ChainId(chain): ChainId) -> Option<ChainId> {
        Some(self.callers[chain as usize]).filter(|caller| *caller != NONE).map(ChainId)
    }

    /// By chain: how many frames the stack has that it ends with.
    pub fn depths(&self) -> Vec<u32> {
        let mut depths: Vec<u32> = Vec::with_capacity(self.len());
        for (chain, nodes) in self.iter() {
            let callers = self.caller(chain).map_or(0, |ChainId(caller)| depths[caller as usize]);
            depths.push(callers.saturating_add(nodes.len() as u32));
        }
        depths
    }

    /// The chains from the outermost inwards, as nodes of these numbers.
    pub fn callees(&self) -> Children {
        let caller = |caller: &u32| (*caller != NONE).then_some(NodeId(*caller));
        Children::new(self.callers.iter().map(caller))
    }

    /// Adds to each chain's amount the amounts of all stacks that go through it.
    pub fn add_callees<T: Copy>(&self, amounts: &mut [T], add: impl Fn(&mut T, T)) {
        for (chain, &caller) in self.callers.iter().enumerate().rev() {
            if caller != NONE {
                let amount = amounts[chain];
                add(&mut amounts[caller as usize], amount);
            }
        }
    }

    /// Calls `add` with parts of what is summed by chain, each with its number, several at once. To
    /// each of them it adds what it finds among so many runs.
    pub fn add<S: Send>(&self, sums: &mut [S], runs: usize, add: impl Fn(usize, ChainSums<'_, S>) + Sync) {
        let parts = if runs < FEW_RUNS { 1 } else { rayon::current_num_threads() };
        let len = sums.len().div_ceil(parts).max(1);
        sums.par_chunks_mut(len).enumerate().for_each(|(part, sums)| {
            let first = part * len;
            let begin =
                |chain: usize| self.last.get(chain.wrapping_sub(1)).map_or(0, |NodeId(last)| last + 1);
            let nodes = begin(first)..begin(first + sums.len());
            add(part, ChainSums { chains: self, first: first as u32, nodes, sums });
        });
    }
}

/// Nodes of which a number holds the ends.
const GROUP: usize = 64;

/// A part of what is summed by chain.
pub struct ChainSums<'s, S> {
    chains: &'s Chains,
    /// The first chain.
    first: u32,
    /// The nodes of all its chains.
    nodes: Range<u32>,
    sums: &'s mut [S],
}

impl<S> ChainSums<'_, S> {
    /// The sum of a sample's stack, if it is in this part.
    pub fn of(&mut self, node: NodeId) -> Option<&mut S> {
        if !self.nodes.contains(&node.0) {
            return None;
        }
        assert!(self.chains.is_last(node), "the chains are not those of the samples: {node:?}");
        let ChainId(chain) = self.chains.of_node(node);
        self.sums.get_mut((chain - self.first) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::parts::tests::run;
    use crate::profile::{CallTree, FrameId, Node, Run};
    use stk_tests::synth::Random;

    /// Runs of these stacks.
    fn runs(stacks: &[NodeId]) -> Runs {
        let mut runs = Runs::default();
        for (at, &node) in (0..).zip(stacks) {
            runs.push(0, Run { node: Some(node), ..run(at, at, 1, 1, 0) }).unwrap();
        }
        runs
    }

    #[test]
    fn a_chain_ends_where_stacks_end_or_part() {
        let mut tree = CallTree::default();
        let stacks: Vec<NodeId> = [&[0, 1, 2, 3][..], &[0, 1, 4], &[5, 6], &[0, 1, 2, 3, 7, 8]]
            .iter()
            .map(|stack| {
                let call = |parent, frame: &u32| Some(tree.intern(Node { parent, frame: FrameId(*frame) }));
                stack.iter().fold(None, call).unwrap()
            })
            .collect();
        let chains = Chains::of(tree.nodes(), &runs(&stacks)).unwrap();
        let found: Vec<(Range<usize>, Option<u32>)> =
            chains.iter().map(|(chain, nodes)| (nodes, chains.caller(chain).map(|chain| chain.0))).collect();
        // 0/1, 2/3 below it, 4 beside that, 5/6, and 7/8 below 2/3.
        let expected = [(0..2, None), (2..4, Some(0)), (4..5, Some(0)), (5..7, None), (7..9, Some(1))];
        assert_eq!(found, expected);
        assert_eq!([0, 1, 2, 3, 4, 8].map(|node| chains.of_node(NodeId(node)).0), [0, 0, 1, 1, 2, 4]);
        let all = Chains::of_each(tree.nodes());
        assert_eq!(all.len(), 9, "each node is one");
        assert!(Chains::of_each(&[]).is_empty());
    }

    #[test]
    fn sums_by_chain_are_those_of_the_nodes() {
        let mut random = Random::new(9);
        let mut tree = CallTree::default();
        let (mut own, mut stacks) = (Vec::new(), Vec::new());
        for _ in 0..2 * FEW_RUNS {
            let frames = (0..1 + random.below(12)).map(|_| FrameId(random.below(3) as u32));
            let node = frames.fold(None, |parent, frame| Some(tree.intern(Node { parent, frame }))).unwrap();
            stacks.push(node);
            own.resize(tree.nodes().len(), 0u64);
            own[node.0 as usize] += 1;
        }
        let mut through = own.clone();
        tree.add_callees(&mut through, |sum, more| *sum += more);
        let chains = Chains::of(tree.nodes(), &runs(&stacks)).unwrap();
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut sums = vec![0u64; chains.len()];
            pool.install(|| {
                chains.add(&mut sums, stacks.len(), |_, mut sums| {
                    stacks.iter().for_each(|node| sums.of(*node).into_iter().for_each(|sum| *sum += 1));
                });
            });
            assert!(
                chains
                    .iter()
                    .all(|(chain, _)| { sums[chain.0 as usize] == own[chains.last(chain).0 as usize] })
            );
            chains.add_callees(&mut sums, |sum, more| *sum += more);
            let of_nodes = chains.iter().flat_map(|(chain, nodes)| vec![sums[chain.0 as usize]; nodes.len()]);
            assert!(of_nodes.eq(through.iter().copied()), "{threads}");
        }
    }
}
