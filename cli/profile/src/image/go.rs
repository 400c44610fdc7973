//! Finds where Go's stacks start. A goroutine's outermost function is `runtime.goexit`, a system
//! stack's is `runtime.mstart`. Neither has a caller or unwind data.

use std::ops::Range;

/// Functions that have no caller on their stack. The scheduler switches to a thread's system stack
/// through `mcall`, which leaves no return address.
const STACK_STARTS: [&str; 4] = ["runtime.goexit", "runtime.mstart", "runtime.rt0_go", "runtime.mcall"];

/// The code ranges (RVAs) of the functions that stacks start in, by the table of functions of a Go
/// program; empty for all other images.
pub(super) fn stack_starts(image: &[u8]) -> Vec<Range<u32>> {
    let functions = stk_symbols::go_functions(image).into_iter();
    functions.filter(|(_, name)| STACK_STARTS.contains(&name.as_str())).map(|(range, _)| range).collect()
}
