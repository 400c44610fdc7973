//! Hints from DllMain that a thread started. DllMain runs on the new thread under the loader's
//! lock, so it only puts the thread's id into a ring and sets an event.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use windows_sys::Win32::System::Threading::GetCurrentThreadId;

use crate::record::queue::Queue;

/// Most hints that wait. If one is lost, the threads are listed.
pub(super) const RING: usize = 256;

static HINTS: AtomicPtr<Queue<u32>> = AtomicPtr::new(null_mut());
static LOST: AtomicBool = AtomicBool::new(false);

/// Makes the ring, once per process.
pub(crate) fn prepare() {
    if HINTS.load(Ordering::Acquire).is_null() {
        HINTS.store(Box::into_raw(Box::new(Queue::new(RING))), Ordering::Release);
    }
}

/// Notes that the calling thread has just started. True if the tables thread should look for it.
pub(crate) fn thread_started() -> bool {
    // SAFETY: null or a box that is never freed.
    let Some(hints) = (unsafe { HINTS.load(Ordering::Acquire).as_ref() }) else { return false };
    // SAFETY: no preconditions.
    let noted = hints.push(unsafe { GetCurrentThreadId() }).is_ok();
    if !noted {
        LOST.store(true, Ordering::Release);
    }
    noted
}

/// Takes the oldest hint.
pub(crate) fn next() -> Option<u32> {
    // SAFETY: null or a box that is never freed.
    unsafe { HINTS.load(Ordering::Acquire).as_ref() }?.pop()
}

/// Whether a hint was lost since the last call.
pub(crate) fn lost() -> bool {
    LOST.swap(false, Ordering::AcqRel)
}
