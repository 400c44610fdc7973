//! A state that several threads of the recorder may use, one at a time, without waiting for it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A state that several threads may use, one at a time.
pub(crate) struct Exclusive<T> {
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `enter` lets one thread at a time touch the value.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Exclusive<T> {
        Exclusive { busy: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `work` on the value, unless another thread is inside. Never waits.
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `busy` was false and is true until the end of `work`.
        let result = work(unsafe { &mut *self.value.get() });
        self.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// Whether a thread is inside.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// Lets others enter although a thread is inside.
    ///
    /// # Safety
    /// That thread must never touch the value again, and the value must be consistent.
    pub(crate) unsafe fn expel(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Does the same as [`Exclusive::enter`], even while another thread is inside.
    ///
    /// # Safety
    /// That thread must have ended at a point at which the value was consistent.
    pub(crate) unsafe fn enter_for_the_dead<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller promises that no other thread touches the value any more.
        work(unsafe { &mut *self.value.get() })
    }
}
