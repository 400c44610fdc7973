//! The threads that write to the trace, together. The writer takes their blocks, and flushes them
//! when the recording ends.

use crate::record::shared::Lane;
use crate::windows::code::CodeThread;
use crate::windows::runtimes::RuntimesThread;
use crate::windows::sampler::SamplerThread;
use crate::windows::tables::TablesThread;

/// All threads that have a lane.
pub(super) struct Workers {
    pub sampler: SamplerThread,
    pub tables: TablesThread,
    pub code: CodeThread,
    pub runtimes: RuntimesThread,
}

impl Workers {
    /// The lanes in the order in which the writer empties them: first the module and thread events,
    /// because samples refer to them.
    pub(super) fn lanes(&self) -> [&Lane; 4] {
        [
            &self.tables.worker.lane,
            &self.code.worker.lane,
            &self.runtimes.worker.lane,
            &self.sampler.worker.lane,
        ]
    }
}
