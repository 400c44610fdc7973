//! A sample whose walk ended in a gap, kept until what a runtime said of its thread has been read: that follows the sample.

use super::block::Step;
use crate::trace::{Managed, registers};
use stk_format::Sample;
use stk_unwind::{Registers, Stop};

/// A step that is not told yet.
pub(super) struct Held {
    /// Its slot in the block.
    pub slot: usize,
    /// All but its stack.
    pub step: Step,
    /// Why its walk ended.
    pub stop: Stop,
    /// What was captured.
    pub kept: Kept,
    /// What was said of its thread since.
    pub managed: Option<Managed>,
}

/// A copy of what was captured of a thread.
pub(super) struct Kept {
    registers: Registers,
    stack: Vec<u8>,
    stack_start: u64,
    stack_base: u64,
    truncated: bool,
}

impl Kept {
    /// A copy of a sample; `None` if its registers are not known.
    pub fn of(sample: &Sample<'_>) -> Option<Kept> {
        Some(Kept {
            registers: registers(sample.set, sample.registers)?,
            stack: sample.stack.to_vec(),
            stack_start: sample.stack_start,
            stack_base: sample.stack_base,
            truncated: sample.truncated,
        })
    }

    /// The same as the unwinder takes it.
    pub fn sample(&self) -> stk_unwind::Sample<'_> {
        stk_unwind::Sample {
            registers: &self.registers,
            stack: &self.stack,
            stack_start: self.stack_start,
            stack_base: (self.stack_base != 0).then_some(self.stack_base),
            truncated: self.truncated,
            code_at_ip: None,
        }
    }
}
