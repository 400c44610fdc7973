//! What rows of `samples` that are one sum have in common.

use stk_profile::profile::Activity;

/// Traces that are summed together: of one nominal interval, all with CPU times, or all without.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct SumClass {
    pub interval_ns: u64,
    pub has_cpu: bool,
}

/// What rows of a group have in common that are one sum.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SumKey {
    pub activity: Activity,
    has_stack: bool,
    /// 0 without a stack.
    stack_id: i64,
}

impl SumKey {
    pub(super) fn new(activity: Activity, stack: Option<i64>) -> SumKey {
        SumKey { activity, has_stack: stack.is_some(), stack_id: stack.unwrap_or(0) }
    }

    pub(super) fn stack(&self) -> Option<i64> {
        self.has_stack.then_some(self.stack_id)
    }
}
