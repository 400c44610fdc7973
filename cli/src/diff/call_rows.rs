//! The rows that the stacks of traces count for, each found once for all traces that are added
//! together.

use super::code::{Code, Renames, RowKey};
use super::coverage::CoverageOfFunctions;
use super::{Axis, BuildFunction, DiffOptions, RowWeights, Side, StackWeights};
use stk_profile::profile::{Accumulator, Folded, FunctionTree, NodeId, Sums};

/// The code of traces that are added together, under the numbers of the comparison.
pub struct CallRows {
    pub(super) side: Side,
    calls: FunctionTree,
    coverage: CoverageOfFunctions,
    /// By call, if stacks are wanted.
    stacks: Option<Vec<NodeId>>,
    of_calls: CallRowIds,
    /// The row of whole traces, if there is one.
    whole: Option<u32>,
}

/// The rows that calls count for.
enum CallRowIds {
    /// By call: that of its function, or of its stack.
    Own(Vec<u32>),
    /// Those of all functions of a stack: the calls as stacks of rows.
    Total(Folded),
}

/// Sums of a trace, kept to use their memory again: nothing between two traces.
#[derive(Default)]
pub(super) struct RowSums {
    own: Accumulator<u64>,
    total: Sums<u64>,
}

impl CallRows {
    pub(super) fn new(
        side: Side,
        functions: &[BuildFunction],
        calls: FunctionTree,
        code: &mut Code,
        renames: &mut Renames,
        options: DiffOptions,
    ) -> CallRows {
        let names = code.add_functions(functions, renames);
        let by_stack = options.by == Axis::Stack;
        let stacks = (by_stack || options.stacks)
            .then(|| code.stacks.absorb(&calls, |function| names[function as usize]));
        let of_calls = match &stacks {
            Some(stacks) if by_stack => {
                CallRowIds::Own(stacks.iter().map(|&stack| code.rows.intern(RowKey::Stack(stack))).collect())
            }
            _ => {
                let rows: Vec<u32> =
                    names.iter().map(|&name| code.row_of_function(name, options.by)).collect();
                let row = |function: u32| rows[function as usize];
                match options.total {
                    false => {
                        CallRowIds::Own(calls.calls().nodes().iter().map(|node| row(node.frame.0)).collect())
                    }
                    true => CallRowIds::Total(FunctionTree::fold(
                        calls.calls(),
                        |_| true,
                        |function| [row(function.0)],
                        |_| true,
                    )),
                }
            }
        };
        CallRows {
            side,
            coverage: CoverageOfFunctions::new(functions, code, &names),
            whole: options.absolute.then(|| code.rows.intern(RowKey::Whole)),
            stacks: stacks.filter(|_| options.stacks),
            calls,
            of_calls,
        }
    }

    /// The rows of a trace with their weights.
    pub(super) fn weights(&self, sums: &mut RowSums, weights: &StackWeights) -> RowWeights {
        match &self.of_calls {
            CallRowIds::Own(rows) => {
                weights.stacks.iter().for_each(|&(call, ns)| sums.own.add(rows[call as usize], ns));
            }
            CallRowIds::Total(rows) => {
                for &(call, ns) in &weights.stacks {
                    rows.stacks[call as usize]
                        .into_iter()
                        .for_each(|stack| sums.total.add(&rows.tree, stack, ns));
                }
                let totals = sums.total.take(&rows.tree);
                totals.iter().for_each(|(row, sum)| sums.own.add(*row, sum.total));
            }
        }
        let whole = weights.stacks.iter().map(|stack| stack.1).fold(0, u64::saturating_add);
        self.whole.into_iter().for_each(|row| sums.own.add(row, whole));
        let stacks = self
            .stacks
            .as_ref()
            .map(|stacks| weights.stacks.iter().map(|&(call, ns)| (stacks[call as usize], ns)).collect());
        RowWeights {
            weight: weights.weight,
            samples: weights.samples,
            whole,
            rows: sums.own.take(),
            stacks: stacks.unwrap_or_default(),
            coverage: self.coverage.of(weights, &self.calls),
        }
    }
}
