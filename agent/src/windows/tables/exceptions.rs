//! Exceptions that the handler (`session::exceptions`) has seen, until the tables thread writes
//! them. The ring is preallocated; the thread that raised one takes no lock and does not wait.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use stk_schema::event::{Event, Exception, ThreadFlags};

use super::TablesRecorder;
use crate::record::modules::Events;
use crate::record::queue::Queue;

/// Most exceptions that wait.
const RING: usize = 256;

/// An exception that waits to be written, with its thread's id for the instance.
pub(crate) struct SeenException {
    pub tid: u32,
    /// What is written; the thread's instance is not known yet.
    pub event: Exception,
}

static SEEN: AtomicPtr<Queue<SeenException>> = AtomicPtr::new(null_mut());

/// Makes the ring, once per process, and forgets exceptions of an earlier recording.
pub(crate) fn prepare() {
    if SEEN.load(Ordering::Acquire).is_null() {
        SEEN.store(Box::into_raw(Box::new(Queue::new(RING))), Ordering::Release);
    }
    while next().is_some() {}
}

/// Leaves an exception. False if the ring is full.
pub(crate) fn leave(seen: SeenException) -> bool {
    // SAFETY: null or a box that is never freed.
    unsafe { SEEN.load(Ordering::Acquire).as_ref() }.is_some_and(|ring| ring.push(seen).is_ok())
}

fn next() -> Option<SeenException> {
    // SAFETY: null or a box that is never freed.
    unsafe { SEEN.load(Ordering::Acquire).as_ref() }?.pop()
}

impl TablesRecorder {
    /// Writes the exceptions that wait.
    pub(super) fn exceptions(&mut self) {
        while let Some(SeenException { tid, event }) = next() {
            if !self.threads.knows(tid) {
                self.enumerate(ThreadFlags::empty());
            }
            let known = self.threads.live().iter().find(|thread| thread.start.tid == tid);
            let thread = known.map_or(0, |thread| thread.instance);
            self.journal.event(&Event::Exception(Exception { thread, ..event }));
        }
    }
}
