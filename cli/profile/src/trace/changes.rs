//! Goes along a list of changes in time.

/// The number of `changes` (which are sorted) that have happened, found by searching from `at`.
pub(super) fn destination<C>(changes: &[C], at: usize, happened: impl Fn(&C) -> bool) -> usize {
    let (before, after) = changes.split_at(at);
    match (before.last(), after.first()) {
        (Some(last), _) if !happened(last) => before.partition_point(happened),
        (_, Some(first)) if happened(first) => at + after.partition_point(happened),
        _ => at,
    }
}
