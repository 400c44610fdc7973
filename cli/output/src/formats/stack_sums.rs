//! Sums the weights of equal stacks.

use super::unfold::{OriginSums, StackOrigin};
use stk_profile::profile::{CallTree, Children, FrameId, FunctionId, Functions, Node, NodeId, Profile};
use std::cmp::Reverse;

/// Weights of distinct stacks of numbered functions.
#[derive(Default)]
pub(super) struct StackSums {
    /// Its "frames" are the functions' numbers.
    tree: CallTree,
    /// By node of the tree.
    weights: Vec<u64>,
}

impl StackSums {
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
    ) -> StackSums {
        let mut stacks = StackSums::default();
        let nodes = profile.tree.nodes();
        // By node of the profile: the stack here, of a stack without roots.
        let mut known: Vec<Option<Option<NodeId>>> = vec![None; nodes.len()];
        let mut path = Vec::new();
        for (origin, weight) in sums.iter() {
            let mut at = None;
            let mut has_roots = false;
            for root in roots(origin).into_iter().flatten() {
                at = Some(stacks.below(at, root));
                has_roots = true;
            }
            let mut next = origin.node;
            while let Some(NodeId(node)) = next {
                if let Some(found) = known[node as usize].filter(|_| !has_roots) {
                    at = found;
                    break;
                }
                path.push(node as usize);
                next = nodes[node as usize].parent;
            }
            while let Some(node) = path.pop() {
                for &function in functions.of(nodes[node].frame) {
                    at = Some(stacks.below(at, number(function)));
                }
                if !has_roots {
                    known[node] = Some(at);
                }
            }
            if let Some(stack) = at.or_else(|| empty.map(|empty| stacks.below(None, empty))) {
                stacks.add_to(stack, weight);
            }
        }
        stacks
    }

    /// The stack of a call of a function by a stack.
    fn below(&mut self, parent: Option<NodeId>, function: u32) -> NodeId {
        self.tree.intern(Node { parent, frame: FrameId(function) })
    }

    fn add_to(&mut self, NodeId(stack): NodeId, weight: u64) {
        self.weights.resize(self.tree.nodes().len(), 0);
        let sum = &mut self.weights[stack as usize];
        *sum = sum.saturating_add(weight);
    }

    /// Calls `each` with every stack that has frames and weight, outermost function first, and its
    /// weight: callers before their callees, otherwise by the functions' numbers.
    pub(super) fn visit<E>(&self, mut each: impl FnMut(&[u32], u64) -> Result<(), E>) -> Result<(), E> {
        let nodes = self.tree.nodes();
        let children = Children::new(nodes.iter().map(|node| node.parent));
        let mut functions = Vec::new();
        // Calls to visit, the next one last, each with its depth.
        let mut calls: Vec<(NodeId, usize)> = Vec::new();
        let push = |of: &[NodeId], depth: usize, calls: &mut Vec<(NodeId, usize)>| {
            let first = calls.len();
            calls.extend(of.iter().map(|&id| (id, depth)));
            calls[first..].sort_unstable_by_key(|(NodeId(id), _)| Reverse(nodes[*id as usize].frame));
        };
        push(children.roots(), 0, &mut calls);
        while let Some((stack, depth)) = calls.pop() {
            let NodeId(id) = stack;
            functions.truncate(depth);
            functions.push(nodes[id as usize].frame.0);
            let weight = self.weights.get(id as usize).copied().unwrap_or(0);
            if weight > 0 {
                each(&functions, weight)?;
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
        let mut sums = StackSums::default();
        for (stack, weight) in [(&[1, 3][..], 5), (&[1], 2), (&[0, 9], 1), (&[1, 3], 4), (&[1, 2], 0)] {
            let mut at = None;
            for &function in stack {
                at = Some(sums.below(at, function));
            }
            sums.add_to(at.unwrap(), weight);
        }
        let mut seen = Vec::new();
        sums.visit(|stack, weight| {
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
