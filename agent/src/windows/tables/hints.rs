//! Hints from DllMain that a thread started. DllMain runs on the new thread under the loader's
//! lock, so it only puts the thread's id into a ring and sets an event.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use windows_sys::Win32::System::Threading::GetCurrentThreadId;

use crate::record::queue::Queue;

/// Most hints that wait. A lost hint only delays the thread until the next enumeration.
const RING: usize = 256;

static HINTS: AtomicPtr<Queue<u32>> = AtomicPtr::new(null_mut());

/// Makes the ring, once per process.
pub(crate) fn prepare() {
    if HINTS.load(Ordering::Acquire).is_null() {
        HINTS.store(Box::into_raw(Box::new(Queue::new(RING))), Ordering::Release);
    }
}

/// Notes that the calling thread has just started. True if the tables thread should enumerate.
pub(crate) fn thread_started() -> bool {
    // SAFETY: null or a box that is never freed.
    let Some(hints) = (unsafe { HINTS.load(Ordering::Acquire).as_ref() }) else { return false };
    // SAFETY: no preconditions.
    hints.push(unsafe { GetCurrentThreadId() }).is_ok()
}

/// Takes the oldest hint.
pub(crate) fn next() -> Option<u32> {
    // SAFETY: null or a box that is never freed.
    unsafe { HINTS.load(Ordering::Acquire).as_ref() }?.pop()
}
