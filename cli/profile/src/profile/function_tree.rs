//! Stacks of functions: the call tree of frames, folded. Every list and graph of functions counts
//! with these stacks.

use super::chains::Chains;
use super::node::{Children, Node, NodeId, Visit};
use super::own_total::{Additive, OpenFunctions};
use super::tree::CallTree;
use crate::stack::FrameId;
use std::sync::OnceLock;

/// Distinct stacks of functions. A caller's id is smaller than its callees'.
///
/// A function is a number, which the caller of [`fold`](FunctionTree::fold) chooses: a function of
/// the profile, its module, the group of a list that it belongs to. [`Sums`](super::Sums) gives the
/// own and the total amount of each.
#[derive(Clone, Default, Debug)]
pub struct FunctionTree {
    /// Its "frames" are the functions' numbers.
    calls: CallTree,
    /// By stack: whether its function is in none of its callers. Counted when first asked for.
    outermost: OnceLock<Vec<bool>>,
}

/// The stacks of functions that a call tree of frames folds to.
#[derive(Clone, Default, Debug)]
pub struct Folded {
    pub tree: FunctionTree,
    /// By node of the call tree, the stack of its innermost function; `None` for a node that is not
    /// wanted, and for one without functions and without callers that have any.
    pub stacks: Vec<Option<NodeId>>,
}

impl FunctionTree {
    /// Folds the wanted nodes of a call tree, each of which is below wanted ones. `functions` are
    /// those of a frame, outermost first. A function that `joins` says yes to is one with a caller
    /// that is the same function.
    pub fn fold<F: IntoIterator<Item = u32>>(
        frames: &CallTree,
        is_wanted: impl Fn(NodeId) -> bool,
        functions: impl Fn(FrameId) -> F,
        joins: impl Fn(u32) -> bool,
    ) -> Folded {
        let mut tree = FunctionTree::default();
        let mut stacks: Vec<Option<NodeId>> = Vec::with_capacity(frames.nodes().len());
        // A parent comes before its children.
        for (node, id) in frames.nodes().iter().zip((0..).map(NodeId)) {
            let caller = node.parent().and_then(|NodeId(parent)| stacks[parent as usize]);
            stacks.push(is_wanted(id).then_some(()).and_then(|()| {
                functions(node.frame).into_iter().fold(caller, |caller, function| match caller {
                    Some(stack) if tree.function(stack) == function && joins(function) => caller,
                    _ => Some(tree.call(caller, function)),
                })
            }));
        }
        Folded { tree, stacks }
    }

    /// The stack of a function called by the stack `caller`, new or known.
    pub fn call(&mut self, caller: Option<NodeId>, function: u32) -> NodeId {
        self.outermost.take();
        self.calls.intern(Node { parent: caller, frame: FrameId(function) })
    }

    /// Frees what only [`call`](Self::call) needs.
    pub fn settle(&mut self) {
        self.calls.settle();
    }

    /// Adds the stacks of another tree, whose functions have other numbers here. Gives by stack of
    /// that tree the one of this.
    pub fn absorb(&mut self, other: &FunctionTree, number: impl Fn(u32) -> u32) -> Vec<NodeId> {
        let mut stacks: Vec<NodeId> = Vec::with_capacity(other.len());
        for node in other.calls.nodes() {
            let caller = node.parent().map(|NodeId(caller)| stacks[caller as usize]);
            stacks.push(self.call(caller, number(node.frame.0)));
        }
        stacks
    }

    /// How many stacks there are.
    pub fn len(&self) -> usize {
        self.calls.nodes().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The innermost function of a stack.
    pub fn function(&self, NodeId(stack): NodeId) -> u32 {
        self.calls.nodes()[stack as usize].frame.0
    }

    /// The caller of a stack; `None` of an outermost one.
    pub fn caller(&self, NodeId(stack): NodeId) -> Option<NodeId> {
        self.calls.nodes()[stack as usize].parent()
    }

    /// The functions of a stack, outermost first.
    pub fn functions(&self, stack: NodeId) -> Vec<u32> {
        let mut functions: Vec<u32> = self.calls.frames(stack).map(|FrameId(function)| function).collect();
        functions.reverse();
        functions
    }

    /// The stacks, as nodes whose "frames" are the functions' numbers.
    pub fn calls(&self) -> &CallTree {
        &self.calls
    }

    /// The stacks from the outermost inwards.
    pub fn callees(&self) -> Children {
        Children::new(self.calls.nodes().iter().map(|node| node.parent()))
    }

    /// By stack: what goes through it, of what ends in each.
    pub fn totals<A: Additive>(&self, own: &[A]) -> Vec<A> {
        let mut totals = own.to_vec();
        self.calls.add_callees(&mut totals, |sum, more| sum.add(more));
        totals
    }

    /// By stack: whether its function is in none of its callers.
    pub(super) fn outermost(&self) -> &[bool] {
        self.outermost.get_or_init(|| {
            let mut outermost = vec![false; self.len()];
            let mut open = OpenFunctions::default();
            self.calls.visit(|stack, when| {
                match when {
                    Visit::Enter => outermost[stack.0 as usize] = open.enter(self.function(stack)),
                    Visit::Leave => open.leave(self.function(stack)),
                }
                true
            });
            outermost
        })
    }
}

impl Folded {
    /// By stack: what ends in it, of what ends with each of the call tree's chains.
    pub fn own<A: Additive>(&self, chains: &Chains, of_chains: &[A]) -> Vec<A> {
        let mut own = vec![A::default(); self.tree.len()];
        for ((chain, _), &amount) in chains.iter().zip(of_chains) {
            if let Some(NodeId(stack)) = self.stacks[chains.last(chain).0 as usize] {
                own[stack as usize].add(amount);
            }
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call tree of these stacks, outermost frame first, each above the one before it where both
    /// begin alike.
    fn frames(stacks: &[&[u32]]) -> CallTree {
        let mut tree = CallTree::default();
        for stack in stacks {
            stack
                .iter()
                .fold(None, |parent, &frame| Some(tree.intern(Node { parent, frame: FrameId(frame) })));
        }
        tree
    }

    fn functions(folded: &Folded) -> Vec<Option<Vec<u32>>> {
        folded.stacks.iter().map(|stack| stack.map(|stack| folded.tree.functions(stack))).collect()
    }

    #[test]
    fn frames_of_one_function_are_one_stack() {
        // Frames 0 and 1 are of function 7; frame 2 is function 8 with 9 inlined; 3 has none.
        let of = |FrameId(frame): FrameId| [vec![7], vec![7], vec![8, 9], vec![]][frame as usize].clone();
        let tree = frames(&[&[0, 2], &[1, 2, 3], &[3]]);
        let folded = FunctionTree::fold(&tree, |_| true, of, |_| false);
        let (main, inner) = (Some(vec![7]), Some(vec![7, 8, 9]));
        // Nodes: 0, 0/2, 1, 1/2, 1/2/3, 3.
        let all = [main.clone(), inner.clone(), main, inner.clone(), inner, None];
        assert_eq!(functions(&folded), all);
        assert_eq!(folded.tree.len(), 3, "7, 7/8, 7/8/9");
        assert_eq!(folded.own(tree.chains(), &[1, 2, 4, 8, 16, 32u64]), [1 + 4, 0, 2 + 8 + 16]);
        assert_eq!(folded.tree.totals(&[5, 0, 26u64]), [31, 26, 26]);
    }

    #[test]
    fn unwanted_nodes_and_joined_calls_have_no_stack_of_their_own() {
        let tree = frames(&[&[5, 5, 6, 6, 5]]);
        let of = |FrameId(frame): FrameId| [frame];
        let folded = FunctionTree::fold(&tree, |NodeId(node)| node < 4, of, |function| function == 5);
        let expected: Vec<Option<Vec<u32>>> =
            vec![Some(vec![5]), Some(vec![5]), Some(vec![5, 6]), Some(vec![5, 6, 6]), None];
        assert_eq!(functions(&folded), expected);
    }

    #[test]
    fn absorbed_stacks_get_the_numbers_of_this_tree() {
        let of = |FrameId(frame): FrameId| [frame];
        let mut here = FunctionTree::fold(&frames(&[&[1, 2]]), |_| true, of, |_| false).tree;
        let there = FunctionTree::fold(&frames(&[&[0, 1], &[0, 2]]), |_| true, of, |_| false).tree;
        let stacks = here.absorb(&there, |function| function + 1);
        let functions: Vec<Vec<u32>> = stacks.iter().map(|&stack| here.functions(stack)).collect();
        assert_eq!(functions, [vec![1], vec![1, 2], vec![1, 3]]);
        assert_eq!(here.len(), 3);
        assert_eq!(here.caller(stacks[2]), Some(stacks[0]));
    }
}
