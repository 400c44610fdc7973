//! A thread of the recorder that writes to the trace, as the others see it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use super::events::{WakeEvent, wake_all};
use super::exclusive::Exclusive;
use crate::record::shared::Lane;

/// What belongs to one thread, and what the others may touch of it: the writer takes the lane's
/// blocks, and at the end of a recording enters the state to flush it.
pub struct Worker<S> {
    /// Its blocks, on their way to the writer.
    pub lane: Arc<Lane>,
    /// What it works on.
    pub state: Exclusive<S>,
    /// Set once it has handed over all that it had.
    pub done: AtomicBool,
    /// What it waits for.
    pub wake: &'static WakeEvent,
}

impl<S> Worker<S> {
    /// A thread that has done nothing yet.
    pub fn new(lane: Arc<Lane>, state: S, wake: &'static WakeEvent) -> Worker<S> {
        Worker { lane, state: Exclusive::new(state), done: AtomicBool::new(false), wake }
    }

    /// Whether it has handed over all that it had.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// It has handed over all that it had: tells those that wait for that.
    pub fn finish(&self) {
        self.done.store(true, Ordering::Release);
        wake_all();
    }
}
