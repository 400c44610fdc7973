//! Limits on the cost of walking the stacks of a trace: a few stored bytes can expand to a stack of
//! thousands of frames, and to any number of such stacks.
//!
//! Costs are nanoseconds of a slow processor, from a price list instead of a clock, so the same
//! trace gives the same result on every machine.

use crate::trace::Trace;
use stk_format::BlockRef;

/// Price of finding one frame.
pub(super) const FRAME: u64 = 250;
/// Price of looking at one module that was reported late.
pub(crate) const LATE_MODULE: u64 = 2;
/// Price of decoding one byte of a block once more.
pub const BYTES_AGAIN: u64 = 2;

/// Allowance for each byte of a trace: four frames. Recordings need less than a tenth of a frame.
const TRACE_BYTE: u64 = 1000;
/// Allowance for each byte of the memory budget: one second in all with the default.
const MEMORY_BYTE: u64 = 4;
/// Allowance for any block, and the addition for each of its bytes. Some blocks are walked before
/// it is known that those before them used up the allowance.
const BLOCK: u64 = 100_000_000;
const BLOCK_BYTE: u64 = 4000;
/// The allowance of the trace is enough for this many blocks that use all of theirs.
const BLOCKS: u64 = 64;

/// The allowance for walking all samples of a trace.
pub fn of_trace(trace: &Trace<'_>) -> u64 {
    let memory = trace.budget.all().saturating_mul(MEMORY_BYTE);
    memory.saturating_add(trace.file_len().saturating_mul(TRACE_BYTE))
}

/// The allowance for walking the samples of a block.
pub(crate) fn of_block(trace: &Trace<'_>, block: &BlockRef) -> u64 {
    let own = u64::from(block.header.stored_len).saturating_mul(BLOCK_BYTE).saturating_add(BLOCK);
    own.max(of_trace(trace) / BLOCKS)
}

/// Says in one sentence that walking the stacks of a block used up its allowance.
pub(crate) fn beyond_block(block: &BlockRef) -> String {
    let seq = block.header.seq;
    format!("block {seq}: its end is left out: its stacks take longer to walk than a block of its size may")
}
