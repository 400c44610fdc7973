//! The priority of the recorder's threads; each sets its own as it begins.

use windows_sys::Win32::System::Threading::{GetCurrentThread, SetThreadPriority};

/// Sets the calling thread's priority.
pub fn set_priority(priority: i32) {
    // SAFETY: the calling thread's pseudo handle.
    unsafe { SetThreadPriority(GetCurrentThread(), priority) };
}
