//! Sums the weights of equal stacks.

use std::collections::BTreeMap;

/// Weights of distinct stacks of numbered functions. Each stack has a number; the stack without
/// frames is number 0.
pub(super) struct StackSums {
    /// By a stack and the function that it calls: the stack of that call.
    calls: BTreeMap<(u32, u32), u32>,
    /// By stack.
    weights: Vec<u64>,
}

impl Default for StackSums {
    fn default() -> StackSums {
        StackSums { calls: BTreeMap::new(), weights: vec![0] }
    }
}

impl StackSums {
    /// Adds the weight of a stack, outermost function first.
    pub(super) fn add(&mut self, functions: impl Iterator<Item = u32>, weight: u64) {
        let mut stack = 0;
        for function in functions {
            stack = *self.calls.entry((stack, function)).or_insert_with(|| {
                self.weights.push(0);
                self.weights.len() as u32 - 1
            });
        }
        let sum = &mut self.weights[stack as usize];
        *sum = sum.saturating_add(weight);
    }

    /// Calls `each` with every stack that has frames and weight, outermost function first, and its
    /// weight: callers before their callees, otherwise by the functions' numbers.
    pub(super) fn visit<E>(&self, mut each: impl FnMut(&[u32], u64) -> Result<(), E>) -> Result<(), E> {
        let mut functions = Vec::new();
        // Calls to visit, each with its depth.
        let mut calls = self.calls_of(0, 0);
        while let Some((function, stack, depth)) = calls.pop() {
            functions.truncate(depth);
            functions.push(function);
            let weight = self.weights[stack as usize];
            if weight > 0 {
                each(&functions, weight)?;
            }
            calls.append(&mut self.calls_of(stack, functions.len()));
        }
        Ok(())
    }

    /// The calls from a stack, last function first: function, stack, and the given depth.
    fn calls_of(&self, stack: u32, depth: usize) -> Vec<(u32, u32, usize)> {
        let calls = self.calls.range((stack, 0)..=(stack, u32::MAX)).rev();
        calls.map(|(&(_, function), &called)| (function, called, depth)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn equal_stacks_are_one_and_come_by_their_functions() {
        let mut sums = StackSums::default();
        for (stack, weight) in
            [(&[1, 3][..], 5), (&[1], 2), (&[0, 9], 1), (&[1, 3], 4), (&[], 7), (&[1, 2], 0)]
        {
            sums.add(stack.iter().copied(), weight);
        }
        let mut seen = Vec::new();
        sums.visit(|stack, weight| {
            seen.push((stack.to_vec(), weight));
            Ok::<(), Infallible>(())
        })
        .unwrap();
        assert_eq!(seen, [(vec![0, 9], 1), (vec![1], 2), (vec![1, 3], 9)]);
    }
}
