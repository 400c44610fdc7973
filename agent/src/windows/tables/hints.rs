//! Hints that threads started, from DllMain: it runs on the new thread under the loader's lock, so
//! it only leaves the thread's id in a ring and sets an event.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use windows_sys::Win32::System::Threading::GetCurrentThreadId;

use crate::record::queue::Queue;

/// Hints that can wait; a lost one only delays the thread until the next enumeration.
const RING: usize = 256;

static HINTS: AtomicPtr<Queue<u32>> = AtomicPtr::new(null_mut());

/// Makes the ring, once per process.
pub fn prepare() {
    if HINTS.load(Ordering::Acquire).is_null() {
        HINTS.store(Box::into_raw(Box::new(Queue::new(RING))), Ordering::Release);
    }
}

/// The calling thread has just started; true if somebody should look.
pub fn thread_started() -> bool {
    // SAFETY: null or a box that is never freed.
    let Some(hints) = (unsafe { HINTS.load(Ordering::Acquire).as_ref() }) else { return false };
    // SAFETY: no preconditions.
    hints.push(unsafe { GetCurrentThreadId() }).is_ok()
}

/// The oldest hint.
pub fn next() -> Option<u32> {
    // SAFETY: null or a box that is never freed.
    unsafe { HINTS.load(Ordering::Acquire).as_ref() }?.pop()
}
