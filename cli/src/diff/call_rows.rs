//! The rows that the stacks of traces count for, each found once for all traces that are added
//! together.

use super::code::{Code, Renames, RowKey};
use super::coverage::CoverageOfFunctions;
use super::{By, Call, DiffOptions, FunctionName, RowWeights, Side, StackWeights};
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The code of traces that are added together, under the numbers of the comparison.
pub struct CallRows {
    pub(super) side: Side,
    calls: Vec<Call>,
    /// By function: the row that it counts for.
    of_functions: Vec<u32>,
    coverage: CoverageOfFunctions,
    /// By call, if stacks are wanted.
    stacks: Option<Vec<u32>>,
    of_calls: OfCalls,
    /// The row of whole traces, if there is one.
    whole: Option<u32>,
    /// Rows of the comparison so far.
    rows: usize,
}

/// The rows that a call counts for.
enum OfCalls {
    /// That of its function.
    Own,
    /// By call: that of its stack.
    Stack(Vec<u32>),
    /// By call, once it was asked for: those of all functions of its stack.
    Total(Vec<OnceLock<Box<[u32]>>>),
}

/// Sums of a trace, kept to use their memory again: nothing between two traces.
#[derive(Default)]
pub(super) struct RowSums {
    /// By row.
    sums: Vec<u64>,
    /// Rows that have a sum.
    met: Vec<u32>,
}

impl CallRows {
    pub(super) fn new(
        side: Side,
        functions: &[FunctionName],
        calls: Vec<Call>,
        code: &mut Code,
        renames: &mut Renames,
        options: DiffOptions,
    ) -> CallRows {
        let names = code.add_functions(functions, renames);
        let by_stack = options.by == By::Stack;
        let stacks = (by_stack || options.stacks).then(|| code.add_stacks(&calls, &names));
        let of_functions = match by_stack {
            false => names.iter().map(|&name| code.row_of_function(name, options.by)).collect(),
            true => Vec::new(),
        };
        let of_calls = match &stacks {
            Some(stacks) if by_stack => {
                OfCalls::Stack(stacks.iter().map(|&stack| code.rows.of(RowKey::Stack(stack))).collect())
            }
            _ if options.total => OfCalls::Total(calls.iter().map(|_| OnceLock::new()).collect()),
            _ => OfCalls::Own,
        };
        CallRows {
            side,
            coverage: CoverageOfFunctions::new(functions, code, &names),
            whole: options.absolute.then(|| code.rows.of(RowKey::Whole)),
            stacks: stacks.filter(|_| options.stacks),
            rows: code.rows.values().len(),
            calls,
            of_functions,
            of_calls,
        }
    }

    /// The rows that a call counts for.
    fn of(&self, call: u32) -> &[u32] {
        let at = call as usize;
        match &self.of_calls {
            OfCalls::Own => std::slice::from_ref(&self.of_functions[self.calls[at].function as usize]),
            OfCalls::Stack(rows) => std::slice::from_ref(&rows[at]),
            OfCalls::Total(rows) => rows[at].get_or_init(|| self.of_stack(call).into_iter().collect()),
        }
    }

    /// The rows of the functions of a stack, each once.
    fn of_stack(&self, call: u32) -> BTreeSet<u32> {
        let mut rows = BTreeSet::new();
        let mut next = self.calls.get(call as usize);
        while let Some(call) = next {
            rows.insert(self.of_functions[call.function as usize]);
            next = call.caller.and_then(|caller| self.calls.get(caller as usize));
        }
        rows
    }

    /// The rows of a trace with their weights.
    pub(super) fn weights(&self, sums: &mut RowSums, weights: &StackWeights) -> RowWeights {
        sums.sums.resize(self.rows, 0);
        for &(call, ns) in &weights.stacks {
            self.of(call).iter().for_each(|&row| sums.add(row, ns));
        }
        let whole = weights.stacks.iter().map(|stack| stack.1).fold(0, u64::saturating_add);
        self.whole.into_iter().for_each(|row| sums.add(row, whole));
        let stacks = self
            .stacks
            .as_ref()
            .map(|stacks| weights.stacks.iter().map(|&(call, ns)| (stacks[call as usize], ns)).collect());
        RowWeights {
            weight: weights.weight,
            samples: weights.samples,
            whole,
            rows: sums.take(),
            stacks: stacks.unwrap_or_default(),
            coverage: self.coverage.of(weights, &self.calls),
        }
    }
}

impl RowSums {
    fn add(&mut self, row: u32, ns: u64) {
        let sum = &mut self.sums[row as usize];
        if *sum == 0 && ns > 0 {
            self.met.push(row);
        }
        *sum = sum.saturating_add(ns);
    }

    /// The sums, by row.
    fn take(&mut self) -> Vec<(u32, u64)> {
        self.met.sort_unstable();
        self.met.drain(..).map(|row| (row, std::mem::take(&mut self.sums[row as usize]))).collect()
    }
}
