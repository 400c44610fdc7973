//! A sample whose walk ended in a gap, kept until what a runtime said of its thread has been read:
//! that follows the sample.

use super::block::Step;
use crate::trace::{ManagedState, SampleCopy};
use stk_unwind::Stop;

/// A step that is not told yet.
pub(super) struct PendingStep {
    /// Its slot in the block.
    pub slot: usize,
    /// All but its stack.
    pub step: Step,
    /// Why its walk ended.
    pub stop: Stop,
    /// What was captured.
    pub kept: SampleCopy,
    /// What was said of its thread since.
    pub managed: Option<ManagedState>,
}
