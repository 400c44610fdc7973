//! What samples come to by the functions of their stacks.

use super::function_tree::FunctionTree;
use super::node::NodeId;
use super::own_total::{Accumulator, Additive, OwnTotal};

/// Sums of samples by the functions of their stacks, by any weight. The one that fills it chooses
/// which samples and what of them: those of a group, of a time, of threads that wait.
///
/// Stacks cost once, and so do their callers, however many samples they have; those that are not
/// reached cost nothing, so that one value serves many groups, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Sums<A> {
    /// By stack: samples that end in it, later those that go through it.
    stacks: Accumulator<A>,
    functions: Accumulator<OwnTotal<A>>,
    /// By stack: whether it is in the order of the sums that are being taken.
    met: Vec<bool>,
}

impl<A: Additive> Sums<A> {
    /// Adds samples that end in a stack of `tree`.
    pub fn add(&mut self, tree: &FunctionTree, stack: NodeId, amount: A) {
        self.functions.add(tree.function(stack), OwnTotal { own: amount, total: A::default() });
        self.add_to_callers(stack, amount);
    }

    /// Adds samples of which a stack is the callers alone: they end in something else.
    pub fn add_to_callers(&mut self, NodeId(stack): NodeId, amount: A) {
        self.stacks.add(stack, amount);
    }

    /// Adds samples whose innermost function is this one, whatever their callers.
    pub fn add_to_function(&mut self, function: u32, amount: A) {
        self.functions.add(function, OwnTotal { own: amount, total: amount });
    }

    /// The sums of each function that has any, by number. There are none afterwards. The stacks are
    /// those of `tree`.
    pub fn take(&mut self, tree: &FunctionTree) -> Vec<(u32, OwnTotal<A>)> {
        let outermost = tree.outermost();
        self.met.resize(tree.len(), false);
        let order = self.callers_first(tree);
        let stacks = &mut self.stacks;
        for &stack in order.iter().rev() {
            let at = stack.0 as usize;
            self.met[at] = false;
            let total = std::mem::take(&mut stacks.sums[at]);
            if let Some(NodeId(caller)) = tree.caller(stack) {
                stacks.sums[caller as usize].add(total);
            }
            if outermost[at] {
                self.functions.add(tree.function(stack), OwnTotal { own: A::default(), total });
            }
        }
        self.stacks.met.clear();
        self.functions.take()
    }

    /// The stacks that have sums and their callers, each after its caller.
    fn callers_first(&mut self, tree: &FunctionTree) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = Vec::new();
        for &stack in &self.stacks.met {
            let first = order.len();
            let mut next = Some(NodeId(stack));
            while let Some(stack) = next.filter(|stack| !self.met[stack.0 as usize]) {
                self.met[stack.0 as usize] = true;
                order.push(stack);
                next = tree.caller(stack);
            }
            order[first..].reverse();
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: u32 = 0;
    const WORK: u32 = 1;
    const LEAF: u32 = 2;

    fn tree(stacks: &[&[u32]]) -> (FunctionTree, Vec<NodeId>) {
        let mut tree = FunctionTree::default();
        let call = |tree: &mut FunctionTree, stack: &[u32]| {
            stack.iter().fold(None, |caller, &function| Some(tree.call(caller, function))).unwrap()
        };
        let ids = stacks.iter().map(|stack| call(&mut tree, stack)).collect();
        (tree, ids)
    }

    fn own_total(own: u64, total: u64) -> OwnTotal<u64> {
        OwnTotal { own, total }
    }

    #[test]
    fn recursion_counts_once_in_the_total() {
        let (tree, ids) = tree(&[&[MAIN, WORK, LEAF, WORK], &[MAIN, WORK], &[MAIN, LEAF], &[LEAF]]);
        let mut sums = Sums::default();
        for (id, amount) in ids.iter().zip([1, 10, 100, 1000]) {
            sums.add(&tree, *id, amount);
        }
        // LEAF is in the first, the third and the fourth; it ends the last two.
        let expected = [(MAIN, own_total(0, 111)), (WORK, own_total(11, 11)), (LEAF, own_total(1100, 1101))];
        assert_eq!(sums.take(&tree), expected);
        assert_eq!(sums.take(&tree), [], "they are gone");
        sums.add(&tree, ids[1], 5);
        assert_eq!(sums.take(&tree), [(MAIN, own_total(0, 5)), (WORK, own_total(5, 5))]);
    }

    #[test]
    fn samples_that_end_elsewhere_count_for_the_callers_alone() {
        const KERNEL: u32 = 9;
        let (tree, ids) = tree(&[&[MAIN, WORK], &[MAIN]]);
        let mut sums = Sums::default();
        sums.add_to_callers(ids[0], 4);
        sums.add_to_function(KERNEL, 4);
        sums.add(&tree, ids[1], 1);
        let expected = [(MAIN, own_total(1, 5)), (WORK, own_total(0, 4)), (KERNEL, own_total(4, 4))];
        assert_eq!(sums.take(&tree), expected);
    }

    #[test]
    fn a_tree_that_grows_is_counted_anew() {
        let (mut tree, ids) = tree(&[&[MAIN]]);
        let mut sums = Sums::default();
        sums.add(&tree, ids[0], 1u64);
        assert_eq!(sums.take(&tree), [(MAIN, own_total(1, 1))]);
        let inner = tree.call(Some(ids[0]), MAIN);
        sums.add(&tree, inner, 2);
        assert_eq!(sums.take(&tree), [(MAIN, own_total(2, 2))]);
    }
}
