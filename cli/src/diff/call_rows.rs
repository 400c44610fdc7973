//! The rows that the stacks of traces count for, each found once for all traces that are added
//! together.

use super::code::{Code, RowKey};
use super::{By, Call, DiffOptions, FunctionName};
use std::collections::BTreeSet;

/// The code of traces that are added together, under the numbers of the comparison.
pub(super) struct CallRows {
    pub(super) functions: Vec<FunctionName>,
    pub(super) calls: Vec<Call>,
    /// By function.
    pub(super) names: Vec<u32>,
    /// By call, if stacks are wanted.
    pub(super) stacks: Option<Vec<u32>>,
    /// By call, once it was asked for: the rows that it counts for.
    pub(super) rows: Vec<Option<Box<[u32]>>>,
}

impl CallRows {
    /// The rows that a call counts for.
    pub(super) fn of(&mut self, call: u32, code: &mut Code, options: DiffOptions) -> &[u32] {
        let CallRows { calls, names, stacks, rows, .. } = self;
        rows[call as usize].get_or_insert_with(|| match (stacks, options) {
            (Some(stacks), DiffOptions { by: By::Stack, .. }) => {
                Box::new([code.rows.of(RowKey::Stack(stacks[call as usize]))])
            }
            (_, DiffOptions { total: true, by, .. }) => {
                rows_of_stack(code, calls, names, call, by).into_iter().collect()
            }
            (_, DiffOptions { by, .. }) => {
                Box::new([code.row_of_function(names[calls[call as usize].function as usize], by)])
            }
        })
    }
}

/// The rows of the functions of a stack, each once.
fn rows_of_stack(code: &mut Code, calls: &[Call], names: &[u32], call: u32, by: By) -> BTreeSet<u32> {
    let mut rows = BTreeSet::new();
    let mut next = calls.get(call as usize);
    while let Some(call) = next {
        rows.insert(code.row_of_function(names[call.function as usize], by));
        next = call.caller.and_then(|caller| calls.get(caller as usize));
    }
    rows
}
