//! The system's clock, and its sleeps.

use stk_schema::Ticks;
use windows_sys::Win32::System::Threading::Sleep;

use super::api::ticks;
use crate::record::patience::Sleeper;

/// The performance counter, and Sleep.
pub(crate) struct SystemClock;

impl Sleeper for SystemClock {
    fn now(&mut self) -> Ticks {
        ticks()
    }

    fn sleep(&mut self, milliseconds: u32) {
        // SAFETY: no preconditions.
        unsafe { Sleep(milliseconds) };
    }
}
