//! A sample whose walk ended in a gap. It is kept until the runtime's report on its thread has been
//! read, which follows the sample.

use super::block::Step;
use crate::trace::{ManagedState, SampleCopy};
use stk_unwind::Stop;

/// A step that is not yet in the block's list.
pub(super) struct PendingStep {
    /// Its slot in the block.
    pub slot: usize,
    /// The step without its stack.
    pub step: Step,
    /// Why its walk ended.
    pub stop: Stop,
    /// A copy of the sample.
    pub copy: SampleCopy,
    /// What the runtime reported about its thread since.
    pub managed: Option<ManagedState>,
}
