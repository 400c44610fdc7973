//! Stacks of functions with what they cost, of one trace or of several.

use super::Amount;
use stk_profile::profile::{Additive, Function, FunctionId, FunctionTree, Functions, NodeId, Profile};
use stk_profile::stack::Interner;

/// A function as lists and trees name it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct FunctionName {
    /// No two functions of a module have the same.
    pub function: String,
    /// File name of its module; empty if there is none.
    pub module: String,
}

/// Distinct stacks of functions, with the samples that end in each.
#[derive(Default, Debug)]
pub(super) struct CallSums {
    functions: Interner<FunctionName>,
    /// Its functions are indices in `functions`.
    pub tree: FunctionTree,
    /// By stack: samples that end in it.
    pub own: Vec<Amount>,
}

/// Stands for the stack of samples that have none.
const NO_STACK: &str = "(no stack)";

impl CallSums {
    /// The stacks of a profile. `own` and `through` hold, by chain, the samples that end with it
    /// and those that go through it; `no_stack` those without a stack.
    pub(super) fn of(
        profile: &Profile,
        functions: &Functions,
        own: &[Amount],
        through: &[Amount],
        no_stack: Amount,
    ) -> CallSums {
        let mut names: Interner<FunctionName> = Interner::default();
        let name = |known: &Function| FunctionName {
            function: known.name_in_module.clone(),
            module: known.module.clone(),
        };
        let ids: Vec<u32> = functions.list().iter().map(|known| names.intern(name(known))).collect();
        let chains = profile.tree.chains();
        let is_wanted = |node| through[chains.of_node(node).0 as usize] != Amount::default();
        let of_frame = |frame| functions.of(frame).iter().map(|&FunctionId(id)| ids[id as usize]);
        let folded = FunctionTree::fold(&profile.tree, is_wanted, of_frame, |_| false);
        let mut sums = CallSums { functions: names, own: folded.own(chains, own), tree: folded.tree };
        if no_stack.samples > 0 {
            let name = FunctionName { function: NO_STACK.to_owned(), module: String::new() };
            let NodeId(stack) = sums.tree.call(None, sums.functions.intern(name));
            sums.own.resize(sums.tree.len(), Amount::default());
            sums.own[stack as usize].add(no_stack);
        }
        sums
    }

    /// Adds the stacks of another trace.
    pub(super) fn absorb(&mut self, other: &CallSums) {
        let names = other.functions.values.iter().cloned();
        let functions: Vec<u32> = names.map(|name| self.functions.intern(name)).collect();
        let stacks = self.tree.absorb(&other.tree, |function| functions[function as usize]);
        self.own.resize(self.tree.len(), Amount::default());
        for (NodeId(stack), &own) in stacks.into_iter().zip(&other.own) {
            self.own[stack as usize].add(own);
        }
    }

    pub(super) fn functions(&self) -> &[FunctionName] {
        &self.functions.values
    }
}
