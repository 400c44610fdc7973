//! Waits until the next pass is due, with a timer as fine as the system has, or until the sampler
//! is woken.

use core::ptr::null;
use stk_schema::Ticks;

use windows_sys::Win32::Foundation::{HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateWaitableTimerExW, INFINITE, SetWaitableTimer,
    TIMER_ALL_ACCESS, WaitForMultipleObjects, WaitForSingleObject,
};

use crate::windows::shared::events::{WAKE_SAMPLER, close};
use crate::windows::system::api::{NtDelayExecution, NtSetTimerResolution, SystemApi, ticks};

/// 1 ms in units of 100 ns, for NtSetTimerResolution.
const RESOLUTION: u32 = 10_000;
/// Units of 100 ns before a due time from which on the sampler is not woken, under Wine.
const LAST: i64 = 20_000;

/// The timer of the sampler.
pub(super) struct Timer {
    handle: HANDLE,
    /// Set if the system's clock was made finer; restores it.
    finer: Option<NtSetTimerResolution>,
    /// Ends a wait, under Wine. Its timers are the wineserver's, which turns to them at whole
    /// milliseconds and between two requests of the target's threads: samples would be in step with
    /// both (docs/measured/weights.md). This wait is the kernel's. Windows' own one ends at the
    /// next interrupt of its clock, which its finest timer does not wait for.
    delay: Option<NtDelayExecution>,
}

/// Why the wait ended.
#[derive(PartialEq, Eq)]
pub(super) enum WakeReason {
    Due,
    /// Another thread woke the sampler.
    Early,
}

impl Timer {
    /// A timer that is not set.
    pub(super) fn new(api: &SystemApi) -> Timer {
        // SAFETY: plain calls; the handle is owned by the result.
        unsafe {
            let mut finer = None;
            let mut handle = CreateWaitableTimerExW(
                null(),
                null(),
                CREATE_WAITABLE_TIMER_HIGH_RESOLUTION,
                TIMER_ALL_ACCESS,
            );
            if handle.is_null() {
                // Before Windows 10 1803: an ordinary timer, as fine as the system's clock
                // interrupt can be made.
                if let Some(set_resolution) = api.set_timer_resolution {
                    let mut actual = 0;
                    if set_resolution(RESOLUTION, 1, &mut actual) >= 0 {
                        finer = api.set_timer_resolution;
                    }
                }
                handle = CreateWaitableTimerExW(null(), null(), 0, TIMER_ALL_ACCESS);
            }
            let delay = api.delay_execution.filter(|_| api.wine_version.is_some());
            Timer { handle, finer, delay }
        }
    }

    /// Waits until `due`, or until the sampler is woken.
    pub(super) fn wait_until(&self, due: Ticks, api: &SystemApi) -> WakeReason {
        let left =
            || (u128::from(due.saturating_sub(ticks()).0) * 10_000_000 / u128::from(api.frequency)) as i64;
        let units = left();
        let last = if self.delay.is_some() { LAST } else { 0 };
        if units > last && self.wait(units - last) == WakeReason::Early {
            return WakeReason::Early;
        }
        if let Some(delay) = self.delay {
            // SAFETY: the argument is one number that is read.
            unsafe { delay(0, &-left()) };
        }
        WakeReason::Due
    }

    /// Waits for so many units of 100 ns, or until the sampler is woken.
    fn wait(&self, units: i64) -> WakeReason {
        let wake = WAKE_SAMPLER.handle();
        // SAFETY: both handles are open for the length of the call; the due time is relative, hence
        // negative.
        let result = unsafe {
            if self.handle.is_null() || SetWaitableTimer(self.handle, &-units, 0, None, null(), 0) == 0 {
                WaitForSingleObject(wake, (units / 10_000).max(1) as u32)
            } else {
                match WaitForMultipleObjects(2, [wake, self.handle].as_ptr(), 0, INFINITE) {
                    WAIT_OBJECT_0 => WAIT_OBJECT_0,
                    _ => u32::MAX,
                }
            }
        };
        if result == WAIT_OBJECT_0 { WakeReason::Early } else { WakeReason::Due }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(set_resolution) = self.finer {
            let mut actual = 0;
            // SAFETY: the result is one u32. The process's request of `Timer::new` is withdrawn.
            unsafe { set_resolution(RESOLUTION, 0, &mut actual) };
        }
        close(self.handle);
    }
}
