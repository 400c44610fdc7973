//! Priority boosts of a thread of this process.

use windows_sys::Win32::System::Threading::{GetThreadPriorityBoost, SetThreadPriorityBoost};

use crate::record::boost::BoostControl;
use crate::windows::system::thread::{ThreadHandle, open_with};

/// THREAD_SET_LIMITED_INFORMATION and THREAD_QUERY_LIMITED_INFORMATION.
const ACCESS: u32 = 0x0400 | 0x0800;

/// A thread, by its id. The id must not be reused meanwhile, so a handle to the thread must be
/// open.
pub(super) struct ThreadBoost(pub u32);

impl ThreadBoost {
    /// Opens a handle for one call, so that no further handle per thread must be kept.
    fn handle(&self) -> Option<ThreadHandle> {
        open_with(self.0, ACCESS)
    }
}

impl BoostControl for ThreadBoost {
    fn is_off(&self) -> Option<bool> {
        let mut off = 0;
        // SAFETY: the handle is open with THREAD_QUERY_LIMITED_INFORMATION; the result is one BOOL.
        (unsafe { GetThreadPriorityBoost(self.handle()?.raw(), &mut off) } != 0).then_some(off != 0)
    }

    fn set_off(&self, off: bool) -> bool {
        let Some(handle) = self.handle() else { return false };
        // SAFETY: the handle is open with THREAD_SET_LIMITED_INFORMATION.
        unsafe { SetThreadPriorityBoost(handle.raw(), i32::from(off)) != 0 }
    }
}
