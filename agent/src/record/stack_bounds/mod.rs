//! Decides which part of a thread's stack is copied in which way. Portable, so that it is tested
//! with a fake.
//!
//! The thread's environment block holds two bounds, StackLimit and StackBase. A runtime may write
//! any values there, so the recorder checks them against the system's view of the memory: once for
//! each pair of bounds that a thread shows, while the thread runs. It copies memory within checked
//! bounds plainly. It copies all other memory by a system call that reports an error where a plain
//! copy would fault.

/// Most bytes copied of a foreign stack: one that lies outside of the bounds, so that its end is
/// not known.
pub(crate) const FOREIGN_BYTES: u64 = 64 << 10;
/// Most bytes copied within unchecked bounds: as many as a sample may hold, so that the first
/// sample of a deep stack is whole.
pub(crate) const UNCHECKED_BYTES: u64 = 8 << 20;
/// Most bytes between the stack pointer and StackLimit: code reserves up to a page of stack before
/// it touches it, and the functions that it calls first may do the same.
pub(crate) const BELOW_LIMIT_BYTES: u64 = 8 << 10;
/// Larger stacks are refused.
const MOST_STACK_BYTES: u64 = 1 << 30;
/// A stack of more runs of pages is refused.
const MOST_RUNS: usize = 64;

/// StackLimit and StackBase: the lowest address of a thread's stack, and the end of it, exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bounds {
    pub limit: u64,
    pub base: u64,
}

/// Consecutive pages with the same attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// Address after the last page.
    pub end: u64,
    /// Start of the allocation that the pages belong to.
    pub allocation: u64,
    /// Whether they can be read without side effects: committed, accessible, no guard pages.
    pub readable: bool,
}

/// The system's view of memory.
pub(crate) trait Pages {
    /// The run of pages that starts with the page of `address`; `None` if the system knows nothing
    /// of it.
    fn run(&self, address: u64) -> Option<Run>;
}

/// The result of checking the bounds that a thread has shown.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CheckedBounds {
    valid: Option<Bounds>,
    refused: Option<Bounds>,
}

impl CheckedBounds {
    /// The bounds of a thread that runs on this very stack now: nobody need ask for them.
    pub(crate) fn of_running(seen: Bounds) -> CheckedBounds {
        CheckedBounds { valid: Some(seen), refused: None }
    }

    /// Checks bounds that differ from those checked last. Must be called only while the thread
    /// runs.
    pub(crate) fn check(&mut self, pages: &impl Pages, seen: Bounds) {
        if self.valid == Some(seen) || self.refused == Some(seen) {
            return;
        }
        if is_stack(pages, seen) {
            *self = CheckedBounds { valid: Some(seen), refused: None };
        } else {
            self.refused = Some(seen);
        }
    }
}

/// Whether these bounds enclose one committed piece of one allocation, without guard pages.
fn is_stack(pages: &impl Pages, bounds: Bounds) -> bool {
    if bounds.limit >= bounds.base || bounds.base - bounds.limit > MOST_STACK_BYTES {
        return false;
    }
    let mut at = bounds.limit;
    let mut allocation = None;
    for _ in 0..MOST_RUNS {
        let Some(run) = pages.run(at).filter(|run| run.readable && run.end > at) else { return false };
        if *allocation.get_or_insert(run.allocation) != run.allocation {
            return false;
        }
        at = run.end;
        if at >= bounds.base {
            return true;
        }
    }
    false
}

/// How a stack is copied: from `start` up, zeros, then bytes read by system call, then plain bytes.
/// All are multiples of the word size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    /// Address of the first word: the stack pointer, rounded down.
    pub start: u64,
    /// Bytes below StackLimit. Nothing was ever written there: they are zero.
    pub zeros: usize,
    /// Bytes that are copied by system call.
    pub careful: usize,
    /// Bytes that are copied plainly.
    pub plain: usize,
    /// StackBase; 0 if the stack pointer lies outside of the thread's bounds.
    pub base: u64,
}

/// Plans the copy for a stopped thread with stack pointer `sp` and the bounds `seen`. `room` is the
/// size of the buffer, in bytes.
pub(crate) fn plan(sp: u64, seen: Bounds, checked: &CheckedBounds, room: usize, word: usize) -> Plan {
    let mask = !(word as u64 - 1);
    let (start, room) = (sp & mask, room as u64 & mask);
    let words = (seen.limit | seen.base) & !mask == 0;
    let inside = start < seen.base && seen.limit.saturating_sub(start) <= BELOW_LIMIT_BYTES;
    if !words || !inside || seen.limit >= seen.base || checked.refused == Some(seen) {
        return Plan { start, careful: FOREIGN_BYTES.min(room) as usize, ..Plan::default() };
    }
    let end = start + (seen.base - start).min(room);
    let first = start.max(seen.limit).min(end);
    // A stack grows downward: if the base is the same, the range that was checked is still stack.
    let valid = checked.valid.filter(|valid| valid.base == seen.base);
    let plain_from = valid.map_or(end, |valid| valid.limit.clamp(first, end));
    let careful = (plain_from - first).min(UNCHECKED_BYTES);
    let plain = if careful == plain_from - first { end - plain_from } else { 0 };
    Plan {
        start,
        zeros: (first - start) as usize,
        careful: careful as usize,
        plain: plain as usize,
        base: seen.base,
    }
}

/// Number of bytes from `start`, at most `len`, that are in readable pages of one allocation.
pub(crate) fn readable(pages: &impl Pages, start: u64, len: usize) -> usize {
    let end = start.saturating_add(len as u64);
    let (mut at, mut allocation) = (start, None);
    for _ in 0..MOST_RUNS {
        let Some(run) = pages.run(at).filter(|run| run.readable && run.end > at) else { break };
        if *allocation.get_or_insert(run.allocation) != run.allocation {
            break;
        }
        at = run.end;
        if at >= end {
            return len;
        }
    }
    (at - start) as usize
}

#[cfg(test)]
mod tests;
