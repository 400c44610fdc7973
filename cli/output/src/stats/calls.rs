//! Stacks of functions with what they cost, of one trace or of several.

use super::Amount;
use stk_profile::profile::{Children, FunctionId, Functions, NodeId, Profile};
use stk_profile::stack::Interner;
use std::collections::HashMap;

/// A function as lists and trees name it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct FunctionName {
    /// No two functions of a module have the same.
    pub function: String,
    /// File name of the first module with code of it; empty if there is none.
    pub module: String,
}

/// A stack: a function called by the stack `caller`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct CallNode {
    caller: Option<NodeId>,
    function: u32,
}

/// Distinct stacks of functions, with the samples that end in each. A caller's id is smaller than
/// its callees'.
#[derive(Default, Debug)]
pub(super) struct CallSums {
    functions: Vec<FunctionName>,
    nodes: Interner<CallNode>,
    own: Vec<Amount>,
    /// By name; only filled when several traces are summed.
    ids: HashMap<FunctionName, u32>,
}

/// Stands for the stack of samples that have none.
const NO_STACK: &str = "(no stack)";

impl CallSums {
    /// The stacks of a profile. `own` and `through` hold, by node, the samples that end there and
    /// those that go through it; `no_stack` those without a stack.
    pub(super) fn of(
        profile: &Profile,
        functions: &Functions,
        own: &[Amount],
        through: &[Amount],
        no_stack: Amount,
    ) -> CallSums {
        let mut sums = CallSums::default();
        let mut ids: Vec<Option<u32>> = vec![None; functions.list().len()];
        // By node: its innermost function's stack.
        let mut stacks: Vec<Option<NodeId>> = vec![None; own.len()];
        for (at, node) in profile.tree.nodes().iter().enumerate() {
            if through[at].samples == 0 {
                continue;
            }
            // A parent comes before its children.
            let mut stack = node.parent.and_then(|parent| stacks[parent.0 as usize]);
            for &FunctionId(function) in functions.of(node.frame) {
                let id = *ids[function as usize].get_or_insert_with(|| {
                    let known = &functions.list()[function as usize];
                    sums.functions.push(FunctionName {
                        function: known.name_in_module.clone(),
                        module: known.module.clone(),
                    });
                    sums.functions.len() as u32 - 1
                });
                stack = Some(sums.stack(stack, id));
            }
            stacks[at] = stack;
            if let Some(stack) = stack {
                sums.own[stack.0 as usize].add_amount(own[at]);
            }
        }
        if no_stack.samples > 0 {
            let name = FunctionName { function: NO_STACK.to_owned(), module: String::new() };
            sums.functions.push(name);
            let stack = sums.stack(None, sums.functions.len() as u32 - 1);
            sums.own[stack.0 as usize].add_amount(no_stack);
        }
        sums
    }

    /// Adds the stacks of another trace.
    pub(super) fn absorb(&mut self, other: &CallSums) {
        let functions: Vec<u32> = other.functions.iter().map(|name| self.function(name)).collect();
        let mut stacks: Vec<NodeId> = Vec::with_capacity(other.own.len());
        for (node, &own) in other.nodes.values.iter().zip(&other.own) {
            let caller = node.caller.map(|caller| stacks[caller.0 as usize]);
            let stack = self.stack(caller, functions[node.function as usize]);
            self.own[stack.0 as usize].add_amount(own);
            stacks.push(stack);
        }
    }

    /// The id of a function, new or known.
    fn function(&mut self, name: &FunctionName) -> u32 {
        if let Some(&known) = self.ids.get(name) {
            return known;
        }
        self.functions.push(name.clone());
        let id = self.functions.len() as u32 - 1;
        self.ids.insert(name.clone(), id);
        id
    }

    /// The id of a stack, new or known.
    fn stack(&mut self, caller: Option<NodeId>, function: u32) -> NodeId {
        let id = self.nodes.intern(CallNode { caller, function });
        if id as usize == self.own.len() {
            self.own.push(Amount::default());
        }
        NodeId(id)
    }

    pub(super) fn functions(&self) -> &[FunctionName] {
        &self.functions
    }

    /// The function of a stack.
    pub(super) fn function_of(&self, stack: NodeId) -> u32 {
        self.nodes.values[stack.0 as usize].function
    }

    /// The caller of a stack; `None` of an outermost one.
    pub(super) fn caller(&self, stack: NodeId) -> Option<NodeId> {
        self.nodes.values[stack.0 as usize].caller
    }

    /// Samples that end in a stack.
    pub(super) fn own(&self, stack: NodeId) -> Amount {
        self.own[stack.0 as usize]
    }

    /// By stack: the samples that go through it.
    pub(super) fn totals(&self) -> Vec<Amount> {
        let mut totals = self.own.clone();
        for (at, node) in self.nodes.values.iter().enumerate().rev() {
            if let Some(NodeId(caller)) = node.caller {
                let amount = totals[at];
                totals[caller as usize].add_amount(amount);
            }
        }
        totals
    }

    /// The stacks from the outermost inwards.
    pub(super) fn callees(&self) -> Children {
        Children::new(self.nodes.values.iter().map(|node| node.caller))
    }
}
