//! Stacks of functions with what they cost, of one trace or of several.

use super::Amount;
use crate::profile::{Additive, FunctionTree, Functions};
use crate::stack::Interner;

/// A function as lists and trees name it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct FunctionName {
    /// No two functions of a module have the same.
    pub function: String,
    /// File name of the first module with code of it; empty if there is none.
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
    /// The stacks of a profile, whose functions have their ids, with the samples that end in each;
    /// `no_stack` are those without a stack.
    pub(super) fn of(
        functions: &Functions,
        tree: &FunctionTree,
        own: &[Amount],
        no_stack: Amount,
    ) -> CallSums {
        let mut sums = CallSums::default();
        let names = functions.list().iter().map(|known| FunctionName {
            function: known.name_in_module.clone(),
            module: known.module.clone(),
        });
        sums.add(names, tree, own);
        if no_stack.samples > 0 {
            let mut tree = FunctionTree::default();
            tree.call(None, 0);
            let name = FunctionName { function: NO_STACK.to_owned(), module: String::new() };
            sums.add([name].into_iter(), &tree, &[no_stack]);
        }
        sums
    }

    /// Adds the stacks of another trace.
    pub(super) fn absorb(&mut self, other: &CallSums) {
        self.add(other.functions.values.iter().cloned(), &other.tree, &other.own);
    }

    fn add(&mut self, names: impl Iterator<Item = FunctionName>, tree: &FunctionTree, own: &[Amount]) {
        let functions: Vec<u32> = names.map(|name| self.functions.intern(name)).collect();
        let stacks = self.tree.absorb(tree, |function| functions[function as usize]);
        self.own.resize(self.tree.len(), Amount::default());
        for (stack, &own) in stacks.iter().zip(own) {
            self.own[stack.0 as usize].add(own);
        }
    }

    pub(super) fn functions(&self) -> &[FunctionName] {
        &self.functions.values
    }
}
