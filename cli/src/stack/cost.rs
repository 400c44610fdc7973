//! What walking the stacks of a trace may cost: a few stored bytes can stand for a stack of
//! thousands of frames, and for any number of them.
//!
//! Costs are nanoseconds of a slow processor by a price list, not by a clock: the same trace gives
//! the same result on every machine.

use crate::trace::Trace;
use stk_format::BlockRef;

/// Finding one frame.
pub(super) const FRAME: u64 = 250;
/// Looking at one module that came late.
pub const LATE_MODULE: u64 = 2;
/// Decoding so many bytes of a block once more.
pub const BYTES_AGAIN: u64 = 2;

/// For each byte of a trace: four frames. Recordings need less than a tenth of one.
const TRACE_BYTE: u64 = 1000;
/// For each byte of the memory that there is for a trace: one second with the default.
const MEMORY_BYTE: u64 = 4;
/// What any block may cost, and more for each of its bytes: some are walked before it is known that
/// those before them took all.
const BLOCK: u64 = 100_000_000;
const BLOCK_BYTE: u64 = 4000;
/// Such blocks that all time for the trace is enough for.
const BLOCKS: u64 = 64;

/// What walking all samples of a trace may cost.
pub fn of_trace(trace: &Trace<'_>) -> u64 {
    let memory = trace.budget.all().saturating_mul(MEMORY_BYTE);
    memory.saturating_add(trace.file_len().saturating_mul(TRACE_BYTE))
}

/// What walking the samples of a block may cost.
pub fn of_block(trace: &Trace<'_>, block: &BlockRef) -> u64 {
    let own = u64::from(block.header.stored_len).saturating_mul(BLOCK_BYTE).saturating_add(BLOCK);
    own.max(of_trace(trace) / BLOCKS)
}

/// That walking the stacks of a block took all that it may: one sentence.
pub fn beyond_block(block: &BlockRef) -> String {
    let seq = block.header.seq;
    format!("block {seq}: its end is left out: its stacks take longer to walk than a block of its size may")
}
