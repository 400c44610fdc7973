//! The priority of the recorder's threads, and their place outside of power throttling. Each thread
//! sets its own when it begins.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::sync::atomic::{AtomicU32, Ordering};

use windows_sys::Win32::Foundation::GetLastError;
use windows_sys::Win32::System::Threading::{GetCurrentThread, SetThreadPriority};

use crate::windows::system::api::{SystemApi, api};

/// What the system said to [`leave_power_throttling`] last: an error, or one of the others.
static POWER: AtomicU32 = AtomicU32::new(POWER_NOT_ASKED);
const POWER_NOT_ASKED: u32 = u32::MAX;
const POWER_OFF: u32 = 0;
const POWER_ABSENT: u32 = u32::MAX - 1;

/// Sets the calling thread's priority.
pub(crate) fn set_priority(priority: i32) {
    // SAFETY: the calling thread's pseudo handle.
    unsafe { SetThreadPriority(GetCurrentThread(), priority) };
}

/// Takes the calling thread out of power throttling: Windows 11 runs the threads of programs in the
/// background at low clock rates and ends their waits late (EcoQoS), and new threads inherit that.
pub(crate) fn leave_power_throttling() {
    let answer = api().map_or(POWER_ABSENT, full_speed);
    POWER.store(answer, Ordering::Relaxed);
}

fn full_speed(api: &SystemApi) -> u32 {
    /// ThreadPowerThrottling, of THREAD_INFORMATION_CLASS.
    const CLASS: i32 = 3;
    const VERSION: u32 = 1;
    const EXECUTION_SPEED: u32 = 1;
    // THREAD_POWER_THROTTLING_STATE: version, which are controlled, which are on.
    let state = [VERSION, EXECUTION_SPEED, 0];
    let Some(set) = api.set_thread_information else { return POWER_ABSENT };
    // SAFETY: the calling thread's pseudo handle; the struct has the size that is passed.
    unsafe {
        match set(GetCurrentThread(), CLASS, (&raw const state).cast(), size_of_val(&state) as u32) {
            0 => GetLastError().max(1),
            _ => POWER_OFF,
        }
    }
}

/// Whether the sampler, the watchdog and the writer are out of power throttling, for the trace.
pub(crate) fn power_throttling() -> Option<String> {
    match POWER.load(Ordering::Relaxed) {
        POWER_NOT_ASKED => None,
        POWER_OFF => Some("off".to_string()),
        POWER_ABSENT => Some("unknown to this system".to_string()),
        error => Some(format!("not switched off (error {error})")),
    }
}
