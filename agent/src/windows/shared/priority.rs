//! The priority of the recorder's threads. Each thread sets its own when it begins.

use windows_sys::Win32::System::Threading::{GetCurrentThread, SetThreadPriority};

/// Sets the calling thread's priority.
pub(crate) fn set_priority(priority: i32) {
    // SAFETY: the calling thread's pseudo handle.
    unsafe { SetThreadPriority(GetCurrentThread(), priority) };
}
