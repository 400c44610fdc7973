//! The runtimes thread: talks to a .NET runtime in the process. It asks for the names of the
//! runtime's methods, through the diagnostics pipe, and reads which Thread object of the runtime
//! belongs to which thread. For names that the pipe does not give, it asks the host, through the
//! mailbox.
//!
//! [`RuntimesThread::run`] is its loop. It may wait for the runtime as long as its deadlines allow.
//! Other threads wait for it only at the end of a recording that was requested. If the process
//! itself ends, this thread is gone: the data it had received is written, and it asks nothing more.
//!
//! It owns the conversation ([`client`]), which no other thread uses, and the events about it
//! ([`RuntimesRecorder`], with its lane), which others may flush. It gets runtimes from the tables
//! thread and addresses that need a name from the code thread. It gives the table of managed
//! threads to the sampler, and blocks to the writer.
//!
//! ```text
//! shared    state shared with the tables thread and the sampler
//! client    decides when the runtime or the host is queried
//! listing   gets one list of methods through the pipe
//! recorder  writes the events
//! note      the line about a runtime that the user reads
//! answers   the results of asking
//! pipe      a named pipe with deadlines
//! ```

mod answers;
mod client;
mod listing;
mod note;
mod pipe;
mod recorder;
mod shared;

pub(super) use recorder::RuntimesRecorder;
pub(super) use shared::{FoundRuntime, RuntimesState};

use alloc::sync::Arc;
use core::sync::atomic::AtomicBool;

use windows_sys::Win32::System::Threading::THREAD_PRIORITY_NORMAL;

use crate::record::dynamic;
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::priority::set_priority;
use crate::windows::shared::worker::Worker;
use crate::windows::system::api::SystemApi;
use client::RuntimesClient;

/// The parts of the runtimes thread that other threads may use.
pub(super) struct RuntimesThread {
    /// Lane, state, done flag and wake event.
    pub worker: Worker<RuntimesRecorder>,
    api: &'static SystemApi,
    clock: SessionClock,
    shared: Arc<RuntimesState>,
    /// The dynamic code that was seen.
    code: Arc<dynamic::Shared>,
}

impl RuntimesThread {
    /// A thread that has not begun.
    pub(super) fn new(
        worker: Worker<RuntimesRecorder>,
        api: &'static SystemApi,
        clock: SessionClock,
        shared: Arc<RuntimesState>,
        code: Arc<dynamic::Shared>,
    ) -> RuntimesThread {
        RuntimesThread { worker, api, clock, shared, code }
    }

    /// Talks to .NET runtimes until the recording ends. `tables_done` and `code_done` are set when
    /// those threads have handed over all their events.
    pub(super) fn run(&self, tables_done: &AtomicBool, code_done: &AtomicBool) {
        set_priority(THREAD_PRIORITY_NORMAL);
        let (worker, ticks_per_ms) = (&self.worker, self.clock.ticks_per_ms);
        RuntimesClient::new(self.api, &self.shared, &worker.state, &self.code, worker.wake, ticks_per_ms)
            .run(tables_done, code_done);
        worker.finish();
    }
}
