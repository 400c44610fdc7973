//! A thread of the recorder that writes to the trace, as the other threads see it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use super::events::{WakeEvent, wake_all};
use super::exclusive::Exclusive;
use crate::record::shared::Lane;

/// The parts of a thread that the others may use: the writer takes the lane's blocks, and at the
/// end of a recording enters the state to flush it.
pub(crate) struct Worker<S> {
    /// Its blocks, on their way to the writer.
    pub lane: Arc<Lane>,
    /// The state that the thread works on.
    pub state: Exclusive<S>,
    /// Set once the thread has handed over all its events.
    pub done: AtomicBool,
    /// The event that the thread waits for.
    pub wake: &'static WakeEvent,
}

impl<S> Worker<S> {
    /// A thread that has done nothing yet.
    pub(crate) fn new(lane: Arc<Lane>, state: S, wake: &'static WakeEvent) -> Worker<S> {
        Worker { lane, state: Exclusive::new(state), done: AtomicBool::new(false), wake }
    }

    /// Whether the thread has handed over all its events.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Notes that the thread has handed over all its events, and wakes the threads that wait for
    /// that.
    pub(crate) fn finish(&self) {
        self.done.store(true, Ordering::Release);
        wake_all();
    }
}
