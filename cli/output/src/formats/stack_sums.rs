//! Sums the weights of equal stacks.

use super::unfold::{OriginSums, StackOrigin};
use std::cmp::Reverse;
use stk_profile::profile::{Additive, Folded, FrameId, FunctionId, FunctionTree, Functions, NodeId, Profile};

/// Weights of distinct stacks of numbered functions.
#[derive(Default)]
pub(super) struct WeighedStacks {
    tree: FunctionTree,
    /// By stack.
    weights: Vec<u64>,
    /// By node of the profile: its stack, where nothing stands above it and it has functions.
    stacks: Vec<Option<NodeId>>,
}

impl WeighedStacks {
    /// The sums of a profile's stacks. `number` gives a function's number; `roots` those that stand
    /// above the functions of a stack with this end and wait, outermost first; `empty` the number
    /// of what stands for a stack without any.
    pub(super) fn of(
        profile: &Profile,
        functions: &Functions,
        sums: &OriginSums,
        number: impl Fn(FunctionId) -> u32,
        roots: impl Fn(StackOrigin) -> [Option<u32>; 2],
        empty: Option<u32>,
    ) -> WeighedStacks {
        let root = |origin| roots(origin).into_iter().flatten();
        let mut wanted = vec![false; profile.tree.nodes().len()];
        let without_root = sums.iter().filter(|(origin, _)| root(*origin).next().is_none());
        without_root.filter_map(|(origin, _)| origin.node).for_each(|node| wanted[node.0 as usize] = true);
        profile.tree.add_callees(&mut wanted, |wanted, of_callee| *wanted |= of_callee);
        let is_wanted = |NodeId(node)| wanted[node as usize];
        let of_frame = |frame| functions.of(frame).iter().map(|&id| number(id));
        let Folded { tree, stacks } = FunctionTree::fold(&profile.tree, is_wanted, of_frame, |_| false);
        let mut all = WeighedStacks { weights: vec![0; tree.len()], tree, stacks };
        for (origin, weight) in sums.iter() {
            let mut stack = root(origin).fold(None, |caller, root| Some(all.tree.call(caller, root)));
            if stack.is_none() {
                stack = origin.node.and_then(|NodeId(node)| all.stacks[node as usize]);
            } else if let Some(node) = origin.node {
                let frames: Vec<FrameId> = profile.tree.frames(node).collect();
                let functions = frames.into_iter().rev().flat_map(of_frame);
                stack = functions.fold(stack, |caller, function| Some(all.tree.call(caller, function)));
            }
            let empty = || empty.map(|empty| all.tree.call(None, empty));
            if let Some(stack) = stack.or_else(empty) {
                all.add(stack, weight);
            }
        }
        all
    }

    /// By node of the profile: its stack, where nothing stands above it and it has functions.
    pub(super) fn of_nodes(&self) -> &[Option<NodeId>] {
        &self.stacks
    }

    /// How many stacks there are, with those that have no weight.
    pub(super) fn len(&self) -> usize {
        self.tree.len()
    }

    fn add(&mut self, NodeId(stack): NodeId, weight: u64) {
        self.weights.resize(self.tree.len(), 0);
        self.weights[stack as usize].add(weight);
    }

    /// Calls `each` with every stack that has frames and weight: the stack, its functions,
    /// outermost first, and its weight. Callers come before their callees, otherwise by the
    /// functions' numbers.
    pub(super) fn visit<E>(
        &self,
        mut each: impl FnMut(NodeId, &[u32], u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let children = self.tree.callees();
        let mut functions = Vec::new();
        // Calls to visit, the next one last, each with its depth.
        let mut calls: Vec<(NodeId, usize)> = Vec::new();
        let push = |of: &[NodeId], depth: usize, calls: &mut Vec<(NodeId, usize)>| {
            let first = calls.len();
            calls.extend(of.iter().map(|&id| (id, depth)));
            calls[first..].sort_unstable_by_key(|(stack, _)| Reverse(self.tree.function(*stack)));
        };
        push(children.roots(), 0, &mut calls);
        while let Some((stack, depth)) = calls.pop() {
            functions.truncate(depth);
            functions.push(self.tree.function(stack));
            let weight = self.weights.get(stack.0 as usize).copied().unwrap_or(0);
            if weight > 0 {
                each(stack, &functions, weight)?;
            }
            push(children.of(stack), depth + 1, &mut calls);
        }
        Ok(())
    }
}

/// The text of the last stack. Kept, since the next one mostly begins alike.
pub(super) struct StackLine {
    separator: u8,
    text: Vec<u8>,
    /// The stack, each function with the length of the text up to its end.
    functions: Vec<(u32, usize)>,
}

impl StackLine {
    pub(super) fn new(separator: u8) -> StackLine {
        StackLine { separator, text: Vec::new(), functions: Vec::new() }
    }

    /// The text of a stack, outermost function first. `write` appends the text of a function.
    pub(super) fn of(&mut self, stack: &[u32], write: impl Fn(u32, &mut Vec<u8>)) -> &[u8] {
        let same = self.functions.iter().zip(stack).take_while(|((last, _), next)| last == *next).count();
        self.functions.truncate(same);
        self.text.truncate(self.functions.last().map_or(0, |(_, end)| *end));
        for &function in &stack[same..] {
            if !self.functions.is_empty() {
                self.text.push(self.separator);
            }
            write(function, &mut self.text);
            self.functions.push((function, self.text.len()));
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn equal_stacks_are_one_and_come_by_their_functions() {
        let mut sums = WeighedStacks::default();
        for (stack, weight) in [(&[1, 3][..], 5), (&[1], 2), (&[0, 9], 1), (&[1, 3], 4), (&[1, 2], 0)] {
            let mut at = None;
            for &function in stack {
                at = Some(sums.tree.call(at, function));
            }
            sums.add(at.unwrap(), weight);
        }
        let mut seen = Vec::new();
        sums.visit(|_, stack, weight| {
            seen.push((stack.to_vec(), weight));
            Ok::<(), Infallible>(())
        })
        .unwrap();
        assert_eq!(seen, [(vec![0, 9], 1), (vec![1], 2), (vec![1, 3], 9)]);
    }

    #[test]
    fn a_line_keeps_what_stacks_have_in_common() {
        let mut line = StackLine::new(b';');
        let mut of = |stack: &[u32]| {
            let text =
                line.of(stack, |function, out| out.extend_from_slice(format!("f{function}").as_bytes()));
            String::from_utf8(text.to_vec()).unwrap()
        };
        let texts = [&[1, 22, 3][..], &[1, 22], &[1, 2, 3], &[], &[4]].map(&mut of);
        assert_eq!(texts, ["f1;f22;f3", "f1;f22", "f1;f2;f3", "", "f4"]);
    }
}
