//! Finds where Go's stacks start. A goroutine's outermost function is `runtime.goexit`, a system
//! stack's is `runtime.mstart`. Neither has a caller or unwind data.

use std::ops::Range;

/// Functions that have no caller on their stack. The scheduler switches to a thread's system stack
/// through `mcall`, which leaves no return address.
const STACK_STARTS: [&[u8]; 4] = [b"runtime.goexit", b"runtime.mstart", b"runtime.rt0_go", b"runtime.mcall"];

/// The code ranges (RVAs) of the functions that stacks start in, by the table of functions of a Go
/// program; empty for all other images.
pub(super) fn stack_starts(image: &[u8]) -> Vec<Range<u32>> {
    let found = stk_symbols::go_functions(image, &|name| STACK_STARTS.contains(&name));
    found.into_iter().map(|(range, _)| range).collect()
}
